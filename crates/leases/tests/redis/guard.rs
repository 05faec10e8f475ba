//! `guard.lua` against a world in which servers restart, lose data, are replaced, and give slots away: is
//! a name ever granted while somebody may still believe to hold it?
//!
//! The script runs on a server, and what it asks the server for comes from the world. So its time is
//! that of the world, and thousands of calls take a second.

use std::collections::BTreeMap;

use chaos::random::Random;
use chaos::servers::redis::Server;
use redis::{Connection, Script};

/// Times are microseconds.
const SECOND: u64 = 1_000_000;
const LEASE: u64 = 30 * SECOND;
/// For so long holders may renew on a server that was replaced.
const LATER: u64 = 10 * SECOND;
/// The slots of the names. Each name has a slot of its own.
const SLOTS: [u64; 6] = [0, 1, 2, 7_000, 7_001, 16_383];
const NODES: usize = 3;

/// The guard with a server that answers from the arguments: the sections of INFO, the text of CLUSTER NODES, the
/// marker, the time, the longest lease, the epoch, and the slot.
const HARNESS: (&str, &str) = (
    "local written = ''
     local redis = {}
     function redis.call(command, what, value)
       if command == 'INFO' then return ARGV[1] end
       if command == 'CLUSTER' then return ARGV[2] end
       if command == 'GET' then return ARGV[3] ~= '' and ARGV[3] end
       if command == 'SET' then written = value end
     end
     redis.pcall = redis.call\n",
    "local longest = tonumber(ARGV[6])
     local answer = guard('marker', longest, false, {ARGV[4], ARGV[5]}, longest, true, tonumber(ARGV[7]),
       tonumber(ARGV[8])) or {0}
     return {tostring(answer.err or answer[1]), string.format('%.0f', answer[2] or 0), written}",
);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Single,
    Sentinel,
    Cluster,
}

/// What a server has, and what a restart or a failover may put back to an earlier state.
#[derive(Clone, Default)]
struct Data {
    marker: Option<String>,
    /// The end of the lease of each name that it knows.
    ends: BTreeMap<u64, u64>,
}

struct Node {
    run: u64,
    started: u64,
    epoch: i64,
    slots: Vec<u64>,
    data: Data,
    /// What its replica has, and what is on its disk.
    copies: [Data; 2],
}

struct World {
    kind: Kind,
    script: Script,
    connection: Connection,
    rng: Random,
    now: u64,
    runs: u64,
    nodes: Vec<Node>,
    /// Until when somebody may believe to hold the name.
    believed: BTreeMap<u64, u64>,
    /// What has happened, for a failure.
    log: Vec<String>,
    grants: usize,
    waits: usize,
}

enum Answer {
    Granted,
    Held,
    /// Nothing is granted for so long.
    Waits(u64),
}

/// What was found: a grant while somebody may hold the name, or one that never comes.
type Found = Result<(), String>;

impl World {
    fn new(kind: Kind, seed: u64, guard: &str, connection: Connection) -> Self {
        let mut world = World {
            kind,
            script: Script::new(&[HARNESS.0, guard, HARNESS.1].concat()),
            connection,
            rng: Random::new(seed),
            now: 1_700_000_000 * SECOND,
            runs: 0,
            nodes: Vec::new(),
            believed: BTreeMap::new(),
            log: Vec::new(),
            grants: 0,
            waits: 0,
        };
        let number = if kind == Kind::Cluster { NODES } else { 1 };
        for at in 0..number {
            let slots = SLOTS.iter().enumerate();
            let own = slots.filter(|(slot, _)| slot % number == at);
            let slots = own.map(|(_, slot)| *slot).collect();
            let node = Node {
                run: world.run(),
                started: world.now,
                epoch: match kind {
                    Kind::Single => -1,
                    Kind::Sentinel | Kind::Cluster => i64::try_from(at).expect("few nodes"),
                },
                slots,
                data: Data::default(),
                copies: [Data::default(), Data::default()],
            };
            world.nodes.push(node);
        }
        world
    }

