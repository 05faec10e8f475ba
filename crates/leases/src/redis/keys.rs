//! The keys of a lock in Redis.

/// The keys of one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    channel: String,
    destinations: u16,
    /// The marker of each destination, or those from which each node of a cluster has one.
    markers: Vec<String>,
}

impl Keys {
    /// Creates the keys of a prefix without braces. Then the braces around the name are the first
    /// ones in a key, and decide its slot.
    pub(super) fn new(prefix: String, destinations: u16) -> Self {
        Keys::with(prefix, destinations, destinations)
    }

    /// Creates the keys of a prefix in a cluster.
    pub(super) fn in_cluster(prefix: String, destinations: u16) -> Self {
        Keys::with(prefix, destinations, MARKERS)
    }

    fn with(prefix: String, destinations: u16, markers: u16) -> Self {
        Keys {
            channel: format!("{prefix}:released"),
            destinations,
            markers: tags(markers)
                .map(|tag| format!("{prefix}:{{{tag}}}:marker"))
                .collect(),
            prefix,
        }
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

    /// Returns the key of those who share a lock.
    pub(super) fn holders(&self, name: &str) -> String {
        format!("{}:{{{}}}:holders", self.prefix, encoded(name))
    }

    /// Returns the pattern of the lock keys of all names that begin with `prefix`.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        let (own, prefix) = (globbed(&self.prefix), globbed(&encoded(prefix)));
        format!("{own}:{{{prefix}*}}:lock")
    }

    /// Returns the name of a lock key, or `None` if this is another key.
    pub(super) fn name(&self, key: &str) -> Option<String> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix(":{")?;
        let name = rest.strip_suffix("}:lock")?;
        (!name.contains(['{', '}'])).then(|| decoded(name))
    }

    /// Returns the marker key of a name's destination, which vanishes with the data of the
    /// destination. No key of a lock ends like this.
    pub(super) fn marker(&self, name: &str) -> &str {
        &self.markers[usize::from(self.destination(name))]
    }

    pub(super) fn markers(&self) -> &[String] {
        &self.markers
    }

    /// Returns the keys of locks all over the slots. The locks need not exist.
    pub(super) fn all_over(&self) -> Vec<String> {
        tags(16).map(|tag| self.lock(&tag.to_string())).collect()
    }

    /// Returns the number of the range of slots in which a name lies.
    pub(super) fn destination(&self, name: &str) -> u16 {
        range(slot(name), self.destinations)
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }
}

/// Returns the destination of a slot. Destinations are equal ranges of slots, since the nodes of a
/// cluster have ranges, too.
fn range(slot: u16, destinations: u16) -> u16 {
    let range = u32::from(slot) * u32::from(destinations) / u32::from(SLOTS);
    u16::try_from(range).expect("less than the destinations")
}

/// Returns for each destination the least number whose slot lies there.
fn tags(destinations: u16) -> impl Iterator<Item = u32> {
    let mut tags = vec![None; usize::from(destinations)];
    let mut missing = destinations;
    // This loop ends: every slot has many numbers below a million.
    for number in 0_u32.. {
        if missing == 0 {
            break;
        }
        let tag = &mut tags[usize::from(range(slot(&number.to_string()), destinations))];
        if tag.is_none() {
            *tag = Some(number);
            missing -= 1;
        }
    }
    tags.into_iter().flatten()
}

/// Returns the slot of a name's keys in a cluster. By the specification of Redis clusters that is a
/// CRC-16 (XMODEM) of the text in the braces.
pub(super) fn slot(name: &str) -> u16 {
    hashed(&encoded(name))
}

/// Returns the slot of a key: that of the text in its first braces, or of the whole key if there is none.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    hashed(tag.map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag }))
}

fn hashed(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
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

/// The number of markers in a cluster, at equal distances. The marker of a node is the first of them in
/// its slots. Fewer than slots, so that it seldom is another one when slots move.
const MARKERS: u16 = 1_024;

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Escapes the characters that mean something in a pattern.
fn globbed(text: &str) -> String {
    let mut globbed = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '^' | '\\') {
            globbed.push('\\');
        }
        globbed.push(character);
    }
    globbed
}

/// Reverses [`encoded`].
fn decoded(encoded: &str) -> String {
    let name = encoded.replace("%7B", "{").replace("%7D", "}");
    name.replace("%25", "%")
}

/// Replaces the braces in a name. A brace would end the part of the key that a cluster hashes, and
/// all keys of a name have to lie in one slot.
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
        // The example of the specification, and two answers of `CLUSTER KEYSLOT`.
        assert_eq!(super::slot("123456789"), 0x31c3 % super::SLOTS);
        assert_eq!(super::slot("foo"), 12_182);
        assert_eq!(super::slot("user1000"), 3_443);
        let keys = Keys::in_cluster("p".into(), 16);
        for name in ["foo", "a{b}c", "%", "}{"] {
            assert_eq!(slot_of(&keys.lock(name)), slot(name));
            assert_eq!(slot_of(&keys.token(name)), slot(name));
            assert_eq!(slot_of(&keys.holders(name)), slot(name));
        }
        // Answers of `CLUSTER KEYSLOT` for braces with nothing between them, and for one that is not closed.
        for (key, slot) in [("p:{}:lock", 4_260), ("p:{a", 10_293), ("p{}{a}", 12_494)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        let slots: Vec<_> = keys.markers().iter().map(|key| slot_of(key)).collect();
        assert_eq!(slots.len(), 1_024);
        assert!(slots.is_sorted());
    }

    use super::*;

    #[test]
    fn names_stay_readable_and_apart_and_in_the_braces() {
        let keys = Keys::new("p".into(), 1);
        assert_eq!(keys.lock("orders/42"), "p:{orders/42}:lock");
        assert_eq!(keys.token("orders/42"), "p:{orders/42}:token");
        assert_eq!(keys.lock("{}"), "p:{%7B%7D}:lock");
        assert_eq!(keys.lock("%7B%7D"), "p:{%257B%257D}:lock");
        assert_eq!(keys.lock("}:lock ü"), "p:{%7D:lock ü}:lock");
        assert_eq!(keys.channel(), "p:released");
        assert_eq!(keys.marker("orders/42"), "p:{0}:marker");
    }

    #[test]
    fn the_name_of_a_key_is_the_one_that_it_was_made_of() {
        let keys = Keys::new("p".into(), 1);
        for name in [
            "orders/42",
            "{}",
            "%7B%7D",
            "%",
            "%25",
            "}:lock ü",
            "a}:lock",
        ] {
            assert_eq!(keys.name(&keys.lock(name)).as_deref(), Some(name));
        }
        for other in [
            "p:{a}:token",
            "p:{a}:holders",
            "p:{0}:marker",
            "q:{a}:lock",
            "p:{a}x{b}:lock",
            "p:a:lock",
        ] {
            assert_eq!(keys.name(other), None);
        }
        assert_eq!(keys.pattern("a*{[\\"), "p:{a\\*%7B\\[\\\\*}:lock");
    }

    #[test]
    fn each_marker_lies_in_the_slots_of_its_destination() {
        for destinations in [1, 3, 16, SLOTS] {
            let keys = Keys::new("p".into(), destinations);
            assert_eq!(keys.markers().len(), usize::from(destinations));
            for (at, marker) in keys.markers().iter().enumerate() {
                let (_, tag) = marker.split_once('{').unwrap();
                let (tag, _) = tag.split_once('}').unwrap();
                assert_eq!(usize::from(keys.destination(tag)), at, "{marker}");
                assert_eq!(keys.marker(tag), marker);
            }
        }
    }
}
