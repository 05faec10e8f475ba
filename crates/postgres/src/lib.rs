#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod builder;
mod caller;
mod connector;
mod error;
pub mod failure;
mod hosts;
mod link;
mod listener;
mod parameters;
mod passfile;
mod password;
mod security;
mod server;
mod session;
mod sync;
#[cfg(feature = "tls")]
mod tls;
mod url;

pub use builder::ConnectorBuilder;
pub use caller::Caller;
pub use connector::Connector;
pub use error::PostgresError;
pub use failure::{Effect, Failure};
pub use link::{Link, Open};
pub use listener::{Heard, Listening};
pub use security::{Driven, Encryption};
pub use server::check_server;
pub use session::Session;
pub use tokio_postgres;
pub use tokio_postgres::{Client, Row};
