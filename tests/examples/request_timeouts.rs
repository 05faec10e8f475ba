//! The example `request_timeouts`: its client on the stepped scheduler, step by step, and the program
//! itself.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::client::{ATTEMPTS, Client, Request, Summary, patience};
use kit::program;
use tourbillon::test_util::Stepped;
use tourbillon::{Scheduler, Shutdown};

const MOMENT: Duration = Duration::from_nanos(1);

/// A client of so many requests, all sent, and the network in between.
struct Setting {
    scheduler: Stepped<u64>,
    client: Arc<Client>,
    network: Sender<Request>,
    arrived: Receiver<Request>,
}

fn sent(requests: u64) -> Setting {
    let scheduler = Scheduler::<u64>::builder().build_stepped(1).unwrap();
    let client = Arc::new(Client::new(scheduler.handle(), requests));
    let (network, arrived) = channel();
    for id in 0..requests {
        client.send(&network, id);
    }
    Setting {
        scheduler,
        client,
        network,
        arrived,
    }
}

impl Setting {
    /// What came to the server since the last look, sorted by id.
    fn arrived(&self) -> Vec<(u64, u32)> {
        let arrived = self.arrived.try_iter();
        let mut arrived: Vec<_> = arrived
            .map(|request| (request.id, request.attempt))
            .collect();
        arrived.sort_unstable();
        arrived
    }

    /// Answered, timed out, sent again, answered too late. What must hold of any holds.
    fn summary(&self) -> [u64; 4] {
        let Summary {
            answered,
            timed_out,
            retries,
            late_answers,
            twice,
            ..
        } = self.client.summary();
        assert_eq!(twice, 0);
        let stats = self.client.timers.stats();
        assert!(stats.balances() && stats.panicked == 0);
        [answered, timed_out, retries, late_answers]
    }
}

#[test]
fn an_answer_in_time_cancels_the_timeout() {
    let setting = sent(2);
    assert_eq!(setting.arrived(), [(0, 1), (1, 1)]);
    setting.scheduler.advance(patience(1) - MOMENT);
    setting.client.answered(0);
    setting.client.answered(1);
    assert!(setting.client.timers.is_empty());
    // Once more is once too often.
    setting.client.answered(1);
    setting.scheduler.advance(10 * patience(ATTEMPTS));
    assert_eq!(setting.summary(), [2, 0, 0, 1]);
    assert!(setting.client.summary().complaints().is_empty());
    assert_eq!(setting.arrived(), []);
}

#[test]
fn who_hears_nothing_asks_again_and_gives_up_in_the_end() {
    let setting = sent(2);
    for attempt in 1..=ATTEMPTS {
        assert_eq!(setting.arrived(), [(0, attempt), (1, attempt)]);
        setting.scheduler.advance(patience(attempt) - MOMENT);
        assert_eq!(setting.arrived(), []);
        assert_eq!(setting.client.summary().complaints().len(), 1);
        setting.scheduler.advance(MOMENT);
    }
    assert_eq!(setting.summary(), [0, 2, 4, 0]);
    assert!(setting.client.timers.is_empty());
    setting.client.answered(0);
    assert_eq!(setting.summary(), [0, 2, 4, 1]);
    // No timeout holds the network any more.
    drop(setting.network);
    assert!(setting.arrived.recv().is_err());
}

#[test]
fn an_answer_to_an_earlier_attempt_is_an_answer() {
    let setting = sent(1);
    setting.scheduler.advance(patience(1) + patience(2) / 2);
    assert_eq!(setting.arrived(), [(0, 1), (0, 2)]);
    setting.client.answered(0);
    // That of the second attempt comes for nothing.
    setting.client.answered(0);
    setting.scheduler.advance(10 * patience(ATTEMPTS));
    assert_eq!(setting.summary(), [1, 0, 1, 1]);
}

#[test]
fn what_is_due_and_has_not_run_can_still_be_answered() {
    let setting = sent(1);
    // Nothing has run yet.
    setting.scheduler.clock().advance(patience(1));
    setting.client.answered(0);
    setting.scheduler.settle();
    assert_eq!(setting.summary(), [1, 0, 0, 0]);
}

#[test]
fn who_may_not_wait_gives_up_at_once() {
    let setting = sent(1);
    setting.scheduler.shutdown(Shutdown::HandBack);
    let (network, _arrived) = channel();
    let client = Arc::new(Client::new(setting.scheduler.handle(), 1));
    client.send(&network, 0);
    let summary = client.summary();
    assert_eq!((summary.timed_out, summary.retries), (1, 0));
    assert!(summary.complaints().is_empty());
}

#[test]
fn the_program_itself_ends_well_and_prints_what_the_readme_says() {
    let output = Command::new(program::example("request_timeouts"))
        .output()
        .expect("the example is built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), &*err), (Some(0), ""), "{out}");
    // The rest of the line is the same on a machine that never stands still for long.
    let always = "requests 10000 answered 9900 timed_out 100 ";
    assert!(out.starts_with(always), "{out}");
    assert_eq!(out.lines().count(), 1);
    let readme = include_str!("../../README.md");
    assert!(readme.contains(always), "the README shows another line");
}
