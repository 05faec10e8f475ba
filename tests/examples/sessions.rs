//! The main job of the program `sessions`: replays against a computation without any timer, the
//! command line, and a short run in real time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::app::{self, Console};
use crate::log::{self, Log};
use crate::replay::{self, Summary};
use crate::{cli, generate, terminal};

use kit::program;

const COMMITTED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../dev/sessions/data/access.log"
);

/// The idle times of the tests in seconds: those that the made logs have gaps of, and others.
const IDLE_TIMES: [u64; 10] = [
    1, 60, 1_799, 1_800, 1_801, 3_600, 14_400, 14_401, 86_400, 864_000,
];

/// Sessions without a timer: the gaps of each client's sorted requests.
fn offline(bytes: &[u8], idle: u64) -> Summary {
    let mut requests: Vec<_> = bytes
        .split(|&byte| byte == b'\n')
        .filter_map(log::parse_line)
        .collect();
    requests.sort_by_key(|line| line.instant);
    let mut by_client: HashMap<&str, Vec<i64>> = HashMap::new();
    for line in &requests {
        by_client.entry(line.client).or_default().push(line.instant);
    }
    let mut summary = Summary {
        requests: requests.len() as u64,
        clients: by_client.len() as u64,
        ..Summary::default()
    };
    for instants in by_client.values() {
        for session in instants.chunk_by(|earlier, later| later - earlier < idle as i64) {
            let duration = (session[session.len() - 1] - session[0]) as u64;
            summary.sessions += 1;
            summary.longest = summary.longest.max(duration);
            summary.total_duration += duration;
            summary.max_hits = summary.max_hits.max(session.len() as u64);
        }
    }
    summary
}

fn replayed(bytes: &[u8], idle: Duration, seed: u64) -> Summary {
    let log = Log::read(bytes, |_| ()).expect("memory can be read");
    let mut told = 0;
    let summary = replay::replay(&log, idle, seed, |done| told = done);
    assert_eq!(told, log.requests.len() as u64);
    summary.expect("the engine's answers are right")
}

fn assert_replay_is_offline(bytes: &[u8], idle_times: &[u64], seed: u64) {
    for &idle in idle_times {
        let replayed = replayed(bytes, Duration::from_secs(idle), seed);
        assert_eq!(
            replayed,
            offline(bytes, idle),
            "idle time {idle} s, seed {seed}"
        );
    }
}

/// The program's exit code, standard output and standard error.
fn run(args: &[&str]) -> (u8, String, String) {
    run_on(args, b"", None, false)
}

/// The same with something on standard input, on a terminal of so many columns or on none, and with
/// an interrupt right at the start or without.
fn run_on(
    args: &[&str],
    mut input: &[u8],
    columns: Option<fn() -> usize>,
    interrupt: bool,
) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console {
        input: &mut input,
        out: &mut out,
        err: &mut err,
        out_is_terminal: columns.is_some(),
        err_is_terminal: columns.is_some(),
        columns: columns.unwrap_or(|| 80),
        interrupts: &|| Ok(Arc::new(AtomicBool::new(interrupt))),
    };
    let code = app::run(args.iter().map(OsString::from), console);
    let text = |bytes| String::from_utf8(bytes).expect("the program prints text");
    (code, text(out), text(err))
}

// === the made log ===

#[test]
fn the_committed_log_is_what_its_generator_makes() {
    let committed = std::fs::read(COMMITTED).expect("the log is in the repository");
    assert!(
        committed == generate::generate(7, 1_500).bytes,
        "make the log again"
    );
    assert!(committed.len() < 200_000);
}

#[test]
fn a_made_log_holds_what_the_parser_reads() {
    for seed in 0..8 {
        let made = generate::generate(seed, 3_000);
        let lines = made
            .bytes
            .split(|&byte| byte == b'\n')
            .filter_map(log::parse_line);
        let parsed: Vec<_> = lines
            .map(|line| (line.instant, line.client.to_owned()))
            .collect();
        assert_eq!(parsed, made.requests, "seed {seed}");
        assert!(!parsed.is_sorted_by_key(|&(instant, _)| instant));

        let log = Log::read(&made.bytes[..], |_| ()).expect("memory can be read");
        assert_eq!(log.broken, made.broken.len() as u64);
        assert_eq!(log.first_broken, made.broken.first().copied());
        assert!(log.broken > 6, "every kind of broken line");
    }
}

