//! A Redis cluster of three masters, each with a replica.

use std::thread;
use std::time::{Duration, Instant};

use chaos::servers::redis::Server;

use super::plan::{LONGEST, OnServer};

/// How long a node stands still until the others replace it.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Masters agree by then that one of them is gone, and a replica is there by then.
const PATIENCE: Duration = Duration::from_secs(60);
const MASTERS: usize = 3;
/// How long a master that is killed has been without its replica: what it grants meanwhile is lost, and what the
/// replica knows is over.
const LOST: Duration = LONGEST;
/// For so long markers are told to wait for nothing. A caller may ask at any time meanwhile.
const UNGUARDED: Duration = Duration::from_millis(300);

/// Six nodes, of which three are masters.
pub(crate) struct Clustered {
    nodes: Vec<Server>,
    /// Whether its markers say after a failover that nothing was lost, so that nobody waits.
    is_unguarded: bool,
}

/// What a node knows of another one.
struct Known {
    id: String,
    port: u16,
    /// Of a replica.
    master: Option<String>,
    is_gone: bool,
    slots: Vec<(u16, u16)>,
}

impl Known {
    /// Reads a line of `CLUSTER NODES`.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.trim().trim_matches('"').split(' ').collect();
        let [id, address, flags, master, _, _, _, link, slots @ ..] = &words[..] else {
            return None;
        };
        let (_, port) = address.split('@').next()?.rsplit_once(':')?;
        let number = |text: &str| text.parse().ok();
        let range = |text: &&str| match text.split_once('-') {
            Some((first, last)) => Some((number(first)?, number(last)?)),
            None => number(text).map(|slot| (slot, slot)),
        };
        Some(Known {
            id: (*id).to_owned(),
            port: port.parse().ok()?,
            master: flags.contains("slave").then(|| (*master).to_owned()),
            is_gone: flags.contains("fail") || *link != "connected",
            slots: slots.iter().filter_map(range).collect(),
        })
    }

    fn serves(&self, slot: u16) -> bool {
        let mut slots = self.slots.iter();
        self.master.is_none() && slots.any(|(first, last)| (first..=last).contains(&&slot))
    }
}

