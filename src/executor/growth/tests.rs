//! Tests of the growth logic: alone, by tables; and with a simulated pool, whose time is a number.

use std::collections::VecDeque;

use super::*;

const LIMIT: Duration = Duration::from_millis(2);

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn start(count: usize, look_again: u64) -> Growth {
    Growth::Start {
        workers: NewWorkers {
            count,
            spare: false,
        },
        look_again: at(look_again),
    }
}

fn again(look_again: u64) -> Growth {
    Growth::LookAgain(at(look_again))
}

/// The answers that the ticker gets.
struct Shown {
    claims: u64,
    unclaimed: usize,
    free: usize,
    /// With two workers wanted.
    look: Look,
    looks: usize,
    turn: bool,
    one_claims: bool,
    alone: bool,
    stuck: bool,
    /// Another ticker starts a worker just before this one has the turn.
    other_is_faster: bool,
}

/// 100 tickets wait, and both workers are blocked.
fn blocked() -> Shown {
    Shown {
        claims: 0,
        unclaimed: 100,
        free: 9,
        look: Look::Able(0),
        looks: 0,
        turn: true,
        one_claims: false,
        alone: false,
        stuck: false,
        other_is_faster: false,
    }
}

impl Crew for Shown {
    fn claims(&self) -> u64 {
        self.claims
    }

    fn helped(&self) -> u64 {
        0
    }

    fn unclaimed(&self) -> usize {
        self.unclaimed
    }

    fn free_slots(&self) -> usize {
        self.free
    }

    fn is_left_alone(&self) -> bool {
        self.alone
    }

    fn is_stuck(&self) -> bool {
        self.stuck
    }

    fn wanted(&self) -> usize {
        2
    }

    fn one_claims(&self) -> bool {
        self.one_claims
    }

    fn look(&mut self, _: Time) -> Look {
        self.looks += 1;
        self.alone &= !self.other_is_faster;
        self.look
    }

    fn may_start_blindly(&mut self) -> bool {
        self.turn
    }
}

#[test]
fn nothing_waits_nothing_to_do() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    assert_eq!(watch.look(at(0), false, &mut crew), Growth::Calm);
    assert_eq!(watch.look(at(50), false, &mut crew), Growth::Calm);
    assert_eq!(crew.looks, 0);
}

#[test]
fn blocked_workers_start_one_then_two_then_four() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    assert_eq!(watch.look(at(10), true, &mut crew), again(11));
    assert_eq!(watch.look(at(10), true, &mut crew), again(11));
    assert_eq!(watch.look(at(11), true, &mut crew), again(12));
    assert_eq!(watch.look(at(12), true, &mut crew), start(1, 13));
    crew.free = 8;
    assert_eq!(watch.look(at(13), true, &mut crew), again(14));
    assert_eq!(watch.look(at(14), true, &mut crew), start(2, 15));
    crew.free = 6;
    assert_eq!(watch.look(at(15), true, &mut crew), again(16));
    assert_eq!(watch.look(at(16), true, &mut crew), start(4, 17));
    crew.free = 2;
    assert_eq!(watch.look(at(17), true, &mut crew), again(18));
    assert_eq!(watch.look(at(18), true, &mut crew), start(2, 19));
}

#[test]
fn claims_are_no_reason_to_wait_while_what_waited_first_still_waits() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    let mut started = 0;
    for now in 0..20 {
        if let Growth::Start { workers, .. } = watch.look(at(now), true, &mut crew) {
            started += workers.count;
        }
        // Of the 100 that wait.
        crew.claims += 3;
    }
    assert!(started >= 9, "{started}");
}

#[test]
fn nobody_looks_at_the_workers_while_no_ticket_grows_old() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    for now in 0..50 {
        assert_eq!(watch.look(at(now), true, &mut crew), again(now + 1));
        // All tickets that waited at the last check, and others wait now.
        crew.claims += 100;
    }
    assert_eq!(crew.looks, 0);
}

#[test]
fn the_number_of_claims_may_wrap_around() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.claims = u64::MAX - 50;
    assert_eq!(watch.look(at(0), true, &mut crew), again(1));
    crew.claims = crew.claims.wrapping_add(99);
    assert_eq!(watch.look(at(1), true, &mut crew), again(2));
    assert_eq!(watch.look(at(2), true, &mut crew), start(1, 3));
    crew.claims = crew.claims.wrapping_add(1);
    assert_eq!(watch.look(at(4), true, &mut crew), again(5));
    assert_eq!(crew.looks, 2, "the mark is new");
}

