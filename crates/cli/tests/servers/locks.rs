//! Locks on Redis and PostgreSQL servers.

use chaos::servers::redis::Server;
use serde_json::Value;
use tourbillon_leases::{LeaseGuard, Leases, PostgresStore, RedisStore};

use crate::command::{call, code, command, text};
use crate::fails;
use crate::postgres::lent;

/// Names that would move the cursor of a terminal, turn a line, or look like patterns.
const HOSTILE: &str = "a\u{1b}[2Jb\r\n\t\u{9b}1m\u{7}\u{202e}c";

fn holder(server: &Server, names: &[&str]) -> (Leases, Vec<LeaseGuard>) {
    let store = RedisStore::builder(&server.url()).durable().build();
    let leases = Leases::builder(store.expect("a store")).holder_data("billing 1.4");
    let leases = leases.build().expect("leases");
    let guards = names.iter().map(|name| leases.lock(name).at_once().wait());
    let guards = guards.collect::<Result<_, _>>().expect("they are free");
    (leases, guards)
}

#[track_caller]
fn ok(server: &Server, words: &[&str]) -> String {
    let url = server.url();
    let output = call(&[&["locks", "--locks", &*url], words].concat());
    let ended = (code(&output), text(&output.stderr));
    assert_eq!(ended, (0, String::new()), "{words:?}");
    text(&output.stdout)
}

