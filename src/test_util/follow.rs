//! A stepped engine whose clock follows the clock of a tokio runtime.
//!
//! With its clock paused, tokio moves on only when all tasks wait, and only to the next of its own
//! timers. So one sleep of tokio stands for everything of the engine that is due next. Whoever makes
//! something due earlier rings the bell of a shard, which wakes the task that has this sleep.
//!
//! The engine's clock does not wait for that task: each call reads the clock of the runtime.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep_until};

use super::driver::{Driver, Steps};
use crate::engine::Frontend;

/// How long a full channel is left alone at first. Its receiver does not tell when it makes room, so
/// this doubles while nothing could be sent, up to `FULL_AT_MOST`.
const FULL: Duration = Duration::from_millis(1);
const FULL_AT_MOST: Duration = Duration::from_secs(1);

/// Lets the engine's time pass as tokio's time does, until the engine is stopped.
pub(super) fn follow<F: Frontend>(driver: Driver<F>) -> impl Future<Output = ()> + Send + 'static {
    driver.hand().follow(Handle::current());
    let mut sleep: Option<Pin<Box<Sleep>>> = None;
    let (mut unsent, mut pause) = (0, FULL);
    poll_fn(move |context| {
        // Before the steps: what is made due after them finds this task.
        driver.wakes(context.waker());
        loop {
            driver.settle();
            if driver.is_stopped() {
                return Poll::Ready(());
            }
            let mut next = driver.asleep_until();
            let waiting = driver.waiting_for_room();
            if waiting > 0 {
                let same = waiting == unsent;
                pause = if same {
                    FULL_AT_MOST.min(pause * 2)
                } else {
                    FULL
                };
                next = driver.now() + pause;
            }
            unsent = waiting;
            let clock = driver.hand().followed();
            let Some(at) = clock.and_then(|clock| clock.instant(next)) else {
                sleep = None;
                return Poll::Pending;
            };
            let sleep = sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
            sleep.as_mut().reset(at);
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    })
}
