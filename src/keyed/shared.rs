//! The calls and the setters that both types have.

/// The calls of a `Debounce` or a `Throttle`.
macro_rules! keyed_calls {
    ($Type:ident) => {
        impl<K, V, S> $Type<K, V, S>
        where
            K: Hash + Eq + Clone + Send + 'static,
            V: Send + 'static,
            S: BuildHasher + Send + Sync + 'static,
        {
            /// Calls the key with a value. The value runs now, runs later, or is dropped, as the
            /// window of the key and the [`Edges`] say. No run happens inside this call.
            ///
            /// # Errors
            ///
            /// The error contains the value, and nothing was changed.
            ///
            /// - [`Full`](ScheduleError::Full): the call needs a timer, and the scheduler has
            ///   `max_pending` of them.
            /// - [`Closed`](ScheduleError::Closed): the scheduler was shut down or dropped.
            /// - [`Closing`](ScheduleError::Closing): `cancel_and_wait` waits for a run of this
            ///   key.
            /// - [`UnderLock`](ScheduleError::UnderLock): the call comes from a panic hook; see
            ///   [panic hooks](crate#panic-hooks).
            ///
            /// # Panics
            ///
            /// Panics if it is called from user code that runs under a lock of this crate.
            ///
            /// # Complexity
            ///
            /// Constant. A call of an open window takes one lock, and moves no timer.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("use tourbillon::{Scheduler, keyed::{Edges, ", stringify!($Type), "}};")]
            ///
            /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            #[doc = concat!("let search = ", stringify!($Type), "::builder(&scheduler.handle(), Duration::from_secs(1))")]
            ///     .edges(Edges::Trailing)
            ///     .build(|_, text| assert_eq!(text, "timer"));
            /// search.call("user 7", "tim")?;
            /// search.call("user 7", "timer")?;
            /// assert_eq!(scheduler.advance(Duration::from_secs(1)).len(), 1);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn call(&self, key: K, value: V) -> Result<(), ScheduleError<V>> {
                self.calls.call(&key, value)
            }

            /// Lets the waiting value of `key` run at once, without waiting for the end of its
            /// window. The run starts on a worker, after a run of the key that is in progress.
            /// A further call joins that run if it has not started. Returns whether a run will
            /// follow.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("# use tourbillon::{Scheduler, keyed::{Edges, ", stringify!($Type), "}};")]
            /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            #[doc = concat!("let drafts = ", stringify!($Type), "::builder(&scheduler.handle(), Duration::from_secs(1))")]
            ///     .edges(Edges::Trailing)
            ///     .build(|_, text| println!("saved: {text}"));
            /// drafts.call("letter", "Dear Ada")?;
            /// // The editor is being closed.
            /// assert!(drafts.flush("letter"));
            /// assert_eq!(scheduler.settle().len(), 1);
            /// assert!(!drafts.flush("letter"));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
            pub fn flush<Q>(&self, key: &Q) -> bool
            where
                K: Borrow<Q>,
                Q: Hash + Eq + ?Sized,
            {
                self.calls.flush(key)
            }

            /// Returns whether a run of `key` has not started and will follow.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("# use tourbillon::{Scheduler, keyed::{Edges, ", stringify!($Type), "}};")]
            /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            #[doc = concat!("let drafts = ", stringify!($Type), "::builder(&scheduler.handle(), Duration::from_secs(1))")]
            ///     .edges(Edges::Trailing)
            ///     .build(|_, text| println!("saved: {text}"));
            /// drafts.call("letter", "Dear Ada")?;
            /// assert!(drafts.is_pending("letter"));
            /// scheduler.advance(Duration::from_secs(1));
            /// assert!(!drafts.is_pending("letter"));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use]
            pub fn is_pending<Q>(&self, key: &Q) -> bool
            where
                K: Borrow<Q>,
                Q: Hash + Eq + ?Sized,
            {
                self.calls.is_pending(key)
            }

            /// Takes all values that have not run, with their keys. Use it after a shutdown, to
            /// keep the values whose runs did not start. If a key has values for a leading and for
            /// a trailing run, the leading one comes first.
            ///
            /// This forgets the windows, too. While the scheduler runs, the next call of each key
            /// opens a new one.
            ///
            /// # Complexity
            ///
            /// Linear in the number of keys that have a window, with 64 locks one after the other.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("# use tourbillon::{Scheduler, keyed::{Edges, ", stringify!($Type), "}};")]
            /// use tourbillon::Shutdown;
            ///
            /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            #[doc = concat!("let drafts = ", stringify!($Type), "::builder(&scheduler.handle(), Duration::from_secs(1))")]
            ///     .edges(Edges::Trailing)
            ///     .build(|_, text| println!("saved: {text}"));
            /// drafts.call("letter", "Dear Ada")?;
            /// scheduler.shutdown(Shutdown::HandBack);
            /// assert_eq!(drafts.take_pending(), [("letter", "Dear Ada")]);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use = "the values are dropped"]
            pub fn take_pending(&self) -> Vec<(K, V)> {
                self.calls.take_pending()
            }
        }

        impl<K, V, S> Clone for $Type<K, V, S> {
            fn clone(&self) -> Self {
                $Type {
                    calls: Arc::clone(&self.calls),
                }
            }
        }

        impl<K, V, S> fmt::Debug for $Type<K, V, S> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($Type))
                    .field("rules", self.calls.rules())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// The setters of the builder of a `Debounce` or a `Throttle`.