#[track_caller]
fn names(server: &Server, words: &[&str]) -> Vec<String> {
    let printed = ok(server, &[&["--json"], words].concat());
    let locks: Vec<Value> = serde_json::from_str(&printed).expect("it is JSON");
    let name = |lock: &Value| lock["name"].as_str().expect("a name").to_owned();
    locks.iter().map(name).collect()
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn locks_are_listed_with_their_holders() {
    let server = Server::start();
    assert_eq!(ok(&server, &[]).lines().count(), 1);
    assert_eq!(ok(&server, &["--json"]), "[]\n");
    let all = ["mail/1", "mail/2", "m", "pay*[x]?", "日本"];
    let (_leases, mut guards) = holder(&server, &all);
    let owner = guards[0].id().owner().to_owned();
    let token = guards[0].id().token();
    let list = ok(&server, &["--names", "mail/1"]);
    let line = list.lines().nth(1).expect("a lock");
    for word in [
        "mail/1",
        &*owner,
        &token.to_string(),
        "exclusive",
        "billing 1.4",
    ] {
        assert!(line.contains(word), "{word}: {line}");
    }
    let listed: Value =
        serde_json::from_str(&ok(&server, &["--json", "--names", "mail/1"])).expect("it is JSON");
    let lock = &listed[0];
    assert_eq!(
        (&lock["name"], &lock["owner"], &lock["token"], &lock["data"]),
        (
            &Value::from("mail/1"),
            &Value::from(owner),
            &Value::from(token),
            &Value::from("billing 1.4")
        )
    );
    assert_eq!(
        (&lock["mode"], &lock["holders"]),
        (&Value::from("exclusive"), &Value::from(1))
    );
    let remaining = lock["remaining_ms"].as_u64().expect("a number");
    assert!((1..=30_000).contains(&remaining), "{remaining}");
    assert_eq!(
        names(&server, &[]),
        ["m", "mail/1", "mail/2", "pay*[x]?", "日本"]
    );
    assert_eq!(names(&server, &["--names", "mail/"]), ["mail/1", "mail/2"]);
    // A prefix is no pattern.
    assert_eq!(names(&server, &["--names", "pay*["]), ["pay*[x]?"]);
    assert_eq!(names(&server, &["--names", "m*"]), [""; 0]);
    assert_eq!(names(&server, &["--limit", "2"]).len(), 2);
    assert_eq!(names(&server, &["--limit", "4000000000"]).len(), 5);
    for timeout in ["1ms", "20s", "1h", "7000000d"] {
        let url = server.url();
        let output = call(&["locks", "--locks", &url, "--timeout", timeout]);
        // A millisecond may be too short, and nothing is too long.
        if timeout != "1ms" {
            let ended = (code(&output), text(&output.stderr));
            assert_eq!(ended, (0, String::new()), "{timeout}");
        }
    }
    guards.remove(0).release().wait().expect("it was held");
    assert_eq!(names(&server, &["--names", "mail/"]), ["mail/2"]);
    let mut list = command();
    list.args(["locks", "--names", "m"])
        .env("TOURBILLON_LOCKS", server.url());
    let output = list.output().expect("it starts");
    assert_eq!(
        (code(&output), text(&output.stdout).lines().count()),
        (0, 3)
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn no_name_of_a_lock_writes_to_a_terminal() {
    let server = Server::start();
    let (_leases, _guards) = holder(&server, &[HOSTILE]);
    let table = ok(&server, &[]);
    assert_eq!(table.lines().count(), 2, "{table}");
    for printed in [table, ok(&server, &["--json"])] {
        let printed = printed.trim_end();
        assert!(!printed.contains(|letter: char| letter != '\n' && letter.is_control()));
        assert!(!printed.contains('\u{202e}'), "{printed}");
    }
    assert_eq!(names(&server, &["--names", "a\u{1b}"]), [HOSTILE]);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_hangs_refuses_or_is_another_one_is_an_error() {
    let server = Server::start();
    let url = server.url();
    let (_leases, _guards) = holder(&server, &["a"]);
    for wrong in [
        "",
        "sesame",
        "http://:sesame@127.0.0.1/",
        "redis://:sesame@127.0.0.1:x/",
    ] {
        let (code, error) = fails(&["locks", "--locks", wrong]);
        assert_eq!(code, 3, "{wrong}: {error}");
        assert!(
            error.contains("URL") && !error.contains(":sesame@"),
            "{error}"
        );
    }
    let (code, error) = fails(&["locks", "--locks", &url, "--limit", "0"]);
    assert_eq!(code, 2, "{error}");
    let (code, _) = fails(&["locks"]);
    assert_eq!(code, 2);
    server.stop();
    let (code, error) = fails(&["locks", "--locks", &url, "--timeout", "1s"]);
    assert_eq!((code, error.contains("store")), (3, true), "{error}");
    server.resume();
    server.cli(&["CONFIG", "SET", "requirepass", "p:w"]);
    for user in ["", ":sesame@", "nobody:sesame@"] {
        let url = url.replace("127.", &format!("{user}127."));
        let (code, error) = fails(&["locks", "--locks", &url]);
        assert_eq!(code, 3, "{error}");
        let refused = error.contains("NOAUTH") || error.contains("WRONGPASS");
        assert!(refused && !error.contains("sesame"), "{error}");
    }
    let right = url.replace("127.", ":p%3Aw@127.");
    let output = call(&["locks", "--locks", &right]);
    assert_eq!((code_of(&output), text(&output.stderr)), (0, String::new()));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn locks_under_another_prefix_are_listed_by_its_name() {
    let server = Server::start();
    let store = RedisStore::builder(&server.url()).prefix("shop").durable();
    let leases = Leases::new(store.build().expect("a store")).expect("leases");
    let _guard = leases.lock("a").wait().expect("it is free");
    assert_eq!(names(&server, &[]), [""; 0]);
    assert_eq!(names(&server, &["--locks-in", "shop"]), ["a"]);
    let (code, error) = fails(&["locks", "--locks-in", "shop"]);
    assert_eq!(code, 2, "{error}");
    let (code, error) = fails(&["locks", "--locks", &server.url(), "--locks-in", "{"]);
    assert_eq!(code, 3, "{error}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn locks_in_a_database_are_listed() {
    let database = lent();
    let url = database.url();
    // It makes no tables.
    let (code, error) = fails(&["locks", "--locks", &url]);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("tables"), "{error}");
    let mut holders = Vec::new();
    for schema in ["tourbillon_leases", "shop"] {
        let store = PostgresStore::builder(&url).schema(schema).build();
        let leases = Leases::new(store.expect("a store")).expect("leases");
        let guard = leases.lock(&format!("{schema}/1")).wait();
        holders.push((guard.expect("it is free"), leases));
    }
    for (words, name) in [
        (&[][..], "tourbillon_leases/1"),
        (&["--locks-in", "shop"], "shop/1"),
    ] {
        let output = call(&[&["locks", "--json", "--locks", &*url], words].concat());
        assert_eq!(code_of(&output), 0, "{}", text(&output.stderr));
        let locks: Vec<Value> = serde_json::from_str(&text(&output.stdout)).expect("it is JSON");
        let listed: Vec<_> = locks.iter().map(|lock| &lock["name"]).collect();
        assert_eq!(listed, [name]);
    }
    let wrong = format!("{url}&nonsense=1");
    let (code, error) = fails(&["locks", "--locks", &wrong]);
    assert_eq!(code, 3, "{error}");
}

fn code_of(output: &std::process::Output) -> i32 {
    code(output)
}
