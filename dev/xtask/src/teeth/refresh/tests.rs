//! Refactorings of a small repository with one patch.

use super::*;
use crate::teeth::heads::parse_head;
use patch::Scratch;

const SOURCE: &str = "//! Terms.

use std::sync::Mutex;

pub struct Term {
    state: Mutex<State>,
}

impl Term {
    pub fn depart(&self, limit: u64) -> Option<u64> {
        let mut state = self.state.lock();
        if state.overdue(limit) {
            return None;
        }
        // Counts in the same hold.
        state.flights += 1;
        let flight = state.flights;
        state.last = Some(flight);
        Some(flight)
    }

    pub fn land(&self, flight: u64) -> bool {
        let mut state = self.state.lock();
        let is_last = state.last == Some(flight);
        state.last = None;
        self.landed.notify_all();
        is_last
    }
}
";

/// Takes the lock a second time before the flight is counted, and wakes nobody.
const PATCH: &str = "# test: models::renewal::nothing_is_sent
# may hang
--- a/src/term.rs
+++ b/src/term.rs
@@ -13,6 +13,8 @@ impl Term {
             return None;
         }
         // Counts in the same hold.
+        drop(state);
+        let mut state = Term::state(self);
         state.flights += 1;
         let flight = state.flights;
         state.last = Some(flight);
@@ -23,7 +25,6 @@ impl Term {
         let mut state = self.state.lock();
         let is_last = state.last == Some(flight);
         state.last = None;
-        self.landed.notify_all();
         is_last
     }
 }
";

const PATH: &str = "loom-tests/teeth/a.patch";
const MODEL: &str = "loom-tests/src/models/renewal.rs";

struct Repository(Scratch);

impl Repository {
    /// A repository with one commit: the source, a patch that fits it, and its test.
    fn new() -> Self {
        let repository = Repository(Scratch::new().unwrap());
        let test = "#[test]\nfn nothing_is_sent() {\n    check(1);\n}\n";
        for (path, text) in [
            ("src/term.rs", SOURCE),
            ("src/lib.rs", "mod term;\n"),
            (PATH, PATCH),
            (MODEL, test),
        ] {
            repository.0.write(path, text).unwrap();
        }
        repository.git(&["init", "-q"]);
        repository.commit();
        repository
    }

