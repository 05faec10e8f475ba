//! The last answers of a store, each asked for once in a while, however many people look.
//!
//! A question is a task of its own: it goes on when the request that began it is dropped, so that
//! requests which come and go at once ask no more often. Its turn is taken under the lock of its slot:
//!
//! | state | meaning | next |
//! |---|---|---|
//! | idle | no question is under way | a reader after `next` makes it *asked* |
//! | asked | one task has the turn | the task publishes, sets `next`, and makes it *idle*, also if it panics |
//!
//! After an action `next` is cleared, so that the page which follows it shows what was done.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// The shortest time between two questions of a slot.
const EVERY: Duration = Duration::from_millis(1_500);

/// A store that takes long is asked less often: the pause is this many times as long as the answer took.
/// So all questions of a slot take the store no more than a fiftieth of its time, and timers on the
/// same cores are late by little.
const PAUSE_PER_COST: u32 = 50;

/// The longest pause that follows from the time an answer took.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a reader waits for a new answer. After that, the page reports an outage.
const WAIT: Duration = Duration::from_millis(900);

/// The most slots of a kind.
const SLOTS: usize = 256;

/// What a store said last, and whether it answers.
#[derive(Debug)]
pub(crate) struct Seen<V> {
    /// The last answer, and when it came.
    pub(crate) value: Option<(Arc<V>, SystemTime)>,
    /// Why there is no newer one.
    pub(crate) error: Option<String>,
}

impl<V> Clone for Seen<V> {
    fn clone(&self) -> Self {
        Seen {
            value: self.value.clone(),
            error: self.error.clone(),
        }
    }
}

impl<V> Seen<V> {
    pub(crate) fn get(&self) -> Option<&V> {
        self.value.as_ref().map(|(value, _)| &**value)
    }
}

/// The slots of one kind of question.
pub(crate) struct Snapshots<K, V> {
    slots: Mutex<HashMap<K, Arc<Slot<V>>>>,
    every: Duration,
}

struct Slot<V> {
    seen: watch::Sender<Seen<V>>,
    turn: Mutex<Turn>,
}

struct Turn {
    asked: Option<Instant>,
    next: Option<Instant>,
    /// Whether something was changed after the question under way was asked.
    is_old: bool,
    used: Instant,
}

/// Ends the turn of a question.
struct Asked<V> {
    slot: Arc<Slot<V>>,
    begun: Instant,
    every: Duration,
    /// Not if the question has panicked.
    is_answered: bool,
    /// Whether the store has answered, and not an error.
    is_good: bool,
}

impl<K, V> Default for Snapshots<K, V> {
    fn default() -> Self {
        Self::every(EVERY)
    }
}

impl<K, V> fmt::Debug for Snapshots<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshots")
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

impl<K, V> Snapshots<K, V> {
    pub(crate) fn every(every: Duration) -> Self {
        Snapshots {
            slots: Mutex::default(),
            every,
        }
    }
}

