//! What the scheduler does, written down without wheels, stripes, locks and threads: a map by key
//! and an ordered set by due moment.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

pub(crate) type Key = u8;
/// Names an arming in both worlds. The real one has ids of its own.
pub(crate) type Name = u64;

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Key(Key),
    /// One of the armings accepted so far, the newest first.
    Id(usize),
    /// Only in a task: its own id.
    Run,
    /// Only in a task: the id of what its own key has armed since it runs.
    KeepGuard,
}

/// When something shall be due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    After(Duration),
    /// At a moment so long before or after now.
    Before(Duration),
    At(Duration),
}

#[derive(Clone, Debug)]
pub(crate) enum Call {
    Schedule(When, Script),
    IfAbsent(Duration, Script),
    Reschedule(When),
    PullIn(Duration),
    Cancel,
    Get,
    /// Only in a task.
    IsCancelled,
}

/// What a task does, all of it with its own key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) calls: Vec<(Target, Call)>,
    pub(crate) panics: bool,
}

/// What a call answers, ids replaced by names, times by nanoseconds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Answer {
    Armed {
        deadline: u64,
        replaced: Option<u64>,
        after_run: bool,
    },
    Occupied,
    Full,
    Closed,
    Moved(u64),
    Unchanged(u64),
    Running,
    NotFound,
    Cancelled {
        deadline: u64,
        running: bool,
    },
    Info(Option<Info>),
    Flag(bool),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Info {
    pub(crate) name: Name,
    pub(crate) deadline: u64,
    pub(crate) state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum State {
    Pending,
    Queued,
    Running(Option<(Name, u64)>),
}

/// A run: when, which, what was due when.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ran {
    pub(crate) at: u64,
    pub(crate) key: Key,
    pub(crate) name: Name,
    pub(crate) deadline: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) scheduled: u64,
    pub(crate) ran: u64,
    pub(crate) cancelled: u64,
    pub(crate) replaced: u64,
    pub(crate) panicked: u64,
    pub(crate) pending: u64,
    pub(crate) queued: u64,
}

