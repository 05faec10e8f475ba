//! The page that the command serves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tourbillon_durable::{Durable, Sqlite};

const HOUR: Duration = Duration::from_secs(3_600);

/// A file with one timer, in a folder that ends with the test.
struct Shop(PathBuf);

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Shop {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("serve-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let shop = Shop(folder);
        let scheduled = shop.timers().schedule("pay-by", "order:7", HOUR, "secret");
        scheduled.wait().expect("it is accepted");
        shop
    }

    fn timers(&self) -> Durable {
        let store = Sqlite::open(self.0.join("shop.db")).expect("a store");
        Durable::builder(store).start().expect("it starts")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tourbillon"));
        for name in [
            "TOURBILLON_URL",
            "TOURBILLON_FILE",
            "TOURBILLON_PASSWORD",
            "TOURBILLON_LOCKS",
        ] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
            .arg("--file")
            .arg(self.0.join("shop.db"))
            .arg("serve")
            .args(words);
        command
    }

    fn fails(&self, words: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.command(words).output().expect("it starts");
        (
            status.code(),
            String::from_utf8(stderr).expect("it is text"),
        )
    }
}

/// A page that is served, until it is dropped.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start(mut command: Command) -> Self {
        command
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output"))
            .read_line(&mut line)
            .expect("it says something");
        let address = line
            .trim()
            .trim_start_matches("http://")
            .trim_end_matches('/');
        let address = address
            .parse()
            .unwrap_or_else(|_| panic!("it says its address: {line}"));
        Served { child, address }
    }

    /// Sends a request, and returns its answer with the headers.
    fn ask(&self, request: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut server = TcpStream::connect(self.address).expect("it listens");
        let mut text = format!(
            "{request} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        let is_named = headers.iter().any(|(name, _)| *name == "Host");
        if !is_named {
            text += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        server
            .write_all(format!("{text}\r\n{body}").as_bytes())
            .expect("it reads");
        let mut answer = String::new();
        server.read_to_string(&mut answer).expect("it answers");
        answer
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path}"), &[], "")
    }

    fn cancel(&self, headers: &[(&str, &str)]) -> String {
        let all = [headers, &[("Content-Type", "application/json")]].concat();
        let order = r#"{"action": "cancel", "queue": "pay-by", "key": "order:7"}"#;
        self.ask("POST /api/v1/do", &all, order)
    }

    /// Ends it as an operator does, and returns its exit code and what it has logged.
    fn end(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .arg(&id)
                .status()
                .expect("kill")
                .success()
        );
        let code = self.child.wait().expect("it ends").code();
        let mut log = String::new();
        self.child
            .stderr
            .take()
            .expect("its log")
            .read_to_string(&mut log)
            .expect("it is text");
        (code, log)
    }
}

#[test]
fn everybody_on_this_machine_may_read_and_nobody_may_act() {
    let shop = Shop::new("read");
    let served = Served::start(shop.command(&[]));
    assert!(served.get("/").contains("pay-by"));
    let timer = served.get("/timer?queue=pay-by&key=order:7");
    assert!(timer.contains("It is due in") && !timer.contains("secret"));
    assert!(served.cancel(&[]).starts_with("HTTP/1.1 403"));
    // A site whose name leads to this machine.
    assert!(
        served
            .ask("GET /", &[("Host", "evil.test")], "")
            .starts_with("HTTP/1.1 403")
    );
    assert!(
        served
            .ask("GET /", &[("Host", "localhost:1")], "")
            .starts_with("HTTP/1.1 200")
    );
    // A live page does not hold it up.
    let mut live = TcpStream::connect(served.address).expect("it listens");
    live.write_all(b"GET /live/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("it reads");
    live.read_exact(&mut [0; 200]).expect("it answers");
    assert_eq!(served.end(), (Some(0), String::new()));
    assert!(
        shop.timers()
            .get("pay-by", "order:7")
            .wait()
            .expect("it answers")
            .is_some()
    );
}

#[test]
fn who_has_the_password_may_do_what_is_allowed() {
    let shop = Shop::new("act");
    let mut command = shop.command(&["--allow", "cancel,run-now", "--show-payloads"]);
    command.env("TOURBILLON_PASSWORD", "correct horse");
    let served = Served::start(command);
    assert!(served.get("/").starts_with("HTTP/1.1 401"));
    assert!(served.get("/healthz").ends_with("alive\n"));
    let anna = ("Authorization", "Basic YW5uYTpjb3JyZWN0IGhvcnNl");
    let timer = served.ask("GET /timer?queue=pay-by&key=order:7", &[anna], "");
    assert!(timer.contains("secret") && timer.contains("anna"));
    let pause = r#"{"action": "pause", "queue": "pay-by"}"#;
    let json = ("Content-Type", "application/json");
    assert!(
        served
            .ask("POST /api/v1/do", &[anna, json], pause)
            .starts_with("HTTP/1.1 403")
    );
    assert!(served.cancel(&[anna]).contains("the timer is cancelled"));
    let (code, log) = served.end();
    assert_eq!(code, Some(0));
    assert_eq!(
        log,
        "anna: timers cancel pay-by order:7: the timer is cancelled\n"
    );
}

#[test]
fn what_can_not_be_served_is_told() {
    let shop = Shop::new("refused");
    let open = shop.fails(&["--listen", "0.0.0.0:0"]);
    assert_eq!(open.0, Some(2));
    assert!(
        open.1.contains("TOURBILLON_PASSWORD") && open.1.contains("--no-auth"),
        "{}",
        open.1
    );
    let empty = shop
        .command(&["--listen", "0.0.0.0:0"])
        .env("TOURBILLON_PASSWORD", "")
        .output()
        .expect("it starts");
    assert_eq!(empty.status.code(), Some(2));
    let served = Served::start(shop.command(&[]));
    let taken = shop.fails(&["--listen", &served.address.to_string()]);
    assert!(
        taken.0 == Some(2) && taken.1.contains("can't be served"),
        "{}",
        taken.1
    );
    let unknown = shop.fails(&["--allow", "explode"]);
    assert!(
        unknown.0 == Some(2) && unknown.1.contains("run-now"),
        "{}",
        unknown.1
    );
    assert_eq!(shop.fails(&["--listen", "nowhere"]).0, Some(2));
    assert_eq!(shop.fails(&["--no-auth", "--password", "x"]).0, Some(2));
    let missing = Command::new(env!("CARGO_BIN_EXE_tourbillon"))
        .args(["--file", "/nowhere/shop.db", "serve"])
        .output()
        .expect("it starts");
    assert_eq!(missing.status.code(), Some(3));
}

#[test]
fn a_file_that_goes_away_is_told_on_the_page() {
    let shop = Shop::new("gone");
    let served = Served::start(shop.command(&[]));
    assert!(served.get("/").contains("pay-by"));
    for file in std::fs::read_dir(&shop.0).expect("the folder") {
        std::fs::remove_file(file.expect("a file").path()).expect("it is removed");
    }
    let told = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        served.get("/").contains("The store does not answer")
    });
    assert!(told);
}
