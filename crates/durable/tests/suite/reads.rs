//! What users read.

use std::time::Duration;

use tourbillon_durable::DueAt;
use tourbillon_durable::store::{Action, Outcome, PAGE_BYTES, Page, QueueCounts, StoreTime, Timer};

use crate::client::{Bench, NOW, QUEUE, call, schedule, schedule_text};

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn an_empty_store_has_nothing_to_read(bench: &Bench) {
    let mut client = bench.client();
    assert_eq!(client.get("k"), None);
    assert_eq!(client.list(&Page::first(QUEUE, 10)), []);
    assert_eq!(client.counts(), []);
    assert_eq!(client.dead(), []);
}

pub(crate) fn get_reads_one_timer_of_one_queue(bench: &Bench) {
    let mut client = bench.client();
    client.due("k");
    assert_eq!(client.get("K"), None);
    assert_eq!(client.get("k "), None);
    assert_eq!(client.get_in("other", "k"), None);
    assert_eq!(client.timer("k").key, "k");
}

pub(crate) fn a_list_has_the_order_of_due_times_and_keys(bench: &Bench) {
    let mut client = bench.client();
    let base = client.now() + HOUR;
    let second = base + Duration::from_secs(1);
    // The keys of one due time have the order of their bytes.
    let expected = [
        (base, ""),
        (base, " "),
        (base, "B"),
        (base, "a"),
        (base, "a "),
        (base, "aa"),
        (base, "b"),
        (base, "z"),
        (base, "é"),
        (base, "ключ"),
        (base, "🔑"),
        (second, "A"),
        (second, "c"),
    ];
    // There is no empty key.
    let expected = &expected[1..];
    for step in 0..expected.len() {
        let (due, key) = expected[step * 5 % expected.len()];
        client.due_at(key, due);
    }
    let listed = client.list(&Page::first(QUEUE, 100));
    let listed: Vec<_> = listed
        .iter()
        .map(|timer| (timer.due, &*timer.key))
        .collect();
    assert_eq!(listed, expected);
}

pub(crate) fn pages_show_each_timer_once(bench: &Bench) {
    let mut client = bench.client();
    let base = client.now() + HOUR;
    // Seven timers for each due time, so that pages end between timers of one due time.
    let calls = (0..200).map(|n: u64| {
        let due = base + Duration::from_secs(n / 7);
        call(
            QUEUE,
            &format!("{}", n * 73 % 200),
            schedule(DueAt::from(due)),
        )
    });
    client.write(&calls.collect::<Vec<_>>());
    let whole = client.list(&Page::first(QUEUE, 1_000));
    assert_eq!(whole.len(), 200);
    assert!(whole.is_sorted_by(|a, b| (a.due, &a.key) < (b.due, &b.key)));
    for limit in [1, 6, 7, 199, 200, 201] {
        let mut page = Page::first(QUEUE, limit);
        let mut paged = Vec::new();
        loop {
            let timers = client.list(&page);
            assert!(timers.len() <= limit as usize);
            let Some(last) = timers.last() else { break };
            page.after = Some((last.due, last.key.clone()));
            paged.extend(timers);
            assert!(paged.len() <= whole.len(), "a timer came twice");
        }
        assert_eq!(paged, whole, "pages of {limit}");
    }
}

pub(crate) fn a_list_has_the_timers_of_its_range(bench: &Bench) {
    let mut client = bench.client();
    let base = client.now() + HOUR;
    let at = |seconds| base + Duration::from_secs(seconds);
    for (key, seconds) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        client.due_at(key, at(seconds));
    }
    let mut keys = |from, until, after: Option<(StoreTime, &str)>| {
        let mut page = Page::first(QUEUE, 10);
        (page.from, page.until) = (from, until);
        page.after = after.map(|(due, key)| (due, key.to_owned()));
        client.keys(&page)
    };
    // With its beginning, without its end.
    assert_eq!(keys(at(2), at(4), None), ["b", "c"]);
    assert_eq!(keys(at(0), at(9), None), ["a", "b", "c", "d"]);
    assert_eq!(keys(at(2), at(2), None), [] as [&str; 0]);
    assert_eq!(keys(at(4), at(2), None), [] as [&str; 0]);
    assert_eq!(keys(at(5), at(9), None), [] as [&str; 0]);
    // The timer after which a page begins need not exist, nor lie in the range.
    assert_eq!(keys(at(0), at(9), Some((at(2), "b"))), ["c", "d"]);
    assert_eq!(keys(at(0), at(9), Some((at(2), "aa"))), ["b", "c", "d"]);
    assert_eq!(keys(at(3), at(9), Some((at(1), "a"))), ["c", "d"]);
    assert_eq!(keys(at(0), at(3), Some((at(4), "d"))), [] as [&str; 0]);
}

