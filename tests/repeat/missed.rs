//! Rounds that were missed: the policies after a pause, on the manual clock and in a child process
//! that is stopped.

use std::time::Duration;

use kit::rounds::{Beat, at, beating};
use kit::steps::{SEEDS, T};
use tourbillon::{Missed, Next, Period};

/// The period, in ticks.
const P: u32 = 10;

fn rate() -> Period {
    Period::fixed_rate(P * T)
}

/// Runs up to tick 100, stands still until tick `until`, and goes on until tick 300. The rounds
/// from the pause on, as when they started and how many they were told were missed.
fn after_a_pause(seed: u64, period: Period, until: u32) -> Vec<(u64, u64)> {
    let (scheduler, beats) = beating(seed, period, |_| ());
    scheduler.advance_to(at(100));
    assert_eq!(beats.starts().last(), Some(&100));
    scheduler.jump_to(at(until));
    scheduler.advance_to(at(300));
    let stats = scheduler.handle().stats();
    // 1.8: what was put off has not started, and is still the same arming.
    assert_eq!((stats.scheduled, stats.pending), (stats.ran + 1, 1));
    assert!(stats.balances());
    beats.told()
}

#[test]
fn c101_after_a_pause_of_ten_periods() {
    for seed in SEEDS {
        // The pause ends with the tenth point of the grid, or in the period after.
        for until in [200, 201, 209] {
            let late = u64::from(until);
            for (policy, at_once) in [
                (Missed::Skip, vec![]),
                (Missed::Once, vec![(late, 9)]),
                (Missed::AtMost(0), vec![]),
                (Missed::AtMost(1), vec![(late, 9)]),
                (Missed::AtMost(3), vec![(late, 7), (late, 0), (late, 0)]),
                (Missed::AtMost(10), vec![(late, 0); 10]),
                (Missed::AtMost(1_000), vec![(late, 0); 10]),
                (Missed::All, vec![(late, 0); 10]),
            ] {
                let told = after_a_pause(seed, rate().missed(policy), until);
                let left = 10 - at_once.len() as u64 - at_once.iter().map(|t| t.1).sum::<u64>();
                // Then on the grid, in the period after the pause and in every one after that.
                let grid = (0..10).map(|n| (210 + 10 * n, if n == 0 { left } else { 0 }));
                let expected: Vec<_> = at_once.into_iter().chain(grid).collect();
                assert_eq!(told, expected, "{policy:?} {until}");
            }
        }
    }
}

#[test]
fn c101_by_default_no_round_is_late_and_the_next_one_is_told() {
    for seed in SEEDS {
        let (scheduler, beats) = beating(seed, rate(), |_| ());
        scheduler.advance_to(at(100));
        beats.take();
        assert_eq!(scheduler.jump_to(at(200)).len(), 0);
        // It is what it says: pending, and due on the grid.
        let info = scheduler.handle().get(&1).unwrap();
        assert_eq!(info.deadline, at(210));
        assert_eq!(scheduler.handle().stats().ran, 10);
        // In the period after the pause it runs once.
        assert_eq!(scheduler.advance_to(at(210)).len(), 1);
        let told = Beat {
            number: 11,
            missed: 10,
            due: 210,
            at: 210,
        };
        assert_eq!(beats.take(), [told]);
    }
}

#[test]
fn c101_missed_rounds_of_several_pauses_add_up() {
    for seed in SEEDS {
        let (scheduler, beats) = beating(seed, rate(), |_| ());
        scheduler.advance_to(at(100));
        beats.take();
        assert_eq!(scheduler.jump_to(at(200)).len(), 0);
        assert_eq!(scheduler.jump_to(at(305)).len(), 0);
        scheduler.advance_to(at(320));
        assert_eq!(beats.told(), [(310, 20), (320, 0)]);
    }
}

/// A machine that is late by three periods every time.
#[test]
fn who_is_always_late_runs_now_and_then() {
    for seed in SEEDS {
        let (scheduler, beats) = beating(seed, rate(), |_| ());
        for jump in 1..=40 {
            scheduler.jump_to(at(jump * 3 * P));
        }
        let told = beats.take();
        assert_eq!(told.len(), 10);
        let points = told.last().unwrap().at / u64::from(P);
        let missed: u64 = told.iter().map(|beat| beat.missed).sum();
        assert_eq!(missed + 10, points);
    }
}

#[test]
fn c102_what_is_late_by_less_than_the_grace_is_not_missed() {
    for seed in SEEDS {
        for (grace, late, runs) in [
            (None, 9, true),
            (None, 10, false),
            (Some(5), 4, true),
            (Some(5), 5, false),
            (Some(35), 34, true),
            (Some(35), 35, false),
            // Every start may be late by a tick.
            (Some(0), 1, true),
            (Some(0), 2, false),
        ] {
            let mut period = rate();
            if let Some(grace) = grace {
                period = period.grace(grace * T);
            }
            let (scheduler, beats) = beating(seed, period, |_| ());
            scheduler.advance_to(at(100));
            beats.take();
            scheduler.jump_to(at(110 + late));
            let told = beats.told();
            assert_eq!(
                told.first().copied(),
                runs.then_some((110 + u64::from(late), 0)),
                "{grace:?} {late}"
            );
        }
    }
}

