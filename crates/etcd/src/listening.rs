//! Wakes waiting callers when a name becomes free.
//!
//! While callers of the store wait, one watch on its prefix tells of each key that is deleted, whether it was released
//! or its lease has run out.
//!
//! - **ETCDWATCH-1** When a watch begins, all waiting callers are woken, and ask again. So nothing that was deleted before
//!   is missed, however long there was no watch. A watch from the revision of the refusal would not need this wake-up, but
//!   that revision may be compacted, and differs from caller to caller.
//! - **ETCDWATCH-2** While there is no watch, releases of this store wake its own callers, and all ask at intervals.
//! - **ETCDWATCH-3** While callers wait, the task runs, or one of them is about to start it. A caller that begins to wait
//!   takes a lock to look whether the task runs. The task takes the same lock to decide that it ends.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_stream::StreamExt;
use tonic::Streaming;
use tourbillon_leases::{StoreError, WaitQueue};

use crate::failure::Fault;
use crate::limit::Limit;
use crate::links::{Link, Links};
use crate::messages::{
    DELETE, NO_PUTS, WATCH, WatchCreateRequest, WatchRequest, WatchResponse, behind,
};
use crate::names::Names;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, lock};

/// The time until the server has made a watch.
const BEGINS: Duration = Duration::from_secs(5);

/// How often the task looks whether somebody still waits.
const LOOKS: Duration = Duration::from_secs(1);

/// The pause after a failure, which grows up to ten times this.
const PAUSE: Duration = Duration::from_millis(100);

/// The waiting callers of a store, and the task that wakes them.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    pub(crate) queue: WaitQueue,
    is_running: Mutex<bool>,
    hears: AtomicBool,
}

impl Ear {
    /// Returns whether the caller has to start [`listen`] now.
    pub(crate) fn has_to_start(&self) -> bool {
        !std::mem::replace(&mut *lock(&self.is_running), true)
    }

    /// The task could not be started, or has panicked.
    pub(crate) fn was_not_started(&self) {
        *lock(&self.is_running) = false;
    }

    /// The store itself has released a name.
    pub(crate) fn released(&self, name: &str) {
        // Acquire pairs with the Release in `follow`. If there is no watch, its end wakes nobody (ETCDWATCH-2).
        if !self.hears.load(Ordering::Acquire) {
            self.queue.released(name);
        }
    }

    pub(crate) fn hears(&self) -> bool {
        // Acquire, as above.
        self.hears.load(Ordering::Acquire)
    }

    /// Whether the task ends, since nobody waits (ETCDWATCH-3).
    fn ends(&self) -> bool {
        let mut is_running = lock(&self.is_running);
        if self.queue.is_empty() {
            *is_running = false;
        }
        !*is_running
    }
}

/// The running task. If it ends in another way than by [`Ear::ends`], the next caller that waits starts another one.
struct Listener {
    ear: Arc<Ear>,
    has_ended: bool,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.has_ended {
            // Release pairs with the Acquire in `released`.
            self.ear.hears.store(false, Ordering::Release);
            self.ear.was_not_started();
        }
    }
}

/// Wakes callers as long as some wait.
pub(crate) async fn listen(ear: Arc<Ear>, links: Arc<Links>, prefix: Arc<str>) {
    let mut listener = Listener {
        ear: Arc::clone(&ear),
        has_ended: false,
    };
    let mut failures = 0;
    loop {
        listener.has_ended = ear.ends();
        if listener.has_ended {
            return;
        }
        let followed = follow(&ear, &links, &prefix).await;
        // Release pairs with the Acquire in `released`.
        let heard = ear.hears.swap(false, Ordering::AcqRel);
        if followed.is_err() {
            failures = if heard { 1 } else { failures + 1 };
            sleep(PAUSE * failures.min(10)).await;
        }
    }
}

/// Follows one watch, until it fails or nobody waits.
async fn follow(ear: &Ear, links: &Arc<Links>, prefix: &str) -> Result<(), StoreError> {
    let limit = Limit::new(BEGINS);
    let link = links.link(limit).await?;
    let failed = |status| {
        link.give_up();
        StoreError::from(Fault::of(&link.server, &status))
    };
    let late = |_| {
        link.give_up();
        limit.reached("no watch")
    };
    let begins = timeout(limit.left(), begin(&link, prefix)).await;
    let mut stream = begins.map_err(late)?.map_err(failed)?;
    let first = timeout(limit.left(), stream.message()).await;
    is_watching(first.map_err(late)?.map_err(failed)?.as_ref())?;
    link.has_answered();
    // Release pairs with the Acquire in `released`. From here on the watch tells of everything (ETCDWATCH-1).
    ear.hears.store(true, Ordering::Release);
    ear.queue.all_may_be_free();
    let mut look = Instant::now() + LOOKS;
    loop {
        // Also while deletes arrive all the time.
        if Instant::now() >= look {
            if ear.queue.is_empty() {
                return Ok(());
            }
            look = Instant::now() + LOOKS;
        }
        let (message, given_up) = (pin!(stream.message()), pin!(link.until_given_up()));
        let message = match timeout_at(look, select(message, given_up)).await {
            Ok(Either::Left((message, _))) => message.map_err(failed)?,
            Ok(Either::Right(_)) => {
                let why = "etcd: the connection was given up";
                return Err(StoreError::Unavailable(why.to_owned()));
            }
            Err(_) => continue,
        };
        is_watching(message.as_ref())?;
        link.has_answered();
        for event in message.into_iter().flat_map(|message| message.events) {
            let key = event.kv.filter(|_| event.kind == DELETE).map(|kv| kv.key);
            if let Some(name) = key.as_deref().and_then(|key| Names::name_of(prefix, key)) {
                ear.queue.released(name);
            }
        }
    }
}

async fn begin(link: &Link, prefix: &str) -> Result<Streaming<WatchResponse>, tonic::Status> {
    let create = WatchCreateRequest {
        key: prefix.as_bytes().to_vec(),
        range_end: behind(prefix.as_bytes()),
        filters: vec![NO_PUTS],
    };
    let create = WatchRequest {
        create: Some(create),
    };
    // The end of the requests would be the end of the watch.
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    link.streaming(WATCH, requests).await
}

/// Whether the server still watches.
fn is_watching(message: Option<&WatchResponse>) -> Result<(), StoreError> {
    match message {
        Some(message) if !message.canceled => Ok(()),
        Some(message) => Err(StoreError::Unavailable(format!(
            "etcd has cancelled a watch: {}",
            message.cancel_reason
        ))),
        None => Err(StoreError::Unavailable("etcd has ended a watch".to_owned())),
    }
}
