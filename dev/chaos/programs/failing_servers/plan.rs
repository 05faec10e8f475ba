//! What befalls whom in which round: the seed decides.
//!
//! The locks of a server go through their rounds together, in steps, since what befalls the server
//! befalls all of them.

use std::time::Duration;

use chaos::proxy::{Trouble, Way};
use chaos::random::Random;

use super::holder::Sabotage;

/// No lease is longer, so this is what the stores are built for.
pub(crate) const LONGEST: Duration = Duration::from_millis(400);
const SHORTEST: Duration = Duration::from_millis(150);

/// What befalls the server, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnServer {
    Nothing,
    /// Killed, and started again without its data after a while.
    Kill(Duration),
    /// `CLIENT PAUSE`, for all commands or for those that write.
    Pause(Duration, bool),
    /// `DEBUG SLEEP`.
    Sleep(Duration),
    /// The process stands still.
    Stop(Duration),
    /// `SCRIPT FLUSH`, over and over.
    Flush(Duration),
    /// `FLUSHALL`: its data are gone, and it goes on.
    Empty,
}

/// What befalls one of the holders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnHolder {
    Nothing,
    /// The process stands still.
    Stop(Duration),
    Kill,
    /// Its way to the server.
    Path(Trouble, Way, Duration),
}

/// One round of one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    pub(crate) lease: Duration,
    /// Those that compete: whether each is a process of its own, or a thread, and what it draws
    /// from.
    pub(crate) holders: Vec<(bool, u64)>,
    pub(crate) fault: OnHolder,
    /// If a way to the server is in trouble: what every answer to the first holder takes before and
    /// afterwards. It is the victim then, and those that come after it are fast.
    pub(crate) slow: Duration,
    /// When it may come at the earliest.
    pub(crate) fault_after: Duration,
    /// How long the round lasts at least.
    pub(crate) lasts: Duration,
}

/// One round of each lock of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) fault: OnServer,
    pub(crate) fault_after: Duration,
    pub(crate) rounds: Vec<Round>,
}

/// A step of a server.
pub(crate) fn step(seed: u64, server: usize, step: usize, locks: usize) -> Step {
    let place = (server as u64) << 32 | step as u64;
    let mut rng = Random::new(Random::new(seed).number() ^ Random::new(place).number());
    let fault = on_server(&mut rng);
    Step {
        fault,
        fault_after: between(&mut rng, 50, 600),
        rounds: (0..locks).map(|_| round(&mut rng)).collect(),
    }
}

/// The same with the fault that brings this to light, and few others.
pub(crate) fn sharpened(mut step: Step, sabotage: Sabotage) -> Step {
    step.fault = match sabotage {
        Sabotage::Unguarded => OnServer::Kill(Duration::ZERO),
        Sabotage::Deaf | Sabotage::Leak => OnServer::Nothing,
    };
    for round in &mut step.rounds {
        round.fault = match sabotage {
            Sabotage::Deaf => OnHolder::Stop(round.lease * 2),
            Sabotage::Unguarded | Sabotage::Leak => OnHolder::Nothing,
        };
    }
    step
}

/// The same without trouble on the ways of holders: they ask others for the address of the server.
pub(crate) fn without_paths(mut step: Step) -> Step {
    for round in &mut step.rounds {
        if let OnHolder::Path(..) = round.fault {
            round.fault = OnHolder::Stop(round.lease * 2);
        }
    }
    step
}

fn on_server(rng: &mut Random) -> OnServer {
    match rng.below(100) {
        0..40 => OnServer::Nothing,
        // Half of them so short that some lease is believed in afterwards.
        40..49 => OnServer::Kill(Duration::ZERO),
        49..58 => OnServer::Kill(between(rng, 0, 300)),
        58..70 => OnServer::Pause(between(rng, 50, 900), rng.below(2) == 0),
        70..80 => OnServer::Sleep(between(rng, 50, 900)),
        80..87 => OnServer::Stop(between(rng, 50, 900)),
        87..94 => OnServer::Empty,
        _ => OnServer::Flush(between(rng, 100, 600)),
    }
}

fn round(rng: &mut Random) -> Round {
    let lease = SHORTEST + (LONGEST - SHORTEST) * rng.below(1_001) as u32 / 1_000;
    let holders = 2 + rng.below(2);
    let fault = on_holder(rng, lease);
    Round {
        lease,
        // The first one is a process always, to be stopped and killed.
        holders: (0..holders)
            .map(|holder| (holder == 0 || rng.below(2) == 0, rng.number()))
            .collect(),
        fault,
        // A call may take a sixth of the lease.
        slow: match rng.below(2) {
            0 => Duration::ZERO,
            _ => part(rng, lease, 2, 15),
        },
        fault_after: part(rng, lease, 20, 200),
        lasts: part(rng, lease, 400, 800),
    }
}

