//! Handlers of all types in one form.

use std::fmt;

use serde::de::DeserializeOwned;

use super::due::Due;
use super::ending::IntoEnding;
use super::task::{End, Task, within};
use crate::sync::Arc;

/// The handler of one queue, without the type of its payload.
#[derive(Clone)]
pub(crate) enum Handler {
    /// A closure, which runs on the pool.
    Closure(Arc<dyn Fn(Task) + Send + Sync>),
    /// A future, which runs on a runtime of the user's.
    #[cfg(feature = "tokio")]
    Future(
        tokio::runtime::Handle,
        Arc<dyn Fn(Task) -> Started + Send + Sync>,
    ),
}

/// A future that runs a handler to its end.
#[cfg(feature = "tokio")]
pub(crate) type Started = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Handler {
    pub(crate) fn closure<T, F, R>(handler: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(&Due<T>) -> R + Send + Sync + 'static,
        R: IntoEnding,
    {
        Handler::Closure(Arc::new(move |task| {
            let Some((due, running)) = task.begin::<T>() else {
                return;
            };
            // The drop of the payload and the text of the error are the user's code, too.
            let end = within(&running, || {
                let result = handler(&due).into_ending();
                drop(due);
                End::of(result)
            });
            running.end(end.unwrap_or_else(End::Panicked));
        }))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn future<T, F, U, R>(runtime: tokio::runtime::Handle, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Due<T>) -> U + Send + Sync + 'static,
        U: Future<Output = R> + Send + 'static,
        R: IntoEnding,
    {
        let handler = Arc::new(handler);
        let start = move |task: Task| -> Started {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                let Some((due, running)) = task.begin::<T>() else {
                    return;
                };
                let end = futures::run(&running, || handler(due)).await;
                running.end(end);
            })
        };
        Handler::Future(runtime, Arc::new(start))
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Handler::Closure(_) => "Closure(..)",
            #[cfg(feature = "tokio")]
            Handler::Future(..) => "Future(..)",
        })
    }
}

#[cfg(feature = "tokio")]
mod futures {
    //! Handlers that are futures, whose panics are caught at each poll.

    use std::future::poll_fn;
    use std::task::Poll;

    use super::super::ending::IntoEnding;
    use super::super::task::{End, Running, within};
    use crate::sync::catch_panic;

    /// Makes a future and polls it to its end.
    pub(super) async fn run<U>(running: &Running, make: impl FnOnce() -> U) -> End
    where
        U: Future,
        U::Output: IntoEnding,
    {
        let mut future = match within(running, || Box::pin(make())) {
            Ok(future) => Some(future),
            Err(message) => return End::Panicked(message),
        };
        let end = poll_fn(|context| {
            let Some(polled) = &mut future else {
                return Poll::Pending;
            };
            let polled = within(running, || {
                polled
                    .as_mut()
                    .poll(context)
                    .map(|output| End::of(output.into_ending()))
            });
            polled.unwrap_or_else(|message| Poll::Ready(End::Panicked(message)))
        })
        .await;
        match catch_panic(move || drop(future.take())) {
            Ok(()) => end,
            Err(message) => End::Panicked(message),
        }
    }
}
