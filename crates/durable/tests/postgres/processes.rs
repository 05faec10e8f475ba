//! Several processes on one server, and what can happen to them. The processes are this test
//! program, started again: each runs the function `child::process`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use chaos::proxy::{Proxy, Trouble, Way};
use kit::pause::Paused;
use kit::wait;
use postgres::Client;
use tourbillon_durable::store::{Action, Answer, Call, Connection, QueueCounts, Store};
use tourbillon_durable::{CallError, DueAt, Durable, Postgres};

use crate::cluster::{self, Cluster, Database};

const QUEUE: &str = "pay-by";

/// A node in a process of its own. It is told what to do by a variable, and by lines.
mod child {
    use std::error::Error;
    use std::io::{BufRead, Write};
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use postgres::{Client, NoTls};
    use tourbillon_durable::{Due, Durable, DurableEvent, Postgres, RetryPolicy};

    type Fault = Box<dyn Error + Send + Sync>;

    /// A line that the parent reads.
    fn say(line: &str) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "SAY {line}").expect("the parent reads");
        out.flush().expect("the parent reads");
    }

    #[test]
    #[ignore = "a part of other tests, which start it"]
    fn process() {
        let Ok(task) = std::env::var("POSTGRES_TEST_TASK") else {
            return;
        };
        let words: Vec<&str> = task.split('|').collect();
        let [name, url, node_lease, poll] = words[..] else {
            panic!("no task: {task}");
        };
        let millis = |word: &str| Duration::from_millis(word.parse().expect("a number"));
        let (tell, told) = channel();
        let work = Work {
            name: name.to_owned(),
            url: url.to_owned(),
            told: Mutex::new(told),
        };
        let timers = Durable::builder(Postgres::connect(url).expect("the server answers"))
            .name(name)
            .node_lease(millis(node_lease))
            .poll_interval(millis(poll))
            .on_event(|event| {
                if matches!(event, DurableEvent::NodeGone) {
                    say("NodeGone");
                }
            })
            .handle(super::QUEUE, move |due: &Due<()>| work.run(due))
            .retry(RetryPolicy::fixed(Duration::from_millis(50)).attempts(u32::MAX))
            .start()
            .expect("the server answers");
        say("ready");
        // The parent closes the pipe, or kills this process.
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            tell.send(line).expect("the handler lives on");
        }
        drop(timers);
    }

    struct Work {
        name: String,
        url: String,
        told: Mutex<Receiver<String>>,
    }

    impl Work {
        /// Has an effect, which is a row with the name of the process, and ends the run with it.
        /// The key says where the run waits for a line: before its transaction, or before the
        /// commit.
        fn run(&self, due: &Due<()>) -> Result<(), Fault> {
            let key = due.key();
            if key.starts_with("slow") {
                self.wait(key);
            }
            let mut client = Client::connect(&self.url, NoTls)?;
            let mut transaction = client.transaction()?;
            let insert = "insert into effect(key, process, attempt) values ($1, $2, $3)";
            let attempt = i64::from(due.attempt());
            transaction.execute(insert, &[&key, &self.name, &attempt])?;
            if let Err(error) = due.complete_in(&mut transaction) {
                say(&format!("refused {key}: {error}"));
                return Err(error.into());
            }
            if key.starts_with("commit") {
                self.wait(key);
            }
            if let Err(error) = transaction.commit() {
                say(&format!("failed {key}"));
                return Err(error.into());
            }
            Ok(())
        }

        fn wait(&self, key: &str) {
            let told = self.told.lock().expect("nothing panics under it");
            say(&format!("started {key}"));
            told.recv().expect("the parent goes on");
        }
    }
}

/// A process, and what it says.
struct Process {
    name: &'static str,
    process: Paused,
    to: ChildStdin,
    said: Receiver<String>,
}

