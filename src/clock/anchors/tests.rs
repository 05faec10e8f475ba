//! The rules on a simulated counter and clock.
//!
//! Teeth: `teeth/anchor-at-first-count.patch`, `teeth/anchor-of-an-interrupted-thread.patch`,
//! `teeth/anchor-serves-for-long.patch`, `teeth/anchor-at-the-measured-rate.patch`,
//! `teeth/anchor-rate-not-confirmed.patch`, `teeth/anchor-never-gives-up.patch`,
//! `teeth/anchor-without-margin.patch`.

use std::cell::{Cell, RefCell};

use super::*;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// A machine: true time passes, and its counter and its clock follow in their own ways.
struct Machine {
    /// The counter, in 1024ths of a count, and the clock, in 1024ths of a nanosecond.
    counter: Cell<u64>,
    clock: Cell<u64>,
    /// How much of each passes in a nanosecond of true time, in 1024ths.
    counter_speed: Cell<u64>,
    clock_speed: Cell<u64>,
    /// How old a count is when the thread gets it, in nanoseconds.
    late: Cell<u64>,
    /// How long the thread is interrupted before and after the next reading of the clock.
    hesitation: Cell<u64>,
    interruption: Cell<u64>,
    random: Cell<u64>,
}

impl TimeSource for Machine {
    fn counter(&self) -> u64 {
        self.pass(8);
        let behind = self.late.get() * self.counter_speed.get();
        (self.counter.get().saturating_sub(behind)) >> 10
    }

    fn nanos(&self) -> u64 {
        self.pass(20 + self.hesitation.take());
        let now = self.now();
        self.pass(5 + self.interruption.take());
        now
    }
}

impl Machine {
    /// A counter of about 2.6 GHz, as a simulation can have it: 2,662 / 1,024.
    fn new() -> Self {
        Machine {
            counter: Cell::new(1 << 60),
            clock: Cell::new(5 << 40),
            counter_speed: Cell::new(2_662),
            clock_speed: Cell::new(1_024),
            late: Cell::new(0),
            hesitation: Cell::new(0),
            interruption: Cell::new(0),
            random: Cell::new(0x2545_F491_4F6C_DD1D),
        }
    }

    fn pass(&self, nanos: u64) {
        let speed = self.counter_speed.get();
        self.counter.set(self.counter.get() + nanos * speed);
        let speed = self.clock_speed.get();
        self.clock.set(self.clock.get() + nanos * speed);
    }

    /// What the clock shows.
    fn now(&self) -> u64 {
        self.clock.get() >> 10
    }

    /// The machine sleeps: the counter goes on, the clock does not.
    fn suspend(&self, nanos: u64) {
        let counter = self.counter.get() + nanos * self.counter_speed.get();
        self.counter.set(counter);
    }

    /// A number below `bound`.
    fn random(&self, bound: u64) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x % bound
    }
}

/// Threads of a process on a machine, and how wrong their readings were.
struct SimulatedProcess {
    machine: Machine,
    anchors: Anchors,
    threads: Vec<ThreadAnchor>,
    /// The most by which a reading was ahead of the clock.
    ahead: Cell<u64>,
    /// The most by which a reading and its margin were behind the moment at which the call began.
    early: Cell<u64>,
    /// How many readings did either.
    wrong: Cell<u64>,
    /// The most by which a reading was behind the clock.
    behind: Cell<u64>,
    readings: RefCell<u64>,
}

impl SimulatedProcess {
    fn new(threads: usize) -> Self {
        SimulatedProcess {
            machine: Machine::new(),
            anchors: Anchors::new(),
            threads: (0..threads).map(|_| ThreadAnchor::new()).collect(),
            ahead: Cell::new(0),
            early: Cell::new(0),
            wrong: Cell::new(0),
            behind: Cell::new(0),
            readings: RefCell::new(0),
        }
    }

    /// One that has measured its counter.
    fn measured(threads: usize) -> Self {
        let process = SimulatedProcess::new(threads);
        process.run(50 * MILLI, 50_000);
        assert!(process.anchors.is_measured());
        assert_eq!((process.ahead.get(), process.early.get()), (0, 0));
        process
    }

