//! The reasons why a store on Redis can't be built.

use std::fmt;
use std::time::Duration;

/// The reason why a store on Redis can't be built. It names the invalid value and the valid ones.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RedisBuildError {
    /// This is not the URL of a server, or it needs something that is missing.
    Url {
        /// The URL, with stars for the password.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A certificate or a key can't be used, or there is no trusted authority. The text is the
    /// reason.
    #[cfg(feature = "redis-tls")]
    Tls(String),
    /// The prefix is empty or has braces, which decide where in a cluster a key lies.
    Prefix(String),
    /// The longest lease is not between 1 ms and 365 days.
    LongestLease(Duration),
    /// The life of tokens is not between the longest lease and 730 days.
    TokenLife {
        /// The life that was asked for.
        life: Duration,
        /// The longest lease of the store.
        longest_lease: Duration,
    },
    /// The time before a keepalive is not between 1 s and 9 hours.
    TcpKeepalive(Duration),
    /// The number of destinations is not between 1 and 16,384, the slots of a cluster.
    Destinations(u16),
}

impl fmt::Display for RedisBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisBuildError::Url { url, why } => write!(
                f,
                "{url:?} can't be used: {why}; it has to look like redis://127.0.0.1:6379/, \
                 redis-sentinel://a,b/MASTER or redis-cluster://a,b/"
            ),
            #[cfg(feature = "redis-tls")]
            RedisBuildError::Tls(why) => write!(f, "TLS can't be used: {why}"),
            RedisBuildError::Prefix(prefix) => {
                write!(
                    f,
                    "a prefix of {prefix:?}: choose one with no braces, not empty"
                )
            }
            RedisBuildError::LongestLease(longest) => write!(
                f,
                "a longest lease of {longest:?}: choose one between 1 ms and 365 days"
            ),
            RedisBuildError::TokenLife {
                life,
                longest_lease,
            } => write!(
                f,
                "tokens that live for {life:?}: choose between the longest lease, {longest_lease:?}, \
                 and 730 days"
            ),
            RedisBuildError::TcpKeepalive(after) => write!(
                f,
                "a keepalive after {after:?}: choose between 1 s and 9 hours, or none"
            ),
            RedisBuildError::Destinations(destinations) => {
                write!(
                    f,
                    "{destinations} destinations: choose between 1 and 16,384"
                )
            }
        }
    }
}

impl std::error::Error for RedisBuildError {}
