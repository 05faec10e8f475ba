//! Panics that a test wants, without their reports on stderr.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// What wanted panics say.
pub(crate) const WANTED: &str = "wanted";

/// A panic's payload whose drop panics.
pub(crate) struct Bomb;

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

/// Whether a panic is of those that tests provoke.
fn is_wanted(payload: &(dyn Any + Send)) -> bool {
    let text = text(payload);
    payload.is::<Bomb>() || text.contains(WANTED) || text.contains("called the scheduler")
}

/// All other panics are reported as ever.
pub(crate) fn hush() {
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

/// Calls what must panic, and returns what that said.
#[track_caller]
pub(crate) fn panics<R>(call: impl FnOnce() -> R) -> String {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(_) => panic!("a panic was expected"),
        Err(payload) => text(payload.as_ref()).to_owned(),
    }
}
