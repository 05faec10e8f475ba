//! What a support person reads and types in a shell on the file.

use std::time::Duration;

use kit::wait;
use rusqlite::Connection as Raw;
use tourbillon_durable::store::{
    Action, Claim, Connection, Epoch, NewNode, Outcome, Page, Settle, Settlement, Store, StoreTime,
    StoredState, Wanted,
};
use tourbillon_durable::{Due, Durable, rusqlite};

use crate::folder::{Folder, call, schedule_in};

const NODE: Epoch = Epoch(7);
const OTHER: Epoch = Epoch(8);
const HOUR: Duration = Duration::from_secs(3_600);

struct Shop {
    _folder: Folder,
    connection: Box<dyn Connection>,
    shell: Raw,
}

impl Shop {
    fn new() -> Self {
        let folder = Folder::new();
        let mut connection = folder.store().connect().expect("a connection");
        for (epoch, name) in [(NODE, "shop-1"), (OTHER, "shop-2")] {
            let node = NewNode {
                epoch,
                name: name.into(),
                queues: vec!["q".into()],
                schedules: Default::default(),
            };
            connection.join(&node).expect("joined");
        }
        let shell = Raw::open(folder.file()).expect("a connection");
        Shop {
            _folder: folder,
            connection,
            shell,
        }
    }

    fn schedule(&mut self, queue: &str, keys: &[&str], delay: Duration) {
        let calls: Vec<_> = keys
            .iter()
            .map(|key| schedule_in(queue, key, delay))
            .collect();
        for answer in self.connection.write(&calls).expect("written") {
            answer.expect("it is accepted");
        }
    }

    /// Starts runs of these keys, and ends them with this outcome if there is one.
    fn run(&mut self, epoch: Epoch, keys: &[&str], outcome: Option<&Outcome>) {
        let wanted = keys.iter().map(|key| Wanted {
            queue: "q".into(),
            key: (*key).into(),
            crash_limit: 10,
        });
        let claim = Claim {
            epoch,
            deadline: StoreTime::LATEST,
            timers: wanted.collect(),
            adopt: Vec::new(),
        };
        let runs = self.connection.claim(&claim).expect("an answer").runs;
        assert_eq!(runs.len(), keys.len());
        let Some(outcome) = outcome else { return };
        let settlements = runs.into_iter().map(|run| Settlement {
            run: run.run,
            outcome: outcome.clone(),
        });
        let settle = Settle {
            epoch,
            settlements: settlements.collect(),
        };
        self.connection.settle(&settle).expect("an answer");
    }

