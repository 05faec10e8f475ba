//! An expiry map that a test drives.

use std::fmt;
use std::time::Duration;

use super::driver::{Driver, Steps};
use crate::bounded_channel::{BoundedReceiver, bounded_channel};
use crate::clock::ManualClock;
use crate::engine::Shutdown;
use crate::error::BuildError;
#[cfg(feature = "tokio")]
use crate::expiry::AsyncDelivery;
use crate::expiry::{
    Delivery, Expired, ExpiryMap, ExpiryMapBuilder, ExpiryReport, MapFrontend, MapHasher,
};
use crate::scheduler::RandomState;
use crate::sync::Arc;
use crate::sync::channel::Receiver;
use crate::tick::Time;

/// An [`ExpiryMap`] without threads; see the [module](super). Expired entries go to the map's
/// handler, on the thread that drives the map.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::ExpiryMap;
///
/// # fn main() -> Result<(), tourbillon::BuildError> {
/// let stepped = ExpiryMap::<u64, &str>::builder()
///     .time_to_idle(Duration::from_secs(1800))
///     .build_stepped(1, |_, expired| assert_eq!(expired.value, "Ada"))?;
/// let sessions = stepped.map();
/// sessions.insert(7, "Ada").unwrap();
/// stepped.advance(Duration::from_secs(1799));
/// assert_eq!(sessions.len(), 1);
/// stepped.advance(Duration::from_secs(1));
/// assert!(sessions.is_empty());
/// # Ok(())
/// # }
/// ```
pub struct SteppedMap<K, V, S: MapHasher = RandomState> {
    pub(super) driver: Driver<MapFrontend<K, V, S>>,
    map: ExpiryMap<K, V, S>,
}

