//! Leaving a waker where somebody else takes it under a lock.

use std::task::Waker;

/// Leaves `waker` in the place that `with` shows under its lock. Whether there was such a place.
///
/// Wakers are a runtime's code, so it is cloned before the lock is taken, and what it replaces is
/// dropped afterwards. One that would wake the same task stays, and nothing is cloned.
pub(crate) fn leave(waker: &Waker, with: impl Fn(&mut dyn FnMut(&mut Waker))) -> bool {
    let (mut found, mut known) = (false, false);
    with(&mut |left| {
        found = true;
        known = left.will_wake(waker);
    });
    if !found || known {
        return found;
    }
    let mut other = waker.clone();
    found = false;
    with(&mut |left| {
        found = true;
        std::mem::swap(left, &mut other);
    });
    found
}
