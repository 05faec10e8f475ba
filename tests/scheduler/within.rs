//! Windows: never before their start, and fewer wake-ups than exact timers need.

use std::collections::BTreeSet;
use std::time::Duration;

use kit::steps::stepped;
use tourbillon::Time;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// How many moments there are at which something runs, of a timer each 10 ms for 10 s.
fn moments(width: Duration) -> usize {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    let mut starts = Vec::new();
    let mut moments = BTreeSet::new();
    let mut ran = 0;
    let mut look = |fired: Vec<tourbillon::test_util::Fired<u64>>, starts: &[Time]| {
        for fired in fired {
            let earliest = starts[fired.key as usize] + 30 * S;
            assert!(fired.at >= earliest, "{} ran before its window", fired.key);
            assert!(
                fired.at <= earliest + width,
                "{} ran after its window",
                fired.key
            );
            moments.insert(fired.at);
            ran += 1;
        }
    };
    for key in 0..1_000 {
        let scheduled = timers
            .schedule(key, 30 * S..=30 * S + width, |_| ())
            .unwrap();
        let start = scheduler.now();
        assert!((start + 30 * S..=start + 30 * S + width).contains(&scheduled.deadline));
        starts.push(start);
        look(scheduler.advance(10 * MS), &starts);
    }
    look(scheduler.advance(60 * S), &starts);
    assert_eq!(ran, 1_000);
    moments.len()
}

#[test]
fn wide_windows_need_few_wake_ups() {
    assert_eq!(moments(Duration::ZERO), 1_000, "all of them exact");
    let narrow = moments(100 * MS);
    let wide = moments(5 * S);
    assert!(narrow <= 200, "{narrow}");
    assert!(wide <= 5, "{wide}");
}

#[test]
fn a_window_may_be_empty_or_endless() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    // Backwards: its start alone.
    let backwards = timers.schedule(1, 2 * S..=S, |_| ()).unwrap();
    assert_eq!(backwards.deadline, Time::ZERO + 2 * S);
    let at_once = timers.schedule(2, Duration::ZERO..=Duration::ZERO, |_| ());
    assert_eq!(at_once.unwrap().deadline, Time::ZERO);
    let endless = timers.schedule(3, S..=Duration::MAX, |_| ()).unwrap();
    assert!(endless.deadline >= Time::ZERO + S);
    assert_eq!(scheduler.advance(2 * S).len(), 2);
}
