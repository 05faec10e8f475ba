//! A test of the tree itself: the rules that no compiler and no lint holds.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

mod circles;
mod documents;
mod eager;
mod labels;
mod rows;
mod rules;
mod source;
mod types;

use source::Source;

/// Where a module of the crate stands, and which layers below it may use.
struct Layer {
    module: &'static str,
    layer: u8,
    uses: RangeInclusive<u8>,
    /// The modules of its own layer that it may use.
    beside: &'static [&'static str],
}

const fn layer(
    layer: u8,
    module: &'static str,
    uses: RangeInclusive<u8>,
    beside: &'static [&'static str],
) -> Layer {
    Layer {
        module,
        layer,
        uses,
        beside,
    }
}

/// The modules of `tourbillon`. Arrows point down only. `lib.rs` may name anything.
const LAYERS: &[Layer] = &[
    layer(0, "sync", 0..=0, &[]),
    layer(1, "tick", 0..=0, &[]),
    layer(1, "clock", 0..=0, &["tick"]),
    layer(1, "error", 0..=0, &["tick"]),
    layer(1, "coop", 0..=0, &[]),
    layer(1, "config", 0..=0, &["clock", "error", "tick"]),
    layer(2, "job", 0..=1, &[]),
    layer(1, "waker", 0..=0, &[]),
    layer(2, "bounded_channel", 0..=1, &["job"]),
    layer(2, "stats", 0..=1, &[]),
    // Pure: no threads and no clock, so not even the facade.
    layer(3, "wheel", 1..=1, &[]),
    layer(4, "shard", 0..=3, &[]),
    // Knows jobs and never timers.
    layer(4, "executor", 0..=2, &[]),
    layer(5, "engine", 0..=4, &[]),
    // Setters that the builders of all front ends share.
    layer(5, "options", 0..=4, &["engine"]),
    layer(5, "backoff", 0..=4, &[]),
    layer(6, "scheduler", 0..=5, &[]),
    layer(6, "timer", 0..=5, &["scheduler"]),
    layer(6, "expiry", 0..=5, &["scheduler"]),
    layer(7, "retry", 0..=6, &[]),
    layer(6, "keyed", 0..=5, &["scheduler"]),
    // The kit builds schedulers and maps that a test steps, out of the parts of their builders.
    layer(6, "test_util", 0..=5, &["expiry", "scheduler", "timer"]),
    // Documentation alone.
    layer(7, "guide", 0..=6, &[]),
    // Markers of the types of all layers.
    layer(7, "unwind", 0..=6, &[]),
    // For the crates that build on this one.
    layer(7, "reentrancy", 1..=4, &[]),
];

/// The modules of `tourbillon-leases`.
const LEASES_LAYERS: &[Layer] = &[
    layer(0, "sync", 0..=0, &[]),
    layer(1, "store", 0..=0, &[]),
    // The stores know nothing of those who use them.
    layer(2, "redis", 0..=1, &[]),
    // Renews, and knows nothing of locks.
    layer(2, "keep_alive", 0..=1, &[]),
    layer(3, "manager", 0..=2, &[]),
    layer(4, "elector", 0..=3, &[]),
    // Documentation alone.
    layer(5, "guide", 0..=4, &[]),
];

/// The modules of `tourbillon-durable`.
const DURABLE_LAYERS: &[Layer] = &[
    layer(0, "sync", 0..=0, &[]),
    layer(1, "events", 0..=0, &[]),
    layer(1, "store", 0..=0, &[]),
    // Pure: what each call does to a row, and where a key lies.
    layer(2, "row", 1..=1, &[]),
    layer(2, "calls", 0..=1, &[]),
    // The state machine knows no store, no thread and no clock.
    layer(2, "node", 0..=1, &[]),
    // The stores know nothing of those who use them.
    layer(3, "memory", 0..=2, &[]),
    layer(3, "sqlite", 0..=2, &[]),
    layer(3, "postgres", 0..=2, &[]),
    layer(3, "client", 0..=2, &[]),
    layer(4, "run", 0..=3, &[]),
    layer(5, "durable", 0..=4, &[]),
];

/// A published package: the folder of its sources, and where its modules stand.
struct Package {
    sources: &'static str,
    layers: &'static [Layer],
    knots: &'static [circles::Knot],
    homonyms: &'static [types::Homonym],
}

/// All packages that are published. The rules for sources hold for each of them.
const PUBLISHED: &[Package] = &[
    Package {
        sources: "src",
        layers: LAYERS,
        knots: KNOTS,
        homonyms: HOMONYMS,
    },
    // A file each, without modules.
    Package {
        sources: "crates/tsc/src",
        layers: &[],
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/fork/src",
        layers: &[],
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/leases/src",
        layers: LEASES_LAYERS,
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/durable/src",
        layers: DURABLE_LAYERS,
        knots: &[],
        homonyms: DURABLE_HOMONYMS,
    },
];

/// Files that may import each other in a circle, with the reason.
const KNOTS: &[circles::Knot] = &[(
    &[
        "src/scheduler/frontend.rs",
        "src/scheduler/firing.rs",
        "src/scheduler/handle/mod.rs",
        "src/scheduler/task.rs",
    ],
    "their types contain each other: a handle has an engine of tasks, a task is given its firing, \
     and a firing gives the handle",
)];

