//! `pace`: at most so many expirations in a second, with turns for the shards, and nothing that
//! evades it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use kit::steps;
use kit::steps::{SEEDS, T};
use kit::wait;
use kit::wait::until;
use tourbillon::test_util::{Fired, Stepped};
use tourbillon::{
    Clock, Executor, ExpiryMap, Handle, Job, ManualClock, Missed, Next, Period, PullIn, Reschedule,
    Scheduler, SchedulerBuilder, Shutdown, Time, Timer, TimerState, Touch,
};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn builder(per_second: u32, shards: usize) -> SchedulerBuilder<u64> {
    Scheduler::builder().pace(per_second).shards(shards)
}

fn paced(per_second: u32, shards: usize, seed: u64) -> Stepped<u64> {
    builder(per_second, shards).build_stepped(seed).unwrap()
}

fn share(per_second: u32, shards: usize) -> usize {
    (per_second as usize / 1_000 / shards).max(1)
}

/// Looks at every window: it holds no more than its time and a millisecond allow, one share, and
/// one for each shard.
#[track_caller]
fn assert_paced(starts: impl IntoIterator<Item = Time>, per_second: u32, shards: usize) {
    let second = 1_000_000_000_i128;
    let shares = (share(per_second, shards) * (shards + 1)) as i128;
    let more = shares * second + i128::from(per_second) * 1_000_000;
    // From the i-th start to the j-th: (j - i + 1) * second <= pace * (t_j - t_i) + more, so that
    // it is enough to know the greatest pace * t_i - i * second of those before.
    let mut greatest = i128::MIN;
    let mut before = Time::ZERO;
    for (number, start) in starts.into_iter().enumerate() {
        assert!(start >= before, "in order");
        before = start;
        let room = i128::from(per_second) * i128::from(start.as_nanos()) - number as i128 * second;
        greatest = greatest.max(room);
        let over = greatest - room + second - more;
        assert!(over <= 0, "start {number} at {start:?}: {over} too many");
    }
}

fn starts(fired: &[Fired<u64>]) -> impl Iterator<Item = Time> {
    fired.iter().map(|fired| fired.at)
}

/// splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn pending(timers: &Handle<u64>) -> Vec<u64> {
    let stats = timers.stats();
    stats.shards.iter().map(|shard| shard.pending).collect()
}

/// Arms so many keys of one shard, from `first` on.
fn arm_in_shard(timers: &Handle<u64>, shard: usize, many: usize, first: u64, at: Time) -> Vec<u64> {
    let mut keys = Vec::new();
    let mut key = first;
    let mut before = pending(timers)[shard];
    while keys.len() < many {
        timers.schedule(key, at, |_| ()).unwrap();
        if pending(timers)[shard] > before {
            before += 1;
            keys.push(key);
        } else {
            timers.cancel(&key);
        }
        key += 1;
    }
    keys
}

// === the bound ===

#[test]
fn no_window_holds_more_than_the_pace_and_a_share_for_each_shard() {
    for seed in SEEDS {
        for (per_second, shards) in [(7, 1), (90, 3), (1_000, 2), (5_000, 1), (40_000, 4)] {
            let scheduler = paced(per_second, shards, seed);
            let timers = scheduler.handle();
            let mut dice = seed;
            let mut fired = Vec::new();
            let mut key = 0;
            for _ in 0..60 {
                let many = match random(&mut dice) % 4 {
                    0 => u64::from(per_second / 4) % 3_000 + 20,
                    _ => random(&mut dice) % 5,
                };
                // Masses of one moment, which may be this one; and single ones.
                let delay = MS * (random(&mut dice) % 400).saturating_sub(200) as u32;
                for _ in 0..many {
                    timers.schedule(key, delay, |_| ()).unwrap();
                    key += 1;
                }
                let by = MS * (random(&mut dice) % 300) as u32;
                fired.extend(if random(&mut dice).is_multiple_of(3) {
                    // All have overslept.
                    scheduler.jump_to(scheduler.now() + by)
                } else {
                    scheduler.advance(by)
                });
            }
            fired.extend(scheduler.advance(5_000 * S));
            assert_eq!(fired.len() as u64, key, "none is forgotten");
            assert!(fired.iter().all(|fired| fired.at >= fired.deadline));
            assert_paced(starts(&fired), per_second, shards);
            let stats = timers.stats();
            assert!(stats.balances() && stats.held_back > 0, "{stats:?}");
        }
    }
}