    fn run(&mut self) -> u64 {
        self.runs += 1;
        0xabc0_0000 + self.runs
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).expect("it is below a usize")
    }

    fn greatest_epoch(&self) -> i64 {
        let epochs = self.nodes.iter().map(|node| node.epoch);
        epochs.max().expect("there is a node")
    }

    fn owner(&self, slot: u64) -> usize {
        let serves = |node: &Node| node.slots.contains(&slot);
        self.nodes
            .iter()
            .position(serves)
            .expect("each slot is served")
    }

    /// Asks the script whether the node may grant a name of this slot. Returns its answer: what, and for how
    /// long.
    fn ask(&mut self, at: usize, slot: u64) -> redis::RedisResult<(String, u64)> {
        let node = &mut self.nodes[at];
        let uptime = self.now / SECOND - node.started / SECOND;
        let info = format!(
            "run_id:{:x}\r\nuptime_in_seconds:{uptime}\r\nevicted_keys:0\r\n",
            node.run
        );
        let slot = (self.kind == Kind::Cluster).then(|| slot.to_string());
        let answer = self
            .script
            .arg(info)
            .arg(nodes_text(node))
            .arg(node.data.marker.as_deref().unwrap_or_default())
            .arg(self.now / SECOND)
            .arg(self.now % SECOND)
            .arg(LEASE)
            .arg(node.epoch)
            .arg(slot.unwrap_or_default())
            .invoke(&mut self.connection);
        let (what, time, written): (String, u64, String) = answer?;
        if !written.is_empty() {
            node.data.marker = Some(written);
        }
        Ok((what, time))
    }

    fn acquire(&mut self, slot: u64) -> Result<Answer, String> {
        let at = self.owner(slot);
        if self.nodes[at].data.ends.get(&slot) > Some(&self.now) {
            return Ok(Answer::Held);
        }
        let (what, time) = self.ask(at, slot).map_err(|error| error.to_string())?;
        match &*what {
            "0" => {
                let believed = self.believed.get(&slot).copied().unwrap_or_default();
                if believed > self.now {
                    let left = believed - self.now;
                    return Err(format!("slot {slot} is granted, {left} us too early"));
                }
                self.grants += 1;
                let end = self.now + LEASE;
                self.nodes[at].data.ends.insert(slot, end);
                self.believed.insert(slot, end);
                Ok(Answer::Granted)
            }
            // What is NEW waits for one term, and then what has come since.
            "2" if time > 0 && time <= 2 * (LEASE + LATER) + SECOND => {
                self.waits += 1;
                Ok(Answer::Waits(time))
            }
            _ => Err(format!("the guard answers {what} {time}")),
        }
    }

    fn renew(&mut self, slot: u64) {
        let (now, at) = (self.now, self.owner(slot));
        if let Some(end) = self.nodes[at].data.ends.get_mut(&slot)
            && *end > now
            && self.believed.get(&slot) > Some(&now)
        {
            *end = now + LEASE;
            self.believed.insert(slot, now + LEASE);
        }
    }

    fn release(&mut self, slot: u64) {
        let at = self.owner(slot);
        if self.nodes[at].data.ends.remove(&slot).is_some() {
            self.believed.remove(&slot);
        }
    }

    /// The node restarts: without its data, or with what was on its disk some time ago.
    fn restart(&mut self, at: usize, is_empty: bool) {
        self.nodes[at].run = self.run();
        let (now, node) = (self.now, &mut self.nodes[at]);
        node.started = now;
        node.data = if is_empty {
            Data::default()
        } else {
            node.copies[1].clone()
        };
    }

    /// A replica takes the place of the node. It has been up for long.
    fn replace(&mut self, at: usize) {
        let (epoch, run) = (self.greatest_epoch() + 1, self.run());
        let more = self.rng.below(LATER + 1);
        let now = self.now;
        let node = &mut self.nodes[at];
        // Its holders renew there until they hear of it.
        for (slot, end) in &node.data.ends {
            if let Some(believed) = self.believed.get_mut(slot)
                && *end > now
                && *believed > now
            {
                *believed = now + more + LEASE;
            }
        }
        node.epoch = epoch;
        node.run = run;
        node.started = now - 100_000 * SECOND;
        node.data = node.copies[0].clone();
        node.copies[1] = node.data.clone();
    }

    /// A slot goes to another node, with the lock if the node still has it.
    fn give_slot(&mut self, slot: u64, to: usize) {
        let from = self.owner(slot);
        if from == to {
            return;
        }
        self.nodes[from].slots.retain(|own| *own != slot);
        self.nodes[to].slots.push(slot);
        if let Some(end) = self.nodes[from].data.ends.remove(&slot) {
            self.nodes[to].data.ends.insert(slot, end);
        }
        let greatest = self.greatest_epoch();
        if self.nodes[to].epoch != greatest {
            self.nodes[to].epoch = greatest + 1;
        }
    }

    /// One step. What happens is the seed's.
    fn step(&mut self) -> Found {
        let slot = SLOTS[self.below(SLOTS.len())];
        let at = self.below(self.nodes.len());
        let what = match self.below(100) {
            0..40 => match self.acquire(slot)? {
                Answer::Granted => format!("slot {slot} is granted"),
                Answer::Held => format!("slot {slot} is held"),
                Answer::Waits(time) => format!("slot {slot} waits for {time} us"),
            },
            40..55 => {
                self.renew(slot);
                format!("slot {slot} is renewed")
            }
            55..60 => {
                self.release(slot);
                format!("slot {slot} is released")
            }
            60..75 => {
                let most = [SECOND, 5 * SECOND, LEASE, 2 * LEASE][self.below(4)];
                self.now += self.rng.below(most);
                "time passes".to_owned()
            }
            75..88 => {
                let copy = self.below(2);
                self.nodes[at].copies[copy] = self.nodes[at].data.clone();
                format!(
                    "node {at} is copied to {}",
                    ["its replica", "its disk"][copy]
                )
            }
            88..91 => {
                let is_empty = self.below(2) == 0;
                self.restart(at, is_empty);
                format!("node {at} restarts, empty: {is_empty}")
            }
            91..94 if self.kind != Kind::Single => {
                self.replace(at);
                format!("node {at} is replaced")
            }
            94..99 if self.kind == Kind::Cluster => {
                self.give_slot(slot, at);
                format!("slot {slot} goes to node {at}")
            }
            99 => {
                self.nodes[at].data.marker = None;
                format!("node {at} loses its marker")
            }
            _ => return Ok(()),
        };
        self.log
            .push(format!("{} us: {what}", self.now % (1_000 * SECOND)));
        Ok(())
    }

    /// When nothing fails any more, each name is granted after the wait that the node names, or is held.
    fn end(&mut self) -> Found {
        self.now += LEASE;
        for slot in SLOTS {
            for _ in 0..3 {
                match self.acquire(slot)? {
                    Answer::Granted => break,
                    Answer::Held => self.now += LEASE,
                    Answer::Waits(time) => self.now += time,
                }
            }
            if self.nodes[self.owner(slot)].data.ends.get(&slot) <= Some(&self.now) {
                return Err(format!("slot {slot} is not granted after all waits"));
            }
        }
        Ok(())
    }
}

