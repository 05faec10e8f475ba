//! Runs the teeth: patches that break the code on purpose, which the models must notice, or tests
//! of a library.
//!
//! Each patch in `loom-tests/teeth` names, in its first lines, the test that has to fail. First
//! these tests must succeed on the unbroken tree, unless `--tested` says that all tests of this tree
//! are run anyway. Then these steps follow for each patch:
//!
//! 1. Restore the copy of the tree, and apply the patch. Leave no model but that of the test.
//! 2. Build the package. This must succeed: otherwise the compiler noticed the break, not the test.
//! 3. Check that the named test exists.
//! 4. Run the test in a process of its own, since a deadlock in loom may abort it. It must fail.
//!
//! A patch that does not apply is an error. A patch that applies, wherever git finds its context,
//! and is not caught is an error, too. `--refresh` adapts patches to a refactored tree, see
//! [`refresh`].

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

mod copy;
mod git;
mod heads;
mod refresh;
mod run;

use copy::Copy;
use heads::{Head, Model};
use run::End;

/// The number of teeth that run at one time. Each bench builds everything once for itself.
const MOST_BENCHES: usize = 4;
/// The time limit of a test. The models take seconds, on cores that do nothing else.
const LIMIT: Duration = Duration::from_secs(600);

struct Tooth {
    name: String,
    head: Head,
    patch: PathBuf,
}

/// What to do with the teeth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Runs their tests on the unbroken tree, and then the teeth.
    Run,
    /// Runs the teeth: the tests are run on the unbroken tree by whoever asks.
    RunTested,
    /// Adapts the patches to the tree, and runs nothing.
    Refresh,
}

/// Runs the teeth of these names, or all teeth. Returns whether all were caught.
pub(crate) fn run(root: &Path, way: Way, names: &[String]) -> Result<bool, String> {
    let teeth = read_teeth(&root.join("loom-tests/teeth"))?;
    let mut models = read_models(&root.join("loom-tests/src/models"))?;
    models.extend(others_with_teeth(root)?);
    let patches: Vec<String> = teeth.iter().map(|tooth| tooth.name.clone()).collect();
    let disagreements = heads::disagreements(&models, &patches);
    for line in &disagreements {
        say!("teeth: {line}");
    }
    let chosen = choose(teeth, names)?;
    if way == Way::Refresh {
        return Ok(refresh::run(root, &chosen)? && disagreements.is_empty());
    }
    if chosen.is_empty() {
        say!("teeth: there is no patch in loom-tests/teeth, nothing was tried");
        return Ok(disagreements.is_empty());
    }
    // A test that fails on the unbroken tree would make each of its teeth look caught.
    let bench = Bench::new(root, 0)?;
    let healthy = match way {
        Way::RunTested => BTreeMap::new(),
        _ => bench.unbroken(&chosen)?,
    };
    // Several benches work at one time, since the compiler does not use all cores for one package.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let others = cores.clamp(1, MOST_BENCHES).min(chosen.len());
    let others = (1..others).map(|number| Bench::new(root, number));
    let benches = [Ok(bench)].into_iter().chain(others);
    let benches: Vec<Bench> = benches.collect::<Result<_, _>>()?;
    // Each bench takes the next tooth when it is free, since builds take different times.
    let left = Mutex::new(chosen.iter().collect());
    let (left, healthy) = (&left, &healthy);
    let caught = AtomicUsize::new(0);
    let caught = &caught;
    thread::scope(|scope| {
        for (number, bench) in benches.iter().enumerate() {
            scope.spawn(move || {
                while let Some(tooth) = next_of(left, number == 0) {
                    caught.fetch_add(usize::from(bench.try_tooth(tooth, healthy)), Relaxed);
                }
            });
        }
    });
    let caught = caught.load(Relaxed);
    say!("teeth: {caught} of {} caught", chosen.len());
    Ok(caught == chosen.len() && disagreements.is_empty())
}

/// A folder in which a copy of the tree is broken and built.
struct Bench {
    copy: Copy,
    target: PathBuf,
    logs: PathBuf,
}

impl Bench {
    fn new(root: &Path, number: usize) -> Result<Self, String> {
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let logs = target.join("teeth");
        // Each bench has a target directory of its own, although it has to build loom once more.
        // Cargo identifies a package by its path in the workspace. So in a shared directory it
        // would mistake the build of the broken copy for the build of the tree itself.
        let target = logs.join(format!("build-{number}"));
        fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
        let copy = Copy::new(root, &logs.join(format!("tree-{number}")))?;
        let absolute = |path: PathBuf| {
            path.canonicalize()
                .map_err(|error| format!("{}: {error}", path.display()))
        };
        Ok(Bench {
            copy,
            target: absolute(target)?,
            logs: absolute(logs)?,
        })
    }