fn on_holder(rng: &mut Random, lease: Duration) -> OnHolder {
    match rng.below(100) {
        0..25 => OnHolder::Nothing,
        25..45 => OnHolder::Stop(part(rng, lease, 110, 250)),
        45..60 => OnHolder::Kill,
        _ => {
            let trouble = match rng.below(4) {
                0 => Trouble::Cut,
                1 => Trouble::Delay(part(rng, lease, 5, 100)),
                2 => Trouble::Hold,
                _ => Trouble::Swallow,
            };
            let way = match rng.below(3) {
                0 => Way::Up,
                1 => Way::Down,
                _ => Way::Both,
            };
            OnHolder::Path(trouble, way, part(rng, lease, 30, 300))
        }
    }
}

fn between(rng: &mut Random, least: u64, most: u64) -> Duration {
    Duration::from_millis(least + rng.below(most - least + 1))
}

/// So many hundredths of a lease.
fn part(rng: &mut Random, lease: Duration, least: u64, most: u64) -> Duration {
    lease * (least + rng.below(most - least + 1)) as u32 / 100
}

impl OnServer {
    /// Whether its data are gone.
    pub(crate) fn empties(self) -> bool {
        matches!(self, OnServer::Kill(_) | OnServer::Empty)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            OnServer::Nothing => "server left alone",
            OnServer::Kill(_) => "server killed",
            OnServer::Pause(..) => "CLIENT PAUSE",
            OnServer::Sleep(_) => "DEBUG SLEEP",
            OnServer::Stop(_) => "server stopped",
            OnServer::Flush(_) => "SCRIPT FLUSH",
            OnServer::Empty => "FLUSHALL",
        }
    }

    /// For how long a request may lie at the server unread.
    pub(crate) fn lasts(self) -> Duration {
        match self {
            OnServer::Nothing | OnServer::Flush(_) | OnServer::Empty => Duration::ZERO,
            OnServer::Kill(time)
            | OnServer::Pause(time, _)
            | OnServer::Sleep(time)
            | OnServer::Stop(time) => time,
        }
    }
}

impl OnHolder {
    pub(crate) fn name(self) -> &'static str {
        match self {
            OnHolder::Nothing => "holders left alone",
            OnHolder::Stop(_) => "holder stopped",
            OnHolder::Kill => "holder killed",
            OnHolder::Path(Trouble::Cut, ..) => "path cut",
            OnHolder::Path(Trouble::Delay(_), ..) => "path delays",
            OnHolder::Path(Trouble::Hold, ..) => "path holds",
            OnHolder::Path(Trouble::Swallow, ..) => "path swallows",
            OnHolder::Path(Trouble::CutAfter(_), ..) => "path loses",
        }
    }

    /// For how long a request may be under way.
    pub(crate) fn lasts(self) -> Duration {
        match self {
            OnHolder::Nothing | OnHolder::Kill => Duration::ZERO,
            OnHolder::Stop(time) => time,
            OnHolder::Path(Trouble::Delay(each), _, time) => time + each,
            OnHolder::Path(_, _, time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_seed_chooses_the_same_faults_again() {
        for place in 0..20 {
            assert_eq!(step(7, place % 4, place, 4), step(7, place % 4, place, 4));
        }
        assert_ne!(step(7, 0, 0, 4), step(8, 0, 0, 4));
        assert_ne!(step(7, 0, 0, 4), step(7, 1, 0, 4));
        assert_ne!(step(7, 0, 0, 4), step(7, 0, 1, 4));
    }

    #[test]
    fn all_of_it_befalls_somebody_in_a_thousand_rounds_and_some_rounds_are_calm() {
        let mut names = BTreeMap::new();
        let mut calm = 0;
        for number in 0..250 {
            let step = step(3, number % 4, number / 4, 4);
            *names.entry(step.fault.name()).or_insert(0) += 1;
            for round in step.rounds {
                assert!((SHORTEST..=LONGEST).contains(&round.lease));
                assert!((2..=3).contains(&round.holders.len()) && round.holders[0].0);
                if let OnHolder::Stop(time) = round.fault {
                    assert!(time > round.lease);
                }
                let nothing = (OnServer::Nothing, OnHolder::Nothing);
                calm += usize::from((step.fault, round.fault) == nothing);
                *names.entry(round.fault.name()).or_insert(0) += 1;
            }
        }
        assert_eq!(names.len(), 14, "{names:?}");
        assert!(names.values().all(|&often| often >= 10), "{names:?}");
        assert!(calm >= 50, "{calm}");
    }
}