#[test]
fn made_logs_have_gaps_of_exactly_the_idle_time() {
    let made = generate::generate(7, 1_500).bytes;
    for idle in [1_800, 3_600, 14_400] {
        // Were such gaps missing, a second less or more would not split otherwise.
        let sessions =
            [idle - 1, idle, idle + 1, idle + 2].map(|idle| offline(&made, idle).sessions);
        assert!(
            sessions.is_sorted_by(|more, fewer| more > fewer),
            "{idle} s: {sessions:?}"
        );
    }
}

// === replay against the offline computation ===

#[test]
fn replays_of_made_logs_are_the_offline_computation() {
    for seed in 0..4 {
        assert_replay_is_offline(&generate::generate(seed, 1_500).bytes, &IDLE_TIMES, seed);
    }
}

#[test]
fn the_replay_of_the_committed_log_is_the_offline_computation() {
    let committed = std::fs::read(COMMITTED).expect("the log is in the repository");
    for seed in 0..2 {
        assert_replay_is_offline(&committed, &IDLE_TIMES, seed);
    }
}

#[test]
#[cfg_attr(
    not(large_log),
    ignore = "the large access log is not beside this checkout"
)]
fn the_replay_of_the_large_log_is_the_offline_computation() {
    let path = env!("LARGE_LOG");
    let bytes = std::fs::read(path).expect("the build script found the log");
    for (idle, sessions, longest, total_duration, max_hits) in [
        (1_800, 3_052, 59, 49_216, 108),
        (3_600, 2_577, 162_013, 1_743_801, 226),
        (14_400, 2_161, 298_843, 4_737_712, 482),
    ] {
        let (requests, clients) = (10_000, 1_753);
        let expected = Summary {
            requests,
            clients,
            sessions,
            longest,
            total_duration,
            max_hits,
        };
        assert_eq!(
            offline(&bytes, idle),
            expected,
            "offline, idle time {idle} s"
        );
        assert_eq!(
            replayed(&bytes, Duration::from_secs(idle), idle),
            expected,
            "{idle} s"
        );
    }
    assert_replay_is_offline(&bytes, &[60, 7_200, 86_400], 3);
    let line = "requests 10000 clients 1753 sessions 2577 longest 162013 \
                total_duration 1743801 max_hits 226\n";
    assert_eq!(
        run(&[path, "--idle", "3600s"]),
        (0, line.to_owned(), String::new())
    );
}

#[test]
fn a_gap_of_exactly_the_idle_time_starts_a_new_session() {
    let log = |instants: &[u32]| -> String {
        let line = |s| format!("h - - [01/Jan/1970:00:00:{s:02} +0000] \"GET /\" 200 1\n");
        instants.iter().map(line).collect()
    };
    for (instants, idle_ms, sessions, longest) in [
        (&[0, 9][..], 10_000, 1, 9),
        (&[0, 10], 10_000, 2, 0),
        (&[0, 9, 18, 28], 10_000, 2, 18),
        (&[28, 9, 0, 18], 10_000, 2, 18),
        (&[5, 5, 5], 1, 1, 0),
        (&[5, 6], 1, 2, 0),
        (&[5, 6], 999, 2, 0),
        (&[5, 6, 8], 1_001, 2, 1),
        (&[5, 6, 8], 2_000, 2, 1),
    ] {
        let text = log(instants);
        let summary = replayed(text.as_bytes(), Duration::from_millis(idle_ms), 0);
        assert_eq!(
            (summary.sessions, summary.longest),
            (sessions, longest),
            "{instants:?}"
        );
        assert_eq!(summary.requests, instants.len() as u64);
    }
}

