//! Reads from Linux how often a thread of this process went to sleep. Nothing else shows from
//! outside that a ticker was not woken.

use std::fs;
use std::time::Duration;

/// The number of voluntary context switches of the thread `name`, and whether it sleeps now.
///
/// `None` while there is no thread of that name, or more than one: a thread gets its name only
/// after it has started, and a thread of an earlier scheduler may still be ending.
fn look(name: &str) -> Option<(u64, bool)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut found = tasks.filter_map(|task| {
        let path = task.ok()?.path();
        let comm = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        (comm.trim_end() == name).then_some(status)
    });
    let status = found.next()?;
    if found.next().is_some() {
        return None;
    }
    let field = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap().trim().to_owned()
    };
    let switches = field("voluntary_ctxt_switches:").parse().unwrap();
    Some((switches, field("State:").starts_with('S')))
}

/// The threads of this process whose names begin with `name`.
pub fn named(name: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut names: Vec<_> = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|found| found.trim_end().to_owned())
        .filter(|found| found.starts_with(name))
        .collect();
    names.sort();
    names
}

/// Waits until no thread of a scheduler is left. A thread that still ends may be the only one of
/// its name, while the thread of a new scheduler has none yet.
#[track_caller]
pub fn none_is_left() {
    crate::wait::until("the threads of schedulers end", || {
        let mut tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.all(|task| {
            let name = fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| !name.starts_with("tb-"))
        })
    });
}

/// Waits until the thread sleeps. Returns how often it has gone to sleep so far.
#[track_caller]
pub fn naps(name: &str) -> u64 {
    let mut last = look(name);
    crate::wait::until("the thread sleeps", || {
        std::thread::park_timeout(Duration::from_micros(50));
        let now = look(name);
        let settled = now.is_some_and(|(_, sleeps)| sleeps) && now == last;
        last = now;
        settled
    });
    last.map_or(0, |(switches, _)| switches)
}
