//! Dead letters.

use std::time::Duration;

use tourbillon_durable::DueAt;
use tourbillon_durable::store::{Action, DeadLetter, DeadPage, Outcome, Revived};

use crate::client::{Bench, Client, NOW, QUEUE, assert_json, payload, schedule, schedule_text};

const HOUR: Duration = Duration::from_secs(3_600);

/// Makes a dead letter with this error.
fn bury(client: &mut Client, queue: &str, key: &str, error: &str) -> DeadLetter {
    let node = client.join_for(7, &[queue]);
    client.call_in(queue, key, schedule(NOW));
    let claimed = client.claim_in(node, queue, &[key]);
    let run = &claimed.runs[0].run;
    client.settle(node, run, &Outcome::Dead(error.to_owned()));
    let letters = client
        .connection
        .dead(&DeadPage::first(queue, 1_000))
        .expect("the store reads");
    letters.into_iter().next_back().expect("it was written")
}

fn revive(client: &mut Client, letter: i64) -> Revived {
    client.connection.revive(letter).expect("the store writes")
}

pub(crate) fn dead_letters_have_the_order_of_their_numbers(bench: &Bench) {
    let mut client = bench.client();
    for number in 0..6 {
        bury(
            &mut client,
            "ab"[number % 2..].split_at(1).0,
            &format!("k{}", 9 - number),
            "broken",
        );
    }
    let read = |client: &mut Client, queue: &str, after, limit| {
        let mut page = DeadPage::first(queue, limit);
        page.after = after;
        let letters = client.connection.dead(&page);
        letters.expect("the store reads")
    };
    let all = read(&mut client, "a", 0, 100);
    let keys: Vec<&str> = all.iter().map(|letter| &*letter.key).collect();
    assert_eq!(keys, ["k9", "k7", "k5"]);
    assert!(all.is_sorted_by(|a, b| a.id < b.id));
    assert_eq!(read(&mut client, "a", i64::MIN, 2), all[..2]);
    assert_eq!(read(&mut client, "a", all[0].id, 100), all[1..]);
    assert_eq!(read(&mut client, "a", all[2].id, 100), []);
    assert_eq!(read(&mut client, "a", i64::MAX, 100), []);
    assert_eq!(read(&mut client, "a", 0, 0), []);
    assert_eq!(read(&mut client, "unknown", 0, 100), []);
    assert_eq!(read(&mut client, "b", 0, 100).len(), 3);
}

pub(crate) fn a_key_may_have_many_dead_letters_and_a_timer(bench: &Bench) {
    let mut client = bench.client();
    for error in ["first", "second", "", "e".repeat(10_000).as_str()] {
        bury(&mut client, QUEUE, "k", error);
    }
    client.due("k");
    let errors: Vec<_> = client
        .dead()
        .into_iter()
        .map(|letter| letter.error.len())
        .collect();
    assert_eq!(errors, [5, 6, 0, 10_000]);
    let counts = client.counts();
    assert_eq!((counts[0].dead, counts[0].overdue), (4, 1));
}

pub(crate) fn revive_makes_a_new_timer_that_is_due(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", schedule_text(NOW, "words"));
    let old = client.run(node, "k").run;
    client.settle(node, &old, &Outcome::Dead("broken".to_owned()));
    let letter = client.dead().remove(0);
    let before = client.now();
    let revived = Revived::Revived {
        queue: QUEUE.to_owned(),
        key: "k".to_owned(),
    };
    assert_eq!(revive(&mut client, letter.id), revived);
    let after = client.now();
    assert_eq!(client.dead(), []);
    let timer = client.timer("k");
    assert!((before..=after).contains(&timer.due));
    assert_eq!(timer.planned, timer.due);
    assert_eq!((timer.attempt, timer.fails, timer.crashes), (0, 0, 0));
    let claimed = client.run(node, "k");
    assert_ne!(claimed.run.generation, old.generation);
    assert_eq!(claimed.run.attempt, 1);
    assert_json(&claimed.payload, &payload("words"));
    assert_eq!(revive(&mut client, letter.id), Revived::NotFound);
}

pub(crate) fn revive_leaves_a_timer_that_is_there(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let mut letter = bury(&mut client, QUEUE, "k", "broken");
    client.call("k", schedule_text(DueAt::After(HOUR), "new"));
    let before = client.timer("k");
    assert_eq!(revive(&mut client, letter.id), Revived::Exists);
    assert_eq!(client.timer("k"), before);
    client.due("k");
    client.run(node, "k");
    assert_eq!(revive(&mut client, letter.id), Revived::Exists);
    client.leave(node);
    assert_eq!(revive(&mut client, letter.id), Revived::Exists);
    letter.has_timer = true;
    assert_eq!(client.dead(), std::slice::from_ref(&letter));
    client.call("k", Action::Cancel);
    assert!(matches!(
        revive(&mut client, letter.id),
        Revived::Revived { .. }
    ));
}

pub(crate) fn revive_of_an_unknown_letter_finds_nothing(bench: &Bench) {
    let mut client = bench.client();
    for letter in [0, 1, -1, i64::MAX, i64::MIN] {
        assert_eq!(revive(&mut client, letter), Revived::NotFound);
    }
    assert_eq!(client.counts(), []);
}

