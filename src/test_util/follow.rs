//! A stepped engine whose clock follows the clock of a tokio runtime.
//!
//! With its clock paused, tokio moves on only when all tasks wait, and only to the next of its own
//! timers. So one sleep of tokio stands for everything of the engine that is due next. Whoever
//! makes something due earlier rings the bell of a shard, which wakes the task that has this sleep.
//!
//! The engine's clock does not wait for that task: each call reads the clock of the runtime.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep_until};

use super::driver::{Driver, Steps};
use crate::engine::{Asked, Ending, Engine, Frontend, Shutdown, StepTaken, WindingDown};
use crate::sync::Arc;
use crate::tick::Time;

/// How long a full channel is left alone at first. Its receiver does not tell when it makes room,
/// so this doubles while nothing could be sent, up to `FULL_AT_MOST`.
const FULL: Duration = Duration::from_millis(1);
const FULL_AT_MOST: Duration = Duration::from_secs(1);

/// Lets the engine's time pass as tokio's time does, until the engine is stopped.
pub(super) fn follow<F: Frontend>(driver: Driver<F>) -> impl Future<Output = ()> + Send + 'static {
    driver.hand().follow(Handle::current());
    driver.engine().is_followed_from_now_on();
    Following {
        driver,
        sleep: None,
        unsent: 0,
        pause: FULL,
        winding_down: None,
    }
}

struct Following<F: Frontend> {
    driver: Driver<F>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// How many entries waited for room after the last steps.
    unsent: usize,
    pause: Duration,
    winding_down: Option<WindingDown<F>>,
}

impl<F: Frontend> Following<F> {
    /// Takes the next step of a shutdown that need not wait. Returns whether there was one.
    fn wind_down(&mut self) -> bool {
        let engine = Arc::clone(self.driver.engine());
        let asked = || engine.follower().and_then(|follower| follower.take());
        let begun = self.winding_down.take();
        let Some(mut winding_down) = begun.or_else(|| asked().map(WindingDown::new)) else {
            return false;
        };
        if winding_down.waits_until(&engine).is_some() {
            self.winding_down = Some(winding_down);
            return false;
        }
        match winding_down.advance(&engine) {
            StepTaken::Goes => self.winding_down = Some(winding_down),
            StepTaken::Ended(ending) => answer(&engine, winding_down.asked, ending),
        }
        true
    }

    /// Returns until when nothing happens unless somebody wakes this task.
    fn asleep_until(&mut self) -> Time {
        let mut next = self.driver.asleep_until();
        let waiting = self.driver.waiting_for_room();
        if waiting > 0 {
            let same = waiting == self.unsent;
            self.pause = if same {
                FULL_AT_MOST.min(self.pause * 2)
            } else {
                FULL
            };
            next = self.driver.now() + self.pause;
        }
        self.unsent = waiting;
        let engine = self.driver.engine();
        let limit =
            (self.winding_down.as_ref()).and_then(|winding_down| winding_down.waits_until(engine));
        next.min(limit.unwrap_or(Time::MAX))
    }
}

fn answer<F: Frontend>(engine: &Engine<F>, asked: Asked<F>, ending: Ending<F::Key, F::Payload>) {
    engine.closing().finish();
    (asked.answer)(ending);
}

impl<F: Frontend> Future for Following<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let following = self.get_mut();
        if following.driver.engine().is_forked() {
            return Poll::Ready(());
        }
        // Before the steps: what is made due after them finds this task.
        following.driver.wakes(context.waker());
        loop {
            following.driver.settle();
            if following.wind_down() {
                continue;
            }
            if following.driver.engine().closing().is_stopped() {
                return Poll::Ready(());
            }
            let next = following.asleep_until();
            let clock = following.driver.hand().followed();
            let Some(at) = clock.and_then(|clock| clock.instant(next)) else {
                following.sleep = None;
                return Poll::Pending;
            };
            let sleep = following
                .sleep
                .get_or_insert_with(|| Box::pin(sleep_until(at)));
            sleep.as_mut().reset(at);
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// The driver is moved, never pinned.
impl<F: Frontend> Unpin for Following<F> {}

/// A shutdown that nobody can go on with hands back what is left.
impl<F: Frontend> Drop for Following<F> {
    fn drop(&mut self) {
        let engine = Arc::clone(self.driver.engine());
        if engine.is_forked() {
            return;
        }
        let asked = engine.follower().and_then(|follower| follower.leave());
        let begun = self.winding_down.take();
        let Some(mut winding_down) = begun.or_else(|| asked.map(WindingDown::new)) else {
            return;
        };
        winding_down.asked.mode = Shutdown::HandBack;
        loop {
            // Without the waits.
            if let StepTaken::Ended(ending) = winding_down.advance(&engine) {
                return answer(&engine, winding_down.asked, ending);
            }
        }
    }
}
