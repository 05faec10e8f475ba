//! Calls for many timers; see `shard/batch.rs`.

use super::{Timer, TimerHandle};
use crate::scheduler::{Cancel, Reschedule};
use crate::shard::Cancelling;
use crate::shard::batch::{Located, by_stripe};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::when::When;

impl Timer {
    /// Calls [`TimerHandle::reschedule`] for many timers. The results are in the order of the
    /// handles, and the clock is read once: all timers get the same deadline. A handle of another
    /// `Timer` is not found.
    ///
    /// The handles are sorted by stripe, and the locks of several stripes are held at a time, so
    /// that cache misses overlap. The call is not atomic: each timer is moved on its own, and other
    /// calls may act in between.
    ///
    /// # Blocking
    ///
    /// Holds up to 16 locks for some microseconds, but never while it waits for another one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Reschedule, Timer, TimerHandle};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timer = Timer::new()?;
    /// let mut readable: Vec<TimerHandle> = Vec::new();
    /// for socket in 0..100 {
    ///     let idle = move || println!("nothing came from socket {socket}");
    ///     readable.push(timer.after(Duration::from_secs(30), idle)?);
    /// }
    /// // A poll says that bytes came from each of them.
    /// let answers = timer.reschedule_many(&readable, Duration::from_secs(30));
    /// assert!(answers.iter().all(|answer| matches!(answer, Reschedule::Moved { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn reschedule_many<'a>(
        &self,
        handles: impl IntoIterator<Item = &'a TimerHandle>,
        when: impl Into<When>,
    ) -> Vec<Reschedule> {
        let (located, count) = self.locate(handles);
        let engine = self.server.engine();
        engine.reschedule_ids(&located, |handle| handle.item.id, when.into(), count)
    }

    /// Calls [`TimerHandle::cancel`] for many timers. The results are in the order of the handles.
    /// The call is not atomic, and a handle of another `Timer` is not found, as in
    /// [`reschedule_many`](Self::reschedule_many).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let timer = Timer::new()?;
    /// let limit = Duration::from_secs(5);
    /// let handles = [timer.after(limit, || ())?, timer.after(limit, || ())?];
    /// assert!(timer.cancel_many(&handles).iter().all(|answer| answer.is_cancelled()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_many<'a>(
        &self,
        handles: impl IntoIterator<Item = &'a TimerHandle>,
    ) -> Vec<Cancel> {
        let (located, count) = self.locate(handles);
        let mut answers = vec![Cancel::NotFound; count];
        let engine = self.server.engine();
        engine.cancel_ids(
            &located,
            |handle| handle.item.id,
            |handle, cancelling| {
                let (answer, dropped) = match cancelling {
                    Cancelling::Cancelled {
                        deadline, dropped, ..
                    } => {
                        // Under the lock, as in `TimerHandle::cancel`. Relaxed: the lock orders it.
                        handle.item.cancelled.store(true, Ordering::Relaxed);
                        let running = false;
                        (Cancel::Cancelled { deadline, running }, dropped)
                    }
                    Cancelling::Running(_) => (Cancel::Running, (None, None)),
                    Cancelling::NotFound => (Cancel::NotFound, (None, None)),
                };
                answers[handle.index()] = answer;
                dropped
            },
        );
        answers
    }

    /// Sorts the handles of this timer by stripe, and counts them and the others.
    fn locate<'a>(
        &self,
        handles: impl IntoIterator<Item = &'a TimerHandle>,
    ) -> (Vec<Located<&'a TimerHandle>>, usize) {
        let mut count = 0;
        let located = handles.into_iter().filter_map(|handle| {
            let index = count;
            count += 1;
            let own = self.links.get(handle.stripe)?;
            Arc::ptr_eq(own, &handle.link).then(|| Located::new(index, handle.stripe, handle))
        });
        let located = located.collect();
        let stripes = self.server.engine().shards().stripes();
        (by_stripe(stripes, located), count)
    }
}
