//! The notifications of a doorbell, and the end of a subscription to them.

use std::fmt;

use super::StoreError;

/// The listener of a [doorbell](super::Store::listen). It must not block.
pub type NotificationListener = Box<dyn Fn(Notification<'_>) + Send + Sync>;

/// A message to the listener of a [doorbell](super::Store::listen).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notification<'a> {
    /// Rings are heard from now on. Those before may have been lost, so the node polls all
    /// queues.
    Open,
    /// A timer of this queue may be due soon.
    Ring(&'a str),
    /// No ring is heard, for this reason, until [`Notification::Open`] follows.
    Lost(&'a StoreError),
}

/// Somebody listens to a [doorbell](super::Store::listen) until this is dropped.
#[must_use = "nobody listens any more when this is dropped"]
pub struct Subscription(Option<Box<dyn FnOnce() + Send>>);

impl Subscription {
    /// Calls `stop` when this is dropped. It must not block.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::store::Subscription;
    ///
    /// let (sender, receiver) = std::sync::mpsc::channel::<()>();
    /// let subscription = Subscription::new(move || drop(sender));
    /// drop(subscription);
    /// assert!(receiver.recv().is_err());
    /// ```
    pub fn new(stop: impl FnOnce() + Send + 'static) -> Self {
        Subscription(Some(Box::new(stop)))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(stop) = self.0.take() {
            stop();
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}