    /// The rows of a query, with their columns side by side.
    fn ask(&self, sql: &str) -> Vec<String> {
        let mut statement = self
            .shell
            .prepare(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        let columns = statement.column_count();
        let rows = statement.query_map((), |row| {
            let cell = |column| row.get::<_, rusqlite::types::Value>(column);
            let text = |value| match value {
                rusqlite::types::Value::Null => String::new(),
                rusqlite::types::Value::Integer(number) => number.to_string(),
                rusqlite::types::Value::Text(text) => text,
                other => format!("{other:?}"),
            };
            let cells: Result<Vec<_>, _> =
                (0..columns).map(|column| cell(column).map(text)).collect();
            Ok(cells?.join("|"))
        });
        let rows: Result<_, _> = rows.expect("it reads").collect();
        rows.expect("it reads")
    }

    fn tell(&self, sql: &str) {
        self.shell
            .execute_batch(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn states(&self) -> Vec<String> {
        self.ask("select key, state from tourbillon_timers order by key")
    }

    /// The rows that the crate itself shows are the rows of the view.
    fn agrees(&mut self) {
        let mut timers = self.connection.list(&Page::of_all(100)).expect("it reads");
        timers.sort_by(|a, b| (&a.queue, &a.key).cmp(&(&b.queue, &b.key)));
        let sql = "select queue, key, state, node, cancelled, follows, attempt, fails, crashes from tourbillon_timers order by queue, key";
        let shown = timers.iter().map(|timer| {
            let node = timer.node.as_deref().unwrap_or_default();
            let (cancelled, follows) = (u8::from(timer.cancelled), u8::from(timer.follows));
            format!(
                "{}|{}|{}|{node}|{cancelled}|{follows}|{}|{}|{}",
                timer.queue, timer.key, timer.state, timer.attempt, timer.fails, timer.crashes
            )
        });
        assert_eq!(self.ask(sql), shown.collect::<Vec<_>>());
    }
}

#[test]
fn views_show_what_the_crate_shows() {
    let mut shop = Shop::new();
    let keys = [
        "runs",
        "followed",
        "dead",
        "late",
        "left",
        "left, followed",
        "left, cancelled",
        "cancelled",
    ];
    shop.schedule("q", &keys, Duration::ZERO);
    shop.schedule("q", &["waits"], HOUR);
    shop.schedule("stopped", &["k"], Duration::ZERO);
    shop.connection.set_paused("stopped", true).expect("paused");
    shop.run(NODE, &["dead"], Some(&Outcome::Dead("broken".into())));
    shop.run(NODE, &["runs", "followed", "cancelled"], None);
    shop.run(OTHER, &["left", "left, followed", "left, cancelled"], None);
    shop.schedule("q", &["followed", "left, followed"], HOUR);
    for key in ["cancelled", "left, cancelled"] {
        let answers = shop.connection.write(&[call("q", key, Action::Cancel)]);
        answers.expect("written")[0]
            .clone()
            .expect("it is accepted");
    }
    shop.agrees();
    shop.connection.leave(OTHER).expect("it leaves");
    shop.agrees();
    let letters = "select queue, key, error, has_timer, payload from tourbillon_dead_letters";
    assert_eq!(shop.ask(letters), ["q|dead|broken|0|{}"]);
    shop.schedule("q", &["dead"], HOUR);
    assert_eq!(shop.ask(letters), ["q|dead|broken|1|{}"]);
    let queues = "select queue, paused, pending, first_due_utc <= datetime('now', '+1 second'), running, dead
                  from tourbillon_queues order by queue";
    assert_eq!(shop.ask(queues), ["q|0|5|1|3|1", "stopped|1|1|1|0|0"]);
    let nodes = "select name, queues, silent_seconds < 60, gone_utc is null from tourbillon_nodes order by name";
    assert_eq!(
        shop.ask(nodes),
        ["shop-1|[\"q\"]|1|1", "shop-2|[\"q\"]|1|0"]
    );
}

#[test]
fn an_update_moves_timers_and_a_delete_cancels_them() {
    let mut shop = Shop::new();
    shop.schedule("q", &["customer:7:1", "customer:7:2", "customer:8"], HOUR);
    let hurry =
        "update tourbillon_timers set due_utc = datetime('now') where key like 'customer:7:%'";
    shop.tell(hurry);
    assert_eq!(
        shop.states(),
        [
            "customer:7:1|overdue",
            "customer:7:2|overdue",
            "customer:8|waiting"
        ]
    );
    let timer = shop
        .connection
        .get("q", "customer:7:1")
        .expect("it reads")
        .expect("it is there");
    assert_eq!(
        (timer.due, timer.state),
        (timer.planned, StoredState::Overdue)
    );
    shop.tell(
        "update tourbillon_timers set due_utc = '2100-01-01 10:00:00.5' where key = 'customer:8'",
    );
    let due = shop.ask("select due_utc from tourbillon_timers where key = 'customer:8'");
    assert_eq!(due, ["2100-01-01 10:00:00.500000"]);
    for bad in ["'soon'", "null", "''"] {
        let sql = format!("update tourbillon_timers set due_utc = {bad}");
        let error = shop.shell.execute_batch(&sql).expect_err("no time");
        assert!(error.to_string().contains("a UTC time such as"), "{error}");
    }
    // A run is neither moved nor ended. What follows it is.
    shop.run(NODE, &["customer:7:1", "customer:7:2"], None);
    shop.schedule("q", &["customer:7:2"], HOUR);
    let before = shop.ask("select * from tourbillon_timer where key = 'customer:7:1'");
    shop.tell("update tourbillon_timers set due_utc = '2100-01-01'");
    assert_eq!(
        shop.ask("select * from tourbillon_timer where key = 'customer:7:1'"),
        before
    );
    let moved = "select due_utc from tourbillon_timers where key = 'customer:7:2'";
    assert_eq!(shop.ask(moved), ["2100-01-01 00:00:00.000000"]);
    shop.tell("delete from tourbillon_timers where key like 'customer:%'");
    assert_eq!(
        shop.states(),
        ["customer:7:1|running", "customer:7:2|running"]
    );
    shop.agrees();
    shop.connection.leave(NODE).expect("it leaves");
    assert_eq!(shop.states(), [] as [&str; 0]);
    let columns = "update tourbillon_timers set payload = '2'";
    assert!(
        shop.shell.execute_batch(columns).is_err(),
        "only the due time can be set"
    );
}

#[test]
fn a_timer_that_a_gone_node_left_is_moved_as_the_crate_moves_it() {
    let mut shop = Shop::new();
    let keys = ["a", "b", "a followed", "b followed"];
    shop.schedule("q", &keys, Duration::ZERO);
    shop.run(NODE, &keys, None);
    shop.schedule("q", &["a followed", "b followed"], HOUR);
    shop.connection.leave(NODE).expect("it leaves");
    shop.tell("update tourbillon_timers set due_utc = '2100-01-01' where key glob 'a*'");
    let at = StoreTime::from_micros(4_102_444_800_000_000);
    for key in ["b", "b followed"] {
        let action = Action::Reschedule {
            when: tourbillon_durable::DueAt::from(at),
        };
        let answers = shop.connection.write(&[call("q", key, action)]);
        answers.expect("written")[0]
            .clone()
            .expect("it is accepted");
    }
    for (by_hand, by_call) in [("a", "b"), ("a followed", "b followed")] {
        let row = |key: &str| {
            shop.ask(&format!(
                "select due, planned, attempt, fails, crashes, claim is null, since is null, cancelled, follows
                 from tourbillon_timer where key = '{key}'"
            ))
        };
        assert_eq!(row(by_hand), row(by_call));
        assert_eq!(row(by_hand).len(), 1);
    }
}

#[test]
fn letters_are_revived_and_discarded_and_queues_paused() {
    let mut shop = Shop::new();
    shop.schedule("q", &["a", "b", "c", "d"], Duration::ZERO);
    shop.run(
        NODE,
        &["a", "b", "c", "d"],
        Some(&Outcome::Dead("broken".into())),
    );
    shop.schedule("q", &["b"], HOUR);
    // What a gone node has left behind cancelled is no timer.
    shop.schedule("q", &["d"], Duration::ZERO);
    shop.run(OTHER, &["d"], None);
    shop.tell("delete from tourbillon_timers where key = 'd'");
    shop.connection.leave(OTHER).expect("it leaves");
    shop.tell("update tourbillon_dead_letters set revived = 1 where key <> 'c'");
    assert_eq!(shop.states(), ["a|overdue", "b|waiting", "d|overdue"]);
    let letters = "select key from tourbillon_dead_letters order by key";
    assert_eq!(shop.ask(letters), ["b", "c"]);
    shop.tell("update tourbillon_dead_letters set revived = 0");
    shop.tell("delete from tourbillon_dead_letters where key = 'c'");
    assert_eq!(shop.ask(letters), ["b"]);
    shop.agrees();
    // A revived timer lies in the shard of its key, so that nodes find it.
    shop.run(NODE, &["a"], Some(&Outcome::Done));
    let paused = "select paused from tourbillon_queues";
    shop.tell("update tourbillon_queues set paused = 1 where queue = 'q'");
    assert_eq!(shop.ask(paused), ["1"]);
    assert!(shop.connection.counts().expect("it counts")[0].paused);
    shop.tell("update tourbillon_queues set paused = 1");
    shop.tell("update tourbillon_queues set paused = 0");
    assert_eq!(shop.ask(paused), ["0"]);
    assert!(!shop.connection.counts().expect("it counts")[0].paused);
}

/// The part of the guide that follows a heading has one block of SQL.
fn statements(heading: &str) -> impl Iterator<Item = &'static str> {
    let guide = include_str!("../../src/guide/support.md");
    let (_, part) = guide.split_once(heading).expect("the guide has it");
    let (_, block) = part.split_once("```sql\n").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    block.lines().filter(|line| !line.starts_with("--"))
}

#[test]
fn the_statements_of_the_guide_do_what_it_says() {
    let mut shop = Shop::new();
    shop.schedule("pay-by", &["order:7", "customer:7:a", "customer:7:b"], HOUR);
    shop.schedule("q", &["k"], Duration::ZERO);
    shop.run(NODE, &["k"], Some(&Outcome::Dead("no".into())));
    shop.tell("update tourbillon_dead set queue = 'webhook'");
    let mut seen = Vec::new();
    for sql in statements("## SQLite") {
        if sql.starts_with("select") {
            shop.ask(sql);
        } else {
            shop.tell(sql);
        }
        seen.push(shop.states());
    }
    let hurried = [
        "customer:7:a|overdue",
        "customer:7:b|overdue",
        "order:7|waiting",
    ];
    assert_eq!(seen[1], hurried);
    assert_eq!(seen[2], ["order:7|waiting"]);
    assert_eq!(
        seen.last().expect("states"),
        &["k|overdue", "order:7|waiting"]
    );
}

#[test]
fn two_nodes_delete_old_letters_beside_each_other() {
    let folder = Folder::new();
    let start = || {
        Durable::builder(folder.store())
            .handle("other", |_: &Due<()>| ())
            .start()
            .expect("it starts")
    };
    drop(folder.store());
    let shell = Raw::open(folder.file()).expect("a connection");
    let letters = "insert into tourbillon_dead(queue, key, shard, planned, at, attempt, fails, crashes, error, payload)
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 250)
        select 'q', 'old ' || i, 0, 0, 0, 1, 1, 0, 'broken', '1' from n
        union all select 'q', 'young', 0, 0, 1000000 * unixepoch(), 1, 1, 0, 'broken', '1'";
    shell.execute_batch(letters).expect("written");
    let nodes = [start(), start()];
    let left = || -> String {
        let left =
            "select group_concat(key) from (select key from tourbillon_dead order by id limit 2)";
        shell.query_row(left, (), |row| row.get(0)).expect("a row")
    };
    wait::until("the old ones are gone", || left() == "young");
    for node in nodes {
        let stats = node.stats();
        assert_eq!(
            (stats.store_errors, stats.refused, stats.stopped_work),
            (0, 0, 0)
        );
    }
}