#[test]
fn a_worker_that_waits_for_a_moment_is_not_blocked() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    for now in 0..1_000 {
        crew.claims += 1;
        crew.look = Look::Able(if crew.looks.is_multiple_of(2) { 1 } else { 2 });
        let growth = watch.look(at(now), true, &mut crew);
        assert!(matches!(growth, Growth::LookAgain(_)), "{growth:?}");
    }
    assert!(crew.looks > 100);
}

#[test]
fn c106_long_tasks_that_compute_get_one_worker_more_and_no_second_one() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.look = Look::Able(2);
    assert_eq!(watch.look(at(0), true, &mut crew), again(1));
    assert_eq!(watch.look(at(1), true, &mut crew), again(2));
    // Nothing was claimed for a whole limit.
    assert_eq!(watch.look(at(2), true, &mut crew), start(1, 3));
    crew.look = Look::Able(3);
    for now in 3..10_000 {
        let growth = watch.look(at(now), true, &mut crew);
        assert!(matches!(growth, Growth::LookAgain(_)), "{growth:?}");
    }
    assert!(crew.looks < 1_000, "looked {} times", crew.looks);
}

#[test]
fn a_worker_that_waits_for_a_core_between_two_tasks_is_in_no_long_task() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.look = Look::Able(2);
    crew.one_claims = true;
    for now in 0..100 {
        let growth = watch.look(at(now), true, &mut crew);
        assert!(matches!(growth, Growth::LookAgain(_)), "{growth:?}");
    }
    crew.one_claims = false;
    let started = (100..120).map(|now| watch.look(at(now), true, &mut crew));
    let starts = started.filter(|growth| {
        matches!(
            growth,
            Growth::Start {
                workers: NewWorkers { count: 1, .. },
                ..
            }
        )
    });
    assert!(starts.count() > 0);
}

#[test]
fn tasks_that_compute_and_are_claimed_all_the_time_start_nobody() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.look = Look::Able(2);
    crew.unclaimed = 1_000_000;
    for now in 0..10_000 {
        let growth = watch.look(at(now), true, &mut crew);
        assert!(matches!(growth, Growth::LookAgain(_)), "{growth:?}");
        crew.claims += 1;
    }
}

/// The workers compute for other pools.
fn left_alone() -> Shown {
    Shown {
        unclaimed: 1,
        look: Look::Able(2),
        alone: true,
        ..blocked()
    }
}

fn start_spare(look_again: u64) -> Growth {
    let Growth::Start {
        workers,
        look_again,
    } = start(1, look_again)
    else {
        unreachable!()
    };
    let workers = NewWorkers {
        spare: true,
        ..workers
    };
    Growth::Start {
        workers,
        look_again,
    }
}

#[test]
fn a_pool_that_is_left_alone_gets_a_spare_worker_when_its_ticket_is_old() {
    // There are as many as there may be, or one more than wanted computes already.
    for (free, able) in [(0, 2), (9, 3)] {
        let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), left_alone());
        (crew.free, crew.look) = (free, Look::Able(able));
        assert_eq!(watch.look(at(10), true, &mut crew), again(11));
        assert_eq!(watch.look(at(11), true, &mut crew), again(12));
        assert_eq!(watch.look(at(12), true, &mut crew), start_spare(13));
        // It is there, so the pool is left alone no more.
        crew.alone = false;
        let growth = watch.look(at(13), true, &mut crew);
        assert!(!matches!(growth, Growth::Start { .. }), "{growth:?}");
    }
}

#[test]
fn of_two_tickers_of_a_pool_that_is_left_alone_one_starts_a_worker() {
    for look in [Look::Able(3), Look::Blind] {
        let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), left_alone());
        (crew.free, crew.look) = (0, look);
        for now in [10, 11] {
            let _ = watch.look(at(now), true, &mut crew);
        }
        crew.other_is_faster = true;
        let growth = watch.look(at(12), true, &mut crew);
        assert!(matches!(growth, Growth::LookAgain(_)), "{growth:?}");
        (crew.alone, crew.other_is_faster) = (true, false);
        let mut later = (13..60).map(|now| watch.look(at(now), true, &mut crew));
        assert!(later.any(|growth| matches!(growth, Growth::Start { .. })));
    }
}