impl<K: Hash + Eq, V: Send + Sync + 'static> Snapshots<K, V> {
    /// Returns the last answer, after a new one was asked for if it is time. Waits for that, but
    /// not long.
    pub(crate) async fn get<F>(
        &self,
        key: K,
        turns: &Arc<Semaphore>,
        ask: impl FnOnce() -> F,
    ) -> Seen<V>
    where
        F: Future<Output = Result<V, String>> + Send + 'static,
    {
        let Some(slot) = self.slot(key) else {
            return Seen {
                value: None,
                error: Some("Too many different questions are under way: try again".to_owned()),
            };
        };
        let mut news = slot.seen.subscribe();
        if let Some(mut asked) = slot.take_turn(self.every) {
            let (turns, question) = (Arc::clone(turns), ask());
            tokio::spawn(async move {
                let answer = match turns.acquire().await {
                    Ok(_one_of_them) => question.await,
                    Err(closed) => Err(closed.to_string()),
                };
                asked.publish(answer);
            });
        }
        if let Some(begun) = slot.is_asked() {
            // A reader that comes later waits for the rest of that time.
            let rest = WAIT.saturating_sub(begun.elapsed());
            let _ = timeout(rest, news.changed()).await;
        }
        let mut seen = slot.seen.borrow().clone();
        if let Some(begun) = slot.is_asked()
            && begun.elapsed() >= WAIT
            && seen.error.is_none()
        {
            seen.error = Some(format!(
                "The store does not answer: no answer yet after {:.1?}",
                begun.elapsed()
            ));
        }
        seen
    }

    /// Makes the next reader of each slot ask, because something was changed. A slot whose question is
    /// under way is asked again after it: that answer may be from before the change.
    pub(crate) fn renew(&self) {
        for slot in lock(&self.slots).values() {
            let mut turn = lock(&slot.turn);
            turn.next = None;
            turn.is_old = turn.asked.is_some();
        }
    }

    fn slot(&self, key: K) -> Option<Arc<Slot<V>>> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&key) {
            return Some(Arc::clone(slot));
        }
        if slots.len() >= SLOTS {
            // One pass for a quarter of them: a new slot costs little then.
            let mut ages: Vec<Instant> = slots
                .values()
                .filter_map(|slot| slot.idle_since())
                .collect();
            ages.sort_unstable();
            let limit = *ages.get(ages.len().saturating_sub(1).min(SLOTS / 4))?;
            slots.retain(|_, slot| slot.idle_since().is_none_or(|used| used > limit));
        }
        let slot = Arc::new(Slot {
            seen: watch::Sender::new(Seen {
                value: None,
                error: None,
            }),
            turn: Mutex::new(Turn {
                asked: None,
                next: None,
                is_old: false,
                used: Instant::now(),
            }),
        });
        slots.insert(key, Arc::clone(&slot));
        Some(slot)
    }
}

impl<V> Slot<V> {
    fn take_turn(self: &Arc<Self>, every: Duration) -> Option<Asked<V>> {
        let begun = Instant::now();
        let mut turn = lock(&self.turn);
        turn.used = begun;
        if turn.asked.is_some() || turn.next.is_some_and(|next| next > begun) {
            return None;
        }
        turn.asked = Some(begun);
        Some(Asked {
            slot: Arc::clone(self),
            begun,
            every,
            is_answered: false,
            is_good: false,
        })
    }

    fn is_asked(&self) -> Option<Instant> {
        lock(&self.turn).asked
    }

    fn idle_since(&self) -> Option<Instant> {
        let turn = lock(&self.turn);
        turn.asked.is_none().then_some(turn.used)
    }
}

impl<V> Asked<V> {
    fn publish(&mut self, answer: Result<V, String>) {
        // The last answer stays beside an error.
        self.is_good = answer.is_ok();
        self.slot.seen.send_modify(|seen| match answer {
            Ok(value) => {
                seen.value = Some((Arc::new(value), SystemTime::now()));
                seen.error = None;
            }
            Err(error) => seen.error = Some(error),
        });
        self.is_answered = true;
    }
}

impl<V> Drop for Asked<V> {
    fn drop(&mut self) {
        let cost = self.begun.elapsed();
        let mut turn = lock(&self.slot.turn);
        turn.asked = None;
        turn.next = match std::mem::take(&mut turn.is_old) {
            true => None,
            false => Some(self.begun + until_next(cost, self.every, self.is_good)),
        };
        drop(turn);
        // Also for readers who came between the answer and this.
        self.slot.seen.send_modify(|seen| {
            if !self.is_answered {
                seen.error = Some("The question to the store has panicked".to_owned());
            }
        });
    }
}

