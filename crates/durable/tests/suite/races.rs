//! Calls of several threads at one time.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tourbillon_durable::DueAt;
use tourbillon_durable::store::{Action, Answer, ClaimedRun, Outcome, Page, Run, Settled};

use crate::client::{
    Bench, Client, NOW, QUEUE, assert_json, call, payload, schedule, schedule_text,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("order:{number}")).collect()
}

fn schedule_all(client: &mut Client, keys: &[String]) {
    let calls = keys.iter().map(|key| call(QUEUE, key, schedule(NOW)));
    client.write(&calls.collect::<Vec<_>>());
}

pub(crate) fn each_timer_is_claimed_by_one_node(bench: &Bench) {
    let keys = keys(400);
    schedule_all(&mut bench.client(), &keys);
    let start = Barrier::new(4);
    let claimed: Vec<Vec<ClaimedRun>> = thread::scope(|scope| {
        let claimers: Vec<_> = (1..=4_usize)
            .map(|number| {
                let (keys, start) = (&keys, &start);
                scope.spawn(move || {
                    let mut client = bench.client();
                    let node = client.join(number as i64);
                    start.wait();
                    let mut runs = Vec::new();
                    // Each node has another order, so that they meet.
                    for step in 0..keys.len() / 20 {
                        let from = (step * 20 + number * 100) % keys.len();
                        runs.extend(client.claim(node, &keys[from..from + 20]).runs);
                    }
                    runs
                })
            })
            .collect();
        let claimed = claimers.into_iter().map(|claimer| claimer.join());
        claimed
            .map(|runs| runs.expect("no claimer panics"))
            .collect()
    });
    let mut times = BTreeMap::new();
    for claimed in claimed.iter().flatten() {
        assert_eq!(claimed.run.attempt, 1);
        *times.entry(claimed.run.key.clone()).or_insert(0) += 1;
    }
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    // A store may leave out what another claim has locked: nothing is lost by that.
    let mut client = bench.client();
    let node = client.join(9);
    let rest = client.claim(node, &keys).runs.len();
    assert_eq!(times.len() + rest, keys.len());
}

/// Crash point 10: the lock of the row decides.
pub(crate) fn a_cancel_and_a_claim_agree(bench: &Bench) {
    let keys = keys(120);
    schedule_all(&mut bench.client(), &keys);
    // Both begin each key at the same time.
    let start = Barrier::new(2);
    let (runs, answers) = thread::scope(|scope| {
        let claimer = scope.spawn(|| {
            let mut client = bench.client();
            let node = client.join(1);
            let mut runs: Vec<Run> = Vec::new();
            for key in &keys {
                start.wait();
                let claimed = client.claim(node, &[key]).runs;
                runs.extend(claimed.into_iter().map(|claimed| claimed.run));
            }
            runs
        });
        let canceller = scope.spawn(|| {
            let mut client = bench.client();
            let cancel = |key: &String| {
                start.wait();
                (key.clone(), client.call(key, Action::Cancel))
            };
            keys.iter()
                .map(cancel)
                .collect::<BTreeMap<String, Answer>>()
        });
        (
            claimer.join().expect("no panic"),
            canceller.join().expect("no panic"),
        )
    });
    let mut client = bench.client();
    let node = client.join(1);
    let mut started = 0;
    for key in &keys {
        let run = runs.iter().find(|run| *run.key == **key);
        match (answers[key], run) {
            // It never started, and never will.
            (Answer::Cancelled { .. }, None) => assert_eq!(client.get(key), None),
            // It runs, and nothing follows.
            (Answer::Running { attempt: 1, .. }, Some(run)) => {
                started += 1;
                assert!(client.timer(key).cancelled);
                let settled = client.settle(node, run, &Outcome::Retry(Duration::ZERO));
                assert_eq!(settled, Settled::Ended);
            }
            disagree => panic!("{key}: {disagree:?}"),
        }
    }
    assert_eq!(started, runs.len());
    assert_eq!(client.counts(), []);
}