    /// Runs the tests of these teeth on the unbroken tree, where each one has to succeed.
    fn unbroken(&self, teeth: &[Tooth]) -> Result<BTreeMap<String, Result<(), String>>, String> {
        let began = Instant::now();
        self.copy.restore()?;
        let tests: BTreeSet<(&str, &str)> = teeth
            .iter()
            .map(|tooth| (&*tooth.head.package, &*tooth.head.test))
            .collect();
        let mut binaries = BTreeMap::new();
        for (package, _) in &tests {
            if !binaries.contains_key(package) {
                let binary = run::build(self.copy.path(), package, &self.target)
                    .map_err(|said| format!("{package} does not build unbroken:\n{said}"))?;
                binaries.insert(*package, binary);
            }
        }
        let mut healthy = BTreeMap::new();
        for (package, test) in tests {
            let binary = &binaries[package];
            let log = self.logs.join("unbroken.log");
            let outcome = match self.try_test(binary, test, &log)? {
                None => Err(format!("there is no test {test}")),
                Some(End::Well) => Ok(()),
                Some(End::Badly(status)) => Err(format!(
                    "its test fails on the unbroken tree too: {status}\n{}",
                    tail(&log)
                )),
                Some(End::NotAtAll) => Err("its test does not end on the unbroken tree".to_owned()),
            };
            healthy.insert(test.to_owned(), outcome);
        }
        say!(
            "teeth: the unbroken tree: {} tests, {:.1} s",
            healthy.len(),
            began.elapsed().as_secs_f64()
        );
        Ok(healthy)
    }

    /// Prints the result of a tooth. Returns whether it was caught.
    fn try_tooth(&self, tooth: &Tooth, healthy: &BTreeMap<String, Result<(), String>>) -> bool {
        let began = Instant::now();
        let verdict = match healthy.get(&tooth.head.test) {
            Some(Err(reason)) => Err(reason.clone()),
            _ => self.bite(tooth),
        };
        let seconds = began.elapsed().as_secs_f64();
        let (word, reason) = match &verdict {
            Ok(how) => ("caught", how),
            Err(reason) => ("NOT CAUGHT", reason),
        };
        say!(
            "teeth: {}: {}: {word} ({reason}), {seconds:.1} s",
            tooth.name,
            tooth.head.test
        );
        verdict.is_ok()
    }

    /// Breaks the copy and runs the test. Returns how the break was caught, or why it was not.
    fn bite(&self, tooth: &Tooth) -> Result<String, String> {
        self.copy.restore()?;
        self.copy
            .apply(&tooth.patch)
            .map_err(|said| format!("the patch does not apply, try --refresh: {said}"))?;
        if let Some(model) = tooth.head.model() {
            self.copy.leave_only(model)?;
        }
        let binary = run::build(self.copy.path(), &tooth.head.package, &self.target)
            .map_err(|said| format!("the broken tree does not build:\n{said}"))?;
        let log = self.logs.join(format!("{}.log", tooth.name));
        let end = self
            .try_test(&binary, &tooth.head.test, &log)?
            .ok_or("the patch removed the test")?;
        judge(&end, tooth.head.may_hang)
    }

    fn try_test(&self, binary: &Path, test: &str, log: &Path) -> Result<Option<End>, String> {
        if !run::has_test(binary, test)? {
            return Ok(None);
        }
        run::test(binary, test, self.copy.path(), log, LIMIT).map(Some)
    }
}

/// The next tooth for a bench, or `None` if it is done. One bench has those of the libraries, and begins
/// with them: a second one would build all that they depend on once more.
fn next_of<'a>(left: &Mutex<Vec<&'a Tooth>>, has_libraries: bool) -> Option<&'a Tooth> {
    let mut left = left.lock().ok()?;
    let of_library = |tooth: &&Tooth| tooth.head.package != heads::MODELS;
    let library = left.iter().position(of_library).filter(|_| has_libraries);
    let place = library.or_else(|| left.iter().position(|tooth| !of_library(tooth)))?;
    Some(left.remove(place))
}

fn judge(end: &End, may_hang: bool) -> Result<String, String> {
    match end {
        End::Badly(status) => Ok(status.to_string()),
        End::NotAtAll if may_hang => Ok(format!("no end within {} s", LIMIT.as_secs())),
        End::NotAtAll => Err(format!(
            "no end within {} s, and the patch does not say `# may hang`",
            LIMIT.as_secs()
        )),
        End::Well => Err("the test passed".to_owned()),
    }
}