macro_rules! keyed_options {
    ($Type:ident, $Builder:ident, $edges:literal) => {
        impl<K, V, S> $Builder<K, V, S>
        where
            K: Hash + Eq + Clone + Send + 'static,
            V: Send + 'static,
            S: BuildHasher + Send + Sync + 'static,
        {
            /// Sets which calls of a window run.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("use tourbillon::{Scheduler, keyed::{Edges, ", stringify!($Type), "}};")]
            ///
            /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            /// let (send, sent) = std::sync::mpsc::channel();
            #[doc = concat!("let alarm = ", stringify!($Type), "::builder(&scheduler.handle(), Duration::from_secs(60))")]
            ///     .edges(Edges::Leading)
            ///     .build(move |_, text| drop(send.send(text)));
            /// alarm.call("boiler", "on fire")?;
            /// alarm.call("boiler", "still on fire")?; // too soon
            /// scheduler.advance(Duration::from_secs(60));
            /// assert_eq!(sent.try_iter().collect::<Vec<_>>(), ["on fire"]);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[doc = concat!("The default is [`", $edges, "`](", $edges, ").")]
            pub fn edges(mut self, edges: Edges) -> Self {
                self.edges = edges;
                self
            }

            /// Combines the value of a further call with the value that waits for the trailing run.
            /// By default the latest value wins, and the one before is dropped. The value of a
            /// leading run is never merged.
            ///
            /// `merge` runs under a lock. It must be short, and must not call this crate: such a
            /// call panics. If `merge` panics, so does the call. The waiting value stays as `merge`
            /// left it, and its run is not delayed.
            ///
            /// # Examples
            ///
            /// ```
            /// use std::time::Duration;
            #[doc = concat!("use tourbillon::{Scheduler, keyed::{Edges, ", stringify!($Type), "}};")]
            ///
            /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
            #[doc = concat!("let log = ", stringify!($Type), "::builder(&scheduler.handle(), Duration::from_secs(1))")]
            ///     .edges(Edges::Trailing)
            ///     .merge(|lines: &mut Vec<u32>, more| lines.extend(more))
            ///     .build(|_, lines| assert_eq!(lines, [1, 2, 3]));
            /// log.call("disk", vec![1])?;
            /// log.call("disk", vec![2, 3])?;
            /// assert_eq!(scheduler.advance(Duration::from_secs(1)).len(), 1);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn merge(mut self, merge: impl Fn(&mut V, V) + Send + Sync + 'static) -> Self {
                self.merge = Some(Box::new(merge));
                self
            }
        }

        impl<K, V, S> fmt::Debug for $Builder<K, V, S> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($Builder))
                    .field("wait", &self.wait)
                    .field("edges", &self.edges)
                    .finish_non_exhaustive()
            }
        }
    };
}

pub(super) use {keyed_calls, keyed_options};
