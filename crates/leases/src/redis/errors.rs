//! Tells errors that may pass from errors that will be repeated.

use std::{fmt, io};

use redis::{RedisError, ServerError};

use super::scripts;
use crate::store::{OwnedSecret, StoreError};
use crate::sync::Arc;

/// The codes of errors that pass by themselves:
///
/// - `LOADING`: the server reads its data after a start. `BUSY`: a script keeps it busy.
/// - `READONLY`, `MASTERDOWN`, `NOREPLICAS`: a failover is going on, or there are too few replicas.
/// - `CLUSTERDOWN`, `TRYAGAIN`, `ASK`: the cluster elects, or moves the slot of this key.
/// - `NOSCRIPT`: the server forgot the script again between two requests.
/// - `OOM`, `MISCONF`: the server takes no writes while its memory or disk is full.
///
/// All other codes will be repeated:
///
/// - `NOAUTH`, `WRONGPASS`, `NOPERM`: until somebody changes the rights.
/// - `WRONGTYPE`: until somebody removes the key.
/// - `CROSSSLOT`, `MOVED`: this is the wrong server for the call.
const PASSING: [&str; 11] = [
    "LOADING",
    "BUSY",
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "ASK",
    "NOSCRIPT",
    "OOM",
    "MISCONF",
];

/// The reason why a call got no answer.
#[derive(Clone, Debug)]
pub(super) enum CallFault {
    /// The connection is closed, perhaps since long ago.
    Lost(String),
    /// No answer came in time.
    Late(String),
    /// Any other error.
    Other(StoreError),
}

impl CallFault {
    /// Classifies an error of the client.
    pub(super) fn of(error: &RedisError, address: &impl fmt::Display) -> Self {
        if let Some(error) = io_error(error) {
            // The client's own word for the end of a connection.
            if error.kind() == io::ErrorKind::BrokenPipe && error.raw_os_error().is_none() {
                let why = format!("{address}: the server has closed the connection");
                return CallFault::Lost(why);
            }
            return CallFault::of_io(error, address);
        }
        let why = format!("{address}: {error}");
        CallFault::Other(StoreError::Unavailable(why))
    }

    /// Classifies an error of the connection.
    pub(super) fn of_io(error: &io::Error, address: &impl fmt::Display) -> Self {
        #[cfg(feature = "redis-tls")]
        if let Some(refusal) = super::tls::refusal(error) {
            return CallFault::Other(StoreError::Refused(format!("{address}: {refusal}")));
        }
        let why = format!("{address}: {error}");
        match error.kind() {
            io::ErrorKind::TimedOut => CallFault::late(address),
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotConnected => CallFault::Lost(why),
            _ => CallFault::Other(StoreError::Unavailable(why)),
        }
    }

    /// Creates the fault of a call without an answer in time.
    pub(super) fn late(address: &impl fmt::Display) -> Self {
        CallFault::Late(format!("{address}: no answer in time"))
    }
}

/// Returns the error of the system in an error of the client, which wraps it and hides its kind.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let source = std::error::Error::source(error)?;
    let shared: &Arc<dyn std::error::Error + Send + Sync> = source.downcast_ref()?;
    shared.downcast_ref()
}

impl From<CallFault> for StoreError {
    fn from(fault: CallFault) -> Self {
        match fault {
            CallFault::Lost(why) | CallFault::Late(why) => StoreError::Unavailable(why),
            CallFault::Other(error) => error,
        }
    }
}

/// Classifies an error that the server answered.
pub(super) fn answered(error: &ServerError) -> StoreError {
    let details = error.details().unwrap_or_default();
    // Cut the position in the script, which does not help the reader of the message. It is at the end, and the same
    // word may come before it.
    let said = details
        .rsplit_once(" script: ")
        .filter(|(_, place)| place.contains("user_script:"));
    let said = without_secrets(said.map_or(details, |(said, _)| said));
    // A server names the place in a script, but not always the command.
    let command = scripts::commands_at(details);
    let command = command.map_or(String::new(), |command| format!(" ({command})"));
    let hint = match error.code() {
        "ERR" if said.contains("nknown") && said.contains("ommand") => {
            "; it may be renamed or disabled (rename-command), and the docs of `RedisStore` list the \
             commands that are needed"
        }
        "ERR" if said.contains("can't run this command") || said.starts_with("ACL failure") => {
            RIGHTS
        }
        "NOAUTH" | "WRONGPASS" => "; put user and password into the URL",
        "NOPERM" => RIGHTS,
        "MOVED" => {
            "; this is one node of a cluster: use a URL that begins with redis-cluster://, or a proxy \
             that hides the cluster"
        }
        "WRONGTYPE" => "; a key of this prefix is somebody else's: choose another prefix",
        _ => "",
    };
    let why = format!("{} {}{command}{hint}", error.code(), cut(&said));
    if may_pass(error.code(), details) {
        StoreError::Unavailable(why)
    } else {
        StoreError::Refused(why)
    }
}

