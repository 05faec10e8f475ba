//! The clock of a machine, which all of its processes read.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tourbillon::{Clock, Time};

use crate::store::StoreError;

/// Where Linux and Android tell which boot of the machine this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Where Linux tells how far the clocks of a time namespace are from those of the machine.
const OFFSETS: &str = "/proc/self/timens_offsets";

/// The clock that leases end by.
#[derive(Debug)]
pub(super) struct MachineClock {
    /// `None` if the platform has no such clock that processes share. Then the wall clock is used.
    since_boot: Option<Clock>,
    /// The name of the boot that the times belong to. With the wall clock it is always the same.
    pub(super) boot: String,
}

impl MachineClock {
    pub(super) fn new() -> Result<Self, StoreError> {
        Self::of(Clock::boottime(), |path| std::fs::read_to_string(path))
    }

    /// The wall clock, for a platform that has none since the boot.
    pub(super) fn wall() -> Self {
        MachineClock {
            since_boot: None,
            boot: "wall clock".to_owned(),
        }
    }

    fn of(clock: Clock, read: impl Fn(&str) -> io::Result<String>) -> Result<Self, StoreError> {
        if !clock.counts_suspend() {
            return Ok(Self::wall());
        }
        // Not the wall clock instead: other processes of the machine may see the boot, and processes
        // on one file must go by one clock.
        let mut boot = read(BOOT_ID).map_err(|error| {
            StoreError::Refused(format!(
                "{BOOT_ID} can't be read, which tells whether the machine has started anew: {error}"
            ))
        })?;
        boot.truncate(boot.trim_end().len());
        // A process in another time namespace reads other times. A kernel without them has no such file.
        let offsets = read(OFFSETS).unwrap_or_default();
        let offset = offsets
            .lines()
            .filter_map(|line| line.strip_prefix("boottime"));
        for number in offset
            .flat_map(str::split_whitespace)
            .filter(|number| *number != "0")
        {
            boot = format!("{boot} {number}");
        }
        Ok(MachineClock {
            since_boot: Some(clock),
            boot,
        })
    }

    /// Returns whether the clock tells the boots of the machine apart.
    pub(super) fn tells_boots(&self) -> bool {
        self.since_boot.is_some()
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
        let unread = |_: &str| unreachable!("the boot does not matter");
        let clock = MachineClock::of(Clock::system(), unread).expect("a clock");
        let (before, now) = (wall(), clock.now());
        assert!(before <= now && now <= wall());
        assert_eq!(clock.boot, "wall clock");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_boot_that_cannot_be_told_is_an_error_and_no_other_clock() {
        let gone = |_: &str| Err(io::ErrorKind::NotFound.into());
        let error = MachineClock::of(Clock::boottime(), gone).expect_err("no boot");
        assert!(error.to_string().contains("boot_id"), "{error}");
        // Without time namespaces, in that of the machine, and in others.
        for (offsets, boot) in [
            (None, "b"),
            (
                Some("monotonic           0         0\nboottime            0         0\n"),
                "b",
            ),
            (
                Some("monotonic           7         0\nboottime            0         0\n"),
                "b",
            ),
            (
                Some("monotonic           0         0\nboottime           -5   9000000\n"),
                "b -5 9000000",
            ),
            (Some("boottime 5 0"), "b 5"),
        ] {
            let read = |path: &str| match (path, offsets) {
                (BOOT_ID, _) => Ok("b\n".to_owned()),
                (OFFSETS, Some(offsets)) => Ok(offsets.to_owned()),
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            let clock = MachineClock::of(Clock::boottime(), read).expect("a clock");
            assert_eq!(clock.boot, boot);
        }
        let clock = MachineClock::new().expect("this machine has one");
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
