//! The example `order_timeout`: a short run, one that is sabotaged, what signals and kills leave
//! behind, and faults of the command line.

#[path = "../examples/order_timeout/app.rs"]
mod app;
#[path = "../examples/order_timeout/cli.rs"]
mod cli;
#[path = "../examples/order_timeout/crew.rs"]
mod crew;
#[path = "../examples/order_timeout/database.rs"]
mod database;
#[cfg(feature = "postgres")]
#[path = "../examples/order_timeout/postgres.rs"]
mod postgres;
#[cfg(feature = "postgres")]
#[path = "kit/postgres.rs"]
mod postgres_kit;
#[path = "../examples/order_timeout/run.rs"]
mod run;
#[path = "../examples/order_timeout/screen.rs"]
mod screen;
#[path = "../examples/order_timeout/shop.rs"]
mod shop;
#[path = "../examples/order_timeout/sqlite.rs"]
mod sqlite;
#[path = "../examples/order_timeout/worker.rs"]
mod worker;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kit::program;
use kit::wait::until;

use app::Console;
#[cfg(feature = "postgres")]
use database::QUEUE;

/// The exit code, what went to stdout, and what to stderr.
type Outcome = (u8, String, String);

/// Runs the program up to the point at which it would start workers.
fn run(words: &str) -> Outcome {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console {
        out: &mut out,
        err: &mut err,
        err_is_terminal: false,
    };
    let words = words.split_whitespace().map(OsString::from);
    let code = app::run(OsStr::new("none"), words, console);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (code, text(out), text(err))
}

/// The compiled program, and what it prints.
fn program(words: &str) -> Command {
    let mut command = Command::new(program::example("order_timeout"));
    command
        .args(words.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn output(words: &str) -> (Option<i32>, String, String) {
    let output = program(words).output().expect("the example is built");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The numbers of the last line.
#[track_caller]
fn numbers(out: &str) -> [u64; 5] {
    let last = out.lines().last().expect("a line");
    let words: Vec<_> = last.split(' ').collect();
    let [
        "orders",
        orders,
        "paid",
        paid,
        "cancelled",
        cancelled,
        "both",
        both,
        "neither",
        neither,
    ] = words[..]
    else {
        panic!("the last line is {last:?}");
    };
    [orders, paid, cancelled, both, neither].map(|number| number.parse().expect("a number"))
}

/// A file that is removed with what SQLite puts beside it.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let name = format!("order_timeout-{name}-{}.db", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        file.remove();
        file
    }

    fn remove(&self) {
        for end in ["", "-wal", "-shm"] {
            let mut path = self.0.clone().into_os_string();
            path.push(end);
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The processes that a process has started.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let is_child = |path: &PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
        // Behind the name, which may have spaces: the state, and the parent.
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        rest.split(' ').nth(1) == Some(&parent.to_string())
    };
    processes
        .map(|entry| entry.path())
        .filter(is_child)
        .collect()
}

/// Whether a process has not ended. One that nobody waits for has.
#[cfg(target_os = "linux")]
fn lives(process: &std::path::Path) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    let rest = stat.rsplit(") ").next().unwrap_or_default();
    !matches!(rest.chars().next(), None | Some('Z' | 'X'))
}

/// Waits for a line of the program that has this text.
fn await_line(child: &mut Child, text: &str) {
    let lines = BufReader::new(child.stderr.take().expect("stderr")).lines();
    let mut lines = lines.map_while(Result::ok);
    let mut before = Vec::new();
    let found = lines.by_ref().any(|line| {
        let is_it = line.contains(text);
        before.push(line);
        is_it
    });
    assert!(found, "no line with {text:?}: {before:?}");
    // The pipe stays open, or the program could not write its next line.
    std::thread::spawn(move || lines.for_each(drop));
}

#[test]
fn each_order_is_paid_or_cancelled_while_workers_are_killed() {
    // While a worker is still starting, nobody is killed. On a busy machine that takes longer.
    for seconds in [2, 8, 32] {
        let (code, out, err) = output(&format!("--seconds {seconds} --orders-per-second 150"));
        assert_eq!(code, Some(0), "{out}\n{err}");
        let [orders, paid, cancelled, both, neither] = numbers(&out);
        assert_eq!((both, neither), (0, 0), "{out}");
        assert_eq!(orders, paid + cancelled, "{out}");
        assert!(paid > 0 && cancelled > 0, "{out}");
        let killed = !out.contains("workers killed by SIGKILL: 0");
        if killed && err.contains("workers 3") {
            return;
        }
    }
    panic!("no worker was killed");
}

#[cfg(feature = "postgres")]
#[test]
#[cfg_attr(
    not(has_postgres),
    ignore = "no PostgreSQL server; to get one: apt-get install postgresql"
)]
fn on_postgresql_each_order_is_paid_or_cancelled_too() {
    let database = postgres_kit::database();
    // Another program has timers in a queue of the same name.
    let store = tourbillon_durable::Postgres::connect(&database.url());
    let others = tourbillon_durable::Durable::builder(store.expect("the cluster answers")).start();
    let others = others.expect("the cluster answers");
    let scheduled = others.schedule(QUEUE, "order:1", std::time::Duration::ZERO, &1);
    scheduled.expect("it is accepted");
    let words = format!("--seconds 2 --postgres {}", database.url());
    let (mut code, mut out, mut err) = output(&words);
    // The last build may have been one of the example alone.
    if err.contains("built without PostgreSQL") {
        program::built("order_timeout");
        (code, out, err) = output(&words);
    }
    assert_eq!(code, Some(0), "{out}\n{err}");
    let [orders, paid, cancelled, both, neither] = numbers(&out);
    assert_eq!((both, neither), (0, 0), "{out}");
    assert_eq!(orders, paid + cancelled, "{out}");
    assert!(paid > 0 && cancelled > 0, "{out}");
    let left = others.get(QUEUE, "order:1").expect("an answer");
    assert_eq!(left.map(|timer| timer.attempt), Some(0));
}