pub(crate) fn a_schedule_and_a_settlement_lose_no_timer(bench: &Bench) {
    let keys = keys(80);
    let mut client = bench.client();
    schedule_all(&mut client, &keys);
    let node = client.join(1);
    let runs: Vec<Run> = keys.iter().map(|key| client.run(node, key).run).collect();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = bench.client();
            start.wait();
            for run in &runs {
                assert_eq!(client.settle(node, run, &Outcome::Done), Settled::Ended);
            }
        });
        scope.spawn(|| {
            let mut client = bench.client();
            start.wait();
            for key in keys.iter().rev() {
                let answer = client.call(key, schedule_text(DueAt::After(HOUR), "next"));
                assert!(
                    matches!(answer, Answer::Scheduled { replaced: None, .. }),
                    "{answer:?}"
                );
            }
        });
    });
    for key in &keys {
        let timer = client.timer(key);
        assert_eq!(
            (timer.running, timer.follows, timer.attempt),
            (None, false, 0)
        );
        assert_json(&timer.payload, &payload("next"));
    }
    assert_eq!(client.counts()[0].waiting, keys.len() as u64);
}

pub(crate) fn eight_writers_get_the_truth(bench: &Bench) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 10;
    let start = Barrier::new(WRITERS);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let start = &start;
            scope.spawn(move || {
                let mut client = bench.client();
                start.wait();
                for round in 0..ROUNDS {
                    // A batch of own keys, with one that all writers share.
                    let own = |part: &str| format!("{part}:{writer}:{round}");
                    let shared = format!("shared:{}", round % 5);
                    let text = format!("{writer}:{round}");
                    let calls = [
                        call(
                            QUEUE,
                            &own("kept"),
                            schedule_text(DueAt::After(HOUR), &text),
                        ),
                        call(QUEUE, &shared, schedule_text(DueAt::After(HOUR), &text)),
                        call(QUEUE, &own("gone"), schedule(DueAt::After(HOUR))),
                    ];
                    let answers = client.write(&calls);
                    assert!(
                        answers
                            .iter()
                            .all(|answer| matches!(answer, Answer::Scheduled { .. }))
                    );
                    let answer = client.call(&own("gone"), Action::Cancel);
                    assert!(matches!(answer, Answer::Cancelled { .. }), "{answer:?}");
                    assert_json(&client.timer(&own("kept")).payload, &payload(&text));
                }
            });
        }
    });
    let mut client = bench.client();
    let timers = client.list(&Page::first(QUEUE, 10_000));
    assert_eq!(timers.len(), WRITERS * ROUNDS + 5);
    assert!(timers.iter().all(|timer| !timer.key.starts_with("gone")));
}

/// Of those who schedule a new key at one time, one inserts it and the others replace what is
/// there.
pub(crate) fn a_new_key_is_inserted_once(bench: &Bench) {
    const MANY: usize = 20;
    let mut clients: Vec<Client> = (0..4).map(|_| bench.client()).collect();
    let start = Barrier::new(clients.len());
    for round in 0..60 {
        // A call that travels alone must not fail either.
        let many = if round % 2 == 0 { 1 } else { MANY };
        let keys = (0..many).map(|number| format!("{round}:{number}"));
        let calls: Vec<_> = keys
            .map(|key| call(QUEUE, &key, schedule(DueAt::After(HOUR))))
            .collect();
        let answers: Vec<Vec<Answer>> = thread::scope(|scope| {
            let writers: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    scope.spawn(|| {
                        start.wait();
                        client.write(&calls)
                    })
                })
                .collect();
            let answers = writers.into_iter().map(|writer| writer.join());
            answers
                .map(|answers| answers.expect("no writer panics"))
                .collect()
        });
        for key in 0..many {
            let of_key = answers.iter().map(|answers| &answers[key]);
            let inserted =
                of_key.filter(|answer| matches!(answer, Answer::Scheduled { replaced: None, .. }));
            assert_eq!(inserted.count(), 1, "{answers:?}");
        }
    }
}

/// Of many replacements of one key each one replaces the one before it, and one is left.
pub(crate) fn replacements_of_one_key_form_a_chain(bench: &Bench) {
    const WRITERS: u64 = 4;
    const ROUNDS: u64 = 25;
    let base = bench.client().now() + HOUR;
    let mut answers: Vec<_> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let mut client = bench.client();
                    let due = |round| base + Duration::from_secs(round * WRITERS + writer);
                    let calls = (0..ROUNDS).map(|round| {
                        match client.call("k", schedule(DueAt::from(due(round)))) {
                            Answer::Scheduled { due, replaced, .. } => (replaced, due),
                            answer => panic!("{answer:?}"),
                        }
                    });
                    calls.collect::<Vec<_>>()
                })
            })
            .collect();
        let answers = writers.into_iter().map(|writer| writer.join());
        answers
            .flat_map(|answers| answers.expect("no writer panics"))
            .collect()
    });
    let last = bench.client().timer("k").due;
    let mut at = None;
    while let Some(next) = answers.iter().position(|(replaced, _)| *replaced == at) {
        at = Some(answers.swap_remove(next).1);
    }
    assert_eq!((at, answers.len()), (Some(last), 0));
}

