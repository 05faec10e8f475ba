//! The keyed face of the engine: a closure per key.

use std::hash::BuildHasher;

use super::answers::TimerId;
use super::firing::{Firing, Task};
use super::handle::Handle;
use crate::engine::{Engine, Face, Fire};
use crate::sync::Arc;
#[cfg(any(test, feature = "test-util"))]
use crate::sync::Mutex;
use crate::tick::Time;

/// A task that panicked, as [`Builder::on_panic`](crate::Builder::on_panic) tells it.
#[derive(Debug)]
#[non_exhaustive]
pub struct TaskPanic<'a, K> {
    /// The key under which the task was scheduled.
    pub key: &'a K,
    /// When it was due.
    pub deadline: Time,
    /// The panic's message.
    pub message: &'a str,
}

pub(crate) type OnPanic<K> = Box<dyn Fn(&TaskPanic<'_, K>) + Send + Sync>;

#[cfg(any(test, feature = "test-util"))]
/// A run, as the test kit tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired<K> {
    /// The key that ran.
    pub key: K,
    /// The arming that ran.
    pub id: TimerId,
    /// When it was due.
    pub deadline: Time,
    /// When it started.
    pub at: Time,
}

/// What the keyed face needs besides the engine.
pub(crate) struct Keyed<K, S> {
    pub(crate) hasher: S,
    pub(crate) on_panic: Option<OnPanic<K>>,
    /// In a scheduler that a test steps: what has run.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) log: Option<Mutex<Vec<Fired<K>>>>,
}

impl<K, S> Face for Keyed<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Key = K;
    type Payload = Task<K, S>;
    type Access = Handle<K, S>;

    fn access(engine: &Arc<Engine<Self>>) -> Handle<K, S> {
        Handle::new(Arc::clone(engine))
    }

    fn run(handle: &Handle<K, S>, fire: &Fire<'_, K>, task: Task<K, S>) {
        let id = TimerId {
            tag: handle.engine().tag(),
            stripe: fire.stripe,
            entry: fire.id,
        };
        #[cfg(any(test, feature = "test-util"))]
        if let Some(log) = &handle.engine().face.log {
            log.lock().push(Fired {
                key: fire.key.clone(),
                id,
                deadline: fire.deadline,
                at: fire.started,
            });
        }
        task.run(&Firing {
            handle,
            key: fire.key,
            id,
            deadline: fire.deadline,
            started: fire.started,
        });
    }

    fn panicked(handle: &Handle<K, S>, fire: &Fire<'_, K>, message: &str) {
        if let Some(tell) = &handle.engine().face.on_panic {
            tell(&TaskPanic {
                key: fire.key,
                deadline: fire.deadline,
                message,
            });
        }
    }
}
