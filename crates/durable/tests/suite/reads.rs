//! What users read.

use std::time::Duration;

use tourbillon_durable::store::{
    Action, DeadPage, MOST_COUNTED, Outcome, PAGE_BYTES, Page, QueueCounts, StoreTime, Timer,
};
use tourbillon_durable::{DueAt, StoredState};

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
            page.after = Some((last.due, last.queue.clone(), last.key.clone()));
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
        page.after = after.map(|(due, key)| (due, QUEUE.to_owned(), key.to_owned()));
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
            page.after = Some((last.due, last.queue.clone(), last.key.clone()));
        }
    }
    for key in keys {
        let run = client.run_soon(bench, node, key).run;
        client.settle(node, &run, &Outcome::Dead("broken".to_owned()));
    }
    let mut page = DeadPage::first(QUEUE, 10);
    for expected in [3, 2, 0] {
        let letters = client.connection.dead(&page);
        let letters = letters.expect("the store reads");
        assert_eq!(letters.len(), expected);
        page.after = letters.last().map_or(page.after, |letter| letter.id);
    }
}

pub(crate) fn counts_end_at_the_greatest_number(bench: &Bench) {
    let mut client = bench.client();
    let most = usize::try_from(MOST_COUNTED).expect("a number");
    let minute = Duration::from_secs(60);
    let schedule_all = |client: &mut crate::client::Client, name: &str, when: DueAt, number| {
        for part in (0..number).collect::<Vec<_>>().chunks(1_000) {
            let calls = part
                .iter()
                .map(|n| call(QUEUE, &format!("{name} {n}"), schedule(when)));
            client.write(&calls.collect::<Vec<_>>());
        }
    };
    schedule_all(&mut client, "later", DueAt::After(HOUR), most + 1);
    schedule_all(&mut client, "due", NOW, 2);
    schedule_all(&mut client, "soon", DueAt::After(minute / 2), 3);
    schedule_all(&mut client, "in minutes", DueAt::After(5 * minute), 4);
    let counts = client.counts().remove(0);
    assert_eq!(counts.waiting, QueueCounts::MOST);
    assert_eq!(
        (
            counts.overdue,
            counts.within_minute,
            counts.within_ten_minutes
        ),
        (2, 3, 7)
    );
}

pub(crate) fn a_list_of_all_queues_has_one_order(bench: &Bench) {
    let mut client = bench.client();
    let base = client.now() + HOUR;
    for n in 0..60_u64 {
        let due = DueAt::from(base + Duration::from_secs(n % 3));
        client.call_in(
            ["a", "b", "B"][n as usize % 7 % 3],
            &format!("{}", n * 37 % 60),
            schedule(due),
        );
    }
    let whole = client.list(&Page::of_all(100));
    assert_eq!(whole.len(), 60);
    assert!(whole.is_sorted_by(|a, b| (a.due, &a.queue, &a.key) < (b.due, &b.queue, &b.key)));
    for limit in [1, 7, 60] {
        let mut page = Page::of_all(limit);
        let mut paged = Vec::new();
        loop {
            let timers = client.list(&page);
            let Some(last) = timers.last() else { break };
            page.after = Some((last.due, last.queue.clone(), last.key.clone()));
            paged.extend(timers);
            assert!(paged.len() <= whole.len(), "a timer came twice");
        }
        assert_eq!(paged, whole, "pages of {limit}");
    }
}

pub(crate) fn a_list_has_the_keys_with_a_prefix(bench: &Bench) {
    let mut client = bench.client();
    let long = format!("%{}", "\u{10ffff}".repeat(127));
    let keys = [
        "customer:7",
        "customer:7:1",
        "customer:7:2",
        "customer:70",
        "customer:8",
        "Customer:7",
        "customer",
        "%",
        "_",
        "%x",
        "\u{10ffff}",
        "\u{10ffff}\u{10ffff}",
        &long,
        "[a-z]*",
        "a\\b",
    ];
    for (n, key) in keys.iter().enumerate() {
        // Later keys first, so that the order is not that of the keys.
        let when = DueAt::After(HOUR - Duration::from_secs(n as u64));
        client.call(key, schedule(when));
        client.call_in("other", key, schedule(when));
    }
    for prefix in [
        "",
        "c",
        "customer:7",
        "customer:7:",
        "customer:7:1x",
        "%",
        "_",
        "\u{10ffff}",
        "[",
        "a\\",
        "z",
    ] {
        let mut of_queue: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
        of_queue.reverse();
        let mut page = Page::first(QUEUE, 100);
        page.prefix = prefix.to_owned();
        assert_eq!(
            client.keys(&page),
            of_queue
                .iter()
                .map(|key| key.to_string())
                .collect::<Vec<_>>(),
            "{prefix}"
        );
        page.queue = None;
        let mut all = client.keys(&page);
        all.sort_unstable();
        let mut twice: Vec<_> = of_queue
            .iter()
            .flat_map(|key| [key.to_string(), key.to_string()])
            .collect();
        twice.sort_unstable();
        assert_eq!(all, twice, "{prefix} in all queues");
        // One at a time.
        page.limit = 1;
        let mut one_by_one = Vec::new();
        while let Some(timer) = client.list(&page).pop() {
            page.after = Some((timer.due, timer.queue, timer.key.clone()));
            one_by_one.push(timer.key);
            assert!(one_by_one.len() <= twice.len(), "a timer came twice");
        }
        one_by_one.sort_unstable();
        assert_eq!(one_by_one, twice, "{prefix}, one at a time");
    }
}

