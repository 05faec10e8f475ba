//! Schedules on PostgreSQL, by its own clock: an occurrence each second.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use kit::wait;
use tourbillon_durable::{Cron, Due, Durable, Postgres};

use crate::cluster;

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[test]
#[cfg_attr(
    not(has_postgres),
    ignore = "needs a PostgreSQL server: apt-get install postgresql"
)]
fn each_second_has_its_effect_once_within_the_users_transaction() {
    let database = Arc::new(cluster::lent());
    let mut client = database.client();
    client
        .batch_execute("create table report(at timestamptz primary key, key text not null)")
        .unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let nodes: Vec<Durable> = (0..3)
        .map(|_| {
            let (database, told) = (Arc::clone(&database), Arc::clone(&told));
            Durable::builder(Postgres::connect(&database.url()).unwrap())
                .handle("report", move |due: &Due<u8>| -> Result<(), Failed> {
                    let mut client = database.client();
                    let mut transaction = client.transaction()?;
                    // A second run of an occurrence would fail.
                    let insert = "insert into report values ($1, $2)";
                    transaction.execute(insert, &[&due.scheduled_for(), &due.key()])?;
                    due.complete_in(&mut transaction)?;
                    transaction.commit()?;
                    told.lock().unwrap().push(due.scheduled_for());
                    Ok(())
                })
                .cron("each second", Cron::new("* * * * * *", "UTC").unwrap(), &1)
                .start()
                .unwrap()
        })
        .collect();
    // Made by SQL alone.
    let made = "select tourbillon.schedule('report', 'of sql', interval '0', '1', \
         '{\"cron\": {\"expression\": \"@hourly\", \"zone\": \"UTC\"}}')";
    client.batch_execute(made).unwrap();
    wait::until("five seconds have their effects", || {
        told.lock().unwrap().len() >= 5
    });
    let timer = nodes[0].get("report", "of sql").wait().unwrap().unwrap();
    let hour = Duration::from_secs(3_600);
    let into_hour = timer
        .due
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs()
        % 3_600;
    assert_eq!(into_hour, 0);
    assert!(timer.due > SystemTime::now() && timer.due <= SystemTime::now() + hour);
    for node in &nodes {
        assert_eq!(node.stats().dead, 0);
        assert_eq!(node.stats().fenced, 0);
    }
    drop(nodes);
    let mut told = told.lock().unwrap().clone();
    told.sort();
    // None is left out between the first and the last.
    for pair in told.windows(2) {
        assert_eq!(
            pair[1].duration_since(pair[0]).unwrap(),
            Duration::from_secs(1)
        );
    }
    let rows = client
        .query_one("select count(*) from report", &[])
        .unwrap();
    assert_eq!(rows.get::<_, i64>(0), i64::try_from(told.len()).unwrap());
}
