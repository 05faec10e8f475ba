//! The futures of calls, and how a thread waits for one.
//!
//! A thread that waits for a future may block in a poll. Then it sleeps until a moment that the
//! future chooses. The future recognizes such a thread by the waker of the poll. A task that runs
//! inside of the poll has another waker.
//!
//! - **HERE-1** While a thread waits for an answer, it may drive the connection on which the answer
//!   comes. This saves two hand-overs between threads for each call. The polled future offers what
//!   the thread can drive. A thread whose limits go by a manual clock does not drive.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::ptr;
use std::task::{Context, Poll, RawWakerVTable, Waker};
use std::time::Duration;

use tourbillon::{Clock, ClockParker, Time};

use super::{Bell, StoreError};
use crate::sync::{Arc, thread_local};

/// The future of a call to a [`LeaseStore`](crate::LeaseStore): what `Box::pin(async move { .. })`
/// returns. If its polls block, wrap the store in a [`BlockingStore`](crate::BlockingStore).
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The wait of the thread that polls.
#[derive(Clone, Copy)]
struct Here {
    waker: WakerId,
    /// The address of the leases by whose clock the thread parks, or zero.
    leases: usize,
    /// When the thread polls again at the latest.
    until: Time,
    /// Whether a thread waits, here or further out on this stack.
    waits: bool,
    /// Whether the future offers something to drive, which is in [`OFFER`].
    offers: bool,
}

/// The identity of a waker.
type WakerId = (*const (), *const RawWakerVTable);

const NOWHERE: Here = Here {
    waker: (ptr::null(), ptr::null()),
    leases: 0,
    until: Time::MAX,
    waits: false,
    offers: false,
};

/// What a thread can drive while it waits.
pub(crate) trait Driver {
    /// Drives until the bell rings, or for this time. Returns false at once if somebody else has to
    /// drive. [`wants`](Self::wants) then asks for that.
    fn drive(&self, bell: &Bell, most: Duration) -> bool;

    /// Makes somebody drive, since this thread does not.
    fn wants(&self);
}

/// What a future offers to the thread that waits for it. If the thread does not drive it, the drop
/// of the offer makes another thread drive.
struct Offer(Option<Arc<dyn Driver>>);

impl Offer {
    fn drive(&mut self, bell: &Bell, most: Duration) -> bool {
        let drove = self.0.as_ref().is_some_and(|of| of.drive(bell, most));
        if drove {
            self.0 = None;
        }
        drove
    }

    /// Forgets the offer, since the next poll makes it again.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(of) = self.0.take() {
            of.wants();
        }
    }
}

// The innermost wait whose future this thread is polling.
thread_local! {
    static HERE: Cell<Here> = const { Cell::new(NOWHERE) };
}

// What the thread of the innermost wait can drive (HERE-1).
thread_local! {
    static OFFER: Cell<Option<Arc<dyn Driver>>> = const { Cell::new(None) };
}

/// Replaces the offer of the innermost wait, and returns the one before. In the destructor of a
/// thread-local, `OFFER` may be destroyed already. Then the new offer is returned.
fn replace_offer(mut driver: Option<Arc<dyn Driver>>) -> Option<Arc<dyn Driver>> {
    match OFFER.try_with(|cell| cell.replace(driver.take())) {
        Ok(before) => before,
        Err(_) => driver,
    }
}

// Whether this thread polls a future of the background.
thread_local! {
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

fn id(waker: &Waker) -> WakerId {
    (waker.data(), ptr::from_ref(waker.vtable()))
}

/// Returns the identity of a waker as numbers. No other waker has them while this one or a clone of it
/// is there.
pub(crate) fn waker_address(waker: &Waker) -> (usize, usize) {
    let (data, table) = id(waker);
    (data.addr(), table.addr())
}

/// Whether this waker belongs to a thread that waits for the answer, and may block.
pub(crate) fn may_block(waker: &Waker) -> bool {
    HERE.with(Cell::get).waker == id(waker)
}

/// Polls on a worker of the leases, for which [`is_in_background`] holds meanwhile.
pub(crate) fn poll_in_background<T>(poll: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IN_BACKGROUND.with(|cell| cell.set(self.0));
        }
    }
    let _before = Before(IN_BACKGROUND.with(|cell| cell.replace(true)));
    poll()
}

/// Whether this thread polls what runs in the background of leases: renewals, releases that nobody
/// awaits, and notes that a caller has left.
pub(crate) fn is_in_background() -> bool {
    IN_BACKGROUND.with(Cell::get)
}

/// Whether the future that awaits this is polled by a thread that waits for it, and may block.
pub(crate) async fn is_waited_for() -> bool {
    std::future::poll_fn(|context| Poll::Ready(may_block(context.waker()))).await
}

/// Makes the thread that waits with this waker poll again at `at`, by the clock of these leases.
/// Returns false if the waker belongs to no such thread.
pub(crate) fn parks_until(waker: &Waker, leases: usize, at: Time) -> bool {
    let here = HERE.with(Cell::get);
    let parks = here.waker == id(waker) && here.leases == leases;
    if parks {
        let until = here.until.min(at);
        HERE.with(|cell| cell.set(Here { until, ..here }));
    }
    parks
}

