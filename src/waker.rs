//! Leaving a waker in a place that another thread reads under a lock.

use std::task::Waker;

/// Leaves `waker` in the place to which `with` gives access under its lock. Returns whether there
/// was such a place.
///
/// A waker is code of its runtime. So it is cloned before the lock is taken, and the waker that it
/// replaces is dropped after the lock is released. A waker that would wake the same task stays, and
/// nothing is cloned.
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
