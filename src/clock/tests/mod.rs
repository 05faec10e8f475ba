//! Tests of the clocks.

mod calls;
mod choice;
mod claims;
mod counter;
mod usual;