/// Returns the last lines of a log, indented.
fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(20)..];
    last.iter().map(|line| format!("    {line}\n")).collect()
}

fn choose(teeth: Vec<Tooth>, names: &[String]) -> Result<Vec<Tooth>, String> {
    for name in names {
        if !teeth.iter().any(|tooth| tooth.name == *name) {
            return Err(format!("there is no tooth {name}"));
        }
    }
    let wanted = |tooth: &Tooth| names.is_empty() || names.contains(&tooth.name);
    Ok(teeth.into_iter().filter(wanted).collect())
}

fn read_teeth(folder: &Path) -> Result<Vec<Tooth>, String> {
    let mut teeth = Vec::new();
    for (name, patch, text) in read_all(folder, "patch")? {
        let head =
            heads::parse_head(&text).map_err(|reason| format!("{}: {reason}", patch.display()))?;
        teeth.push(Tooth { name, head, patch });
    }
    Ok(teeth)
}

fn read_models(folder: &Path) -> Result<Vec<Model>, String> {
    let files = read_all(folder, "rs")?.into_iter();
    Ok(files
        .filter(|(name, _, _)| name != "mod")
        .map(|(name, _, text)| Model {
            file: format!("loom-tests/src/models/{name}.rs"),
            teeth: heads::named_in_head(&text),
        })
        .collect())
}

/// The files of the libraries whose heads name teeth.
fn others_with_teeth(root: &Path) -> Result<Vec<Model>, String> {
    let mut found = Vec::new();
    for path in git::files(root)? {
        let is_source = path.starts_with("src") || path.starts_with("crates");
        if !is_source || path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(root.join(&path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let teeth = heads::named_in_head(&text);
        if !teeth.is_empty() {
            found.push(Model {
                file: path.display().to_string(),
                teeth,
            });
        }
    }
    Ok(found)
}

/// Returns the sorted files of a folder with this extension: name without extension, path, content.
/// A missing folder has none.
fn read_all(folder: &Path, extension: &str) -> Result<Vec<(String, PathBuf, String)>, String> {
    let mut found = Vec::new();
    if !folder.exists() {
        return Ok(found);
    }
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_none_or(|found| found != extension) {
            continue;
        }
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default();
        found.push((name.to_string_lossy().into_owned(), path, text));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_end_counts_only_where_the_patch_says_so() {
        assert!(judge(&End::NotAtAll, true).is_ok());
        assert!(judge(&End::NotAtAll, false).is_err());
        assert!(judge(&End::Well, true).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_failure_and_a_signal_are_caught() {
        use std::os::unix::process::ExitStatusExt;
        for raw in [101 << 8, 6] {
            let status = std::process::ExitStatus::from_raw(raw);
            assert!(judge(&End::Badly(status), false).is_ok());
        }
    }

    #[test]
    fn one_bench_takes_the_teeth_of_libraries_and_begins_with_them() {
        let mut of_library = tooth("b");
        of_library.head.package = "tourbillon".to_owned();
        let teeth = [tooth("a"), of_library, tooth("c")];
        let taken = |benches: &[bool]| {
            let left = Mutex::new(teeth.iter().collect());
            let next = |first| next_of(&left, first).map_or("none", |tooth| &tooth.name);
            benches.iter().map(|&first| next(first)).collect::<Vec<_>>()
        };
        assert_eq!(taken(&[true, true, true, true]), ["b", "a", "c", "none"]);
        assert_eq!(taken(&[false, false, false, true]), ["a", "c", "none", "b"]);
    }

    fn tooth(name: &str) -> Tooth {
        Tooth {
            name: name.to_owned(),
            head: Head {
                test: "models::a::b".to_owned(),
                package: heads::MODELS.to_owned(),
                may_hang: false,
            },
            patch: PathBuf::new(),
        }
    }

    #[test]
    fn names_choose_and_a_wrong_name_is_an_error() {
        let names = |chosen: Vec<Tooth>| -> Vec<String> {
            chosen.into_iter().map(|tooth| tooth.name).collect()
        };
        let teeth = || vec![tooth("a"), tooth("b")];
        assert_eq!(names(choose(teeth(), &[]).unwrap()), ["a", "b"]);
        assert_eq!(names(choose(teeth(), &["b".to_owned()]).unwrap()), ["b"]);
        assert!(choose(teeth(), &["c".to_owned()]).is_err());
    }

    #[test]
    fn a_folder_that_is_not_there_holds_nothing() {
        let nowhere = Path::new(env!("CARGO_MANIFEST_DIR")).join("no-such-folder");
        assert!(read_teeth(&nowhere).unwrap().is_empty());
        assert!(read_models(&nowhere).unwrap().is_empty());
    }
}
