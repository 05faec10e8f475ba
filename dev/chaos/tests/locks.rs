//! The program `locks`: a short run on the embedded store, one that is sabotaged, and the same with
//! processes on a Redis server and in a PostgreSQL database.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use chaos::servers::redis::Server;

/// The exit code, what went to stdout, and what to stderr.
type Outcome = (Option<i32>, String, String);

fn run(words: &str) -> Outcome {
    let mut locks = Command::new(env!("CARGO_BIN_EXE_locks"));
    let output = locks.args(words.split_whitespace()).output();
    let output = output.expect("the program of this package");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The numbers of the last line.
#[track_caller]
fn numbers(out: &str) -> [u64; 3] {
    let last = out.lines().last().expect("a line");
    let words: Vec<_> = last.split(' ').collect();
    let [
        "rounds",
        rounds,
        "takeovers",
        takeovers,
        "overlaps",
        overlaps,
    ] = words[..]
    else {
        panic!("the last line is {last:?}");
    };
    [rounds, takeovers, overlaps].map(|number| number.parse().expect("a number"))
}

#[test]
fn two_threads_never_believe_at_one_time() {
    let (code, out, err) = run("--rounds 5 --lease 200");
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    assert_eq!(numbers(&out), [5, 4, 0], "{out}");
    let tokens: BTreeSet<u64> = out
        .lines()
        .filter_map(|line| line.split_once("holds the lock, token "))
        .map(|(_, token)| token.parse().expect("a token"))
        .collect();
    // Five that were killed or gave it back, and the last one.
    assert!(tokens.len() >= 6, "{out}");
    for (what, times) in [
        ("is killed", 4),
        ("takes over", 4),
        ("goes on", 1),
        ("lost it, by its own clock", 4),
    ] {
        assert!(out.matches(what).count() >= times, "{what}: {out}");
    }
    assert!(out.matches("renewed").count() >= 10, "{out}");
}

#[test]
fn holders_that_do_not_care_overlap() {
    let (code, out, err) = run("--rounds 2 --sabotage");
    assert_eq!((code, &*err), (Some(1), ""), "{out}");
    assert!(matches!(numbers(&out), [2, 2, n] if n >= 2), "{out}");
}

#[test]
fn faults_are_one_line_and_exit_code_2() {
    // Closed again at once: nobody listens there.
    let port = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    for (words, fault) in [
        ("--fast", "unknown option --fast; --help lists"),
        ("redis://127.0.0.1/", "unexpected word"),
        ("--rounds none", "a number from 1 to 1000"),
        ("--lease 99", "a number from 100 to 10000"),
        ("--sabotage=1", "--sabotage"),
        (
            &format!("--redis redis://127.0.0.1:{port}/"),
            "no server to use",
        ),
        (
            &format!("--postgres postgres://x@127.0.0.1:{port}/x"),
            "no server to use",
        ),
        ("--redis http://127.0.0.1/", ""),
    ] {
        let (code, out, err) = run(words);
        assert_eq!((code, &*out), (Some(2), ""), "{words}");
        assert!(
            err.starts_with("locks: ") && err.contains(fault),
            "{words}: {err}"
        );
        assert_eq!(err.lines().count(), 1, "{words}: {err}");
    }
}

#[test]
fn the_program_says_what_it_is_and_which_version() {
    let (code, out, err) = run("--version");
    let version = concat!("locks (tourbillon) ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!((code, &*out, &*err), (Some(0), version, ""));
    let (code, out, err) = run("--rounds 3 -h");
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(
        out.contains("Usage:\n  locks") && out.contains("--version"),
        "{out}"
    );
    // It fits into a usual terminal.
    assert!(out.lines().all(|line| line.len() <= 100), "{out}");
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    let mut locks = Command::new(env!("CARGO_BIN_EXE_locks"));
    let locks = locks.args(["--rounds", "1", "--lease", "100"]);
    let mut locks = locks
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(locks.stdout.take());
    let output = locks.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*err), (Some(0), ""));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn processes_take_over_from_one_that_was_killed() {
    let server = Server::start();
    take_over(&format!("--redis {}", server.url()));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn processes_take_over_in_a_database() {
    let database = chaos::servers::postgres::database();
    take_over(&format!("--postgres {}", database.url()));
}

fn take_over(server: &str) {
    let run = |words: &str| run(&format!("{server} {words}"));
    let (code, out, err) = run("--rounds 4");
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    assert_eq!(numbers(&out), [4, 3, 0], "{out}");
    assert_eq!(out.matches("is killed, by SIGKILL").count(), 3, "{out}");

    // On a machine that stands still a lease of half a second is lost, and the program waits in vain for
    // a renewal, or for a lock that is renewed.
    let mut tries = (0..3).map(|_| run("--rounds 1 --sabotage"));
    let found = tries.find(|(_, _, err)| !err.contains("locks: waited for "));
    let (code, out, err) = found.expect("three tries in a row lost their leases");
    assert_eq!((code, &*err), (Some(1), ""), "{out}");
    assert!(matches!(numbers(&out), [1, 1, n] if n >= 1), "{out}");
}
