//! Tickets, which pass from tickers to workers, and the operations that a worker has on them.

use std::any::Any;
use std::hint::black_box;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice::from_mut;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::panicking;

/// A slot of a stripe whose timer has expired. At most one ticket per slot is under way.
///
/// A ticket is no permission to run: its timer may have been cancelled or moved meanwhile. Only a
/// claim under the stripe's lock decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub(crate) stripe: u32,
    pub(crate) slot: u32,
}

/// Serves tickets. The executor knows this trait and never a timer.
pub(crate) trait Claim: Send + Sync + 'static {
    /// Does for a worker what is to be done with the tickets: serves them, or hands them to an
    /// executor of the user.
    fn dispatch(&self, first: Ticket, at_lock: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        self.serve(first, at_lock, more);
    }

    /// Claims `first`, runs its task if the timer is still due, and goes on with the tickets that
    /// `more` yields until it returns `None`. A ticket is claimed right before its task starts,
    /// never in advance.
    ///
    /// `more` is called before the preceding run is completed, so that completing one run and
    /// claiming the next ticket in the same stripe take one lock. `at_lock` is set while the thread
    /// waits for that lock, and may be set while it holds it.
    fn serve(&self, first: Ticket, at_lock: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>);

    /// Prefetches the entries of all `tickets` into the cache of this processor. It claims nothing.
    fn prefetch_claims(&self, tickets: &[Ticket]) {
        let _ = tickets;
    }

    /// Takes back tickets that will not be claimed. Their timers become due again.
    fn give_back(&self, tickets: &[Ticket]);
}

/// Says that a worker's thread claims, completes or rests, so that it can only wait for a lock of
/// this crate or for tickets. A thread that waits inside a task looks the same to the kernel.
#[derive(Debug, Default)]
pub(crate) struct AtLock(AtomicBool);

/// Ends the mark of [`AtLock::enter`] when it is dropped.
pub(crate) struct AtLockScope<'a>(&'a AtLock);

impl AtLock {
    /// Sets the mark. Only the thread of the worker calls this.
    #[inline]
    pub(crate) fn enter(&self) -> AtLockScope<'_> {
        // Relaxed: a ticker takes it for a hint. If it reads an old value, it takes a worker that
        // waits for a moment as blocked, or the other way round, in one of its checks.
        self.0.store(true, Ordering::Relaxed);
        AtLockScope(self)
    }

    /// Returns whether the mark is set.
    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: see `enter`.
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for AtLockScope<'_> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: see `enter`.
        self.0.0.store(false, Ordering::Relaxed);
    }
}

/// Greatest size of a value that [`prefetch`] reads: two cache lines.
const PREFETCHED: usize = 128;

/// Reads a value of the user into the cache of this processor, and runs no user code. A read
/// through the value's own type would need its help, so the value is exchanged with itself.
#[inline]
pub(crate) fn prefetch<T>(value: &mut T) {
    if (1..=PREFETCHED).contains(&size_of::<T>()) {
        // The compiler must not know that the slice has one element, or it removes the exchange.
        black_box(from_mut(value)).swap(0, black_box(0));
    }
}

/// Runs user code and catches a panic, whose message it returns. The payload of the panic is user
/// code as well: its `Drop` may panic in turn, so it is dropped under another guard.
pub(crate) fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let message = message_of(payload.as_ref());
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // A payload whose drop panics gets no third chance: it is leaked.
            std::mem::forget(again);
        }
        message
    })
}

/// Drops values of the user one by one, because two panics at once would abort the process. The
/// first panic is resumed when all values are gone, unless the thread is panicking already.
pub(crate) fn drop_each<A, B>(garbage: impl IntoIterator<Item = (A, B)>) {
    let mut first = None;
    let mut dispose = |ended: Result<(), Box<dyn Any + Send>>| match ended {
        Err(panic) if first.is_none() => first = Some(panic),
        // One panic is resumed. The payloads of the others are leaked, because their drops may
        // panic, too.
        Err(panic) => std::mem::forget(panic),
        Ok(()) => {}
    };
    for (one, other) in garbage {
        dispose(catch_unwind(AssertUnwindSafe(|| drop(one))));
        dispose(catch_unwind(AssertUnwindSafe(|| drop(other))));
    }
    match first {
        Some(panic) if panicking() => std::mem::forget(panic),
        Some(panic) => resume_unwind(panic),
        None => {}
    }
}

