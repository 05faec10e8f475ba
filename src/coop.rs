//! Turns for the runtime, for crates that build on this one.
//!
//! A future that is ready whenever it is polled never returns to its runtime: `loop {
//! sleep(ZERO).await }` would keep the thread, no other task would run, and no `select!` could drop
//! the loop. So each future of this crate that can be ready without having waited has a
//! [`YieldPoint`]. After a bounded number of ready answers on one thread it wakes its task and
//! returns [`Poll::Pending`] once, which works on every runtime.
//!
//! The count belongs to the thread and not to the future, because a loop can make a new future in
//! each round. A task stays on its thread until it returns to the runtime, so the count finds each
//! task that never returns. Tasks on a thread share its count. So a task may have to yield early,
//! because earlier tasks on that thread have used most of the count.
//!
//! A future that has returned pending is not counted in its next poll: the runtime has had its
//! turn. So no answer is put off twice, and none that was waited for is put off at all. **COOP-1**

use std::cell::Cell;
use std::task::{Context, Poll, ready};

use crate::sync::thread_local;

/// The number of ready answers between two turns of the runtime. A turn costs a wake-up and a
/// poll, so it adds little to each of them, and 64 answers take microseconds.
pub(crate) const READY_IN_A_ROW: u32 = 64;

// The number of answers since this thread's last turn.
thread_local! {
    static READY: Cell<u32> = const { Cell::new(0) };
}

/// Counts an answer that is ready. After [`READY_IN_A_ROW`] of them, wakes the task and returns
/// pending instead. The caller remembers that it has yielded, and counts its next answer no more.
#[inline]
pub(crate) fn count(context: &Context<'_>) -> Poll<()> {
    let is_over = READY.with(|ready| {
        let is_over = ready.get() >= READY_IN_A_ROW;
        ready.set(if is_over { 0 } else { ready.get() + 1 });
        is_over
    });
    if is_over {
        context.waker().wake_by_ref();
        return Poll::Pending;
    }
    Poll::Ready(())
}

/// The part of a future or stream that gives the runtime a turn when there have been too many ready
/// answers; see the [module](self).
///
/// # Examples
///
/// A future whose answer is often known at once:
///
/// ```
/// use std::future::Future;
/// use std::pin::Pin;
/// use std::task::{Context, Poll};
/// use tourbillon::coop::YieldPoint;
///
/// #[derive(Default)]
/// struct Cached {
///     answer: u32,
///     yield_point: YieldPoint,
/// }
///
/// impl Future for Cached {
///     type Output = u32;
///
///     fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
///         let this = &mut *self;
///         this.yield_point.poll(context, |_| Poll::Ready(this.answer))
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// assert_eq!(Cached { answer: 42, ..Cached::default() }.await, 42);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct YieldPoint {
    /// Whether the last poll was pending, for whatever reason.
    yielded: bool,
}

impl YieldPoint {
    /// Polls `answer`, unless it is time for a turn of the runtime. Then `answer` is not called,
    /// the task is woken, and the result is [`Poll::Pending`].
    ///
    /// After a poll that was pending, `answer` is always called: the runtime has had its turn.
    #[inline]
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        answer: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // COOP-1
        if !self.yielded {
            // Before the waker is called, which is code of its runtime.
            self.yielded = true;
            ready!(count(context));
        }
        let answer = answer(context);
        self.yielded = answer.is_pending();
        answer
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use super::*;
    use crate::sync::Arc;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls until the first turn, and returns the number of answers before it.
    fn until_turn(mut poll: impl FnMut(&mut Context<'_>) -> Poll<()>) -> u32 {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut answers = 0;
        while poll(&mut context).is_ready() {
            assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
            answers += 1;
            assert!(answers <= READY_IN_A_ROW, "no turn");
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "a turn wakes its task");
        answers
    }

    fn at_once(point: &mut YieldPoint, context: &mut Context<'_>) -> Poll<()> {
        point.poll(context, |_| Poll::Ready(()))
    }

    fn use_up(context: &Context<'_>) {
        while READY.get() < READY_IN_A_ROW {
            assert!(count(context).is_ready());
        }
    }

    #[test]
    fn new_futures_share_the_count_of_their_thread() {
        let new = |context: &mut Context<'_>| at_once(&mut YieldPoint::default(), context);
        assert_eq!(until_turn(new), READY_IN_A_ROW);
        assert_eq!(until_turn(new), READY_IN_A_ROW);
        use_up(&Context::from_waker(Waker::noop()));
        // On another thread the count begins at zero.
        let elsewhere = std::thread::spawn(move || until_turn(new)).join().unwrap();
        assert_eq!(elsewhere, READY_IN_A_ROW);
    }

    #[test]
    fn a_future_that_has_yielded_is_not_asked_again_whatever_others_do() {
        let mut context = Context::from_waker(Waker::noop());
        let mut point = YieldPoint::default();
        until_turn(|context| at_once(&mut point, context));
        use_up(&context);
        assert!(at_once(&mut point, &mut context).is_ready());
        assert!(
            at_once(&mut point, &mut context).is_pending(),
            "the next one is counted"
        );
    }

    #[test]
    fn an_answer_that_was_waited_for_is_not_put_off() {
        let mut context = Context::from_waker(Waker::noop());
        let mut point = YieldPoint::default();
        for _ in 0..3 {
            assert!(
                point
                    .poll(&mut context, |_| Poll::<()>::Pending)
                    .is_pending()
            );
            use_up(&context);
        }
        assert!(at_once(&mut point, &mut context).is_ready());
    }

    #[test]
    fn an_answer_that_is_put_off_is_not_taken() {
        let mut context = Context::from_waker(Waker::noop());
        use_up(&context);
        let mut point = YieldPoint::default();
        let mut item = Some(7);
        let mut poll = || point.poll(&mut context, |_| Poll::Ready(item.take()));
        assert_eq!((poll(), poll()), (Poll::Pending, Poll::Ready(Some(7))));
    }
}