#[test]
fn a_pool_whose_own_workers_are_blocked_gets_a_spare_one_while_others_compute() {
    let stuck = || Shown {
        look: Look::Able(3),
        alone: false,
        stuck: true,
        ..left_alone()
    };
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), stuck());
    assert_eq!(watch.look(at(10), true, &mut crew), again(11));
    assert_eq!(watch.look(at(11), true, &mut crew), again(12));
    assert_eq!(watch.look(at(12), true, &mut crew), start_spare(13));
    // The new one is not blocked, or it is the one that has no room.
    for (stuck_now, free) in [(false, 9), (true, 0)] {
        let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), stuck());
        (crew.stuck, crew.free) = (stuck_now, free);
        let mut later = (10..200).map(|now| watch.look(at(now), true, &mut crew));
        assert!(later.all(|growth| matches!(growth, Growth::LookAgain(_))));
    }
}

#[test]
fn a_pool_that_is_left_alone_waits_for_a_worker_that_is_about_to_claim() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), left_alone());
    (crew.free, crew.one_claims) = (0, true);
    for now in 10..20 {
        let growth = watch.look(at(now), true, &mut crew);
        assert!(matches!(growth, Growth::LookAgain(_)), "{growth:?}");
    }
    crew.one_claims = false;
    let mut started = (20..60).map(|now| watch.look(at(now), true, &mut crew));
    assert!(started.any(|growth| matches!(growth, Growth::Start { .. })));
}

#[test]
fn blocked_workers_of_other_pools_are_replaced_as_usual() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), left_alone());
    crew.look = Look::Able(0);
    assert_eq!(watch.look(at(10), true, &mut crew), again(11));
    assert_eq!(watch.look(at(11), true, &mut crew), again(12));
    assert_eq!(watch.look(at(12), true, &mut crew), start(1, 13));
    // There are as many as there may be.
    crew.free = 0;
    assert_eq!(watch.look(at(14), true, &mut crew), start_spare(15));
}

#[test]
fn no_more_are_started_than_tickets_wait() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.unclaimed = 3;
    let mut started = Vec::new();
    for now in 0..8 {
        if let Growth::Start { workers, .. } = watch.look(at(now), true, &mut crew) {
            started.push(workers.count);
        }
    }
    assert_eq!(started, [1, 2, 3]);
}

#[test]
fn where_threads_cannot_be_looked_at_the_turn_decides() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.look = Look::Blind;
    assert_eq!(watch.look(at(0), true, &mut crew), again(1));
    // Half a limit is not old.
    assert_eq!(watch.look(at(1), true, &mut crew), again(2));
    assert_eq!(watch.look(at(2), true, &mut crew), start(1, 3));
    assert_eq!(
        watch.look(at(3), true, &mut crew),
        start(1, 4),
        "no doubling"
    );
    crew.turn = false;
    assert_eq!(watch.look(at(4), true, &mut crew), again(5));
    crew.turn = true;
    // All waiting tickets were claimed, so age starts again.
    crew.claims += 100;
    assert_eq!(watch.look(at(5), true, &mut crew), again(6));
    assert_eq!(watch.look(at(6), true, &mut crew), again(7));
    assert_eq!(watch.look(at(7), true, &mut crew), start(1, 8));
}

#[test]
fn a_ticker_without_the_turn_looks_again_soon() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.look = Look::Later;
    for now in 0..20 {
        assert_eq!(watch.look(at(now), true, &mut crew), again(now + 1));
    }
}

#[test]
fn after_a_refusal_it_sleeps_until_it_may_ask_again() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.look = Look::Refused(at(500));
    assert_eq!(watch.look(at(0), true, &mut crew), again(1));
    assert_eq!(watch.look(at(1), true, &mut crew), again(2));
    assert!(!watch.is_stuck(), "no ticket is old");
    assert_eq!(watch.look(at(2), true, &mut crew), again(500));
    assert!(watch.is_stuck(), "the ticker helps all the same");
    // Whatever wakes it earlier, it does not ask.
    assert_eq!(watch.look(at(400), true, &mut crew), again(500));
    assert_eq!(crew.looks, 2);
    crew.look = Look::Able(0);
    assert_eq!(watch.look(at(500), true, &mut crew), again(501));
    assert_eq!(watch.look(at(501), true, &mut crew), start(1, 502));
}