/// What to do about missing rights.
const RIGHTS: &str = "; the docs of `RedisStore` list the rights that are needed";

/// Returns the beginning of what a server said, which may be of any length.
pub(super) fn cut(said: &str) -> String {
    const MOST: usize = 400;
    match said.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}..", &said[..end]),
        None => said.to_owned(),
    }
}

/// Leaves out what a server or a proxy may quote of a call: its arguments, among which are the
/// secrets of locks and the password of the connection.
fn without_secrets(said: &str) -> String {
    let said = said.split(", with args").next().unwrap_or_default();
    let mut kept = String::with_capacity(said.len());
    let mut rest = said;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits < OwnedSecret::DIGITS {
            kept.push_str(&rest[..digits]);
        } else {
            kept.push_str("..");
        }
        rest = &rest[digits..];
        let other = rest.find(|c: char| c.is_ascii_hexdigit());
        let (text, next) = rest.split_at(other.unwrap_or(rest.len()));
        kept.push_str(text);
        rest = next;
    }
    kept
}

/// Returns whether a cluster, or a proxy that hides one, refused the call because its keys lie in
/// several slots. Nodes have a code for that; proxies use their own words.
pub(super) fn is_cross_slot(error: &ServerError) -> bool {
    let words = error.details().unwrap_or_default().to_ascii_lowercase();
    error.code() == "CROSSSLOT"
        || error.code() == "ERR"
            && ["slot", "same node"]
                .iter()
                .any(|word| words.contains(word))
}

/// Whether a script has found its cluster down. The error of the script has a code of its own.
pub(super) fn is_down(details: &str) -> bool {
    details.contains("while the cluster is down")
}

/// Returns whether an error may pass by itself.
fn may_pass(code: &str, details: &str) -> bool {
    if PASSING.contains(&code) {
        return true;
    }
    // Servers before version 7 wrap the error of a command in a script into an `ERR`. Proxies
    // describe their own errors in words.
    code == "ERR"
        && (details.contains("max number of clients reached")
            || is_down(details)
            || details.contains("timed out")
            || details
                .split(|c: char| !c.is_ascii_uppercase())
                .any(|word| PASSING.contains(&word)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn errors_of_connections_are_told_apart() {
        let fault =
            |kind: io::ErrorKind| CallFault::of(&RedisError::from(io::Error::from(kind)), &"here");
        for kind in [
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::BrokenPipe,
        ] {
            assert!(matches!(fault(kind), CallFault::Lost(_)), "{kind}");
        }
        assert!(matches!(fault(io::ErrorKind::TimedOut), CallFault::Late(_)));
        for kind in [
            io::ErrorKind::TimedOut,
            io::ErrorKind::NotFound,
            io::ErrorKind::ConnectionRefused,
        ] {
            let fault = StoreError::from(fault(kind));
            assert!(matches!(fault, StoreError::Unavailable(_)), "{fault:?}");
        }
    }

    #[test]
    fn what_a_server_quotes_of_a_call_is_left_out() {
        let secret = OwnedSecret::random();
        let secret = secret.get().reveal();
        for (said, kept) in [
            ("", "".to_owned()),
            ("timeout of 1000 ms", "timeout of 1000 ms".to_owned()),
            ("no key ü:{abc}:lock", "no key ü:{abc}:lock".to_owned()),
            (
                &format!("unknown command 'EVALSHA', with args beginning with: '{secret}'"),
                "unknown command 'EVALSHA'".to_owned(),
            ),
            (
                &format!("{secret} of '{secret}': bad call"),
                ".. of '..': bad call".to_owned(),
            ),
        ] {
            assert_eq!(without_secrets(said), kept);
        }
    }

    #[test]
    fn what_passes_and_what_does_not() {
        for code in PASSING {
            assert!(may_pass(code, ""), "{code}");
        }
        for code in [
            "NOAUTH",
            "WRONGPASS",
            "NOPERM",
            "WRONGTYPE",
            "CROSSSLOT",
            "MOVED",
            "ERR",
        ] {
            assert!(!may_pass(code, "the rest of the line"), "{code}");
        }
        assert!(may_pass("ERR", "max number of clients reached"));
        let in_a_script = "Script attempted to execute a command while the cluster is down";
        assert!(may_pass("ERR", in_a_script));
        assert!(may_pass(
            "ERR",
            "Error running script (call to f_1): @user_script:9: -READONLY You can't write"
        ));
        assert!(!may_pass(
            "ERR",
            "Error running script: WRONGTYPE Operation against a key"
        ));
    }
}
