//! Runs user code that may panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs user code and returns the message of its panic, if it panics.
///
/// The payload of the panic belongs to user code, too. Its `Drop` may panic in turn, so the payload
/// is dropped in a second `catch_unwind`.
pub(crate) fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let message = message_of(payload.as_ref());
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // The payload of this second panic could panic in its drop, too, and so on without end.
            // So it is leaked.
            std::mem::forget(again);
        }
        message
    })
}

/// Returns the text of a panic payload.
fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic whose payload is no text".to_owned()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_contained_and_its_message_kept() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        assert_eq!(
            catch_panic(|| panic!("plain")),
            Err::<(), _>("plain".to_owned())
        );
        let number = 3;
        assert_eq!(
            catch_panic(|| panic!("number {number}")),
            Err::<(), _>("number 3".to_owned())
        );
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
