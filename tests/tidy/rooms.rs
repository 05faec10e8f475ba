//! The rooms of each package: the modules at the top of a crate, by floors. Arrows point down only.

use std::collections::{BTreeMap, BTreeSet};

use crate::rules::{complain, in_package, package_of};
use crate::source::Source;
use crate::{PUBLISHED, Package};

/// A module at the top of a crate, with all that its folder has. It may use the rooms of lower
/// floors.
pub(crate) struct Room {
    floor: usize,
    name: &'static str,
    /// If it may use no others of the lower floors.
    only: Option<&'static [&'static str]>,
}

const fn room(floor: usize, name: &'static str) -> Room {
    let only = None;
    Room { floor, name, only }
}

/// A room that knows less than lies below it.
const fn spare(floor: usize, name: &'static str, only: &'static [&'static str]) -> Room {
    let only = Some(only);
    Room { floor, name, only }
}

/// The rooms of `tourbillon`. `lib.rs` may name anything.
pub(crate) const CORE: &[Room] = &[
    room(0, "sync"),
    room(0, "tick"),
    room(0, "waker"),
    room(0, "error"),
    room(0, "stats"),
    // Findings and text for what the front ends, and other crates, find out.
    room(0, "health"),
    room(1, "clock"),
    room(1, "coop"),
    room(1, "job"),
    // Names and text for what is counted elsewhere.
    spare(1, "metrics", &["stats", "sync"]),
    // Pure: no threads and no clock, so not even the facade.
    spare(1, "wheel", &["tick"]),
    room(2, "bounded_channel"),
    room(2, "config"),
    // Knows jobs and never timers.
    spare(2, "executor", &["clock", "job", "sync", "tick"]),
    room(2, "shard"),
    // Spans and warnings, and nothing of whose they are.
    spare(2, "trace", &["job"]),
    // Knows what takes steps, and nothing of what the steps do.
    spare(2, "tickers", &["clock", "sync", "tick"]),
    // The argument of calls that arm or move.
    spare(2, "when", &["clock", "tick"]),
    // Threads, and nothing of what an engine does on them.
    spare(
        3,
        "runtime",
        &["clock", "config", "error", "executor", "sync", "tickers"],
    ),
    room(3, "backoff"),
    room(4, "engine"),
    // For the crates that build on this one.
    spare(3, "reentrancy", &["error", "shard"]),
    // Setters that the builders of all front ends share.
    room(4, "options"),
    room(5, "scheduler"),
    room(6, "expiry"),
    room(6, "keyed"),
    room(6, "timer"),
    room(7, "retry"),
    // The kit builds schedulers and maps that a test steps, out of the parts of their builders.
    room(7, "test_util"),
    // Markers of the types of all rooms.
    room(7, "unwind"),
    // A test of the errors of all rooms.
    room(8, "error_texts"),
    // Documentation alone.
    room(0, "guide"),
];

/// The rooms of `tourbillon-postgres`.
pub(crate) const POSTGRES: &[Room] = &[
    room(0, "sync"),
    room(0, "caller"),
    room(0, "error"),
    // Pure: texts and files, as `libpq` reads them.
    room(0, "url"),
    room(0, "passfile"),
    room(1, "password"),
    room(1, "security"),
    room(2, "parameters"),
    room(2, "tls"),
    // What errors mean, and nothing of whose they are.
    spare(3, "failure", &["error", "tls"]),
    room(4, "server"),
    room(4, "session"),
    room(5, "hosts"),
    room(6, "connector"),
    room(7, "builder"),
    room(7, "link"),
    room(8, "listener"),
];

/// The rooms of `tourbillon-leases`.
pub(crate) const LEASES: &[Room] = &[
    room(0, "sync"),
    room(1, "store"),
    // Runtimes, and nothing of what stores do on them.
    room(2, "remote"),
    // The stores know nothing of those who use them.
    room(3, "redis"),
    room(3, "postgres"),
    room(3, "sqlite"),
    // Renews, and knows nothing of locks.
    spare(2, "keep_alive", &["store", "sync"]),
    room(3, "manager"),
    room(4, "election"),
    // A test of the errors of all rooms.
    room(4, "error_texts"),
    // Documentation alone.
    room(0, "guide"),
];

/// The rooms of `tourbillon-etcd`.
pub(crate) const ETCD: &[Room] = &[
    room(0, "sync"),
    room(0, "build_error"),
    room(0, "limit"),
    // Pure: the protocol of the server, and the values of keys.
    room(0, "messages"),
    room(0, "record"),
    // What errors mean, and nothing of whose they are.
    room(0, "failure"),
    // A thread, and nothing of what calls do on it.
    spare(1, "runtime", &["sync"]),
    spare(1, "address", &["build_error"]),
    room(1, "links"),
    room(2, "exchange"),
    // What calls do to names, and nothing of who makes them.
    room(3, "names"),
    room(4, "listening"),
    room(5, "store"),
];

/// The rooms of `tourbillon-durable`.
pub(crate) const DURABLE: &[Room] = &[
    room(0, "sync"),
    room(1, "events"),
    room(1, "store"),
    // Pure: what each call does to a row, and where a key lies.
    spare(2, "row", &["store"]),
    room(2, "calls"),
    // The state machine knows no store, no thread and no clock.
    room(2, "node"),
    // The stores know nothing of those who use them.
    room(3, "memory"),
    room(3, "sqlite"),
    room(3, "postgres"),
    room(3, "client"),
    room(4, "run"),
    room(5, "durable"),
    // The kit starts timers on a clock that a test moves.
    room(6, "test_util"),
    // A test of the errors of all rooms.
    room(3, "error_texts"),
    // Documentation alone.
    room(0, "guide"),
];

impl Room {
    fn may_use(&self, other: &Room) -> bool {
        other.floor < self.floor && self.only.is_none_or(|only| only.contains(&other.name))
    }
}

/// The modules that a file lies in, from the top: `src/shard/ticker.rs` is `[shard, ticker]`.
fn modules_of<'a>(path: &'a str, package: &Package) -> Vec<&'a str> {
    let inner = in_package(path, package).unwrap_or(path);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    let parts = inner.split('/').filter(|part| *part != "mod");
    parts.filter(|part| *part != "lib").collect()
}

