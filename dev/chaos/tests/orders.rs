//! The program `orders`: a short run, one that is sabotaged, what signals and kills leave behind,
//! and faults of the command line.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program, and what it prints.
fn program(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orders"));
    command
        .args(words.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn output(words: &str) -> (Option<i32>, String, String) {
    let output = program(words)
        .output()
        .expect("the program of this package");
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
        let name = format!("orders-{name}-{}.db", std::process::id());
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

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn on_postgresql_each_order_is_paid_or_cancelled_too() {
    let database = chaos::servers::postgres::database();
    // Another program has timers in a queue of the same name.
    let store = tourbillon_durable::Postgres::connect(&database.url());
    let others = tourbillon_durable::Durable::builder(store.expect("the cluster answers")).start();
    let others = others.expect("the cluster answers");
    let queue = "pay-by";
    let scheduled = others
        .schedule(queue, "order:1", std::time::Duration::ZERO, &1)
        .wait();
    scheduled.expect("it is accepted");
    let (code, out, err) = output(&format!("--seconds 2 --postgres {}", database.url()));
    assert_eq!(code, Some(0), "{out}\n{err}");
    let [orders, paid, cancelled, both, neither] = numbers(&out);
    assert_eq!((both, neither), (0, 0), "{out}");
    assert_eq!(orders, paid + cancelled, "{out}");
    assert!(paid > 0 && cancelled > 0, "{out}");
    let left = others.get(queue, "order:1").wait().expect("an answer");
    assert_eq!(left.map(|timer| timer.attempt), Some(0));
}

#[test]
fn a_run_that_is_sabotaged_fails() {
    let (code, out, err) = output("--seconds 1 --workers 1 --sabotage");
    assert_eq!(code, Some(1), "{out}\n{err}");
    let [_, paid, cancelled, both, _] = numbers(&out);
    assert!(paid > 0 && cancelled > 0 && both > 0, "{out}");
}

/// Sends a request to the page, and returns its answer.
fn ask(address: &str, request: &str, header: &str) -> String {
    let mut server = TcpStream::connect(address).expect("the page listens");
    let text = format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n{header}\r\n"
    );
    server.write_all(text.as_bytes()).expect("it reads");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn a_button_kills_a_worker_and_the_page_shows_the_others() {
    let words = "--web --workers 2 --orders-per-second 50";
    let mut child = program(words).spawn().expect("built");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, address) = line.split_once("the page: http://")?;
        Some(address.trim_end_matches('/').to_owned())
    });
    let address = address.expect("it says its address");
    let out = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    await_line(&mut child, "workers 2");
    let other = ask(&address, "POST /kill", "Sec-Fetch-Site: cross-site\r\n");
    assert!(other.starts_with("HTTP/1.1 403"), "{other}");
    assert!(ask(&address, "GET /timers", "").contains("worker-1"));
    assert!(ask(&address, "POST /kill", "").starts_with("HTTP/1.1 303"));
    let until = |what: &str, path: &str, is_there: bool| {
        let holds = || ask(&address, path, "").contains(what) == is_there;
        let mut waits = (0..600).map(|_| std::thread::sleep(Duration::from_millis(100)));
        assert!(holds() || waits.any(|()| holds()), "in vain: {what}");
    };
    until("worker 1 was killed", "GET /", true);
    // The others declare it gone, and its successor joins.
    until("worker-1<", "GET /timers", false);
    until("worker-3<", "GET /timers", true);
    signal(&child, "-TERM");
    assert!(child.wait().expect("it ends").success());
    let out = out.join().expect("its lines").join("\n");
    let [orders, paid, cancelled, both, neither] = numbers(&out);
    assert_eq!((both, neither, orders), (0, 0, paid + cancelled), "{out}");
    assert!(out.contains("workers killed by SIGKILL: 1"), "{out}");
}

#[test]
fn sigterm_ends_the_run_in_order_and_leaves_no_process() {
    let mut child = program("--seconds 600 --workers 2").spawn().expect("built");
    await_line(&mut child, "workers 2");
    let workers = children(child.id());
    assert_eq!(workers.len(), 2);
    signal(&child, "-TERM");
    let output = child.wait_with_output().expect("it ends");
    let out = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{out}");
    let [orders, _, _, both, neither] = numbers(&out);
    assert!(orders > 0 && (both, neither) == (0, 0), "{out}");
    assert!(!workers.iter().any(|worker| lives(worker)));
}

/// What a killed run has left behind, the next one ends.
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
    while workers.iter().any(|worker| lives(worker)) {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }

    let (code, out, err) = output(&format!("--seconds 1 --workers 1 --file {path}"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    let [orders, paid, cancelled, both, neither] = numbers(&out);
    assert_eq!((both, neither), (0, 0), "{out}");
    assert_eq!(orders, paid + cancelled, "{out}");
}

fn signal(child: &Child, signal: &str) {
    let mut kill = Command::new("kill");
    kill.args([signal, &child.id().to_string()]);
    assert!(kill.status().is_ok_and(|status| status.success()));
}

#[test]
fn a_file_that_is_no_database_is_one_line_and_exit_code_1() {
    let file = File::new("text");
    fs::write(&file.0, "this is no database, but a text of some length\n").expect("written");
    let (code, out, err) = output(&format!("--file {}", file.0.display()));
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{out}{err}");
    assert!(err.starts_with("orders: "), "{err}");
}

#[test]
fn faults_are_one_line_and_exit_code_2() {
    for (words, fault) in [
        ("--fast", "unknown option --fast"),
        ("shop.db", "unexpected word shop.db"),
        ("--seconds none", "a number from 1 to 600"),
        ("--orders-per-second 2001", "a number from 1 to 2000"),
        ("--workers 17", "a number from 1 to 16"),
        ("--file=", "the path of a file"),
        ("--file x.db --postgres host=x", "exclude each other"),
        ("--sabotage=1", "--sabotage"),
    ] {
        let (code, out, err) = output(words);
        assert_eq!((code, &*out), (Some(2), ""), "{words}");
        assert!(
            err.contains(fault) && err.lines().count() == 1,
            "{words}: {err}"
        );
    }
    let (code, out, err) = output("--seconds 3 --help");
    assert_eq!((code, &*err), (Some(0), ""));
    // It fits into a usual terminal.
    assert!(out.lines().all(|line| line.len() <= 100), "{out}");
    let version = concat!("orders (tourbillon) ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(output("-V"), (Some(0), version.to_owned(), String::new()));
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    let mut orders = program("--seconds 1 --workers 1")
        .spawn()
        .expect("it starts");
    drop((orders.stdout.take(), orders.stderr.take()));
    let status = orders.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
}
