//! A connection of its own that listens to a channel.
//!
//! It has a thread, and a runtime on it. The connection is opened again when it was lost, after
//! pauses that grow. A connection that only listens would not notice that the server is gone. So a
//! call without an effect checks it at intervals: see [`CHECK`].

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use crate::connector::Connector;
use crate::error::PostgresError;
use crate::failure::message;
use crate::link::Link;
use crate::session::Session;
use crate::sync::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crate::sync::{Arc, catch_panic, thread};

/// The pause between two checks of the connection, in limits of a statement.
const CHECK: u32 = 3;

/// The pause after the first failure. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// An event of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Heard<'a> {
    /// Notifications arrive from now on, and the first ones perhaps shortly before this. Earlier
    /// ones may have been lost.
    Open,
    /// The payload of a notification.
    Notified(&'a str),
    /// The connection was lost, or could not be opened, for this reason. No notification arrives
    /// until [`Heard::Open`] follows.
    Lost(&'a PostgresError),
}

/// Keeps a listener of a channel alive. The drop ends the listener, and does not block.
#[must_use = "nobody listens any more when this is dropped"]
pub struct Listening {
    // The thread notices the drop by the first one in futures, and by the second one in pauses.
    ends: Option<(oneshot::Sender<Infallible>, Sender<Infallible>)>,
    connector: Connector,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.connector.is_elsewhere() {
            // The thread is not in this copy of the process, and may hold a lock of the channels.
            std::mem::forget(self.ends.take());
        }
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

/// The data of a listener's thread.
struct Channel {
    connector: Connector,
    name: String,
    /// The limit of a statement.
    limit: Duration,
    heard: Box<dyn Fn(Heard<'_>) + Send + Sync>,
}

impl Connector {
    /// Listens to a channel on a connection of its own, until the result is dropped. `heard` is
    /// called on a thread of that connection, and must not block.
    ///
    /// A connection that was lost is opened again, after pauses that grow to 10 s. An open
    /// connection is checked at intervals of three times `limit`. The server has the time `limit`
    /// for a statement: at least 10 ms and at most a day.
    ///
    /// # Errors
    ///
    /// - [`PostgresError::Refused`] if no channel can have this name. A name has 1 to 63 bytes, and
    ///   none of them is zero.
    /// - [`PostgresError::Unavailable`] if the thread can't be started. A later call may succeed.
    /// - [`PostgresError::Forked`] in a forked copy of the process.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use tourbillon_postgres::{Connector, Heard, Listening, PostgresError};
    ///
    /// fn listen(connector: &Connector) -> Result<Listening, PostgresError> {
    ///     connector.listen("shop_locks", Duration::from_secs(5), |heard| match heard {
    ///         Heard::Open => println!("whoever waits asks once"),
    ///         Heard::Notified(name) => println!("{name} is free"),
    ///         Heard::Lost(why) => println!("whoever waits asks again and again: {why}"),
    ///         _ => {}
    ///     })
    /// }
    /// ```
    pub fn listen(
        &self,
        channel: &str,
        limit: Duration,
        heard: impl Fn(Heard<'_>) + Send + Sync + 'static,
    ) -> Result<Listening, PostgresError> {
        if self.is_elsewhere() {
            return Err(PostgresError::Forked);
        }
        check_name(channel)?;
        let channel = Channel {
            connector: self.clone(),
            name: channel.to_owned(),
            limit: Session::limit(limit),
            heard: Box::new(heard),
        };
        let name = self.thread_name("listen");
        start_by(|run| thread::spawn(name, run), channel)
    }
}

/// Refuses a name that no channel has. The server would cut off a name that is too long, and listen
/// to another channel.
fn check_name(channel: &str) -> Result<(), PostgresError> {
    const LONGEST_NAME: usize = 63;
    if (1..=LONGEST_NAME).contains(&channel.len()) && !channel.contains('\0') {
        return Ok(());
    }
    Err(PostgresError::Refused(format!(
        "no channel has the name {channel:?}: a name has 1 to {LONGEST_NAME} bytes, none of them zero"
    )))
}

fn start_by(
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
    channel: Channel,
) -> Result<Listening, PostgresError> {
    let (stop, stopped) = oneshot::channel();
    let (end, ended) = bounded(0);
    let connector = channel.connector.clone();
    let channel = Arc::new(channel);
    match spawn(Box::new(move || run(&channel, stopped, &ended))) {
        Ok(()) => Ok(Listening {
            ends: Some((stop, end)),
            connector,
        }),
        Err(error) => Err(PostgresError::Unavailable(format!(
            "a thread could not be started: {error}"
        ))),
    }
}

impl Channel {
    fn lost(&self, why: &PostgresError) {
        (self.heard)(Heard::Lost(why));
    }
}

/// The main function of the thread. It returns when `stopped` and `ended` are disconnected.
fn run(
    channel: &Arc<Channel>,
    stopped: oneshot::Receiver<Infallible>,
    ended: &Receiver<Infallible>,
) {
    let mut stopped = stopped.into_future();
    // In a row, by whatever they fail.
    let failures = Cell::new(0);
    let random = RandomState::new();
    loop {
        // The runtime panics if it gets no thread for the search for a host's address.
        let listened = catch_panic(|| listen_until(channel, &failures, &mut stopped));
        let why = match listened {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("no runtime for a connection: {error}"),
            Err(panic) => format!("the connection has panicked: {panic}"),
        };
        // Perhaps it is this call which panics each time.
        let _ = catch_panic(|| channel.lost(&PostgresError::Unavailable(why)));
        let pause = pause(failures.get(), random.hash_one(failures.get()));
        if ended.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        failures.update(|failures: u32| failures.saturating_add(1));
    }
}

/// Listens until `stopped` is disconnected.
fn listen_until(
    channel: &Arc<Channel>,
    failures: &Cell<u32>,
    stopped: &mut (impl Future<Output = Result<Infallible, oneshot::RecvError>> + Unpin),
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut subscription = pin!(listen(channel, failures));
        std::future::poll_fn(|context| match Pin::new(&mut *stopped).poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => subscription
                .as_mut()
                .poll(context)
                .map(|never| match never {}),
        })
        .await;
    });
    // A search for the address of a host may still go on. Nothing waits for it.
    runtime.shutdown_background();
    Ok(())
}

async fn listen(channel: &Arc<Channel>, failures: &Cell<u32>) -> Infallible {
    let random = RandomState::new();
    loop {
        let error = hold(channel, || failures.set(0)).await;
        channel.lost(&error);
        sleep(pause(failures.get(), random.hash_one(failures.get()))).await;
        failures.update(|failures| failures.saturating_add(1));
    }
}

/// Returns the pause after this number of failures in a row. `random` shortens it by up to a half,
/// so that many processes do not come back to a server at one moment.
fn pause(failures: u32, random: u64) -> Duration {
    let longest = FIRST_PAUSE
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_PAUSE);
    let half = longest / 2;
    half + half.mul_f64((random % 1_000) as f64 / 1_000.0)
}

