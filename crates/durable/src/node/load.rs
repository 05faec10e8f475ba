//! The bytes of payloads that one call carries, so that no call holds up the others for long.

/// The greatest number of bytes in a call of several timers.
pub(super) const MOST_BYTES: u64 = 2 * 1024 * 1024;

/// The payloads of a call: at most [`MOST_BYTES`], or one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    bytes: u64,
    count: usize,
}

impl Load {
    /// Whether another payload of this length fits.
    pub(super) fn fits(self, bytes: u64) -> bool {
        self.count == 0 || self.bytes.saturating_add(bytes) <= MOST_BYTES
    }

    /// Adds a payload, if it fits.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let fits = self.fits(bytes);
        if fits {
            self.bytes = self.bytes.saturating_add(bytes);
            self.count += 1;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_carries_its_bound_or_one_payload_that_is_larger() {
        let mut load = Load::default();
        assert!(load.take(u64::MAX) && !load.take(1) && !load.take(u64::MAX));
        let mut load = Load::default();
        assert!(load.take(MOST_BYTES - 1) && load.take(0) && load.take(1));
        assert!(!load.take(1) && load.take(0));
    }
}
