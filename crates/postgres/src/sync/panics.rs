//! Runs code of users that may panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of a user, and returns the message of its panic, if it panics.
pub(crate) fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(message_of)
}

/// Returns the text of a panic's payload, and drops it.
fn message_of(payload: Box<dyn Any + Send>) -> String {
    let message = if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic whose payload is no text".to_owned()
    };
    // The payload is the user's, too, and its drop may panic.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // The drop of this one could panic as well, and so on without end. So it is leaked.
        std::mem::forget(again);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_panic_is_kept() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        assert_eq!(
            catch_panic(|| panic!("plain")),
            Err::<(), _>("plain".into())
        );
        let n = 3;
        assert_eq!(catch_panic(|| panic!("n {n}")), Err::<(), _>("n 3".into()));
    }

    #[test]
    fn a_panic_in_the_drop_of_a_panic_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in drop");
            }
        }
        assert!(catch_panic(|| std::panic::panic_any(Bomb)).is_err());
    }
}