pub(crate) fn a_list_has_one_queue_and_not_more_than_its_limit(bench: &Bench) {
    let mut client = bench.client();
    for key in ["a", "b", "c"] {
        client.due(key);
        client.call_in("other", key, schedule(NOW));
    }
    assert_eq!(client.keys(&Page::first(QUEUE, 0)), [] as [&str; 0]);
    assert_eq!(client.list(&Page::first(QUEUE, 2)).len(), 2);
    assert_eq!(client.list(&Page::first(QUEUE, u32::MAX)).len(), 3);
    assert_eq!(client.keys(&Page::first("unknown", 10)), [] as [&str; 0]);
}

pub(crate) fn a_list_shows_runs_but_not_what_a_gone_node_left_cancelled(bench: &Bench) {
    let mut client = bench.client();
    let (node, gone) = (client.join(1), client.join(2));
    for key in ["gone", "gone cancelled", "gone followed"] {
        client.running(gone, key);
    }
    client.running(node, "running");
    client.running(node, "running cancelled");
    client.running(node, "running followed");
    client.call("running followed", schedule(DueAt::After(HOUR)));
    client.call("gone cancelled", Action::Cancel);
    client.call("gone followed", schedule(DueAt::After(HOUR)));
    client.call("running cancelled", Action::Cancel);
    client.leave(gone);
    let page = Page::first(QUEUE, 5);
    let timers = client.list(&page);
    let shown = |timer: &tourbillon_durable::store::Timer| {
        let running = timer.running.is_some();
        (timer.key.clone(), running, timer.cancelled, timer.follows)
    };
    let mut shown: Vec<_> = timers.iter().map(shown).collect();
    shown.sort();
    let expected = [
        ("gone", false, false, false),
        ("gone followed", false, false, false),
        ("running", true, false, false),
        ("running cancelled", true, true, false),
        ("running followed", true, false, true),
    ];
    assert_eq!(
        shown,
        expected.map(|(key, a, b, c)| (key.to_owned(), a, b, c))
    );
    for timer in timers {
        assert_eq!(client.timer(&timer.key), timer);
    }
}

pub(crate) fn counts_are_those_of_each_queue(bench: &Bench) {
    let mut client = bench.client();
    let (node, gone) = (client.join(1), client.join(2));
    // It was due first, and runs.
    client.running(node, "r1");
    for key in ["w1", "w2", "w3"] {
        client.call(key, schedule(DueAt::After(HOUR)));
    }
    for key in ["o1", "o2"] {
        client.due(key);
    }
    client.call_in("Later", "k", schedule(DueAt::After(HOUR)));
    let failed = client.running(node, "d1");
    client.settle(node, &failed, &Outcome::Dead("broken".to_owned()));
    // What a gone node has run is overdue; what was cancelled meanwhile is not there.
    client.running(gone, "g1");
    client.running(gone, "g2");
    client.call("g2", Action::Cancel);
    client.leave(gone);
    client.call_in("Other", "k", schedule(NOW));
    client.set_paused("only paused", true);
    client.set_paused("Other", true);

    let count = |queue: &str, waiting, overdue, running, dead, paused, oldest: Option<Timer>| {
        let mut counts = QueueCounts::default();
        counts.queue = queue.to_owned();
        (counts.waiting, counts.overdue) = (waiting, overdue);
        (counts.running, counts.dead, counts.paused) = (running, dead, paused);
        counts.oldest = oldest.map(|timer| timer.due.into());
        counts
    };
    let mut counted = client.counts();
    counted.sort_by(|a, b| a.queue.cmp(&b.queue));
    assert_eq!(
        counted,
        [
            count("Later", 1, 0, 0, 0, false, client.get_in("Later", "k")),
            count("Other", 0, 1, 0, 0, true, client.get_in("Other", "k")),
            count("only paused", 0, 0, 0, 0, true, None),
            count(QUEUE, 3, 3, 1, 1, false, client.get("o1")),
        ]
    );
    client.set_paused("only paused", false);
    assert!(client.counts().iter().all(|of| of.queue != "only paused"));
}

pub(crate) fn a_page_ends_where_its_payloads_are_long_enough(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let keys = ["a", "b", "c", "d", "e"];
    // A third one is in the page that has two of them, and a fourth one is not.
    let text = "x".repeat(usize::try_from(PAGE_BYTES).expect("a length") * 2 / 5);
    let due = client.now();
    for key in keys {
        client.call(key, schedule_text(DueAt::from(due), &text));
    }
    let mut page = Page::first(QUEUE, 10);
    for expected in [3, 2, 0] {
        let timers = client.list(&page);
        assert_eq!(timers.len(), expected);
        if let Some(last) = timers.last() {
            page.after = Some((last.due, last.key.clone()));
        }
    }
    for key in keys {
        let run = client.run_soon(bench, node, key).run;
        client.settle(node, &run, &Outcome::Dead("broken".to_owned()));
    }
    let mut after = 0;
    for expected in [3, 2, 0] {
        let letters = client.connection.dead(QUEUE, after, 10);
        let letters = letters.expect("the store reads");
        assert_eq!(letters.len(), expected);
        after = letters.last().map_or(after, |letter| letter.id);
    }
}
