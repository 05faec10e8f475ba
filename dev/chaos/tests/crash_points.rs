//! The program `crash-points`: its command line, and what it finds without the fence.

use std::process::Command;

/// The exit code, what went to stdout, and what to stderr.
fn run(words: &str) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_crash-points"));
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
fn it_says_what_it_is_and_what_is_wrong() {
    for words in ["--help", "-h", "7 --help"] {
        let (code, out, err) = run(words);
        assert_eq!((code, &*err), (Some(0), ""));
        assert!(out.starts_with("usage: crash-points"), "{out}");
    }
    for (words, fault) in [
        ("--nothing", "unknown option --nothing"),
        ("many", "a number from 0 to 4294967295, not \"many\""),
        ("1 2 3", "unexpected word 3"),
    ] {
        let (code, out, err) = run(words);
        assert_eq!((code, &*out), (Some(2), ""), "{words}");
        assert!(err.contains(fault) && err.contains("--help"), "{err}");
    }
}

#[test]
fn nothing_is_lost_and_what_has_no_fence_is_doubled() {
    let (code, out, err) = run("12");
    let last = out.lines().last();
    let expected = "lost 0 early 0 doubled effects 0";
    assert_eq!((code, last), (Some(0), Some(expected)), "{out}{err}");
    let (code, out, err) = run("24 --sabotage");
    assert_eq!(code, Some(1), "{out}{err}");
    let last = out.lines().last().expect("a line");
    let doubled = last.strip_prefix("lost 0 early 0 doubled effects ");
    assert!(doubled.is_some_and(|number| number != "0"), "{out}{err}");
}
