//! The command as people and scripts call it.

#[path = "kit/mod.rs"]
mod command;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use serde_json::Value;
use tourbillon_durable::{Cron, Due, Durable, DurableEvent, RetryPolicy, Sqlite, rusqlite};

use tourbillon_leases::{Leases, SqliteStore};

use command::{call, code, command, text};

const HOUR: Duration = Duration::from_secs(3_600);

/// A file with timers, in a folder that ends with the test.
struct Shop {
    folder: PathBuf,
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Shop {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("command-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        Shop { folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("shop.db")
    }

    fn timers(&self) -> Durable {
        let store = Sqlite::open(self.file()).expect("a store");
        Durable::builder(store).start().expect("it starts")
    }

    /// Makes dead letters of these keys in the queue `mail`.
    fn bury(&self, keys: &[&str]) {
        let (sender, dead) = mpsc::channel();
        let store = Sqlite::open(self.file()).expect("a store");
        let timers = Durable::builder(store)
            .poll_interval(Duration::from_millis(20))
            .on_event(move |event| {
                if let DurableEvent::Dead { .. } = event {
                    let _ = sender.send(());
                }
            })
            .handle("mail", |_: &Due<u64>| {
                Err::<(), _>("no such\u{1b}[2J address")
            })
            .retry(RetryPolicy::never())
            .start()
            .expect("it starts");
        for key in keys {
            let scheduled = timers.schedule("mail", key, Duration::ZERO, &7_u64);
            scheduled.wait().expect("it is accepted");
            wait::next(&dead);
        }
        timers.stop(HOUR).wait().expect("it stops");
    }

    fn call(&self, words: &[&str]) -> Output {
        let file = self.file();
        let mut all = vec!["--file", file.to_str().expect("a path")];
        all.extend(words);
        call(&all)
    }

    /// What a command prints that does what it is asked for.
    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let output = self.call(words);
        assert_eq!(
            (code(&output), text(&output.stderr).as_str()),
            (0, ""),
            "{words:?}"
        );
        text(&output.stdout)
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(words);
        serde_json::from_str(&self.ok(&all)).expect("it is JSON")
    }

    /// The exit code and the error of a command that fails.
    #[track_caller]
    fn fails(&self, words: &[&str]) -> (i32, String) {
        let output = self.call(words);
        (code(&output), text(&output.stderr))
    }
}

#[test]
fn timers_are_listed_shown_moved_hurried_and_cancelled() {
    let shop = Shop::new();
    let timers = shop.timers();
    for key in ["customer:7:1", "customer:7:2", "customer:8"] {
        timers
            .schedule("pay-by", key, HOUR, &key)
            .wait()
            .expect("it is accepted");
    }
    timers
        .schedule("remind", "customer:7", 2 * HOUR, &())
        .wait()
        .expect("it is accepted");
    let list = shop.ok(&["list"]);
    assert_eq!(list.lines().count(), 5, "{list}");
    assert!(
        list.lines()
            .nth(1)
            .expect("a line")
            .contains("waiting  pay-by  customer:7:1"),
        "{list}"
    );
    assert_eq!(
        shop.ok(&["list", "pay-by", "--keys", "customer:7:"])
            .lines()
            .count(),
        3
    );
    assert_eq!(shop.ok(&["list", "--limit", "2"]).lines().count(), 3);
    assert_eq!(
        shop.json(&["list", "--state", "overdue"]),
        serde_json::json!([])
    );
    let shown = shop.ok(&["show", "pay-by", "customer:8"]);
    assert!(shown.contains("payload     \"customer:8\""), "{shown}");
    assert_eq!(
        shop.json(&["show", "pay-by", "customer:8"])["payload"],
        "customer:8"
    );
    let moved = shop.json(&["move", "pay-by", "customer:8", "2031-12-24T18:00:00Z"]);
    assert_eq!(moved["due"], "2031-12-24T18:00:00Z");
    shop.ok(&["move", "pay-by", "customer:8", "30m"]);
    shop.ok(&["run-now", "pay-by", "customer:8"]);
    assert_eq!(
        shop.json(&["show", "pay-by", "customer:8"])["state"],
        "overdue"
    );
    let hurried = shop.json(&["run-now", "pay-by", "--keys", "customer:7:", "--yes"]);
    assert_eq!(
        (&hurried["done"], &hurried["running"]),
        (&Value::from(2), &Value::from(0))
    );
    assert_eq!(
        shop.json(&["list", "--state", "overdue"])
            .as_array()
            .expect("a list")
            .len(),
        3
    );
    shop.ok(&["cancel", "pay-by", "customer:8", "--yes"]);
    let cancelled = shop.json(&["cancel", "pay-by", "--keys", "customer:7:", "--yes"]);
    assert_eq!(cancelled["done"], 2);
    assert_eq!(shop.ok(&["list"]).lines().count(), 2);
}

