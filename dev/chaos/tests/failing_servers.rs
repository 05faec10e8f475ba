//! The program `failing-servers`: its command line, and a few rounds of one server.

use std::process::Command;

/// The exit code, what went to stdout, and what to stderr.
fn run(words: &str) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_failing-servers"));
    let output = program.args(words.split_whitespace()).output();
    let output = output.expect("the program of this package");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (words, fault) in [
        ("--rounds 0", "a number from 1 to 1000000"),
        ("--seed x", "--seed takes a number"),
        ("--minutes", "--minutes"),
        ("--sabotage none", "\"none\" is no sabotage"),
        ("--servers 65", "a number from 1 to 64"),
        ("x", "unexpected word x"),
    ] {
        let (code, out, err) = run(words);
        assert_eq!((code, &*out), (Some(2), ""), "{words}");
        assert!(
            err.contains(fault) && err.contains("--help"),
            "{words}: {err}"
        );
    }
    let (code, out, err) = run("--help");
    assert_eq!((code, &*err), (Some(0), ""));
    for option in [
        "--rounds",
        "--minutes",
        "--seed",
        "--servers",
        "--locks",
        "--postgres",
        "--sentinel",
        "--cluster",
        "--teeth",
    ] {
        assert!(out.contains(option), "{option}: {out}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_seed_is_told_and_a_lie_is_found() {
    told(4, "");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_same_holds_on_a_master_that_a_sentinel_replaces() {
    // In the first rounds nothing is granted: a server that is new to a Sentinel may be a replica.
    told(12, "--sentinel");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_same_holds_in_a_cluster_whose_masters_are_replaced() {
    told(12, "--cluster");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_same_holds_on_postgresql() {
    told(4, "--postgres");
}

fn told(rounds: usize, kind: &str) {
    let few = format!("--rounds {rounds} --servers 1 --seed 42 {kind}");
    let (code, out, err) = run(&few);
    let last = out.lines().last();
    let expected = format!("rounds {rounds} overlaps 0 tokens ok leftovers 0 seed 42");
    assert_eq!((code, last), (Some(0), Some(&*expected)), "{err}");
    let (code, out, err) = run(&format!("{few} --sabotage deaf"));
    assert_eq!(code, Some(1), "{err}");
    assert!(
        !out.contains("overlaps 0") && err.contains("both believed"),
        "{out}{err}"
    );
}
