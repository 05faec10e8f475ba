//! Leases on the embedded store.

#[path = "../kit/calls.rs"]
mod calls;
#[path = "../kit/double.rs"]
mod double;
#[path = "../kit/mode_model.rs"]
mod mode_model;
#[path = "../kit/tickets.rs"]
mod tickets;
#[path = "../kit/worlds.rs"]
mod worlds;

mod after;
mod all;
mod answers;
mod awaited;
mod batches;
mod blocking;
mod election;
mod errors;
mod events;
mod extending;
mod flushes;
#[cfg(feature = "tokio")]
mod followed;
mod futures;
mod hand_over;
mod health;
mod keep_alive;
mod keys;
mod leaders;
mod least_hold;
mod leaving;
mod listing;
mod loss;
mod many;
mod many_limits;
mod metrics;
mod modes;
mod own_stores;
mod release;
mod releases;
mod renewal;
mod serving;
mod tokens;
mod under_lock;
mod unpolled;
mod waiting;