#[test]
fn a_log_may_span_centuries() {
    let mut bytes = Vec::new();
    for year in [1970, 1971, 2399] {
        writeln!(
            bytes,
            "h - - [01/Jan/{year}:00:00:00 +0000] \"GET /\" 200 1"
        )
        .expect("memory");
    }
    let century = Duration::from_secs(100 * 365 * 86_400);
    let summary = replayed(&bytes, century, 0);
    assert_eq!((summary.sessions, summary.longest), (2, 365 * 86_400));
}

// === the command line ===

#[test]
fn an_empty_log_comes_to_zeros() {
    let path = scratch("empty.log", b"");
    let line = "requests 0 clients 0 sessions 0 longest 0 total_duration 0 max_hits 0\n";
    assert_eq!(run(&[&path]), (0, line.to_owned(), String::new()));
}

#[test]
fn broken_lines_are_reported_with_the_first_ones_number() {
    let made = generate::generate(7, 1_500);
    let (code, out, err) = run(&[COMMITTED, "--idle", "3600s"]);
    let (count, first) = (made.broken.len(), made.broken[0]);
    let report = format!("sessions: {count} lines do not parse, the first is line {first}\n");
    let line = format!("{}\n", offline(&made.bytes, 3_600));
    assert_eq!((code, out, err), (0, line, report));

    let path = scratch(
        "broken.log",
        b"h - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1\n\xff\xfe",
    );
    let report = "sessions: 1 line does not parse, the first is line 2\n";
    assert_eq!(run(&[&path]).2, report);
}

#[test]
fn a_log_of_which_no_line_parses_is_a_fault_that_is_named() {
    for (name, bytes, fault) in [
        (
            "a.gz",
            &b"\x1f\x8b\x08\x00\n"[..],
            "a.gz is compressed with gzip; unpack it first: gzip -dc ",
        ),
        ("a.zst", b"\x28\xb5\x2f\xfd\x24", "compressed with zstd"),
        (
            "a.json",
            b"{\"time\": 1}\n{\"time\": 2}\n",
            "Log Format: this is JSON",
        ),
        (
            "b.json",
            b"\xef\xbb\xbf [{\"time\": 1},",
            "Log Format: this is JSON",
        ),
        (
            "text",
            b"what\tis this\r\n\n",
            ": the first line begins with \"what\\tis this\"",
        ),
        ("two", b"what\n\n", "none of the 2 lines of "),
        ("blank", b"\n", ": the first line begins with \"\""),
        ("bytes", b"\xff\xfe", "begins with \"\u{fffd}\u{fffd}\""),
    ] {
        let path = scratch(name, bytes);
        let (code, out, err) = run(&[&path]);
        assert_eq!(
            (code, &*out, err.lines().count()),
            (2, "", 1),
            "{name}: {err}"
        );
        assert!(err.contains(fault) && err.contains(name), "{name}: {err}");
        let (code, out, err) = run_on(&["-"], bytes, None, false);
        assert_eq!((code, &*out), (2, ""));
        assert!(
            err.contains("standard input is compressed")
                || err.contains("line of standard input is not in")
                || err.contains("lines of standard input is in"),
            "{err}"
        );
    }
}

#[test]
fn a_dash_is_standard_input() {
    let made = generate::generate(7, 1_500);
    let line = format!("{}\n", offline(&made.bytes, 3_600));
    // On a terminal, too: nobody knows how much is to come, so there is no bar for reading.
    for columns in [None, Some((|| 60) as fn() -> usize)] {
        let (code, out, err) = run_on(&["-", "--idle", "1h"], &made.bytes, columns, false);
        assert_eq!((code, &*out), (0, &*line));
        assert!(!err.contains("reading"), "{err}");
    }
    let mut program = Command::new(program::bin("sessions"))
        .args(["--idle", "1h", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the example is built");
    let mut input = program.stdin.take().expect("a pipe");
    input.write_all(&made.bytes).expect("the program reads");
    drop(input);
    let output = program.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), line);
}

