//! What errors of connections and of the server mean for a lease.

use std::error::Error;

use tonic::{Code, Status};
use tourbillon_leases::StoreError;

/// Why a request has failed.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fault {
    /// Whether the server does not know the lease that the request names.
    pub(crate) is_missing: bool,
    pub(crate) error: StoreError,
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Fault {
            is_missing: false,
            error,
        }
    }
}

impl Fault {
    /// The server with this name has answered, or the connection to it has failed.
    pub(crate) fn of(server: &str, status: &Status) -> Self {
        let why = format!("etcd at {server}: {}", described(status));
        let error = match status.code() {
            // A change of users or roles has made the token old that was given a moment ago. The next one may do.
            _ if is_old_token(status) => StoreError::Unavailable(why),
            Code::PermissionDenied => StoreError::Refused(format!(
                "{why}: the role of the user needs to read and write all keys with the prefix of the store"
            )),
            Code::InvalidArgument
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::AlreadyExists => StoreError::Refused(why),
            // A message that the connection of the server does not read. Other lacks may pass.
            Code::ResourceExhausted if is_large(&why) => StoreError::Refused(why),
            // The server has executed nothing, or is not reached, or has a trouble that may pass: no leader, a
            // change of the leader, too many requests, a full disk, a lease that ran out meanwhile.
            _ => StoreError::Unavailable(why),
        };
        Fault {
            is_missing: status.code() == Code::NotFound,
            error,
        }
    }
}

/// Whether a batch was refused that may be accepted in parts.
pub(crate) fn is_too_large(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused(why) if is_large(why))
}

fn is_large(why: &str) -> bool {
    // Of `--max-txn-ops`, of `--max-request-bytes`, of a request on a connection, and of an answer.
    let texts = [
        "too many operations",
        "request is too large",
        "message larger than max",
        "message length too large",
    ];
    texts.iter().any(|text| why.contains(text))
}

/// Whether the server no longer knows the token of the connection. It has executed nothing.
pub(crate) fn is_stale_token(status: &Status) -> bool {
    // The others are those of a connection that was made before the server has asked for users, and of a change of users
    // or roles since the token was given.
    status.code() == Code::Unauthenticated
        || status.message().contains("user name is empty")
        || is_old_token(status)
}

/// Whether the token was one of the server's.
fn is_old_token(status: &Status) -> bool {
    let texts = [
        "invalid auth token",
        "revision of auth store is old",
        "revision in header is old",
    ];
    texts.iter().any(|text| status.message().contains(text))
}

/// Whether another server may do better, or a new connection to this one.
pub(crate) fn is_of_connection(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
            | Code::DeadlineExceeded
    )
}

/// The message with its reasons.
pub(crate) fn described(error: &(dyn Error + 'static)) -> String {
    // `Status` shows its metadata, which nobody can read.
    let mut text = match error.downcast_ref::<Status>() {
        Some(status) if status.message().is_empty() => format!("{:?}", status.code()),
        Some(status) => status.message().to_owned(),
        None => error.to_string(),
    };
    let mut reason = error.source();
    while let Some(error) = reason {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        reason = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_whether_the_call_may_succeed_later() {
        let may_pass = |code: Code| Fault::of("a:1", &Status::new(code, "why")).error.may_pass();
        for code in [
            Code::Unavailable,
            Code::Unknown,
            Code::ResourceExhausted,
            Code::DeadlineExceeded,
            Code::NotFound,
        ] {
            assert!(may_pass(code), "{code:?}");
        }
        for code in [
            Code::PermissionDenied,
            Code::InvalidArgument,
            Code::Unauthenticated,
            Code::FailedPrecondition,
        ] {
            assert!(!may_pass(code), "{code:?}");
        }
        assert!(Fault::of("a:1", &Status::not_found("lease")).is_missing);
        assert!(!Fault::of("a:1", &Status::unavailable("no")).is_missing);
    }

    #[test]
    fn what_is_too_large_is_refused_and_may_be_asked_in_parts() {
        for (code, why) in [
            (
                Code::InvalidArgument,
                "etcdserver: too many operations in txn request",
            ),
            (Code::InvalidArgument, "etcdserver: request is too large"),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (3014911 vs. 2097152)",
            ),
            (
                Code::OutOfRange,
                "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes",
            ),
        ] {
            assert!(
                is_too_large(&Fault::of("a:1", &Status::new(code, why)).error),
                "{why}"
            );
        }
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        let denied = Status::permission_denied("etcdserver: permission denied");
        for status in [full, denied] {
            assert!(!is_too_large(&Fault::of("a:1", &status).error), "{status}");
        }
    }

    #[test]
    fn an_error_names_the_server_and_each_reason_once() {
        let refused = std::io::Error::other("connection refused");
        let status = Status::from_error(Box::new(refused));
        let Fault { error, .. } = Fault::of("a:1", &status);
        assert_eq!(
            error,
            StoreError::Unavailable("etcd at a:1: connection refused".to_owned())
        );
        assert_eq!(described(&Status::new(Code::Aborted, "")), "Aborted");
    }

    #[test]
    fn tokens_that_are_not_known_any_more_are_told_from_missing_rights() {
        assert!(is_stale_token(&Status::unauthenticated(
            "etcdserver: invalid auth token"
        )));
        let old = "etcdserver: revision of auth store is old";
        assert!(is_stale_token(&Status::invalid_argument(old)));
        // With a token that was given a moment ago they may pass. The lack of a user does not.
        let may_pass = |status: &Status| Fault::of("a:1", status).error.may_pass();
        for (status, passes) in [
            (
                Status::unauthenticated("etcdserver: invalid auth token"),
                true,
            ),
            (Status::invalid_argument(old), true),
            (Status::unknown("auth: revision in header is old"), true),
            (
                Status::invalid_argument("etcdserver: user name is empty"),
                false,
            ),
        ] {
            assert!(is_stale_token(&status));
            assert_eq!(may_pass(&status), passes, "{status}");
        }
        let denied = Status::permission_denied("etcdserver: permission denied");
        assert!(!is_stale_token(&denied) && !is_of_connection(&denied));
        assert!(is_of_connection(&Status::unavailable(
            "etcdserver: no leader"
        )));
    }
}