#[test]
fn at_the_maximum_it_looks_less_and_less_often() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    crew.free = 0;
    let mut now = 0;
    let mut pauses = Vec::new();
    for _ in 0..10 {
        let Growth::LookAgain(then) = watch.look(at(now), true, &mut crew) else {
            panic!("no seat is free");
        };
        pauses.push(then.since(at(now)).as_millis());
        now = u64::try_from(then.since(Time::ZERO).as_millis()).unwrap();
    }
    assert_eq!(pauses, [1, 1, 2, 4, 8, 16, 32, 64, 100, 100]);
    assert_eq!(crew.looks, 0, "nobody asks what nobody could act on");
    // A worker slot became free.
    crew.free = 3;
    assert_eq!(watch.look(at(now), true, &mut crew), again(now + 1));
    assert_eq!(watch.look(at(now + 1), true, &mut crew), start(1, now + 2));
}

#[test]
fn a_clock_set_back_begins_anew() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    watch.look(at(1_000), true, &mut crew);
    assert_eq!(watch.look(at(5), true, &mut crew), again(6));
    assert_eq!(watch.look(at(6), true, &mut crew), again(7));
    assert_eq!(watch.look(at(7), true, &mut crew), start(1, 8));
}

#[test]
fn c106_a_clock_that_stands_still_starts_nobody() {
    let (mut watch, mut crew) = (GrowthWatch::new(LIMIT), blocked());
    for _ in 0..1_000 {
        assert_eq!(watch.look(at(5), true, &mut crew), again(6));
    }
    assert_eq!(crew.looks, 0);
}

#[test]
fn the_end_of_time_saturates() {
    let (mut watch, mut crew) = (GrowthWatch::new(Duration::MAX), blocked());
    let growth = watch.look(at(1), true, &mut crew);
    assert_eq!(growth, Growth::LookAgain(at(1) + Duration::MAX / 2));
    crew.look = Look::Able(2);
    crew.claims = 1;
    let Growth::LookAgain(late) = growth else {
        unreachable!("it was compared");
    };
    assert_eq!(
        watch.look(late, true, &mut crew),
        Growth::LookAgain(Time::MAX)
    );
}

// === a simulated pool ===

/// One step of the simulation, in microseconds.
const STEP: u64 = 50;

/// What a task does: computes, then blocks; in microseconds.
#[derive(Clone, Copy)]
struct SimulatedTask {
    computes: u64,
    blocks: u64,
}

#[derive(Clone, Copy)]
struct RunningTask {
    computes: u64,
    blocks: u64,
}

/// Workers that share cores, which other processes take now and then.
struct Simulated {
    wanted: usize,
    most: usize,
    cores: usize,
    /// The present task; `None` if the worker is idle.
    workers: Vec<Option<RunningTask>>,
    queue: VecDeque<u64>,
    task: SimulatedTask,
    claims: u64,
    latest: u64,
}

impl Simulated {
    fn step(&mut self, now: u64, cores: usize) {
        // Running workers get a turn each, from a position that moves on.
        let count = self.workers.len();
        let first = (now / STEP) as usize % count;
        let mut cores = cores.min(self.cores);
        for at in (0..count).map(|place| (first + place) % count) {
            if self.workers[at].is_none() {
                self.claim(at, now);
            }
            let Some(busy) = &mut self.workers[at] else {
                continue;
            };
            if busy.computes > 0 {
                if cores > 0 {
                    cores -= 1;
                    busy.computes = busy.computes.saturating_sub(STEP);
                }
            } else {
                busy.blocks = busy.blocks.saturating_sub(STEP);
            }
            if busy.computes + busy.blocks == 0 {
                self.workers[at] = None;
                self.claim(at, now);
            }
        }
    }

    fn claim(&mut self, worker: usize, now: u64) {
        if let Some(due) = self.queue.pop_front() {
            self.claims += 1;
            self.latest = self.latest.max(now - due);
            self.workers[worker] = Some(RunningTask {
                computes: self.task.computes,
                blocks: self.task.blocks,
            });
        }
    }
}

impl Crew for Simulated {
    fn claims(&self) -> u64 {
        self.claims
    }

    fn helped(&self) -> u64 {
        0
    }

    fn unclaimed(&self) -> usize {
        self.queue.len()
    }

    fn free_slots(&self) -> usize {
        self.most - self.workers.len()
    }

    fn is_left_alone(&self) -> bool {
        false
    }

    fn is_stuck(&self) -> bool {
        false
    }

