//! Timers that repeat.

mod calls;
mod missed;
mod rounds;
mod run_now;
