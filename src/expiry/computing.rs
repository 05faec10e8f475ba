//! A caller that computes a value, or waits for it: as a thread or as a task.

use std::fmt;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::answers::Computed;
use super::entry::{Placement, Times};
use super::flights::{CallMode, FlightLead, FlightWait, Flights, Joined, WaitEnd};
use super::frontend::MapFrontend;
use super::{EntryError, ExpiryMap, Found, InsertError, Inserted, MapHasher, NoGroup};
use crate::coop::YieldPoint;
use crate::engine::Limit;
use crate::shard::Waiter;
use crate::sync::{Arc, Parker};

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    fn join(
        &self,
        key: &K,
        mode: CallMode,
        waiter: Waiter,
        look: impl FnOnce() -> Option<V>,
    ) -> Joined<K, Computed<V>, V> {
        if self.engine.is_forked() {
            return Joined::Refused;
        }
        let (_, hash) = self.hash_of(key);
        let flights = &self.engine.frontend.flights;
        let flights = flights.get_or_init(|| Arc::new(Flights::new()));
        flights.join(hash, key, mode, waiter, look)
    }
}

/// What a caller has said of its call, besides the key and the computation.
struct ComputingCall<'a, K, V, S, P>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    map: &'a ExpiryMap<K, V, S>,
    times: Times,
    place: P,
    touches: bool,
    limit: Option<Limit<MapFrontend<K, V, S>>>,
}

impl<K, V, S, P> ComputingCall<'_, K, V, S, P>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    fn look(&self, key: &K) -> Option<V> {
        match self.touches {
            true => self.map.read::<true>(key, self.times),
            false => self.map.read::<false>(key, self.times),
        }
    }

    fn join(&self, key: &K, mode: CallMode, waiter: Waiter) -> Joined<K, Computed<V>, V> {
        self.map.join(key, mode, waiter, || self.look(key))
    }

    /// Inserts the value of the caller that has computed it, and then ends the flight.
    fn insert_computed<E>(
        &self,
        lead: Option<FlightLead<K, Computed<V>>>,
        key: K,
        value: V,
    ) -> Result<Found<V>, EntryError<K, V, E>>
    where
        P: Placement<K, V, S>,
    {
        let put = |key, value| -> Result<Inserted<V>, InsertError<K, V>> {
            (self.place).put(self.map, key, value, self.times, true)
        };
        let found = match self.look(&key) {
            Some(value) => Ok(Found::Present(value)),
            None => (self.map).put_made(key, |key| self.look(key), || Ok(value), put),
        };
        if let Some(lead) = lead {
            match &found {
                Ok(Found::Present(value) | Found::Inserted { value, .. }) => {
                    lead.complete(|| Ok(value.clone()));
                }
                Err(EntryError::Insert(error)) => {
                    lead.complete(|| Err((error.value.clone(), error.refusal)));
                }
                Err(
                    EntryError::Make(_)
                    | EntryError::Recursive(_)
                    | EntryError::Closed
                    | EntryError::TimedOut,
                ) => {
                    unreachable!("the value was made, and nobody waited for it")
                }
            }
        }
        found
    }
}