/// Names that stand for several types of the package, with the reason.
const HOMONYMS: &[types::Homonym] = &[(
    "Expired",
    "each is public in its own module: an entry of a map, and `wheel::Expired`, a value of a wheel",
)];

/// The same of `tourbillon-durable`.
const DURABLE_HOMONYMS: &[types::Homonym] = &[
    (
        "Failure",
        "each is private to its store, whose folders have the same files: what went wrong there",
    ),
    ("Link", "likewise: a connection with its transactions"),
];

/// What a file outside of a package's `src/sync` may name all the same: file, path, reason.
const FACADE_EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "crates/fork/src/lib.rs",
        "std::sync::atomic::AtomicBool",
        FORKS,
    ),
    (
        "crates/fork/src/lib.rs",
        "std::sync::atomic::AtomicU32",
        FORKS,
    ),
    (
        "crates/fork/src/lib.rs",
        "std::sync::atomic::Ordering",
        FORKS,
    ),
    ("crates/fork/src/lib.rs", "std::thread_local", FORKS),
];

const FORKS: &str =
    "the package is below the facade, by which the core reaches it; loom does not fork";

/// Public enums that callers may match without a wildcard: file, name, why it never grows.
const EXHAUSTIVE_ENUMS: &[(&str, &str, &str)] = &[
    ("crates/durable/src/row/mod.rs", "Change", CARRIED_OUT),
    ("crates/durable/src/row/mod.rs", "Claiming", CARRIED_OUT),
    ("crates/durable/src/store/looks.rs", "Offset", CARRIED_OUT),
    ("crates/durable/src/store/mod.rs", "When", CARRIED_OUT),
];

const CARRIED_OUT: &str = "a store has to carry out each variant: a wildcard would lose timers";

/// Public enums whose variants with named fields may get further fields. Only the crate makes values
/// of these; what a backend makes, such as `Acquired`, can't be marked.
const GROWING_VARIANTS: &[&str] = &["BuildError", "LockError", "What"];

/// Files that may be longer than the others: file, lines, reason.
const LONG_FILES: &[(&str, usize, &str)] = &[];

/// The tests that may be ignored, each because it needs something that may be missing.
const MAY_BE_IGNORED: &[(&str, &str)] = &[
    (
        "tests/examples/sessions.rs",
        "the_replay_of_the_large_log_is_the_offline_computation",
    ),
    // Simulations by the hour and of a day: short ones run always.
    (
        "crates/durable/src/node/tests/days.rs",
        "random_faults_break_no_promise_for_a_long_time",
    ),
    (
        "crates/durable/src/node/tests/days.rs",
        "random_faults_break_no_promise_within_a_day",
    ),
    // The processes that other tests of the file start and kill.
    ("crates/durable/tests/postgres/processes.rs", "process"),
    ("crates/durable/tests/postgres/environment.rs", "process"),
    ("crates/durable/tests/sqlite/processes.rs", "process"),
    ("crates/durable/tests/takeover/process.rs", "process"),
    // Three million rows: a test with a twentieth of them runs always.
    (
        "crates/durable/tests/postgres/plans.rs",
        "a_look_goes_by_the_index_beside_a_million_rows_of_each_other_queue",
    ),
    // It waits for the default term. The same with a short term runs always.
    (
        "crates/durable/tests/promises/defaults.rs",
        "at_the_defaults_unclaimed_timers_run_within_3_s_and_claimed_ones_within_20_s",
    ),
];

/// The folders whose tests hold rows of `docs/conformance.md`.
const TESTED: &[&str] = &[
    "src",
    "tests",
    "loom-tests/src",
    "crates/leases/src",
    "crates/leases/tests",
    "crates/durable/src",
    "crates/durable/tests",
];

/// The folders whose files define and cite labels of invariants.
const LABELLED: &[&str] = &["src", "crates", "tests", "loom-tests", "benches"];

/// The documents that cite labels of invariants.
const DESIGN: &[&str] = &[
    "DESIGN.md",
    "crates/leases/DESIGN.md",
    "crates/durable/DESIGN.md",
];

/// The documents whose names of files and identifiers have to exist.
const GUIDES: &[&str] = &[
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "crates/durable/ARCHITECTURE.md",
    "crates/leases/ARCHITECTURE.md",
];

/// The folder of the whole repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files below these folders of the repository, sorted by path.
fn sources(folders: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    for folder in folders {
        collect(&repository(), folder, &mut found);
    }
    found
}

fn collect(root: &Path, folder: &str, found: &mut Vec<Source>) {
    // A folder that has moved would have no faults.
    let entries = fs::read_dir(root.join(folder))
        .unwrap_or_else(|error| panic!("{folder} can't be read: {error}"));
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("the folder can be read").file_name())
        .filter_map(|name| name.into_string().ok())
        .collect();
    names.sort();
    for name in names {
        let path = format!("{folder}/{name}");
        if root.join(&path).is_dir() {
            if name != "target" {
                collect(root, &path, found);
            }
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(root.join(&path)).expect("a source file is UTF-8");
            found.push(Source::new(&path, &text));
        }
    }
}

