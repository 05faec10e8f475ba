//! How names become keys.

/// The keys of one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    channel: String,
}

impl Keys {
    /// The prefix has no braces: those of the name are the first in a key, and decide its slot.
    pub(super) fn new(prefix: String) -> Self {
        let channel = format!("{prefix}:released");
        Keys { prefix, channel }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn lock(&self, name: &str) -> String {
        format!("{}:{{{}}}:lock", self.prefix, encoded(name))
    }

    pub(super) fn token(&self, name: &str) -> String {
        format!("{}:{{{}}}:token", self.prefix, encoded(name))
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }
}

/// The slot of a name's keys in a cluster: what the specification of Redis clusters says, a CRC-16
/// (XMODEM) of what stands in the braces.
pub(super) fn slot(name: &str) -> u16 {
    let crc = encoded(name).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    });
    crc % SLOTS
}

/// Of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The name without braces, which would end the part of the key that a cluster hashes: the keys of
/// a name have to lie in one slot.
fn encoded(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '{' => encoded.push_str("%7B"),
            '}' => encoded.push_str("%7D"),
            '%' => encoded.push_str("%25"),
            other => encoded.push(other),
        }
    }
    encoded
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn slots_are_those_of_the_specification() {
        // Its own example, and what `CLUSTER KEYSLOT` says.
        assert_eq!(super::slot("123456789"), 0x31c3 % super::SLOTS);
        assert_eq!(super::slot("foo"), 12_182);
        assert_eq!(super::slot("user1000"), 3_443);
    }

    use super::*;

    #[test]
    fn names_stay_readable_and_apart_and_in_the_braces() {
        let keys = Keys::new("p".into());
        assert_eq!(keys.lock("orders/42"), "p:{orders/42}:lock");
        assert_eq!(keys.token("orders/42"), "p:{orders/42}:token");
        assert_eq!(keys.lock("{}"), "p:{%7B%7D}:lock");
        assert_eq!(keys.lock("%7B%7D"), "p:{%257B%257D}:lock");
        assert_eq!(keys.lock("}:lock ü"), "p:{%7D:lock ü}:lock");
        assert_eq!(keys.channel(), "p:released");
    }
}
