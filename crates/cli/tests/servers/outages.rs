//! Servers that are not there, hang, or go away and come back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use chaos::proxy::{Proxy, Trouble, Way};
use kit::wait;

use crate::command::{call, code, command, text};
use crate::fails;
use crate::postgres::{HOUR, lent, timers};

/// A server that accepts connections, answers this, and then nothing any more.
fn answers_with(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 1_024]);
                let _ = stream.write_all(answer);
                // Until the other side has gone.
                while matches!(stream.read(&mut [0; 1_024]), Ok(1..)) {}
            });
        }
    });
    port
}

#[test]
fn a_server_that_answers_nothing_or_nonsense_is_an_error_in_time() {
    for answer in [
        &b""[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-ERR no\r\n",
    ] {
        let port = answers_with(answer);
        // By default an address has five seconds, and here a minute.
        let postgres = format!("postgres://app@127.0.0.1:{port}/shop?connect_timeout=60");
        let redis = format!("redis://127.0.0.1:{port}/");
        // Beside each other, since each waits for a second.
        thread::scope(|scope| {
            for words in [
                vec!["list", "--url", &*postgres],
                vec!["pause", "q", "--url", &*postgres],
                vec!["watch", "--times", "1", "--url", &*postgres],
                vec!["check", "--json", "--url", &*postgres],
                vec!["locks", "--locks", &*redis],
            ] {
                scope.spawn(move || {
                    let (code, error) = fails(&[&["--timeout", "1s"], &*words].concat());
                    assert_eq!(code, 3, "{words:?}: {error}");
                    assert!(error.starts_with("tourbillon: "), "{words:?}: {error}");
                });
            }
        });
    }
}

#[test]
fn no_server_is_an_error_at_once_also_without_and_with_all_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let postgres = format!("postgres://app@127.0.0.1:{port}/shop");
    let redis = format!("redis://127.0.0.1:{port}/");
    for timeout in ["0s", "1ms", "20s", FOREVER] {
        for words in [
            &["--url", &*postgres, "queues"][..],
            &["locks", "--locks", &*redis],
        ] {
            let (code, error) = fails(&[&["--timeout", timeout], words].concat());
            assert_eq!(code, 3, "{timeout} {words:?}: {error}");
            assert!(error.contains("store"), "{timeout} {words:?}: {error}");
        }
    }
}

/// Nearly as long as a span can be.
const FOREVER: &str = "7000000d";

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn no_limit_is_too_long() {
    let database = lent();
    let timers = timers(&database);
    let url = database.url();
    for key in ["a", "b"] {
        let scheduled = timers.schedule("q", key, HOUR, &1);
        scheduled.wait().expect("it is accepted");
    }
    for words in [
        &["list"][..],
        &["move", "q", "a", FOREVER],
        &["pause", "q"],
        &["move", "q", "a", "1h"],
        &["cancel", "q", "--keys", "", "--yes"],
        &["watch", "--times", "1", "--every", FOREVER],
        &["check", "--behind", FOREVER],
        &["dead", "--older-than", FOREVER],
    ] {
        let output = call(&[&["--url", &*url, "--timeout", FOREVER], words].concat());
        let error = text(&output.stderr);
        // Only the time of a timer has an end.
        let expected = if words.contains(&"a") && words.contains(&FOREVER) {
            2
        } else {
            0
        };
        assert_eq!(code(&output), expected, "{words:?}: {error}");
        assert!(!error.contains("panicked"), "{words:?}: {error}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_locked_timer_is_an_error_in_time() {
    let database = lent();
    let timers = timers(&database);
    let scheduled = timers.schedule("q", "k", HOUR, &1);
    scheduled.wait().expect("it is accepted");
    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    transaction
        .batch_execute("select from tourbillon.timer for update")
        .expect("it locks");
    let url = database.url();
    for words in [
        &["move", "q", "k", "2h"][..],
        &["run-now", "q", "k"],
        &["cancel", "q", "k", "--yes"],
    ] {
        let (code, error) = fails(&[&["--url", &*url, "--timeout", "1s"], words].concat());
        assert_eq!(code, 3, "{words:?}: {error}");
    }
    transaction.rollback().expect("it ends");
}

/// The lines of a command that goes on.
struct Watch {
    child: Child,
    lines: Receiver<String>,
}

impl Watch {
    fn start(words: &[&str]) -> Self {
        let mut watch = command();
        let mut child = watch
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = child.stdout.take().expect("a pipe");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        Watch { child, lines }
    }

    /// Waits for a line that has these words.
    #[track_caller]
    fn shows(&self, words: &str) {
        while !wait::next(&self.lines).contains(words) {}
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn watch_shows_an_outage_and_goes_on_after_it() {
    let database = lent();
    let timers = timers(&database);
    let scheduled = timers.schedule("pay-by", "k", HOUR, &1);
    scheduled.wait().expect("it is accepted");
    let server = ([127, 0, 0, 1], database.port()).into();
    let proxy = Proxy::before(server, Duration::ZERO).expect("a port");
    let url = database.url_by(proxy.port());
    let watch = Watch::start(&["--url", &url, "--timeout", "1s", "watch", "--every", "0s"]);
    for trouble in [Trouble::Cut, Trouble::Hold, Trouble::Swallow] {
        watch.shows("waiting  pay-by  k");
        proxy.begin(trouble, Way::Both);
        // The queue of the screen may be one of before.
        let said = match trouble {
            Trouble::Cut => "the store is unavailable",
            _ => "no answer within 1s",
        };
        watch.shows(said);
        proxy.end();
    }
    watch.shows("waiting  pay-by  k");
}
