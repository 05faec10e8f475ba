//! Several processes on one file. The other processes are this test program, started again: each
//! runs one of the functions of the module `child`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tourbillon_leases::{Acquired, Leases, SqliteStore, StoreError};

use crate::calls::Calls;
use crate::folder::{Folder, LEASE, LIMIT, claim, granted, held, number};

/// The part of a test that runs in a process of its own. A variable of the environment says what it does.
mod child {
    use std::io::{BufRead, Write};

    use rusqlite::{Connection, TransactionBehavior};
    use tourbillon::{Clock, Time};

    use super::*;

    /// Lines that the parent reads. What was said is out before the next call.
    fn say(line: &str) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "SAY {line}").expect("the parent reads");
        out.flush().expect("the parent reads");
    }

    #[test]
    #[ignore = "a part of other tests, which start it"]
    fn process() {
        let Ok(task) = std::env::var("SQLITE_TEST_TASK") else {
            return;
        };
        let (name, file) = task.split_once('|').expect("a task and a file");
        match name {
            "contest" => contest(file),
            "permits" => permits(file),
            "hold" => hold(file),
            "read" => read(file),
            "half" => half(file),
            "open" => open(file),
            "fill" => fill(file),
            other => panic!("no task {other}"),
        }
    }

    fn stop() {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).expect("read");
    }

    /// Holds the lock again and again, and says by the machine's clock from when to when it was sure.
    fn contest(file: &str) {
        let leases = Leases::new(SqliteStore::open(file).expect("a store")).expect("leases");
        let clock = Clock::boottime();
        let now = || clock.now().since(Time::ZERO).as_nanos();
        for _ in 0..60 {
            let guard = leases.lock("contested").within(LIMIT).wait().expect("held");
            let from = now();
            std::thread::yield_now();
            let to = now();
            assert!(guard.is_held());
            say(&format!("{} {from} {to}", guard.token()));
            guard.release().wait().expect("released");
        }
    }

    /// Holds one of two permits again and again, and says which place it had, and when.
    fn permits(file: &str) {
        let leases = Leases::new(SqliteStore::open(file).expect("a store")).expect("leases");
        let clock = Clock::boottime();
        let now = || clock.now().since(Time::ZERO).as_nanos();
        for _ in 0..60 {
            let permit = leases.lock("contested").permit_of(2).within(LIMIT);
            let guard = permit.wait().expect("held");
            let from = now();
            std::thread::sleep(std::time::Duration::from_millis(1));
            let to = now();
            assert!(guard.is_held());
            say(&format!("{} {} {from} {to}", guard.place(), guard.token()));
            guard.release().wait().expect("released");
        }
    }

    /// Reads with renewals until it is killed.
    fn read(file: &str) {
        let store = SqliteStore::open(file).expect("a store");
        let lease = std::time::Duration::from_secs(1);
        let leases = Leases::builder(store).lease(lease).build().expect("leases");
        let guard = leases.lock("x").shared().wait().expect("held");
        say(&guard.token().to_string());
        stop();
    }

    /// Holds a lock with renewals until it is killed.
    fn hold(file: &str) {
        let store = SqliteStore::open(file).expect("a store");
        let lease = std::time::Duration::from_secs(1);
        let leases = Leases::builder(store).lease(lease).build().expect("leases");
        let guard = leases.lock("x").wait().expect("held");
        say(&guard.token().to_string());
        stop();
    }

    /// Takes a lock within a transaction that never ends, as if it were killed between its statements.
    fn half(file: &str) {
        let store = SqliteStore::open(file).expect("a store");
        granted(&store, "whole", "a:1");
        let mut db = Connection::open(file).expect("a connection");
        let transaction = db
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .expect("a transaction");
        let sql = "update tourbillon_lease_state set token = token + 1;
            insert into tourbillon_lease(name, owner, secret, token, ends)
            values ('half', 'a:2', 'a:2', 1, 9223372036854775807)";
        transaction.execute_batch(sql).expect("carried out");
        say("written");
        stop();
    }

    fn open(file: &str) {
        match SqliteStore::open(file) {
            Ok(_) => say("opened"),
            Err(error) => say(&error.to_string()),
        }
    }

    /// Acquires names until the disk is full, finds them all, makes room, and goes on.
    fn fill(file: &str) {
        let store = SqliteStore::open(file).expect("a store");
        let ballast = format!("{file}.ballast");
        std::fs::write(&ballast, vec![1; 500_000]).expect("a file");
        let mut names = 0;
        let error = loop {
            let name = format!("{names:>1000}");
            match store.acquire(&claim(&name, "a:1"), LIMIT) {
                Ok(Acquired::Granted { .. }) => names += 1,
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        say(&format!("error {error}"));
        assert!(names > 0);
        for at in 0..names {
            let found = store.holder_of(&format!("{at:>1000}"), LIMIT);
            assert!(found.expect("a full disk still reads").is_some());
        }
        assert_eq!(store.holder_of(&format!("{names:>1000}"), LIMIT), Ok(None));
        std::fs::remove_file(&ballast).expect("removed");
        granted(&store, "after", "a:1");
        say("went on");
    }
}

fn program() -> PathBuf {
    std::env::current_exe().expect("a test has a path")
}

fn arguments(command: &mut Command, task: &str, file: &Path) {
    command
        .args(["--exact", "processes::child::process"])
        .args(["--ignored", "--nocapture", "--test-threads", "1"])
        .env("SQLITE_TEST_TASK", format!("{task}|{}", file.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
}

/// A process with a task. It ends with this value.
struct Process(Child);

impl Process {
    fn start(task: &str, file: &Path) -> Self {
        let mut command = Command::new(program());
        arguments(&mut command, task, file);
        Process(command.spawn().expect("a process"))
    }

    /// The lines that it says, from now on.
    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let out = BufReader::new(self.0.stdout.take().expect("piped"));
        out.lines().map_while(Result::ok).filter_map(|line| {
            // The test harness writes its own words before the first one.
            let (_, said) = line.split_once("SAY ")?;
            Some(said.to_owned())
        })
    }

    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("an end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_that_compete_never_overlap_and_their_tokens_increase() {
    let folder = Folder::new();
    // They also make the file at the same time.
    let mut processes: Vec<_> = (0..3)
        .map(|_| Process::start("contest", &folder.file()))
        .collect();
    let readers: Vec<_> = processes
        .iter_mut()
        .map(|process| {
            let lines = process.lines();
            std::thread::spawn(move || lines.collect::<Vec<_>>())
        })
        .collect();
    let mut held: Vec<[u128; 3]> = Vec::new();
    for (process, reader) in processes.iter_mut().zip(readers) {
        let lines = reader.join().expect("no panic");
        assert!(process.0.wait().expect("an end").success(), "{lines:?}");
        assert_eq!(lines.len(), 60);
        for line in lines {
            let numbers: Vec<_> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            held.push(numbers.try_into().unwrap());
        }
    }
    held.sort_unstable();
    for pair in held.windows(2) {
        let ([token, _, to], [next, from, _]) = (pair[0], pair[1]);
        assert!(token < next, "a token was granted twice");
        assert!(to <= from, "{pair:?}");
    }
}

#[test]
fn no_two_processes_have_one_place_and_its_tokens_increase() {
    let folder = Folder::new();
    let mut processes: Vec<_> = (0..3)
        .map(|_| Process::start("permits", &folder.file()))
        .collect();
    let readers: Vec<_> = processes
        .iter_mut()
        .map(|process| {
            let lines = process.lines();
            std::thread::spawn(move || lines.collect::<Vec<_>>())
        })
        .collect();
    let mut held: [Vec<[u128; 3]>; 2] = Default::default();
    for (process, reader) in processes.iter_mut().zip(readers) {
        let lines = reader.join().expect("no panic");
        assert!(process.0.wait().expect("an end").success(), "{lines:?}");
        assert_eq!(lines.len(), 60);
        for line in lines {
            let numbers: Vec<u128> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            let place = usize::try_from(numbers[0]).unwrap();
            held[place].push(numbers[1..].try_into().unwrap());
        }
    }
    for held in &mut held {
        held.sort_unstable();
        for pair in held.windows(2) {
            let ([token, _, to], [next, from, _]) = (pair[0], pair[1]);
            assert!(token < next && to <= from, "{pair:?}");
        }
    }
    assert!(
        held.iter().all(|held| held.len() > 10),
        "both places were used"
    );
}

#[test]
fn a_writer_gets_in_when_the_lease_of_a_killed_reader_has_run_out() {
    let folder = Folder::new();
    let leases = Leases::new(folder.store()).unwrap();
    let mut reader = Process::start("read", &folder.file());
    let token: u64 = reader.lines().next().expect("held").parse().unwrap();
    let other = leases.lock("x").shared().wait().unwrap();
    assert_eq!(other.token(), token);
    other.release().wait().unwrap();
    held(&folder.store(), &claim("x", "b:1"));
    reader.kill();
    let guard = leases.lock("x").within(LEASE).wait().unwrap();
    assert!(guard.token() > token);
}

#[test]
fn a_killed_holder_is_followed_when_its_lease_has_run_out() {
    let folder = Folder::new();
    let leases = Leases::new(folder.store()).unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let mut holder = Process::start("hold", &folder.file());
        let token: u64 = holder.lines().next().expect("held").parse().unwrap();
        assert!(token > last);
        held(&folder.store(), &claim("x", "b:1"));
        holder.kill();
        let guard = leases.lock("x").within(LEASE).wait().unwrap();
        assert!(guard.token() > token);
        last = guard.token();
        guard.release().wait().unwrap();
    }
}

#[test]
fn a_process_killed_in_a_transaction_leaves_nothing_of_it_and_frees_the_file() {
    let folder = Folder::new();
    let mut half = Process::start("half", &folder.file());
    assert_eq!(half.lines().next().as_deref(), Some("written"));
    let store = folder.store();
    let answer = store.acquire(&claim("half", "b:1"), LEASE / 100);
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    half.kill();
    let token = granted(&store, "half", "b:1");
    // The commits of before are still there after all processes have started again.
    held(&store, &claim("whole", "b:1"));
    drop(store);
    let store = folder.store();
    held(&store, &claim("whole", "b:1"));
    held(&store, &claim("half", "c:1"));
    assert!(granted(&store, "other", "b:1") > token);
    assert_eq!(
        number(&folder.plain(), "select count(*) from tourbillon_lease"),
        3
    );
}

#[cfg(unix)]
#[test]
fn the_end_of_a_store_whose_log_was_removed_leaves_that_of_others_alone() {
    let folder = Folder::new();
    let store = folder.store();
    granted(&store, "x", "a:1");
    for end in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", folder.file().display())).unwrap();
    }
    // It leaves a log behind.
    let mut other = Process::start("half", &folder.file());
    assert_eq!(other.lines().next().as_deref(), Some("written"));
    other.kill();
    drop(store);
    held(&folder.store(), &claim("whole", "b:1"));
}

/// A disk of two megabytes. Without the right to mount one the test says that it was skipped.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_loses_nothing() {
    let folder = Folder::new();
    let mut command = Command::new("unshare");
    let script = r#"mount -t tmpfs -o size=2m tmpfs "$0" || { echo "SAY skipped"; exit 0; }
                    exec "$@""#;
    command.args(["--mount", "sh", "-c", script]);
    command.arg(folder.path()).arg(program());
    arguments(&mut command, "fill", &folder.file());
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_refused = !output.status.success() && !text.contains("running");
    if is_refused || text.contains("SAY skipped") {
        println!("skipped: a disk of its own needs the right to mount");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("the store is unavailable") && text.contains("the disk is full"),
        "{text}"
    );
    assert!(text.contains("SAY went on"), "{text}");
}

