//! Every state of a row, with every call. The tables are written from the text of the design, and
//! list what is written and what is answered.
//!
//! A row is shown as `due planned generation attempt fails crashes holder mark payload`. Times are
//! seconds from now.

use std::fmt::Write as _;

use super::*;
use crate::store::DueAt;

const NOW: StoreTime = StoreTime::from_micros(1_000_000_000);
const LIVE: Epoch = Epoch(1);
const GONE: Epoch = Epoch(2);
const CLAIMER: Epoch = Epoch(3);
const CRASH_LIMIT: u32 = 5;

fn at(seconds: i64) -> StoreTime {
    StoreTime::from_micros(NOW.as_micros() + seconds * 1_000_000)
}

fn row(due: i64, holder: Option<Epoch>) -> Row {
    Row {
        shard: 9,
        due: at(due),
        planned: at(-60),
        generation: 7,
        attempt: 2,
        fails: 1,
        crashes: 1,
        claim: holder.map(|epoch| Hold {
            epoch,
            since: at(-5),
        }),
        cancelled: false,
        follows: false,
        payload: "old".into(),
    }
}

fn followed(due: i64, row: &Row) -> Row {
    Row {
        due: at(due),
        planned: at(due),
        follows: true,
        payload: "next".into(),
        ..row.clone()
    }
}

fn cancelled(row: Row) -> Row {
    Row {
        cancelled: true,
        ..row
    }
}

/// Every state of a row.
fn states() -> Vec<(&'static str, Option<Row>)> {
    let waiting = row(30, None);
    let live = row(-10, Some(LIVE));
    let gone = row(-10, Some(GONE));
    let at_limit = |row| Row { crashes: 4, ..row };
    vec![
        ("absent", None),
        ("waiting", Some(waiting)),
        ("overdue", Some(row(-10, None))),
        ("waiting past the limit", {
            let crashes = CRASH_LIMIT + 1;
            Some(Row {
                crashes,
                ..row(-10, None)
            })
        }),
        ("held", Some(live.clone())),
        ("held, followed", Some(followed(40, &live))),
        ("held, followed, due", Some(followed(-3, &live))),
        ("held, cancelled", Some(cancelled(live))),
        ("gone", Some(gone.clone())),
        // The clock was set back since the claim.
        ("gone, not due", Some(row(30, Some(GONE)))),
        ("gone, followed", Some(followed(40, &gone))),
        ("gone, followed, due", Some(followed(-3, &gone))),
        ("gone, cancelled", Some(cancelled(gone.clone()))),
        ("gone, last crash", Some(at_limit(gone.clone()))),
        // What is decided first spares the dead letter.
        (
            "gone, last crash, followed",
            Some(at_limit(followed(40, &gone))),
        ),
        (
            "gone, last crash, cancelled",
            Some(at_limit(cancelled(gone))),
        ),
    ]
}

fn seconds(time: StoreTime) -> String {
    let micros = time.as_micros() - NOW.as_micros();
    assert_eq!(micros % 1_000_000, 0, "{time:?}");
    match micros / 1_000_000 {
        0 => "now".to_owned(),
        seconds => format!("{seconds:+}"),
    }
}

fn show_row(row: &Row) -> String {
    assert_eq!(row.shard, 9, "a timer never changes its shard");
    assert!(
        row.claim.is_some() || !(row.follows || row.cancelled),
        "ROW-1: {row:?}"
    );
    assert!(!(row.follows && row.cancelled), "ROW-1: {row:?}");
    let mut shown = format!(
        "{} {} g{} a{} f{} c{}",
        seconds(row.due),
        seconds(row.planned),
        row.generation,
        row.attempt,
        row.fails,
        row.crashes
    );
    match row.claim {
        Some(hold) => {
            let Epoch(holder) = hold.epoch;
            let since = seconds(hold.since);
            write!(shown, " held by {holder} since {since}").expect("a string");
        }
        None => shown.push_str(" free"),
    }
    if row.cancelled {
        shown.push_str(" cancelled");
    }
    if row.follows {
        shown.push_str(" follows");
    }
    write!(shown, " {}", &*row.payload).expect("a string");
    shown
}