/// What a file names at the root of its crate, outside of tests, with the lines.
fn named(source: &Source, modules: &[&str]) -> Vec<(String, usize)> {
    let paths = source.paths().into_iter().filter(|path| !path.test);
    let roots = paths.filter_map(|path| {
        let supers = path.segments.iter().take_while(|part| *part == "super");
        let at = match (path.segments[0].as_str(), supers.count()) {
            ("crate", _) => 1,
            // As many steps up as there are modules around lead to the root of the crate.
            ("super", climbed) if climbed == modules.len() + path.depth => climbed,
            ("self", _) if modules.is_empty() && path.depth == 0 => 1,
            (_, 0) if modules.is_empty() && path.depth == 0 => 0,
            _ => return None,
        };
        Some((path.segments.get(at)?.clone(), path.line))
    });
    roots.collect()
}

/// Holds what a file names of its crate to the table of rooms.
pub(crate) fn layering(source: &Source) -> Vec<String> {
    let Some(package) = package_of(&source.path) else {
        let what = "the file belongs to no package of PUBLISHED";
        return vec![complain(source, 1, what)];
    };
    let modules = modules_of(&source.path, package);
    let room = |name: &str| package.rooms.iter().find(|room| room.name == name);
    let Some(name) = modules.first() else {
        return Vec::new();
    };
    let Some(own) = room(name) else {
        let what = format!("`{name}` has no floor: say in tests/tidy/rooms.rs where it belongs");
        return vec![complain(source, 1, &what)];
    };
    let mut found = Vec::new();
    for (named, line) in named(source, &modules) {
        let what = match room(&named) {
            Some(other) if own.may_use(other) || other.name == own.name => continue,
            Some(other) => format!(
                "`{name}` (floor {}) must not use `{named}` (floor {}); arrows point down only",
                own.floor, other.floor
            ),
            None => format!(
                "`{named}` is no room of the table; name an item by the room it lies in, and give \
                 a new room its floor in tests/tidy/rooms.rs"
            ),
        };
        found.push(complain(source, line, &what));
    }
    found
}

/// The rooms that each room of a package uses. The root counts as the room `lib`.
fn arrows(package: &Package, sources: &[&Source]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let modules = modules_of(&source.path, package);
        let own = modules.first().map_or("lib", |name| *name);
        let used = found.entry(own.to_owned()).or_default();
        let named = named(source, &modules).into_iter().map(|(name, _)| name);
        let is_room = |name: &String| package.rooms.iter().any(|room| room.name == name);
        used.extend(named.filter(|name| is_room(name) && name != own));
    }
    found
}

/// How many rooms, floors and arrows a package has, and which rows of its table are out of date.
pub(crate) fn census(package: &Package, sources: &[&Source]) -> (String, Vec<String>) {
    let arrows = arrows(package, sources);
    let mut found = Vec::new();
    for room in package.rooms {
        let Some(used) = arrows.get(room.name) else {
            found.push(format!("there is no room `{}`", room.name));
            continue;
        };
        let below = package
            .rooms
            .iter()
            .filter(|other| used.contains(other.name));
        let lowest = below.map(|other| other.floor + 1).max().unwrap_or(0);
        if room.floor > lowest {
            found.push(format!("`{}` could stand on floor {lowest}", room.name));
        }
        let unused = room
            .only
            .into_iter()
            .flatten()
            .filter(|name| !used.contains(**name));
        found.extend(unused.map(|name| format!("`{}` does not use `{name}` any more", room.name)));
    }
    let top = package.rooms.iter().map(|room| room.floor + 2).max();
    let count: usize = arrows.values().map(BTreeSet::len).sum();
    let summary = format!(
        "{}: {} rooms with lib, {} floors, {count} arrows",
        package.sources,
        arrows.len(),
        top.unwrap_or(1)
    );
    (summary, found)
}

