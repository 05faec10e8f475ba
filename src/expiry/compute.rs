//! The calls of which one computes the value of an absent key, while the others wait for it.
//! `flights.rs` has the protocol.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;

use super::flights::{CallMode, FlightLead, FlightWait, Flights, Joined, WaitEnd};
use super::{
    ExpiryMap, Found, GetOrInsertError, GroupedBy, InsertError, InsertRefusal, Inserted, MapHasher,
};
use crate::coop::YieldPoint;
use crate::shard::Waiter;
use crate::sync::{Arc, Parker};

/// What a waiting caller gets: the value that is in the map, or a value that was refused there.
pub(super) type Computed<V> = Result<V, (V, InsertRefusal)>;

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Returns a clone of the value of `key`, without touching the entry. If there is none, one
    /// caller computes it, and all others that ask for the same key meanwhile wait for that value.
    /// Use it for values that are costly, such as the answer of a database.
    ///
    /// The computing caller inserts the value and returns [`Found::Inserted`]. A waiting caller
    /// returns [`Found::Present`]. Its `compute` is dropped.
    ///
    /// **If a computation fails** with an error or a panic, only its own caller gets that. The
    /// waiting callers look again, and the next one of them computes. The same happens if the
    /// future of a [`get_or_compute_async`](Self::get_or_compute_async) is dropped.
    ///
    /// **If something else happens to the key meanwhile:**
    ///
    /// | meanwhile | result |
    /// |---|---|
    /// | another call inserts an entry for the key | The computed value is dropped, and all these callers return the value of that entry: [`Found::Present`]. If that entry has ended again by then, the computed value is inserted. |
    /// | another call removes the key, the group or all entries | Nothing: the entry is not there yet. The computed value is inserted. |
    /// | the entry ends after the insertion, before a waiting caller has returned | That caller still returns the value. |
    /// | the insertion is refused, because the map is full or closed | All these callers return [`GetOrInsertError::Insert`], each with its key and a clone of the value. |
    /// | the map is shut down | The waiting callers return [`GetOrInsertError::Closed`] at once. The computing caller goes on, and its insertion is refused. |
    ///
    /// # Errors
    ///
    /// As for [`get_or_try_insert_with`](Self::get_or_try_insert_with). In addition,
    /// [`Recursive`](GetOrInsertError::Recursive) is the error of a call from inside the
    /// computation of the same key, and of the computation's own caller if the computation fails
    /// then. [`Closed`](GetOrInsertError::Closed) is the error of a caller that would wait in a map
    /// that is shut down.
    ///
    /// # Blocking
    ///
    /// Blocks while another caller computes, without a limit, until the map is shut down. `compute`
    /// should have a limit of its own. A call from the map's handler keeps a worker waiting. If the
    /// map delivers [`inline`](crate::ExpiryMapBuilder::inline), it keeps back everything that is
    /// due.
    ///
    /// A computation that waits for a caller that waits for it never ends. Only a call of the same
    /// thread, or from the same future, is detected ([`Recursive`](GetOrInsertError::Recursive)).
    /// These cases are not:
    ///
    /// - Two computations ask for the values of each other's keys.
    /// - A computation blocks on a future, or waits for a thread, that asks for its own key.
    /// - A thread that runs futures calls this while one of them computes the value. In a task, use
    ///   [`get_or_compute_async`](Self::get_or_compute_async).
    ///
    /// # Complexity
    ///
    /// As for [`get`](Self::get) if there is an entry. Otherwise the call takes one further lock,
    /// under which a key's `Eq` and `Clone` run. A failure wakes all callers that wait for the key.
    ///
    /// `compute` runs without a lock. The value is cloned without a lock, too, except for a caller
    /// that finds the entry.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, String>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let names = stepped.map();
    /// fn ask_database(user: u64) -> Result<String, std::io::Error> {
    ///     // .. takes long ..
    /// #   if user > 9 { return Err(std::io::ErrorKind::NotFound.into()); }
    ///     Ok(format!("user {user}"))
    /// }
    /// // However many threads do this at the same time, the database is asked once.
    /// let name = names.get_or_compute(7, || ask_database(7))?.into_value();
    /// assert_eq!(name, "user 7");
    /// assert!(names.get_or_compute(10, || ask_database(10)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_compute<E>(
        &self,
        key: K,
        compute: impl FnOnce() -> Result<V, E>,
    ) -> Result<Found<V>, GetOrInsertError<K, V, E>>
    where
        V: Clone,
    {
        let put = |key, value| self.insert_if_absent(key, value);
        self.compute_or_wait(key, compute, put)
    }

    fn compute_or_wait<E>(
        &self,
        key: K,
        compute: impl FnOnce() -> Result<V, E>,
        put: impl Fn(K, V) -> Result<Inserted<V>, InsertError<K, V>>,
    ) -> Result<Found<V>, GetOrInsertError<K, V, E>>
    where
        V: Clone,
    {
        let lead = loop {
            if let Some(value) = self.get(&key) {
                return Ok(Found::Present(value));
            }
            let parker = Parker::new();
            let waiter = Waiter::Thread(parker.unparker().clone());
            match self.join(&key, CallMode::Blocking, waiter) {
                Joined::Found(value) => return Ok(Found::Present(value)),
                Joined::Leads(lead) => break Some(lead),
                Joined::Waits(wait) => match wait.block(&parker) {
                    WaitEnd::Answered(answer) => return answer_of_other(key, answer),
                    WaitEnd::Unanswered => {}
                    WaitEnd::Closed => return Err(GetOrInsertError::Closed),
                },
                Joined::Recursive => return Err(GetOrInsertError::Recursive(None)),
                Joined::Closed => return Err(GetOrInsertError::Closed),
                // The insertion will be refused.
                Joined::Refused => break None,
            }
        };
        let computed = match &lead {
            Some(lead) => lead.compute(CallMode::Blocking, compute),
            None => compute(),
        };
        let value = computed.map_err(|error| failed(lead.as_ref(), error))?;
        self.insert_computed(lead, key, value, put)
    }

    /// Like [`get_or_compute`](Self::get_or_compute), for a task: `compute` is a future, which one
    /// caller awaits, and the others wait without blocking their threads. Callers of both kinds
    /// wait for each other. It needs no particular runtime.
    ///
    /// Nothing happens before the first poll. Dropping the future ends the wait. If this caller
    /// computes, `compute` is dropped with it, and the next caller computes. While the future is
    /// neither polled nor dropped, the other callers wait. To set a limit, put the future into a
    /// timeout, such as [`Timer::timeout`](crate::Timer::timeout).
    ///
    /// # Errors
    ///
    /// As for [`get_or_compute`](Self::get_or_compute). If `compute` awaits the same key by way of
    /// another task, that is not detected, and both wait forever.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// # let stepped = ExpiryMap::<u64, String>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let names = stepped.map();
    /// async fn ask_database(user: u64) -> Result<String, std::io::Error> {
    ///     // .. takes long ..
    ///     Ok(format!("user {user}"))
    /// }
    /// let found = names.get_or_compute_async(7, ask_database(7)).await?;
    /// assert_eq!(found.into_value(), "user 7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_compute_async<C, E>(&self, key: K, compute: C) -> Computing<'_, K, V, S, C>
    where
        C: Future<Output = Result<V, E>>,
        V: Clone,
    {
        Computing {
            map: self,
            key: Some(key),
            compute: Some(compute),
            stage: ComputingStage::Looks,
            yield_point: YieldPoint::default(),
            put: None,
        }
    }

    fn join(&self, key: &K, mode: CallMode, waiter: Waiter) -> Joined<K, Computed<V>, V>
    where
        V: Clone,
    {
        if self.engine.is_forked() {
            return Joined::Refused;
        }
        let (_, hash) = self.hash_of(key);
        let flights = &self.engine.frontend.flights;
        let flights = flights.get_or_init(|| Arc::new(Flights::new()));
        flights.join(hash, key, mode, waiter, || self.get(key))
    }

    /// Inserts the value of the caller that has computed it, and then ends the flight.
    fn insert_computed<E>(
        &self,
        lead: Option<FlightLead<K, Computed<V>>>,
        key: K,
        value: V,
        put: impl Fn(K, V) -> Result<Inserted<V>, InsertError<K, V>>,
    ) -> Result<Found<V>, GetOrInsertError<K, V, E>>
    where
        V: Clone,
    {
        let found = self.get_or_put(key, || Ok(value), put);
        if let Some(lead) = lead {
            match &found {
                Ok(Found::Present(value) | Found::Inserted { value, .. }) => {
                    lead.complete(|| Ok(value.clone()));
                }
                Err(GetOrInsertError::Insert(error)) => {
                    lead.complete(|| Err((error.value.clone(), error.refusal)));
                }
                Err(
                    GetOrInsertError::Make(_)
                    | GetOrInsertError::Recursive(_)
                    | GetOrInsertError::Closed,
                ) => {
                    unreachable!("the value was made, and nobody waited for it")
                }
            }
        }
        found
    }
}