pub(crate) fn each_timer_is_in_the_list_of_its_state(bench: &Bench) {
    let mut client = bench.client();
    let (node, gone) = (client.join(1), client.join(2));
    client.running(node, "running");
    client.running(node, "running, followed");
    client.call("running, followed", schedule(DueAt::After(HOUR)));
    client.running(gone, "left behind");
    client.running(gone, "left behind, cancelled");
    client.call("left behind, cancelled", Action::Cancel);
    client.leave(gone);
    client.due("overdue");
    client.call("waiting", schedule(DueAt::After(HOUR)));
    client.call_in("stopped", "paused", schedule(NOW));
    client.call_in("stopped", "paused for later", schedule(DueAt::After(HOUR)));
    client.set_paused("stopped", true);
    let states = [
        (StoredState::Running, vec!["running", "running, followed"]),
        (StoredState::Overdue, vec!["left behind", "overdue"]),
        (StoredState::Waiting, vec!["waiting"]),
        (StoredState::Paused, vec!["paused", "paused for later"]),
    ];
    for (state, expected) in states {
        for prefix in ["", "p", "r"] {
            let mut page = Page::of_all(100);
            page.state = Some(state);
            page.prefix = prefix.to_owned();
            let timers = client.list(&page);
            assert!(timers.iter().all(|timer| timer.state == state));
            let mut keys: Vec<_> = timers.iter().map(|timer| &*timer.key).collect();
            keys.sort_unstable();
            let expected: Vec<_> = expected
                .iter()
                .filter(|key| key.starts_with(prefix))
                .copied()
                .collect();
            assert_eq!(keys, expected, "{state} {prefix}");
            for timer in &timers {
                let runs = state == StoredState::Running;
                assert_eq!(
                    (timer.node.is_some(), timer.running.is_some()),
                    (runs, runs)
                );
                assert_eq!(
                    client.get_in(&timer.queue, &timer.key).as_ref(),
                    Some(timer)
                );
            }
        }
    }
    let mut page = Page::first(QUEUE, 1);
    page.state = Some(StoredState::Running);
    assert_eq!(client.keys(&page), ["running"]);
    page.queue = Some("stopped".to_owned());
    assert_eq!(client.keys(&page), [] as [&str; 0]);
}

pub(crate) fn nodes_are_listed_until_they_are_forgotten(bench: &Bench) {
    let mut client = bench.client();
    assert_eq!(client.connection.nodes(), Ok(vec![]));
    let first = client.join_for(1, &["a", "b"]);
    let second = client.join_for(2, &[]);
    let nodes = client.connection.nodes().expect("the store reads");
    let ids: Vec<_> = nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [first.0, second.0]);
    assert_eq!(
        (&nodes[0].queues, &nodes[1].queues),
        (&vec!["a".to_owned(), "b".to_owned()], &vec![])
    );
    assert!(
        nodes
            .iter()
            .all(|node| node.gone.is_none() && node.silent_for < HOUR)
    );
    bench.pass(Duration::from_millis(50));
    let silent = |client: &mut crate::client::Client| {
        let nodes = client.connection.nodes().expect("the store reads");
        nodes.iter().map(|node| node.silent_for).collect::<Vec<_>>()
    };
    assert!(
        silent(&mut client)
            .iter()
            .all(|silent| *silent >= Duration::from_millis(50))
    );
    client
        .connection
        .beat(first)
        .expect("a beat")
        .expect("it is not gone");
    let now = silent(&mut client);
    assert!(now[0] < now[1], "{now:?}");
    client.leave(second);
    let nodes = client.connection.nodes().expect("the store reads");
    assert!(nodes[0].gone.is_none() && nodes[1].gone.is_some());
}