/// Values of the user that are dropped with this, as [`drop_each`] does: also if the thread panics
/// in between.
pub(crate) struct Garbage<A, B>(Vec<(A, B)>);

impl<A, B> Garbage<A, B> {
    pub(crate) const fn new() -> Self {
        Garbage(Vec::new())
    }

    pub(crate) fn push(&mut self, one: A, other: B) {
        self.0.push((one, other));
    }
}

impl<A, B> Drop for Garbage<A, B> {
    fn drop(&mut self) {
        drop_each(self.0.drain(..));
    }
}

/// Drops the two values of one operation, as [`drop_each`] does. If one of them has nothing to
/// drop, there can't be two panics, and nothing has to be caught.
#[inline]
pub(crate) fn drop_catching<A, B>((one, other): (A, B)) {
    if needs_drop::<A>() && needs_drop::<B>() || panicking() {
        drop_one_by_one(one, other);
    }
}

#[inline(never)]
fn drop_one_by_one<A, B>(one: A, other: B) {
    drop_each([(one, other)]);
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic whose payload is no text".to_owned()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }

    #[test]
    fn a_prefetch_leaves_every_value_as_it_is() {
        let mut small = (7_u64, "text".to_owned());
        let mut large = [3_u8; PREFETCHED + 1];
        prefetch(&mut small);
        prefetch(&mut large);
        prefetch(&mut ());
        assert_eq!(small, (7, "text".to_owned()));
        assert_eq!(large, [3; PREFETCHED + 1]);
    }

    #[test]
    fn a_panic_is_contained_and_its_message_kept() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        assert_eq!(
            catch_panic(|| panic!("plain")),
            Err::<(), _>("plain".to_owned())
        );
        let number = 3;
        assert_eq!(
            catch_panic(|| panic!("number {number}")),
            Err::<(), _>("number 3".to_owned())
        );
    }

    #[test]
    fn c110_a_panic_in_the_drop_of_a_panic_is_contained() {
        assert!(catch_panic(|| std::panic::panic_any(Bomb)).is_err());
    }

    #[test]
    fn a_panic_in_the_drop_of_a_pair_goes_on_when_both_are_gone() {
        struct InUnwinding<F: FnMut()>(F);
        impl<F: FnMut()> Drop for InUnwinding<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let told = Err("in drop".to_owned());
        assert_eq!(catch_panic(|| drop_catching((Bomb, Bomb))), told);
        assert_eq!(catch_panic(|| drop_catching((1, Bomb))), told);
        assert_eq!(catch_panic(|| drop_catching((Bomb, 1))), told);
        // While the thread is panicking one more would end the process.
        let unwound = catch_panic(|| {
            let _guard = InUnwinding(|| drop_catching((1, Bomb)));
            panic!("first");
        });
        assert_eq!(unwound, Err::<(), _>("first".to_owned()));
    }

    #[test]
    fn panics_in_many_drops_are_told_as_one() {
        struct CountedBomb<'a>(&'a std::cell::Cell<u32>);
        impl Drop for CountedBomb<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
                panic!("drop {}", self.0.get());
            }
        }
        let drops = std::cell::Cell::new(0);
        let bombs = (0..5).map(|_| (CountedBomb(&drops), Some(CountedBomb(&drops))));
        let bombs: Vec<_> = bombs.collect();
        assert_eq!(catch_panic(|| drop_each(bombs)), Err("drop 1".to_owned()));
        assert_eq!(drops.get(), 10);
    }
}
