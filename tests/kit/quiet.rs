//! Panics that a test causes on purpose, without their reports on stderr.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The text that panics on purpose contain.
pub const WANTED: &str = "wanted";

/// A panic payload that panics when it is dropped.
#[derive(Debug)]
pub struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("{WANTED}: in the drop of a panic");
    }
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref().copied())
        .unwrap_or_default()
}

/// Whether a test caused this panic on purpose.
fn is_wanted(payload: &(dyn Any + Send)) -> bool {
    let text = text(payload);
    payload.is::<Bomb>() || text.contains(WANTED) || text.contains("called the scheduler")
}

/// Silences the reports of panics on purpose, from now on and in the whole process. All other
/// panics are reported as before.
pub fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !is_wanted(info.payload()) {
                report(info);
            }
        }));
    });
}

/// Calls a closure that must panic. Returns the text of the panic.
#[track_caller]
pub fn panics<R>(call: impl FnOnce() -> R) -> String {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(_) => panic!("a panic was expected"),
        Err(payload) => text(payload.as_ref()).to_owned(),
    }
}
