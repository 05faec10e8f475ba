//! Random and enumerated calls, each answer compared with a plain model.

mod expiry;
mod flights;
mod given;
mod repeat;
mod scheduler;
mod simulation;
mod timer;
mod wheel;
