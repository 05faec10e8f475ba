#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod address;
mod build_error;
mod exchange;
mod failure;
mod limit;
mod links;
mod listening;
mod messages;
mod names;
mod record;
mod runtime;
mod store;
mod sync;

pub use build_error::EtcdBuildError;
pub use store::{EtcdStore, EtcdStoreBuilder};