/// The censuses of all packages that have rooms.
pub(crate) fn all(sources: impl Fn(&str) -> Vec<&'static Source>) -> Vec<String> {
    let mut found = Vec::new();
    for package in PUBLISHED.iter().filter(|package| !package.rooms.is_empty()) {
        let (summary, wrong) = census(package, &sources(package.sources));
        println!("{summary}");
        let name = |what| format!("tests/tidy/rooms.rs, {}: {what}", package.sources);
        found.extend(wrong.into_iter().map(name));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Source) -> Vec<String>, path: &str, text: &str) -> usize {
        rule(&Source::new(path, text)).len()
    }

    #[test]
    fn arrows_point_down() {
        let down = "use crate::sync::Mutex; use crate::{tick::Time, job, wheel::{Budget, Slab}};";
        assert_eq!(count(layering, "src/shard/ticker.rs", down), 0);
        let within = "use super::Locked; use crate::shard::entry::Slot; use self::x::Y;";
        assert_eq!(count(layering, "src/shard/ticker.rs", within), 0);
        let up = "use crate::{tick::Time, engine::Engine};\nfn f() { crate::scheduler::g() }";
        assert_eq!(
            layering(&Source::new("src/shard/ticker.rs", up))
                .iter()
                .map(|line| line.split(' ').next().unwrap())
                .collect::<Vec<_>>(),
            ["src/shard/ticker.rs:1:", "src/shard/ticker.rs:2:"]
        );
    }

    #[test]
    fn the_special_arrows_hold() {
        for (path, text, expected) in [
            ("src/wheel/mod.rs", "use crate::tick::Tick;", 0),
            ("src/wheel/mod.rs", "use crate::sync::Mutex;", 1),
            ("src/wheel/mod.rs", "use crate::job::Ticket;", 1),
            ("src/executor/pool.rs", "use crate::job::Claim;", 0),
            ("src/executor/pool.rs", "use crate::wheel::Wheel;", 1),
            ("src/executor/pool.rs", "use crate::shard::Shards;", 1),
            ("src/shard/mod.rs", "use crate::executor::Pool;", 1),
            ("src/clock.rs", "use crate::tick::Time;", 0),
            ("src/tick.rs", "use crate::clock::Clock;", 1),
            ("src/expiry/mod.rs", "use crate::timer::Timer;", 1),
            ("src/lib.rs", "pub use crate::scheduler::Handle;", 0),
        ] {
            assert_eq!(count(layering, path, text), expected, "{path} {text}");
        }
    }

    #[test]
    fn no_way_around_the_table() {
        for (path, text, expected) in [
            ("src/tick.rs", "use super::clock::Clock;", 1),
            ("src/shard/entry.rs", "use super::super::engine::Engine;", 1),
            (
                "src/shard/entry.rs",
                "mod a { use super::stripe::Stripe; }",
                0,
            ),
            (
                "src/shard/mod.rs",
                "mod a { use super::super::engine::Engine; }",
                1,
            ),
            ("src/shard/entry.rs", "use crate::Handle;", 1),
            ("src/shard/entry.rs", "use crate::*;", 1),
            ("src/unknown.rs", "", 1),
            (
                "src/tick.rs",
                "// use crate::engine::Engine;\nlet x = \"crate::engine::Engine\";",
                0,
            ),
            (
                "src/tick.rs",
                "#[cfg(test)] mod tests { use crate::engine::Engine; }",
                0,
            ),
        ] {
            assert_eq!(count(layering, path, text), expected, "{path} {text}");
        }
    }

    #[test]
    fn a_table_that_is_out_of_date_is_found() {
        let package = |rooms| Package {
            sources: "src",
            rooms,
            knots: &[],
            homonyms: &[],
        };
        const LOW: &[Room] = &[room(0, "a"), room(1, "b"), spare(1, "c", &["a"])];
        const HIGH: &[Room] = &[
            room(0, "a"),
            room(2, "b"),
            spare(1, "c", &["a", "b"]),
            room(0, "d"),
        ];
        let sources = [
            Source::new(
                "src/lib.rs",
                "mod a; mod b; mod c; pub use b::{C, D}; use a::A;",
            ),
            Source::new("src/a.rs", "#[cfg(test)] mod tests { use crate::b::B; }"),
            Source::new("src/b/mod.rs", "use crate::a::A;"),
            Source::new("src/b/d.rs", "use super::super::a::A; use super::E;"),
            Source::new("src/c.rs", "fn f() { crate::a::g() }"),
        ];
        let sources: Vec<&Source> = sources.iter().collect();
        let (summary, found) = census(&package(LOW), &sources);
        assert_eq!(summary, "src: 4 rooms with lib, 3 floors, 4 arrows");
        assert_eq!(found, [""; 0]);
        let (_, found) = census(&package(HIGH), &sources);
        let expected = [
            "`b` could stand on floor 1",
            "`c` does not use `b` any more",
            "there is no room `d`",
        ];
        assert_eq!(found, expected);
    }
}
