//! Several processes on one file. The other processes are this test program, started again: each
//! runs one of the functions of the module `child`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use rusqlite::{Connection, TransactionBehavior};
use tourbillon_durable::store::{Page, Store};
use tourbillon_durable::{Sqlite, rusqlite};

use crate::folder::{Folder, schedule_in};

const HOUR: Duration = Duration::from_secs(3600);

/// The parts of tests that run in processes of their own. They are told what to do by a variable.
mod child {
    use std::io::{BufRead, Write};
    use std::time::Duration;

    use kit::wait;
    use rusqlite::{Connection, TransactionBehavior};
    use tourbillon_durable::store::{Store, StoreError};
    use tourbillon_durable::{Sqlite, rusqlite};

    use super::HOUR;
    use crate::folder::schedule_in;
    use crate::outages;

    /// What a test of the parent has asked for: the name of the task, the file, and a word.
    fn task() -> Option<(String, String, String)> {
        let task = std::env::var("SQLITE_TEST_TASK").ok()?;
        let mut words = task.splitn(3, '|').map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    }

    /// Lines that the parent reads. What was said is out before the next call.
    fn say(line: &str) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "SAY {line}").expect("the parent reads");
        out.flush().expect("the parent reads");
    }

    #[test]
    #[ignore = "a part of other tests, which start it"]
    fn process() {
        let Some((name, file, word)) = task() else {
            return;
        };
        match &*name {
            "hammer" => hammer(&file, &word),
            "hold" => hold(&file),
            "open" => open(&file),
            "fill" => fill(&file),
            "no space" => no_space(&file),
            "outage" => outage(&file),
            other => panic!("no task {other}"),
        }
    }

    /// Writes batches and says which were accepted, without end, or until the store has a number of
    /// them.
    fn hammer(file: &str, word: &str) {
        let (name, batches) = word.split_once(' ').expect("a name and a number");
        let batches: u32 = batches.parse().expect("a number");
        let store = Sqlite::open(file).expect("a store");
        let mut connection = store.connect().expect("a connection");
        for batch in 0..batches {
            let calls: Vec<_> = (0..20)
                .map(|number| schedule_in(name, &format!("{batch} {number}"), HOUR))
                .collect();
            let answers = connection.write(&calls).expect("answers");
            assert!(answers.iter().all(Result::is_ok));
            say(&format!("{name} {batch}"));
        }
    }

    /// Writes within a transaction, and never ends it.
    fn hold(file: &str) {
        let store = Sqlite::open(file).expect("a store");
        let mut shop = Connection::open(file).expect("a connection");
        let tx = shop
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .expect("a transaction");
        for number in 0..100 {
            let key = format!("half {number}");
            store
                .in_transaction(&tx)
                .schedule("q", &key, HOUR, "x")
                .expect("scheduled");
        }
        say("written");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).expect("read");
    }

    fn open(file: &str) {
        match Sqlite::open(file) {
            Ok(_) => say("opened"),
            Err(error) => say(&error.to_string()),
        }
    }

    /// Writes until the store can't any more, and says why.
    fn fill(file: &str) {
        let store = Sqlite::open(file).expect("a store");
        let (accepted, error) = write_until_error(&store);
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        for batch in accepted {
            say(&format!("q {batch}"));
        }
        say(&format!("error {error}"));
    }

    /// The numbers of the batches that were accepted, and the error that ended it.
    fn write_until_error(store: &Sqlite) -> (Vec<u32>, StoreError) {
        let mut connection = store.connect().expect("a connection");
        let mut accepted = Vec::new();
        for batch in 0_u32.. {
            let calls: Vec<_> = (0..20)
                .map(|number| schedule_in("q", &format!("{batch} {number}"), HOUR))
                .collect();
            match connection.write(&calls) {
                Ok(_) => accepted.push(batch),
                Err(error) => return (accepted, error),
            }
        }
        unreachable!("the numbers do not end");
    }

    /// Fills a disk, finds all that was accepted, makes room, and goes on.
    fn no_space(file: &str) {
        let store = Sqlite::open(file).expect("a store");
        let ballast = format!("{file}.ballast");
        std::fs::write(&ballast, vec![1; 500_000]).expect("a file");
        let (accepted, error) = write_until_error(&store);
        say(&format!("error {error}"));
        // A full disk still reads.
        let mut connection = store.connect().expect("a connection");
        for batch in &accepted {
            for number in 0..20 {
                let found = connection.get("q", &format!("{batch} {number}"));
                assert!(found.expect("an answer").is_some(), "{batch} {number}");
            }
        }
        assert!(!accepted.is_empty());
        let refused = connection.get("q", &format!("{} 0", accepted.len()));
        assert_eq!(refused, Ok(None));
        std::fs::remove_file(&ballast).expect("removed");
        let answers = connection.write(&[schedule_in("q", "after", HOUR)]);
        assert!(answers.expect("answers")[0].is_ok());
        say("went on");
    }

    /// Fills a disk under a node, and makes room again.
    fn outage(file: &str) {
        let store = Sqlite::open(file).expect("a store");
        let (timers, runs, told) = outages::node(store).expect("it works");
        let second = Duration::from_secs(1);
        let many = (0..200_u64).map(|n| (n.to_string(), second, n));
        let accepted = timers.schedule_many("q", many).wait().expect("accepted");
        assert!(accepted.iter().all(Result::is_ok));
        let path = format!("{file}.ballast");
        let mut ballast = std::fs::File::create(&path).expect("a file");
        while ballast.write_all(&[1; 4_096]).is_ok() {}
        // A call that was slow at that moment has begun it, or the one that says why.
        let down = told.down(&timers);
        assert!(
            down.as_ref()
                .is_none_or(|(_, why)| why.contains("the disk is full")),
            "{down:?}"
        );
        outages::stays_down(&timers, &told);
        std::fs::remove_file(&path).expect("removed");
        drop(ballast);
        let mut ran: Vec<u64> = (0..200).map(|_| wait::next(&runs)).collect();
        ran.sort_unstable();
        ran.dedup();
        assert_eq!(ran.len(), 200);
        told.up(&timers);
        told.ends(timers);
        say("went on");
    }
}

