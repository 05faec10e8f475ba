//! What a connection has received, and what it awaits.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use redis::aio::AsyncStream;
use redis::{ServerError, Value, parse_redis_value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::remote::Limit;
use crate::sync::{Arc, Mutex};

/// A shorter silence does not show that a connection is dead. A call may have a limit below this.
const LEAST_SILENCE: Duration = Duration::from_millis(20);
/// The greatest length of an error that a server sends before it closes a new connection.
const LONGEST_REFUSAL: usize = 512;

/// When bytes were last received on a connection, for any call, and since when calls await an answer.
pub(super) struct Received(Mutex<ReceivedState>);

struct ReceivedState {
    at: Instant,
    /// When the first call was sent after that.
    since: Option<Instant>,
    /// The first limit of the calls that were sent after that.
    until: Option<Limit>,
    refusal: Refusal,
}

/// Why the server refuses a connection.
enum Refusal {
    /// Nothing was received yet.
    Unknown,
    /// All that was received: the beginning of a line that is an error.
    Line(Vec<u8>),
    /// An error of TLS.
    #[cfg(feature = "redis-tls")]
    Tls(String),
    None,
}

impl ReceivedState {
    /// Whether something is awaited since long enough ago.
    fn waits(&self) -> bool {
        let long_ago = |since: Instant| since.elapsed() >= LEAST_SILENCE;
        self.since.is_some_and(long_ago)
    }
}

impl Received {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Received(Mutex::new(ReceivedState {
            at: Instant::now(),
            since: None,
            until: None,
            refusal: Refusal::Unknown,
        })))
    }

    /// Notes that a call is sent.
    pub(super) fn awaits(&self, limit: Limit) {
        let mut state = self.0.lock();
        state.since.get_or_insert_with(Instant::now);
        state.until = Some(state.until.map_or(limit, |until| until.min(limit)));
    }

    /// Returns whether nothing was received since this time, although something was awaited.
    pub(super) fn nothing_since(&self, sent: Instant) -> bool {
        let state = self.0.lock();
        state.at <= sent && state.waits()
    }

    /// Returns whether the limit of a call has come, and nothing was received since it was sent.
    pub(super) fn is_silent(&self) -> bool {
        let state = self.0.lock();
        state.until.is_some_and(Limit::is_near) && state.waits()
    }

    fn reads(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.0.lock();
        state.at = Instant::now();
        (state.since, state.until) = (None, None);
        let before = std::mem::replace(&mut state.refusal, Refusal::None);
        let mut line = match before {
            Refusal::Unknown if bytes.starts_with(b"-") => Vec::new(),
            Refusal::Line(line) if !line.ends_with(b"\n") => line,
            _ => return,
        };
        line.extend_from_slice(bytes);
        if line.len() <= LONGEST_REFUSAL {
            state.refusal = Refusal::Line(line);
        }
    }

    /// Returns the error that the server sent before it closed the connection, if it sent nothing else.
    /// It has too many clients, or accepts none from other machines. The crate `redis` does not report
    /// this error to a batch, nor to a call that was not sent yet.
    pub(super) fn refusal(&self) -> Option<ServerError> {
        let state = self.0.lock();
        let Refusal::Line(line) = &state.refusal else {
            return None;
        };
        match parse_redis_value(line) {
            // Other errors are answers to calls.
            Ok(Value::ServerError(error)) if ["ERR", "DENIED"].contains(&error.code()) => {
                Some(error)
            }
            _ => None,
        }
    }

    /// Returns why TLS refused the connection after the handshake.
    #[cfg(feature = "redis-tls")]
    pub(super) fn tls_refusal(&self) -> Option<String> {
        match &self.0.lock().refusal {
            Refusal::Tls(why) => Some(why.clone()),
            _ => None,
        }
    }
}

/// The bytes of a connection.
pub(super) type Bytes = Pin<Box<dyn AsyncStream + Send + Sync>>;

/// A stream that notes what it receives.
pub(super) struct Watched {
    bytes: Bytes,
    received: Arc<Received>,
}

impl Watched {
    pub(super) fn new(bytes: Bytes, received: Arc<Received>) -> Self {
        Watched { bytes, received }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let read = self.bytes.as_mut().poll_read(context, to);
        match &read {
            Poll::Ready(Ok(())) => self.received.reads(&to.filled()[before..]),
            #[cfg(feature = "redis-tls")]
            Poll::Ready(Err(error)) => {
                if let Some(why) = super::tls::refusal(error) {
                    self.received.0.lock().refusal = Refusal::Tls(why);
                }
            }
            _ => {}
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bytes.as_mut().poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes.as_mut().poll_shutdown(context)
    }
}
