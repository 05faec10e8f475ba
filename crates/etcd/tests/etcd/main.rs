//! Leases on etcd servers, which the tests start for themselves.

#[path = "../../../leases/tests/kit/calls.rs"]
mod calls;
#[path = "../../../leases/tests/kit/tickets.rs"]
mod tickets;

mod common;
mod contest;
mod faults;
mod kept;
mod logins;
mod store;
mod waiting;
