//! Random and enumerated calls, each answer compared with a plain model.

mod expiry;
mod flights;
mod repeat;
mod scheduler;
mod simulation;
mod wheel;
