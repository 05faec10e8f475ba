//! What the statements of the crate read, as the server itself says it.

use std::time::Duration;

use tourbillon_durable::store::{
    Action, Answer, Band, Call, Claim, Connection, Epoch, NewNode, Offset, Page, Poll, Range,
    SHARDS, Store, StoreTime, Survey, Wanted,
};
use tourbillon_durable::{DueAt, Postgres};

use crate::cluster::{self, Database};

/// The server writes the plan of every statement to its log, with what it has read.
const EXPLAIN: &str = "
    alter database {} set session_preload_libraries = 'auto_explain';
    alter database {} set auto_explain.log_min_duration = 0;
    alter database {} set auto_explain.log_analyze = on;
    alter database {} set auto_explain.log_buffers = on;
    alter database {} set auto_explain.log_nested_statements = on";

/// The queue that is polled, and one with a backlog.
const QUEUE: &str = "busy";
const BACKLOG: &str = "backlog";

/// Queues whose backlog stays: one is paused, one is in no program, and one runs a few timers a
/// second. To the database the last two look alike but for a node that asks for a few rows of one
/// of them.
const PAUSED: &str = "paused";
const UNKNOWN: &str = "unknown";
const PACED: &str = "paced";

struct Planned {
    database: Database,
    connection: Box<dyn Connection>,
}

impl Planned {
    fn new() -> Self {
        let database = cluster::database();
        let store = Postgres::connect(&database.url()).expect("the cluster answers");
        let explain = EXPLAIN.replace("{}", database.name());
        database
            .psql(&explain)
            .expect("auto_explain comes with the server");
        let connection = store.connect().expect("the cluster answers");
        Planned {
            database,
            connection,
        }
    }

    /// The plans of what `work` does.
    fn plans(&mut self, work: impl FnOnce(&mut dyn Connection)) -> Vec<String> {
        let before = cluster::log().len();
        work(&mut *self.connection);
        let log = cluster::log();
        let mut messages: Vec<String> = Vec::new();
        for line in String::from_utf8_lossy(&log[before..]).lines() {
            match (line.strip_prefix('\t'), messages.last_mut()) {
                // The lines of a message after its first one are indented.
                (Some(rest), Some(message)) => {
                    message.push('\n');
                    message.push_str(rest);
                }
                _ => messages.push(line.to_owned()),
            }
        }
        let own = format!("{}|", self.database.name());
        let messages = messages.iter().filter(|message| message.starts_with(&own));
        let plans = messages.filter_map(|message| message.split_once("Query Text: "));
        plans.map(|(_, plan)| plan.to_owned()).collect()
    }

    fn poll(&mut self) -> String {
        self.poll_part(QUEUE, 0..SHARDS, 100)
    }

    fn poll_part(&mut self, queue: &str, shards: std::ops::Range<u16>, limit: u32) -> String {
        let ranges = shards.map(|shard| Range {
            queue: queue.into(),
            shard,
            mark: None,
            until: Offset::Ahead(Duration::from_secs(2)),
            limit,
        });
        let poll = Poll {
            epoch: Epoch(1),
            ranges: ranges.collect(),
            bands: Vec::new(),
            complete: true,
        };
        let plans = self.plans(|connection| {
            connection.poll(&poll).expect("the store reads");
        });
        let poll = plans.into_iter().find(|plan| plan.contains("timer_due"));
        poll.expect("the server has written the plan down")
    }

    /// Overdue timers of a queue, in all shards.
    fn backlog(&self, queue: &str, rows: u32) {
        let insert = format!(
            "insert into tourbillon.timer (queue, key, shard, due, planned, gen, payload) \
             select '{queue}', 'key:' || n, (n * 7) & 63, clock_timestamp() - n * interval '1 ms', \
             clock_timestamp(), n, '1' from generate_series(1, {rows}) n"
        );
        self.database.psql(&insert).expect("rows can be inserted");
    }
}

/// The pages that the statement has read, found in the memory or not.
fn pages(plan: &str) -> u64 {
    let mut lines = plan.lines();
    // The first line is that of the whole plan. There is none if nothing was read.
    let Some(line) = lines.find(|line| line.trim().starts_with("Buffers: shared")) else {
        return 0;
    };
    let of = |word: &str| {
        let number = line
            .split_whitespace()
            .find_map(|part| part.strip_prefix(word));
        number.map_or(0, |number| {
            number
                .trim_end_matches(',')
                .parse::<u64>()
                .expect("a number")
        })
    };
    of("hit=") + of("read=")
}

