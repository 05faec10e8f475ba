//! Expired entries that are handled by futures, on a tokio runtime.
//!
//! The only worker takes a place for each entry, waits if there is none, and spawns a [`Handling`].
//! The handling owns the run of its entry, as for tasks that are futures. At its end, in this
//! order:
//!
//! 1. The user's future is dropped. An entry whose future was never made has no receiver.
//! 2. The place becomes free.
//! 3. The run is completed.

use std::mem::replace;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime;

use super::frontend::{Delivery, MapFrontend, SpawnsFutures, receiver_lost};
use super::places::{Place, Places};
use super::{Expired, ExpiryMap, ExpiryMapBuilder, MapHasher};
use crate::bounded_channel::Unsent;
use crate::engine::{Detached, RunInfo};
use crate::error::BuildError;
use crate::job::catch_panic;
use crate::scheduler::TaskPanic;
use crate::shard::when_unlocked;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tick::Time;
#[cfg(feature = "tracing")]
use crate::trace::RunSpan;

type HandlerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

type AsyncHandler<K, V, S> =
    dyn Fn(ExpiryMap<K, V, S>, Expired<K, V>) -> HandlerFuture + Send + Sync;

/// A handler that returns futures, and the runtime for them.
pub(crate) struct AsyncDelivery<K, V, S: MapHasher> {
    runtime: runtime::Handle,
    handler: Arc<AsyncHandler<K, V, S>>,
    places: Arc<Places>,
    unreceived: Arc<AtomicU64>,
}

impl<K, V, S> AsyncDelivery<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Makes the delivery of at most `most` futures at a time.
    pub(crate) fn delivery<F>(
        runtime: runtime::Handle,
        most: usize,
        handler: impl Fn(ExpiryMap<K, V, S>, Expired<K, V>) -> F + Send + Sync + 'static,
    ) -> Result<Delivery<K, V, S>, BuildError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if most == 0 {
            return Err(BuildError::Concurrency);
        }
        Ok(Delivery::Futures(Box::new(AsyncDelivery {
            runtime,
            handler: Arc::new(move |map, expired| Box::pin(handler(map, expired))),
            places: Arc::new(Places::new(most)),
            unreceived: Arc::default(),
        })))
    }
}

impl<K, V, S> SpawnsFutures<K, V, S> for AsyncDelivery<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn spawn(
        &self,
        map: &ExpiryMap<K, V, S>,
        info: &RunInfo<'_, K>,
        expired: Expired<K, V>,
        detached: &mut bool,
    ) {
        let key = catch_panic(|| info.key.clone());
        let place = self.places.take();
        let run = Detached::new(&map.engine, info.stripe, info.id);
        *detached = true;
        // The join handle is not needed: dropping the handling completes the run.
        drop(
            self.runtime.spawn(Handling {
                stage: HandlingStage::Begins(expired),
                handler: Arc::clone(&self.handler),
                unreceived: Arc::clone(&self.unreceived),
                map: map.clone(),
                key: key.ok(),
                deadline: info.deadline,
                // The worker makes it, which is no ticker.
                #[cfg(feature = "tracing")]
                span: Some(
                    map.engine
                        .run_span(info.key, info.started.since(info.deadline)),
                ),
                place: Some(place),
                run: Some(run),
            }),
        );
    }

    #[cfg(any(test, feature = "test-util"))]
    fn has_room(&self) -> bool {
        self.places.are_free()
    }

    fn unreceived(&self) -> u64 {
        // Relaxed: a count.
        self.unreceived.load(Ordering::Relaxed)
    }
}

/// How far the handling of an entry is.
enum HandlingStage<K, V> {
    /// The future is not made yet.
    Begins(Expired<K, V>),
    Future(HandlerFuture),
    /// The future is ready, has panicked or was dropped.
    Gone,
}

/// The handling of one entry, as a future.
struct Handling<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    stage: HandlingStage<K, V>,
    handler: Arc<AsyncHandler<K, V, S>>,
    unreceived: Arc<AtomicU64>,
    map: ExpiryMap<K, V, S>,
    /// For the report of a panic; `None` if the key's `Clone` panicked.
    key: Option<K>,
    deadline: Time,
    /// Taken out while the future is polled.
    #[cfg(feature = "tracing")]
    span: Option<RunSpan>,
    place: Option<Place>,
    run: Option<Detached<MapFrontend<K, V, S>>>,
}

impl<K, V, S> Handling<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Executes a part of the run, which is user code. A panic is reported and ends the run.
    fn proceed<R>(&mut self, part: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let tell = |handling: &Self, message: &str| {
            #[cfg(feature = "tracing")]
            if let Some(key) = &handling.key {
                handling.map.engine.tell_panic(key, message);
            }
            let tell = &handling.map.engine.frontend.on_panic;
            if let (Some(tell), Some(key)) = (tell, &handling.key) {
                let deadline = handling.deadline;
                tell(&TaskPanic {
                    key,
                    deadline,
                    message,
                });
            }
        };
        Detached::proceed_catching(self, |handling| &mut handling.run, part, tell)
    }
}

