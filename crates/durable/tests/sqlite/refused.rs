//! Rows that the file refuses to take, beside others.

use std::time::Duration;

use rusqlite::Connection as Raw;
use tourbillon_durable::store::{
    Action, Call, Claim, Connection, DeadPage, Epoch, NewNode, Offset, Outcome, Poll, Range,
    Revived, Run, SHARDS, Settle, Settled, Settlement, Store, StoreError, StoreTime, Wanted,
};
use tourbillon_durable::{DueAt, rusqlite};

use crate::folder::{Folder, schedule_in};

const NODE: Epoch = Epoch(9);
const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3_600);
const KEYS: [&str; 5] = ["a", "b", "bad", "c", "d"];

fn join(connection: &mut dyn Connection) {
    let node = NewNode {
        epoch: NODE,
        name: "a node".into(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("joined");
}

fn claim(keys: &[&str]) -> Claim {
    let wanted = keys.iter().map(|key| Wanted {
        queue: "q".into(),
        key: (*key).into(),
        crash_limit: 10,
    });
    Claim {
        epoch: NODE,
        deadline: StoreTime::LATEST,
        timers: wanted.collect(),
        adopt: Vec::new(),
    }
}

fn settle(runs: Vec<Run>, outcome: &Outcome) -> Settle {
    let settlements = runs.into_iter().map(|run| Settlement {
        run,
        outcome: outcome.clone(),
    });
    Settle {
        epoch: NODE,
        settlements: settlements.collect(),
    }
}

fn all(action: &Action) -> [Call; 5] {
    KEYS.map(|key| Call {
        action: action.clone(),
        ..schedule_in("q", key, NOW)
    })
}

/// Makes triggers that refuse each change of the timer `bad`, in this way.
fn set(file: &Raw, way: &str) {
    for (event, row) in [("insert", "new"), ("update", "new"), ("delete", "old")] {
        let sql = format!(
            "create trigger trap_{event} before {event} on tourbillon_timer when {row}.key = 'bad' \
             begin {way}; end"
        );
        file.execute_batch(&sql).expect("made");
    }
}

fn unset(file: &Raw) {
    for event in ["insert", "update", "delete"] {
        file.execute_batch(&format!("drop trigger trap_{event}"))
            .expect("removed");
    }
}

fn only_bad_is_refused<T: std::fmt::Debug>(answers: &[Result<T, StoreError>]) {
    assert_eq!(answers.len(), KEYS.len());
    for (key, answer) in KEYS.iter().zip(answers) {
        match answer {
            Err(StoreError::Refused(_)) => assert_eq!(*key, "bad"),
            Err(error) => panic!("{error}"),
            Ok(_) => assert_ne!(*key, "bad", "{answer:?}"),
        }
    }
}

#[test]
fn a_row_that_the_file_refuses_fails_alone_in_every_call() {
    // The last one ends the whole transaction.
    let ways = [
        "select raise(abort, 'not this one')",
        "select raise(fail, 'not this one')",
        "select raise(rollback, 'not this one')",
    ];
    for way in ways {
        let folder = Folder::new();
        let mut connection = folder.store().connect().expect("a connection");
        let file = Raw::open(folder.file()).expect("a connection");
        join(&mut *connection);
        let calls = KEYS.map(|key| schedule_in("q", key, NOW));
        set(&file, way);
        only_bad_is_refused(&connection.write(&calls).expect("the others"));
        unset(&file);
        assert!(
            connection
                .write(&calls)
                .expect("answers")
                .iter()
                .all(Result::is_ok)
        );

        set(&file, way);
        let moved = all(&Action::Reschedule {
            when: DueAt::After(HOUR),
        });
        only_bad_is_refused(&connection.write(&moved).expect("the others"));
        only_bad_is_refused(&connection.write(&all(&Action::Cancel)).expect("the others"));
        unset(&file);
        connection.write(&calls).expect("answers");

        set(&file, way);
        let claimed = connection.claim(&claim(&KEYS)).expect("the others");
        assert_eq!(claimed.runs.len(), 4, "{claimed:?}");
        assert!(claimed.now > StoreTime::default());
        assert_eq!(claimed.refused.len(), 1);
        assert_eq!(&*claimed.refused[0].key, "bad");
        let alone = connection.claim(&claim(&["bad"])).expect("an answer");
        assert_eq!((alone.runs.len(), alone.refused.len()), (0, 1));
        assert!(alone.now > StoreTime::default());
        unset(&file);
        let last = connection.claim(&claim(&KEYS)).expect("an answer");
        assert_eq!(last.runs.len(), 1);

        let runs = claimed.runs.into_iter().chain(last.runs);
        let mut runs: Vec<Run> = runs.map(|run| run.run).collect();
        runs.sort();
        set(&file, way);
        let dead = Outcome::Dead("no".into());
        only_bad_is_refused(
            &connection
                .settle(&settle(runs.clone(), &dead))
                .expect("the others"),
        );
        // Its letter was not written either.
        assert_eq!(
            connection
                .dead(&DeadPage::first("q", 10))
                .expect("they are read")
                .len(),
            4
        );
        unset(&file);
        let bad = settle(vec![runs.remove(2)], &dead);
        assert_eq!(connection.settle(&bad), Ok(vec![Ok(Settled::Buried)]));

        set(&file, way);
        for letter in connection
            .dead(&DeadPage::first("q", 10))
            .expect("they are read")
        {
            match (&*letter.key, connection.revive(letter.id)) {
                ("bad", Err(StoreError::Refused(_))) => {}
                (key, Ok(Revived::Revived { .. })) if key != "bad" => {}
                (key, other) => panic!("{key}: {other:?}"),
            }
        }
        unset(&file);
    }
}

#[test]
fn a_row_that_is_checked_at_the_commit_fails_alone() {
    let folder = Folder::new();
    let mut connection = folder.store().connect().expect("a connection");
    let file = Raw::open(folder.file()).expect("a connection");
    file.execute_batch(
        "create table parent(id integer primary key);
         create table child(id integer references parent(id) deferrable initially deferred);
         create trigger trap before insert on tourbillon_timer when new.key = 'bad'
         begin insert into child values (7); end",
    )
    .expect("made");
    let calls = KEYS.map(|key| schedule_in("q", key, HOUR));
    only_bad_is_refused(&connection.write(&calls).expect("the others"));
}

#[test]
fn a_timer_whose_row_is_no_text_hides_no_other_one() {
    let folder = Folder::new();
    let mut connection = folder.store().connect().expect("a connection");
    let file = Raw::open(folder.file()).expect("a connection");
    join(&mut *connection);
    let calls = KEYS.map(|key| schedule_in("q", key, NOW));
    connection.write(&calls).expect("answers");
    file.execute_batch(
        "insert into tourbillon_timer(queue, key, shard, due, planned, generation, payload)
         select queue, cast(x'ff' as text), shard, due - 1, planned, generation, payload
         from tourbillon_timer where key = 'a';
         update tourbillon_timer set payload = cast(x'ff' as text) where key = 'bad'",
    )
    .expect("written");
    let range = |shard| Range {
        queue: "q".into(),
        shard,
        mark: None,
        until: Offset::Ahead(NOW),
        limit: 100,
    };
    let poll = Poll {
        epoch: NODE,
        ranges: (0..SHARDS).map(range).collect(),
        bands: Vec::new(),
        complete: true,
    };
    let snapshot = connection.poll(&poll).expect("a snapshot");
    assert_eq!(snapshot.rows.len(), KEYS.len());
    let claimed = connection.claim(&claim(&KEYS)).expect("the others");
    assert_eq!((claimed.runs.len(), claimed.refused.len()), (4, 1));
}

// === numbers ===

#[test]
fn a_letter_finds_a_free_number_though_the_counter_is_behind() {
    let folder = Folder::new();
    let mut connection = folder.store().connect().expect("a connection");
    let file = Raw::open(folder.file()).expect("a connection");
    join(&mut *connection);
    let mut last = 0;
    for counter in [
        "delete from sqlite_sequence",
        "update sqlite_sequence set seq = 1",
    ] {
        file.execute_batch(&format!(
            "insert into tourbillon_dead(id, queue, key, shard, planned, at, attempt, fails, crashes, error, payload)
             select ifnull(max(id), 0) + 1000, 'q', 'old', 0, 1, 1, 1, 1, 0, '', '1' from tourbillon_dead; {counter}"
        ))
        .expect("written");
        connection
            .write(&KEYS.map(|key| schedule_in("q", key, NOW)))
            .expect("answers");
        let runs = connection.claim(&claim(&KEYS)).expect("an answer").runs;
        let runs = runs.into_iter().map(|run| run.run).collect();
        let settled = connection.settle(&settle(runs, &Outcome::Dead("no".into())));
        assert_eq!(settled, Ok(vec![Ok(Settled::Buried); 5]));
        let letters = {
            let mut page = DeadPage::first("q", 100);
            page.after = last;
            connection.dead(&page)
        }
        .expect("they are read");
        assert_eq!(letters.len(), 6);
        last = letters[5].id;
    }
}

#[test]
fn generations_of_two_copies_of_a_file_differ() {
    let folder = Folder::new();
    let mut connection = folder.store().connect().expect("a connection");
    join(&mut *connection);
    // A copy knows nothing of what the other one draws, so it must not count.
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        connection
            .write(&KEYS.map(|key| schedule_in("q", key, NOW)))
            .expect("answers");
        let runs = connection.claim(&claim(&KEYS)).expect("an answer").runs;
        let generations: Vec<i64> = runs.iter().map(|run| run.run.generation).collect();
        let high: Vec<i64> = generations.iter().map(|number| number >> 24).collect();
        assert!(generations.iter().all(|number| *number >= 0));
        // Those of one commit follow each other, and the next ones lie anywhere.
        assert!(seen.insert(high[0]), "{high:?}");
        let runs = runs.into_iter().map(|run| run.run).collect();
        connection
            .settle(&settle(runs, &Outcome::Done))
            .expect("an answer");
    }
}