    fn git(&self, arguments: &[&str]) {
        let output = git::git(self.0.path())
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn commit(&self) {
        self.git(&["add", "."]);
        self.git(&["commit", "-q", "--no-verify", "-m", "A change"]);
    }

    fn write(&self, path: &str, text: &str) {
        self.0.write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    fn tree(&self) -> Tree {
        Tree::new(self.0.path()).unwrap()
    }

    fn refresh(&self) -> Result<Outcome, String> {
        refresh_file(&self.tree(), PATH)
    }

    fn patch(&self) -> String {
        fs::read_to_string(self.0.path().join(PATH)).unwrap()
    }

    /// Refreshes the patch and returns the broken version of a file.
    #[track_caller]
    fn broken(&self, path: &str) -> String {
        assert!(self.refresh().unwrap().text.is_some());
        assert!(
            self.patch()
                .starts_with(&PATCH[..PATCH.find("---").unwrap()])
        );
        assert!(self.refresh().unwrap().text.is_none());
        let whole = fs::read_to_string(self.0.path().join(path)).unwrap();
        self.git(&["apply", PATH]);
        let broken = fs::read_to_string(self.0.path().join(path)).unwrap();
        self.write(path, &whole);
        broken
    }
}

/// Other names, and other words next to the lines that the patch changes.
fn refactored(source: &str) -> String {
    source
        .replace("Term", "LeaseState")
        .replace("flights", "in_flight")
        .replace(
            "// Counts in the same hold.",
            "// The same lock.\n        // Counts.",
        )
}

fn broken_source() -> String {
    SOURCE
        .replace("        self.landed.notify_all();\n", "")
        .replace(
            "        state.flights += 1;\n",
            "        drop(state);\n        let mut state = Term::state(self);\n        \
             state.flights += 1;\n",
        )
}

#[test]
fn a_patch_that_fits_stays_as_it_was() {
    let repository = Repository::new();
    assert!(repository.refresh().unwrap().text.is_none());
    assert_eq!(repository.patch(), PATCH);
}

#[test]
fn a_patch_that_fits_at_other_lines_stays_as_it_was() {
    let repository = Repository::new();
    let moved = SOURCE.replace("//! Terms.\n", "//! Terms.\n//! And more.\n");
    repository.write("src/term.rs", &moved);
    assert!(repository.refresh().unwrap().text.is_none());
}

#[test]
fn a_copy_of_the_code_at_the_old_lines_does_not_attract_the_patch() {
    let repository = Repository::new();
    let copy = |source: &str| {
        let copy = SOURCE
            .replace("Term {", "Copy {")
            .replacen("//! Terms.\n", "", 1);
        let source = source.strip_prefix("//! Terms.\n").unwrap();
        format!("//! Terms.\n//! And copies.\n{copy}{source}")
    };
    repository.write("src/term.rs", &copy(SOURCE));
    assert_eq!(repository.broken("src/term.rs"), copy(&broken_source()));
}

#[test]
fn a_moved_file_is_found() {
    let repository = Repository::new();
    repository.remove("src/term.rs");
    repository.write("leases/src/state.rs", SOURCE);
    assert_eq!(repository.broken("leases/src/state.rs"), broken_source());
    let patch = repository.patch();
    assert!(patch.contains("--- a/leases/src/state.rs\n+++ b/leases/src/state.rs\n"));
    assert!(!patch.contains("src/term.rs"));
}

#[test]
fn renamed_identifiers_are_renamed_in_added_lines_too() {
    let repository = Repository::new();
    let renamed = |source: &str| source.replace("Term", "LeaseState");
    repository.write("src/term.rs", &renamed(SOURCE));
    assert_eq!(repository.broken("src/term.rs"), renamed(&broken_source()));
}

#[test]
fn a_comment_beside_the_change_may_be_other_words() {
    let repository = Repository::new();
    let changed = |source: &str| source.replace("// Counts in the same hold.", "// Counted.");
    repository.write("src/term.rs", &changed(SOURCE));
    assert_eq!(repository.broken("src/term.rs"), changed(&broken_source()));
}

#[test]
fn all_of_it_at_once_is_followed_over_several_commits() {
    let repository = Repository::new();
    repository.write("src/term.rs", &refactored(SOURCE));
    repository.commit();
    repository.remove("src/term.rs");
    repository.write("leases/src/state.rs", &refactored(SOURCE));
    repository.commit();
    let broken = repository.broken("leases/src/state.rs");
    assert_eq!(broken, refactored(&broken_source()));
}

#[test]
fn a_function_that_moved_to_another_file_takes_its_hunk_along() {
    let repository = Repository::new();
    let (start, end) = (SOURCE.find("    pub fn land").unwrap(), SOURCE.len() - 2);
    let land = &SOURCE[start..end];
    repository.write("src/term.rs", &SOURCE.replace(land, ""));
    let landing = |land: &str| format!("use super::Term;\n\nimpl Term {{\n{land}}}\n");
    repository.write("src/landing.rs", &landing(land));
    let expected = land.replace("        self.landed.notify_all();\n", "");
    assert_eq!(repository.broken("src/landing.rs"), landing(&expected));
}

#[test]
fn names_from_other_files_are_renamed_in_added_lines() {
    let repository = Repository::new();
    let patch = PATCH.replace("Term::state(self)", "helper()");
    let helper = "pub fn helper() -> u64 {\n    1\n}\n";
    repository.write("src/helper.rs", helper);
    repository.write(PATH, &patch);
    repository.commit();
    assert!(repository.refresh().unwrap().text.is_none());
    repository.write("src/helper.rs", &helper.replace("helper", "second_lock"));
    let broken = repository.broken("src/term.rs");
    assert!(
        broken.contains("let mut state = second_lock();"),
        "{broken}"
    );
}

#[test]
fn a_hopeless_patch_is_left_alone_and_the_reason_names_file_and_hunk() {
    let repository = Repository::new();
    let without = SOURCE.replace("        self.landed.notify_all();\n", "        wake();\n");
    repository.write("src/term.rs", &without);
    let reason = repository.refresh().unwrap_err();
    assert!(reason.contains("src/term.rs"), "{reason}");
    assert!(reason.contains("the hunk at line 23"), "{reason}");
    assert_eq!(repository.patch(), PATCH);
}

#[test]
fn a_change_that_the_tree_contains_already_is_an_error() {
    let repository = Repository::new();
    repository.write("src/term.rs", &broken_source());
    assert!(repository.refresh().is_err());
    assert_eq!(repository.patch(), PATCH);
}

#[test]
fn a_patch_that_fits_no_commit_is_placed_by_its_own_lines() {
    let repository = Repository::new();
    let patch = PATCH.replace("         // Counts in the same hold.", "         // Other.");
    repository.write(PATH, &patch);
    assert_eq!(repository.broken("src/term.rs"), broken_source());
}

#[test]
fn a_test_that_is_gone_is_reported_with_the_likely_name() {
    let repository = Repository::new();
    let test = parse_head(PATCH).unwrap().test;
    assert_eq!(missing_test(&repository.tree(), &test, PATH), None);

    let text = fs::read_to_string(repository.0.path().join(MODEL)).unwrap();
    repository.remove(MODEL);
    repository.write("loom-tests/src/models/state.rs", &text);
    let complaint = missing_test(&repository.tree(), &test, PATH).unwrap();
    assert!(
        complaint.contains("models::state::nothing_is_sent now"),
        "{complaint}"
    );

    let text = text.replace("nothing_is_sent", "no_request_is_sent");
    repository.write("loom-tests/src/models/state.rs", &text);
    let complaint = missing_test(&repository.tree(), &test, PATH).unwrap();
    assert!(
        complaint.contains("models::state::no_request_is_sent now"),
        "{complaint}"
    );

    repository.remove("loom-tests/src/models/state.rs");
    let complaint = missing_test(&repository.tree(), &test, PATH).unwrap();
    assert!(
        complaint.ends_with("is gone from loom-tests"),
        "{complaint}"
    );
}

#[test]
fn a_run_says_whether_every_patch_could_be_refreshed() {
    let repository = Repository::new();
    let root = repository.0.path();
    let teeth = || crate::teeth::read_teeth(&root.join("loom-tests/teeth")).unwrap();
    repository.write("src/term.rs", &refactored(SOURCE));
    assert_eq!(run(root, &teeth()), Ok(true));
    repository.write("src/term.rs", "fn main() {}\n");
    assert_eq!(run(root, &teeth()), Ok(false));
}