#[test]
fn virtual_hosts_and_a_byte_order_mark_change_no_session() {
    let made = generate::generate(3, 2_000);
    let mut bytes = b"\xef\xbb\xbf".to_vec();
    for (number, line) in made
        .bytes
        .split_inclusive(|&byte| byte == b'\n')
        .enumerate()
    {
        write!(bytes, "www{}.example.org:443 ", number % 3).expect("memory");
        bytes.extend(line);
    }
    for idle in [60, 1_800] {
        let plain = replayed(&made.bytes, Duration::from_secs(idle), 1);
        assert_eq!(replayed(&bytes, Duration::from_secs(idle), 1), plain);
    }
}

#[test]
fn faults_exit_with_2_and_say_why() {
    let missing = scratch("missing", b"");
    std::fs::remove_file(&missing).expect("it was just written");
    for (args, fault) in [
        (&[&*missing][..], "cannot read"),
        (&[env!("CARGO_TARGET_TMPDIR")], "cannot read"),
        (
            &[COMMITTED, "--idle", "soon"],
            "--idle takes a time such as 3600s",
        ),
        (&["--fast"], "unknown option --fast"),
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, &*out), (2, ""), "{args:?}");
        assert!(
            err.contains(fault) && err.lines().count() == 1,
            "{args:?}: {err}"
        );
    }
    let (code, out, err) = run(&["--help"]);
    assert_eq!((code, &*out, &*err), (0, cli::HELP, ""));
    let version = format!("sessions (tourbillon) {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]), (0, version, String::new()));
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    struct Gone(io::ErrorKind);
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for (kind, expected) in [
        (io::ErrorKind::BrokenPipe, 0),
        (io::ErrorKind::StorageFull, 1),
    ] {
        for args in [
            &[COMMITTED][..],
            &["--help"],
            &["--seconds", "1", "--sessions", "10"],
        ] {
            let console = Console {
                input: &mut io::empty(),
                out: &mut Gone(kind),
                err: &mut io::sink(),
                out_is_terminal: false,
                err_is_terminal: false,
                columns: || 80,
                interrupts: &|| Ok(Arc::default()),
            };
            assert_eq!(
                app::run(args.iter().map(OsString::from), console),
                expected,
                "{args:?}"
            );
        }
    }
}

#[test]
fn the_program_itself_replays_and_exits() {
    let program = program::bin("sessions");
    let run = |args: &[&str]| {
        let output = Command::new(&program)
            .args(args)
            .output()
            .expect("the example is built");
        (output.status.code(), output.stdout, output.stderr)
    };
    let made = generate::generate(7, 1_500);
    for idle in [1_800, 3_600] {
        let (code, out, _) = run(&[COMMITTED, "--idle", &format!("{idle}s")]);
        let line = format!("{}\n", offline(&made.bytes, idle));
        assert_eq!(
            (code, String::from_utf8_lossy(&out)),
            (Some(0), line.into())
        );
    }
    for args in [
        &["no such file"][..],
        &["--fast"],
        &[COMMITTED, "--idle", "0s"],
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, out.len()), (Some(2), 0), "{args:?}");
        assert!(!err.is_empty());
    }
}

/// Writes a file for one test; returns its path.
fn scratch(name: &str, bytes: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("the target directory can be written");
    path.into_os_string().into_string().expect("a path of text")
}

// === real time ===

#[test]
fn a_run_in_real_time_loses_nothing() {
    let args = "--seconds 1 --sessions 5000 --producers 3 --idle 100ms --slow 3";
    let args: Vec<_> = args.split(' ').collect();
    let (code, out, err) = run(&args);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.ends_with("\nnothing lost\n"), "{out}");
    for name in [
        "inserted",
        "expired",
        "removed",
        "replaced",
        "handed back",
        "pending",
        "lateness",
    ] {
        assert!(
            out.lines().any(|line| line.starts_with(name)),
            "{name} in {out}"
        );
    }
}