/// A line of `CLUSTER NODES` about the node itself, and one about another.
fn nodes_text(node: &Node) -> String {
    let slots: Vec<_> = node.slots.iter().map(u64::to_string).collect();
    format!(
        "07c3 127.0.0.1:30004@31004 master - 0 1426238317239 4 connected 3-4\n\
         e7d1 127.0.0.1:30001@31001 myself,master - 0 0 {} connected {}\n",
        node.epoch,
        slots.join(" ")
    )
}

/// Worlds of each kind, one after the other, until something is found.
fn found(server: &Server, guard: &str, kinds: &[Kind], worlds: u64) -> Option<String> {
    let (mut grants, mut waits) = (0, 0);
    for &kind in kinds {
        for seed in 0..worlds {
            let mut world = World::new(kind, seed, guard, server.connect());
            let mut outcome = Ok(());
            for _ in 0..200 {
                outcome = outcome.and_then(|()| world.step());
            }
            if let Err(found) = outcome.and_then(|()| world.end()) {
                let from = world.log.len().saturating_sub(40);
                let log = world.log[from..].join("\n");
                return Some(format!("{kind:?}, seed {seed}: {found}\n{log}"));
            }
            grants += world.grants;
            waits += world.waits;
        }
    }
    assert!(
        grants > 100 && waits > 100,
        "{grants} grants, {waits} waits"
    );
    None
}

const GUARD: &str = include_str!("../../src/redis/guard.lua");
const KINDS: [Kind; 3] = [Kind::Single, Kind::Sentinel, Kind::Cluster];

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn nothing_is_granted_while_somebody_may_hold_it() {
    let found = found(&Server::start(), GUARD, &KINDS, 400);
    assert_eq!(found, None, "{}", found.as_deref().unwrap_or_default());
}

/// Each of these lines keeps a promise: without it, the worlds above find a fault.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_worlds_find_what_a_wrong_guard_does() {
    use Kind::{Cluster, Sentinel, Single};
    let server = Server::start();
    let cases = [
        (
            Single,
            "elseif of ~= run then",
            "elseif false then",
            "a restart with old data is nothing",
        ),
        (
            Single,
            "rest, why = longest + later, 'empty'",
            "rest, why = 0, 'empty'",
            "a loss is nothing",
        ),
        (
            Sentinel,
            "if watched and (of ~= (run or '0') or last >= 0 and epoch > last) then",
            "if watched and last >= 0 and epoch > last and of == run then",
            "the uptime excuses another run",
        ),
        (
            Sentinel,
            "local LATER = 10000000",
            "local LATER = 0",
            "nobody renews on the old server",
        ),
        (
            Cluster,
            "local came = slot and not is_old and not has(new, slot)",
            "local came = false",
            "a slot that comes waits for nothing",
        ),
        (
            Cluster,
            "if watched and (of ~= (run or '0') or last >= 0 and epoch > last) then",
            "if watched and of ~= (run or '0') and epoch == last then",
            "a failover is nothing",
        ),
        (
            Cluster,
            "old, old_ends = new, rest > 0 and its_end or 0",
            "old, old_ends = new, 0",
            "a slot that comes ends the wait of the others",
        ),
    ];
    for (kind, line, wrong, what) in cases {
        assert_eq!(GUARD.matches(line).count(), 1, "{line}");
        let guard = GUARD.replace(line, wrong);
        assert!(
            found(&server, &guard, &[kind], 300).is_some(),
            "not found: {what}"
        );
    }
}
