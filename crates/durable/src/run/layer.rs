//! Layers around handlers, which are code of the user.

use std::fmt;
use std::marker::PhantomData;

use super::end::End;
use super::run_info::RunInfo;
use crate::sync::{Arc, catch_panic};

/// What a layer does for one run. It is called at each step of the run.
pub(crate) type RunLayer = Box<dyn FnMut(NextLayer<'_>) -> Ran<'_> + Send>;

/// Makes what a layer does for one run.
pub(crate) type Layer = Box<dyn Fn(&RunInfo) -> RunLayer + Send + Sync>;

/// The layers of all queues, the outermost one first.
pub(crate) type Layers = Arc<[Layer]>;

/// The next layer, and within the last one the handler. See
/// [`around`](crate::DurableBuilder::around).
///
/// It is for one step of a run: a call of a handler that is a closure, or a poll of a handler that
/// is a future.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{NextLayer, Ran};
///
/// fn polled(next: NextLayer<'_>) -> Ran<'_> {
///     println!("in");
///     let ran = next.run();
///     println!("out");
///     ran
/// }
/// # let _ = polled;
/// ```
pub struct NextLayer<'n> {
    layers: &'n mut [RunLayer],
    handler: &'n mut dyn FnMut() -> Option<End>,
}

/// What has come of one step of a run. Only [`NextLayer::run`] makes it, so a layer can't forget the
/// handler.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{NextLayer, Ran};
///
/// fn logged(next: NextLayer<'_>) -> Ran<'_> {
///     let ran = next.run();
///     match ran.error() {
///         Some(error) => eprintln!("it failed: {error}"),
///         None if ran.is_ended() => println!("it is done"),
///         None => {} // the future waits
///     }
///     ran
/// }
/// # let _ = logged;
/// ```
#[must_use = "a layer returns it"]
pub struct Ran<'n> {
    /// `None` if the handler goes on.
    pub(super) end: Option<End>,
    /// It belongs to one `NextLayer`, whose lifetime no other one has.
    next: PhantomData<fn(&'n ()) -> &'n ()>,
}

impl<'n> NextLayer<'n> {
    /// `handler` returns `None` if it goes on.
    pub(super) fn new(
        layers: &'n mut [RunLayer],
        handler: &'n mut dyn FnMut() -> Option<End>,
    ) -> Self {
        NextLayer { layers, handler }
    }

    /// Runs this step of the run.
    ///
    /// # Panics
    ///
    /// If a layer further inside panics. A panic of the handler is caught before, and
    /// [`Ran::error`] has its message.
    pub fn run(self) -> Ran<'n> {
        match self.layers.split_first_mut() {
            Some((layer, layers)) => layer(NextLayer {
                layers,
                handler: self.handler,
            }),
            None => Ran {
                end: catch_panic(self.handler)
                    .unwrap_or_else(|message| Some(End::Panicked(message))),
                next: PhantomData,
            },
        }
    }
}

impl Ran<'_> {
    /// Whether the handler has ended. It is always true for a closure, and for a future when it has
    /// returned.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the error that the handler has ended with, or the message of its panic.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self.end.as_ref()? {
            End::Succeeded(_) => None,
            End::Failed { error, .. } => Some(error),
            End::Panicked(message) => Some(message),
        }
    }
}

impl fmt::Debug for NextLayer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextLayer")
            .field("layers", &self.layers.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Ran<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ran")
            .field("is_ended", &self.is_ended())
            .field("error", &self.error())
            .finish()
    }
}
