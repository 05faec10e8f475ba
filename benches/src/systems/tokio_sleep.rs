//! tokio's own `sleep`, on the timer of the runtime that the tasks are on.

use std::time::Duration;

use super::Sleeps;

pub(crate) struct Sleep;

impl Sleeps for Sleep {
    const NAME: &'static str = "tokio-sleep";
    const ABOUT: &'static str = "tokio::time::sleep, on the runtime's own timer";
    const RUNTIME_WITH_TIME: bool = true;

    fn new() -> Self {
        Sleep
    }

    fn sleep(&'static self, delay: Duration) -> impl Future<Output = ()> + Send + 'static {
        tokio::time::sleep(delay)
    }
}
