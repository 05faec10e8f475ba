//! The example `lock_watchdog`: its ledger and its lines, a short run on the embedded store, one that is
//! sabotaged, and the program itself, on a Redis server too.

#[path = "../examples/lock_watchdog/app.rs"]
mod app;
#[path = "../examples/lock_watchdog/cable.rs"]
mod cable;
#[path = "../examples/lock_watchdog/cli.rs"]
mod cli;
#[path = "../examples/lock_watchdog/contest.rs"]
mod contest;
#[path = "../examples/lock_watchdog/holder.rs"]
mod holder;
#[path = "../examples/lock_watchdog/ledger.rs"]
mod ledger;
#[cfg(feature = "redis")]
#[path = "../examples/lock_watchdog/processes.rs"]
mod processes;
#[cfg(feature = "redis")]
#[path = "kit/redis.rs"]
mod redis_kit;
#[path = "../examples/lock_watchdog/threads.rs"]
mod threads;
#[cfg(feature = "redis")]
#[path = "../examples/lock_watchdog/wire.rs"]
mod wire;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::Command;

use kit::program;

use app::Console;

/// The exit code, what went to stdout, and what to stderr.
type Outcome = (u8, String, String);

fn run(words: &str) -> Outcome {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console {
        out: &mut out,
        err: &mut err,
    };
    let words = words.split_whitespace().map(OsString::from);
    let code = app::run(OsStr::new("none"), words, console);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (code, text(out), text(err))
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
    assert_eq!((code, &*err), (0, ""), "{out}");
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
    assert_eq!((code, &*err), (1, ""), "{out}");
    assert!(matches!(numbers(&out), [2, 2, n] if n >= 2), "{out}");
}

#[test]
fn faults_are_one_line_and_exit_code_2() {
    for words in ["--fast", "--rounds none", "--hold A"] {
        let (code, out, err) = run(words);
        assert_eq!((code, &*out), (2, ""), "{words}");
        assert_eq!(err.lines().count(), 1, "{words}: {err}");
    }
    assert_eq!(run("--help"), (0, cli::HELP.to_owned(), String::new()));
}

#[test]
fn the_program_says_what_it_is_and_which_version() {
    let version = concat!(
        "lock_watchdog (tourbillon-leases) ",
        env!("CARGO_PKG_VERSION"),
        "\n"
    );
    for arg in ["-V", "--version"] {
        assert_eq!(run(arg), (0, version.to_owned(), String::new()));
    }
    for arg in ["-h", "--help"] {
        let (code, out, err) = run(arg);
        assert_eq!((code, &*err), (0, ""), "{arg}");
        assert!(
            out.contains("Usage:\n  lock_watchdog") && out.contains("--version"),
            "{out}"
        );
        // It fits into a usual terminal.
        assert!(out.lines().all(|line| line.len() <= 100), "{out}");
    }
    let (code, out, err) = run("--nonsense");
    assert_eq!((code, &*out), (2, ""), "{err}");
    assert!(
        err.contains("lock_watchdog") && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let console = Console {
        out: &mut Gone,
        err: &mut io::sink(),
    };
    assert_eq!(app::run(OsStr::new("none"), [], console), 0);
}

#[test]
fn the_program_itself_runs_and_exits() {
    let program = program::example("lock_watchdog");
    let output = Command::new(program)
        .args(["--rounds", "1", "--lease", "200"])
        .output();
    let output = output.expect("the example is built");
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}");
    assert_eq!(numbers(&out), [1, 1, 0], "{out}");
}

#[cfg(not(feature = "redis"))]
#[test]
fn without_the_feature_it_says_how_to_get_it() {
    let (code, out, err) = run("--redis redis://127.0.0.1/");
    assert_eq!((code, &*out, err.lines().count()), (2, "", 1), "{err}");
    assert!(err.contains("--features redis"), "{err}");
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn no_server_is_one_line_and_exit_code_2() {
        // Closed again at once: nobody listens there.
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        for url in [
            format!("redis://127.0.0.1:{port}/"),
            "http://127.0.0.1/".to_owned(),
        ] {
            let (code, out, err) = run(&format!("--redis {url}"));
            assert_eq!((code, &*out, err.lines().count()), (2, "", 1), "{err}");
        }
    }

    #[test]
    #[cfg_attr(
        not(has_redis_server),
        ignore = "no redis-server: apt-get install redis-server"
    )]
    fn processes_take_over_from_one_that_was_killed() {
        let program = program::built("lock_watchdog");
        let server = redis_kit::Server::start();
        let run = |args: &[&str]| {
            let mut command = Command::new(&program);
            command.args(["--redis", &server.url()]);
            let output = command.args(args).output().expect("the example is built");
            let text = |bytes| String::from_utf8(bytes).expect("text");
            let (out, err) = (text(output.stdout), text(output.stderr));
            (output.status.code(), out, err)
        };
        let (code, out, err) = run(&["--rounds", "4"]);
        assert_eq!((code, &*err), (Some(0), ""), "{out}");
        assert_eq!(numbers(&out), [4, 3, 0], "{out}");
        assert_eq!(out.matches("is killed, by SIGKILL").count(), 3, "{out}");

        let (code, out, err) = run(&["--rounds", "1", "--sabotage"]);
        assert_eq!((code, &*err), (Some(1), ""), "{out}");
        assert!(matches!(numbers(&out), [1, 1, n] if n >= 1), "{out}");
    }
}
