//! Builds the tests of a package, and runs one of them in a process of its own.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

/// The end of a test's process.
#[derive(Debug)]
pub(crate) enum End {
    Well,
    /// The test failed, or the process was ended by a signal, as by a deadlock in loom.
    Badly(ExitStatus),
    /// The process was stopped, since it had not ended within the limit.
    NotAtAll,
}

/// Builds the tests of a package's library in the tree at `tree`. Returns the test binary, or the
/// output of the compiler.
pub(crate) fn build(tree: &Path, package: &str, target: &Path) -> Result<PathBuf, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "-p", package, "--lib", "--no-run", "--locked"])
        // A test runs once for each build here, and the first failure ends it.
        .args(["--config", "profile.dev.package.loom-tests.opt-level=0"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--target-dir")
        .arg(target)
        .current_dir(tree)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    executable(&messages).ok_or_else(|| "cargo named no test binary".to_owned())
}

/// Returns the only test binary in cargo's messages, each of which is a JSON object on its own
/// line.
fn executable(messages: &str) -> Option<PathBuf> {
    let mut found = messages.lines().filter_map(|line| {
        let (_, rest) = line.split_once(r#""executable":""#)?;
        let (path, _) = rest.split_once('"')?;
        // An escaped path would need a JSON parser; no target directory here has such a name.
        (!path.contains('\\')).then(|| PathBuf::from(path))
    });
    let only = found.next();
    only.filter(|_| found.next().is_none())
}

/// Returns whether the binary has exactly this test. A filter that matches no test would succeed,
/// too.
pub(crate) fn has_test(binary: &Path, test: &str) -> Result<bool, String> {
    let output = Command::new(binary)
        .args(["--list", "--exact", test])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    if !output.status.success() {
        return Err(format!("{} --list: {}", binary.display(), output.status));
    }
    Ok(lists_only(&String::from_utf8_lossy(&output.stdout), test))
}

fn lists_only(listing: &str, test: &str) -> bool {
    let mut tests = listing
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    tests.next() == Some(test) && tests.next().is_none()
}

/// Runs one test, with its output in the file `log`.
pub(crate) fn test(
    binary: &Path,
    test: &str,
    tree: &Path,
    log: &Path,
    limit: Duration,
) -> Result<End, String> {
    let written = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let errors = written
        .try_clone()
        .map_err(|error| format!("{}: {error}", log.display()))?;
    let mut command = Command::new(binary);
    command
        .args(["--exact", test, "--test-threads=1"])
        .current_dir(tree.join("loom-tests"))
        .stdin(Stdio::null())
        .stdout(written)
        .stderr(errors);
    wait(&mut command, limit).map_err(|error| format!("{}: {error}", binary.display()))
}

fn wait(command: &mut Command, limit: Duration) -> Result<End, std::io::Error> {
    const LOOK: Duration = Duration::from_millis(20);
    let mut child = command.spawn()?;
    // Not by the clock: this process and the test may both be stopped for some time.
    let mut waited = Duration::ZERO;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(End::Well),
            Some(status) => return Ok(End::Badly(status)),
            None if waited >= limit => {
                child.kill()?;
                child.wait()?;
                return Ok(End::NotAtAll);
            }
            None => {
                thread::sleep(LOOK);
                waited += LOOK;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_binary_is_found_among_the_messages() {
        let library = r#"{"reason":"compiler-artifact","executable":null,"fresh":true}"#;
        let binary = r#"{"reason":"compiler-artifact","executable":"/t/loom-1","fresh":true}"#;
        let messages = format!("{library}\n{binary}\n{library}\n");
        assert_eq!(executable(&messages), Some(PathBuf::from("/t/loom-1")));
        assert_eq!(executable(library), None);
        assert_eq!(executable(&format!("{binary}\n{binary}\n")), None);
    }

    #[test]
    fn a_filter_has_to_meet_exactly_the_one_test() {
        assert!(lists_only("models::a::b: test\n", "models::a::b"));
        assert!(!lists_only("", "models::a::b"));
        assert!(!lists_only("0 tests, 0 benchmarks\n", "models::a::b"));
        assert!(!lists_only("models::a::bc: test\n", "models::a::b"));
    }

    /// Returns a command that runs a test of this binary, in place of the models' binary.
    fn this_binary(test: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", test])
            .env("XTASK_STAND_IN", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    #[test]
    fn stand_in_that_fails_when_asked() {
        assert!(env::var_os("XTASK_STAND_IN").is_none(), "asked to fail");
    }

    #[test]
    fn stand_in_that_hangs_when_asked() {
        while env::var_os("XTASK_STAND_IN").is_some() {
            thread::park();
        }
    }

    #[test]
    fn the_three_ends_are_told_apart() {
        let name = |test: &str| format!("teeth::run::tests::{test}");
        let long = Duration::from_secs(120);
        let well = wait(&mut this_binary(&name("no_such_test")), long).unwrap();
        assert!(matches!(well, End::Well), "{well:?}");
        let failing = name("stand_in_that_fails_when_asked");
        let badly = wait(&mut this_binary(&failing), long).unwrap();
        assert!(matches!(badly, End::Badly(_)), "{badly:?}");
        let hanging = name("stand_in_that_hangs_when_asked");
        let never = wait(&mut this_binary(&hanging), Duration::from_millis(50)).unwrap();
        assert!(matches!(never, End::NotAtAll), "{never:?}");
    }

    #[test]
    fn a_binary_is_asked_for_its_tests() {
        let binary = env::current_exe().unwrap();
        let here = "teeth::run::tests::a_binary_is_asked_for_its_tests";
        assert_eq!(has_test(&binary, here), Ok(true));
        assert_eq!(has_test(&binary, "teeth::run::tests::a_binary"), Ok(false));
    }
}