    /// A reading of a thread.
    fn read(&self, thread: usize) {
        let begun = self.machine.now();
        let (low, margin) = self.anchors.low(&self.threads[thread], &self.machine);
        let ended = self.machine.now();
        let (ahead, early) = (
            low.saturating_sub(ended),
            begun.saturating_sub(low + margin),
        );
        self.ahead.set(self.ahead.get().max(ahead));
        self.early.set(self.early.get().max(early));
        self.behind
            .set(self.behind.get().max(ended.saturating_sub(low)));
        self.wrong
            .set(self.wrong.get() + u64::from(ahead + early > 0));
        *self.readings.borrow_mut() += 1;
    }

    /// Lets all threads read for so many nanoseconds of the clock, with pauses of up to `pause`.
    fn run(&self, nanos: u64, pause: u64) {
        let end = self.machine.now() + nanos;
        while self.machine.now() < end {
            self.machine.pass(self.machine.random(pause) + 1);
            let thread = self.machine.random(self.threads.len() as u64);
            self.read(usize::try_from(thread).unwrap());
        }
    }

    fn is_right(&self) -> bool {
        (self.ahead.get(), self.early.get()) == (0, 0)
    }
}

#[test]
fn readings_are_never_ahead_and_hardly_behind() {
    for pause in [10, 1_000, 30_000, 300_000, 30 * MILLI] {
        let process = SimulatedProcess::new(3);
        process.run(50 * MILLI + 20_000 * pause, pause);
        assert!(process.is_right(), "{pause}");
        // An eighth of the window, and one reading of the clock.
        assert!(process.behind.get() <= 12_500 + 100, "{pause}");
        assert!(!process.anchors.is_given_up());
    }
}

#[test]
fn no_reading_uses_the_counter_before_its_rate_is_confirmed() {
    let process = SimulatedProcess::new(1);
    process.run(39 * MILLI, 1_000);
    assert!(!process.anchors.is_measured());
    // Each of them was one of the clock.
    assert!(process.behind.get() <= 50);
    process.run(3 * MILLI, 1_000);
    assert!(process.anchors.is_measured());
    process.run(MILLI, 1_000);
    assert!(process.behind.get() > 5_000);
}

#[test]
fn a_thread_that_reads_rarely_measures_nothing() {
    let process = SimulatedProcess::new(1);
    for _ in 0..20 {
        process.machine.pass(SECOND + 1);
        process.read(0);
    }
    assert!(!process.anchors.is_measured());
    assert!(process.is_right());
}

#[test]
fn a_clock_that_is_slowed_down_is_not_overtaken() {
    let process = SimulatedProcess::measured(1);
    // By 6 %, which is as much as anchors may disagree. With the measured rate itself, readings
    // would be ahead (ANCHOR-3).
    process.machine.clock_speed.set(1_024 * 94 / 100);
    process.run(5 * MILLI, 1_000);
    assert!(process.is_right());
}

#[test]
fn a_thread_that_is_interrupted_in_an_anchor_does_not_use_it() {
    let process = SimulatedProcess::measured(1);
    for _ in 0..20 {
        process.machine.pass(200_000);
        process.machine.interruption.set(50 * MILLI);
        process.read(0);
        process.run(MILLI, 1_000);
    }
    // The clock was read within the call, so that call is not early; nor is one after it, which
    // would be 50 ms behind until the window ends (ANCHOR-1).
    assert!(process.early.get() == 0 && !process.anchors.is_given_up());
}

#[test]
fn an_anchor_is_at_its_second_count() {
    let process = SimulatedProcess::new(1);
    process.run(50 * MILLI, 1_000);
    for _ in 0..1_000 {
        process.machine.pass(100_000);
        process.machine.hesitation.set(1_000);
        process.read(0);
        process.read(0);
    }
    // With the first count, readings right after it would be ahead (ANCHOR-1).
    assert!(process.is_right());
}

#[test]
fn an_anchor_does_not_serve_for_long() {
    let process = SimulatedProcess::new(1);
    process.run(300 * MILLI, 1_000);
    // At 7/8 of the rate, a window of 100 ms would end 12.5 ms behind (ANCHOR-2).
    assert!(process.is_right());
}

#[test]
fn a_count_that_is_older_than_its_call_does_not_make_a_deadline_early() {
    let process = SimulatedProcess::measured(1);
    // More than was ever measured. The margin covers it (READING-2).
    process.machine.late.set(500_000);
    process.run(20 * MILLI, 1_000);
    assert!(process.is_right());
}

