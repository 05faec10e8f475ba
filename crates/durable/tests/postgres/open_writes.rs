//! Which transactions hold back the marks of nodes: those that have written timers, and no others.

use std::thread;

use tourbillon_durable::DueAt;
use tourbillon_durable::store::{Action, Complete, Poll, StoreTime};

use crate::transactions::{Bench, ME, MINUTE, bench};

impl Bench {
    /// What a poll says of the writes that it contains.
    fn complete(&mut self) -> Complete {
        let poll = Poll {
            epoch: ME,
            ranges: Vec::new(),
            bands: Vec::new(),
            complete: true,
        };
        let snapshot = self.connection.poll(&poll).expect("the store reads");
        snapshot.complete.expect("the poll has asked for it")
    }

    /// Waits until somebody waits for a lock on the table of timers.
    fn wait_for_a_waiting_write(&self) {
        let waits = "select count(*) from pg_locks \
                     where relation = 'tourbillon.timer'::regclass and not granted";
        kit::wait::until("the write waits", || {
            self.database.psql(waits).expect("it reads") == "1"
        });
    }

    fn due(&self, key: &str) -> StoreTime {
        let due = format!(
            "select (extract(epoch from due) * 1000000)::bigint from tourbillon.timer where key = '{key}'"
        );
        let due = self.database.psql(&due).expect("it reads");
        StoreTime::from_micros(due.parse().expect("a number"))
    }
}

/// Takes the number of the transaction.
fn number(client: &mut impl postgres::GenericClient) -> u64 {
    let number = "select pg_current_xact_id()::text";
    let row = client.query_one(number, &[]).expect("it is open");
    row.get::<_, String>(0).parse().expect("a number")
}

const NOBODY: u64 = u64::MAX;

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_transaction_that_has_written_no_timer_holds_nothing_back() {
    let mut bench = bench();
    let mut client = bench.database.client();
    let mut transaction = client.transaction().expect("it begins");
    number(&mut transaction);
    for work in [
        "create table elsewhere (id int)",
        "insert into elsewhere values (1)",
        "select count(*) from tourbillon.timer",
        "analyze tourbillon.timer",
    ] {
        transaction.batch_execute(work).expect("it is accepted");
        assert_eq!(bench.complete().below, NOBODY, "{work}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_transaction_counts_from_its_first_write_of_a_timer_until_it_ends() {
    let ways = [
        "select from tourbillon.schedule('q', 'new', interval '1 min', '1')",
        "select from tourbillon.schedule_if_absent('q', 'new', interval '1 min', '1')",
        "select from tourbillon.reschedule('q', 'old', interval '1 min')",
        "select from tourbillon.cancel('q', 'old')",
        // Also a call that has found nothing: it could go on.
        "select from tourbillon.cancel('q', 'none')",
        "savepoint s; select from tourbillon.schedule('q', 'new', interval '1 min', '1')",
        "select from tourbillon.claim_1(3, 'infinity', '{q}', '{old}', '{3}', '{}', '{}', '{}', '{}')",
        "select from tourbillon.settle_1(3, '{q}', '{old}', '{1}', '{1}', '{0}', '{0}', '{null}', '{null}', '{null}', false)",
    ];
    let mut bench = bench();
    for way in ways {
        let schedule = Action::Schedule {
            when: DueAt::After(MINUTE),
            payload: "1".into(),
        };
        bench.call("old", schedule);
        let mut client = bench.database.client();
        let mut transaction = client.transaction().expect("it begins");
        let number = number(&mut transaction);
        assert_eq!(bench.complete().below, NOBODY, "{way}");
        transaction.batch_execute(way).expect("it is accepted");
        assert_eq!(bench.complete().below, number, "{way}");
        transaction.rollback().expect("it ends");
        assert_eq!(bench.complete().below, NOBODY, "{way}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_oldest_of_several_transactions_counts_and_so_does_a_prepared_one() {
    let mut bench = bench();
    let mut clients = [bench.database.client(), bench.database.client()];
    let first = clients.each_mut().map(|client| {
        client.batch_execute("begin").expect("it begins");
        number(client)
    });
    assert!(first[0] < first[1]);
    for (client, key) in clients.iter_mut().zip(["a", "b"]) {
        let schedule =
            format!("select from tourbillon.schedule('q', '{key}', interval '1 min', '1')");
        client.batch_execute(&schedule).expect("it is accepted");
    }
    assert_eq!(bench.complete().below, first[0]);
    clients[0]
        .batch_execute("prepare transaction 'a'")
        .expect("the cluster admits it");
    assert_eq!(bench.complete().below, first[0]);
    clients[0]
        .batch_execute("commit prepared 'a'")
        .expect("it is prepared");
    assert_eq!(bench.complete().below, first[1]);
    clients[1].batch_execute("commit").expect("it ends");
    assert_eq!(bench.complete().below, NOBODY);
}

/// A write that waits for its lock is not shown as open. So it must read the clock after the wait.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_write_reads_the_clock_when_it_has_its_lock() {
    let mut bench = bench();
    let run = bench.run("again");
    let settle = format!(
        "select from tourbillon.settle_1(3, '{{q}}', '{{again}}', '{{{}}}', '{{{}}}', '{{1}}', '{{0}}', '{{null}}', '{{null}}', '{{null}}', false)",
        run.generation, run.attempt
    );
    let schedule = "select from tourbillon.schedule('q', 'now', interval '0', '1')";
    // The end of a run moves what follows it, if it is due.
    let followed = bench.run("next");
    bench
        .client
        .batch_execute("select tourbillon.schedule('q', 'next', interval '0', '2')")
        .expect("it is accepted");
    let end = format!(
        "select from tourbillon.settle_1(3, '{{q}}', '{{next}}', '{{{}}}', '{{{}}}', '{{0}}', '{{0}}', '{{null}}', '{{null}}', '{{null}}', false)",
        followed.generation, followed.attempt
    );
    for (write, key) in [(schedule, "now"), (&settle, "again"), (&end, "next")] {
        let mut client = bench.database.client();
        let mut locked = client.transaction().expect("it begins");
        locked
            .batch_execute("lock table tourbillon.timer in share mode")
            .expect("nobody else uses it");
        let mut writer = bench.database.client();
        let complete = thread::scope(|scope| {
            let writing = scope.spawn(move || writer.batch_execute(write));
            bench.wait_for_a_waiting_write();
            let complete = bench.complete();
            locked.rollback().expect("it ends");
            let written = writing.join().expect("it does not panic");
            written.expect("it is accepted");
            complete
        });
        assert_eq!(complete.below, NOBODY, "{key}");
        assert!(bench.due(key) >= complete.at, "{key}");
    }
}