pub(crate) fn revive_takes_the_place_of_what_a_gone_node_left_cancelled(bench: &Bench) {
    let mut client = bench.client();
    let letter = bury(&mut client, QUEUE, "k", "broken");
    let gone = client.join(1);
    client.running(gone, "k");
    client.call("k", Action::Cancel);
    client.leave(gone);
    assert!(matches!(
        revive(&mut client, letter.id),
        Revived::Revived { .. }
    ));
    let node = client.join(2);
    assert_eq!(client.run(node, "k").run.attempt, 1);
}

pub(crate) fn the_number_of_a_dead_letter_never_comes_back(bench: &Bench) {
    let mut client = bench.client();
    let mut last = i64::MIN;
    for _ in 0..5 {
        let letter = bury(&mut client, QUEUE, "k", "broken");
        assert!(letter.id > last);
        last = letter.id;
        revive(&mut client, letter.id);
        assert_eq!(client.dead(), []);
        client.call("k", Action::Cancel);
    }
}

fn read(client: &mut Client, page: &DeadPage) -> Vec<String> {
    let letters = client.connection.dead(page).expect("the store reads");
    letters.into_iter().map(|letter| letter.key).collect()
}

pub(crate) fn dead_letters_are_found_by_queue_prefix_and_age(bench: &Bench) {
    let mut client = bench.client();
    bury(&mut client, "a", "customer:7:1", "broken");
    bury(&mut client, "b", "customer:7:2", "broken");
    bury(&mut client, "a", "customer:8", "broken");
    bury(&mut client, "a", "%", "broken");
    let age = Duration::from_millis(200);
    bench.pass(age);
    bury(&mut client, "a", "customer:7:3", "broken");
    let mut page = DeadPage::of_all(100);
    assert_eq!(read(&mut client, &page).len(), 5);
    page.prefix = "customer:7".to_owned();
    assert_eq!(
        read(&mut client, &page),
        ["customer:7:1", "customer:7:2", "customer:7:3"]
    );
    page.older_than = Some(age);
    assert_eq!(read(&mut client, &page), ["customer:7:1", "customer:7:2"]);
    page.queue = Some("a".to_owned());
    assert_eq!(read(&mut client, &page), ["customer:7:1"]);
    page.prefix = "%".to_owned();
    assert_eq!(read(&mut client, &page), ["%"]);
    page.prefix.clear();
    page.limit = 2;
    assert_eq!(read(&mut client, &page), ["customer:7:1", "customer:8"]);
    page.older_than = Some(Duration::MAX);
    assert_eq!(read(&mut client, &page), [] as [&str; 0]);
    page.older_than = Some(Duration::ZERO);
    page.limit = 100;
    assert_eq!(read(&mut client, &page).len(), 4);
}

pub(crate) fn a_dead_letter_says_whether_its_key_has_a_timer(bench: &Bench) {
    let mut client = bench.client();
    let letter = bury(&mut client, QUEUE, "k", "broken");
    bury(&mut client, QUEUE, "alone", "broken");
    let has_timer = |client: &mut Client| {
        let letters = client.dead();
        letters
            .iter()
            .map(|letter| letter.has_timer)
            .collect::<Vec<_>>()
    };
    assert_eq!(has_timer(&mut client), [false, false]);
    client.call("k", schedule(DueAt::After(HOUR)));
    assert_eq!(has_timer(&mut client), [true, false]);
    assert_eq!(revive(&mut client, letter.id), Revived::Exists);
    client.call("k", Action::Cancel);
    assert_eq!(has_timer(&mut client), [false, false]);
    // What a gone node has left behind cancelled is no timer.
    let node = client.join(2);
    client.running(node, "k");
    assert_eq!(has_timer(&mut client), [true, false]);
    client.call("k", Action::Cancel);
    client.leave(node);
    assert_eq!(has_timer(&mut client), [false, false]);
    assert!(matches!(
        revive(&mut client, letter.id),
        Revived::Revived { .. }
    ));
}

pub(crate) fn letters_are_discarded_by_their_numbers(bench: &Bench) {
    let mut client = bench.client();
    let letters = ["a", "b", "c"].map(|key| bury(&mut client, QUEUE, key, "broken").id);
    let mut discard = |ids: &[i64]| client.connection.discard(ids).expect("the store writes");
    assert_eq!(discard(&[]), 0);
    assert_eq!(
        discard(&[letters[0], letters[2], letters[2], i64::MAX, i64::MIN]),
        2
    );
    assert_eq!(discard(&letters), 1);
    assert_eq!(discard(&letters), 0);
    assert_eq!(client.dead(), []);
    assert_eq!(revive(&mut client, letters[0]), Revived::NotFound);
}

pub(crate) fn old_letters_are_discarded_from_the_first_one_on(bench: &Bench) {
    let mut client = bench.client();
    for key in ["a", "b", "c"] {
        bury(&mut client, key, key, "broken");
    }
    let age = Duration::from_millis(200);
    let mut discard = |age, limit| {
        client
            .connection
            .discard_old(age, limit)
            .expect("the store writes")
    };
    assert_eq!(discard(Duration::MAX, 100), 0);
    assert_eq!(discard(HOUR, 100), 0);
    assert_eq!(discard(Duration::ZERO, 0), 0);
    bench.pass(age);
    assert_eq!(discard(age, 2), 2);
    bury(&mut client, QUEUE, "young", "broken");
    let mut discard = |age, limit| {
        client
            .connection
            .discard_old(age, limit)
            .expect("the store writes")
    };
    assert_eq!(discard(age, 100), 1);
    assert_eq!(discard(age, 100), 0);
    assert_eq!(read(&mut client, &DeadPage::of_all(100)), ["young"]);
}