fn show_change(change: &Change) -> String {
    match change {
        Change::Keep => "keep".to_owned(),
        Change::Put(row) => format!("put {}", show_row(row)),
        Change::Delete => "delete".to_owned(),
        Change::Bury(row, error) => format!("bury {}: {error}", show_row(row)),
        Change::BuryThen { dead, error, row } => {
            format!("bury {}: {error}; put {}", show_row(dead), show_row(row))
        }
    }
}

fn show_answer(answer: Answer) -> String {
    let flag = |running| if running { " running" } else { "" };
    match answer {
        Answer::Scheduled {
            due,
            shard,
            replaced,
            running,
        } => {
            assert_eq!(shard, 9);
            let replaced = replaced.map_or(String::new(), |due| format!(" for {}", seconds(due)));
            format!("Scheduled {}{replaced}{}", seconds(due), flag(running))
        }
        Answer::Exists { due, running } => format!("Exists {}{}", seconds(due), flag(running)),
        Answer::Moved {
            from,
            to,
            shard,
            running,
        } => {
            assert_eq!(shard, 9);
            let (from, to) = (seconds(from), seconds(to));
            format!("Moved {from} to {to}{}", flag(running))
        }
        Answer::Cancelled { due } => format!("Cancelled {}", seconds(due)),
        Answer::Running { attempt, since } => format!("Running a{attempt} {}", seconds(since)),
        Answer::NotFound => "NotFound".to_owned(),
    }
}