pub(crate) fn a_node_that_was_declared_gone_claims_nothing_more(bench: &Bench) {
    let keys = keys(60);
    let mut client = bench.client();
    schedule_all(&mut client, &keys);
    let (node, other) = (client.join(1), client.join(2));
    let start = Barrier::new(2);
    let claimed = thread::scope(|scope| {
        let claimer = scope.spawn(|| {
            let mut client = bench.client();
            start.wait();
            let mut runs = Vec::new();
            for key in &keys {
                let claimed = client.claim(node, &[key]);
                if claimed.gone {
                    break;
                }
                runs.extend(claimed.runs);
            }
            runs
        });
        start.wait();
        assert!(client.declare_gone(other, node, 0));
        // From here on everything may be claimed, and nothing that was claimed may settle.
        let taken: Vec<Run> = keys
            .iter()
            .map(|key| client.run_soon(bench, other, key).run)
            .collect();
        let lost = claimer.join().expect("no panic");
        for claimed in &lost {
            let settled = client.settle(node, &claimed.run, &Outcome::Done);
            assert_eq!(settled, Settled::Fenced);
        }
        for run in &taken {
            let crashed = lost.iter().any(|claimed| claimed.run.key == run.key);
            assert_eq!(client.timer(&run.key).crashes, u32::from(crashed));
            assert_eq!(client.settle(other, run, &Outcome::Done), Settled::Ended);
        }
        taken.len()
    });
    assert_eq!(claimed, keys.len());
    assert_eq!(client.counts(), []);
}

/// One of two that revive a dead letter succeeds.
pub(crate) fn a_dead_letter_is_revived_once(bench: &Bench) {
    let keys = keys(50);
    let mut client = bench.client();
    schedule_all(&mut client, &keys);
    let node = client.join(1);
    for key in &keys {
        let run = client.run(node, key).run;
        client.settle(node, &run, &Outcome::Dead("broken".to_owned()));
    }
    let letters: Vec<i64> = client.dead().iter().map(|letter| letter.id).collect();
    let start = Barrier::new(2);
    let revive_all = || {
        let mut client = bench.client();
        start.wait();
        let revived = letters.iter().filter(|letter| {
            let revived = client
                .connection
                .revive(**letter)
                .expect("the store writes");
            matches!(revived, tourbillon_durable::Revived::Revived { .. })
        });
        revived.count()
    };
    let revived = thread::scope(|scope| {
        let both = [scope.spawn(revive_all), scope.spawn(revive_all)];
        both.map(|one| one.join().expect("no panic"))
            .iter()
            .sum::<usize>()
    });
    assert_eq!(revived, keys.len());
    assert_eq!(client.dead(), []);
    assert_eq!(client.counts()[0].overdue, keys.len() as u64);
}

pub(crate) fn old_letters_are_discarded_once(bench: &Bench) {
    let keys = keys(60);
    let mut client = bench.client();
    schedule_all(&mut client, &keys);
    let node = client.join(1);
    for key in &keys {
        let run = client.run(node, key).run;
        client.settle(node, &run, &Outcome::Dead("broken".to_owned()));
    }
    let letters: Vec<i64> = client.dead().iter().map(|letter| letter.id).collect();
    let start = Barrier::new(4);
    let discard_all = || {
        let mut client = bench.client();
        start.wait();
        let mut discarded = 0;
        // One that was late finds nothing, and others come after it.
        while !client.dead().is_empty() {
            let old = client.connection.discard_old(Duration::ZERO, 7);
            discarded += old.expect("the store writes");
        }
        discarded
    };
    let revive_some = || {
        let mut client = bench.client();
        start.wait();
        let revived = letters.iter().rev().step_by(3).filter(|letter| {
            let revived = client.connection.revive(**letter);
            let revived = revived.expect("the store writes");
            matches!(revived, tourbillon_durable::Revived::Revived { .. })
        });
        revived.count() as u64
    };
    let (discarded, revived) = thread::scope(|scope| {
        let discards = [(); 3].map(|()| scope.spawn(discard_all));
        let revived = scope.spawn(revive_some).join().expect("no panic");
        let discarded = discards.map(|one| one.join().expect("no panic"));
        (discarded.iter().sum::<u64>(), revived)
    });
    assert_eq!(discarded + revived, keys.len() as u64);
    let counts = client.counts();
    let timers = counts.first().map_or(0, |counts| counts.overdue);
    assert_eq!(timers, revived);
}