/// The time from the beginning of a question to that of the next one.
fn until_next(cost: Duration, every: Duration, is_good: bool) -> Duration {
    match is_good {
        true => (cost * PAUSE_PER_COST)
            .min(LONGEST_PAUSE)
            .max(every)
            .max(cost),
        // The end of an outage is told soon, however long the question had to wait.
        false => cost + every,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks guard is whole after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn turns() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(2))
    }

    #[tokio::test]
    async fn many_readers_ask_once() {
        let (asked, turns) = (Arc::new(AtomicUsize::new(0)), turns());
        let slots: Snapshots<(), usize> = Snapshots::default();
        let read = || {
            let asked = Arc::clone(&asked);
            slots.get((), &turns, async move || {
                Ok(asked.fetch_add(1, Ordering::Relaxed))
            })
        };
        let all = futures_util::future::join_all((0..100).map(|_| read())).await;
        assert!(
            all.iter()
                .all(|seen| seen.get() == Some(&0) && seen.error.is_none())
        );
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_store_is_told_and_asked_once() {
        let (asked, turns) = (Arc::new(AtomicUsize::new(0)), turns());
        let slots: Snapshots<(), ()> = Snapshots::default();
        for _ in 0..3 {
            let asked = Arc::clone(&asked);
            let read = slots.get((), &turns, async move || {
                asked.fetch_add(1, Ordering::Relaxed);
                std::future::pending().await
            });
            // A request that is dropped at once asks no further question.
            drop(timeout(Duration::from_millis(1), read).await);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_last_answer_stays_beside_an_error_and_a_panic_ends_the_turn() {
        let turns = turns();
        let slots: Snapshots<(), u8> = Snapshots::every(Duration::ZERO);
        let read = async |result: Result<u8, &'static str>| {
            let ask = async move || result.map_err(str::to_owned);
            let seen = slots.get((), &turns, ask).await;
            (seen.get().copied(), seen.error)
        };
        assert_eq!(read(Ok(1)).await, (Some(1), None));
        let panicked = async || {
            let panics = slots.get((), &turns, async || panic!("on purpose"));
            let seen = panics.await;
            assert_eq!(seen.get(), Some(&1));
            seen.error.is_some_and(|error| error.contains("panicked"))
        };
        // The turn of the question before may not have ended.
        while !panicked().await {
            tokio::task::yield_now().await;
        }
        // The pause after the panic is as short as it was.
        let wait = async |what: (Option<u8>, Option<String>), next: Result<u8, &'static str>| {
            while read(next).await != what {
                tokio::task::yield_now().await;
            }
        };
        wait((Some(1), Some("down".to_owned())), Err("down")).await;
        wait((Some(2), None), Ok(2)).await;
    }

    #[tokio::test]
    async fn what_was_changed_is_asked_for_at_once() {
        let turns = turns();
        let slots: Snapshots<(), u8> = Snapshots::every(Duration::from_secs(3_600));
        let read = async |answer: u8| {
            let seen = slots.get((), &turns, async move || Ok(answer)).await;
            seen.get().copied()
        };
        assert_eq!(read(1).await, Some(1));
        assert_eq!(read(2).await, Some(1));
        slots.renew();
        assert_eq!(read(3).await, Some(3));
        // A change while a question is under way: its answer is old at once.
        slots.renew();
        let (answer, answered) = tokio::sync::oneshot::channel();
        let old = slots.get((), &turns, async move || Ok(answered.await.unwrap()));
        let change = async {
            slots.renew();
            answer.send(4).unwrap();
        };
        let (old, ()) = futures_util::future::join(old, change).await;
        assert_eq!(old.get(), Some(&4));
        while read(5).await != Some(5) {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_slow_store_has_long_pauses_and_the_end_of_an_outage_is_told_soon() {
        let ms = Duration::from_millis;
        let of = |cost, is_good| until_next(ms(cost), EVERY, is_good);
        assert_eq!((of(0, true), of(30, true)), (EVERY, EVERY));
        assert_eq!((of(80, true), of(600, true)), (ms(4_000), LONGEST_PAUSE));
        assert_eq!(of(600_000, true), ms(600_000));
        assert_eq!((of(0, false), of(10_000, false)), (EVERY, ms(11_500)));
    }

    #[tokio::test]
    async fn slots_are_bounded() {
        let turns = turns();
        let slots: Snapshots<usize, usize> = Snapshots::default();
        for key in 0..5_000 {
            let seen = slots.get(key, &turns, async move || Ok(key)).await;
            assert_eq!(seen.get(), Some(&key));
            assert!(lock(&slots.slots).len() <= SLOTS);
        }
    }
}