#[test]
fn a_mass_takes_as_long_as_the_pace_says_and_no_longer() {
    for (per_second, shards, many) in [(100, 1, 500), (1_000, 2, 3_000), (30_000, 3, 30_000)] {
        let scheduler = paced(per_second, shards, 1);
        let timers = scheduler.handle();
        for key in 0..many {
            timers.schedule(key, S, |_| ()).unwrap();
        }
        let fired = scheduler.advance(3_600 * S);
        assert_eq!(fired.len() as u64, many);
        let took = fired.last().unwrap().at.since(Time::ZERO + S);
        let least = S * many as u32 / per_second;
        let at_first = S * (share(per_second, shards) * (shards + 1)) as u32 / per_second + MS;
        assert!(took + at_first >= least, "{took:?} instead of {least:?}");
        // The shards have not equally many, so the last one is alone in the end.
        assert!(took <= least * 6 / 5, "{took:?} instead of {least:?}");
        let lateness = timers.stats().lateness();
        assert_eq!(lateness.max, took);
    }
}

#[test]
fn without_a_pace_a_mass_runs_at_once() {
    let scheduler = steps::stepped(1);
    let timers = scheduler.handle();
    for key in 0..3_000 {
        timers.schedule(key, S, |_| ()).unwrap();
    }
    assert_eq!(scheduler.advance(S).len(), 3_000);
    assert_eq!(timers.stats().held_back, 0);
}

/// One each second at a pace of one in a second: every one is punctual, although others cascade,
/// and are found pushed out, by the hundred.
#[test]
fn cascades_and_touches_neither_wait_nor_count() {
    for seed in 0..2 {
        // More in each stripe than it keeps beside its wheel.
        let scheduler = builder(1, 1).stripes(1).build_stepped(seed).unwrap();
        let timers = scheduler.handle();
        for key in 0..100 {
            timers.schedule(key, S * (key as u32 + 1), |_| ()).unwrap();
        }
        let touched: Vec<u64> = (1_000..1_100).collect();
        for &key in &touched {
            timers.schedule(key, 3 * S, |_| ()).unwrap();
        }
        let mut fired = Vec::new();
        for _ in 0..100 {
            // Those of the next second cascade, and the touched ones as far as the lowest level:
            // there their old places come up after the touch.
            fired.extend(scheduler.advance(400 * MS));
            for _ in 0..5 {
                timers.reschedule_many(&touched, 30 * MS);
                fired.extend(scheduler.advance(20 * MS));
            }
            timers.reschedule_many(&touched, 3 * S);
            fired.extend(scheduler.advance(500 * MS));
        }
        assert_eq!(fired.len(), 100);
        for fired in fired {
            assert_eq!(fired.at, fired.deadline, "{}", fired.key);
        }
        assert_eq!(timers.stats().held_back, 0);
    }
}

// === whose turn it is ===

#[test]
fn shards_with_masses_take_turns() {
    for seed in SEEDS {
        for (per_second, shards) in [(100, 2), (100, 5), (20_000, 2)] {
            let share = share(per_second, shards) as u64;
            // Which begins with what the quiet time before left.
            let begin = u64::from(per_second) / 1_000;
            let scheduler = paced(per_second, shards, seed);
            let timers = scheduler.handle();
            let many = 30 * share;
            let mut first = 0;
            for shard in 0..shards {
                let at = Time::ZERO + S;
                let keys = arm_in_shard(&timers, shard, many as usize, first, at);
                first = keys.last().unwrap() + 1;
            }
            let ran = || -> Vec<u64> {
                let pending = pending(&timers);
                pending.iter().map(|left| many - left).collect()
            };
            let mut before = ran();
            let mut turns = Vec::new();
            while ran().iter().all(|ran| *ran < many) {
                assert!(scheduler.advance_to_next().is_some());
                let now = ran();
                let (least, most) = (now.iter().min().unwrap(), now.iter().max().unwrap());
                let apart = most - least;
                assert!(apart <= 2 * share + begin, "{now:?}, shares of {share}");
                turns.extend((0..shards).filter(|&shard| now[shard] > before[shard]));
                before = now;
            }
            // But for the first rounds, in which a shard may come twice before another one.
            for round in turns[3 * shards..].windows(shards) {
                let mut round = round.to_vec();
                round.sort_unstable();
                assert!(round.iter().copied().eq(0..shards), "{turns:?}");
            }
        }
    }
}

