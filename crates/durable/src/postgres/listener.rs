//! The doorbell: a connection of its own that listens to the announcements of near timers.
//!
//! It has a thread, and a runtime on it. The connection is opened again when it was lost, after
//! pauses that grow. It asks for nothing, so an end of the server without a word would go
//! unnoticed. After each [`CHECK`] limits of a statement, a call without an effect finds out.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use super::failure::message;
use super::link::{GRACE, Settings};
use super::session::Session;
use crate::store::{Notification, NotificationListener, StoreError, Subscription};
use crate::sync::channel::{Receiver, RecvTimeoutError, bounded};
use crate::sync::{Arc, catch_panic, thread};

/// How long the connection may be silent before it is checked, in limits of a statement.
const CHECK: u32 = 3;

/// The pause after the first failure. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Listens until the result is dropped. Without a thread it is to be asked again.
pub(super) fn start(
    settings: &Arc<Settings>,
    listener: NotificationListener,
) -> Option<Subscription> {
    start_by(|run| thread::spawn("listen", run), settings, listener)
}

fn start_by<T>(
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<T>,
    settings: &Arc<Settings>,
    listener: NotificationListener,
) -> Option<Subscription> {
    // For futures, and for pauses of the thread.
    let (stop, stopped) = oneshot::channel();
    let (end, ended) = bounded(0);
    let settings = Arc::clone(settings);
    let listener = Arc::new(listener);
    let by_thread = Arc::clone(&listener);
    match spawn(Box::new(move || {
        run(&settings, &by_thread, stopped, &ended);
    })) {
        Ok(_) => Some(Subscription::new(move || drop((stop, end)))),
        Err(error) => {
            let why = format!("a thread could not be started: {error}");
            listener(Notification::Lost(&StoreError::Unavailable(why)));
            None
        }
    }
}

/// The work of the thread. It ends when `stopped` and `ended` are disconnected.
fn run(
    settings: &Settings,
    listener: &Arc<NotificationListener>,
    stopped: oneshot::Receiver<Infallible>,
    ended: &Receiver<Infallible>,
) {
    let mut stopped = stopped.into_future();
    let mut failures = 0;
    let random = RandomState::new();
    loop {
        // The runtime panics where it needs a thread for the address of a host and gets none.
        let listened = catch_panic(|| listen_until(settings, listener, &mut stopped));
        let why = match listened {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("no runtime for a connection: {error}"),
            Err(panic) => format!("the connection has panicked: {panic}"),
        };
        listener(Notification::Lost(&StoreError::Unavailable(why)));
        let pause = pause(failures, random.hash_one(failures));
        if ended.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        failures = failures.saturating_add(1);
    }
}

/// Listens until `stopped` is disconnected.
fn listen_until(
    settings: &Settings,
    listener: &Arc<NotificationListener>,
    stopped: &mut (impl Future<Output = Result<Infallible, oneshot::RecvError>> + Unpin),
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut subscription = pin!(listen(settings, listener));
        std::future::poll_fn(|context| match Pin::new(&mut *stopped).poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => subscription
                .as_mut()
                .poll(context)
                .map(|never| match never {}),
        })
        .await;
    });
    // The search for the address of a host may still go on. Nobody waits for it.
    runtime.shutdown_background();
    Ok(())
}

async fn listen(settings: &Settings, listener: &Arc<NotificationListener>) -> Infallible {
    let random = RandomState::new();
    let mut failures = 0_u32;
    loop {
        let error = hold(settings, listener, || failures = 0).await;
        listener(Notification::Lost(&error));
        sleep(pause(failures, random.hash_one(failures))).await;
        failures = failures.saturating_add(1);
    }
}

/// The pause after this number of failures in a row: between a half and the whole of it by
/// `random`, so that many processes do not come back to a server at one moment.
fn pause(failures: u32, random: u64) -> Duration {
    let longest = FIRST_PAUSE
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_PAUSE);
    let half = longest / 2;
    half + half.mul_f64((random % 1_000) as f64 / 1_000.0)
}

