#![doc = include_str!("../README.md")]
#![no_std]

/// Returns the time-stamp counter of the processor, or `None` where this crate does not know one.
///
/// Whether there is one is known when the program is compiled: it is there on x86-64, and not under
/// Miri.
///
/// The instruction is `rdtsc`, without a fence. The processor may execute it before earlier reads
/// of memory have their data. That is why it is cheap, and why the count may be a little older than
/// what the thread has seen.
///
/// # Complexity
///
/// One instruction that takes about 10 ns.
#[inline(always)]
#[must_use]
pub fn counter() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: every x86-64 processor has `rdtsc`. A process that forbids itself the instruction
        // (`prctl(PR_SET_TSC)`) gets a signal, and no undefined behaviour.
        #[allow(unsafe_code, reason = "the one line that this crate exists for")]
        let counter = unsafe { core::arch::x86_64::_rdtsc() };
        Some(counter)
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None
}

#[cfg(test)]
mod tests {
    use super::counter;

    #[test]
    fn it_is_there_where_it_is_promised() {
        let expected = cfg!(all(target_arch = "x86_64", not(miri)));
        assert_eq!(counter().is_some(), expected);
    }

    #[test]
    fn it_moves() {
        let Some(before) = counter() else { return };
        // A counter that stood still would never let this end.
        while counter() == Some(before) {
            core::hint::spin_loop();
        }
    }
}