    fn wanted(&self) -> usize {
        self.wanted
    }

    fn may_start_blindly(&mut self) -> bool {
        unreachable!("it can be looked at");
    }

    fn one_claims(&self) -> bool {
        false
    }

    fn look(&mut self, _: Time) -> Look {
        let able = |worker: &&Option<RunningTask>| worker.is_none_or(|busy| busy.computes > 0);
        Look::Able(self.workers.iter().filter(able).count())
    }
}

/// Makes `per_milli` tasks a millisecond due for the given number of milliseconds. Returns the
/// final number of workers, and the greatest lateness in the second half, in milliseconds.
fn simulate(
    task: SimulatedTask,
    per_milli: u64,
    millis: u64,
    cores: impl Fn(u64) -> usize,
) -> (usize, u64) {
    let mut pool = Simulated {
        wanted: 2,
        most: 64,
        cores: 2,
        workers: vec![None; 2],
        queue: VecDeque::new(),
        task,
        claims: 0,
        latest: 0,
    };
    let mut watch = GrowthWatch::new(LIMIT);
    let mut due = Time::ZERO;
    for micros in (0..millis * 1_000).step_by(STEP as usize) {
        let ticks = micros % 1_000 == 0;
        if ticks {
            pool.queue.extend((0..per_milli).map(|_| micros));
        }
        if micros == millis * 500 {
            pool.latest = 0;
        }
        let now = Time::ZERO + Duration::from_micros(micros);
        if ticks || now >= due {
            let waiting = !pool.queue.is_empty();
            due = match watch.look(now, waiting, &mut pool) {
                Growth::Calm => Time::MAX,
                Growth::LookAgain(at) => at,
                Growth::Start {
                    workers,
                    look_again,
                } => {
                    let count = workers.count;
                    let count = pool.workers.len() + count;
                    pool.workers.resize(count, None);
                    look_again
                }
            };
        }
        pool.step(micros, cores(micros));
    }
    (pool.workers.len(), pool.latest / 1_000)
}

#[test]
fn c106_tasks_that_only_compute_never_get_more_than_one_extra_worker() {
    // From far too many short ones to a few long ones.
    for (computes, per_milli) in [
        (50, 1_000),
        (1_500, 4),
        (1_900, 4),
        (50_000, 1),
        (500_000, 1),
    ] {
        let task = SimulatedTask {
            computes,
            blocks: 0,
        };
        // With the machine to itself, with a core that others take, and with none for 9 of 10 ms.
        let cores: [fn(u64) -> usize; 3] = [
            |_| 2,
            |_| 1,
            |micros| if micros % 10_000 < 1_000 { 2 } else { 0 },
        ];
        for cores in cores {
            let (workers, _) = simulate(task, per_milli, 3_000, cores);
            assert!(workers <= 3, "{workers} workers for {computes} us");
        }
    }
}

#[test]
fn c106_tasks_that_block_briefly_get_the_workers_that_they_need() {
    for (blocks, needed) in [
        (200, 1),
        (500, 2),
        (1_000, 4),
        (1_500, 6),
        (1_900, 8),
        (10_000, 40),
    ] {
        let task = SimulatedTask {
            computes: 0,
            blocks,
        };
        let (workers, latest) = simulate(task, 4, 2_000, |_| 2);
        assert!(workers >= needed, "{workers} workers for {blocks} us");
        // The number doubles until the queue gets shorter, so it may be twice the need, and more.
        assert!(
            workers <= 3 + 3 * needed,
            "{workers} workers for {blocks} us"
        );
        assert!(latest <= 4, "{latest} ms late with {blocks} us");
    }
}

#[test]
fn c106_tasks_that_block_for_long_get_all_there_are_within_milliseconds() {
    let task = SimulatedTask {
        computes: 0,
        blocks: 500_000,
    };
    // 100 tasks at once, as the first ticks bring.
    let (workers, _) = simulate(task, 10, 20, |_| 2);
    assert_eq!(workers, 64);
}

#[test]
fn tasks_that_compute_and_block_get_workers_until_the_cores_are_busy() {
    let task = SimulatedTask {
        computes: 200,
        blocks: 1_000,
    };
    // 0.8 of the two cores, 4.8 workers.
    let (workers, latest) = simulate(task, 4, 2_000, |_| 2);
    assert!((5..=16).contains(&workers), "{workers}");
    assert!(latest <= 4, "{latest}");
}