/// Calls `act` with a context in which all nodes but `GONE` live, and generations begin at 100.
fn in_context<T>(act: impl FnOnce(&mut StoreContext<'_>) -> T) -> T {
    let mut last = 99;
    act(&mut StoreContext {
        now: NOW,
        is_live: &|epoch| epoch != GONE,
        generation: &mut || {
            last += 1;
            last
        },
    })
}

/// Compares what happens in each state with the table, which has a line for each state.
fn check(call: &str, table: &[(&str, &str)], act: impl Fn(Option<Row>) -> String) {
    let states = states();
    assert_eq!(states.len(), table.len(), "{call}");
    for ((state, row), (named, expected)) in states.into_iter().zip(table) {
        assert_eq!(state, *named, "{call}: the order of the table");
        assert_eq!(act(row), *expected, "{call} of a row that is {state}");
    }
}

fn check_action(call: &str, action: &Action, table: &[(&str, &str)]) {
    check(call, table, |row| {
        let (change, answer) = in_context(|context| apply(row, 9, action.clone(), context));
        format!("{} | {}", show_change(&change), show_answer(answer))
    });
}

const MINUTE: DueAt = DueAt::After(Duration::from_secs(60));

#[test]
fn schedule_replaces_a_free_timer_and_follows_a_live_run() {
    let action = Action::Schedule {
        when: MINUTE,
        payload: "new".into(),
    };
    let fresh = "put +60 +60 g100 a0 f0 c0 free new";
    let follows = "put +60 +60 g7 a2 f1 c1 held by 1 since -5 follows new";
    check_action(
        "schedule",
        &action,
        &[
            ("absent", &format!("{fresh} | Scheduled +60")),
            ("waiting", &format!("{fresh} | Scheduled +60 for +30")),
            ("overdue", &format!("{fresh} | Scheduled +60 for -10")),
            (
                "waiting past the limit",
                &format!("{fresh} | Scheduled +60 for -10"),
            ),
            ("held", &format!("{follows} | Scheduled +60 running")),
            (
                "held, followed",
                &format!("{follows} | Scheduled +60 for +40 running"),
            ),
            (
                "held, followed, due",
                &format!("{follows} | Scheduled +60 for -3 running"),
            ),
            (
                "held, cancelled",
                &format!("{follows} | Scheduled +60 running"),
            ),
            ("gone", &format!("{fresh} | Scheduled +60 for -10")),
            ("gone, not due", &format!("{fresh} | Scheduled +60 for +30")),
            (
                "gone, followed",
                &format!("{fresh} | Scheduled +60 for +40"),
            ),
            (
                "gone, followed, due",
                &format!("{fresh} | Scheduled +60 for -3"),
            ),
            ("gone, cancelled", &format!("{fresh} | Scheduled +60")),
            (
                "gone, last crash",
                &format!("{fresh} | Scheduled +60 for -10"),
            ),
            (
                "gone, last crash, followed",
                &format!("{fresh} | Scheduled +60 for +40"),
            ),
            (
                "gone, last crash, cancelled",
                &format!("{fresh} | Scheduled +60"),
            ),
        ],
    );
}

#[test]
fn schedule_if_absent_changes_no_timer_that_is_there() {
    let action = Action::ScheduleIfAbsent {
        when: MINUTE,
        payload: "new".into(),
    };
    let fresh = "put +60 +60 g100 a0 f0 c0 free new | Scheduled +60";
    check_action(
        "schedule if absent",
        &action,
        &[
            ("absent", fresh),
            ("waiting", "keep | Exists +30"),
            ("overdue", "keep | Exists -10"),
            ("waiting past the limit", "keep | Exists -10"),
            ("held", "keep | Exists -10 running"),
            ("held, followed", "keep | Exists +40 running"),
            ("held, followed, due", "keep | Exists -3 running"),
            ("held, cancelled", "keep | Exists -10 running"),
            // The crash is left for the claim to count.
            ("gone", "keep | Exists -10"),
            ("gone, not due", "keep | Exists +30"),
            ("gone, followed", "keep | Exists +40"),
            ("gone, followed, due", "keep | Exists -3"),
            ("gone, cancelled", fresh),
            ("gone, last crash", "keep | Exists -10"),
            ("gone, last crash, followed", "keep | Exists +40"),
            ("gone, last crash, cancelled", fresh),
        ],
    );
}

#[test]
fn reschedule_moves_what_has_not_started() {
    let action = Action::Reschedule { when: MINUTE };
    let moved = "put +60 +60 g7 a2 f0 c0 free old";
    let moved_next = "put +60 +60 g100 a0 f0 c0 free next";
    let follows = "put +60 +60 g7 a2 f1 c1 held by 1 since -5 follows next";
    check_action(
        "reschedule",
        &action,
        &[
            ("absent", "keep | NotFound"),
            ("waiting", &format!("{moved} | Moved +30 to +60")),
            ("overdue", &format!("{moved} | Moved -10 to +60")),
            (
                "waiting past the limit",
                &format!("{moved} | Moved -10 to +60"),
            ),
            ("held", "keep | Running a2 -5"),
            (
                "held, followed",
                &format!("{follows} | Moved +40 to +60 running"),
            ),
            (
                "held, followed, due",
                &format!("{follows} | Moved -3 to +60 running"),
            ),
            ("held, cancelled", "keep | Running a2 -5"),
            ("gone", &format!("{moved} | Moved -10 to +60")),
            ("gone, not due", &format!("{moved} | Moved +30 to +60")),
            (
                "gone, followed",
                &format!("{moved_next} | Moved +40 to +60"),
            ),
            (
                "gone, followed, due",
                &format!("{moved_next} | Moved -3 to +60"),
            ),
            ("gone, cancelled", "delete | NotFound"),
            ("gone, last crash", &format!("{moved} | Moved -10 to +60")),
            (
                "gone, last crash, followed",
                &format!("{moved_next} | Moved +40 to +60"),
            ),
            ("gone, last crash, cancelled", "delete | NotFound"),
        ],
    );
}

#[test]
fn cancel_deletes_a_free_timer_and_marks_a_live_run() {
    let marked = "put -10 -60 g7 a2 f1 c1 held by 1 since -5 cancelled old | Running a2 -5";
    check_action(
        "cancel",
        &Action::Cancel,
        &[
            ("absent", "keep | NotFound"),
            ("waiting", "delete | Cancelled +30"),
            ("overdue", "delete | Cancelled -10"),
            ("waiting past the limit", "delete | Cancelled -10"),
            ("held", marked),
            (
                "held, followed",
                "put now now g7 a2 f1 c1 held by 1 since -5 cancelled next | Running a2 -5",
            ),
            (
                "held, followed, due",
                "put now now g7 a2 f1 c1 held by 1 since -5 cancelled next | Running a2 -5",
            ),
            ("held, cancelled", "keep | Running a2 -5"),
            ("gone", "delete | Cancelled -10"),
            ("gone, not due", "delete | Cancelled +30"),
            ("gone, followed", "delete | Cancelled +40"),
            ("gone, followed, due", "delete | Cancelled -3"),
            ("gone, cancelled", "delete | NotFound"),
            ("gone, last crash", "delete | Cancelled -10"),
            ("gone, last crash, followed", "delete | Cancelled +40"),
            ("gone, last crash, cancelled", "delete | NotFound"),
        ],
    );
}

#[test]
fn claim_takes_what_is_due_and_counts_the_crash_of_a_gone_node() {
    let table = [
        ("waiting", "keep"),
        ("overdue", "run -10 -60 g7 a3 f1 c1 held by 3 since now old"),
        // Only another crash buries it: the limit may have been lowered since.
        (
            "waiting past the limit",
            "run -10 -60 g7 a3 f1 c6 held by 3 since now old",
        ),
        ("held", "keep"),
        ("held, followed", "keep"),
        ("held, followed, due", "keep"),
        ("held, cancelled", "keep"),
        ("gone", "run -10 -60 g7 a3 f1 c2 held by 3 since now old"),
        ("gone, not due", "put +30 -60 g7 a2 f1 c2 free old"),
        ("gone, followed", "put +40 +40 g100 a0 f0 c0 free next"),
        (
            "gone, followed, due",
            "run -3 -3 g100 a1 f0 c0 held by 3 since now next",
        ),
        ("gone, cancelled", "delete"),
        (
            "gone, last crash",
            "bury -10 -60 g7 a2 f1 c5 free old: the process that ran it ended 5 times during the run",
        ),
        (
            "gone, last crash, followed",
            "put +40 +40 g100 a0 f0 c0 free next",
        ),
        ("gone, last crash, cancelled", "delete"),
    ];
    let states = states().into_iter().filter_map(|(s, row)| Some((s, row?)));
    let mut checked = 0;
    for ((state, row), (named, expected)) in states.zip(table) {
        assert_eq!(state, named, "the order of the table");
        let claimed = in_context(|context| match claim(row, CLAIMER, CRASH_LIMIT, context) {
            Claiming::Run(row) => format!("run {}", show_row(&row)),
            Claiming::Not(change) => show_change(&change),
        });
        assert_eq!(claimed, expected, "claim of a row that is {state}");
        checked += 1;
    }
    assert_eq!(checked, table.len());
}

#[test]
fn revive_needs_a_free_key() {
    let fresh = "now now g100 a0 f0 c0 free letter";
    check(
        "revive",
        &[
            ("absent", fresh),
            ("waiting", "exists"),
            ("overdue", "exists"),
            ("waiting past the limit", "exists"),
            ("held", "exists"),
            ("held, followed", "exists"),
            ("held, followed, due", "exists"),
            ("held, cancelled", "exists"),
            ("gone", "exists"),
            ("gone, not due", "exists"),
            ("gone, followed", "exists"),
            ("gone, followed, due", "exists"),
            ("gone, cancelled", fresh),
            ("gone, last crash", "exists"),
            ("gone, last crash, followed", "exists"),
            ("gone, last crash, cancelled", fresh),
        ],
        |row| {
            let revived = in_context(|context| revive(row, 9, "letter".into(), context));
            revived.map_or_else(|| "exists".to_owned(), |row| show_row(&row))
        },
    );
}

#[test]
fn users_read_no_claim_of_a_gone_node() {
    check(
        "get",
        &[
            ("absent", "none"),
            ("waiting", "+30 free"),
            ("overdue", "-10 free"),
            ("waiting past the limit", "-10 free"),
            ("held", "-10 running since -5"),
            ("held, followed", "+40 running since -5, followed by this"),
            (
                "held, followed, due",
                "-3 running since -5, followed by this",
            ),
            ("held, cancelled", "-10 running since -5, cancelled"),
            ("gone", "-10 free"),
            ("gone, not due", "+30 free"),
            ("gone, followed", "+40 free, new"),
            ("gone, followed, due", "-3 free, new"),
            ("gone, cancelled", "none"),
            ("gone, last crash", "-10 free"),
            ("gone, last crash, followed", "+40 free, new"),
            ("gone, last crash, cancelled", "none"),
        ],
        |row| {
            let timer = row.and_then(|row| {
                timer("q", "k", &row, false, NOW, &|epoch| {
                    (epoch != GONE).then(String::new)
                })
            });
            let Some(timer) = timer else {
                return "none".to_owned();
            };
            assert_eq!((&*timer.queue, &*timer.key), ("q", "k"));
            let mut shown = seconds(timer.due);
            match timer.running {
                Some(since) => write!(shown, " running since {}", seconds(since)),
                None => write!(shown, " free"),
            }
            .expect("a string");
            let payload = match (timer.attempt, timer.fails, timer.follows) {
                (2, 1, false) => "old",
                (2, 1, true) => {
                    shown.push_str(", followed by this");
                    "next"
                }
                (attempt, ..) => {
                    assert_eq!((attempt, timer.fails, timer.crashes), (0, 0, 0));
                    shown.push_str(", new");
                    "next"
                }
            };
            assert_eq!(&*timer.payload, payload);
            if timer.cancelled {
                shown.push_str(", cancelled");
            }
            shown
        },
    );
}

#[test]
fn settle_decides_by_what_follows_then_cancel_then_outcome() {
    let second = Duration::from_secs(1);
    let outcomes = [
        Outcome::Done,
        Outcome::Again(second),
        Outcome::Retry(second),
        Outcome::Dead("broken".to_owned()),
        Outcome::GiveBack(second),
        Outcome::GiveBack(Duration::ZERO),
    ];
    let later = "put +40 +40 g100 a0 f0 c0 free next, Ended";
    let at_once = "put now -3 g100 a0 f0 c0 free next, Ended";
    let table = [
        (
            "held",
            [
                "delete, Ended",
                "put +1 +1 g100 a0 f0 c0 free old, Waits",
                "put +1 -60 g7 a2 f2 c1 free old, Waits",
                "bury -10 -60 g7 a2 f2 c1 free old: broken, Buried",
                "put +1 -60 g7 a2 f1 c1 free old, Waits",
                // ROW-2: not at its old place, which may lie behind a mark.
                "put now -60 g7 a2 f1 c1 free old, Waits",
            ],
        ),
        ("held, followed", [later; 6]),
        ("held, followed, due", [at_once; 6]),
        ("held, cancelled", ["delete, Ended"; 6]),
    ];
    let held: Vec<_> = states()
        .into_iter()
        .filter(|(state, _)| state.starts_with("held"))
        .collect();
    assert_eq!(held.len(), table.len());
    for ((state, row), (named, expected)) in held.into_iter().zip(table) {
        assert_eq!(state, named, "the order of the table");
        let row = row.expect("it is held");
        for (outcome, expected) in outcomes.iter().zip(expected) {
            let (change, settled) = in_context(|context| settle(row.clone(), outcome, context));
            let shown = format!("{}, {settled:?}", show_change(&change));
            assert_eq!(shown, expected, "{outcome:?} of a row that is {state}");
        }
    }
}

#[test]
fn the_fence_is_node_generation_and_attempt() {
    let held = row(-10, Some(LIVE));
    assert!(is_held(&held, LIVE, 7, 2));
    assert!(!is_held(&held, GONE, 7, 2));
    assert!(!is_held(&held, LIVE, 8, 2));
    assert!(!is_held(&held, LIVE, 7, 1));
    assert!(!is_held(&held, LIVE, 7, 3));
    assert!(!is_held(&row(-10, None), LIVE, 7, 2));
}

#[test]
fn a_run_starts_late_only_if_nothing_was_scheduled_or_cancelled_since() {
    let held = row(-10, Some(LIVE));
    assert!(may_start(&held));
    assert!(!may_start(&followed(40, &held)));
    assert!(!may_start(&followed(-3, &held)));
    assert!(!may_start(&cancelled(held)));
}

#[test]
fn a_new_due_time_is_neither_in_the_past_nor_after_the_last_one() {
    let at_times = [
        (DueAt::from(at(-100)), NOW),
        (DueAt::from(StoreTime::from_micros(i64::MIN)), NOW),
        (DueAt::from(at(7)), at(7)),
        (
            DueAt::from(StoreTime::from_micros(i64::MAX)),
            StoreTime::LATEST,
        ),
        (DueAt::After(Duration::ZERO), NOW),
        (
            DueAt::After(Duration::from_nanos(1)),
            StoreTime::from_micros(NOW.as_micros() + 1),
        ),
        (DueAt::After(Duration::MAX), StoreTime::LATEST),
    ];
    for (when, due) in at_times {
        assert_eq!(when.due(NOW), due, "{when:?}");
    }
    for outcome in [Outcome::Again(Duration::MAX), Outcome::Retry(Duration::MAX)] {
        let row = row(-10, Some(LIVE));
        let (change, _) = in_context(|context| settle(row, &outcome, context));
        assert!(matches!(change, Change::Put(row) if row.due == StoreTime::LATEST));
    }
}

/// All sequences of six calls: ROW-1 holds, a fence that was passed on never opens again, and a
/// cancel tells the truth. After `Cancelled` and `Running` no run of that generation starts.
#[test]
fn no_sequence_of_calls_breaks_an_invariant() {
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Schedule,
        Reschedule,
        Cancel,
        Claim(Epoch),
        Settle(usize),
        Die,
    }
    let outcomes = [
        Outcome::Done,
        Outcome::Again(Duration::ZERO),
        Outcome::Retry(Duration::ZERO),
        Outcome::GiveBack(Duration::ZERO),
    ];
    let steps = [
        Step::Schedule,
        Step::Reschedule,
        Step::Cancel,
        Step::Claim(Epoch(1)),
        Step::Claim(Epoch(2)),
        Step::Settle(0),
        Step::Settle(1),
        Step::Settle(2),
        Step::Settle(3),
        Step::Die,
    ];
    const LENGTH: u32 = 6;
    let mut runs_seen = 0;
    for sequence in 0..steps.len().pow(LENGTH) {
        let mut row: Option<Row> = None;
        let mut last = 0;
        // Node 1 dies at `Die`.
        let mut died = false;
        let mut fences: Vec<(Epoch, i64, u32)> = Vec::new();
        let mut cancelled: Vec<i64> = Vec::new();
        let mut rest = sequence;
        for _ in 0..LENGTH {
            let step = steps[rest % steps.len()];
            rest /= steps.len();
            let mut next = || {
                last += 1;
                last
            };
            let live = |epoch| !(died && epoch == Epoch(1));
            let mut context = StoreContext {
                now: NOW,
                is_live: &live,
                generation: &mut next,
            };
            let now = DueAt::After(Duration::ZERO);
            let change = match step {
                Step::Schedule => {
                    let payload = "p".into();
                    let action = Action::Schedule { when: now, payload };
                    apply(row.clone(), 9, action, &mut context).0
                }
                Step::Reschedule => {
                    let action = Action::Reschedule { when: now };
                    apply(row.clone(), 9, action, &mut context).0
                }
                Step::Cancel => {
                    let (change, answer) = apply(row.clone(), 9, Action::Cancel, &mut context);
                    if let Some(row) = &row {
                        let has_run = fences.iter().any(|(.., generation, attempt)| {
                            (*generation, *attempt) == (row.generation, row.attempt)
                        });
                        if let Answer::Running { attempt, .. } = answer {
                            assert_eq!(attempt, row.attempt, "{sequence}");
                            assert!(has_run, "{sequence}: {}", show_row(row));
                        }
                        cancelled.push(row.generation);
                    }
                    change
                }
                Step::Claim(epoch) if live(epoch) => match row.clone() {
                    Some(row) => match claim(row, epoch, CRASH_LIMIT, &mut context) {
                        Claiming::Run(row) => {
                            let fence = (epoch, row.generation, row.attempt);
                            assert!(!fences.contains(&fence), "STORE-3: {sequence}: {fence:?}");
                            assert!(!cancelled.contains(&fence.1), "{sequence}: {fence:?}");
                            fences.push(fence);
                            runs_seen += 1;
                            Change::Put(row)
                        }
                        Claiming::Not(change) => change,
                    },
                    None => Change::Keep,
                },
                Step::Settle(outcome) => match row.clone() {
                    Some(held) => {
                        let open = fences.iter().filter(|(epoch, generation, attempt)| {
                            is_held(&held, *epoch, *generation, *attempt)
                        });
                        let open: Vec<_> = open.collect();
                        assert!(open.len() <= 1, "{sequence}: {open:?}");
                        match open.first() {
                            Some((epoch, ..)) if live(*epoch) => {
                                settle(held, &outcomes[outcome], &mut context).0
                            }
                            _ => Change::Keep,
                        }
                    }
                    None => Change::Keep,
                },
                Step::Claim(_) => Change::Keep,
                Step::Die => {
                    died = true;
                    Change::Keep
                }
            };
            match change {
                Change::Keep => {}
                Change::Put(new) | Change::BuryThen { row: new, .. } => {
                    show_row(&new);
                    row = Some(new);
                }
                Change::Delete | Change::Bury(..) => row = None,
            }
        }
    }
    assert!(runs_seen > 100_000, "{runs_seen}");
}
