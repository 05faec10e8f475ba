//! Rows that the server refuses to write, beside others.

use std::sync::mpsc;
use std::time::Duration;

use tourbillon_durable::store::{
    Action, Answer, Call, Claim, Connection, DeadPage, Epoch, NewNode, Outcome, Revived, Run,
    Settle, Settled, Settlement, Store, StoreError, StoreTime, Wanted,
};
use tourbillon_durable::{Due, DueAt, Durable, DurableEvent, Postgres, RetryPolicy};

use crate::cluster::{self, Database};
use kit::wait;

const NODE: Epoch = Epoch(9);
const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3_600);

fn connect(database: &Database) -> Box<dyn Connection> {
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    store.connect().expect("the cluster answers")
}

fn join(connection: &mut dyn Connection, epoch: Epoch) {
    let node = NewNode {
        epoch,
        name: "a node".into(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("the store answers");
}

fn call(key: &str, action: Action) -> Call {
    Call {
        queue: "q".into(),
        key: key.into(),
        action,
    }
}

fn schedule(key: &str, delay: Duration) -> Call {
    let when = DueAt::After(delay);
    let payload = "1".into();
    call(key, Action::Schedule { when, payload })
}

fn claim_as(epoch: Epoch, keys: &[&str]) -> Claim {
    let wanted = keys.iter().map(|key| Wanted {
        queue: "q".into(),
        key: (*key).into(),
        crash_limit: 1,
    });
    Claim {
        epoch,
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

/// Ways in which the server may refuse to write the timer `bad`, each with the statements that make
/// and remove it.
const TRAPS: [(&str, &str); 6] = [
    (
        "create function public.trap() returns trigger language plpgsql as $$
         begin
           if coalesce(new.key, old.key) = 'bad' then raise exception 'not this one'; end if;
           return coalesce(new, old);
         end $$;
         create trigger trap before insert or update or delete on tourbillon.timer
         for each row execute function public.trap()",
        "drop trigger trap on tourbillon.timer; drop function public.trap()",
    ),
    (
        // Checked at the commit.
        "create function public.trap() returns trigger language plpgsql as $$
         begin
           if coalesce(new.key, old.key) = 'bad' then
             raise exception using errcode = 'check_violation', message = 'not this one';
           end if;
           return null;
         end $$;
         create constraint trigger trap after insert or update or delete on tourbillon.timer
         deferrable initially deferred for each row execute function public.trap()",
        "drop trigger trap on tourbillon.timer; drop function public.trap()",
    ),
    (
        // An error that otherwise says that somebody else was quicker.
        "create table public.seen (key text primary key);
         insert into public.seen values ('bad');
         create function public.trap() returns trigger language plpgsql as $$
         begin
           if coalesce(new.key, old.key) = 'bad' then insert into public.seen values ('bad'); end if;
           return coalesce(new, old);
         end $$;
         create trigger trap before insert or update or delete on tourbillon.timer
         for each row execute function public.trap()",
        "drop trigger trap on tourbillon.timer; drop function public.trap(); drop table public.seen",
    ),
    (
        // An error that otherwise concerns all calls.
        "create function public.trap() returns trigger language plpgsql as $$
         begin
           if coalesce(new.key, old.key) = 'bad' then insert into public.nowhere values (1); end if;
           return coalesce(new, old);
         end $$;
         create trigger trap before insert or update or delete on tourbillon.timer
         for each row execute function public.trap()",
        "drop trigger trap on tourbillon.timer; drop function public.trap()",
    ),
    (
        // A limit of the server, as of an index on payloads that are too long.
        "create function public.trap() returns trigger language plpgsql as $$
         begin
           if coalesce(new.key, old.key) = 'bad' then raise exception using errcode = 'program_limit_exceeded'; end if;
           return coalesce(new, old);
         end $$;
         create trigger trap before insert or update or delete on tourbillon.timer
         for each row execute function public.trap()",
        "drop trigger trap on tourbillon.timer; drop function public.trap()",
    ),
    (
        // Another one.
        "create function public.deep() returns void language plpgsql as $$
         begin perform public.deep(); end $$;
         create function public.trap() returns trigger language plpgsql as $$
         begin
           if coalesce(new.key, old.key) = 'bad' then perform public.deep(); end if;
           return coalesce(new, old);
         end $$;
         create trigger trap before insert or update or delete on tourbillon.timer
         for each row execute function public.trap()",
        "drop trigger trap on tourbillon.timer; drop function public.trap(); drop function public.deep()",
    ),
];

/// Whether the answer to the key `bad`, and no other one, is a refusal.
fn only_bad_is_refused<T: std::fmt::Debug>(keys: &[&str], answers: &[Result<T, StoreError>]) {
    assert_eq!(keys.len(), answers.len());
    for (key, answer) in keys.iter().zip(answers) {
        match (*key, answer) {
            ("bad", Err(StoreError::Refused(_))) => {}
            ("bad", other) => panic!("{other:?}"),
            (_, answer) => assert!(answer.is_ok(), "{answer:?}"),
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_row_that_the_server_refuses_fails_alone_in_every_call() {
    let keys = ["a", "b", "bad", "c", "d"];
    for (trap, untrap) in TRAPS {
        let database = cluster::lent();
        let mut client = database.client();
        let mut set = |sql: &str| client.batch_execute(sql).expect("a superuser");
        let mut connection = connect(&database);
        join(&mut *connection, NODE);

        // Schedule.
        set(trap);
        let calls = keys.map(|key| schedule(key, NOW));
        only_bad_is_refused(&keys, &connection.write(&calls).expect("the others"));
        only_bad_is_refused(&keys, &connection.try_write(&calls).expect("the others"));
        set(untrap);
        let answers = connection.write(&calls).expect("the store answers");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");

        // Move and cancel.
        set(trap);
        let moved = keys.map(|key| {
            call(
                key,
                Action::Reschedule {
                    when: DueAt::After(HOUR),
                },
            )
        });
        only_bad_is_refused(&keys, &connection.write(&moved).expect("the others"));
        let cancelled = keys.map(|key| call(key, Action::Cancel));
        only_bad_is_refused(&keys, &connection.write(&cancelled).expect("the others"));
        set(untrap);
        connection.write(&calls).expect("the store answers");

        // Claim.
        set(trap);
        let claimed = connection
            .claim(&claim_as(NODE, &keys))
            .expect("the others");
        assert_eq!(claimed.runs.len(), 4, "{claimed:?}");
        assert!(claimed.horizon.is_some() && claimed.now > StoreTime::default());
        let refused: Vec<&str> = claimed.refused.iter().map(|one| &*one.key).collect();
        assert_eq!(refused, ["bad"]);
        set(untrap);
        let last = connection.claim(&claim_as(NODE, &keys)).expect("an answer");
        assert_eq!((last.runs.len(), last.refused.len()), (1, 0));

        // Settle, in each way, with an answer for each.
        let mut runs: Vec<Run> = claimed
            .runs
            .into_iter()
            .chain(last.runs)
            .map(|run| run.run)
            .collect();
        runs.sort();
        set(trap);
        let dead = Outcome::Dead("no".into());
        let settled = connection.settle(&settle(runs.clone(), &dead));
        let settled = settled.expect("the others");
        let is_bad = |run: &Run| &*run.key == "bad";
        for (run, settled) in runs.iter().zip(&settled) {
            assert_eq!(is_bad(run), settled.is_err(), "{settled:?}");
        }
        // The others have ended now.
        runs.retain(is_bad);
        for outcome in [Outcome::Retry(HOUR), Outcome::Done, dead] {
            let settled = connection.settle(&settle(runs.clone(), &outcome));
            assert!(
                matches!(
                    settled.as_deref(),
                    Ok([Err(_)]) | Err(StoreError::Refused(_))
                ),
                "{settled:?}"
            );
        }
        set(untrap);
        let settled = connection.settle(&settle(runs, &Outcome::Dead("no".into())));
        assert_eq!(settled, Ok(vec![Ok(Settled::Buried)]));

        // Revive.
        set(trap);
        let letters = connection
            .dead(&DeadPage::first("q", 10))
            .expect("they are read");
        assert_eq!(letters.len(), 5);
        for letter in letters {
            match (&*letter.key, connection.revive(letter.id)) {
                ("bad", Err(StoreError::Refused(_))) => {}
                (key, Ok(Revived::Revived { .. })) if key != "bad" => {}
                (key, other) => panic!("{key}: {other:?}"),
            }
        }
        set(untrap);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn an_error_of_all_rows_is_one_of_the_call() {
    let database = cluster::lent();
    let mut connection = connect(&database);
    join(&mut *connection, NODE);
    let keys = ["a", "b"];
    connection
        .write(&keys.map(|key| schedule(key, NOW)))
        .expect("the store answers");
    let claim = claim_as(NODE, &keys);
    let runs = connection.claim(&claim).expect("the store answers").runs;
    let runs = runs.into_iter().map(|run| run.run).collect();
    let ends = settle(runs, &Outcome::Dead("no".into()));
    let mut client = database.client();
    client
        .batch_execute("alter table tourbillon.dead rename to gone")
        .expect("a superuser");
    let settled = connection.settle(&ends);
    client
        .batch_execute("alter table tourbillon.gone rename to dead")
        .expect("a superuser");
    assert!(
        matches!(settled, Err(StoreError::Refused(_))),
        "{settled:?}"
    );
    let settled = connection.settle(&ends).expect("the store answers");
    assert_eq!(settled, [Ok(Settled::Buried), Ok(Settled::Buried)]);
}

// === numbers ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn no_number_is_drawn_from_a_sequence_that_could_be_behind_the_rows() {
    let database = cluster::lent();
    let sequences = "select count(*) from pg_class where relkind = 'S' \
                     and relnamespace = 'tourbillon'::regnamespace";
    assert_eq!(database.psql(sequences).as_deref(), Ok("0"));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn letters_find_free_numbers_beside_those_of_a_copy() {
    let database = cluster::lent();
    let mut client = database.client();
    // What a copy of rows may leave: numbers of the next days, of an old sequence, and one that is
    // negative.
    let copied = "insert into tourbillon.dead (id, queue, key, gen, planned, at, attempt, fails, crashes, error, payload) \
                  select n, 'q', 'old:' || n, 1, now(), now(), 1, 1, 0, '', '1' from (select generate_series(-1, 100) \
                  union all select (extract(epoch from now()) * 1000000)::bigint + n * 1000000 from generate_series(1, 1000) n) r(n)";
    client.batch_execute(copied).expect("a superuser");
    // Each thread buries batches of timers, by an end and by a crash.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let database = &database;
            scope.spawn(move || {
                let mut connection = connect(database);
                join(&mut *connection, NODE);
                for round in 0..5 {
                    let keys: Vec<String> =
                        (0..20).map(|n| format!("{thread}:{round}:{n}")).collect();
                    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                    let calls: Vec<Call> = keys.iter().map(|key| schedule(key, NOW)).collect();
                    assert!(
                        connection
                            .write(&calls)
                            .expect("an answer")
                            .iter()
                            .all(|answer| { matches!(answer, Ok(Answer::Scheduled { .. })) })
                    );
                    if round % 2 == 0 {
                        let died = Epoch(1_000 + thread * 10 + round);
                        join(&mut *connection, died);
                        let claimed = connection.claim(&claim_as(died, &keys)).expect("an answer");
                        assert_eq!(claimed.runs.len(), 20);
                        connection.leave(died).expect("an answer");
                        let claimed = connection.claim(&claim_as(NODE, &keys)).expect("an answer");
                        assert_eq!(claimed.dead, 20);
                    } else {
                        let claimed = connection.claim(&claim_as(NODE, &keys)).expect("an answer");
                        let runs = claimed.runs.into_iter().map(|run| run.run).collect();
                        let ends = settle(runs, &Outcome::Dead("no".into()));
                        let settled = connection.settle(&ends).expect("an answer");
                        assert_eq!(settled, vec![Ok(Settled::Buried); 20]);
                    }
                }
            });
        }
    });
    let letters = database.psql("select count(*) from tourbillon.dead where key like '_:%'");
    assert_eq!(letters.as_deref(), Ok("400"));
}

// === a node ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn dead_letters_that_can_not_be_written_hold_up_no_other_queue() {
    const RUNS: u64 = 200;
    let database = cluster::lent();
    let mut client = database.client();
    let trap = "create function public.trap() returns trigger language plpgsql as $$
        begin raise exception 'no letters of this queue'; end $$;
        create trigger trap before insert on tourbillon.dead for each row when (new.queue = 'bad')
        execute function public.trap()";
    client.batch_execute(trap).expect("a superuser");
    let start = |sender: Option<mpsc::Sender<DurableEvent>>| {
        let store = Postgres::connect(&database.url()).expect("the cluster answers");
        let timers = Durable::builder(store)
            .handle("bad", |_: &Due<u64>| Err::<(), _>("broken"))
            .retry(RetryPolicy::never())
            .handle("good", |_: &Due<u64>| ());
        let timers = timers.on_event(move |event| {
            if let Some(sender) = &sender {
                drop(sender.send(event.clone()));
            }
        });
        timers.start().expect("it starts")
    };
    let (sender, events) = mpsc::channel();
    let timers = start(Some(sender));
    for number in 0..RUNS {
        let key = format!("k{number}");
        timers
            .schedule("good", &key, NOW, &number)
            .wait()
            .expect("accepted");
        if number < 20 {
            timers
                .schedule("bad", &key, NOW, &number)
                .wait()
                .expect("accepted");
        }
    }
    let good = "select count(*) from tourbillon.timer where queue = 'good'";
    wait::until("all healthy runs are settled", || {
        timers.stats().refused >= 20 && database.psql(good).as_deref() == Ok("0")
    });
    // Those that are refused are asked for again, and stay the only ones.
    let bad = "select count(*) from tourbillon.timer where queue = 'bad'";
    assert_eq!(database.psql(bad).as_deref(), Ok("20"));
    let untrap = "drop trigger trap on tourbillon.dead; drop function public.trap()";
    client.batch_execute(untrap).expect("a superuser");
    wait::until("the letters are written", || {
        database.psql(bad).as_deref() == Ok("0")
    });
    wait::until("the answers are here", || timers.stats().dead == 20);
    assert_eq!(timers.stats().runs, RUNS + 20);
    timers.stop(HOUR).wait().unwrap();
    drop(timers);
    let refused = wait::all(&events)
        .into_iter()
        .filter(|event| matches!(event, DurableEvent::Refused { .. }));
    let refused: Vec<DurableEvent> = refused.collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    let timers = start(None);
    timers
        .schedule("good", "last", NOW, &0)
        .wait()
        .expect("accepted");
    wait::until("it has run", || timers.stats().succeeded == 1);
    assert_eq!(timers.stats().runs, 1);
    timers.stop(HOUR).wait().unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_limit_is_a_fault_of_the_value_or_of_the_row_that_meets_it() {
    let database = cluster::lent();
    let mut connection = connect(&database);
    // JSON that is nested too deep for the server: 54001.
    let payload = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = || {
        let when = DueAt::After(HOUR);
        let payload = payload.as_str().into();
        call("bad", Action::Schedule { when, payload })
    };
    for keys in [&["bad"][..], &["a", "bad", "b"]] {
        let calls = keys.iter().map(|key| match *key {
            "bad" => deep(),
            key => schedule(key, HOUR),
        });
        let calls: Vec<Call> = calls.collect();
        only_bad_is_refused(keys, &connection.write(&calls).expect("the store answers"));
    }
    // An index of the user's, with a limit of its own: 54000. Random text, since it is compressed.
    database
        .psql("create index long on tourbillon.timer ((payload::text))")
        .expect("a superuser");
    let mut number = 1_u64;
    let random: String = std::iter::repeat_with(|| {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        format!("{number:016x}")
    })
    .take(1_000)
    .collect();
    let long = call(
        "bad",
        Action::Schedule {
            when: DueAt::After(HOUR),
            payload: format!("\"{random}\"").into(),
        },
    );
    for keys in [&["bad"][..], &["a", "bad", "b"]] {
        let calls = keys.iter().map(|key| match *key {
            "bad" => long.clone(),
            key => schedule(key, HOUR),
        });
        let calls: Vec<Call> = calls.collect();
        only_bad_is_refused(keys, &connection.write(&calls).expect("the store answers"));
    }
    database
        .psql("drop index tourbillon.long")
        .expect("a superuser");
}