pin_project! {
    /// The answer of [`Entry::or_compute`](super::Entry::or_compute), which has to be waited for: a
    /// thread calls [`wait`](Self::wait), and a task awaits it. It needs no particular runtime, and
    /// can be stored in a struct.
    ///
    /// Nothing happens before the wait. Dropping it ends the wait of a task. If this task computes,
    /// the computation is dropped with it, and the next caller computes.
    ///
    /// # Panics
    ///
    /// Panics if it is polled after it was ready.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::{Ready, ready};
    /// use tourbillon::{Computing, ExpiryMap, MapHasher};
    ///
    /// type Answer = Ready<Result<String, std::io::Error>>;
    ///
    /// /// Looks a name up, and has asked nobody before it is polled.
    /// struct Lookup<'a, S: MapHasher, F> {
    ///     name: Computing<'a, u64, String, S, F, Answer>,
    /// }
    ///
    /// # let stepped = ExpiryMap::<u64, String>::builder().build_stepped(1, |_, _| ())?;
    /// # let names = stepped.map();
    /// let lookup = Lookup { name: names.entry(7).or_compute(|| ready(Ok("ada".to_owned()))) };
    /// # stepped.run_until(async {
    /// assert_eq!(lookup.name.await?.into_value(), "ada");
    /// # Ok::<(), tourbillon::EntryError<u64, String, std::io::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "nothing is looked up or computed before `.wait()` or `.await`"]
    pub struct Computing<'a, K, V, S, F, R, P = NoGroup>
    where
        K: Clone,
        K: Send,
        K: 'static,
        V: Send,
        V: 'static,
        S: MapHasher,
    {
        call: ComputingCall<'a, K, V, S, P>,
        // `None` when the future was ready.
        key: Option<K>,
        // What makes the computation; `None` when that is made.
        compute: Option<F>,
        // Before the stage, so that it is dropped before the lead. Then the computation of the next
        // caller does not overlap this one.
        #[pin]
        computation: Option<R>,
        stage: ComputingStage<K, V>,
        yield_point: YieldPoint,
    }
}

/// What a caller that awaits a value does at present.
enum ComputingStage<K: 'static, V: 'static> {
    Looks,
    /// Waits for another caller.
    Waits(FlightWait<K, Computed<V>>),
    /// Computes the value. Without a lead, nobody waits for it.
    Computes(Option<FlightLead<K, Computed<V>>>),
}

impl<'a, K, V, S, F, R, P> Computing<'a, K, V, S, F, R, P>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    pub(super) fn new(
        map: &'a ExpiryMap<K, V, S>,
        key: K,
        times: Times,
        place: P,
        touches: bool,
        compute: F,
    ) -> Self {
        Computing {
            call: ComputingCall {
                map,
                times,
                place,
                touches,
                limit: None,
            },
            key: Some(key),
            compute: Some(compute),
            computation: None,
            stage: ComputingStage::Looks,
            yield_point: YieldPoint::default(),
        }
    }

    /// Waits for another caller no longer than `limit` from now, by the map's clock. Then the
    /// answer is [`TimedOut`](EntryError::TimedOut).
    ///
    /// What ends is the wait, and never a computation: that of the other caller goes on. If this
    /// caller is the one that computes, also after a failure of another one, nothing bounds its
    /// `compute`, which should have a limit of its own. In a task, a timeout around the whole call
    /// ends its own computation, too; see [`Timer::timeout`](crate::Timer::timeout).
    ///
    /// With a limit of zero the call waits for nobody: it finds the value, computes it, or fails at
    /// once. `Duration::MAX` is no limit. Of several limits the
    /// earliest holds.
    ///
    /// A task is woken by a ticker of the map, up to a tick after the limit. A map that delivers
    /// [`inline`](crate::ExpiryMapBuilder::inline) wakes it after the handler that runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, String>::builder().build_stepped(1, |_, _| ())?;
    /// # let names = stepped.map();
    /// # fn ask_database(user: u64) -> Result<String, std::io::Error> { Ok(format!("user {user}")) }
    /// let limit = Duration::from_secs(1);
    /// let name = names.entry(7).or_compute(|| ask_database(7)).within(limit).wait()?;
    /// assert_eq!(name.into_value(), "user 7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn within(mut self, limit: Duration) -> Self {
        let present = self.call.limit.take();
        self.call.limit = Some(Limit::within(&self.call.map.engine, limit, present));
        self
    }
}

