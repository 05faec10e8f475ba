//! Listens for releases while a caller waits for a lock.
//!
//! A store has one such task, with one connection that listens to the channel of the schema. It
//! begins with the first waiting caller, and ends when none has waited for a while. What is
//! announced while it does not listen is lost. So all waiting callers are woken when it begins.
//!
//! A pooler or a proxy may hide announcements without an error. So the task also announces something
//! to itself. While that does not come back, and without a connection, waiting callers are woken at
//! short intervals, and ask.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tourbillon_postgres::tokio_postgres::Client;

use super::failure::{of_answer, of_connection};
use super::lines::Lines;
use crate::remote::{ForkSafe, Io, Task};
use crate::store::{StoreError, WaitQueue};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, unique_number};

/// How often the task looks whether it is needed.
const SLICE: Duration = Duration::from_secs(1);
/// After this time without an announcement the task tests itself. After this time without a waiting
/// caller it ends.
const SILENCE: Duration = Duration::from_secs(5);
/// The limit of a test.
const TEST: Duration = Duration::from_secs(3);
/// How often waiting callers ask while nothing is heard.
const POLL: Duration = Duration::from_millis(100);
/// The first pause between two attempts to connect. It doubles up to the longest pause.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The callers of a store that wait, and the task that wakes them.
pub(super) struct Ear {
    /// The id of the store. Announcements begin with the id of the store that has released, and a
    /// store ignores its own.
    own: String,
    pub(super) wait_queue: WaitQueue,
    /// `None` while there is no task.
    running: Mutex<Option<ForkSafe<Task>>>,
    /// Whether announcements did not arrive, or there was no connection.
    is_deaf: AtomicBool,
    /// The number of announcements.
    heard: AtomicU64,
    /// The number of the last test that was heard.
    tested: AtomicU64,
    rings: Notify,
}

impl Ear {
    pub(super) fn new(own: String) -> Self {
        Ear {
            own,
            wait_queue: WaitQueue::default(),
            running: Mutex::new(None),
            is_deaf: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            tested: AtomicU64::new(0),
            rings: Notify::new(),
        }
    }