#[test]
fn a_suspension_is_seen_once_by_all_threads_together() {
    let process = SimulatedProcess::measured(8);
    for _ in 0..5 {
        process.run(2 * SECOND, 100_000);
        process.machine.suspend(3_600 * SECOND);
        process.run(10 * MILLI, 1_000);
    }
    assert!(process.is_right());
    assert!(!process.anchors.is_given_up());
    // Relaxed: the test has one thread.
    let disagreements = process.anchors.disagreements.load(Ordering::Relaxed);
    assert_eq!(disagreements, 5);
}

#[test]
fn a_suspension_that_sets_the_counter_to_zero_is_seen_once() {
    let process = SimulatedProcess::measured(3);
    process.machine.counter.set(0);
    process.run(20 * MILLI, 1_000);
    assert!(process.is_right());
    assert!(!process.anchors.is_given_up());
    // The counter is used again.
    assert!(process.behind.get() > 5_000);
}

#[test]
fn a_suspension_while_the_rate_is_measured_is_no_rate() {
    for at in 0..45 {
        let process = SimulatedProcess::new(1);
        process.run(at * MILLI, 10_000);
        process.machine.suspend(SECOND / 2);
        process.run(100 * MILLI, 10_000);
        // A rate that is not confirmed would be wrong by a factor of ten and more (ANCHOR-4).
        assert!(process.is_right(), "{at}");
    }
}

#[test]
fn a_counter_that_stops_is_not_used_and_then_given_up() {
    let process = SimulatedProcess::measured(1);
    process.machine.counter_speed.set(0);
    // ANCHOR-2: the counter must move forward, so each reading is one of the clock.
    process.run(100 * MILLI, 1_000);
    assert!(process.is_right());
    assert!(process.anchors.is_given_up());
}

#[test]
fn a_counter_that_goes_back_is_not_used() {
    let process = SimulatedProcess::measured(1);
    for _ in 0..3 {
        let counter = process.machine.counter.get();
        // By 1 s, and by less than a window.
        process.machine.counter.set(counter - SECOND * 2_662);
        process.run(20 * MILLI, 1_000);
        let counter = process.machine.counter.get();
        process.machine.counter.set(counter - 50_000 * 2_662);
        process.run(2 * SECOND, 10_000);
    }
    assert!(process.is_right());
}

#[test]
fn a_counter_that_runs_at_another_rate_is_given_up() {
    for (numerator, denominator) in [(1, 2), (1, 10), (2, 1), (10, 1)] {
        let process = SimulatedProcess::measured(1);
        let speed = process.machine.counter_speed.get() * numerator / denominator;
        process.machine.counter_speed.set(speed);
        process.run(200 * MILLI, 1_000);
        assert!(process.anchors.is_given_up(), "{numerator}/{denominator}");
        // Until then, a fast counter is ahead by less than a window, and the margin covers both.
        assert!(process.early.get() == 0, "{numerator}/{denominator}");
        assert!(process.ahead.get() < 100_000, "{numerator}/{denominator}");
        // It would go on and on otherwise (ANCHOR-5).
        let given_up = process.wrong.get();
        process.run(200 * MILLI, 1_000);
        assert_eq!(process.wrong.get(), given_up, "{numerator}/{denominator}");
    }
}

#[test]
fn counters_that_differ_between_cores_are_given_up_by_a_thread_that_changes_cores() {
    let process = SimulatedProcess::measured(1);
    for core in 0..100_u64 {
        let counter = process.machine.counter.get();
        let differs = 10 * MILLI * 2_662;
        process.machine.counter.set(if core % 2 == 0 {
            counter + differs
        } else {
            counter - differs
        });
        process.run(3 * MILLI, 1_000);
    }
    assert!(process.is_right());
    assert!(process.anchors.is_given_up());
}

#[test]
fn counters_that_differ_by_less_than_a_window_are_ahead_by_less_than_the_margin() {
    let process = SimulatedProcess::measured(1);
    for core in 0..1_000_u64 {
        let counter = process.machine.counter.get();
        let differs = 60_000 * 2_662;
        process.machine.counter.set(if core % 2 == 0 {
            counter + differs
        } else {
            counter - differs
        });
        process.run(50_000, 1_000);
    }
    assert!(process.early.get() == 0 && process.ahead.get() < 60_000);
}

