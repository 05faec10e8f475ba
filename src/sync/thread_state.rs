//! Asks the kernel whether another thread of this process waits, and how exactly this one is woken.
//!
//! For the first, the CPU time of a thread would not serve. Another thread can't read it, so it would be known
//! only when a task ends, and a task may take long. It also does not grow while the thread could
//! run but other processes use the cores, which looks exactly like waiting.

/// Returns the number of the calling thread for [`waits`], or `None` where the kernel can't be
/// asked.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn own_number() -> Option<u64> {
    // The link ends in the number that the thread has in the mounted proc file system.
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// Returns whether the thread waits: it has no use for a core, even if one is free. Returns `None`
/// if that can't be found out, also because the thread has ended.
///
/// Costs a few system calls, 5 to 20 microseconds in all.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn waits(number: u64) -> Option<bool> {
    use std::io::Read;
    // The state is within the first 64 bytes, because thread names are short.
    let mut start = [0; 64];
    let path = format!("/proc/self/task/{number}/stat");
    let len = std::fs::File::open(path).ok()?.read(&mut start).ok()?;
    state_in(&start[..len]).map(|state| matches!(state, b'S' | b'D'))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn own_number() -> Option<u64> {
    None
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn waits(_: u64) -> Option<bool> {
    None
}

/// Has the kernel wake the calling thread within a nanosecond of its time, if it can. By default it
/// may wake a thread 50 us later, together with others. Threads that this one starts inherit it.
///
/// A sandbox may refuse the call. Then the thread is woken as all others.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn wake_exactly() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn wake_exactly() {}

/// Returns the letter of the state in a line such as `4711 (tb-work-0) S 1 ..`. The name may
/// contain anything, also brackets.
#[cfg(any(test, target_os = "linux", target_os = "android"))]
fn state_in(line: &[u8]) -> Option<u8> {
    let end_of_name = line.iter().rposition(|byte| *byte == b')')?;
    match line.get(end_of_name + 1..)? {
        [b' ', state, b' ', ..] => Some(*state),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_the_name_whatever_that_contains() {
        assert_eq!(state_in(b"4711 (tb-work-0) S 1 47"), Some(b'S'));
        assert_eq!(state_in(b"4711 (a) R (b) D) R 1 47"), Some(b'R'));
        for cut in [
            &b""[..],
            b"4711 (tb-work-0",
            b"4711 (tb-work-0) ",
            b"4711 (x) S",
        ] {
            assert_eq!(state_in(cut), None, "{cut:?}");
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_thread_that_blocks_waits_and_one_that_spins_does_not() {
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::sync::mpsc::channel;
        let stop = AtomicBool::new(false);
        let (tell, told) = channel();
        let (release, released) = channel::<()>();
        std::thread::scope(|scope| {
            let (stop, spinner) = (&stop, tell.clone());
            scope.spawn(move || {
                spinner.send(own_number().unwrap()).unwrap();
                // Relaxed: nothing else depends on it.
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let spins = told.recv().unwrap();
            let blocked = tell.clone();
            scope.spawn(move || {
                blocked.send(own_number().unwrap()).unwrap();
                let _ = released.recv();
            });
            let blocks = told.recv().unwrap();
            while waits(blocks) != Some(true) {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                assert_eq!(waits(spins), Some(false));
                assert_eq!(waits(blocks), Some(true));
            }
            // Relaxed: see above.
            stop.store(true, Ordering::Relaxed);
            drop(release);
        });
        assert_eq!(waits(own_number().unwrap()), Some(false), "it runs");
        assert_eq!(waits(u64::MAX), None, "no such thread");
    }
}
