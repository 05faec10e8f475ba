//! The clock of a machine, which all of its processes read.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tourbillon::{Clock, Time};

use crate::store::StoreError;

/// Where Linux and Android tell which boot of the machine this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The clock that leases end by.
#[derive(Debug)]
pub(super) struct MachineClock {
    /// `None` if the platform has none that processes share. Then it is the wall clock.
    since_boot: Option<Clock>,
    /// Which boot its times belong to. The wall clock has one name for all of them.
    pub(super) boot: String,
}

impl MachineClock {
    pub(super) fn new() -> Result<Self, StoreError> {
        Self::of(Clock::boottime(), || std::fs::read_to_string(BOOT_ID))
    }

    fn of(clock: Clock, boot: impl FnOnce() -> io::Result<String>) -> Result<Self, StoreError> {
        if !clock.counts_suspend() {
            return Ok(MachineClock {
                since_boot: None,
                boot: "wall clock".to_owned(),
            });
        }
        // Not the wall clock instead: other processes of the machine may see the boot, and processes
        // on one file must go by one clock.
        let boot = boot().map_err(|error| {
            StoreError::Refused(format!(
                "{BOOT_ID} can't be read, which tells whether the machine has started anew: {error}"
            ))
        })?;
        Ok(MachineClock {
            since_boot: Some(clock),
            boot: boot.trim().to_owned(),
        })
    }

    /// The time, in microseconds.
    pub(super) fn now(&self) -> i64 {
        match &self.since_boot {
            Some(clock) => micros(clock.now().since(Time::ZERO)),
            None => wall(),
        }
    }
}

/// The wall clock, in microseconds since 1970.
pub(super) fn wall() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    micros(since.unwrap_or_default())
}

/// Rounds up to microseconds: the lease of the store must not end before the caller's.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_clock_since_the_boot_the_wall_clock_counts() {
        let unread = || unreachable!("the boot does not matter");
        let clock = MachineClock::of(Clock::system(), unread).expect("a clock");
        let (before, now) = (wall(), clock.now());
        assert!(before <= now && now <= wall());
        assert_eq!(clock.boot, "wall clock");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_boot_that_cannot_be_told_is_an_error_and_no_other_clock() {
        let gone = || Err(io::ErrorKind::NotFound.into());
        let error = MachineClock::of(Clock::boottime(), gone).expect_err("no boot");
        assert!(error.to_string().contains("boot_id"), "{error}");
        let clock = MachineClock::of(Clock::boottime(), || Ok("b\n".to_owned())).expect("a clock");
        assert_eq!(clock.boot, "b");
        let other = MachineClock::new().expect("this machine has one");
        let (one, two) = (clock.now(), other.now());
        assert!(one <= two && two <= clock.now());
    }

    #[test]
    fn times_are_rounded_up_and_fit() {
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_secs(30)), 30_000_000);
        assert_eq!(micros(Duration::MAX), i64::MAX);
    }
}