    /// Returns the id of this store in announcements and reservations.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    pub(super) fn is_running(&self) -> bool {
        is_running(self.running.lock().as_ref())
    }

    /// Starts the task if there is none. Call this after a caller has entered the wait queue.
    pub(super) fn listen(self: &Arc<Self>, lines: &Arc<Lines>, io: &Io) {
        let mut running = self.running.lock();
        if !is_running(running.as_ref()) {
            let (ear, lines) = (Arc::clone(self), Arc::clone(lines));
            // If no thread can be started, waiting callers find a release by asking again.
            let task = io.start(async move { ear.run(&lines).await });
            *running = task.ok().map(ForkSafe::new);
        }
    }

    /// Ends the task.
    pub(super) fn close(&self) {
        let task = self.running.lock().take();
        drop(task);
    }

    /// Decides whether the task ends. If so, the next waiting caller starts another one.
    fn ends(&self) -> bool {
        let mut running = self.running.lock();
        // A waiting caller enters the wait queue first, and takes this lock afterwards. So either
        // it is seen here, or it sees that there is no task.
        let ends = self.wait_queue.is_empty();
        if ends {
            *running = None;
        }
        ends
    }

    /// Listens until nobody waits any more, and connects again after each error.
    async fn run(self: &Arc<Self>, lines: &Lines) {
        let mut pause = PAUSE;
        loop {
            // The error is dropped: renewals and acquires meet it too, and report it.
            let ended = self
                .or_asking(self.heard_to_the_end(lines, &mut pause))
                .await;
            // Relaxed: the runtime runs one task at a time.
            self.is_deaf.store(ended.is_err(), Ordering::Relaxed);
            if ended.is_ok() {
                return;
            }
            let end = Instant::now() + pause;
            while Instant::now() < end {
                if self.ends() {
                    return;
                }
                self.wait_queue.all_may_be_free();
                sleep(POLL.min(pause)).await;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Listens. After a failure waiting callers ask until something is heard: the next attempt may
    /// take as long as the limit of a test.
    async fn or_asking<T>(&self, listening: impl Future<Output = T>) -> T {
        let mut listening = pin!(listening);
        loop {
            // Relaxed: as above.
            let is_deaf = self.is_deaf.load(Ordering::Relaxed);
            match timeout(if is_deaf { POLL } else { SLICE }, &mut listening).await {
                Ok(ended) => return ended,
                Err(_) if is_deaf => self.wait_queue.all_may_be_free(),
                Err(_) => {}
            }
        }
    }

    /// Listens by one connection until it fails or the task has to end.
    async fn heard_to_the_end(
        self: &Arc<Self>,
        lines: &Lines,
        pause: &mut Duration,
    ) -> Result<(), StoreError> {
        let channel = lines.schema().name().to_owned();
        let begin = format!("listen \"{channel}\"");
        let by_driver = Arc::clone(self);
        let of_channel = channel.clone();
        let notified = move |name: &str, text: &str| {
            if *name == *of_channel {
                by_driver.hears(text);
            }
        };
        let connect = lines.connector.open(lines.session(), &begin, notified);
        let (client, mut driven) = connect.await.map_err(of_connection)?;
        self.test(&client, &channel).await?;
        // Relaxed: as above.
        self.is_deaf.store(false, Ordering::Relaxed);
        // Releases may have been missed before.
        self.wait_queue.all_may_be_free();
        *pause = PAUSE;
        // Relaxed, here and below: the numbers are only compared.
        let mut heard = self.heard.load(Ordering::Relaxed);
        let mut last = Instant::now();
        let mut wanted = last;
        loop {
            if timeout(SLICE, &mut driven).await.is_ok() {
                let why = "the connection that listens has ended";
                return Err(StoreError::Unavailable(why.to_owned()));
            }
            // Relaxed: as above.
            let now_heard = self.heard.load(Ordering::Relaxed);
            if now_heard != heard {
                (heard, last) = (now_heard, Instant::now());
            } else if last.elapsed() >= SILENCE {
                self.test(&client, &channel).await?;
                last = Instant::now();
            }
            if !self.wait_queue.is_empty() {
                wanted = Instant::now();
            }
            if wanted.elapsed() >= SILENCE && self.ends() {
                return Ok(());
            }
        }
    }

    /// Announces something to itself, and waits until it is heard.
    async fn test(&self, client: &Client, channel: &str) -> Result<(), StoreError> {
        let number = u64::from(unique_number()) + 1;
        let announce = format!("select pg_notify('{channel}', '{}:{number}')", self.own);
        let tested = async {
            let announced = client.batch_execute(&announce).await;
            announced.map_err(of_answer)?;
            // Relaxed: the number is only compared. Any role can announce another one.
            while self.tested.load(Ordering::Relaxed) != number {
                self.rings.notified().await;
            }
            Ok(())
        };
        timeout(TEST, tested).await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(
                "announcements do not arrive: a pooler or a proxy stands before the server"
                    .to_owned(),
            ))
        })
    }

    /// Wakes a caller that waits for the released name of this announcement.
    fn hears(&self, text: &str) {
        // Relaxed, here and below: the numbers are only compared.
        self.heard.fetch_add(1, Ordering::Relaxed);
        if let Some((who, name)) = text.split_once(' ') {
            // The store that released a name has already woken one of its own callers.
            if who != self.own {
                self.wait_queue.released(name);
            }
        } else if let Some((who, number)) = text.split_once(':')
            && who == self.own
            && let Ok(number) = number.parse()
        {
            // Relaxed: as above.
            self.tested.store(number, Ordering::Relaxed);
            self.rings.notify_one();
        }
    }
}

/// A task that has panicked, or whose runtime has ended, listens no more.
fn is_running(task: Option<&ForkSafe<Task>>) -> bool {
    task.is_some_and(|task| task.get().is_ok_and(|task| !task.is_over()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn announcements_of_others_wake_and_own_ones_do_not() {
        let ear = Ear::new("7f".to_owned());
        let bell = Arc::new(Wakes::default());
        let place = ear.wait_queue.watch("a b", &Waker::from(Arc::clone(&bell)));
        for (text, rung) in [
            ("7f a b", 0),
            ("8e a", 0),
            ("7f:18446744073709551615", 0),
            ("7f:3", 0),
            ("nonsense", 0),
            ("", 0),
            ("8e:4", 0),
            ("8e a b", 1),
        ] {
            ear.hears(text);
            assert_eq!(bell.0.load(Ordering::Relaxed), rung, "{text}");
        }
        assert_eq!(ear.tested.load(Ordering::Relaxed), 3);
        assert!(!ear.ends());
        drop(place);
        assert!(ear.ends() && !ear.is_running());
    }
}
