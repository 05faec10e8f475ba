//! A test of the tree itself: the rules that no compiler and no lint holds.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

mod circles;
mod documents;
mod eager;
mod examples;
mod labels;
mod prometheus;
mod public;
mod rooms;
mod rows;
mod rules;
mod source;
mod types;

use source::Source;

/// A published package: the folder of its sources, and its rooms.
struct Package {
    sources: &'static str,
    rooms: &'static [rooms::Room],
    knots: &'static [circles::Knot],
    homonyms: &'static [types::Homonym],
}

/// All packages that are published. The rules for sources hold for each of them.
const PUBLISHED: &[Package] = &[
    Package {
        sources: "src",
        rooms: rooms::CORE,
        knots: KNOTS,
        homonyms: HOMONYMS,
    },
    // A file each, without modules.
    Package {
        sources: "crates/tsc/src",
        rooms: &[],
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/fork/src",
        rooms: &[],
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/postgres/src",
        rooms: rooms::POSTGRES,
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/leases/src",
        rooms: rooms::LEASES,
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/etcd/src",
        rooms: rooms::ETCD,
        knots: &[],
        homonyms: &[],
    },
    Package {
        sources: "crates/durable/src",
        rooms: rooms::DURABLE,
        knots: &[],
        homonyms: DURABLE_HOMONYMS,
    },
    // A file.
    Package {
        sources: "crates/durable-sqlx/src",
        rooms: &[],
        knots: &[],
        homonyms: &[],
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

/// The crates that users depend on: name, folder, and how many of the public functions may be
/// another one with a suffix.
const CRATES: &[(&str, &str, usize)] = &[
    ("tourbillon", "src", 12),
    ("tourbillon-durable", "crates/durable/src", 6),
    ("tourbillon-durable-sqlx", "crates/durable-sqlx/src", 0),
    ("tourbillon-leases", "crates/leases/src", 2),
    ("tourbillon-etcd", "crates/etcd/src", 0),
];

/// Public names that mean several things, with the reason.
const PUBLIC_HOMONYMS: &[public::Exception] = &[
    (
        "Expired",
        "of the core: an entry of a map, and `wheel::Expired`, a value of a wheel",
    ),
    ("BuildError", SECOND_DESIGN),
    ("Entry", SECOND_DESIGN),
    ("StoreError", SECOND_DESIGN),
];

const SECOND_DESIGN: &str = "the leases get other names with their second design";

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
    ("crates/fork/src/lib.rs", "std::sync::OnceLock", FORKS),
    ("crates/fork/src/lib.rs", "std::thread_local", FORKS),
];

const FORKS: &str =
    "the package is below the facade, by which the core reaches it; loom does not fork";

/// Public enums that callers may match without a wildcard: file, name, why it never grows.
const EXHAUSTIVE_ENUMS: &[(&str, &str, &str)] = &[
    ("crates/durable/src/row/mod.rs", "Change", CARRIED_OUT),
    ("crates/durable/src/row/mod.rs", "Claiming", CARRIED_OUT),
    ("crates/durable/src/store/due_at.rs", "DueAt", CARRIED_OUT),
    ("crates/durable/src/store/polls.rs", "Offset", CARRIED_OUT),
    ("crates/postgres/src/error.rs", "PostgresError", TRANSLATED),
];

const CARRIED_OUT: &str = "a store has to carry out each variant: a wildcard would lose timers";
const TRANSLATED: &str =
    "a store has to translate each variant: a wildcard would hide a call that was carried out";

/// Public enums whose variants with named fields may get further fields. Only the crate makes
/// values of these; what a backend makes, such as `Acquired`, can't be marked.
const GROWING_VARIANTS: &[&str] = &["BuildError", "LockError", "What"];

/// Files that may be longer than the others: file, lines, reason.
const LONG_FILES: &[(&str, usize, &str)] = &[];

/// The tests that may be ignored, each because it needs something that may be missing.
const MAY_BE_IGNORED: &[(&str, &str)] = &[
    (
        "tests/examples/sessions.rs",
        "the_replay_of_the_large_log_is_the_offline_computation",
    ),
    // A measurement, with figures in the guide.
    (
        "crates/durable/tests/cron/million.rs",
        "many_schedules_cost_little_more_than_timers",
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
    ("crates/leases/tests/sqlite/processes.rs", "process"),
    ("crates/durable/tests/cron/killed.rs", "process"),
    ("crates/durable/tests/takeover/process.rs", "process"),
    // Three million rows: a test with a twentieth of them runs always.
    (
        "crates/durable/tests/postgres/plans.rs",
        "a_poll_goes_by_the_index_beside_a_million_rows_of_each_other_queue",
    ),
    // It waits for the default node lease. The same with a short one runs always.
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

/// All Rust files below these folders of the repository, sorted by path. They are read once for all
/// tests.
fn sources(folders: &[&str]) -> Vec<&'static Source> {
    static READ: OnceLock<Vec<Source>> = OnceLock::new();
    let all = READ.get_or_init(|| {
        let mut paths = all_files();
        paths.retain(|path| path.ends_with(".rs"));
        paths.sort();
        paths
            .iter()
            .map(|path| Source::new(path, &document(path)))
            .collect()
    });
    let below = |folder: &&str| {
        let folder = format!("{folder}/");
        let found: Vec<_> = all
            .iter()
            .filter(|source| source.path.starts_with(&folder))
            .collect();
        // A folder that has moved would have no faults.
        assert!(!found.is_empty(), "there are no files in {folder}");
        found
    };
    folders.iter().flat_map(below).collect()
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

/// The text of a file.
fn document(path: &str) -> String {
    fs::read_to_string(repository().join(path)).expect("the document can be read")
}

#[track_caller]
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[track_caller]
fn hold(folders: &[&str], rule: fn(&Source) -> Vec<String>) {
    none(
        &sources(folders)
            .into_iter()
            .flat_map(rule)
            .collect::<Vec<_>>(),
    );
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
fn rooms_use_what_lies_below_them() {
    hold(&published(), rooms::layering);
}

/// Prints how many rooms, floors and arrows there are: `-- --nocapture rooms_stand`.
#[test]
fn rooms_stand_as_low_as_they_can() {
    none(&rooms::all(|folder| sources(&[folder])));
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    for package in PUBLISHED {
        none(&circles::circles(
            &sources(&[package.sources]),
            package.knots,
        ));
    }
    none(&circles::circles(&sources(&["benches/src"]), &[]));
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

/// The crates of [`CRATES`], with the limit of each.
fn crates() -> Vec<(public::Crate, usize)> {
    CRATES
        .iter()
        .map(|&(name, folder, limit)| {
            let sources = sources(&[folder]);
            (public::Crate::new(name, folder, &sources), limit)
        })
        .collect()
}

#[test]
fn no_public_name_means_two_things() {
    let crates: Vec<_> = crates().into_iter().map(|(one, _)| one).collect();
    none(&public::complaints(&crates, PUBLIC_HOMONYMS));
}

/// Prints the number of public types, and the twins: `-- --nocapture few_functions`.
#[test]
fn few_functions_are_another_one_with_a_suffix() {
    for (one, most) in crates() {
        println!("{}", one.summary());
        let twins = one.twins();
        assert!(twins.len() <= most, "more than {most}: {twins:#?}");
    }
}

#[test]
fn every_public_type_of_the_core_has_an_example() {
    let (core, _) = &crates()[0];
    none(&core.types_without_example());
}

/// The guides of the core count, too: its calls are few, and the guides are built around them.
#[test]
fn every_public_function_is_called_in_an_example() {
    let mut guides = all_files();
    guides.retain(|path| path.starts_with("src/guide/") && path.ends_with(".md"));
    let mut found = Vec::new();
    for (one, _) in crates() {
        let mut pages = Vec::new();
        if one.name == "tourbillon" {
            pages.push(one.front_page());
            pages.extend(guides.iter().map(|path| document(path)));
        }
        found.extend(one.functions_without_example(&pages));
    }
    none(&found);
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
fn no_drop_panics_by_itself() {
    hold(&published(), rules::drops);
}

#[test]
fn nothing_is_left_over() {
    hold(EVERYTHING, rules::leftovers);
}

#[test]
fn there_is_no_unsafe_code() {
    // Not in `benches`: who counts allocations cannot do without. Nor in `fork-tests`: no safe
    // function forks.
    hold(
        &[
            "src",
            "crates/postgres",
            "crates/leases",
            "crates/etcd",
            "crates/durable",
            "crates/durable-sqlx",
            "crates/web",
            "crates/cli",
            "tests",
            "examples",
            "dev/chaos",
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
            .copied()
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
fn every_exception_is_needed() {
    none(&rules::exceptions(&sources(&published())));
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
        .into_iter()
        .filter(|source| !is_sample(source))
        .flat_map(labels::short);
    none(&complaints.collect::<Vec<_>>());
}

const ALERTS: &str = "docs/prometheus/alerts.yml";
const DASHBOARD: &str = "docs/prometheus/dashboard.json";

fn dashboard() -> serde_json::Value {
    serde_json::from_str(&document(DASHBOARD)).expect("the dashboard is JSON")
}

#[test]
fn alerts_and_dashboard_name_metrics_that_exist() {
    let documents = [
        "src/guide/metrics.md",
        "crates/leases/src/guide/metrics.md",
        "crates/durable/docs/operation.md",
    ];
    let rows = documents.map(|path| kit::metrics::documented(&document(path)));
    let documented: Vec<_> = rows.iter().flatten().map(|[name, ..]| &**name).collect();
    for path in [ALERTS, DASHBOARD] {
        let text = document(path);
        let named = prometheus::metrics(&text);
        assert!(named.len() > 10, "{path}: {named:?}");
        let unknown = named.iter().filter(|name| !documented.contains(name));
        let unknown: Vec<_> = unknown.map(|name| format!("{path}: {name}")).collect();
        none(&unknown);
    }
}

#[test]
fn each_alert_is_tested() {
    let (alerts, tests) = (
        document(ALERTS),
        document("docs/prometheus/alerts_test.yml"),
    );
    let alerts = prometheus::values(&alerts, "alert:");
    assert!(alerts.len() > 10, "{alerts:?}");
    // Twice in a test of its own: before it fires, and then.
    let tested = prometheus::values(&tests, "alertname:");
    let times = |alert: &&&str| tested.iter().filter(|tested| tested == alert).count();
    let quiet = |alert: &str| tests.contains(&format!("alertname: {alert}, exp_alerts: []"));
    let untested = alerts
        .iter()
        .filter(|alert| times(alert) < 2 || !quiet(alert));
    let untested: Vec<_> = untested
        .map(|alert| format!("{alert} is not tested"))
        .collect();
    none(&untested);
}

#[track_caller]
fn promtool(arguments: &[&str]) {
    let mut promtool = std::process::Command::new("promtool");
    let output = promtool.current_dir(repository()).args(arguments).output();
    let output = output.expect("promtool is installed");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{arguments:?}: {said}");
}

#[test]
#[cfg_attr(not(has_promtool), ignore = "needs: apt-get install prometheus")]
fn prometheus_takes_alerts_and_dashboard() {
    promtool(&["check", "rules", ALERTS]);
    promtool(&["test", "rules", "docs/prometheus/alerts_test.yml"]);
    let queries = prometheus::queries(&dashboard());
    assert!(queries.len() > 30, "{queries:?}");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard.yml");
    fs::write(&file, prometheus::rules(&queries)).expect("a file can be written");
    promtool(&["check", "rules", file.to_str().expect("a path of text")]);
}