/// # Groups, if the value is costly
///
/// These calls exist on a [`GroupedExpiryMap`](crate::GroupedExpiryMap).
impl<K, V, G, S> ExpiryMap<K, V, GroupedBy<G, S>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Hash + Eq + Send + 'static,
{
    /// Like [`get_or_compute`](Self::get_or_compute), with an insertion in a group. An entry that
    /// is there is returned, whatever group it is in. Callers that name different groups wait for
    /// each other, and the value goes to the group of the caller that computes it.
    ///
    /// # Errors
    ///
    /// As for [`get_or_compute`](Self::get_or_compute) and [`insert_in`](Self::insert_in).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, String>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let sessions = stepped.map();
    /// # fn load(session: u64) -> Result<String, std::io::Error> { Ok(format!("session {session}")) }
    /// let session = sessions.get_or_compute_in("ada", 7, || load(7))?;
    /// assert_eq!(session.into_value(), "session 7");
    /// assert_eq!(sessions.group_len("ada"), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_compute_in<Q, E>(
        &self,
        group: &Q,
        key: K,
        compute: impl FnOnce() -> Result<V, E>,
    ) -> Result<Found<V>, GetOrInsertError<K, V, E>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        let put = |key, value| self.insert_in_if_absent(group, key, value);
        self.compute_or_wait(key, compute, put)
    }

    /// Like [`get_or_compute_async`](Self::get_or_compute_async), with an insertion in a group, as
    /// for [`get_or_compute_in`](Self::get_or_compute_in).
    ///
    /// # Errors
    ///
    /// As for [`get_or_compute_async`](Self::get_or_compute_async) and
    /// [`insert_in`](Self::insert_in).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, String>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let sessions = stepped.map();
    /// # async fn load(session: u64) -> Result<String, std::io::Error> { Ok(format!("session {session}")) }
    /// # stepped.run_until(async {
    /// let session = sessions.get_or_compute_in_async("ada", 7, load(7)).await.unwrap();
    /// assert_eq!(session.into_value(), "session 7");
    /// # });
    /// assert_eq!(sessions.group_of(&7).as_deref(), Some("ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_compute_in_async<Q, C, E>(
        &self,
        group: &Q,
        key: K,
        compute: C,
    ) -> Computing<'_, K, V, GroupedBy<G, S>, C>
    where
        C: Future<Output = Result<V, E>>,
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        let group: G = group.to_owned();
        let put = move |map: &Self, key, value| {
            map.insert_in_if_absent(Borrow::<Q>::borrow(&group), key, value)
        };
        Computing {
            put: Some(Box::new(put)),
            ..self.get_or_compute_async(key, compute)
        }
    }
}