impl Process {
    /// Starts a process whose node has this lease and poll interval, in milliseconds, and waits
    /// until it has joined.
    fn start(name: &'static str, url: &str, node_lease: u32, poll: u32) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
        command
            .args(["--exact", "processes::child::process"])
            .args(["--ignored", "--nocapture", "--test-threads", "1"])
            .env(
                "POSTGRES_TEST_TASK",
                format!("{name}|{url}|{node_lease}|{poll}"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Paused(command.spawn().expect("a process"));
        let out = process.0.stdout.take().expect("piped");
        let to = process.0.stdin.take().expect("piped");
        let (say, said) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The test harness writes its own words before the first one.
                if let Some((_, said)) = line.split_once("SAY ") {
                    let _ = say.send(said.to_owned());
                }
            }
        });
        let process = Process {
            name,
            process,
            to,
            said,
        };
        process.hear("ready");
        process
    }

    /// Waits until the process says this.
    #[track_caller]
    fn hear(&self, expected: &str) {
        while !wait::next(&self.said).starts_with(expected) {}
    }

    /// Lets a run that waits go on.
    fn go(&mut self) {
        writeln!(self.to, "go").expect("the process reads");
    }

    /// Whether others have declared its node gone since it was last asked what it has said.
    fn was_gone(&self) -> bool {
        self.said().contains(&"NodeGone".to_owned())
    }

    /// What the process has said since it was last asked.
    fn said(&self) -> Vec<String> {
        self.said.try_iter().collect()
    }
}

/// Waits until one of two processes has started the run of a timer. Returns that one first.
#[track_caller]
fn which_started(pair: [Process; 2], key: &str) -> [Process; 2] {
    let line = format!("started {key}");
    let mut started = None;
    wait::until("a process starts the run", || {
        started = pair
            .iter()
            .position(|process| process.said().contains(&line));
        started.is_some()
    });
    let [a, b] = pair;
    if started == Some(0) { [a, b] } else { [b, a] }
}

/// Those who schedule, and count.
struct Shop {
    timers: Durable,
    client: Client,
}

impl Shop {
    fn open(database: &Database) -> Self {
        let store = Postgres::connect(&database.url()).expect("the cluster answers");
        let mut client = database.client();
        let table = "drop table if exists effect;
            create table effect(key text not null, process text not null, attempt bigint not null)";
        client.batch_execute(table).expect("it may");
        let timers = Durable::builder(store)
            .start()
            .expect("the cluster answers");
        Shop { timers, client }
    }

    #[track_caller]
    fn schedule(&self, key: &str, delay: Duration) {
        let scheduled = self.timers.schedule(QUEUE, key, delay, &()).wait();
        scheduled.expect("the cluster answers");
    }

    #[track_caller]
    fn wait_until_nothing_is_left(&self) {
        let left = |of: &QueueCounts| of.waiting + of.overdue + of.running + of.dead;
        wait::until("no timer is left", || {
            let counts = self.timers.counts().wait();
            counts.is_ok_and(|counts| counts.iter().map(left).sum::<u64>() == 0)
        });
    }

    /// The effects of each key: the process, and the number of the run.
    fn effects(&mut self) -> BTreeMap<String, Vec<(String, i64)>> {
        let rows = self
            .client
            .query("select key, process, attempt from effect", &[]);
        let mut effects: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for row in rows.expect("it reads") {
            let effect = (row.get(1), row.get(2));
            effects.entry(row.get(0)).or_default().push(effect);
        }
        effects
    }

    fn effects_of(&mut self, key: &str) -> Vec<(String, i64)> {
        self.effects().remove(key).unwrap_or_default()
    }
}

fn effect(process: &Process, attempt: i64) -> Vec<(String, i64)> {
    vec![(process.name.to_owned(), attempt)]
}

