//! Polls for the programs of a PostgreSQL server, and for `promtool`, which some tests need. The crate's own code does
//! not depend on what is found here.

use std::env;
use std::path::{Path, PathBuf};

pub(crate) fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    look(env::var_os("CARGO_FEATURE_POSTGRES").is_some());
    promtool();
}

/// The test with `promtool` is ignored, and shown as that, where it is not installed.
fn promtool() {
    println!("cargo::rustc-check-cfg=cfg(has_promtool)");
    println!("cargo::rerun-if-env-changed=PATH");
    let path = env::var_os("PATH").unwrap_or_default();
    let name = format!("promtool{}", env::consts::EXE_SUFFIX);
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    match folders.iter().find(|folder| folder.join(&name).is_file()) {
        Some(folder) => {
            println!("cargo::rerun-if-changed={}", folder.join(&name).display());
            println!("cargo::rustc-cfg=has_promtool");
        }
        // Where Debian would install it.
        None => println!("cargo::rerun-if-changed=/usr/bin"),
    }
}

/// Looks for the programs if there are tests that need them.
pub(crate) fn look(has_tests: bool) {
    println!("cargo::rustc-check-cfg=cfg(has_postgres)");
    println!("cargo::rustc-check-cfg=cfg(has_pgbouncer)");
    if has_tests {
        let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
        postgres(Path::new(&root));
    }
}

/// The tests of PostgreSQL are ignored, and shown as that, where there is no server to start.
fn postgres(root: &Path) {
    println!("cargo::rerun-if-env-changed=PATH");
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    pgbouncer(&folders);
    // Debian keeps the programs of a server out of the PATH. The tests poll the same places.
    let debian = Path::new("/usr/lib/postgresql");
    let versions = debian.read_dir().into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    let programs =
        ["initdb", "postgres", "psql"].map(|name| format!("{name}{}", env::consts::EXE_SUFFIX));
    let is_whole = |folder: &&PathBuf| programs.iter().all(|name| folder.join(name).is_file());
    if let Some(found) = folders.iter().find(is_whole) {
        println!(
            "cargo::rerun-if-changed={}",
            found.join(&programs[0]).display()
        );
        println!("cargo::rustc-cfg=has_postgres");
        return;
    }
    // Whatever is installed changes a folder: the next run polls again.
    let parents = ["/usr/lib", "/usr/lib/postgresql"].map(PathBuf::from);
    for folder in folders.into_iter().chain(parents) {
        if folder.is_absolute() && folder.is_dir() && !root.starts_with(&folder) {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
    }
}

/// The tests with PgBouncer are ignored where it is missing. Debian keeps it where not every user
/// polls.
fn pgbouncer(folders: &[PathBuf]) {
    let name = format!("pgbouncer{}", env::consts::EXE_SUFFIX);
    let debian = PathBuf::from("/usr/sbin");
    let places = folders.iter().chain([&debian]);
    match places
        .map(|folder| folder.join(&name))
        .find(|program| program.is_file())
    {
        Some(program) => {
            println!("cargo::rerun-if-changed={}", program.display());
            println!("cargo::rustc-cfg=has_pgbouncer");
        }
        None if debian.is_dir() => println!("cargo::rerun-if-changed={}", debian.display()),
        None => {}
    }
}