fn known_to(node: &Server) -> Vec<Known> {
    let nodes = redis::cmd("CLUSTER")
        .arg("NODES")
        .query(&mut node.connect());
    let nodes: String = nodes.expect("the node is there between two steps");
    nodes.lines().filter_map(Known::parse).collect()
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Clustered {
    pub(crate) fn start(is_unguarded: bool) -> Self {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let options = ["--save", "", "--cluster-enabled", "yes"];
        let more = [
            "--cluster-node-timeout",
            &timeout,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let options = [&options[..], &more[..]].concat();
        let nodes: Vec<_> = (0..2 * MASTERS).map(|_| Server::with(&options)).collect();
        for (number, node) in nodes.iter().enumerate() {
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if number < MASTERS {
                let share = 16_384 / MASTERS + 1;
                let first = (number * share).to_string();
                let last = ((number + 1) * share - 1).min(16_383).to_string();
                node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
            let port = node.port().to_string();
            nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        let clustered = Clustered {
            nodes,
            is_unguarded,
        };
        clustered.until_all_know_all();
        for number in MASTERS..2 * MASTERS {
            let id = clustered.nodes[number - MASTERS].cli(&["CLUSTER", "MYID"]);
            let id = id.trim_matches('"');
            clustered.nodes[number].until(&["CLUSTER", "REPLICATE", id], "OK");
        }
        clustered.until_well();
        clustered
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    fn until_all_know_all(&self) {
        until("the nodes know each other", || {
            self.nodes.iter().all(|node| {
                let known = known_to(node);
                known.len() == 2 * MASTERS && known.iter().all(|known| !known.is_gone)
            })
        });
    }

    /// Waits until each master has a replica in step, and all agree.
    fn until_well(&self) {
        self.until_all_know_all();
        until("each master has a replica", || {
            self.nodes.iter().all(|node| {
                let replicas = known_to(node);
                let replicas = replicas.iter().filter(|known| known.master.is_some());
                replicas.count() == MASTERS
            })
        });
        for node in &self.nodes {
            node.until(&["CLUSTER", "INFO"], "cluster_state:ok");
            if !node.cli(&["ROLE"]).contains("\"master\"") {
                node.until(&["INFO", "replication"], "master_link_status:up");
            }
        }
    }

    fn place(&self, port: u16) -> usize {
        let place = self.nodes.iter().position(|node| node.port() == port);
        place.expect("the cluster has no other nodes")
    }

    pub(crate) fn masters(&self) -> Vec<&Server> {
        let known = known_to(&self.nodes[0]);
        let masters = known.iter().filter(|known| known.master.is_none());
        masters
            .map(|known| &self.nodes[self.place(known.port)])
            .collect()
    }

    /// Does what is planned to the node that has this lock.
    pub(crate) fn befall(
        &mut self,
        lock: &str,
        fault: OnServer,
        on_one: impl Fn(&mut Server, OnServer) -> redis::RedisResult<()>,
    ) -> redis::RedisResult<()> {
        let shortly = |time: Duration| time.min(NODE_TIMEOUT / 2);
        let fault = match fault {
            OnServer::Pause(time, all) => OnServer::Pause(shortly(time), all),
            OnServer::Sleep(time) => OnServer::Sleep(shortly(time)),
            fault => fault,
        };
        if let OnServer::Nothing = fault {
            return Ok(());
        }
        self.until_well();
        let slot: u16 = redis::cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg(lock)
            .query(&mut self.nodes[0].connect())?;
        let known = known_to(&self.nodes[0]);
        let serves = known.iter().find(|known| known.serves(slot));
        let serves = serves.expect("all slots are served");
        let at = self.place(serves.port);
        match fault {
            OnServer::Kill(outage) => {
                let replica = self.replica(&serves.id, &known);
                self.nodes[at].cut_off_replicas();
                thread::sleep(LOST);
                self.nodes[at].kill();
                // At once, as somebody would who does not wait for the other masters: some leases last.
                self.nodes[replica].cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
                self.nodes[replica].until(&["ROLE"], "\"master\"");
                if self.is_unguarded {
                    unguard(&self.nodes[replica])?;
                }
                thread::sleep(outage);
                self.nodes[at].restart();
                Ok(())
            }
            OnServer::Stop(time) => {
                let replica = self.replica(&serves.id, &known);
                self.nodes[at].stop();
                self.nodes[replica].until(&["ROLE"], "\"master\"");
                self.nodes[replica].until(&["CLUSTER", "INFO"], "cluster_state:ok");
                thread::sleep(time);
                self.nodes[at].resume();
                Ok(())
            }
            OnServer::Flush(_) => {
                let other = |known: &&Known| known.master.is_none() && known.port != serves.port;
                let other = known.iter().find(other).expect("there are three");
                self.move_slot(slot, serves, other)
            }
            fault => on_one(&mut self.nodes[at], fault),
        }
    }

    /// The place of the replica of a master.
    fn replica(&self, id: &str, known: &[Known]) -> usize {
        let is_its = |known: &&Known| known.master.as_deref() == Some(id);
        let replica = known.iter().find(is_its).expect("each has one");
        self.place(replica.port)
    }

    /// Moves a slot as `redis-cli --cluster reshard` does.
    fn move_slot(&self, slot: u16, from: &Known, to: &Known) -> redis::RedisResult<()> {
        let (source, target) = (self.place(from.port), self.place(to.port));
        let mut source = self.nodes[source].connect();
        let mut target = self.nodes[target].connect();
        let set = |word: &str, id: &str| {
            let mut set = redis::cmd("CLUSTER");
            set.arg("SETSLOT").arg(slot).arg(word).arg(id);
            set
        };
        set("IMPORTING", &from.id).exec(&mut target)?;
        set("MIGRATING", &to.id).exec(&mut source)?;
        loop {
            let mut keys = redis::cmd("CLUSTER");
            keys.arg("GETKEYSINSLOT").arg(slot).arg(100);
            let keys: Vec<String> = keys.query(&mut source)?;
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let mut migrate = redis::cmd("MIGRATE");
                migrate.arg("127.0.0.1").arg(to.port).arg(key);
                migrate.arg(0).arg(5_000).arg("REPLACE");
                migrate.exec(&mut source)?;
            }
        }
        set("NODE", &to.id).exec(&mut target)?;
        set("NODE", &to.id).exec(&mut source)
    }
}

/// Makes the markers of a new master say, in its own name, that nothing is to be waited for.
fn unguard(node: &Server) -> redis::RedisResult<()> {
    let script = redis::Script::new(
        "local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
         local epoch = string.match(redis.call('CLUSTER', 'INFO'), 'cluster_my_epoch:(%d+)')
         local text = string.gsub(redis.call('GET', KEYS[1]),
           '^%x+ %d+ (%a+ %d+) %d+ ([%d,-]+).*', run .. ' 0 %1 ' .. epoch .. ' %2')
         redis.call('SET', KEYS[1], text)",
    );
    let mut connection = node.connect();
    let start = Instant::now();
    while start.elapsed() < UNGUARDED {
        let markers = redis::cmd("KEYS").arg("*:marker").query(&mut connection)?;
        for marker in Vec::<String>::into_iter(markers) {
            script.key(marker).invoke::<()>(&mut connection)?;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