impl<K, V, S, F, E, P> Computing<'_, K, V, S, F, Result<V, E>, P>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
    F: FnOnce() -> Result<V, E>,
    P: Placement<K, V, S>,
{
    /// Finds the value, computes it, or blocks this thread while another caller computes it.
    ///
    /// # Errors
    ///
    /// As for [`or_compute`](super::Entry::or_compute).
    ///
    /// # Panics
    ///
    /// A panic of the computation reaches its caller.
    ///
    /// # Blocking
    ///
    /// Blocks while another caller computes, until the [limit](Self::within) has passed or the map
    /// is shut down. Without a limit, `compute` should have one of its own. A call from the map's
    /// handler keeps a worker waiting. If the map delivers
    /// [`inline`](crate::ExpiryMapBuilder::inline), it keeps back everything that is due. In a
    /// task, await the call instead. In a map that a test drives, a call from the handler with a
    /// limit does not wait, since no time can pass meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<&str, u16>::builder().build_stepped(1, |_, _| ())?;
    /// # let ports = stepped.map();
    /// let port = ports.entry("http").or_compute(|| "80".parse()).wait()?;
    /// assert_eq!(port.into_value(), 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self) -> Result<Found<V>, EntryError<K, V, E>> {
        let Computing {
            call, key, compute, ..
        } = self;
        let (Some(key), Some(compute)) = (key, compute) else {
            unreachable!("a `Result` is no future, so nothing has polled this")
        };
        let lead = loop {
            if let Some(value) = call.look(&key) {
                return Ok(Found::Present(value));
            }
            let parker = Parker::new();
            let waiter = Waiter::Thread(parker.unparker().clone());
            match call.join(&key, CallMode::Blocking, waiter) {
                Joined::Found(value) => return Ok(Found::Present(value)),
                Joined::Leads(lead) => break Some(lead),
                Joined::Waits(wait) => match wait.block(|| call.park(&parker)) {
                    Some(WaitEnd::Answered(answer)) => return answer_of_other(key, answer),
                    Some(WaitEnd::Unanswered) => {}
                    Some(WaitEnd::Closed) => return Err(EntryError::Closed),
                    None => return Err(EntryError::TimedOut),
                },
                Joined::Recursive => return Err(EntryError::Recursive(None)),
                Joined::Closed => return Err(EntryError::Closed),
                // The insertion will be refused.
                Joined::Refused => break None,
            }
        };
        let computed = match &lead {
            Some(lead) => lead.compute(CallMode::Blocking, compute),
            None => compute(),
        };
        let value = computed.map_err(|error| failed(lead.as_ref(), error))?;
        call.insert_computed(lead, key, value)
    }
}

impl<K, V, S, P> ComputingCall<'_, K, V, S, P>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    /// Parks the thread until it is woken or the limit has passed. False: it has passed already.
    fn park(&self, parker: &Parker) -> bool {
        if self.limit.as_ref().is_some_and(Limit::has_passed) {
            return false;
        }
        let until = self.limit.as_ref().map(Limit::until);
        self.map.engine.clock().park_until(parker, until);
        true
    }
}