#[test]
fn a_shard_with_few_timers_is_not_starved_behind_one_with_many() {
    for seed in SEEDS {
        let scheduler = paced(1_000, 2, seed);
        let timers = scheduler.handle();
        let due = Time::ZERO + S;
        let many = arm_in_shard(&timers, 0, 1_000, 0, due);
        let few = arm_in_shard(&timers, 1, 20, 1_000_000, due + 300 * MS);
        let fired = scheduler.advance(60 * S);
        assert_eq!(fired.len(), many.len() + few.len());
        // Every other share is theirs, from the turn after the next one on.
        for fired in fired.iter().filter(|fired| few.contains(&fired.key)) {
            let late = fired.at.since(fired.deadline);
            assert!(late <= MS * (2 * 20 + 4), "{late:?}");
        }
    }
}

#[test]
fn stripes_of_a_shard_take_turns_and_in_a_stripe_it_goes_by_time() {
    for seed in SEEDS {
        let build = |stripes| builder(100, 1).stripes(stripes).build_stepped(seed);
        let one = build(1).unwrap();
        for key in 0..50 {
            let delay = S + MS * (50 - key as u32);
            one.handle().schedule(key, delay, |_| ()).unwrap();
        }
        let fired = one.advance(60 * S);
        assert!(fired.iter().map(|fired| fired.key).eq((0..50).rev()));
        // Two masses of a second each; the later one does not wait for the whole of the earlier
        // one.
        let many = build(16).unwrap();
        for key in 0..1_600 {
            let delay = S * (key as u32 % 2 + 1);
            many.handle().schedule(key, delay, |_| ()).unwrap();
        }
        let fired = many.advance(60 * S);
        assert_eq!(fired.len(), 1_600);
        let later = fired.iter().position(|fired| fired.key % 2 == 1);
        let last = fired.iter().rposition(|fired| fired.key % 2 == 0);
        assert!(later.unwrap() < last.unwrap());
    }
}

// === what is held back ===

#[test]
fn what_is_held_back_is_pending_and_can_be_cancelled_and_moved() {
    for seed in SEEDS {
        let scheduler = paced(10, 2, seed);
        let timers = scheduler.handle();
        for key in 0..100 {
            timers.schedule(key, S, |_| ()).unwrap();
        }
        let mut ran: Vec<u64> = scheduler.advance(2 * S).iter().map(|run| run.key).collect();
        assert!((9..=13).contains(&ran.len()), "{ran:?}");
        let stats = timers.stats();
        assert_eq!(
            (stats.pending, stats.queued),
            (100 - ran.len() as u64, 0),
            "held back, not queued"
        );
        let held: Vec<u64> = (0..100).filter(|key| !ran.contains(key)).collect();
        for key in &held {
            let info = timers.get(key).unwrap();
            assert_eq!(info.state, TimerState::Pending);
            assert_eq!(info.deadline, Time::ZERO + S);
        }
        let (cancelled, moved, pulled) = (&held[..20], &held[20..40], &held[40..50]);
        for key in cancelled {
            assert!(timers.cancel(key).is_cancelled());
        }
        for key in moved {
            let moved = timers.reschedule(key, 100 * S);
            assert!(matches!(moved, Reschedule::Moved { .. }));
        }
        for key in pulled {
            let pulled = timers.pull_in(key, Duration::ZERO);
            assert!(matches!(pulled, PullIn::Unchanged { .. }), "{pulled:?}");
            // Anew, and it still waits for the pace.
            let moved = timers.reschedule(key, Duration::ZERO);
            assert!(matches!(moved, Reschedule::Moved { .. }));
        }
        let fired = scheduler.advance(90 * S);
        ran.extend(fired.iter().map(|run| run.key));
        assert_eq!(ran.len(), 60);
        assert!(!ran.iter().any(|key| cancelled.contains(key)));
        let fired = scheduler.advance(90 * S);
        assert_eq!(fired.len(), moved.len());
        for run in &fired {
            assert!(moved.contains(&run.key) && run.at >= Time::ZERO + 102 * S);
        }
        let stats = timers.stats();
        assert!(stats.balances() && stats.pending == 0, "{stats:?}");
    }
}

