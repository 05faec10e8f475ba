//! Tests of the machine alone: scripted ones, and simulations over the store in memory.

mod days;
mod open_writes;
mod scripted;
mod simulated;
mod sleeping;
mod world;
