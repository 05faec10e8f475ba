//! The expired entries of a map as a stream.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::Expired;
use crate::bounded_channel::BoundedReceiver;
use crate::coop::YieldPoint;

/// A stream of the expired entries of an [`ExpiryMap`](crate::ExpiryMap). It ends when the map has
/// ended and everything sent was received.
///
/// Made by [`build_stream`](crate::ExpiryMapBuilder::build_stream); needs the feature `stream`, and
/// no particular runtime. A poll allocates nothing.
///
/// When the stream is dropped, the map stays open. Entries that expire are dropped and counted; see
/// [`on_receiver_lost`](crate::ExpiryMapBuilder::on_receiver_lost) and
/// [`when_receiver_lost`](crate::ExpiryMapBuilder::when_receiver_lost).
///
/// # Examples
///
/// ```
/// use std::pin::pin;
/// use std::time::Duration;
/// use tokio_stream::StreamExt;
/// use tourbillon::ExpiryMap;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let (tokens, mut expired) = ExpiryMap::<u64, &str>::builder()
///     .time_to_live(Duration::from_millis(20))
///     .build_stream(64)?;
/// tokens.insert(7, "token")?;
/// let gone = expired.next().await.expect("the map lives");
/// assert_eq!((gone.key, gone.value), (7, "token"));
/// # Ok(())
/// # })
/// # }
/// ```
#[must_use = "entries that expire when it has been dropped are lost"]
pub struct Expirations<K, V> {
    receiver: BoundedReceiver<Expired<K, V>>,
    yield_point: YieldPoint,
}

impl<K, V> Expirations<K, V> {
    pub(crate) fn new(receiver: BoundedReceiver<Expired<K, V>>) -> Self {
        Expirations {
            receiver,
            yield_point: YieldPoint::default(),
        }
    }
}

// The receiver is moved, never pinned.
impl<K, V> Unpin for Expirations<K, V> {}

impl<K, V> Stream for Expirations<K, V> {
    type Item = Expired<K, V>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let poll = |context: &mut Context<'_>| this.receiver.poll(context);
        this.yield_point.poll(context, poll)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.receiver.len(), None)
    }
}

impl<K, V> fmt::Debug for Expirations<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expirations")
            .field("waiting", &self.receiver.len())
            .finish_non_exhaustive()
    }
}