/// A command that runs `child::process` of this program with a task.
fn child(program: &Path, task: &str, file: &Path, word: &str) -> Command {
    let mut command = Command::new(program);
    arguments(&mut command, task, file, word);
    command
}

fn arguments(command: &mut Command, task: &str, file: &Path, word: &str) {
    command
        .args(["--exact", "processes::child::process"])
        .args(["--ignored", "--nocapture", "--test-threads", "1"])
        .env(
            "SQLITE_TEST_TASK",
            format!("{task}|{}|{word}", file.display()),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
}

fn program() -> PathBuf {
    std::env::current_exe().expect("a test has a path")
}

/// The lines that a child says, from now on.
fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let out = BufReader::new(child.stdout.take().expect("piped"));
    out.lines().map_while(Result::ok).filter_map(|line| {
        // The test harness writes its own words before the first one.
        let (_, said) = line.split_once("SAY ")?;
        Some(said.to_owned())
    })
}

/// Runs a child to its end, and returns what it has said.
fn said(mut command: Command) -> Vec<String> {
    let mut child = command.spawn().expect("a process");
    let lines: Vec<String> = lines(&mut child).collect();
    let ended = child.wait().expect("an end");
    assert!(ended.success(), "{ended}: {lines:?}");
    lines
}

/// The numbers of timers of each batch of a queue.
fn batches(store: &Sqlite, queue: &str) -> BTreeMap<u32, u32> {
    let mut connection = store.connect().expect("a connection");
    let timers = connection.list(&Page::first(queue, u32::MAX));
    let mut batches = BTreeMap::new();
    for timer in timers.expect("a list") {
        let (batch, _) = timer.key.split_once(' ').expect("a batch and a number");
        *batches.entry(batch.parse().expect("a number")).or_default() += 1;
    }
    batches
}

/// The batches of a queue that were acknowledged.
fn acknowledged(lines: &[String], queue: &str) -> BTreeSet<u32> {
    let numbers = lines.iter().filter_map(|line| {
        let (name, batch) = line.split_once(' ')?;
        (name == queue).then(|| batch.parse().expect("a number"))
    });
    numbers.collect()
}

#[test]
fn processes_that_write_at_the_same_time_lose_nothing_and_wait_for_each_other() {
    let folder = Folder::new();
    // They also create the file at the same time.
    let children: Vec<Child> = ["a", "b", "c"]
        .map(|name| {
            let word = format!("{name} 50");
            let mut command = child(&program(), "hammer", &folder.file(), &word);
            command.spawn().expect("a process")
        })
        .into();
    for mut child in children {
        let lines: Vec<String> = lines(&mut child).collect();
        assert!(child.wait().expect("an end").success(), "{lines:?}");
        assert_eq!(lines.len(), 50);
    }
    let store = folder.store();
    for queue in ["a", "b", "c"] {
        let wanted: BTreeMap<u32, u32> = (0..50).map(|batch| (batch, 20)).collect();
        assert_eq!(batches(&store, queue), wanted);
    }
    let plain = Connection::open(folder.file()).expect("a connection");
    let sql = "select count(distinct generation) from tourbillon_timer";
    let generations = plain.query_row(sql, (), |row| row.get(0));
    assert_eq!(generations, Ok(3_000));
}