/// The name of what the call `index` of the arming `parent` arms.
pub(crate) fn child(parent: Name, index: usize) -> Name {
    let mut z = (parent ^ (index as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl When {
    pub(crate) fn from(self, now: u64) -> u64 {
        match self {
            When::After(by) | When::At(by) => now.saturating_add(nanos(by)),
            When::Before(by) => now.saturating_sub(nanos(by)),
        }
    }
}

struct Arming {
    name: Name,
    deadline: u64,
    /// When it runs at the earliest; never, if there is no tick for it.
    due: Option<u64>,
    queued: bool,
    script: Script,
}

struct Run {
    key: Key,
    name: Name,
    deadline: u64,
    cancelled: bool,
    kept: Option<(Name, u64, Script)>,
}

/// Where a target is found.
enum Place {
    Armed(Key),
    Run,
    KeepGuard,
    Nowhere,
}

pub(crate) struct Model {
    tick: u64,
    bound: Option<u64>,
    pub(crate) now: u64,
    /// The clock has been there.
    high: u64,
    timers: HashMap<Key, Arming>,
    due: BTreeSet<(u64, Key)>,
    run: Option<Run>,
    /// All accepted armings, in their order.
    names: Vec<Name>,
    pub(crate) counts: Counts,
    pub(crate) ran: Vec<Ran>,
    /// What tasks were answered.
    pub(crate) told: Vec<(Name, Vec<Answer>)>,
}

impl Model {
    pub(crate) fn new(tick: Duration, start: u64, bound: Option<usize>) -> Self {
        Model {
            tick: nanos(tick),
            bound: bound.map(|bound| bound as u64),
            now: start,
            high: start,
            timers: HashMap::new(),
            due: BTreeSet::new(),
            run: None,
            names: Vec::new(),
            counts: Counts::default(),
            ran: Vec::new(),
            told: Vec::new(),
        }
    }

    /// The moment that the clock has to reach again, if it was set back.
    pub(crate) fn behind(&self) -> Option<u64> {
        (self.now < self.high).then_some(self.high)
    }

    pub(crate) fn pending(&self) -> Vec<(Key, u64)> {
        let mut all: Vec<_> = self
            .timers
            .iter()
            .map(|(key, arming)| (*key, arming.deadline))
            .collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn name_of(&self, back: usize) -> Option<Name> {
        let at = self.names.len().checked_sub(1)?.checked_sub(back)?;
        Some(self.names[at])
    }

    /// Forgets what has ended; for those who go on for long.
    pub(crate) fn forget(&mut self) {
        self.names.clear();
    }

    // === time ===

    /// Everything runs at its moment, up to `to`.
    pub(crate) fn advance_to(&mut self, to: u64) {
        while let Some((due, key)) = self.due.first().copied().filter(|(due, _)| *due <= to) {
            self.set(self.now.max(due));
            self.fire(key);
        }
        self.set(self.now.max(to));
    }

    /// Everything due runs at `to`.
    pub(crate) fn jump_to(&mut self, to: u64) {
        self.set(to);
        self.settle();
    }

    pub(crate) fn set(&mut self, to: u64) {
        self.now = to;
        self.high = self.high.max(to);
    }

    pub(crate) fn settle(&mut self) {
        while let Some((_, key)) = self
            .due
            .first()
            .copied()
            .filter(|(due, _)| *due <= self.now)
        {
            self.fire(key);
        }
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(due, _)| *due)
    }

    fn fire(&mut self, key: Key) {
        let arming = self.take(key).expect("what is due is armed");
        self.counts.ran += 1;
        self.counts.pending -= 1;
        self.ran.push(Ran {
            at: self.now,
            key,
            name: arming.name,
            deadline: arming.deadline,
        });
        self.run = Some(Run {
            key,
            name: arming.name,
            deadline: arming.deadline,
            cancelled: false,
            kept: None,
        });
        let mut answers = Vec::new();
        for (index, (target, call)) in arming.script.calls.into_iter().enumerate() {
            let target = match target {
                Target::Key(_) => Target::Key(key),
                other => other,
            };
            answers.push(self.call(target, call, child(arming.name, index)));
        }
        self.told.push((arming.name, answers));
        self.counts.panicked += u64::from(arming.script.panics);
        let run = self.run.take().expect("it runs");
        if let Some((name, deadline, script)) = run.kept {
            self.file(key, name, deadline, script);
        }
    }

    // === entries ===

    fn file(&mut self, key: Key, name: Name, deadline: u64, script: Script) {
        let queued = deadline <= self.now;
        let due = if queued {
            Some(self.now)
        } else {
            deadline.div_ceil(self.tick).checked_mul(self.tick)
        };
        self.counts.queued += u64::from(queued);
        if let Some(due) = due {
            self.due.insert((due, key));
        }
        let arming = Arming {
            name,
            deadline,
            due,
            queued,
            script,
        };
        assert!(self.timers.insert(key, arming).is_none());
    }

    fn take(&mut self, key: Key) -> Option<Arming> {
        let arming = self.timers.remove(&key)?;
        self.counts.queued -= u64::from(arming.queued);
        if let Some(due) = arming.due {
            assert!(self.due.remove(&(due, key)));
        }
        Some(arming)
    }

    fn find(&self, target: Target) -> Place {
        let name = match target {
            Target::Key(key) => {
                return match &self.run {
                    Some(run) if run.key == key && run.kept.is_some() => Place::KeepGuard,
                    Some(run) if run.key == key => Place::Run,
                    _ if self.timers.contains_key(&key) => Place::Armed(key),
                    _ => Place::Nowhere,
                };
            }
            Target::Id(back) => self.name_of(back),
            Target::Run => return Place::Run,
            Target::KeepGuard => {
                let run = self.run.as_ref().expect("in a task");
                return if run.kept.is_some() {
                    Place::KeepGuard
                } else {
                    Place::Nowhere
                };
            }
        };
        self.timers
            .iter()
            .find(|(_, arming)| Some(arming.name) == name)
            .map_or(Place::Nowhere, |(key, _)| Place::Armed(*key))
    }

    // === calls ===

    pub(crate) fn call(&mut self, target: Target, call: Call, name: Name) -> Answer {
        match call {
            Call::Schedule(when, script) => {
                self.arm(target, when.from(self.now), false, name, script)
            }
            Call::IfAbsent(delay, script) => {
                let deadline = When::After(delay).from(self.now);
                self.arm(target, deadline, true, name, script)
            }
            Call::Reschedule(when) => self.move_to(target, when.from(self.now), false),
            Call::PullIn(delay) => self.move_to(target, When::After(delay).from(self.now), true),
            Call::Cancel => self.cancel(target),
            Call::Get => Answer::Info(self.get(target)),
            Call::IsCancelled => Answer::Flag(self.run.as_ref().is_some_and(|run| run.cancelled)),
        }
    }

    fn arm(
        &mut self,
        target: Target,
        deadline: u64,
        if_absent: bool,
        name: Name,
        script: Script,
    ) -> Answer {
        let Target::Key(key) = target else {
            unreachable!("only a key is armed");
        };
        let place = self.find(target);
        let (replaced, after_run) = match place {
            Place::Armed(_) => (self.timers.get(&key).map(|arming| arming.deadline), false),
            Place::KeepGuard => {
                let run = self.run.as_ref().expect("it runs");
                (run.kept.as_ref().map(|(_, deadline, _)| *deadline), true)
            }
            Place::Run => (None, true),
            Place::Nowhere => (None, false),
        };
        if if_absent && replaced.is_some() {
            return Answer::Occupied;
        }
        match replaced {
            Some(_) => self.counts.replaced += 1,
            None if self.bound.is_some_and(|bound| self.counts.pending >= bound) => {
                return Answer::Full;
            }
            None => self.counts.pending += 1,
        }
        self.counts.scheduled += 1;
        self.names.push(name);
        if after_run {
            let run = self.run.as_mut().expect("it runs");
            run.kept = Some((name, deadline, script));
        } else {
            self.take(key);
            self.file(key, name, deadline, script);
        }
        Answer::Armed {
            deadline,
            replaced,
            after_run,
        }
    }

    fn move_to(&mut self, target: Target, deadline: u64, only_earlier: bool) -> Answer {
        match self.find(target) {
            Place::Nowhere => Answer::NotFound,
            Place::Run => Answer::Running,
            Place::Armed(key) => {
                let before = self.timers[&key].deadline;
                if only_earlier && deadline >= before {
                    return Answer::Unchanged(before);
                }
                let arming = self.take(key).expect("it is armed");
                self.file(key, arming.name, deadline, arming.script);
                Answer::Moved(before)
            }
            Place::KeepGuard => {
                let run = self.run.as_mut().expect("it runs");
                let (_, kept, _) = run.kept.as_mut().expect("it is kept");
                let before = *kept;
                if only_earlier && deadline >= before {
                    return Answer::Unchanged(before);
                }
                *kept = deadline;
                Answer::Moved(before)
            }
        }
    }

    pub(crate) fn cancel(&mut self, target: Target) -> Answer {
        // The run is told by its key and by its own id, not by the id of the kept arming.
        let tell = !matches!(target, Target::KeepGuard | Target::Id(_));
        match self.find(target) {
            Place::Nowhere => Answer::NotFound,
            Place::Armed(key) => {
                let arming = self.take(key).expect("it is armed");
                self.counts.cancelled += 1;
                self.counts.pending -= 1;
                Answer::Cancelled {
                    deadline: arming.deadline,
                    running: false,
                }
            }
            Place::Run => {
                self.run.as_mut().expect("it runs").cancelled = true;
                Answer::Running
            }
            Place::KeepGuard => {
                let run = self.run.as_mut().expect("it runs");
                run.cancelled |= tell;
                let (_, deadline, _) = run.kept.take().expect("it is kept");
                self.counts.cancelled += 1;
                self.counts.pending -= 1;
                Answer::Cancelled {
                    deadline,
                    running: true,
                }
            }
        }
    }

    pub(crate) fn cancel_all(&mut self) -> usize {
        let keys: Vec<Key> = self.timers.keys().copied().collect();
        for key in &keys {
            self.cancel(Target::Key(*key));
        }
        keys.len()
    }

    pub(crate) fn get(&self, target: Target) -> Option<Info> {
        let run = self.run.as_ref();
        let kept = run.and_then(|run| run.kept.as_ref());
        let kept = kept.map(|(name, deadline, _)| (*name, *deadline));
        match (self.find(target), target) {
            (Place::Nowhere, _) => None,
            (Place::Armed(key), _) => {
                let arming = &self.timers[&key];
                Some(Info {
                    name: arming.name,
                    deadline: arming.deadline,
                    state: if arming.queued {
                        State::Queued
                    } else {
                        State::Pending
                    },
                })
            }
            (Place::KeepGuard, Target::KeepGuard) => kept.map(|(name, deadline)| Info {
                name,
                deadline,
                state: State::Pending,
            }),
            (Place::Run | Place::KeepGuard, _) => run.map(|run| Info {
                name: run.name,
                deadline: run.deadline,
                state: State::Running(kept),
            }),
        }
    }
}