#[test]
fn each_failure_has_its_code_and_says_what_to_do() {
    let shop = Shop::new();
    drop(shop.timers());
    for words in [
        &["show", "q", "k"][..],
        &["run-now", "q", "k"],
        &["cancel", "q", "k", "--yes"],
        &["move", "q", "k", "1h"],
    ] {
        let (code, error) = shop.fails(words);
        assert_eq!(code, 1, "{words:?}");
        assert!(
            error.contains("q k: there is no such timer") && error.contains("tourbillon dead"),
            "{error}"
        );
    }
    assert_eq!(shop.fails(&["revive", "7"]).0, 1);
    assert_eq!(shop.fails(&["discard", "7", "--yes"]).0, 1);
    for words in [
        &["cancel", "q", "k"][..],
        &["cancel", "q", "--keys", "k"],
        &["discard", "7"],
        &["discard", "--all"],
        &["revive", "--all"],
        &["revive", "7", "--all", "--yes"],
        &["run-now", "q"],
        &["run-now", "q", "k", "--keys", "k", "--yes"],
        &["move", "q", "k", "tomorrow"],
        &["list", "--limit", "0"],
        &["show", "", "k"],
        &["list", "--keys", "\u{7f}", "--state", "sleeping"],
        &["nonsense"],
    ] {
        let (code, error) = shop.fails(words);
        assert_eq!(code, 2, "{words:?}: {error}");
        assert!(!error.is_empty());
    }
    // The longest and the shortest limit.
    for limit in ["7000000d", "0s"] {
        let (code, error) = shop.fails(&["list", "--timeout", limit]);
        assert_eq!(code, if limit == "0s" { 3 } else { 0 }, "{limit}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
    // No store, two stores, and stores that are not there.
    let no_store = call(&["queues"]);
    assert_eq!(code(&no_store), 2);
    assert!(text(&no_store.stderr).contains("--file"));
    assert_eq!(code(&call(&["queues", "--file", "a", "--url", "b"])), 2);
    let nowhere = shop.folder.join("no.db");
    let refused = call(&["queues", "--file", nowhere.to_str().expect("a path")]);
    assert_eq!(code(&refused), 3);
    assert!(text(&refused.stderr).contains("there is no such file"));
    assert!(!nowhere.exists());
    let (code_of_prefix, error) = shop.fails(&["queues", "--prefix", "shop"]);
    assert_eq!(code_of_prefix, 3, "{error}");
    let refused = call(&[
        "queues",
        "--timeout",
        "1s",
        "--url",
        "postgres://user:secret@127.0.0.1:1/shop",
    ]);
    assert_eq!(code(&refused), 3);
    assert!(!text(&refused.stderr).contains("secret"));
}

#[test]
fn a_file_that_somebody_writes_to_is_read_and_a_change_is_an_error_in_time() {
    let shop = Shop::new();
    drop(shop.timers());
    let file = tourbillon_durable::rusqlite::Connection::open(shop.file()).expect("a connection");
    file.execute_batch("begin immediate").expect("it locks");
    assert_eq!(shop.json(&["list"]), serde_json::json!([]));
    for words in [
        &["pause", "q", "--timeout", "1s"][..],
        &["move", "q", "k", "1h", "--timeout", "1s"],
    ] {
        let (code, error) = shop.fails(words);
        assert_eq!(code, 3, "{words:?}: {error}");
        assert!(error.contains("1s") || error.contains("lock"), "{error}");
    }
    file.execute_batch("rollback").expect("it ends");
    shop.ok(&["pause", "q"]);
}

#[test]
fn locks_in_the_file_of_the_timers_are_listed() {
    let shop = Shop::new();
    let timers = shop.timers();
    let scheduled = timers.schedule("mail", "1", HOUR, &7_u64);
    scheduled.wait().expect("it is accepted");
    let file = shop.file();
    let locks = format!("sqlite:{}", file.display());
    let list = ["locks", "--locks", &*locks];
    // It makes neither tables nor a file.
    let (code, error) = shop.fails(&list);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("no tables of leases"), "{error}");
    let (code, error) = shop.fails(&["locks", "--locks", &format!("{locks}.other")]);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("no such file"), "{error}");
    let leases = Leases::new(SqliteStore::open(&file).expect("a store")).expect("leases");
    let guard = leases.lock("orders/42").wait().expect("it is free");
    let shown = shop.json(&list);
    assert_eq!(shown[0]["name"], "orders/42");
    assert_eq!(shown[0]["token"], guard.token());
    let (code, error) = shop.fails(&[&list[..], &["--locks-in", "other"]].concat());
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("--locks-in"), "{error}");
    // Neither of the two is in the way of the other.
    let scheduled = timers.schedule("mail", "2", HOUR, &7_u64);
    scheduled.wait().expect("it is accepted");
    guard.release().wait().expect("it is held");
    assert_eq!(shop.json(&list), Value::Array(Vec::new()));
    assert!(shop.ok(&["list"]).contains("mail"));
    timers.stop(HOUR).wait().expect("it stops");
}

