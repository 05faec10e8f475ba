//! The call of which one caller computes the value of an absent key, while the others wait for it.
//! `computing.rs` has what a caller does, and `flights.rs` the protocol between callers.

use std::hash::Hash;

use super::entry::{Entry, Placement, Reads};
use super::{Computing, MapHasher};
#[cfg(doc)]
use super::{EntryError, ExpiryMap, Found};

impl<'a, K, V, S, P, const TOUCHES: bool> Entry<'a, K, V, S, P, Reads<TOUCHES>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Returns a clone of the value that is there. If there is none, one caller computes it, and
    /// all others that ask for the same key meanwhile wait for that value. Use it for values that
    /// are costly, such as the answer of a database.
    ///
    /// The answer is waited for by [`wait()`](Computing::wait) or by `await`, perhaps
    /// [`within(limit)`](Computing::within). For `wait`, `compute` returns a `Result`. For `await`,
    /// it returns a future of a `Result`. Callers of both kinds wait for each other. Nothing
    /// happens before the wait.
    ///
    /// The computing caller inserts the value and returns [`Found::Inserted`]. A waiting caller
    /// returns [`Found::Present`]. Its `compute` is dropped. After a [`touch`](Self::touch), an
    /// entry that is there is touched; one that was computed is as good as new. Callers that name
    /// different groups wait for each other, and the value goes to the group of the caller that
    /// computes it, with the [`expiry`](Self::expiry) that this caller has named. With
    /// [`at`](Self::at), its times count from a moment before the computation.
    ///
    /// **If a computation fails** with an error or a panic, only its own caller gets that. The
    /// waiting callers look again, and the next one of them computes. The same happens if a future
    /// that computes is dropped. While it is neither polled nor dropped, the other callers wait.
    ///
    /// **If something else happens to the key meanwhile:**
    ///
    /// | meanwhile | result |
    /// |---|---|
    /// | another call inserts an entry for the key | The computed value is dropped, and all these callers return the value of that entry: [`Found::Present`]. If that entry has ended again by then, the computed value is inserted. |
    /// | another call removes the key, the group or all entries | Nothing: the entry is not there yet. The computed value is inserted. |
    /// | the entry ends after the insertion, before a waiting caller has returned | That caller still returns the value. |
    /// | the insertion is refused, because the map or the group is full, or the map closed | All these callers return [`EntryError::Insert`], each with its key and a clone of the value. |
    /// | the map is shut down | The waiting callers return [`EntryError::Closed`] at once. The computing caller goes on, and its insertion is refused. |
    ///
    /// # Errors
    ///
    /// As for [`or_try_insert_with`](Self::or_try_insert_with). In addition,
    /// [`Recursive`](EntryError::Recursive) is the error of a call from inside the
    /// computation of the same key, and of the computation's own caller if the computation fails
    /// then. [`Closed`](EntryError::Closed) is the error of a caller that would wait in a map
    /// that is shut down, and [`TimedOut`](EntryError::TimedOut) that of a caller whose limit
    /// has passed.
    ///
    /// # Panics
    ///
    /// A panic of `compute` reaches its caller.
    ///
    /// # Blocking
    ///
    /// [`wait`](Computing::wait) says how it blocks. `compute` runs without a lock. The value is
    /// cloned without a lock, too, except for a caller that finds the entry.
    ///
    /// A computation that waits for a caller that waits for it never ends. Only a call of the same
    /// thread, or from the same future, is detected ([`Recursive`](EntryError::Recursive)).
    /// These cases are not, and a [limit](Computing::within) ends them:
    ///
    /// - Two computations ask for the values of each other's keys.
    /// - A computation blocks on a future, or waits for a thread or a task, that asks for its own
    ///   key.
    /// - A thread that runs futures calls `wait` while one of them computes the value. In a task,
    ///   use `await`.
    ///
    /// # Complexity
    ///
    /// As for [`get`](ExpiryMap::get) if there is an entry. Otherwise the call takes one further
    /// lock, under which a key's `Eq` and `Clone` run. A failure wakes all callers that wait for
    /// the key.
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
    /// let name = names.entry(7).or_compute(|| ask_database(7)).wait()?.into_value();
    /// assert_eq!(name, "user 7");
    /// assert!(names.entry(10).or_compute(|| ask_database(10)).wait().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The same in a task:
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
    /// let found = names.entry(7).or_compute(|| ask_database(7)).await?;
    /// assert_eq!(found.into_value(), "user 7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("singleflight", "get_with", "coalesce"))]
    pub fn or_compute<F, R>(self, compute: F) -> Computing<'a, K, V, S, F, R, P>
    where
        F: FnOnce() -> R,
        V: Clone,
        P: Placement<K, V, S>,
    {
        let Entry {
            map,
            key,
            times,
            place,
            ..
        } = self;
        Computing::new(map, key, times, place, TOUCHES, compute)
    }
}
