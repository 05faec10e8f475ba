//! Running user code that may panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs user code and catches its panic, whose message is the error. The payload of the panic is user
/// code's too, and its `Drop` may panic in turn, so it is dropped under another guard.
pub(crate) fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let message = message_of(payload.as_ref());
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // A payload whose drop panics with another such payload could go on without end.
            std::mem::forget(again);
        }
        message
    })
}

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
