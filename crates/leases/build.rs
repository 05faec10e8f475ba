//! Looks for a `redis-server`, which some tests need. The crate's own code does not depend on what
//! is found here.

use std::env;
use std::path::{Path, PathBuf};

pub(crate) fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    redis_server(Path::new(&root));
}

/// The tests of Redis are ignored, and shown as that, where there is no server to start.
fn redis_server(root: &Path) {
    println!("cargo::rustc-check-cfg=cfg(has_redis_server)");
    if env::var_os("CARGO_FEATURE_REDIS").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=PATH");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let program = format!("redis-server{}", env::consts::EXE_SUFFIX);
    let mut candidates = folders.iter().map(|folder| folder.join(&program));
    if let Some(found) = candidates.find(|candidate| candidate.is_file()) {
        println!("cargo::rerun-if-changed={}", found.display());
        println!("cargo::rustc-cfg=has_redis_server");
        return;
    }
    // Whatever is installed changes a folder: the next run looks again.
    for folder in folders {
        if folder.is_absolute() && folder.is_dir() && !root.starts_with(&folder) {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
    }
}