#[test]
fn a_touch_of_an_entry_that_is_held_back_keeps_it_alive() {
    for seed in SEEDS {
        let gone = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&gone);
        let stepped = ExpiryMap::<u32, ()>::builder()
            .time_to_idle(10 * S)
            .shards(2)
            .pace(10)
            .build_stepped(seed, move |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        let map = stepped.map();
        for key in 0..1_000 {
            map.insert(key, ()).unwrap();
        }
        // Everybody was away for a while, and comes back.
        stepped.advance(15 * S);
        let expired = gone.load(Ordering::Relaxed);
        assert!((50..=53).contains(&expired), "{expired}");
        let touched = (0..1_000).filter(|key| matches!(map.touch(key), Touch::Touched { .. }));
        assert_eq!(touched.count(), 1_000 - expired);
        stepped.advance(9 * S);
        assert_eq!(gone.load(Ordering::Relaxed), expired);
        assert_eq!(map.len(), 1_000 - expired);
        stepped.advance(200 * S);
        assert_eq!(map.len(), 0);
    }
}

// === nothing evades it ===

#[test]
fn what_is_due_when_it_is_armed_or_moved_waits_for_the_pace() {
    for seed in SEEDS {
        let scheduler = paced(100, 2, seed);
        let timers = scheduler.handle();
        let mut fired = scheduler.advance(S + Duration::from_micros(300));
        for key in 0..100 {
            timers.schedule(key, Duration::ZERO, |_| ()).unwrap();
            timers.schedule(1_000 + key, Time::ZERO, |_| ()).unwrap();
            timers.schedule(2_000 + key, 3_600 * S, |_| ()).unwrap();
            timers.schedule(3_000 + key, 3_600 * S, |_| ()).unwrap();
            let moved = timers.reschedule(&(2_000 + key), Duration::ZERO);
            assert!(matches!(moved, Reschedule::Moved { .. }));
        }
        let now: Vec<u64> = (3_000..3_100).collect();
        timers.reschedule_many(&now, Duration::ZERO);
        // With the next tick, or at once what was due by this one.
        fired.extend(scheduler.settle());
        fired.extend(scheduler.advance(T));
        assert!((1..=4).contains(&fired.len()), "{}", fired.len());
        fired.extend(scheduler.advance(10 * S));
        assert_eq!(fired.len(), 400);
        assert_paced(starts(&fired), 100, 2);
    }
}

#[test]
fn a_key_that_arms_itself_goes_by_the_pace() {
    for seed in SEEDS {
        let scheduler = paced(50, 2, seed);
        let timers = scheduler.handle();
        for key in 0..4 {
            fn again(timers: &Handle<u64>, key: u64) {
                let next = timers.clone();
                let task = move |_: &tourbillon::Firing<'_, u64>| again(&next, key);
                timers.schedule(key, Duration::ZERO, task).unwrap();
            }
            again(&timers, key);
        }
        let fired = scheduler.advance(10 * S);
        assert_paced(starts(&fired), 50, 2);
        assert!((495..=503).contains(&fired.len()), "{}", fired.len());
        scheduler.shutdown(Shutdown::HandBack);
    }
}