#[test]
fn a_run_that_is_too_short_for_all_sessions_says_how_many_there_were() {
    let (code, out, _) = run(&["--seconds", "1", "--sessions", "100000000"]);
    assert_eq!(code, 0, "{out}");
    let note = out
        .lines()
        .find_map(|line| line.strip_prefix("the time was too short for all: "));
    let note = note.unwrap_or_else(|| panic!("no note in {out}"));
    let (some, rest) = note.split_once(' ').expect("a number and more");
    assert_eq!(rest, "of 100,000,000 sessions have logged in");
    // Nobody has logged in twice, so as many were inserted.
    assert_eq!(row(&out, "inserted")[0], some, "{out}");
    let (_, out, _) = run(&["--seconds", "1", "--sessions", "10"]);
    assert!(!out.contains("too short"), "{out}");
}

#[test]
fn sessions_that_do_not_expire_are_handed_back() {
    let (code, out, _) = run(&["--seconds", "1", "--sessions", "300", "--idle", "1h"]);
    assert_eq!(code, 0, "{out}");
    let handed_back = out.lines().find(|line| line.starts_with("handed back"));
    let handed_back = handed_back
        .expect("a row of the table")
        .split_whitespace()
        .nth(2);
    assert!(handed_back.is_some_and(|count| count != "0"), "{out}");
}

/// A row of a table in a run's output, by its name.
fn row<'a>(out: &'a str, name: &str) -> Vec<&'a str> {
    let row = out.lines().find_map(|line| line.strip_prefix(name));
    let row = row.unwrap_or_else(|| panic!("{name} in {out}"));
    row.split_whitespace().collect()
}

#[test]
fn producers_go_flat_out_when_they_are_told_to() {
    let args = ["--seconds", "1", "--sessions", "9000", "--producers", "2"];
    for (more, header) in [
        (&[][..], "9,000 sessions, idle time 5s, 2 producers, 1 s\n"),
        (
            &["--flat-out"],
            "9,000 sessions, idle time 5s, 2 producers flat out, 1 s\n",
        ),
    ] {
        let (code, out, _) = run(&[&args[..], more].concat());
        assert_eq!(code, 0, "{out}");
        assert!(
            out.starts_with(header) && out.ends_with("\nnothing lost\n"),
            "{out}"
        );
    }
}

#[test]
fn a_run_shows_the_last_second_and_says_when_its_producers_stop() {
    let (code, out, _) = run(&["--seconds", "3", "--sessions", "2000", "--idle", "100ms"]);
    assert_eq!(code, 0, "{out}");
    let stopped = "\nthe producers have stopped; what they left expires\n";
    assert_eq!(out.matches(stopped).count(), 1, "{out}");
    let lines: Vec<_> = out
        .lines()
        .filter(|line| line.contains("p50/p99 ") && !line.ends_with('-'))
        .collect();
    assert!(!lines.is_empty(), "{out}");
    for line in lines {
        let (_, late) = line.split_once("p50/p99 ").expect("it was just found");
        let [p50, p99] = [0, 1].map(|at| {
            let number = late.trim_end_matches(" ms").split('/').nth(at);
            number
                .and_then(|number| number.parse::<f64>().ok())
                .expect("a number")
        });
        assert!(p50 <= p99, "{line}");
    }
    assert_eq!(row(&out, "lateness"), ["p50", "p99", "max"]);
    for name in ["while producers worked", "to the end"] {
        let cells = row(&out, name);
        let [p50, _, p99, _, max, _] = cells[..] else {
            panic!("{cells:?}");
        };
        let [p50, p99, max] = [p50, p99, max].map(|cell| cell.parse::<f64>().expect("a number"));
        assert!(p50 <= p99 && p99 <= max, "{cells:?}");
    }
}

/// The live line as a terminal shows it: what stands behind the last carriage return.
fn live_lines(out: &str) -> Vec<&str> {
    out.split(['\r', '\n'])
        .filter_map(|line| line.strip_suffix("\x1b[K"))
        .collect()
}

