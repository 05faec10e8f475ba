//! Timers that repeat.

mod calls;
mod missed;
mod rounds;