#[test]
fn three_disagreements_give_up_only_if_they_are_close_together() {
    let process = SimulatedProcess::measured(1);
    for _ in 0..10 {
        process.machine.suspend(SECOND);
        process.run(510 * MILLI, 10_000);
    }
    process.run(2 * SECOND, 100_000);
    for _ in 0..3 {
        assert!(!process.anchors.is_given_up());
        process.machine.suspend(SECOND);
        process.run(300 * MILLI, 10_000);
    }
    assert!(process.anchors.is_given_up());
    assert!(process.is_right());
}

#[test]
fn a_counter_that_was_given_up_has_no_margin_and_is_not_measured_again() {
    let process = SimulatedProcess::new(2);
    process.run(25 * MILLI, 1_000);
    process.anchors.give_up();
    process.run(2 * SECOND, 100_000);
    assert!(process.anchors.is_given_up());
    let (low, margin) = process.anchors.low(&process.threads[0], &process.machine);
    assert_eq!(margin, 0);
    assert!(process.machine.now() - low <= 50);
}

#[test]
fn a_rate_that_no_processor_has_is_not_used() {
    for speed in [0, 1, 1_024 * 200] {
        let process = SimulatedProcess::new(1);
        process.machine.counter_speed.set(speed);
        process.run(SECOND, 10_000);
        assert!(!process.anchors.is_measured(), "{speed}");
        assert!(process.is_right(), "{speed}");
    }
}

#[test]
fn readings_of_a_thread_never_go_back() {
    let process = SimulatedProcess::new(1);
    let mut last = 0;
    for _ in 0..200_000 {
        process.machine.pass(process.machine.random(2_000));
        let (low, margin) = process.anchors.low(&process.threads[0], &process.machine);
        assert!(low + margin >= last);
        last = low + margin;
    }
    assert!(process.anchors.is_measured());
}

#[test]
fn readings_of_a_thread_never_go_back_with_the_counter() {
    let process = SimulatedProcess::measured(1);
    let read = || process.anchors.low(&process.threads[0], &process.machine).0;
    for _ in 0..5 {
        process.run(2 * SECOND, 100_000);
        process.machine.pass(200_000);
        read();
        process.machine.pass(80_000);
        let last = read();
        // ANCHOR-2: the count lies within the window still, but before the last one.
        let counter = process.machine.counter.get();
        process.machine.counter.set(counter - 30_000 * 2_662);
        assert!(read() >= last);
    }
    assert!(!process.anchors.is_given_up());
}

#[test]
fn an_anchor_that_disagrees_is_not_used() {
    let process = SimulatedProcess::measured(1);
    process.machine.suspend(SECOND);
    process.read(0);
    // ANCHOR-5: this one is a reading of the clock again.
    process.machine.pass(50_000);
    process.behind.set(0);
    process.read(0);
    assert!(process.behind.get() <= 50);
    process.machine.pass(50_000);
    process.read(0);
    assert!(process.behind.get() > 5_000);
}

#[test]
fn a_short_suspension_is_seen_after_a_long_time() {
    let process = SimulatedProcess::measured(1);
    process.run(5 * SECOND, 300_000);
    // Each anchor is compared with one that is not much older.
    process.machine.suspend(50 * MILLI);
    process.run(MILLI, 1_000);
    // Relaxed: the test has one thread.
    let disagreements = process.anchors.disagreements.load(Ordering::Relaxed);
    assert_eq!(disagreements, 1);
}

#[test]
fn a_measurement_begins_anew_when_the_counter_goes_back() {
    let process = SimulatedProcess::new(1);
    process.run(15 * MILLI, 1_000);
    let counter = process.machine.counter.get();
    process.machine.counter.set(counter - SECOND * 2_662);
    // At once, not when the first 20 ms are over.
    process.run(41 * MILLI, 1_000);
    assert!(process.anchors.is_measured());
}

#[test]
fn a_thread_that_is_interrupted_in_each_anchor_measures_nothing() {
    let process = SimulatedProcess::new(1);
    for _ in 0..200 {
        process.machine.pass(MILLI);
        // By less than what two measurements may differ by.
        process.machine.interruption.set(100_000);
        process.read(0);
    }
    assert!(!process.anchors.is_measured());
    assert!(process.is_right());
}