/// The option that builds a [`SteppedMap`].
impl<K, V, S> ExpiryMapBuilder<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Builds a map without threads, driven by the calling thread; see
    /// [`test_util`](crate::test_util). `seed` decides how shards and workers interleave, and how
    /// [`RandomState`] hashes.
    ///
    /// The clock starts at [`Time::ZERO`](crate::Time::ZERO), unless a manual clock was given. Then
    /// that clock is used.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    pub fn build_stepped(
        self,
        seed: u64,
        handler: impl Fn(&ExpiryMap<K, V, S>, Expired<K, V>) + Send + Sync + 'static,
    ) -> Result<SteppedMap<K, V, S>, BuildError> {
        self.stepped(seed, Delivery::Handler(Box::new(handler)))
    }

    /// Builds a map without threads, like [`build_stepped`](Self::build_stepped), whose expired
    /// entries go to a channel, as for [`build_channel`](Self::build_channel). A capacity of 0
    /// counts as 1.
    ///
    /// While the channel is full, nothing is delivered, and time may pass. Receive, and then
    /// [`settle`](SteppedMap::settle).
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let builder = ExpiryMap::<u64, &str>::builder().time_to_idle(Duration::from_secs(60));
    /// let (stepped, expired) = builder.build_stepped_channel(1, 64)?;
    /// stepped.map().insert(7, "Ada")?;
    /// stepped.advance(Duration::from_secs(60));
    /// assert_eq!(expired.try_recv()?.value, "Ada");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::type_complexity, reason = "a pair in a result")]
    pub fn build_stepped_channel(
        self,
        seed: u64,
        capacity: usize,
    ) -> Result<(SteppedMap<K, V, S>, Receiver<Expired<K, V>>), BuildError> {
        let (stepped, receiver) = self.stepped_outlet(seed, capacity)?;
        Ok((stepped, receiver.into_receiver()))
    }

    /// Builds a map without threads, like [`build_stepped_channel`](Self::build_stepped_channel),
    /// whose expired entries are a stream, as for [`build_stream`](Self::build_stream). Read it in
    /// [`run_until`](SteppedMap::run_until).
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tokio_stream::StreamExt;
    /// # use tourbillon::ExpiryMap;
    /// let builder = ExpiryMap::<u64, &str>::builder().time_to_idle(Duration::from_secs(60));
    /// let (stepped, mut expired) = builder.build_stepped_stream(1, 64)?;
    /// stepped.map().insert(7, "Ada")?;
    /// let gone = stepped.run_until(expired.next());
    /// assert_eq!(gone.map(|gone| gone.value), Some("Ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "stream")]
    #[allow(clippy::type_complexity, reason = "a pair in a result")]
    pub fn build_stepped_stream(
        self,
        seed: u64,
        capacity: usize,
    ) -> Result<(SteppedMap<K, V, S>, crate::expiry::Expirations<K, V>), BuildError> {
        let (stepped, receiver) = self.stepped_outlet(seed, capacity)?;
        Ok((stepped, crate::expiry::Expirations::new(receiver)))
    }

    /// Builds a map without threads, like [`build_stepped`](Self::build_stepped), whose expired
    /// entries are handled by futures, as for [`build_on_tokio`](Self::build_on_tokio). Let it
    /// [follow](SteppedMap::follow_tokio) the runtime, or let the runtime run between two steps.
    /// While `most` futures exist, nothing is delivered, and time may pass.
    ///
    /// # Errors
    ///
    /// As for [`build_on_tokio`](Self::build_on_tokio).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// // #[tokio::test(start_paused = true)]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (send, mut ended) = tokio::sync::mpsc::unbounded_channel();
    /// let builder = ExpiryMap::<u64, &str>::builder().time_to_idle(Duration::from_secs(60));
    /// let runtime = tokio::runtime::Handle::current();
    /// let stepped = builder.build_stepped_on_tokio(1, runtime, 16, move |_, expired| {
    ///     let send = send.clone();
    ///     async move {
    ///         tokio::time::sleep(Duration::from_secs(5)).await; // a slow database
    ///         let _ = send.send(expired.value);
    ///     }
    /// })?;
    /// let map = stepped.map();
    /// tokio::spawn(stepped.follow_tokio());
    ///
    /// map.insert(7, "Ada")?;
    /// assert_eq!(ended.recv().await, Some("Ada"));
    /// assert_eq!(map.now().since(tourbillon::Time::ZERO), Duration::from_secs(65));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn build_stepped_on_tokio<F>(
        self,
        seed: u64,
        runtime: tokio::runtime::Handle,
        most: usize,
        handler: impl Fn(ExpiryMap<K, V, S>, Expired<K, V>) -> F + Send + Sync + 'static,
    ) -> Result<SteppedMap<K, V, S>, BuildError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let delivery = AsyncDelivery::delivery(runtime, most, handler)?;
        self.one_worker().stepped(seed, delivery)
    }

    #[allow(clippy::type_complexity, reason = "a pair in a result")]
    fn stepped_outlet(
        self,
        seed: u64,
        capacity: usize,
    ) -> Result<(SteppedMap<K, V, S>, BoundedReceiver<Expired<K, V>>), BuildError> {
        let (sender, receiver) = bounded_channel(capacity.max(1));
        let delivery = Delivery::BoundedSender(sender);
        Ok((self.one_worker().stepped(seed, delivery)?, receiver))
    }

    fn stepped(
        self,
        seed: u64,
        delivery: Delivery<K, V, S>,
    ) -> Result<SteppedMap<K, V, S>, BuildError> {
        let ((server, ticker_states), hand) = self.stepped_parts(seed, delivery)?;
        Ok(SteppedMap {
            map: ExpiryMap::of(Arc::clone(server.engine())),
            driver: Driver::new(server, ticker_states, hand, seed),
        })
    }
}

