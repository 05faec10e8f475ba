//! What kills, stops, cuts off and judges: for the programs of this package, and for the tests of
//! other crates. It depends on none of the crates that it is used on.
//!
//! | module | what |
//! |---|---|
//! | [`crew`] | members that do the work: processes, which can be killed and stopped, and threads |
//! | [`proxy`] | the way of a client to its server, with troubles |
//! | [`servers`] | servers of this process's own, which end with it |
//! | [`journal`] | what members have done, in files that outlive them |
//! | [`judge`] | whether two held a lock at one time, and whether its tokens increased |
//! | [`random`], [`clock`] | numbers that a seed decides, and moments that processes can compare |
//! | [`command_line`] | options, exit codes and the help of the programs |

#[macro_use]
#[path = "../../xtask/src/say.rs"]
mod say;

pub mod clock;
pub mod command_line;
pub mod crew;
pub mod journal;
pub mod judge;
pub mod proxy;
pub mod random;
pub mod servers;
