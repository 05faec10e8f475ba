//! A schedule of processes that are killed and stopped, and whose definition changes meanwhile. The
//! processes are this test program, started again: each runs the function `child::process`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use kit::pause::Paused;
use kit::wait;
use postgres::Client;

use crate::cluster::{self, Database};

const EACH_SECOND: &str = "* * * * * *|0";
const EACH_OTHER: &str = "*/2 * * * * *|1";

mod child {
    use std::io::{BufRead, Write};
    use std::time::Duration;

    use tourbillon_durable::{CronSchedule, Due, Durable, Missed, Postgres, RetryPolicy};

    type Failed = Box<dyn std::error::Error + Send + Sync>;

    #[test]
    #[ignore = "a part of other tests, which start it"]
    fn process() {
        let Ok(task) = std::env::var("CRON_TEST_TASK") else {
            return;
        };
        let words: Vec<&str> = task.split('|').collect();
        let [url, expression, revision] = words[..] else {
            panic!("no task: {task}");
        };
        let schedule = CronSchedule::new(expression, "UTC").expect("it is good");
        let schedule = schedule.missed(Missed::All);
        let schedule = schedule.revision(revision.parse().expect("a number"));
        let of_handler = url.to_owned();
        let timers = Durable::builder(Postgres::connect(url).expect("the server answers"))
            .node_lease(Duration::from_secs(1))
            .poll_interval(Duration::from_millis(100))
            .handle("report", move |due: &Due<()>| effect(&of_handler, due))
            .retry(RetryPolicy::fixed(Duration::from_millis(50)).attempts(u32::MAX))
            .cron("tick", schedule, &())
            .start()
            .expect("the server answers");
        let mut out = std::io::stdout().lock();
        writeln!(out, "SAY ready").expect("the parent reads");
        out.flush().expect("the parent reads");
        // The parent closes the pipe, or kills this process.
        std::io::stdin().lock().lines().for_each(drop);
        drop(timers);
    }

    fn effect(url: &str, due: &Due<()>) -> Result<(), Failed> {
        let mut client = postgres::Client::connect(url, postgres::NoTls)?;
        let mut transaction = client.transaction()?;
        transaction.execute("insert into report values ($1)", &[&due.scheduled_for()])?;
        // A kill finds about half of the runs here.
        std::thread::sleep(Duration::from_millis(400));
        due.complete_in(&mut transaction)?;
        Ok(transaction.commit()?)
    }
}

fn start(database: &Database, definition: &str) -> Paused {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command
        .args(["--exact", "killed::child::process"])
        .args(["--ignored", "--nocapture", "--test-threads", "1"])
        .env("CRON_TEST_TASK", format!("{}|{definition}", database.url()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = Paused(command.spawn().expect("a process"));
    let out = process.0.stdout.take().expect("piped");
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    let ready = lines.any(|line| line.contains("SAY ready"));
    assert!(ready, "the process has started");
    // What it prints at its end has to go somewhere.
    std::thread::spawn(move || lines.for_each(drop));
    process
}

fn effects(client: &mut Client) -> Vec<u64> {
    let rows = client.query("select at from report order by at", &[]);
    let seconds = |at: SystemTime| {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.subsec_nanos(), 0);
        since.as_secs()
    };
    rows.unwrap()
        .iter()
        .map(|row| seconds(row.get(0)))
        .collect()
}

fn wait_for_more(client: &mut Client, more: usize) {
    let before = effects(client).len();
    wait::until("occurrences have their effects", || {
        std::thread::sleep(Duration::from_millis(50));
        effects(client).len() >= before + more
    });
}

#[test]
#[cfg_attr(
    not(has_postgres),
    ignore = "needs a PostgreSQL server: apt-get install postgresql"
)]
fn killed_processes_and_a_changed_definition_lose_and_double_no_occurrence() {
    let database = cluster::database();
    let mut client = database.client();
    client
        .batch_execute("create table report(at timestamptz not null)")
        .unwrap();
    let mut processes: Vec<Paused> = (0..3).map(|_| start(&database, EACH_SECOND)).collect();
    // The last process of the old definition starts when the new one is stored.
    let definitions = [
        EACH_SECOND,
        EACH_SECOND,
        EACH_SECOND,
        EACH_OTHER,
        EACH_SECOND,
        EACH_OTHER,
        EACH_OTHER,
        EACH_OTHER,
    ];
    for (round, definition) in definitions.into_iter().enumerate() {
        wait_for_more(&mut client, 2);
        let mut process = processes.remove(0);
        if round % 3 == 2 {
            // It stops by itself.
            drop(process.0.stdin.take());
            process.0.wait().unwrap();
        }
        drop(process);
        processes.push(start(&database, definition));
    }
    wait_for_more(&mut client, 3);
    drop(processes);

    let effects = effects(&mut client);
    let spans: Vec<u64> = effects.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let changed = spans
        .iter()
        .position(|span| *span != 1)
        .expect("the definition has changed");
    assert!(changed >= 4, "{spans:?}");
    // What waits at the change goes with the old definition. Before and after it none is missing, and
    // a second effect would be a span of zero.
    assert!(
        spans[changed + 1..].iter().all(|span| *span == 2),
        "{spans:?}"
    );
    assert!(
        effects[changed + 1..].iter().all(|at| at % 2 == 0),
        "{effects:?}"
    );
    assert!(spans.len() - changed >= 6, "{spans:?}");
}
