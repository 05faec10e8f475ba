//! Memory under touches. A test binary of its own: no other test's memory is in its process.
#![cfg(target_os = "linux")]

use std::fs;
use std::time::Duration;

use tourbillon::{Clock, ExpiryMap, ManualClock, Touch};

/// Resident memory of this process, in bytes. Linux tells it.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    1_024
        * kilobytes
            .expect("a line with kB")
            .trim()
            .parse::<usize>()
            .expect("a number")
}

#[test]
fn fifty_touches_of_a_session_take_no_more_memory_than_one() {
    const SESSIONS: u64 = 10_000;
    let clock = ManualClock::new();
    let map = ExpiryMap::<u64, u64>::builder()
        .time_to_idle(Duration::from_secs(1_800))
        .clock(Clock::manual(&clock))
        // Each thread has memory of its own.
        .shards(1)
        .workers(1)
        .build(|_, _| unreachable!("each is touched in time"))
        .unwrap();
    let touch_all = || {
        clock.advance(Duration::from_secs(60));
        for key in 0..SESSIONS {
            assert!(matches!(map.touch(&key), Touch::Touched { .. }));
        }
    };
    for key in 0..SESSIONS {
        map.insert(key, key).unwrap();
    }
    // Until the wheel has turned once below them: the ticker's own memory comes with its first
    // work.
    for _ in 0..35 {
        touch_all();
    }
    let before = resident();
    for _ in 0..50 {
        touch_all();
    }
    let grown = resident().saturating_sub(before);
    // One cancelled timer a touch, kept until its deadline, would be 20 MB at 40 bytes each. What
    // is allowed is less than 53 bytes for each session, in all.
    assert!(grown <= 512 * 1_024, "50 touches took {grown} bytes");
    assert_eq!(map.len(), SESSIONS as usize);
}
