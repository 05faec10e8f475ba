//! Tests of one machine whose store is a script.

mod adoption;
mod claims;
mod ends;
mod looks;
mod membership;
mod script;
mod stop;
