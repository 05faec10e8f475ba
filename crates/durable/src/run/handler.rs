//! Handlers of all types in one form.

use std::fmt;

use serde::de::DeserializeOwned;

use super::due::Due;
use super::end::End;
use super::ending::IntoEnding;
use super::task::Task;
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
            let Some((due, mut running)) = task.begin::<T>() else {
                return;
            };
            let mut due = Some(due);
            // The drop of the payload and the text of the error are the user's code, too.
            let end = running.step(&mut || {
                let due = due.take()?;
                let result = handler(&due).into_ending();
                drop(due);
                Some(End::of(result))
            });
            // After the panic of a layer the payload is still there.
            if let Some(end) = end {
                running.end(end.after_drop(due));
            }
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
                let Some((due, mut running)) = task.begin::<T>() else {
                    return;
                };
                let end = futures::run(&mut running, || handler(due)).await;
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

    use super::super::end::End;
    use super::super::ending::IntoEnding;
    use super::super::task::Running;

    /// Makes a future and polls it to its end. It is made in the first step, and dropped in the
    /// last one, so layers are around all of it.
    pub(super) async fn run<U>(running: &mut Running, make: impl FnOnce() -> U) -> End
    where
        U: Future,
        U::Output: IntoEnding,
    {
        let mut make = Some(make);
        let mut future = None;
        let end = poll_fn(|context| {
            let end = running.step(&mut || {
                if let Some(make) = make.take() {
                    future = Some(Box::pin(make()));
                }
                let polled = future.as_mut()?.as_mut().poll(context);
                let Poll::Ready(output) = polled else {
                    return None;
                };
                let end = End::of(output.into_ending());
                future = None;
                Some(end)
            });
            match end {
                Some(end) => Poll::Ready(end),
                None => Poll::Pending,
            }
        })
        .await;
        // After a panic they are still there.
        end.after_drop((future, make))
    }
}