#[test]
fn schedules_are_shown_in_words_whatever_sql_has_written() {
    let shop = Shop::new();
    let timers = shop.timers();
    let daily = Cron::new("0 6 * * *", "Europe/Berlin").expect("it is good");
    timers
        .schedule("invoices", "daily", daily, &())
        .wait()
        .expect("it is accepted");
    let list = shop.ok(&["list"]);
    assert!(list.contains("daily  0 6 * * * in Europe/Berlin"), "{list}");
    let shown = shop.ok(&["show", "invoices", "daily"]);
    for line in [
        "schedule    0 6 * * * in Europe/Berlin",
        "occurrence  20",
        "then        20",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(!shown.contains("last run"), "{shown}");
    let schedule = &shop.json(&["show", "invoices", "daily"])["schedule"];
    assert_eq!(schedule["zone"], "Europe/Berlin");
    assert_eq!(schedule["then"].as_array().expect("dates").len(), 4);
    shop.ok(&["pause", "invoices", "daily"]);
    assert_eq!(shop.json(&["show", "invoices", "daily"])["state"], "paused");
    let shown = shop.ok(&["show", "invoices", "daily"]);
    assert!(
        shown.contains("occurrence  none until the schedule is resumed"),
        "{shown}"
    );
    assert!(shown.contains("This schedule is paused"), "{shown}");
    timers
        .schedule("invoices", "once", HOUR, &())
        .wait()
        .expect("it is accepted");
    let list = shop.ok(&["list", "--schedules"]);
    assert!(
        list.contains("in Europe/Berlin, paused") && !list.contains("once"),
        "{list}"
    );
    assert_eq!(
        shop.json(&["list", "--schedules"])[0]["schedule"]["unnamed"],
        false
    );
    shop.ok(&["resume", "invoices", "daily"]);
    assert_eq!(
        shop.json(&["show", "invoices", "daily"])["state"],
        "waiting"
    );
    for verb in ["pause", "resume"] {
        let (_, error) = shop.fails(&[verb, "invoices", "once"]);
        assert!(error.contains("there is no such schedule"), "{error}");
    }
    let file = rusqlite::Connection::open(shop.file()).expect("it opens");
    let write = |cron: Value| {
        let meta = serde_json::json!({ "cron": cron }).to_string();
        file.execute("update tourbillon_timer set meta = ?1", [meta])
            .expect("written");
        let list = shop.ok(&["list"]);
        let shown = shop.ok(&["show", "invoices", "daily"]);
        let json = shop.ok(&["show", "invoices", "daily", "--json"]);
        assert!(
            !format!("{list}{shown}{json}").contains('\u{1b}'),
            "{shown}"
        );
        list + &shown
    };
    let last = serde_json::json!({ "at": "2026-12-01T05:00:00Z", "ended": "2026-12-01T05:00:07Z", "outcome": "\u{1b}[2J" });
    let shown = write(serde_json::json!({ "expression": "@daily", "zone": "UTC", "last": last }));
    assert!(
        shown
            .contains("last run    that of 2026-12-01T05:00:00Z: \\u{1b}[2J, 2026-12-01T05:00:07Z"),
        "{shown}"
    );
    let named = serde_json::json!({ "expression": "@daily", "zone": "UTC", "declared": true });
    assert!(write(named).contains("named by    no process that runs"));
    let list = shop.ok(&["list", "--schedules"]);
    assert!(list.contains("no process that runs names it"), "{list}");
    for cron in [
        serde_json::json!({ "expression": "\u{1b}[2J\r\n", "zone": "UTC" }),
        serde_json::json!({ "expression": [1], "zone": {} }),
        serde_json::json!({ "expression": "@daily", "zone": "\u{202e}/\u{1b}" }),
    ] {
        let shown = write(cron);
        assert!(shown.contains("unreadable schedule"), "{shown}");
        assert!(
            shown.contains("its schedule can't be followed: "),
            "{shown}"
        );
    }
    assert!(!write(serde_json::json!("@daily")).contains("schedule "));
}

#[test]
fn dead_letters_are_shown_revived_and_discarded() {
    let shop = Shop::new();
    shop.bury(&["a", "b", "c", "d"]);
    let dead = shop.ok(&["dead"]);
    assert_eq!(dead.lines().count(), 5, "{dead}");
    assert!(
        !dead.contains('\u{1b}') && dead.contains("no such\\u{1b}[2J address"),
        "{dead}"
    );
    let letters = shop.json(&["dead", "--queue", "mail"]);
    let id = |n: usize| letters[n]["id"].to_string();
    assert_eq!(
        (&letters[0]["key"], &letters[0]["payload"]),
        (&Value::from("a"), &Value::from(7))
    );
    assert_eq!(
        shop.json(&["dead", "--after", &id(2)])
            .as_array()
            .expect("a list")
            .len(),
        1
    );
    assert_eq!(
        shop.json(&["dead", "--older-than", "1h"]),
        serde_json::json!([])
    );
    shop.ok(&["revive", &id(0)]);
    let (code, error) = shop.fails(&["revive", &id(0)]);
    assert_eq!(
        (code, error.contains("no such dead letter")),
        (1, true),
        "{error}"
    );
    shop.timers()
        .schedule("mail", "b", HOUR, &7_u64)
        .wait()
        .expect("it is accepted");
    let (code, error) = shop.fails(&["revive", &id(1)]);
    assert_eq!(
        (code, error.contains("has a timer again")),
        (1, true),
        "{error}"
    );
    let report = shop.json(&["revive", "--queue", "mail", "--yes"]);
    assert_eq!(
        (&report["revived"], &report["exist"]),
        (&Value::from(2), &Value::from(1))
    );
    shop.ok(&["discard", &id(1), "--yes"]);
    // An empty prefix is that of all keys.
    assert_eq!(
        shop.json(&["cancel", "mail", "--keys", "", "--yes"])["done"],
        4
    );
    shop.bury(&["x", "y"]);
    assert_eq!(
        shop.json(&["discard", "--keys", "x", "--yes"])["discarded"],
        1
    );
    assert_eq!(shop.json(&["discard", "--all", "--yes"])["discarded"], 1);
}

#[test]
fn queues_nodes_and_checks_tell_why_a_timer_has_not_run() {
    let shop = Shop::new();
    let timers = shop.timers();
    assert_eq!(shop.ok(&["check"]), "ok: 0 queues, 0 processes\n");
    timers
        .schedule("pay-by", "k", Duration::ZERO, &1)
        .wait()
        .expect("it is accepted");
    // Nobody has a handler.
    let output = shop.call(&["check"]);
    assert_eq!(code(&output), 1);
    assert!(
        text(&output.stdout).contains("pay-by: 1 due timers, and no process handles the queue")
    );
    // The queue is paused.
    shop.ok(&["pause", "pay-by"]);
    let queues = shop.ok(&["queues"]);
    assert!(
        queues.lines().nth(1).expect("a queue").ends_with("paused"),
        "{queues}"
    );
    assert!(
        shop.ok(&["check"])
            .contains("pay-by: paused, with 1 due timers")
    );
    assert_eq!(shop.json(&["list"])[0]["state"], "paused");
    let store = Sqlite::open(shop.file()).expect("a store");
    let (sender, ran) = mpsc::channel();
    let node = Durable::builder(store)
        .name("shop-1")
        .poll_interval(Duration::from_millis(20))
        .handle("pay-by", move |_: &Due<u64>| {
            let _ = sender.send(());
        })
        .start()
        .expect("it starts");
    wait::until("it has joined", || {
        shop.json(&["nodes"])[0]["name"] == "shop-1"
    });
    assert!(shop.ok(&["nodes"]).contains("pay-by"));
    shop.ok(&["resume", "pay-by"]);
    wait::next(&ran);
    wait::until("it is settled", || {
        shop.json(&["list"]) == serde_json::json!([])
    });
    assert!(shop.ok(&["check"]).starts_with("ok: "));
    node.stop(HOUR).wait().expect("it stops");
    assert_eq!(shop.json(&["nodes"]), serde_json::json!([]));
    assert_eq!(
        shop.json(&["nodes", "--all"])
            .as_array()
            .expect("a list")
            .len(),
        1
    );
}

#[test]
fn a_process_that_is_silent_is_no_fault_until_its_queue_is_behind() {
    let shop = Shop::new();
    drop(shop.timers());
    // A process with a lease of an hour, whose beat was minutes ago, and a timer that is due.
    let file = tourbillon_durable::rusqlite::Connection::open(shop.file()).expect("a connection");
    let now = "cast((julianday('now') - 2440587.5) * 86400000.0 as integer) * 1000";
    let rows = format!(
        "insert into tourbillon_node(epoch, name, queues, joined, beat_at)
         values (1, 'shop-1', '[\"pay-by\"]', {now} - 900000000, {now} - 300000000);
         insert into tourbillon_timer(queue, key, shard, due, planned, generation, payload)
         values ('pay-by', 'k', 0, {now} - 20000000, {now}, 1, '1');"
    );
    file.execute_batch(&rows).expect("written");
    assert!(shop.ok(&["check"]).starts_with("ok: "));
    let output = shop.call(&["check", "--behind", "10s"]);
    let text = text(&output.stdout);
    assert_eq!(code(&output), 1);
    assert!(
        text.contains("pay-by: behind by ") && text.contains("was seen 5m"),
        "{text}"
    );
}

#[test]
fn watch_draws_what_fits_and_ends() {
    let shop = Shop::new();
    let timers = shop.timers();
    for n in 0..100 {
        let queue = format!("queue {}", n % 20);
        timers
            .schedule(&queue, &format!("{}{n}", "key ".repeat(30)), HOUR, &n)
            .wait()
            .expect("it is accepted");
    }
    let drawn = shop.ok(&["watch", "--times", "2", "--every", "0s"]);
    let screens: Vec<&str> = drawn.split("Ctrl-C ends it").collect();
    assert_eq!(screens.len(), 3);
    assert!(drawn.lines().count() <= 2 * 23, "{drawn}");
    assert!(
        drawn.lines().all(|line| line.chars().count() <= 80),
        "{drawn}"
    );
    assert!(
        drawn.contains("and 12 queues more") && drawn.contains("waiting"),
        "{drawn}"
    );
    // It shows what is wrong, and goes on.
    drop(timers);
    std::fs::remove_file(shop.file()).expect("it was there");
    assert_eq!(shop.fails(&["watch", "--times", "1"]).0, 3);
}

#[test]
fn the_output_may_end_early_and_needs_no_store_for_some() {
    let shop = Shop::new();
    let timers = shop.timers();
    let many = (0..2_000).map(|n| (format!("key {n}"), HOUR, n));
    timers
        .schedule_many("q", many)
        .wait()
        .expect("they are accepted");
    let mut child = command()
        .args([
            "--file",
            shop.file().to_str().expect("a path"),
            "list",
            "--limit",
            "10000",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // Nobody reads.
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""));
    let schema = call(&["schema", "--schema", "shop"]);
    assert!(text(&schema.stdout).contains("create table \"shop\".timer"));
    assert_eq!(code(&call(&["schema", "--schema", "a b"])), 3);
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            text(&call(&["completions", shell]).stdout).contains("run-now"),
            "{shell}"
        );
    }
    for words in [&["--help"][..], &["--version"], &["cancel", "--help"]] {
        assert_eq!(code(&call(words)), 0);
    }
}