#[test]
fn only_a_fixed_rate_has_missed_rounds() {
    for seed in SEEDS {
        for period in [
            Period::fixed_delay(P * T),
            Period::schedule(|so_far| Some(so_far.now + P * T)),
        ] {
            let told = after_a_pause(seed, period, 205);
            assert_eq!(told[..3], [(205, 0), (215, 0), (225, 0)]);
        }
    }
}

#[test]
fn what_is_made_up_for_bears_its_own_deadline() {
    let (scheduler, beats) = beating(1, rate().missed(Missed::AtMost(3)), |_| ());
    scheduler.advance_to(at(100));
    beats.take();
    scheduler.jump_to(at(205));
    let dues: Vec<u64> = beats.take().iter().map(|beat| beat.due).collect();
    assert_eq!(dues, [180, 190, 200]);
}

/// What was left out lies between the round before and the round that is told of it.
#[test]
fn what_was_left_out_lies_before_the_deadline_of_the_round_that_is_told() {
    for policy in [Missed::Skip, Missed::Once, Missed::AtMost(3), Missed::All] {
        for seed in SEEDS {
            let (scheduler, beats) = beating(seed, rate().missed(policy), |_| ());
            scheduler.advance_to(at(100));
            for until in [200, 205, 333] {
                scheduler.jump_to(at(until));
            }
            scheduler.advance_to(at(400));
            let beats = beats.take();
            for pair in beats.windows(2) {
                let between = (pair[1].due - pair[0].due) / u64::from(P) - 1;
                assert_eq!(pair[1].missed, between, "{policy:?} {pair:?}");
            }
        }
    }
}

/// The bearing of a later deadline does not hide from the statistics how late the engine was.
#[test]
fn the_lateness_of_the_first_round_missed_is_recorded() {
    let (scheduler, beats) = beating(1, rate().missed(Missed::Once), |_| ());
    scheduler.advance_to(at(100));
    scheduler.jump_to(at(205));
    let told = beats.take().pop().unwrap();
    assert_eq!((told.due, told.at, told.missed), (200, 205, 9));
    let stats = scheduler.handle().stats();
    let latest = stats.shards.iter().map(|shard| shard.lateness.max).max();
    assert!(latest.unwrap() >= 95 * T, "{latest:?}");
}

#[test]
fn a_task_that_stops_is_not_made_up_for() {
    let (scheduler, beats) = beating(1, rate().missed(Missed::All), |round| {
        match round.number() {
            1..=12 => Next::Again,
            _ => Next::Stop,
        }
    });
    scheduler.advance_to(at(100));
    scheduler.jump_to(at(200));
    assert_eq!(beats.take().len(), 13);
    assert!(!scheduler.handle().contains(&1));
}

/// What a pause of years costs is arithmetic, whatever the number of points.
#[test]
fn after_years_the_points_are_counted_and_not_walked() {
    let years = Duration::from_secs(30 * 365 * 86_400);
    let missed = u64::try_from(years.as_millis() / u128::from(P)).unwrap();
    for (policy, late) in [(Missed::Skip, 0), (Missed::Once, 1), (Missed::AtMost(3), 3)] {
        let (scheduler, beats) = beating(1, rate().missed(policy), |_| ());
        scheduler.advance_to(at(100));
        beats.take();
        scheduler.jump_to(at(100) + years);
        assert_eq!(beats.take().len(), late);
        scheduler.advance(P * T);
        let told: u64 = scheduler.handle().stats().ran;
        assert_eq!(told, 10 + late as u64 + 1);
        let told: u64 = beats.take().iter().map(|beat| beat.missed).sum();
        // Those that ran late were told of theirs.
        assert_eq!(told, if late == 0 { missed } else { 0 });
    }
}

/// A clock that is set back: nothing is missed, and nothing runs before its time.
#[test]
fn a_clock_that_goes_back_misses_nothing() {
    for seed in SEEDS {
        let (scheduler, beats) = beating(seed, rate(), |_| ());
        scheduler.advance_to(at(100));
        beats.take();
        assert_eq!(scheduler.jump_to(at(50)).len(), 0);
        scheduler.advance_to(at(130));
        assert_eq!(beats.told(), [(110, 0), (120, 0), (130, 0)]);
    }
}