#[test]
fn a_process_killed_in_a_transaction_leaves_nothing_and_frees_the_lock() {
    let folder = Folder::new();
    let store = folder.store();
    let mut holder = child(&program(), "hold", &folder.file(), "")
        .spawn()
        .expect("a process");
    assert_eq!(lines(&mut holder).next().as_deref(), Some("written"));
    holder.kill().expect("killed");
    holder.wait().expect("an end");
    let mut connection = store.connect().expect("a connection");
    let timers = connection.list(&Page::first("q", 1_000)).expect("a list");
    assert_eq!(timers, []);
    let answers = connection.write(&[schedule_in("q", "k", HOUR)]);
    assert!(answers.expect("answers")[0].is_ok());
}

#[test]
fn a_process_killed_at_any_moment_leaves_whole_batches_and_all_that_were_acknowledged() {
    let folder = Folder::new();
    for round in 0..10 {
        let queue = format!("round{round}");
        let word = format!("{queue} {}", u32::MAX);
        let mut writer = child(&program(), "hammer", &folder.file(), &word)
            .spawn()
            .expect("a process");
        // Killed while it writes the next batch, or says so.
        let mut said = lines(&mut writer);
        let mut heard: Vec<String> = said.by_ref().take(3 + round).collect();
        writer.kill().expect("killed");
        writer.wait().expect("an end");
        heard.extend(said);
        let stored = batches(&folder.store(), &queue);
        assert!(stored.values().all(|timers| *timers == 20), "{stored:?}");
        let acknowledged = acknowledged(&heard, &queue);
        assert!(acknowledged.len() >= 3 + round);
        assert!(acknowledged.iter().all(|batch| stored.contains_key(batch)));
        // One more than was said at most: its answer was on the way.
        assert!(stored.len() <= acknowledged.len() + 1);
    }
}

#[test]
fn a_transaction_of_another_process_is_waited_for() {
    let folder = Folder::new();
    let store = folder.store().with_busy_limit(Duration::from_secs(60));
    let mut holder = child(&program(), "hold", &folder.file(), "")
        .spawn()
        .expect("a process");
    let mut said = lines(&mut holder);
    assert_eq!(said.next().as_deref(), Some("written"));
    // Reads do not wait.
    let mut connection = store.connect().expect("a connection");
    assert_eq!(connection.get("q", "half 0"), Ok(None));
    let impatient = store.clone().with_busy_limit(Duration::from_millis(20));
    let error = impatient
        .connect()
        .expect("a connection")
        .write(&[schedule_in("q", "k", HOUR)]);
    let error = error.expect_err("the lock is held");
    assert!(error.may_pass(), "{error}");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| connection.write(&[schedule_in("q", "k", HOUR)]));
        // Its input ends, and with it the process and its transaction.
        drop(holder.stdin.take());
        let answers = writer.join().expect("no panic").expect("answers");
        assert!(answers[0].is_ok());
    });
    assert!(holder.wait().expect("an end").success());
}

// === files that can't be written ===

/// A limit on the size of files, which the shell sets for the process that it becomes. Without the
/// trap the signal would end it.
#[cfg(unix)]
#[test]
fn a_file_that_can_not_grow_keeps_all_that_was_accepted() {
    let folder = Folder::new();
    drop(folder.store());
    let mut command = Command::new("sh");
    let script = r#"trap "" XFSZ; ulimit -f 1000; exec "$0" "$@""#;
    command.args(["-c", script]).arg(program());
    arguments(&mut command, "fill", &folder.file(), "");
    let lines = said(command);
    let error = lines.last().expect("an error");
    assert!(
        error.starts_with("error the store is unavailable"),
        "{error}"
    );
    let acknowledged = acknowledged(&lines, "q");
    let wanted: BTreeMap<u32, u32> = acknowledged.iter().map(|batch| (*batch, 20)).collect();
    assert!(wanted.len() > 1, "{lines:?}");
    assert_eq!(batches(&folder.store(), "q"), wanted);
}