impl<K, V, S> Future for Handling<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let poll = |handling: &mut Self| {
            // Made here, so that the handler runs on the runtime, and an entry that no runtime has
            // begun with is still here.
            if let HandlingStage::Begins(_) = &handling.stage
                && let HandlingStage::Begins(expired) =
                    replace(&mut handling.stage, HandlingStage::Gone)
            {
                let future = (handling.handler)(handling.map.clone(), expired);
                handling.stage = HandlingStage::Future(future);
            }
            let HandlingStage::Future(future) = &mut handling.stage else {
                return Poll::Ready(());
            };
            let polled = future.as_mut().poll(context);
            // Dropped here, where a panic of the drop counts as a panic of the run.
            if polled.is_ready() {
                handling.stage = HandlingStage::Gone;
            }
            polled
        };
        let handling = self.get_mut();
        #[cfg(feature = "tracing")]
        if let Some(span) = handling.span.take() {
            let polled = span.within(|| handling.proceed(poll));
            handling.span = Some(span);
            return polled.unwrap_or(Poll::Ready(()));
        }
        // After a panic there is nothing left to poll.
        handling.proceed(poll).unwrap_or(Poll::Ready(()))
    }
}

impl<K, V, S> Drop for Handling<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn drop(&mut self) {
        let lost =
            self.proceed(
                |handling| match replace(&mut handling.stage, HandlingStage::Gone) {
                    HandlingStage::Begins(expired) => Some(expired),
                    HandlingStage::Future(_) | HandlingStage::Gone => None,
                },
            );
        let (map, key) = (self.map.clone(), self.key.take());
        let (place, run) = (self.place.take(), self.run.take());
        #[cfg(feature = "tracing")]
        let span = self.span.take();
        let unreceived = Arc::clone(&self.unreceived);
        // The drop may happen under a lock of another engine.
        when_unlocked(move || {
            if let Some(item) = lost.flatten()
                && !map.engine.is_forked()
            {
                // Relaxed: one step on a count, so each caller gets a different value.
                let is_first = unreceived.fetch_add(1, Ordering::Relaxed) == 0;
                let lost = || receiver_lost(&map, Unsent { item, is_first });
                let _ = match &run {
                    Some(run) => run.proceed(|| catch_panic(lost)),
                    None => catch_panic(lost),
                };
            }
            let _ = catch_panic(|| drop(key));
            #[cfg(feature = "tracing")]
            drop(span);
            // The run is last: its end makes a test step the worker, which may wait for the place.
            drop(place);
            drop(run);
        });
    }
}

/// The entry is moved, never pinned.
impl<K, V, S> Unpin for Handling<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
}

impl<K, V, S> ExpiryMapBuilder<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Like [`build`](Self::build), but the handler returns a future, which runs on `runtime`;
    /// needs the feature `tokio`. At most `most` futures exist at a time. The runtime needs neither
    /// its time driver nor its I/O driver for this.
    ///
    /// The handling of an entry lasts from the moment that its future is spawned until the future
    /// is ready, has panicked, or was dropped by its runtime:
    ///
    /// - Two entries of one key are never handled at the same time.
    /// - A shutdown waits for it. On a thread of the runtime, await the shutdown.
    /// - A panic of the handler or of its future is counted, and reported to
    ///   [`on_panic`](Self::on_panic).
    ///
    /// One thread takes expired entries and spawns futures. While there are `most` of them, expired
    /// entries wait in the map, as they do for a full [channel](Self::build_channel): they can be
    /// touched and removed, except for one, which is next. The options `workers`, `max_running`,
    /// `executor` and `inline` are ignored.
    ///
    /// A runtime that has ended receives nothing, like a receiver that was dropped: entries that
    /// expire later are dropped and counted; see [`on_receiver_lost`](Self::on_receiver_lost) and
    /// [`when_receiver_lost`](Self::when_receiver_lost). A future that the runtime drops before it
    /// is ready takes its entry along.
    ///
    /// A handler `async |map, expired| ..` that captures something does not compile: *async closure
    /// does not implement `Fn` because it captures state from its environment*. The way out is a
    /// closure that clones what the future needs, and returns an `async move` block, as in the
    /// example.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build), and [`BuildError::Concurrency`] if `most` is zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let (send, mut ended) = tokio::sync::mpsc::unbounded_channel();
    /// let tokens = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_live(Duration::from_millis(20))
    ///     .build_on_tokio(tokio::runtime::Handle::current(), 16, move |_, expired| {
    ///         let send = send.clone();
    ///         async move {
    ///             // .. await whatever it takes ..
    ///             let _ = send.send(expired.value);
    ///         }
    ///     })?;
    /// tokens.insert(7, "token")?;
    /// assert_eq!(ended.recv().await, Some("token"));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn build_on_tokio<F>(
        self,
        runtime: runtime::Handle,
        most: usize,
        handler: impl Fn(ExpiryMap<K, V, S>, Expired<K, V>) -> F + Send + Sync + 'static,
    ) -> Result<ExpiryMap<K, V, S>, BuildError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let delivery = AsyncDelivery::delivery(runtime, most, handler)?;
        self.one_worker().start(delivery)
    }
}
