//! What the nodes of a cluster say about it.

use std::collections::HashMap;

use redis::Value;

use super::keys::SLOTS;

/// The masters of a cluster, as one of its nodes sees them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Topology {
    /// In the order of their identities.
    pub(super) masters: Vec<NodeSlots>,
    /// The greatest epoch of a master.
    pub(super) newest: u64,
}

/// A master, and the slots that it serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeSlots {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// The number of its last failover, or of the last move of a slot to it that raised the number.
    pub(super) epoch: u64,
    /// The first and the last slot of each range.
    pub(super) ranges: Vec<(u16, u16)>,
}

impl Topology {
    /// Reads the answers to `CLUSTER NODES` and `CLUSTER SLOTS`. `host` is that of the node which has
    /// answered, and which may not know its own. Returns `None` if no cluster answers like this.
    ///
    /// Slots of a node without an address are left out, as if nobody served them.
    pub(super) fn read(nodes: &Value, slots: &Value, host: &str) -> Option<Self> {
        let epochs = epochs(&text(nodes)?);
        let mut masters: Vec<NodeSlots> = Vec::new();
        let Value::Array(ranges) = slots else {
            return None;
        };
        for range in ranges {
            let Value::Array(parts) = range else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), master, ..] = &parts[..] else {
                return None;
            };
            let range = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            if range.0 > range.1 || range.1 >= SLOTS {
                return None;
            }
            let Value::Array(master) = master else {
                return None;
            };
            let [said, Value::Int(port), id, ..] = &master[..] else {
                return None;
            };
            let id = text(id)?;
            let epoch = *epochs.get(&id)?;
            let said = match said {
                // It says that its clients know the host.
                Value::Nil => String::new(),
                said => text(said)?,
            };
            let host = match &*said {
                "" => host,
                said => said,
            };
            let port = u16::try_from(*port).ok()?;
            if port == 0 || host == "?" {
                continue;
            }
            let is_same = |node: &&mut NodeSlots| node.host == host && node.port == port;
            match masters.iter_mut().find(is_same) {
                Some(node) => node.ranges.push(range),
                None => masters.push(NodeSlots {
                    id,
                    host: host.to_owned(),
                    port,
                    epoch,
                    ranges: vec![range],
                }),
            }
        }
        // Nodes tell them in different orders.
        masters.sort_by(|one, other| one.id.cmp(&other.id));
        let newest = masters.iter().map(|node| node.epoch).max().unwrap_or(0);
        Some(Topology { masters, newest })
    }
}

/// Reads the answer to `CLUSTER NODES`: lines of `ID ADDRESS FLAGS MASTER PING PONG EPOCH ..`.
fn epochs(nodes: &str) -> HashMap<String, u64> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let id = words.next()?.to_owned();
        Some((id, words.nth(5)?.parse().ok()?))
    };
    nodes.lines().filter_map(line).collect()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// Reads the host and the port in a redirection, `SLOT HOST:PORT`. An empty host is that of the node
/// which has answered.
pub(super) fn address(redirection: &str, host: &str) -> Option<(String, u16)> {
    let (_, address) = redirection.split_once(' ')?;
    let (said, port) = address.rsplit_once(':')?;
    let host = match said {
        "" => host,
        "?" => return None,
        said => said,
    };
    let port = port.parse().ok().filter(|&port| port != 0)?;
    Some((host.to_owned(), port))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn master(host: Value, port: i64, id: &str) -> Value {
        Value::Array(vec![host, Value::Int(port), bulk(id)])
    }

    fn range(first: i64, last: i64, master: Value) -> Value {
        let replica = self::master(bulk("r"), 9, "r");
        Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
    }

    /// What is read of these ranges.
    fn read(ranges: Vec<Value>) -> Option<Vec<NodeSlots>> {
        let nodes = "a 1.1.1.1:7@17,name master - 0 0 3 connected 0-5\n\
                     b :8@18 myself,master - 0 0 5 connected\nbroken\nc x y z 0 0 -1";
        let topology = Topology::read(&bulk(nodes), &Value::Array(ranges), "seed")?;
        let newest = topology.masters.iter().map(|node| node.epoch).max();
        assert_eq!(topology.newest, newest.unwrap_or(0));
        Some(topology.masters)
    }

    #[test]
    fn masters_their_slots_and_epochs_are_read() {
        let found = read(vec![
            range(0, 5, master(bulk("h"), 7, "a")),
            // A hole, then a node that does not know its host.
            range(9, 9, master(bulk(""), 8, "b")),
            range(16_000, 16_383, master(bulk("h"), 7, "a")),
            range(10, 10, master(Value::Nil, 8, "b")),
        ]);
        let node = |id: &str, host: &str, port, epoch, ranges: &[(u16, u16)]| NodeSlots {
            id: id.to_owned(),
            host: host.to_owned(),
            port,
            epoch,
            ranges: ranges.to_vec(),
        };
        let expected = vec![
            node("a", "h", 7, 3, &[(0, 5), (16_000, 16_383)]),
            node("b", "seed", 8, 5, &[(9, 9), (10, 10)]),
        ];
        assert_eq!(found, Some(expected));
        assert_eq!(read(Vec::new()), Some(Vec::new()));
    }

    #[test]
    fn slots_of_a_node_without_an_address_are_served_by_nobody() {
        for nowhere in [master(bulk("h"), 0, "a"), master(bulk("?"), 7, "a")] {
            assert_eq!(read(vec![range(0, 5, nowhere)]), Some(Vec::new()));
        }
    }

    #[test]
    fn answers_that_no_cluster_gives_are_refused() {
        let good = || master(bulk("h"), 7, "a");
        for wrong in [
            range(0, 16_384, good()),
            range(-1, 5, good()),
            range(6, 5, good()),
            range(0, 70_000, good()),
            range(0, 5, master(bulk("h"), 70_000, "a")),
            range(0, 5, master(bulk("h"), -7, "a")),
            range(0, 5, master(Value::Int(1), 7, "a")),
            // Nodes without an epoch, and with a broken one.
            range(0, 5, master(bulk("h"), 7, "d")),
            range(0, 5, master(bulk("h"), 7, "c")),
            range(0, 5, Value::Nil),
            range(0, 5, Value::Array(vec![bulk("h"), Value::Int(7)])),
            Value::Array(vec![Value::Int(0), Value::Int(5)]),
            Value::Array(Vec::new()),
            Value::Int(0),
        ] {
            assert_eq!(read(vec![wrong.clone()]), None, "{wrong:?}");
        }
        let nothing = Value::Array(Vec::new());
        assert_eq!(Topology::read(&Value::Nil, &nothing, "h"), None);
        assert_eq!(Topology::read(&bulk(""), &Value::Nil, "h"), None);
    }

    #[test]
    fn redirections_lead_somewhere_or_nowhere() {
        let to = |said: &str| address(said, "own");
        assert_eq!(to("3999 127.0.0.1:6381"), Some(("127.0.0.1".into(), 6_381)));
        assert_eq!(to("3999 ::1:6381"), Some(("::1".into(), 6_381)));
        assert_eq!(to("3999 :6381"), Some(("own".into(), 6_381)));
        for wrong in [
            "", "3999", "3999 ", "3999 h", "3999 h:0", "3999 h:x", "3999 ?:1",
        ] {
            assert_eq!(to(wrong), None, "{wrong}");
        }
    }
}