/// What a task says on a disk of two megabytes. `None` without the right to mount one: the test
/// says that it was skipped.
#[cfg(target_os = "linux")]
fn on_a_small_disk(task: &str) -> Option<String> {
    let folder = Folder::new();
    let mut command = Command::new("unshare");
    let script = r#"mount -t tmpfs -o size=2m tmpfs "$0" || { echo "SAY skipped"; exit 0; }
                    exec "$@""#;
    command.args(["--mount", "sh", "-c", script]);
    command.arg(folder.path()).arg(program());
    arguments(&mut command, task, &folder.file(), "");
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() && !text.contains("SAY ") && !text.contains("running") {
        println!("skipped: a disk of its own needs the rights of root");
        return None;
    }
    if text.contains("SAY skipped") {
        println!("skipped: a disk of its own needs the right to mount");
        return None;
    }
    assert!(output.status.success(), "{output:?}");
    Some(text.into_owned())
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_keeps_all_that_was_accepted_and_goes_on_when_there_is_room() {
    let Some(text) = on_a_small_disk("no space") else {
        return;
    };
    assert!(
        text.contains("SAY error the store is unavailable: the disk is full"),
        "{text}"
    );
    assert!(text.contains("SAY went on"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_a_node_is_one_outage() {
    let Some(text) = on_a_small_disk("outage") else {
        return;
    };
    assert!(text.contains("SAY went on"), "{text}");
}

/// What this user may not write. Root may write everything, so the tests then run as somebody else.
#[cfg(unix)]
mod read_only {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    use super::*;

    /// The user `nobody`.
    const NOBODY: u32 = 65_534;

    /// Opens the file as a user without rights to it.
    fn opened(file: &Path) -> String {
        let is_root = Command::new("true").uid(NOBODY).status().is_ok();
        let mut command = if is_root {
            // The folder of this program may be closed to others.
            let program = file.with_extension("program");
            // By a process: a file that this one has open for writing can't be run, and a process
            // that another test starts meanwhile would have it open too.
            let copied = Command::new("cp")
                .arg(super::program())
                .arg(&program)
                .status();
            assert!(copied.is_ok_and(|status| status.success()));
            fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("set");
            let mut command = child(&program, "open", file, "");
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
            command
        } else {
            child(&super::program(), "open", file, "")
        };
        command.stderr(Stdio::inherit());
        let lines = said(command);
        lines.first().expect("an answer").clone()
    }

    /// A store in a folder that everybody can enter, with these rights.
    fn with_rights(of_file: u32, of_folder: u32) -> String {
        let place = std::env::temp_dir().join(format!(
            "read-only-{}-{of_file:o}-{of_folder:o}",
            std::process::id()
        ));
        fs::create_dir_all(&place).expect("a folder");
        let file = place.join("timers.db");
        drop(Sqlite::open(&file).expect("a store"));
        fs::set_permissions(&file, Permissions::from_mode(of_file)).expect("set");
        fs::set_permissions(&place, Permissions::from_mode(of_folder)).expect("set");
        let answer = opened(&file);
        fs::set_permissions(&place, Permissions::from_mode(0o755)).expect("set");
        fs::remove_dir_all(&place).expect("removed");
        answer
    }

    #[test]
    fn a_file_and_a_folder_that_can_be_written_are_opened() {
        assert_eq!(with_rights(0o666, 0o777), "opened");
    }

    #[test]
    fn a_file_that_can_not_be_written_is_refused() {
        let answer = with_rights(0o444, 0o777);
        assert!(answer.contains("may not write to the file"), "{answer}");
        assert!(answer.contains("timers.db"), "{answer}");
    }

    #[test]
    fn a_folder_that_can_not_be_written_is_refused() {
        let answer = with_rights(0o666, 0o555);
        assert!(
            answer.contains("can't be opened") || answer.contains("must be writable"),
            "{answer}"
        );
    }

    #[test]
    fn a_file_that_can_not_be_read_is_an_error() {
        let answer = with_rights(0o000, 0o777);
        assert!(
            answer.contains("may not read and write the file"),
            "{answer}"
        );
    }
}

#[test]
fn a_user_transaction_that_waits_for_a_store_gets_its_turn() {
    let folder = Folder::new();
    let word = format!("busy {}", u32::MAX);
    let mut writer = child(&program(), "hammer", &folder.file(), &word)
        .spawn()
        .expect("a process");
    let heard = lines(&mut writer);
    // The other process keeps writing: its pipe must be read.
    let (say, said) = mpsc::channel();
    let reader = std::thread::spawn(move || heard.for_each(|line| drop(say.send(line))));
    wait::next(&said);
    let store = folder.store();
    let mut shop = Connection::open(folder.file()).expect("a connection");
    shop.busy_timeout(Duration::from_secs(60)).expect("set");
    for number in 0..20 {
        let tx = shop
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .expect("a transaction");
        let key = format!("{number}");
        store
            .in_transaction(&tx)
            .schedule("mine", &key, HOUR, "x")
            .expect("scheduled");
        tx.commit().expect("a commit");
    }
    // Nor has the other one stopped.
    while said.try_recv().is_ok() {}
    wait::next(&said);
    writer.kill().expect("killed");
    writer.wait().expect("an end");
    reader.join().expect("no panic");
    let mut connection = folder.store().connect().expect("a connection");
    let mine = connection.list(&Page::first("mine", 100)).expect("a list");
    assert_eq!(mine.len(), 20);
}