#[test]
fn the_live_line_fits_into_its_terminal() {
    let args = ["--seconds", "3", "--sessions", "2000", "--idle", "200ms"];
    for (columns, width) in [((|| 20) as fn() -> usize, 20), (|| 60, 60), (|| 120, 120)] {
        let (code, out, _) = run_on(&args, b"", Some(columns), false);
        let lines = live_lines(&out);
        assert_eq!((code, lines.is_empty()), (0, false), "{out:?}");
        let longest = lines.iter().map(|line| line.len()).max();
        assert!(longest < Some(width), "{width}: {lines:?}");
        assert_eq!(
            lines.iter().any(|line| line.contains("touches/s")),
            width == 120,
            "{lines:?}"
        );
        // The lines that stay are made for 60 columns, but for the sources of the table.
        let wide = out
            .lines()
            .filter(|line| !line.contains('\r') && line.len() > 60)
            .count();
        assert_eq!(wide > 0, width == 120, "{out}");
    }
}

#[test]
fn an_interrupt_ends_a_run_with_its_table() {
    let args = [
        "--seconds",
        "3600",
        "--sessions",
        "2000",
        "--slow",
        "2",
        "--idle",
        "1h",
    ];
    let (code, out, err) = run_on(&args, b"", None, true);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.contains("\ninterrupted: "), "{out}");
    assert!(out.ends_with("\nnothing lost\n"), "{out}");
    // Nothing has expired, so nothing was late.
    for name in ["while producers worked", "to the end"] {
        assert_eq!(row(&out, name), ["-", "-", "-"], "{out}");
    }
}

/// The program itself: the first interrupt brings the table, and a second one would not have
/// waited.
#[cfg(unix)]
#[test]
fn the_program_itself_prints_its_table_when_it_is_interrupted() {
    use std::io::{BufRead, BufReader};

    let interrupt = |program: &std::process::Child| {
        let sent = Command::new("kill")
            .args(["-INT", &program.id().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()));
    };
    let mut program = Command::new(program::bin("sessions"))
        .args(["--seconds", "600", "--sessions", "1000", "--idle", "1h"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example is built");
    let mut lines = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    // The first line comes when interrupts are watched for, and the second one in a second.
    let mut line = || lines.next().map(|line| line.expect("text"));
    assert!(line().is_some_and(|line| line.contains("1,000 sessions")));
    assert!(line().is_some_and(|line| line.contains("live")));
    interrupt(&program);
    let rest: Vec<_> = std::iter::from_fn(line).collect();
    assert_eq!(
        rest.last().map(String::as_str),
        Some("nothing lost"),
        "{rest:?}"
    );
    assert_eq!(program.wait().expect("it ends").code(), Some(0));
}

/// What a second interrupt does, in a process of its own: it ends it at once.
#[test]
fn a_second_interrupt_ends_the_program() {
    const CHILD: &str = "TOURBILLON_TEST_INTERRUPTED_TWICE";
    if std::env::var_os(CHILD).is_some() {
        let interrupted = terminal::interrupts().expect("signals can be watched for");
        for number in 0..2 {
            assert_eq!(interrupted.load(Ordering::SeqCst), number == 1);
            signal_hook::low_level::raise(signal_hook::consts::SIGINT).expect("raised");
        }
        unreachable!("the second one ends it");
    }
    let status = Command::new(std::env::current_exe().expect("a test has a path"))
        .args(["--exact", "sessions::a_second_interrupt_ends_the_program"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("a test can run itself");
    assert_eq!(status.code(), Some(130));
}

#[test]
fn the_width_of_the_terminal_is_what_columns_says() {
    const CHILD: &str = "TOURBILLON_TEST_COLUMNS";
    if let Ok(expected) = std::env::var(CHILD) {
        assert_eq!(
            terminal::columns(),
            expected.parse::<usize>().expect("a number")
        );
        return;
    }
    for (columns, expected) in [("60", "60"), ("120", "120"), ("0", "80"), ("wide", "80")] {
        let output = Command::new(std::env::current_exe().expect("a test has a path"))
            .args([
                "--exact",
                "sessions::the_width_of_the_terminal_is_what_columns_says",
            ])
            .env("COLUMNS", columns)
            .env(CHILD, expected)
            // None of them is a terminal.
            .stdin(Stdio::null())
            .output()
            .expect("a test can run itself");
        assert!(output.status.success(), "{columns}: {output:?}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            told.contains("1 passed"),
            "the child found no such test: {told}"
        );
    }
}