/// Listens by one connection until it ends, and returns why. Calls `is_open` when it listens.
async fn hold(
    settings: &Settings,
    listener: &Arc<NotificationListener>,
    is_open: impl FnOnce(),
) -> StoreError {
    let limit = settings.statement_limit + GRACE;
    let by_thread = Arc::clone(listener);
    // The functions of a schema notify the channel of its name.
    let ours = settings.schema.name().to_owned();
    let notified = move |channel: &str, payload: &str| {
        if *channel == *ours {
            by_thread(Notification::Ring(payload));
        }
    };
    let limited = settings.statement_limit.as_millis().to_string();
    let session = Session::new([("statement_timeout", limited)]);
    let begin = format!("listen \"{}\"", settings.schema.name());
    let connect = settings.hosts.connect(&session, &begin, notified);
    let (client, mut task) = match connect.await {
        Ok(connected) => connected,
        Err(error) => return error,
    };
    is_open();
    // Notifications are those of transactions that commit after the server has begun to listen. So
    // what was scheduled before may have been missed.
    listener(Notification::Open);
    loop {
        match timeout(settings.statement_limit * CHECK, &mut task).await {
            Ok(Ok(Err(error))) => return StoreError::Unavailable(message(&error)),
            Ok(_) => return StoreError::Unavailable("the connection has ended".to_owned()),
            Err(_) => match timeout(limit, client.batch_execute("")).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return StoreError::Unavailable(message(&error)),
                Err(_) => {
                    return StoreError::Unavailable(format!("no answer within {limit:?}"));
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

    use super::super::hosts::Hosts;
    use super::super::password::Passwords;
    use super::super::schema::Schema;
    use super::super::security::Security;
    use super::*;
    use crate::store::Beats;
    use crate::sync::{OnceLock, Origin};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn settings(port: u16, statement_limit: Duration) -> Arc<Settings> {
        let url = format!("postgres://x@127.0.0.1:{port}/x?connect_timeout=3600");
        let config = url.parse().expect("a URL");
        Arc::new(Settings {
            origin: Origin::here(),
            hosts: Hosts::new(&config, Security::none(), Passwords::OfUrl).expect("a host"),
            schema: Schema::default(),
            identity: OnceLock::new(),
            beats: Beats::new(Duration::ZERO),
            statement_limit,
            lock_limit: statement_limit,
            scan_limit: statement_limit,
            notify: false,
            listen: true,
            create_tables: true,
        })
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
        let listener = move |notification: Notification<'_>| {
            if let Notification::Lost(error) = notification {
                let _ = sender.send(error.clone());
            }
        };
        let subscription = start(&settings(port, Duration::from_secs(5)), Box::new(listener));
        for _ in 0..3 {
            let error = received.recv_timeout(PATIENCE).expect("it is reported");
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        }
        drop(subscription);
    }

    #[test]
    fn without_a_thread_it_says_so_and_is_to_be_asked_again() {
        let (sender, received) = mpsc::channel();
        let listener = move |notification: Notification<'_>| {
            if let Notification::Lost(error) = notification {
                let _ = sender.send(error.clone());
            }
        };
        let refuse = |_| Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
        let settings = settings(1, Duration::from_secs(5));
        assert!(start_by(refuse, &settings, Box::new(listener)).is_none());
        let error = received.recv().expect("it is reported");
        assert!(error.to_string().contains("thread"), "{error}");
    }

    #[test]
    fn a_panic_is_lost_and_tried_again_and_an_end_does_not_wait_for_the_pause() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let (sender, received) = mpsc::channel();
        // As the runtime does where it gets no thread: within the connection, and not in the report
        // of that.
        let listener = move |notification: Notification<'_>| match notification {
            Notification::Lost(error) if !error.to_string().contains("panicked") => {
                panic!("no thread")
            }
            notification => drop(sender.send(format!("{notification:?}"))),
        };
        let subscription = start(&settings(port, Duration::from_secs(5)), Box::new(listener));
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
    fn an_end_waits_for_no_server() {
        // It accepts connections and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let alive = Arc::new(());
        let witness = Arc::downgrade(&alive);
        let listener = move |notification: Notification<'_>| panic!("{notification:?} {alive:?}");
        let subscription = start(&settings(port, 60 * PATIENCE), Box::new(listener));
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