/// Lets the thread that waits with this waker drive while it waits. Returns false if the waker belongs
/// to no such thread.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn may_drive(waker: &Waker, driver: Arc<dyn Driver>) -> bool {
    let here = HERE.with(Cell::get);
    let may = here.waker == id(waker);
    if may {
        HERE.with(|cell| {
            cell.set(Here {
                offers: true,
                ..here
            });
        });
        // If there was another offer, the thread waits for several calls, and drives the last one. A
        // wait within a wait takes the offer of the outer one, too.
        drop(Offer(replace_offer(Some(driver))));
    }
    may
}

/// Restores the wait that surrounds the present one, also after a panic.
struct Around(Here);

impl Drop for Around {
    fn drop(&mut self) {
        let here = HERE.with(|cell| cell.replace(self.0));
        if here.offers {
            drop(Offer(replace_offer(None)));
        }
    }
}

/// How a thread waits for the next poll.
struct Until {
    /// When it polls again at the latest.
    at: Time,
    offer: Offer,
}

/// Polls on a thread that waits.
fn poll_here<F: Future + ?Sized>(
    future: Pin<&mut F>,
    waker: &Waker,
    leases: usize,
    waits: bool,
) -> (Poll<F::Output>, Until) {
    let here = Here {
        waker: id(waker),
        leases,
        until: Time::MAX,
        waits,
        offers: false,
    };
    let _around = Around(HERE.with(|cell| cell.replace(here)));
    let polled = future.poll(&mut Context::from_waker(waker));
    let here = HERE.with(Cell::get);
    let offer = Offer(match here.offers {
        true => replace_offer(None),
        false => None,
    });
    let at = here.until;
    (polled, Until { at, offer })
}

/// Polls in a task that may be blocked: the task of a test whose leases have no threads.
pub(crate) fn poll_in_place<F: Future + ?Sized>(
    future: Pin<&mut F>,
    waker: &Waker,
) -> Poll<F::Output> {
    poll_here(future, waker, 0, is_amid_wait()).0
}

/// Whether a thread waits further out on this stack. A set of futures in between polls with a waker
/// of its own.
pub(crate) fn is_amid_wait() -> bool {
    HERE.with(Cell::get).waits
}

/// Waits for a future on this thread, which sleeps by the clock of `leases`. Returns `None` if the
/// future is still pending at `end`.
fn run_until<F: Future + ?Sized>(
    clock: &Clock,
    leases: usize,
    end: Time,
    mut future: Pin<&mut F>,
) -> Option<F::Output> {
    // A store in memory, or one that blocks, is ready in the first poll and needs no bell.
    match poll_here(future.as_mut(), Waker::noop(), leases, true) {
        (Poll::Ready(answer), _) => return Some(answer),
        (Poll::Pending, until) => until.offer.forget(),
    }
    let goes_on = clock.as_manual().is_none();
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut parks = None;
    loop {
        if clock.now() >= end {
            return None;
        }
        let (polled, mut until) = poll_here(future.as_mut(), &waker, leases, true);
        if let Poll::Ready(answer) = polled {
            return Some(answer);
        }
        let at = until.at.min(end);
        if goes_on && until.offer.drive(&bell, at.since(clock.now())) {
            continue;
        }
        drop(until);
        let (parker, unparks) = parks.get_or_insert_with(|| {
            let parker = ClockParker::new(clock);
            let unparks = Waker::from(Arc::new(parker.unparker()));
            (parker, unparks)
        });
        if bell.poll(&Context::from_waker(unparks)).is_pending() {
            parker.park_until(at);
        }
    }
}

/// Waits for a future on this thread, which sleeps by the clock of these leases.
pub(crate) fn block_on<F: Future>(clock: &Clock, leases: usize, future: F) -> F::Output {
    let answer = run_until(clock, leases, Time::MAX, pin!(future));
    answer.expect("no clock comes to its end")
}

/// Waits for a call on this thread. A call that is pending when `limit` is over by this clock is
/// dropped, and fails.
pub(crate) fn complete<T>(
    clock: &Clock,
    limit: Duration,
    mut call: StoreFuture<'_, T>,
) -> Result<T, StoreError> {
    let unanswered = || Err(StoreError::unanswered(limit));
    // A poll at the limit might send something.
    if limit.is_zero() {
        return unanswered();
    }
    let end = clock.now() + limit;
    run_until(clock, 0, end, call.as_mut()).unwrap_or_else(unanswered)
}