#[cfg(not(feature = "postgres"))]
#[test]
fn without_the_feature_it_says_how_to_get_it() {
    let (code, out, err) = run("--postgres postgres://localhost/test");
    assert_eq!((code, &*out, err.lines().count()), (2, "", 1), "{err}");
    assert!(err.contains("--features postgres"), "{err}");
}

#[test]
fn a_run_that_is_sabotaged_fails() {
    let (code, out, err) = output("--seconds 1 --workers 1 --sabotage");
    assert_eq!(code, Some(1), "{out}\n{err}");
    let [_, paid, cancelled, both, _] = numbers(&out);
    assert!(paid > 0 && cancelled > 0 && both > 0, "{out}");
}

#[cfg(target_os = "linux")]
#[test]
fn sigterm_ends_the_run_in_order_and_leaves_no_process() {
    let mut child = program("--seconds 600 --workers 2").spawn().expect("built");
    await_line(&mut child, "workers 2");
    let workers = children(child.id());
    assert_eq!(workers.len(), 2);
    signal(&child, signal_hook::consts::SIGTERM);
    let output = child.wait_with_output().expect("it ends");
    let out = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{out}");
    let [orders, _, _, both, neither] = numbers(&out);
    assert!(orders > 0 && (both, neither) == (0, 0), "{out}");
    assert!(!workers.iter().any(|worker| lives(worker)));
}

/// What a killed run has left behind, the next one ends.
#[cfg(target_os = "linux")]
#[test]
fn orders_of_a_killed_run_end_in_the_next_one() {
    let file = File::new("killed");
    let path = file.0.display();
    let words = format!("--seconds 600 --workers 2 --file {path}");
    let mut child = program(&words).spawn().expect("built");
    await_line(&mut child, "workers 2");
    let workers = children(child.id());
    child.kill().expect("killed");
    child.wait().expect("ended");
    until("the workers have ended", || {
        !workers.iter().any(|worker| lives(worker))
    });

    let (code, out, err) = output(&format!("--seconds 1 --workers 1 --file {path}"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    let [orders, paid, cancelled, both, neither] = numbers(&out);
    assert_eq!((both, neither), (0, 0), "{out}");
    assert_eq!(orders, paid + cancelled, "{out}");
}

#[cfg(target_os = "linux")]
fn signal(child: &Child, signal: i32) {
    let mut kill = Command::new("kill");
    kill.args([format!("-{signal}"), child.id().to_string()]);
    assert!(kill.status().is_ok_and(|status| status.success()));
}

#[test]
fn a_file_that_is_no_database_is_one_line_and_exit_code_1() {
    let file = File::new("text");
    fs::write(&file.0, "this is no database, but a text of some length\n").expect("written");
    let (code, out, err) = run(&format!("--file {}", file.0.display()));
    assert_eq!((code, err.lines().count()), (1, 1), "{out}{err}");
    assert!(err.starts_with("order_timeout: "), "{err}");
}

#[test]
fn faults_are_one_line_and_exit_code_2() {
    for words in ["--fast", "--seconds none", "--work 1"] {
        let (code, out, err) = run(words);
        assert_eq!((code, &*out), (2, ""), "{words}");
        assert_eq!(err.lines().count(), 1, "{words}: {err}");
    }
    assert_eq!(run("--help"), (0, cli::HELP.to_owned(), String::new()));
    // It fits into a usual terminal.
    assert!(cli::HELP.lines().all(|line| line.len() <= 100));
    let version = concat!(
        "order_timeout (tourbillon-durable) ",
        env!("CARGO_PKG_VERSION"),
        "\n"
    );
    assert_eq!(run("-V"), (0, version.to_owned(), String::new()));
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
        err_is_terminal: false,
    };
    assert_eq!(app::run(OsStr::new("none"), [], console), 0);
}