impl<K, V, S, F, R, E, P> Future for Computing<'_, K, V, S, F, R, P>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
    F: FnOnce() -> R,
    R: Future<Output = Result<V, E>>,
    P: Placement<K, V, S>,
{
    type Output = Result<Found<V>, EntryError<K, V, E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call;
        let output = loop {
            let key = (this.key.as_ref()).expect("a computation must not be polled after its end");
            match this.stage {
                ComputingStage::Looks => {
                    // The value may be there, or be computed without a wait.
                    ready!(this.yield_point.poll(context, |_| Poll::Ready(())));
                    if let Some(value) = call.look(key) {
                        break Ok(Found::Present(value));
                    }
                    let waiter = Waiter::Task(Waker::noop().clone());
                    *this.stage = match call.join(key, CallMode::Awaited, waiter) {
                        Joined::Found(value) => break Ok(Found::Present(value)),
                        Joined::Leads(lead) => ComputingStage::Computes(Some(lead)),
                        Joined::Waits(wait) => ComputingStage::Waits(wait),
                        Joined::Recursive => break Err(EntryError::Recursive(None)),
                        Joined::Closed => break Err(EntryError::Closed),
                        // The insertion will be refused.
                        Joined::Refused => ComputingStage::Computes(None),
                    };
                }
                ComputingStage::Waits(wait) => {
                    let Poll::Ready(end) = Pin::new(wait).poll(context) else {
                        let waker = context.waker();
                        if (call.limit.as_mut()).is_none_or(|limit| limit.leave(waker)) {
                            return Poll::Pending;
                        }
                        break Err(EntryError::TimedOut);
                    };
                    *this.stage = ComputingStage::Looks;
                    if let Some(limit) = &mut call.limit {
                        limit.take_back();
                    }
                    match end {
                        WaitEnd::Answered(answer) => {
                            let Some(key) = this.key.take() else {
                                unreachable!("it was there at the begin of this poll")
                            };
                            break answer_of_other(key, answer);
                        }
                        WaitEnd::Unanswered => {}
                        WaitEnd::Closed => break Err(EntryError::Closed),
                    }
                }
                ComputingStage::Computes(lead) => {
                    let mut computation = this.computation.as_mut();
                    let compute = &mut this.compute;
                    let mut poll = || {
                        if let Some(compute) = compute.take() {
                            computation.set(Some(compute()));
                        }
                        let Some(made) = computation.as_mut().as_pin_mut() else {
                            unreachable!("it is dropped at the end only")
                        };
                        made.poll(context)
                    };
                    let polled = catch_unwind(AssertUnwindSafe(|| match lead {
                        Some(lead) => lead.compute(CallMode::Awaited, poll),
                        None => poll(),
                    }));
                    if matches!(polled, Ok(Poll::Pending)) {
                        return Poll::Pending;
                    }
                    // Here, so that a value that is kept after its end keeps nobody waiting.
                    let lead = match std::mem::replace(this.stage, ComputingStage::Looks) {
                        ComputingStage::Computes(lead) => lead,
                        ComputingStage::Looks | ComputingStage::Waits(..) => None,
                    };
                    this.computation.set(None);
                    let Some(key) = this.key.take() else {
                        unreachable!("it was there at the begin of this poll")
                    };
                    return match polled {
                        Ok(Poll::Ready(Ok(value))) => {
                            Poll::Ready(call.insert_computed(lead, key, value))
                        }
                        Ok(Poll::Ready(Err(error))) => {
                            Poll::Ready(Err(failed(lead.as_ref(), error)))
                        }
                        Ok(Poll::Pending) => Poll::Pending,
                        Err(panic) => resume_unwind(panic),
                    };
                }
            }
        };
        *this.key = None;
        *this.stage = ComputingStage::Looks;
        *this.compute = None;
        this.computation.set(None);
        Poll::Ready(output)
    }
}

impl<K, V, S, F, R, P> fmt::Debug for Computing<'_, K, V, S, F, R, P>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match (&self.key, &self.stage) {
            (None, _) => "ended",
            (_, ComputingStage::Looks) => "looks",
            (_, ComputingStage::Waits(..)) => "waits",
            (_, ComputingStage::Computes(_)) => "computes",
        };
        f.debug_struct("Computing")
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}

/// Makes the error of the caller whose computation has failed.
fn failed<K, V, E>(lead: Option<&FlightLead<K, Computed<V>>>, error: E) -> EntryError<K, V, E> {
    // The computation has perhaps wrapped what it was told of the recursion. Here it is named
    // again, where its caller looks first.
    match lead.is_some_and(FlightLead::asked_itself) {
        true => EntryError::Recursive(Some(error)),
        false => EntryError::Make(error),
    }
}

/// Converts what another caller has computed to the answer of a caller that waited for it.
fn answer_of_other<K, V, E>(key: K, answer: Computed<V>) -> Result<Found<V>, EntryError<K, V, E>> {
    match answer {
        Ok(value) => Ok(Found::Present(value)),
        Err((value, refusal)) => Err(EntryError::Insert(InsertError {
            key,
            value,
            refusal,
        })),
    }
}
