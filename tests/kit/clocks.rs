//! The clocks that go by themselves.

use tourbillon::Clock;

/// The clocks of real time. Where the processor's counter can't be used, the fast one is the
/// system's too.
#[must_use]
pub fn real() -> [Clock; 2] {
    [Clock::system(), Clock::fast()]
}