/// Listens on one connection until it ends, and returns the reason. Calls `is_open` when it
/// listens.
async fn hold(channel: &Arc<Channel>, is_open: impl FnOnce()) -> PostgresError {
    let limit = channel.limit.saturating_add(Link::GRACE);
    let by_driver = Arc::clone(channel);
    let notified = move |name: &str, payload: &str| {
        if *name == *by_driver.name {
            (by_driver.heard)(Heard::Notified(payload));
        }
    };
    let session = Session::new([("statement_timeout", Session::millis(channel.limit))]);
    let begin = format!("listen \"{}\"", channel.name.replace('"', "\"\""));
    let connect = channel.connector.open(&session, &begin, notified);
    let (client, mut task) = match connect.await {
        Ok(connected) => connected,
        Err(error) => return error,
    };
    is_open();
    // Only transactions that commit after the `listen` notify this connection. So earlier
    // notifications may have been missed.
    (channel.heard)(Heard::Open);
    loop {
        match timeout(channel.limit.saturating_mul(CHECK), &mut task).await {
            Ok(Ok(Err(error))) => return PostgresError::Unavailable(message(&error)),
            Ok(_) => return PostgresError::Unavailable("the connection has ended".to_owned()),
            Err(_) => match timeout(limit, client.batch_execute("")).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return PostgresError::Unavailable(message(&error)),
                Err(_) => {
                    return PostgresError::Unavailable(format!("no answer within {limit:?}"));
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread::park_timeout;

    use super::*;
    use crate::caller::TEST;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn channel(
        port: u16,
        limit: Duration,
        heard: impl Fn(Heard<'_>) + Send + Sync + 'static,
    ) -> Channel {
        let url = format!("postgres://x@127.0.0.1:{port}/x?connect_timeout=3600");
        let connector = Connector::builder(&url, TEST).expect("a URL").build();
        Channel {
            connector: connector.expect("a host"),
            name: "bell".to_owned(),
            limit,
            heard: Box::new(heard),
        }
    }

    fn start(channel: Channel) -> Result<Listening, PostgresError> {
        let Channel {
            connector,
            name,
            limit,
            heard,
        } = channel;
        connector.listen(&name, limit, heard)
    }

    #[test]
    fn pauses_grow_to_ten_seconds() {
        let ms = Duration::from_millis;
        assert_eq!(pause(0, 0), ms(50));
        assert!(pause(0, 999) < ms(100));
        assert_eq!(pause(3, 0), ms(400));
        for failures in [7, 16, 17, u32::MAX] {
            assert_eq!(pause(failures, 1_000), LONGEST_PAUSE / 2);
            assert!(pause(failures, 999) < LONGEST_PAUSE);
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_tried_again() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let (sender, received) = mpsc::channel();
        let heard = move |heard: Heard<'_>| {
            if let Heard::Lost(error) = heard {
                let _ = sender.send(error.clone());
            }
        };
        let subscription = start(channel(port, Duration::from_secs(5), heard));
        for _ in 0..3 {
            let error = received.recv_timeout(PATIENCE).expect("it is reported");
            assert!(matches!(error, PostgresError::Unavailable(_)), "{error}");
        }
        drop(subscription);
    }

    #[test]
    fn without_a_thread_it_says_so_and_is_to_be_asked_again() {
        let refuse = |_| Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
        let channel = channel(1, Duration::from_secs(5), |_| ());
        let error = start_by(refuse, channel).expect_err("there is no thread");
        assert!(
            error.may_pass() && error.to_string().contains("thread"),
            "{error}"
        );
    }

    #[test]
    fn a_name_that_no_channel_has_is_refused() {
        for name in ["a", "a \"bell\"; drop table x", "ü", &"n".repeat(63)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "a\0b", &"n".repeat(64), &"ü".repeat(32)] {
            let Channel {
                connector,
                limit,
                heard,
                ..
            } = channel(1, PATIENCE, |_| ());
            let refused = connector.listen(name, limit, heard).expect_err(name);
            assert!(
                !refused.may_pass() && refused.to_string().contains("63 bytes"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_panic_is_lost_and_tried_again_and_an_end_does_not_wait_for_the_pause() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let (sender, received) = mpsc::channel();
        // As the runtime panics if it gets no thread: within the connection, and not in the report
        // of the panic.
        let heard = move |heard: Heard<'_>| match heard {
            Heard::Lost(error) if !error.to_string().contains("panicked") => {
                panic!("no thread")
            }
            heard => drop(sender.send(format!("{heard:?}"))),
        };
        let subscription = start(channel(port, Duration::from_secs(5), heard));
        for _ in 0..3 {
            let lost = received.recv_timeout(PATIENCE).expect("it is reported");
            assert!(lost.contains("no thread"), "{lost}");
        }
        drop(subscription);
        let start = std::time::Instant::now();
        while received.recv_timeout(PATIENCE).is_ok() {}
        assert!(start.elapsed() < PATIENCE, "the thread goes on");
    }

    #[test]
    fn reports_that_panic_each_time_end_nothing() {
        let (sender, received) = mpsc::channel();
        let heard = move |_: Heard<'_>| {
            let _ = sender.send(());
            panic!("on purpose");
        };
        let _subscription = start(channel(1, Duration::from_secs(5), heard));
        for _ in 0..6 {
            received.recv_timeout(PATIENCE).expect("it is tried again");
        }
    }

    #[test]
    fn an_end_waits_for_no_server() {
        // It accepts connections and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let alive = Arc::new(());
        let witness = Arc::downgrade(&alive);
        let heard = move |heard: Heard<'_>| panic!("{heard:?} {alive:?}");
        let subscription = start(channel(port, 60 * PATIENCE, heard));
        let _client = silent.accept().expect("it connects");
        assert!(witness.upgrade().is_some());
        drop(subscription);
        let start = std::time::Instant::now();
        while witness.upgrade().is_some() {
            assert!(start.elapsed() < PATIENCE, "the thread goes on");
            park_timeout(Duration::from_millis(1));
        }
    }
}