/// Inserts a value that was computed.
type Put<K, V, S> =
    dyn Fn(&ExpiryMap<K, V, S>, K, V) -> Result<Inserted<V>, InsertError<K, V>> + Send;

pin_project! {
    /// The future of [`ExpiryMap::get_or_compute_async`], which can be stored in a struct.
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
    /// /// Looks a name up, and has asked nobody before it is polled.
    /// struct Lookup<'a, S: MapHasher> {
    ///     name: Computing<'a, u64, String, S, Ready<Result<String, std::io::Error>>>,
    /// }
    ///
    /// # let stepped = ExpiryMap::<u64, String>::builder().build_stepped(1, |_, _| ())?;
    /// # let names = stepped.map();
    /// let lookup = Lookup { name: names.get_or_compute_async(7, ready(Ok("ada".to_owned()))) };
    /// # stepped.run_until(async {
    /// assert_eq!(lookup.name.await?.into_value(), "ada");
    /// # Ok::<(), tourbillon::GetOrInsertError<u64, String, std::io::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Computing<'a, K, V, S, C>
    where
        K: 'static,
        V: 'static,
        S: MapHasher,
    {
        map: &'a ExpiryMap<K, V, S>,
        // `None` when the future was ready.
        key: Option<K>,
        // Before the stage, so that it is dropped before the lead. Then the computation of the next
        // caller does not overlap this one.
        #[pin]
        compute: Option<C>,
        stage: ComputingStage<K, V>,
        yield_point: YieldPoint,
        // `None` for an insertion without a group.
        put: Option<Box<Put<K, V, S>>>,
    }
}