#[test]
fn rounds_that_are_held_back_are_late_ones() {
    for seed in SEEDS {
        let scheduler = paced(20, 1, seed);
        let timers = scheduler.handle();
        let missed = Arc::new(Mutex::new(0));
        for key in 0..10 {
            let told = Arc::clone(&missed);
            let rate = Period::fixed_rate(100 * MS).missed(Missed::Once);
            let beat = move |round: &tourbillon::Round<'_, u64>| {
                *told.lock().unwrap() += round.missed();
                Next::Again
            };
            timers.repeat(key, rate, beat).unwrap();
        }
        // A hundred points of the grid in each second, and room for twenty.
        let fired = scheduler.advance(30 * S);
        assert_paced(starts(&fired), 20, 1);
        assert!((590..=602).contains(&fired.len()), "{}", fired.len());
        let told = *missed.lock().unwrap();
        let points = 30 * 100;
        assert!(
            (points - 100..=points).contains(&(fired.len() as u64 + told)),
            "{} ran, {told} missed",
            fired.len()
        );
        let all = timers.schedule(99, Duration::ZERO, |_| ());
        assert!(all.is_ok());
        timers.cancel_all();
        let rounds = Period::fixed_rate(10 * MS).missed(Missed::All);
        timers.repeat(100, rounds, |_| ()).unwrap();
        let late = scheduler.jump_to(scheduler.now() + 10 * S);
        assert!(late.len() <= 2);
        let fired = scheduler.advance(10 * S);
        assert_paced(starts(&late).chain(starts(&fired)), 20, 1);
    }
}

#[test]
fn a_shutdown_keeps_the_pace_and_hands_the_rest_back() {
    let limit = 5 * S;
    for seed in SEEDS {
        for (mode, at_most) in [
            (Shutdown::RunNow, 506),
            (Shutdown::Drain { limit }, 406),
            (Shutdown::HandBack, 0),
        ] {
            let builder = builder(100, 2).shutdown_limit(limit);
            let scheduler = builder.build_stepped(seed).unwrap();
            let timers = scheduler.handle();
            for key in 0..1_000 {
                timers.schedule(key, S, |_| ()).unwrap();
            }
            timers.schedule(1_000, Time::MAX, |_| ()).unwrap();
            let report = scheduler.shutdown(mode);
            let fired = scheduler.settle();
            assert_paced(starts(&fired), 100, 2);
            assert_eq!(fired.len() + report.handed_back.len(), 1_001);
            assert!(
                fired.len() <= at_most && fired.len() + 12 >= at_most,
                "{mode:?}: {} ran",
                fired.len()
            );
        }
        // With the time that it takes, all run.
        let scheduler = paced(100, 2, seed);
        let timers = scheduler.handle();
        for key in 0..1_000 {
            timers.schedule(key, 3_600 * S, |_| ()).unwrap();
        }
        let report = scheduler.shutdown(Shutdown::RunNow);
        assert!(report.handed_back.is_empty());
        let fired = scheduler.settle();
        assert_eq!(fired.len(), 1_000);
        assert!(fired.last().unwrap().at <= Time::ZERO + 11 * S);
    }
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_it() {
    for seed in SEEDS {
        let scheduler = paced(1, 1, seed);
        let timers = scheduler.handle();
        for key in 0..10 {
            timers.schedule(key, 500 * S, |_| ()).unwrap();
        }
        assert!(!scheduler.advance(505 * S).is_empty());
        assert!(scheduler.jump_to(Time::ZERO + 10 * S).is_empty());
        for key in 1_000..2_000 {
            timers.schedule(key, 10 * S, |_| ()).unwrap();
        }
        // Of those whose stripes have not seen the later time.
        let fired = scheduler.advance(110 * S);
        assert!((98..=102).contains(&fired.len()), "{}", fired.len());
        assert_paced(starts(&fired), 1, 1);
    }
}

/// Its ticker sleeps until a moment that a clock set back is far from.
#[test]
fn a_clock_that_is_set_back_wakes_the_ticker_that_waits_for_its_share() {
    let hand = ManualClock::new();
    let scheduler = builder(1, 1).clock(Clock::manual(&hand)).build().unwrap();
    let timers = scheduler.handle();
    let (send, ran) = mpsc::channel();
    for key in 0..10 {
        let send = send.clone();
        timers
            .schedule(key, S, move |_| send.send(key).unwrap())
            .unwrap();
    }
    let next = || ran.recv_timeout(Duration::from_secs(60)).unwrap();
    hand.set(Time::ZERO + 1_000 * S);
    next();
    until("it is held back", || timers.stats().held_back > 0);
    hand.set(Time::ZERO + 500 * S);
    for _ in 0..5 {
        hand.advance(S);
        next();
    }
}

// === wherever tasks run ===

/// Refuses every other batch, and runs the others on the spot.
#[derive(Default)]
struct Moody(AtomicUsize);

impl Executor for Moody {
    fn execute(&self, job: Job) -> Result<(), Job> {
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Err(job);
        }
        job.run();
        Ok(())
    }
}

