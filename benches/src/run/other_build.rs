//! Other builds of the same program, since an allocator or link-time optimisation is chosen when a
//! program is built. Some systems also run in these builds, and their rounds there alternate with
//! all others.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::workload::Workload;

/// Another way to build the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherBuild {
    /// With mimalloc as its allocator.
    Mimalloc,
    /// Optimised as a whole when it is linked, in one unit.
    Lto,
}

use OtherBuild::{Lto, Mimalloc};

const OURS: [&str; 3] = ["tourbillon", "tourbillon-map", "tourbillon-timer"];

static PROGRAMS: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];

impl OtherBuild {
    fn name(self) -> &'static str {
        match self {
            Mimalloc => "mimalloc",
            Lto => "lto",
        }
    }

    /// The suffix of a system's name.
    pub(super) fn suffix(self) -> String {
        format!("+{}", self.name())
    }

    /// Whether this system does this workload in this build, too.
    pub(super) fn has(self, system: &str, workload: &Workload) -> bool {
        let (systems, workloads): (&[&str], &[&str]) = match self {
            // A mass expiry frees boxes on other threads than the one that allocated them.
            Mimalloc => (&["tourbillon"], &["W4", "W4i"]),
            // Calls that take less than a microsecond.
            Lto => (&OURS, &["W1", "W1k", "W2", "W3"]),
        };
        systems.contains(&system) && workloads.contains(&workload.name)
    }

    /// The program, if it was built.
    pub(super) fn program(self) -> Option<&'static Path> {
        PROGRAMS[self as usize].get().map(PathBuf::as_path)
    }

    /// Builds it. It lies in a folder of its own, so that the program that runs is not replaced.
    pub(super) fn prepare(self) -> io::Result<()> {
        let mut folder = std::env::current_exe()?;
        folder.pop();
        let folder = folder.join(format!("with-{}", self.name()));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let name = self.name();
        complain!("         builds the program with {name}; the first time takes some minutes");
        let (profile, features) = match self {
            Mimalloc => ("release", "mimalloc"),
            Lto => ("lto", ""),
        };
        let manifest = concat!(
            "--manifest-path=",
            env!("CARGO_MANIFEST_DIR"),
            "/Cargo.toml"
        );
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--bin", "benches", manifest])
            // It would put the program into another folder.
            .env_remove("CARGO_BUILD_TARGET")
            .args(["--profile", profile, "--features", features])
            .arg("--target-dir")
            .arg(&folder)
            .status()?;
        if !status.success() {
            return Err(io::Error::other("its build failed; see above"));
        }
        let file = format!("benches{}", std::env::consts::EXE_SUFFIX);
        let program = folder.join(profile).join(file);
        if !program.is_file() {
            return Err(io::Error::other(format!(
                "no {} was made",
                program.display()
            )));
        }
        let _ = PROGRAMS[self as usize].set(program);
        Ok(())
    }
}