/// The real thing: a child process that is stopped for ten periods. It is this program, with a word
/// in its environment.
#[cfg(target_os = "linux")]
mod suspended {
    use std::env;
    use std::io::{BufRead, BufReader};
    use std::process::{ChildStderr, Command, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    use kit::pause::Paused;
    use tourbillon::{Missed, Next, Period, Scheduler};

    const CHILD: &str = "TOURBILLON_TEST_BEATS";
    const PERIOD: Duration = Duration::from_millis(100);

    fn policy(name: &str) -> Missed {
        match name {
            "once" => Missed::Once,
            "all" => Missed::All,
            _ => Missed::Skip,
        }
    }

    /// What the child does: it beats, and says so, until nobody listens.
    #[test]
    fn the_child() {
        let Ok(name) = env::var(CHILD) else {
            return;
        };
        let scheduler = Scheduler::<u64>::builder().build().unwrap();
        let (send, ended) = mpsc::channel();
        let period = Period::fixed_rate(PERIOD).missed(policy(&name));
        let armed = scheduler.handle().repeat(1, period, move |round| {
            eprintln!(
                "beat {} {} {} {}",
                round.number(),
                round.missed(),
                round.deadline().as_nanos(),
                round.lateness().as_nanos(),
            );
            if round.number() < 600 {
                return Next::Again;
            }
            send.send(()).unwrap();
            Next::Stop
        });
        armed.unwrap();
        // Its end, if the parent does not kill it before.
        let _ = ended.recv();
    }

    #[derive(Clone, Copy, Debug)]
    struct Line {
        number: u64,
        missed: u64,
        deadline: u64,
        lateness: u64,
    }

    struct Beating {
        child: Paused,
        lines: std::io::Lines<BufReader<ChildStderr>>,
    }

    impl Beating {
        fn start(policy: &str) -> Self {
            let mut child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "missed::suspended::the_child", "--nocapture"])
                .env(CHILD, policy)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            Beating {
                child: Paused(child),
                lines,
            }
        }

        fn next(&mut self) -> Line {
            loop {
                let line = self.lines.next().expect("the child beats").unwrap();
                let Some(numbers) = line.strip_prefix("beat ") else {
                    continue;
                };
                let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap());
                let mut number = || numbers.next().unwrap();
                return Line {
                    number: number(),
                    missed: number(),
                    deadline: number(),
                    lateness: number(),
                };
            }
        }
    }

    /// Beats a few times, is stopped for ten periods, and beats on. All lines but the first.
    fn beat(policy: &str) -> (u64, Vec<Line>) {
        let mut beating = Beating::start(policy);
        let first = beating.next();
        assert_eq!(first.number, 1);
        let mut lines = vec![beating.next(), beating.next()];
        beating.child.pause(10 * PERIOD);
        let all_there = |lines: &[Line]| {
            let after = lines.iter().rev().take_while(|line| line.missed < 10);
            after.count() >= 5
        };
        // Until it has caught up, by far.
        while lines.len() < 20 || !all_there(&lines) {
            lines.push(beating.next());
        }
        (first.deadline, lines)
    }

    fn period() -> u64 {
        u64::try_from(PERIOD.as_nanos()).unwrap()
    }

    #[test]
    fn c043_c101_stopped_for_ten_periods_it_runs_once_in_the_period_after() {
        let (first, lines) = beat("skip");
        let after = lines.iter().position(|line| line.missed >= 10);
        let after = after.expect("the round after the pause is told of it");
        assert!(after >= 2);
        let mut last = lines[0].deadline - period();
        for (line, number) in lines.iter().zip(2..) {
            assert_eq!(line.number, number);
            assert_eq!((line.deadline - first) % period(), 0, "on the grid");
            // None is late, so none is made up for; what is not there was told.
            assert!(line.lateness < period(), "{line:?}");
            assert!(line.deadline >= last + period(), "one in a period");
            last = line.deadline;
        }
        for pair in lines.windows(2) {
            let gap = pair[1].deadline - pair[0].deadline;
            assert_eq!(gap, (pair[1].missed + 1) * period());
        }
    }

    #[test]
    fn c043_c101_stopped_for_ten_periods_it_makes_up_for_what_was_asked() {
        // What `once` runs is the latest round of all that were missed, so it is not late itself.
        for (policy, made) in [("once", 0), ("all", 9)] {
            let (first, lines) = beat(policy);
            assert!(
                lines
                    .iter()
                    .all(|line| (line.deadline - first) % period() == 0)
            );
            let late = lines.iter().filter(|line| line.lateness >= period());
            let late: Vec<_> = late.collect();
            assert!(late.len() >= made, "{policy}: {late:?}");
            let missed: u64 = lines.iter().map(|line| line.missed).sum();
            assert_eq!(missed > 0, policy == "once");
            for pair in lines.windows(2) {
                let gap = pair[1].deadline - pair[0].deadline;
                assert_eq!(gap, (pair[1].missed + 1) * period(), "{policy}: {pair:?}");
            }
            // With those that were left out every point of the grid has its round.
            let last = lines.last().unwrap();
            let points = (last.deadline - first) / period() + 1;
            assert_eq!(last.number + missed, points, "{policy}");
        }
    }
}

#[test]
fn a_period_says_what_it_is() {
    let period = rate().missed(Missed::Once).grace(3 * T).jitter(T);
    let text = format!("{period:?}");
    for part in [
        "fixed_rate: 10ms",
        "Once",
        "grace: Some(3ms)",
        "jitter: 1ms",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let text = format!("{:?}", Period::schedule(|_| None).first(Duration::ZERO));
    assert!(text.contains("schedule: .."), "{text}");
}