impl<K, V, S> SteppedMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Returns the map, which any thread may use. Dropping this driver closes it.
    #[must_use]
    pub fn map(&self) -> ExpiryMap<K, V, S> {
        self.map.clone()
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        self.driver.now()
    }

    /// Returns the clock, to set it by hand. Setting it expires nothing by itself;
    /// [`settle`](Self::settle) does.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.driver.hand().clone()
    }

    /// Lets `by` pass; see [`advance_to`](Self::advance_to).
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside the map's handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// stepped.advance(Duration::from_secs(60));
    /// assert!(map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now() + by);
    }

    /// Lets time pass until `to`, and stops at every time at which something is due. If `to` is in
    /// the past, this only delivers what is due now.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside the map's handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// let inserted = map.insert(7, "Ada")?;
    /// stepped.advance_to(inserted.deadline);
    /// assert!(map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance_to(&self, to: Time) {
        self.driver.advance_to(to);
    }

    /// Lets time pass until an entry expires, and delivers everything that is due then. Returns
    /// false if no entry will ever expire.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside the map's handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// assert!(stepped.advance_to_next());
    /// assert!(map.is_empty());
    /// assert!(!stepped.advance_to_next());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance_to_next(&self) -> bool {
        let delivered = || {
            let stats = self.map.stats();
            stats.expired + stats.evicted
        };
        let before = delivered();
        self.driver.advance_until(|| delivered() > before)
    }

    /// Sets the clock to `to` without stopping in between, as if every thread had slept meanwhile.
    /// Then delivers everything that is due. `to` may be in the past.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside the map's handler.
    pub fn jump_to(&self, to: Time) {
        self.driver.hand().set(to);
        self.driver.settle();
    }

    /// Polls `future` until it is ready, and returns its output. When nothing is left to do and the
    /// future waits, time moves to the next deadline at once.
    ///
    /// The future has to wait for something of this map, or of the same thread. Nothing waits for
    /// other threads, so that every run is the same. Other drivers do not move; see
    /// [`Together`](crate::test_util::Together). A future that wakes itself in each poll, or waits
    /// beside a task that repeats without end, keeps this call busy.
    ///
    /// # Panics
    ///
    /// Panics if the future would wait forever: it is not woken, and nothing pending will ever be
    /// due. Panics if it is called from inside the map's handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{ExpiryMap, Time};
    /// let (send, gone) = tokio::sync::oneshot::channel();
    /// let send = std::sync::Mutex::new(Some(send));
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, move |_, expired| {
    ///         let send = send.lock().unwrap().take().expect("one entry expires");
    ///         let _ = send.send(expired.value);
    ///     })?;
    /// stepped.map().insert(7, "Ada")?;
    /// assert_eq!(stepped.run_until(gone)?, "Ada");
    /// assert_eq!(stepped.now(), Time::ZERO + Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.run_until(future)
    }

    /// Returns a future that drives the map by the clock of the present tokio runtime, for tests
    /// under `#[tokio::test(start_paused = true)]`; needs the feature `tokio`. Spawn it, and use
    /// the map as in production. While all tasks wait, tokio's clock jumps to the next deadline,
    /// whether it is one of tokio or one of the map.
    ///
    /// From this call on, the clock of the map moves with tokio's clock. tokio stops at whole
    /// milliseconds, so a deadline between two of them is late by less than one. If tokio's clock
    /// is not paused, the map runs in real time. Several drivers can follow one runtime.
    ///
    /// The handler runs inside the poll of this future, so it must not block. Await what the map
    /// can wait for: a call that blocks would wait in vain.
    ///
    /// The future ends with a shutdown of the map, which can be awaited. Dropping the future closes
    /// the map.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a tokio runtime. The future panics in a runtime without
    /// timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// tokio::spawn(stepped.follow_tokio());
    ///
    /// map.insert(7, "Ada")?;
    /// tokio::time::sleep(Duration::from_secs(59)).await;
    /// assert_eq!(map.len(), 1);
    /// tokio::time::sleep(Duration::from_secs(2)).await;
    /// assert!(map.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn follow_tokio(self) -> impl Future<Output = ()> + Send + 'static {
        super::follow::follow(self.driver)
    }

    /// Delivers everything that is due now.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside the map's handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// stepped.clock().advance(Duration::from_secs(60));
    /// stepped.settle();
    /// assert!(map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(&self) {
        self.driver.settle();
    }

    /// Shuts down, and lets time pass where the mode waits for it. A second call returns an empty
    /// report.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside the map's handler.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn shutdown(&self, mode: Shutdown) -> ExpiryReport<K, V> {
        ExpiryReport::of(self.driver.shut_down(mode))
    }
}

impl<K, V, S> fmt::Debug for SteppedMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteppedMap")
            .field("driver", &self.driver)
            .finish()
    }
}
