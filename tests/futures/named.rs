//! The futures with a name, in a struct that outlives their end.

use std::future::{Pending, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use kit::quiet::{WANTED, hush};
use kit::wakes::{Wakes, poll};
use tourbillon::{Computing, ExpiryMap, Found, MapHasher, Timeout, TimeoutError, Timer};

const SECOND: Duration = Duration::from_secs(1);

/// Holds an `Arc` and is never ready.
struct Holds(
    #[allow(dead_code, reason = "its drop counts")] Arc<()>,
    Pending<()>,
);

impl Future for Holds {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<()> {
        Pin::new(&mut self.1).poll(context)
    }
}

struct Request {
    answer: Timeout<Holds>,
}

#[test]
fn a_timeout_in_a_struct_drops_its_future_when_the_limit_is_reached() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    let held = Arc::new(());
    let mut request = Request {
        answer: timer.timeout(SECOND, Holds(Arc::clone(&held), pending())),
    };
    assert_eq!(request.answer.deadline(), timer.now() + SECOND);
    let wakes = Wakes::new();
    assert_eq!(poll(&mut request.answer, &wakes), Poll::Pending);
    stepped.advance(SECOND);
    assert_eq!(wakes.count(), 1);
    let answer = poll(&mut request.answer, &wakes);
    assert_eq!(answer, Poll::Ready(Err(TimeoutError::Elapsed)));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_timeout_that_is_kept_after_its_output_has_no_timer_and_can_not_be_polled() {
    hush();
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    let (send, receive) = tokio::sync::oneshot::channel();
    let mut answer = timer.timeout(SECOND, receive);
    let wakes = Wakes::new();
    assert!(poll(&mut answer, &wakes).is_pending());
    assert_eq!(timer.stats().pending, 1);
    send.send(7).unwrap();
    assert_eq!(poll(&mut answer, &wakes), Poll::Ready(Ok(Ok(7))));
    assert_eq!(timer.stats().pending, 0);
    assert!(format!("{answer:?}").starts_with("Timeout"));
    let again = catch_unwind(AssertUnwindSafe(|| poll(&mut answer, &wakes)));
    assert!(again.is_err());
}

type Stored<'a, S, F, R> = Pin<Box<Computing<'a, u32, u32, S, F, R>>>;

struct Lookup<'a, S: MapHasher, F, R> {
    value: Stored<'a, S, F, R>,
}

#[test]
fn a_computation_that_panicked_and_is_kept_lets_the_next_caller_compute() {
    hush();
    let stepped = ExpiryMap::<u32, u32>::builder()
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    let wakes = Wakes::new();
    let panics = async {
        tokio::task::yield_now().await;
        std::panic::panic_any(WANTED)
    };
    let mut first = Lookup {
        value: Box::pin(map.entry(7).or_compute(|| panics)),
    };
    let mut second = Lookup {
        value: Box::pin(map.entry(7).or_compute(|| ready(Ok::<_, ()>(2)))),
    };
    let typed: &mut Stored<'_, _, _, _> = &mut first.value;
    let _: Poll<Result<_, tourbillon::EntryError<u32, u32, ()>>> = poll(typed, &Wakes::new());
    assert!(poll(&mut second.value, &wakes).is_pending());
    assert!(format!("{:?} {:?}", first.value, second.value).contains("computes"));
    let panicked = catch_unwind(AssertUnwindSafe(|| poll(&mut first.value, &Wakes::new())));
    assert!(panicked.is_err());
    assert_eq!(wakes.count(), 1);
    let Poll::Ready(Ok(Found::Inserted { value, .. })) = poll(&mut second.value, &wakes) else {
        panic!("the second caller computes");
    };
    assert_eq!(value, 2);
    // Ended, and still kept.
    assert!(format!("{:?}", second.value).contains("ended"));
    drop(first);
}