/// What a caller that awaits a value does at present.
enum ComputingStage<K: 'static, V: 'static> {
    Looks,
    Waits(FlightWait<K, Computed<V>>),
    /// Computes the value. Without a lead, nobody waits for it.
    Computes(Option<FlightLead<K, Computed<V>>>),
}

impl<K, V, S, C, E> Future for Computing<'_, K, V, S, C>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
    C: Future<Output = Result<V, E>>,
{
    type Output = Result<Found<V>, GetOrInsertError<K, V, E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let map = *this.map;
        let output = loop {
            let key = (this.key.as_ref()).expect("a computation must not be polled after its end");
            match this.stage {
                ComputingStage::Looks => {
                    // The value may be there, or be computed without a wait.
                    ready!(this.yield_point.poll(context, |_| Poll::Ready(())));
                    if let Some(value) = map.get(key) {
                        break Ok(Found::Present(value));
                    }
                    let waiter = Waiter::Task(Waker::noop().clone());
                    *this.stage = match map.join(key, CallMode::Awaited, waiter) {
                        Joined::Found(value) => break Ok(Found::Present(value)),
                        Joined::Leads(lead) => ComputingStage::Computes(Some(lead)),
                        Joined::Waits(wait) => ComputingStage::Waits(wait),
                        Joined::Recursive => break Err(GetOrInsertError::Recursive(None)),
                        Joined::Closed => break Err(GetOrInsertError::Closed),
                        // The insertion will be refused.
                        Joined::Refused => ComputingStage::Computes(None),
                    };
                }
                ComputingStage::Waits(wait) => {
                    let end = ready!(Pin::new(wait).poll(context));
                    *this.stage = ComputingStage::Looks;
                    match end {
                        WaitEnd::Answered(answer) => {
                            let Some(key) = this.key.take() else {
                                unreachable!("it was there at the begin of this poll")
                            };
                            break answer_of_other(key, answer);
                        }
                        WaitEnd::Unanswered => {}
                        WaitEnd::Closed => break Err(GetOrInsertError::Closed),
                    }
                }
                ComputingStage::Computes(lead) => {
                    let Some(mut compute) = this.compute.as_mut().as_pin_mut() else {
                        unreachable!("it is dropped at the end only")
                    };
                    let mut poll = || compute.as_mut().poll(context);
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
                        ComputingStage::Looks | ComputingStage::Waits(_) => None,
                    };
                    this.compute.set(None);
                    let Some(key) = this.key.take() else {
                        unreachable!("it was there at the begin of this poll")
                    };
                    return match polled {
                        Ok(Poll::Ready(Ok(value))) => {
                            let own = this.put.as_deref();
                            let put = |key, value| match own {
                                Some(put) => put(map, key, value),
                                None => map.insert_if_absent(key, value),
                            };
                            Poll::Ready(map.insert_computed(lead, key, value, put))
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
        this.compute.set(None);
        Poll::Ready(output)
    }
}

impl<K, V, S: MapHasher, C> fmt::Debug for Computing<'_, K, V, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match (&self.key, &self.stage) {
            (None, _) => "ended",
            (_, ComputingStage::Looks) => "looks",
            (_, ComputingStage::Waits(_)) => "waits",
            (_, ComputingStage::Computes(_)) => "computes",
        };
        f.debug_struct("Computing")
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}

/// Makes the error of the caller whose computation has failed.
fn failed<K, V, E>(
    lead: Option<&FlightLead<K, Computed<V>>>,
    error: E,
) -> GetOrInsertError<K, V, E> {
    // The computation has perhaps wrapped what it was told of the recursion. Here it is named
    // again, where its caller looks first.
    match lead.is_some_and(FlightLead::asked_itself) {
        true => GetOrInsertError::Recursive(Some(error)),
        false => GetOrInsertError::Make(error),
    }
}

/// Converts what another caller has computed to the answer of a caller that waited for it.
fn answer_of_other<K, V, E>(
    key: K,
    answer: Computed<V>,
) -> Result<Found<V>, GetOrInsertError<K, V, E>> {
    match answer {
        Ok(value) => Ok(Found::Present(value)),
        Err((value, refusal)) => Err(GetOrInsertError::Insert(InsertError {
            key,
            value,
            refusal,
        })),
    }
}
