//! Tests of one machine whose store is a script.

mod adoption;
mod claims;
mod ends;
mod membership;
mod polls;
mod script;
mod steps;
mod stop;
