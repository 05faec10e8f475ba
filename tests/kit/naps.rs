//! How often a thread of this process went to sleep, as Linux counts it: the only way to see from
//! outside that a ticker was not woken.

use std::fs;
use std::time::Duration;

/// So many voluntary switches has the thread `name` made, and whether it sleeps now. The name must
/// be that of one thread only.
fn look(name: &str) -> (u64, bool) {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut found = tasks.filter_map(|task| {
        let path = task.ok()?.path();
        let comm = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        (comm.trim_end() == name).then_some(status)
    });
    let status = found.next().unwrap_or_else(|| panic!("no thread {name}"));
    assert!(found.next().is_none(), "more than one thread {name}");
    let field = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap().trim().to_owned()
    };
    let switches = field("voluntary_ctxt_switches:").parse().unwrap();
    (switches, field("State:").starts_with('S'))
}

/// Waits until the thread sleeps, and says how often it has gone to sleep so far.
#[track_caller]
pub(crate) fn naps(name: &str) -> u64 {
    let mut last = look(name);
    crate::wait::until("the thread sleeps", || {
        std::thread::park_timeout(Duration::from_micros(50));
        let now = look(name);
        let settled = now.1 && now == last;
        last = now;
        settled
    });
    last.0
}