#[cfg(unix)]
mod read_only {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    use super::*;

    /// The user `nobody`.
    const NOBODY: u32 = 65_534;

    /// What a user without rights is told, of a store with these.
    fn opened(of_file: u32, of_folder: u32) -> String {
        let place = std::env::temp_dir().join(format!(
            "leases-{}-{of_file:o}-{of_folder:o}",
            std::process::id()
        ));
        fs::create_dir_all(&place).expect("a folder");
        let (file, own) = (place.join("app.db"), place.join("program"));
        drop(SqliteStore::open(&file).expect("a store"));
        // The folder of this program may be closed to others. By a process: a file that this one has
        // open for writing can't be run.
        let copied = Command::new("cp").arg(program()).arg(&own).status();
        assert!(copied.is_ok_and(|status| status.success()));
        for (path, mode) in [(&own, 0o755), (&file, of_file), (&place, of_folder)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        }
        let mut command = Command::new(&own);
        arguments(&mut command, "open", &file);
        // A test without the rights of root stays who it is.
        if Command::new("true").uid(NOBODY).status().is_ok() {
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
        }
        let mut process = Process(command.spawn().expect("a process"));
        let answer = process.lines().collect::<Vec<_>>().pop();
        fs::set_permissions(&place, Permissions::from_mode(0o755)).expect("set");
        fs::remove_dir_all(&place).expect("removed");
        answer.expect("an answer")
    }

    #[test]
    fn a_file_or_a_folder_without_rights_is_an_error_in_words() {
        assert_eq!(opened(0o666, 0o777), "opened");
        let answer = opened(0o444, 0o777);
        assert!(answer.contains("may not write to the file"), "{answer}");
        let answer = opened(0o666, 0o555);
        assert!(
            answer.contains("can't be opened") || answer.contains("must be writable"),
            "{answer}"
        );
        let answer = opened(0o000, 0o777);
        assert!(answer.contains("can't be opened"), "{answer}");
    }
}
