//! What the small examples print.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use kit::program;

/// The examples of all crates that need no server.
const EXAMPLES: [&str; 10] = [
    "async_expiry",
    "dump_on_signal",
    "election",
    "heartbeat",
    "lock",
    "metrics",
    "orders_sqlite",
    "request_timeouts",
    "web_sessions",
    "webhooks",
];

/// Runs an example. Returns the lines that it prints.
fn lines(name: &str) -> Vec<String> {
    let output = Command::new(program::example(name))
        .output()
        .expect("the example is built");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*err), (Some(0), ""), "{name}");
    let out = String::from_utf8(output.stdout).expect("text");
    out.lines().map(str::to_owned).collect()
}

#[test]
fn web_sessions() {
    let expected = [
        "phone is signed out: GroupFull",
        "tablet is signed out: Idle",
        "laptop is signed out: new password",
        "0 sessions are left",
    ];
    assert_eq!(lines("web_sessions"), expected);
}

#[test]
fn request_timeouts_print_what_the_readme_says() {
    let lines = lines("request_timeouts");
    let line = "requests 10000 answered 9900 timed_out 100 late_answers 0";
    assert_eq!(lines, [line]);
    let readme = include_str!("../../README.md");
    assert!(readme.contains(line), "the README shows another line");
}

/// How many beats are missed depends on the machine, but for those of the stall.
#[test]
fn heartbeat() {
    let lines = lines("heartbeat");
    let beats = lines
        .iter()
        .filter(|line| line.starts_with("beat "))
        .count();
    assert_eq!(beats, 10);
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("alarm: no beat for "))
    );
    let last = lines.last().expect("a line");
    let words: Vec<_> = last.split(' ').collect();
    let [
        beats,
        "beats,",
        missed,
        "missed,",
        alarms,
        "alarm" | "alarms",
    ] = words[..]
    else {
        panic!("{last}");
    };
    let number = |word: &str| word.parse::<u64>().expect("a number");
    assert_eq!(number(beats), 10);
    assert!(number(missed) >= 3 && number(alarms) >= 1, "{last}");
}

#[test]
fn async_expiry() {
    let lines = lines("async_expiry");
    let last = lines.last().expect("a line");
    assert_eq!(
        last,
        "messages 2000 clients 200 cleaned 200 sessions left 0"
    );
}

#[test]
fn dump_on_signal() {
    let lines = lines("dump_on_signal");
    assert_eq!(lines[0], "scheduler jobs: alive, ready");
    let counts = lines[1]
        .split_once("; ")
        .expect("the workers, and the tasks");
    assert_eq!(counts.1, "0 tasks wait for one, 1 run");
    let [.., running] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(running.starts_with("running for ") && running.ends_with(": \"report\""));
    let pending = lines.iter().filter(|line| line.contains(" 1 pending: "));
    let pending: Vec<_> = pending.collect();
    assert!(
        matches!(pending[..], [line] if line.contains("1 within 1 h")),
        "{lines:?}"
    );
}

#[test]
fn lock() {
    let expected = [
        "the first worker holds the lock with token 1",
        "the second worker is refused",
        "the second worker holds the lock with token 2",
        "refused: token 1 is older than 2",
        "2 lines are written",
    ];
    assert_eq!(lines("lock"), expected);
}

#[test]
fn election() {
    let mut lines = lines("election");
    assert_eq!(lines.pop().expect("a line"), "3 terms, one after the other");
    let mut names: Vec<_> = (lines.iter().enumerate())
        .map(|(term, line)| {
            let token = format!(" has led with token {}", term + 1);
            line.strip_suffix(&token).expect("tokens in order")
        })
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["anna", "ben", "cleo"]);
}

#[test]
fn metrics() {
    let lines = lines("metrics");
    let family = "tourbillon_lateness_seconds";
    let labels = "type=\"scheduler\",name=\"requests\"";
    assert_eq!(lines[1], format!("# TYPE {family} histogram"));
    let [.., all, sum, count] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(sum.starts_with(&format!("{family}_sum{{{labels}}} ")));
    let count = count.strip_prefix(&format!("{family}_count{{{labels}}} "));
    let count = count.expect("the count of starts");
    assert_ne!(count, "0");
    assert_eq!(
        *all,
        format!("{family}_bucket{{{labels},le=\"+Inf\"}} {count}")
    );
}

#[test]
fn orders_sqlite() {
    let expected = ["order 1 is paid", "order 2 is cancelled"];
    assert_eq!(lines("orders_sqlite"), expected);
}

#[test]
fn webhooks() {
    let line = "https://down.example/hook failed 4 times: https://down.example/hook answered 503";
    assert_eq!(lines("webhooks"), [line]);
}

/// Reads a line of what a program prints, and leaves, as with `PROGRAM | head -1`.
pub(crate) fn leave_after_a_line(name: &str, program: &mut Command) {
    let mut child = program
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("a line of text");
    assert!(!first.is_empty(), "{name}");
    drop(lines);
    let mut err = String::new();
    let stderr = child.stderr.as_mut().expect("a pipe");
    stderr.read_to_string(&mut err).expect("text");
    let status = child.wait().expect("it ends");
    assert!(!err.contains("panicked"), "{name}: {err}");
    assert_ne!(status.code(), Some(101), "{name}");
}

#[test]
fn no_example_panics_when_its_reader_goes() {
    for name in EXAMPLES {
        leave_after_a_line(name, &mut Command::new(program::example(name)));
    }
}