/// The paths of all files of the repository, except those of git and of builds.
fn all_files() -> Vec<String> {
    fn list(folder: &Path, prefix: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let entry = entry.expect("the folder can be read");
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name == ".git" || name == "target" {
                continue;
            }
            let path = format!("{prefix}{name}");
            if entry.path().is_dir() {
                list(&entry.path(), &format!("{path}/"), found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    list(&repository(), "", &mut found);
    found
}

/// Whether it is a file of this test, whose samples break the rules.
fn is_sample(source: &Source) -> bool {
    source.path.starts_with("tests/tidy")
}

/// The text of a file that is no Rust source.
fn document(path: &str) -> String {
    fs::read_to_string(repository().join(path)).expect("the document can be read")
}

#[track_caller]
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[track_caller]
fn hold(folders: &[&str], rule: fn(&Source) -> Vec<String>) {
    let sources = sources(folders);
    assert!(!sources.is_empty(), "there are no files in {folders:?}");
    none(&sources.iter().flat_map(rule).collect::<Vec<_>>());
}

/// The folders of the published packages' sources.
fn published() -> Vec<&'static str> {
    PUBLISHED.iter().map(|package| package.sources).collect()
}

const EVERYTHING: &[&str] = &[
    "src",
    "crates",
    "dev",
    "tests",
    "examples",
    "loom-tests",
    "benches",
];

#[test]
fn modules_use_what_lies_below_them() {
    hold(&published(), rules::layering);
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    for package in PUBLISHED {
        none(&circles::circles(
            &sources(&[package.sources]),
            package.knots,
        ));
    }
}

#[test]
fn no_name_stands_for_two_types() {
    for package in PUBLISHED {
        none(&types::complaints(
            &sources(&[package.sources]),
            package.homonyms,
        ));
    }
}

#[test]
fn only_the_facade_names_threads_and_atomics() {
    hold(&published(), rules::facade);
}

#[test]
fn every_ordering_says_why() {
    hold(&published(), rules::orderings);
}

#[test]
fn no_guard_is_made_in_any_case() {
    for package in PUBLISHED {
        none(&eager::complaints(&sources(&[package.sources])));
    }
}

#[test]
fn nothing_is_left_over() {
    hold(EVERYTHING, rules::leftovers);
}

#[test]
fn there_is_no_unsafe_code() {
    // Not in `benches`: who counts allocations cannot do without. Nor in `fork-tests`: no safe function
    // forks.
    hold(
        &[
            "src",
            "crates/leases",
            "crates/durable",
            "tests",
            "examples",
            "dev/sessions",
            "dev/instruction-counts",
            "dev/xtask",
            "loom-tests",
        ],
        rules::no_unsafe,
    );
}

#[test]
fn two_packages_have_one_line_of_unsafe_code_each() {
    for package in ["crates/tsc", "crates/fork"] {
        let unsafe_code: Vec<String> = sources(&[package])
            .iter()
            .flat_map(rules::unsafe_code)
            .collect();
        assert_eq!(unsafe_code.len(), 1, "{unsafe_code:?}");
    }
}

#[test]
fn every_public_enum_may_grow_or_says_why_not() {
    hold(&published(), rules::enums_may_grow);
}

#[test]
fn no_file_is_too_long() {
    hold(&published(), rules::length);
}

#[test]
fn the_tables_of_this_test_are_up_to_date() {
    none(&rules::table(&sources(&published())));
}

#[test]
fn every_row_of_the_tables_has_a_test_or_a_reason() {
    let mut held = Vec::new();
    for source in sources(TESTED).iter().filter(|source| !is_sample(source)) {
        held.extend(rows::held(source));
    }
    let documented =
        rows::documented(&document(rows::DOCUMENT)).unwrap_or_else(|wrong| panic!("{wrong}"));
    none(&rows::complaints(&held, &documented));
}

#[test]
fn guides_name_what_exists() {
    let (files, sources) = (all_files(), sources(EVERYTHING));
    let complaints = GUIDES
        .iter()
        .flat_map(|path| documents::complaints(path, &document(path), &files, &sources));
    none(&complaints.collect::<Vec<_>>());
}

#[test]
fn every_label_is_defined_once() {
    let mut found: Vec<_> = DESIGN
        .iter()
        .flat_map(|path| labels::labels(path, &document(path)))
        .collect();
    for source in sources(LABELLED).iter().filter(|source| !is_sample(source)) {
        found.extend(labels::labels(&source.path, &source.text));
    }
    assert!(!found.is_empty(), "there are no labels in {LABELLED:?}");
    none(&labels::complaints(&found));
}

#[test]
fn labels_name_their_place() {
    // Not in `benches`, whose workloads are called `W1` and so on.
    let folders = ["src", "crates", "dev", "tests", "loom-tests", "examples"];
    let sources = sources(&folders);
    let complaints = sources
        .iter()
        .filter(|source| !is_sample(source))
        .flat_map(labels::short);
    none(&complaints.collect::<Vec<_>>());
}
