//! The versions that counts depend on.

use std::io;
use std::process::Command;

/// A compiler, a C library and an architecture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Platform {
    rustc: String,
    libc: String,
    arch: String,
}

impl Platform {
    /// Asks the compiler and the C library of this machine.
    ///
    /// # Errors
    ///
    /// If the compiler does not answer.
    pub fn of_this_machine() -> io::Result<Self> {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let rustc = answer(&rustc, "--version")?;
        // Only glibc answers this. Another C library has no baseline.
        let libc = answer("getconf", "GNU_LIBC_VERSION").unwrap_or_default();
        Ok(Self::from_answers(&rustc, &libc, std::env::consts::ARCH))
    }

    /// The platform of a compiler that answers `rustc 1.95.0 (hash date)` and a C library that
    /// answers `glibc 2.36`.
    #[must_use]
    pub fn from_answers(rustc: &str, libc: &str, arch: &str) -> Self {
        let libc: Vec<_> = libc.split_whitespace().collect();
        Platform {
            rustc: rustc.split_whitespace().nth(1).unwrap_or("unknown").into(),
            libc: match libc[..] {
                [name, version] => format!("{name}-{version}"),
                _ => "libc-unknown".to_owned(),
            },
            arch: arch.to_owned(),
        }
    }

    /// The name of the baseline, which is also that of its file.
    #[must_use]
    pub fn name(&self) -> String {
        format!("rustc-{}-{}-{}", self.rustc, self.libc, self.arch)
    }
}

fn answer(program: &str, question: &str) -> io::Result<String> {
    let output = Command::new(program).arg(question).output()?;
    if !output.status.success() {
        let why = format!("{program} {question} failed: {}", output.status);
        return Err(io::Error::other(why));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_holds_the_versions_and_the_architecture() {
        let rustc = "rustc 1.95.0 (59807616e 2026-04-14)\n";
        let platform = Platform::from_answers(rustc, "glibc 2.36\n", "x86_64");
        assert_eq!(platform.name(), "rustc-1.95.0-glibc-2.36-x86_64");
    }

    #[test]
    fn a_machine_without_glibc_has_a_name_of_its_own() {
        let platform = Platform::from_answers("rustc 1.95.0", "", "aarch64");
        assert_eq!(platform.name(), "rustc-1.95.0-libc-unknown-aarch64");
    }
}
