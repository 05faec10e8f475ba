//! Tests of the clocks.

mod calls;
mod choice;
mod counter;
mod usual;