fn assert_by_index(plan: &str) {
    let mut conditions = plan.lines().filter(|line| line.contains("Index Cond:"));
    let bounded = conditions
        .any(|line| line.contains("due >=") && line.contains("due <") && line.contains("shard ="));
    assert!(bounded, "the due time is no condition of the index: {plan}");
    for word in ["Seq Scan on timer", "Bitmap", "Filter: (due"] {
        assert!(!plan.contains(word), "{word}: {plan}");
    }
    // The timers of a band are sorted by their queues, when its limit has cut them. All else has
    // the order of the index.
    let mut keys = plan.lines().filter(|line| line.contains("Sort Key:"));
    let by_queue = |line: &str| line.contains(".queue COLLATE") && !line.contains(',');
    assert!(keys.all(by_queue), "a sort of timers: {plan}");
}

/// A poll of one queue, while others have so many overdue timers each.
fn poll_beside_backlogs(rows: u32) {
    let mut planned = Planned::new();
    let node = NewNode {
        epoch: Epoch(1),
        name: "plans".to_owned(),
        queues: [QUEUE, PAUSED, PACED].map(Into::into).into(),
        schedules: Default::default(),
    };
    planned.connection.join(&node).expect("the store answers");
    let empty = planned.poll();
    assert_by_index(&empty);
    let before = pages(&empty);
    let check = |plan: &str, state: &str| {
        assert_by_index(plan);
        let now = pages(plan);
        println!("{state}: a poll reads {now} pages, {before} of an empty table");
        assert!(
            now <= 3 * before,
            "{state}: {now} pages instead of {before}: {plan}"
        );
    };

    for queue in [PAUSED, UNKNOWN, PACED] {
        planned.backlog(queue, rows);
    }
    check(&planned.poll(), "without statistics");
    let counted = planned.database.psql("analyze");
    counted.expect("it can be analyzed");
    check(&planned.poll(), "with statistics");
    let paused = planned.connection.set_paused(PAUSED, true);
    paused.expect("the store answers");
    check(&planned.poll(), "beside a paused queue");
    // Some runs a second: one row of one shard.
    let paced = planned.poll_part(PACED, 0..1, 1);
    assert_by_index(&paced);
    assert!(pages(&paced) < 20, "{paced}");
    check(&planned.poll(), "beside a paced queue");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_poll_goes_by_the_index_whatever_stands_in_other_queues() {
    poll_beside_backlogs(50_000);
}

/// `cargo test -p tourbillon-durable --all-features --test postgres -- --ignored a_million_rows`
#[test]
#[ignore = "three million rows, which take half a minute: a step of its own in .ci/run, with --ignored"]
fn a_poll_goes_by_the_index_beside_a_million_rows_of_each_other_queue() {
    poll_beside_backlogs(1_000_000);
}

/// A poll of a node whose queues sleep: bands and no ranges, and the mark of all shards.
fn survey(mark: Option<StoreTime>) -> Poll {
    let bands = (0..SHARDS).map(|shard| Band {
        shard,
        mark,
        until: Offset::Ahead(Duration::from_secs(3)),
        limit: 64,
    });
    Poll {
        epoch: Epoch(1),
        ranges: Vec::new(),
        bands: bands.collect(),
        complete: true,
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_survey_of_ten_thousand_queues_reads_what_is_due_and_not_each_queue() {
    const QUEUES: usize = 10_000;
    let mut planned = Planned::new();
    let name = |number: usize| format!("queue-{number}");
    let node = NewNode {
        epoch: Epoch(1),
        name: "plans".to_owned(),
        queues: (0..QUEUES).map(|number| name(number).into()).collect(),
        schedules: Default::default(),
    };
    planned.connection.join(&node).expect("the store answers");
    let insert = format!(
        "insert into tourbillon.timer (queue, key, shard, due, planned, gen, payload) \
         select 'queue-' || n, 'tomorrow', n & 63, clock_timestamp() + interval '1 day', \
         clock_timestamp(), n, '1' from generate_series(0, {}) n",
        QUEUES - 1
    );
    planned
        .database
        .psql(&insert)
        .expect("rows can be inserted");
    let poll = |planned: &mut Planned, poll: &Poll, state: &str| {
        let mut snapshot = None;
        let plans = planned.plans(|connection| snapshot = connection.poll(poll).ok());
        let plan = plans.into_iter().find(|plan| plan.contains("timer_survey"));
        let plan = plan.expect("the server has written the plan down");
        assert_by_index(&plan);
        println!("{state}: {} pages", pages(&plan));
        (pages(&plan), snapshot.expect("the store answers"))
    };
    for (state, sql) in [
        ("without statistics", "select 1"),
        ("with statistics", "analyze"),
    ] {
        planned.database.psql(sql).expect("an answer");
        let (read, snapshot) = poll(&mut planned, &survey(None), state);
        // Each of them would be two pages at least, in each of 64 shards.
        assert!(read < 64 * 6, "{read} pages");
        assert_eq!(snapshot.survey, Some(Survey::default()));
        // The names of the queues were sent by the first poll only, and are known all the same.
        assert_eq!(snapshot.nodes[0].queues.len(), QUEUES);
    }

    // What is due soon is shown, beside a backlog that is older than the mark.
    planned.backlog(BACKLOG, 50_000);
    let soon = "update tourbillon.timer set due = clock_timestamp() + interval '2 s' where queue = 'queue-77'";
    planned.database.psql(soon).expect("rows can be changed");
    let beat = planned.connection.beat(Epoch(1));
    let now = beat.expect("the store answers").expect("it lives").now;
    let (read, snapshot) = poll(&mut planned, &survey(Some(now)), "beside a backlog");
    assert!(read < 64 * 8, "{read} pages");
    let survey_of = snapshot.survey.expect("it is known");
    let shown: Vec<_> = survey_of
        .parts
        .iter()
        .map(|part| (part.band, &*part.queue))
        .collect();
    assert_eq!(
        (shown, survey_of.cut),
        (vec![(77 & 63, "queue-77")], Vec::new())
    );
    // Without a mark the limits cut it, and it reads no more than they say.
    let (read, snapshot) = poll(&mut planned, &survey(None), "within a backlog");
    assert!(read < 64 * 65 * 3, "{read} pages");
    assert_eq!(
        snapshot.survey.expect("it is known").cut.len(),
        usize::from(SHARDS)
    );
}

/// A node of the backlog's queue, with overdue timers, and a claim of the first of them.
fn claim_of_a_backlog(rows: u32, claimed: u32) -> (Planned, Claim) {
    let mut planned = Planned::new();
    let node = NewNode {
        epoch: Epoch(1),
        name: "plans".to_owned(),
        queues: vec![BACKLOG.into()],
        schedules: Default::default(),
    };
    planned.connection.join(&node).expect("the store answers");
    planned.backlog(BACKLOG, rows);
    let beat = planned.connection.beat(Epoch(1));
    let now = beat.expect("the store answers").expect("it lives").now;
    let wanted = (1..=claimed).map(|number| Wanted {
        queue: BACKLOG.into(),
        key: format!("key:{number}").into(),
        crash_limit: 3,
    });
    let claim = Claim {
        epoch: Epoch(1),
        deadline: now + Duration::from_secs(60),
        timers: wanted.collect(),
        adopt: Vec::new(),
    };
    (planned, claim)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_claim_reads_only_the_rows_that_it_names() {
    let (mut planned, claim) = claim_of_a_backlog(50_000, 100);
    let plans = planned.plans(|connection| {
        let claimed = connection.claim(&claim).expect("the store answers");
        assert_eq!(claimed.runs.len(), 100);
    });
    assert!(plans.iter().any(|plan| plan.contains("timer_pkey")));
    for plan in plans.iter().filter(|plan| plan.contains("timer_pkey")) {
        assert!(!plan.contains("Seq Scan on timer"), "{plan}");
        assert!(pages(plan) < 5_000, "{plan}");
    }
    assert!(plans.iter().map(|plan| pages(plan)).sum::<u64>() > 100);
}

/// The page of each row of the backlog.
const PAGES_OF_ROWS: &str =
    "select string_agg((ctid::text::point)[0]::text, ' ' order by key) from tourbillon.timer";

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_claim_changes_the_rows_where_they_lie() {
    let (mut planned, claim) = claim_of_a_backlog(2_000, 2_000);
    let before = planned.database.psql(PAGES_OF_ROWS).expect("rows");
    let claimed = planned.connection.claim(&claim).expect("the store answers");
    assert_eq!(claimed.runs.len(), 2_000);
    let after = planned.database.psql(PAGES_OF_ROWS).expect("rows");
    let moved = before
        .split(' ')
        .zip(after.split(' '))
        .filter(|(a, b)| a != b);
    // Otherwise each claim writes all indexes of the row too.
    assert_eq!(moved.count(), 0, "rows that went to another page");
}

/// How often the statements have read rows of nodes.
fn scans_of_nodes(plans: &[String]) -> u64 {
    let lines = plans.iter().flat_map(|plan| plan.lines());
    let scans = lines.filter(|line| line.contains(" on node "));
    // The others were never carried out.
    let loops = scans.filter_map(|line| line.rsplit_once("loops="));
    let loops = loops.map(|(_, loops)| {
        let digits = loops.trim_end_matches(')');
        digits.parse::<u64>().expect("a number")
    });
    loops.sum()
}

/// A store with so many runs of the node 2, and the node 1, which has none.
fn beside_runs(runs: u32) -> Planned {
    let (mut planned, _) = claim_of_a_backlog(runs, 0);
    let node = NewNode {
        epoch: Epoch(2),
        name: "busy".to_owned(),
        queues: vec![BACKLOG.into()],
        schedules: Default::default(),
    };
    planned.connection.join(&node).expect("the store answers");
    let run = "update tourbillon.timer set claim = 2, claimed = due, attempt = 1";
    planned.database.psql(run).expect("rows can be changed");
    planned
}

/// The row of a node has a dead version for each of its beats, as long as somebody's transaction
/// stays open.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_nodes_are_read_once_however_many_timers_run() {
    const RUNS: u32 = 500;
    let mut planned = beside_runs(RUNS);
    let mut scans = |what: &str, most: u64, work: &mut dyn FnMut(&mut dyn Connection)| {
        let plans = planned.plans(|connection| work(connection));
        let scans = scans_of_nodes(&plans);
        println!("{what}: nodes are read {scans} times");
        assert!((1..=most).contains(&scans), "{what}: {scans}, {plans:#?}");
    };

    let ranges = (0..SHARDS).map(|shard| Range {
        queue: BACKLOG.into(),
        shard,
        mark: None,
        until: Offset::Ahead(Duration::from_secs(2)),
        limit: 100,
    });
    let poll = Poll {
        epoch: Epoch(1),
        ranges: ranges.collect(),
        bands: Vec::new(),
        complete: true,
    };
    scans("a poll", 1, &mut |connection| {
        let snapshot = connection.poll(&poll).expect("the store reads");
        assert_eq!((snapshot.rows.len(), snapshot.nodes.len()), (0, 2));
    });
    scans("a list", 1, &mut |connection| {
        let timers = connection.list(&Page::first(BACKLOG, RUNS));
        let timers = timers.expect("the store reads");
        assert!(timers.iter().all(|timer| timer.running.is_some()));
        assert_eq!(timers.len(), RUNS as usize);
    });
    scans("the counts", 1, &mut |connection| {
        let counts = connection.counts().expect("the store reads");
        assert_eq!(counts[0].running, u64::from(RUNS));
    });
    let calls: Vec<Call> = (1..=RUNS)
        .map(|number| Call {
            queue: BACKLOG.into(),
            key: format!("key:{number}").into(),
            action: Action::Reschedule {
                when: DueAt::After(Duration::from_secs(60)),
            },
        })
        .collect();
    scans("moves", 1, &mut |connection| {
        let answers = connection.write(&calls).expect("the store answers");
        let is_running = |answer: &_| matches!(answer, Ok(Answer::Running { .. }));
        assert!(answers.iter().all(is_running));
    });

    // One more for the node that claims.
    let wanted = (1..=RUNS).map(|number| Wanted {
        queue: BACKLOG.into(),
        key: format!("key:{number}").into(),
        crash_limit: 3,
    });
    let mut claim = Claim {
        epoch: Epoch(1),
        deadline: StoreTime::LATEST,
        timers: wanted.collect(),
        adopt: Vec::new(),
    };
    scans("a claim of what runs", 2, &mut |connection| {
        let claimed = connection.claim(&claim).expect("the store answers");
        assert_eq!(claimed.runs, []);
    });
    scans("the end of the other node", 3, &mut |connection| {
        connection.leave(Epoch(2)).expect("the store answers");
    });
    claim.timers.truncate(100);
    scans("a claim of what a gone node ran", 2, &mut |connection| {
        let claimed = connection.claim(&claim).expect("the store answers");
        assert_eq!(claimed.runs.len(), 100);
        assert!(claimed.runs.iter().all(|run| run.crashes == 1));
    });
}