/// Returns the answer to a batch of one.
pub(crate) fn only<T>(answers: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    let first = answers.into_iter().next();
    first.unwrap_or_else(|| Err(StoreError::no_answer()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::{pending, poll_fn};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tourbillon::ManualClock;

    use super::*;
    use crate::sync::catch_panic;

    const LEASES: usize = 7;

    fn clock() -> (ManualClock, Clock) {
        let hand = ManualClock::new();
        let clock = Clock::manual(&hand);
        (hand, clock)
    }

    #[test]
    fn a_call_without_time_is_not_polled() {
        let polls = AtomicUsize::new(0);
        let call = poll_fn(|_| {
            polls.fetch_add(1, SeqCst);
            Poll::Ready(Ok(()))
        });
        let late = complete(&clock().1, Duration::ZERO, Box::pin(call));
        assert_eq!(late, Err(StoreError::unanswered(Duration::ZERO)));
        assert_eq!(polls.into_inner(), 0);
    }

    #[test]
    fn a_thread_that_waits_parks_until_the_first_moment_that_its_future_wants() {
        let (hand, clock) = clock();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let waits = std::thread::spawn(move || {
            block_on(&clock, LEASES, async {
                poll_fn(|context| {
                    assert!(parks_until(context.waker(), LEASES, at(9)));
                    assert!(parks_until(context.waker(), LEASES, at(5)));
                    // By another clock, or for another task.
                    assert!(!parks_until(context.waker(), LEASES + 1, at(1)));
                    let other = Waker::from(Arc::new(ClockParker::new(&clock).unparker()));
                    assert!(!parks_until(&other, LEASES, at(1)) && !may_block(&other));
                    match clock.now() >= at(5) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                })
                .await;
                clock.now()
            })
        });
        let mut moved = 0;
        while !waits.is_finished() {
            if moved < 5 {
                hand.advance(Duration::from_secs(1));
                moved += 1;
            }
            std::thread::yield_now();
        }
        assert_eq!(waits.join().unwrap(), at(5));
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[test]
    fn what_a_thread_does_not_drive_is_driven_by_somebody_else() {
        /// Drives by ringing, and counts.
        #[derive(Default)]
        struct Rings {
            refuses: bool,
            drives: AtomicUsize,
            wanted: AtomicUsize,
        }
        impl Driver for Rings {
            fn drive(&self, bell: &Bell, _: Duration) -> bool {
                self.drives.fetch_add(1, SeqCst);
                let rings = || bell.poll(&Context::from_waker(Waker::noop()));
                !self.refuses && rings().is_ready()
            }
            fn wants(&self) {
                self.wanted.fetch_add(1, SeqCst);
            }
        }
        /// Offers these in each of three polls, of which the first one has no bell.
        fn offers<'a>(drivers: &'a [&'a Arc<Rings>]) -> impl Future<Output = ()> + 'a {
            let mut left = 3;
            poll_fn(move |context| {
                left -= 1;
                for &driver in drivers {
                    assert!(may_drive(context.waker(), Arc::clone(driver) as _));
                }
                context.waker().wake_by_ref();
                match left {
                    0 => Poll::Ready(()),
                    _ => Poll::Pending,
                }
            })
        }
        let counts = |rings: &Rings| (rings.drives.load(SeqCst), rings.wanted.load(SeqCst));
        let here = Clock::boottime();
        let (one, two) = (Arc::<Rings>::default(), Arc::<Rings>::default());
        block_on(&here, 0, offers(&[&one, &two]));
        // The last poll offers, too, and nobody drives after it.
        assert_eq!((counts(&one), counts(&two)), ((0, 3), (1, 1)));
        let refuses = Arc::new(Rings {
            refuses: true,
            ..Rings::default()
        });
        block_on(&here, 0, offers(&[&refuses]));
        assert_eq!(counts(&refuses), (1, 2));
        // By a clock that does not go on by itself, and in a poll without a wait.
        let stands = Arc::<Rings>::default();
        block_on(&clock().1, 0, offers(&[&stands]));
        assert_eq!(counts(&stands), (0, 2));
        let polled = Arc::<Rings>::default();
        assert!(poll_in_place(pin!(offers(&[&polled])), Waker::noop()).is_pending());
        assert_eq!(counts(&polled), (0, 1));
        assert!(!may_drive(Waker::noop(), polled));
    }

    #[test]
    fn the_wait_around_another_one_is_the_thread_s_again_after_that() {
        let (_, clock) = clock();
        let here = |waker: &Waker| (may_block(waker), parks_until(waker, LEASES, Time::MAX));
        block_on(
            &clock,
            LEASES,
            poll_fn(|context| {
                assert_eq!(here(context.waker()), (true, true));
                let inner = complete(
                    &clock,
                    Duration::from_secs(1),
                    Box::pin(async {
                        assert!(is_waited_for().await);
                        Ok(())
                    }),
                );
                assert_eq!(inner, Ok(()));
                let panics = || block_on(&clock, LEASES, async { panic!("on purpose") });
                assert!(catch_panic(panics).is_err());
                assert_eq!(here(context.waker()), (true, true));
                Poll::Ready(())
            }),
        );
        assert!(!may_block(Waker::noop()));
        let mut never = Box::pin(pending::<()>());
        assert!(
            never
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
}
