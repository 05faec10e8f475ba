//! The value of a key: the record that the store keeps of a holding.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The value of a key, as JSON. Fields of later versions are ignored.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) owner: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) data: String,
    /// The length of the lease in seconds, as it was asked for.
    pub(crate) lease: i64,
    /// The [hash](hash_of) of the secret. Empty if the name only stays locked for the rest of a time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) secret: String,
    /// The hash of the ticket, until it is used.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) ticket: String,
    /// The length of the lease after the ticket is used, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) detached: i64,
    /// What the caller with the ticket is given. It stays when the ticket is used, for a repetition of the call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) terms: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Record {
    /// Reads a value. `None` if it is another program's.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    pub(crate) fn to_value(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers can be written")
    }

    /// Whether the name is held with the secret of this hash.
    pub(crate) fn is_held_with(&self, hash: &str) -> bool {
        !self.secret.is_empty() && self.secret == hash
    }

    /// The record of a name that nobody holds, and that stays locked for this time in seconds.
    pub(crate) fn released(self, rest: i64) -> Self {
        Record {
            owner: format!("{} (released)", self.owner),
            data: self.data,
            lease: rest,
            ..Record::default()
        }
    }
}

/// The hash of a secret, as hexadecimal digits: what is stored tells nobody the secret.
pub(crate) fn hash_of(secret: &str) -> String {
    let mut digits = String::with_capacity(64);
    for byte in Sha256::digest(secret) {
        // Writing into a text never fails.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_short_and_shows_no_secret() {
        let record = Record {
            owner: "node-3:1".to_owned(),
            lease: 30,
            secret: hash_of("s"),
            ..Record::default()
        };
        let value = String::from_utf8(record.to_value()).unwrap();
        let hash = "043a718774c572bd8a25adbeb1bfcd5c0256ae11cecf9f9c3f925d0e52beaf89";
        assert_eq!(
            value,
            format!(r#"{{"owner":"node-3:1","lease":30,"secret":"{hash}"}}"#)
        );
        assert_eq!(Record::read(value.as_bytes()).as_ref(), Some(&record));
        assert!(record.is_held_with(&hash_of("s")));
        assert!(!record.is_held_with(&hash_of("t")));
        let rest = record.released(7);
        assert_eq!((&*rest.owner, rest.lease), ("node-3:1 (released)", 7));
        assert!(!rest.is_held_with("") && !rest.is_held_with(&hash_of("s")));
    }

    #[test]
    fn values_of_later_versions_are_read_and_those_of_others_are_not() {
        let later = br#"{"owner":"a","lease":3,"color":"red"}"#;
        assert_eq!(Record::read(later).unwrap().lease, 3);
        for other in [&b""[..], b"locked", b"[]", b"{}", b"\xff"] {
            assert_eq!(Record::read(other), None);
        }
    }
}