fn two_processes(database: &Database, node_lease: u32) -> [Process; 2] {
    ["a", "b"].map(|name| Process::start(name, &database.url(), node_lease, 50))
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn processes_share_the_work_by_affinity() {
    let database = cluster::lent();
    let mut shop = Shop::open(&database);
    let url = database.url();
    let _processes = ["a", "b", "c"].map(|name| Process::start(name, &url, 5_000, 200));
    let store = Postgres::connect(&url).expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    // They learn of each other by polls, and on a busy machine they help each other out. Without
    // affinity the runs of 240 timers in 64 shards come to three fifths, and to four fifths never.
    wait::until("a batch is shared by affinity", || {
        let runs = runs_of_a_batch(&mut shop, &mut *connection);
        let owned = runs.values().filter_map(|of_shard| of_shard.values().max());
        let mut of_processes: BTreeMap<&str, usize> = BTreeMap::new();
        for (process, runs) in runs.values().flatten() {
            *of_processes.entry(process).or_default() += runs;
        }
        owned.sum::<usize>() >= BATCH * 4 / 5
            && of_processes.len() == 3
            && of_processes.values().all(|runs| *runs >= BATCH / 10)
    });
}

/// The timers of a batch.
const BATCH: usize = 240;

/// Schedules timers and waits for their runs. Returns how many timers of each shard each process
/// has run.
fn runs_of_a_batch(
    shop: &mut Shop,
    connection: &mut dyn Connection,
) -> BTreeMap<u16, BTreeMap<String, usize>> {
    let calls = (0..BATCH).map(|number| Call {
        queue: QUEUE.into(),
        key: format!("{number}").into(),
        action: Action::Schedule {
            when: DueAt::After(Duration::from_millis(300 + number as u64)),
            payload: "null".into(),
        },
    });
    let calls: Vec<Call> = calls.collect();
    let answers = connection.write(&calls).expect("they are accepted");
    shop.wait_until_nothing_is_left();
    let effects = shop.effects();
    let emptied = shop.client.batch_execute("truncate effect");
    emptied.expect("nobody writes");
    assert_eq!(effects.len(), BATCH);
    let mut runs: BTreeMap<u16, BTreeMap<String, usize>> = BTreeMap::new();
    for (call, answer) in calls.iter().zip(answers) {
        let Ok(Answer::Scheduled { shard, .. }) = answer else {
            panic!("{answer:?}");
        };
        let [(process, _)] = &effects[&*call.key][..] else {
            panic!("{}: {:?}", call.key, effects[&*call.key]);
        };
        let of_shard = runs.entry(shard).or_default();
        *of_shard.entry(process.clone()).or_default() += 1;
    }
    runs
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_timers_of_a_process_that_is_killed_run_in_another_one() {
    let database = cluster::lent();
    let mut shop = Shop::open(&database);
    let pair = two_processes(&database, 500);
    shop.schedule("slow", Duration::ZERO);
    let [killed, mut other] = which_started(pair, "slow");
    for number in 0..40 {
        shop.schedule(&format!("{number}"), Duration::from_millis(number * 5));
    }
    drop(killed);
    other.hear("started slow");
    other.go();
    shop.wait_until_nothing_is_left();
    assert_eq!(shop.effects_of("slow"), effect(&other, 2));
    let effects = shop.effects();
    assert_eq!(effects.len(), 41);
    assert!(
        effects.values().all(|effects| effects.len() == 1),
        "{effects:?}"
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_process_that_stood_still_for_longer_than_its_term_does_not_end_its_run() {
    let database = cluster::lent();
    let mut shop = Shop::open(&database);
    let pair = two_processes(&database, 500);
    shop.schedule("slow", Duration::ZERO);
    let [mut stopped, mut other] = which_started(pair, "slow");
    stopped.process.stop();
    // Only a process that was declared gone has its runs taken over.
    other.hear("started slow");
    other.go();
    shop.wait_until_nothing_is_left();
    stopped.go();
    stopped.process.go_on();
    stopped.hear("refused slow");
    assert_eq!(shop.effects_of("slow"), effect(&other, 2));
    // Under a new epoch it goes on.
    drop(other);
    shop.schedule("next", Duration::ZERO);
    shop.wait_until_nothing_is_left();
    assert_eq!(shop.effects_of("next"), effect(&stopped, 1));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn an_answer_that_is_lost_after_the_commit_neither_doubles_nor_loses_anything() {
    let database = cluster::lent();
    let mut shop = Shop::open(&database);
    let path = Proxy::before(
        (Ipv4Addr::LOCALHOST, database.port()).into(),
        Duration::ZERO,
    );
    let path = path.expect("a port is free");
    let url = database.url_by(path.port());
    let mut process = Process::start("a", &url, 500, 50);
    shop.schedule("commit", Duration::ZERO);
    process.hear("started commit");
    // Answers to its beats, polls and claims are lost, too.
    path.begin(Trouble::CutAfter(0), Way::Down);
    process.go();
    process.hear("failed commit");
    path.end();
    shop.wait_until_nothing_is_left();
    assert_eq!(shop.effects_of("commit"), effect(&process, 1));
    shop.schedule("next", Duration::ZERO);
    shop.wait_until_nothing_is_left();
    assert_eq!(shop.effects_of("next"), effect(&process, 1));

    // The same of a call: its caller learns that the timer may be there, and finds it.
    let store = Postgres::connect(&url).expect("the server answers");
    let remote = Durable::builder(store).start().expect("the server answers");
    let minute = Duration::from_secs(60);
    // Each connection of the calls knows its statements before its answer is lost.
    for number in 0..20 {
        let key = format!("{number}");
        remote
            .schedule("other", &key, minute, &())
            .wait()
            .expect("the server answers");
    }
    path.begin(Trouble::CutAfter(0), Way::Down);
    let lost = remote.schedule("other", "lost", minute, &()).wait();
    path.end();
    assert!(matches!(lost, Err(CallError::Unknown(_))), "{lost:?}");
    wait::until("the timer is found", || {
        remote
            .get("other", "lost")
            .wait()
            .is_ok_and(|found| found.is_some())
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn processes_outlive_the_end_of_all_their_connections() {
    let database = cluster::lent();
    let mut shop = Shop::open(&database);
    // Long enough that a busy machine lets both beat in time on their new connections.
    let pair = two_processes(&database, 10_000);
    shop.schedule("slow", Duration::ZERO);
    let [mut process, other] = which_started(pair, "slow");
    let ended = format!(
        "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity \
         where datname = '{}' and application_name = 'tourbillon'",
        database.name()
    );
    let ended = database.psql(&ended).expect("it may end them");
    assert!(ended.parse::<u32>().expect("a number") >= 6, "{ended}");
    for number in 0..40 {
        let key = format!("{number}");
        // The first call on each connection learns that it has ended.
        wait::until("the call is accepted", || {
            shop.timers
                .schedule(QUEUE, &key, Duration::ZERO, &())
                .wait()
                .is_ok()
        });
    }
    process.go();
    shop.wait_until_nothing_is_left();
    // The run went on all the time.
    assert_eq!(shop.effects_of("slow"), effect(&process, 1));
    assert_eq!(shop.effects().keys().collect::<BTreeSet<_>>().len(), 41);
    assert!(!process.was_gone() && !other.was_gone());
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn nobody_is_declared_gone_since_the_server_was_down_for_longer_than_the_term() {
    // Long enough that a busy machine lets the second process beat in time once it may.
    const NODE_LEASE: u32 = 6_000;
    const POLL: Duration = Duration::from_millis(50);
    let mut cluster = Cluster::durable();
    let database = cluster.database();
    let mut shop = Shop::open(&database);
    let path = Proxy::before((Ipv4Addr::LOCALHOST, cluster.port()).into(), Duration::ZERO);
    let path = path.expect("a port is free");
    let url = database.url_by(path.port());
    let first = Process::start("first", &database.url(), NODE_LEASE, 50);
    let second = Process::start("second", &url, NODE_LEASE, 50);
    for number in 0..90 {
        shop.schedule(&format!("{number}"), Duration::from_millis(number * 40));
    }
    wait::until("some have run", || shop.effects().len() >= 5);
    // As in a crash of the server, twice: the second time it stays away.
    cluster.restart();
    shop.client = database.client();
    let before = shop.effects().len();
    wait::until("they go on", || shop.effects().len() > before);
    // Due after the outage, however long the first one took.
    let outage = Duration::from_millis(u64::from(NODE_LEASE) * 5 / 4);
    for number in 0..60_u32 {
        let (key, delay) = (format!("later {number}"), outage + POLL * number / 2);
        // The first call on each connection learns that it has ended.
        wait::until("the call is accepted", || {
            shop.timers.schedule(QUEUE, &key, delay, &()).wait().is_ok()
        });
    }
    cluster.crash();
    path.begin(Trouble::Cut, Way::Both);
    // The outage has to be longer than the lease: time is what this test is about.
    thread::sleep(outage);
    cluster.restart();
    shop.client = database.client();
    // One process is back before the other, and sees a beat that is older than the lease.
    let before = shop.effects().len();
    wait::until("one goes on", || shop.effects().len() > before);
    path.end();
    shop.wait_until_nothing_is_left();
    shop.schedule("last", Duration::ZERO);
    shop.wait_until_nothing_is_left();
    let effects = shop.effects();
    assert_eq!(effects.len(), 151);
    assert!(
        effects.values().all(|effects| effects.len() == 1),
        "{effects:?}"
    );
    let nodes = "select count(*), count(gone) from tourbillon.node";
    assert_eq!(database.psql(nodes).as_deref(), Ok("2|0"));
    assert!(!first.was_gone() && !second.was_gone());
}