#[test]
fn the_pace_holds_inline_and_with_another_executor() {
    for seed in SEEDS {
        let inline = builder(200, 2).inline().build_stepped(seed).unwrap();
        let moody = builder(200, 2).executor(Moody::default());
        let foreign = moody.build_stepped(seed).unwrap();
        for (scheduler, expired) in [(inline, 500), (foreign, 1_000)] {
            let timers = scheduler.handle();
            for key in 0..500 {
                let delay = S * (key as u32 % 2);
                timers.schedule(key, delay, |_| ()).unwrap();
            }
            let fired = scheduler.advance(60 * S);
            assert_eq!(fired.len(), 500);
            assert_paced(starts(&fired), 200, 2);
            // What is refused has had its turn.
            let took = fired.last().unwrap().at.since(Time::ZERO);
            assert!(took + 50 * MS >= S * expired / 200, "{took:?}");
        }
    }
}

#[test]
fn all_faces_have_it_and_none_takes_a_pace_of_zero() {
    let refusals = [
        Scheduler::<u64>::builder().pace(0).build().err(),
        Timer::builder().pace(0).build().err(),
        ExpiryMap::<u64, ()>::builder()
            .time_to_idle(S)
            .pace(0)
            .build(|_, _| ())
            .err(),
    ];
    for refusal in refusals {
        let refusal = refusal.unwrap();
        assert!(matches!(refusal, tourbillon::BuildError::Pace));
        assert!(refusal.to_string().contains("choose at least 1"));
    }
    // With threads, and next to no pace at all.
    let timer = Timer::builder().pace(u32::MAX).shards(1).build().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    for number in 0..100 {
        let send = send.clone();
        let task = move || send.send(number).unwrap();
        let _ = timer.after(Duration::ZERO, task).unwrap();
    }
    drop(send);
    assert_eq!(wait::all(&receive).len(), 100);
}

#[test]
fn threads_keep_the_pace_of_a_clock_that_a_test_moves() {
    const SHARDS: usize = 2;
    const PACE: u32 = 10_000;
    const MANY: usize = 2_000;
    let hand = ManualClock::new();
    let scheduler = builder(PACE, SHARDS)
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let share = share(PACE, SHARDS);
    let turn = S * share as u32 / PACE;
    let ran = Arc::new(AtomicUsize::new(0));
    for key in 0..MANY as u64 {
        let ran = Arc::clone(&ran);
        let task = move |_: &tourbillon::Firing<'_, u64>| {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        timers.schedule(key, S, task).unwrap();
    }
    let begin = hand.advance(S);
    loop {
        let now = hand.now();
        let most = (now.since(begin).as_nanos() * u128::from(PACE) / S.as_nanos()) as usize
            + share * (SHARDS + 1)
            + PACE as usize / 1_000;
        let before = pending(&timers);
        if before.iter().any(|left| *left <= 4 * share as u64) {
            break;
        }
        // A whole round: when it is over, what the shards have reserved has begun.
        hand.advance(turn * SHARDS as u32);
        until("whoever has reserved a share has used it", || {
            pending(&timers).iter().sum::<u64>() < before.iter().sum()
        });
        let allowed = most + share * SHARDS;
        assert!(MANY - timers.stats().pending as usize <= allowed);
    }
    assert!(timers.stats().held_back > 0);
    // Tickers that sleep for their pace hear that they are to stop.
    let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    let ran = ran.load(Ordering::Relaxed);
    assert!(!report.handed_back.is_empty());
    assert_eq!(report.handed_back.len() + ran, MANY);
}
