//! Why a store can't be built.

use std::error::Error;
use std::fmt;

/// The reason why an [`EtcdStore`](crate::EtcdStore) can't be built. No error shows a password.
///
/// # Examples
///
/// ```
/// use tourbillon_etcd::{EtcdBuildError, EtcdStore};
///
/// let error = EtcdStore::open("http://localhost:2379").unwrap_err();
/// assert!(matches!(error, EtcdBuildError::Url(_)));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EtcdBuildError {
    /// The URL can't be read.
    Url(String),
    /// The prefix of the keys is empty, or has more than 256 bytes.
    Prefix {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The URL asks for TLS and the crate has no feature `tls`, or certificates are set and the URL does not
    /// ask for TLS, or a certificate can't be read.
    Tls(String),
}

impl fmt::Display for EtcdBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdBuildError::Url(why) => write!(f, "the URL of the store can't be read: {why}"),
            EtcdBuildError::Prefix { bytes } => write!(
                f,
                "the prefix of the keys has {bytes} bytes: choose one of 1 to 256"
            ),
            EtcdBuildError::Tls(why) => write!(f, "TLS can't be used: {why}"),
        }
    }
}

impl Error for EtcdBuildError {}
