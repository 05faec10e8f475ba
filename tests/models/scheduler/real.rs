//! The scheduler, spoken to in the model's words.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tourbillon::test_util::{Fired, Stepped};
use tourbillon::{
    Cancel, Firing, Handle, PullIn, Reschedule, ScheduleError, Scheduled, Shutdown, Time, TimerId,
    TimerInfo, TimerState,
};

use super::plain::{
    Answer, Call, Counts, Info, Key, Name, Ran, Script, State, Target, When, child,
};

/// What tasks and the test write down.
#[derive(Default)]
pub(crate) struct Notes {
    names: HashMap<TimerId, Name>,
    ids: HashMap<Name, TimerId>,
    told: Vec<(Name, Vec<Answer>)>,
}

impl Notes {
    fn name(&self, id: TimerId) -> Name {
        *self.names.get(&id).expect("an id that was given out")
    }

    fn info(&self, info: TimerInfo) -> Info {
        Info {
            name: self.name(info.id),
            deadline: info.deadline.as_nanos(),
            state: match info.state {
                TimerState::Pending => State::Pending,
                TimerState::Queued => State::Queued,
                TimerState::Running { next } => {
                    State::Running(next.map(|(id, at)| (self.name(id), at.as_nanos())))
                }
                other => panic!("an unknown state: {other:?}"),
            },
        }
    }
}

type Shared = Arc<Mutex<Notes>>;

/// One at a time, and never while a call is under way.
fn note<R>(notes: &Shared, write: impl FnOnce(&mut Notes) -> R) -> R {
    write(&mut notes.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) struct Real {
    pub(crate) scheduler: Stepped<Key>,
    handle: Handle<Key>,
    notes: Shared,
}

impl Real {
    pub(crate) fn new(scheduler: Stepped<Key>) -> Self {
        Real {
            handle: scheduler.handle(),
            scheduler,
            notes: Shared::default(),
        }
    }

    /// `id` is the arming that the target means, if it is named by one.
    pub(crate) fn call(&self, target: Target, id: Option<Name>, call: Call, name: Name) -> Answer {
        let id = id.and_then(|id| note(&self.notes, |notes| notes.ids.get(&id).copied()));
        perform(&self.handle, &self.notes, target, id, call, name)
    }

    pub(crate) fn schedule_many(
        &self,
        timers: &[(Key, Duration, Script)],
        name: Name,
    ) -> Vec<Answer> {
        let armings = timers.iter().enumerate();
        let armings = armings.map(|(number, (key, delay, script))| {
            let (notes, script) = (Arc::clone(&self.notes), script.clone());
            let name = child(name, number);
            let task = move |firing: &Firing<'_, Key>| follow(firing, &notes, name, script);
            (*key, *delay, task)
        });
        let answers = self.handle.schedule_many(armings);
        assert_eq!(answers.len(), timers.len());
        let answers = answers.into_iter().enumerate();
        let answers = answers.map(|(at, answer)| armed(&self.notes, child(name, at), answer));
        answers.collect()
    }

    pub(crate) fn reschedule_many(&self, keys: &[Key], delay: Duration) -> Vec<Answer> {
        let answers = self.handle.reschedule_many(keys, delay);
        answers.into_iter().map(moved).collect()
    }

    pub(crate) fn cancel_many(&self, keys: &[Key]) -> Vec<Answer> {
        let answers = self.handle.cancel_many(keys);
        answers.into_iter().map(cancelled).collect()
    }

    pub(crate) fn reschedule_ids(
        &self,
        names: impl Iterator<Item = Name>,
        delay: Duration,
    ) -> Vec<Answer> {
        let answers = self.handle.by_ids(self.ids(names)).reschedule(delay);
        answers.into_iter().map(moved).collect()
    }

    pub(crate) fn cancel_ids(&self, names: impl Iterator<Item = Name>) -> Vec<Answer> {
        let answers = self.handle.by_ids(self.ids(names)).cancel();
        answers.into_iter().map(cancelled).collect()
    }

    fn ids(&self, names: impl Iterator<Item = Name>) -> Vec<TimerId> {
        note(&self.notes, |notes| {
            names.map(|name| notes.ids[&name]).collect()
        })
    }

    pub(crate) fn cancel_all(&self) -> usize {
        self.handle.cancel_all()
    }

    pub(crate) fn len(&self) -> usize {
        let len = self.handle.len();
        assert_eq!(self.handle.is_empty(), len == 0);
        len
    }

    pub(crate) fn get(&self, key: Key) -> Option<Info> {
        let info = self.handle.get(&key)?;
        assert!(self.handle.contains(&key));
        assert_eq!(self.handle.by_id(info.id).get(), Some(info));
        Some(note(&self.notes, |notes| notes.info(info)))
    }

    pub(crate) fn pending(&self) -> Vec<(Key, u64)> {
        let mut all: Vec<_> = self
            .handle
            .pending()
            .map(|(key, info)| (key, info.deadline.as_nanos()))
            .collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn counts(&self) -> Counts {
        let stats = self.handle.stats();
        assert!(stats.balances(), "{stats:?}");
        assert_eq!((stats.running, stats.ticker_panics), (0, 0));
        assert_eq!(stats.lateness().count, stats.ran);
        Counts {
            scheduled: stats.scheduled,
            ran: stats.ran,
            cancelled: stats.cancelled,
            replaced: stats.replaced,
            panicked: stats.panicked,
            pending: stats.pending,
            queued: stats.queued,
        }
    }

    /// Runs in the model's words. Their moments never go back.
    pub(crate) fn ran(&self, fired: &[Fired<Key>]) -> Vec<Ran> {
        assert!(fired.is_sorted_by_key(|fired| fired.at), "{fired:?}");
        note(&self.notes, |notes| {
            fired
                .iter()
                .map(|fired| Ran {
                    at: fired.at.as_nanos(),
                    key: fired.key,
                    name: notes.name(fired.id),
                    deadline: fired.deadline.as_nanos(),
                })
                .collect()
        })
    }

    /// What tasks were answered since the last look.
    pub(crate) fn told(&self) -> Vec<(Name, Vec<Answer>)> {
        note(&self.notes, |notes| std::mem::take(&mut notes.told))
    }

    /// Forgets the names of what has ended; for those who go on for long.
    pub(crate) fn forget(&self) {
        note(&self.notes, |notes| *notes = Notes::default());
    }

    /// Shuts down, and tells what came back.
    pub(crate) fn hand_back(&self) -> Vec<(Key, u64)> {
        let report = self.scheduler.shutdown(Shutdown::HandBack);
        assert_eq!((report.still_running, report.already_closed), (0, false));
        let mut all: Vec<_> = report
            .handed_back
            .iter()
            .map(|back| (back.key, back.deadline.as_nanos()))
            .collect();
        all.sort_unstable();
        let stats = self.handle.stats();
        assert!(stats.balances());
        assert_eq!((stats.handed_back, stats.pending), (all.len() as u64, 0));
        all
    }
}

fn moved(answer: Reschedule) -> Answer {
    match answer {
        Reschedule::Moved { before } => Answer::Moved(before.as_nanos()),
        Reschedule::Running => Answer::Running,
        Reschedule::NotFound => Answer::NotFound,
        other => panic!("{other:?}"),
    }
}

fn pulled(answer: PullIn) -> Answer {
    match answer {
        PullIn::Moved { before } => Answer::Moved(before.as_nanos()),
        PullIn::Unchanged { deadline } => Answer::Unchanged(deadline.as_nanos()),
        PullIn::Running => Answer::Running,
        PullIn::NotFound => Answer::NotFound,
        other => panic!("{other:?}"),
    }
}

fn cancelled(answer: Cancel) -> Answer {
    match answer {
        Cancel::Cancelled { deadline, running } => Answer::Cancelled {
            deadline: deadline.as_nanos(),
            running,
        },
        Cancel::Running => Answer::Running,
        Cancel::NotFound => Answer::NotFound,
        other => panic!("{other:?}"),
    }
}

fn armed<F>(notes: &Shared, name: Name, answer: Result<Scheduled, ScheduleError<F>>) -> Answer {
    match answer {
        Ok(accepted) => {
            note(notes, |notes| {
                let before = notes.names.insert(accepted.id, name);
                assert_eq!(before, None, "an id was given out twice");
                notes.ids.insert(name, accepted.id);
            });
            Answer::Armed {
                deadline: accepted.deadline.as_nanos(),
                replaced: accepted.replaced.map(Time::as_nanos),
                after_run: accepted.after_run,
            }
        }
        Err(ScheduleError::Occupied(_)) => Answer::Occupied,
        Err(ScheduleError::Full(_)) => Answer::Full,
        Err(ScheduleError::Closed(_)) => Answer::Closed,
        Err(other) => panic!("an unexpected refusal: {other}"),
    }
}

/// `id` is what the target names, unless that is a key. Without it, nobody was ever given it.
fn perform(
    handle: &Handle<Key>,
    notes: &Shared,
    target: Target,
    id: Option<TimerId>,
    call: Call,
    name: Name,
) -> Answer {
    let moment = |when: When| Time::from_nanos(when.from(handle.now().as_nanos()));
    let Target::Key(key) = target else {
        let Some(id) = id else {
            return match call {
                Call::Get => Answer::Info(None),
                _ => Answer::NotFound,
            };
        };
        let timer = handle.by_id(id);
        return match call {
            Call::Reschedule(When::After(delay)) => moved(timer.reschedule(delay)),
            Call::Reschedule(when) => moved(timer.reschedule(moment(when))),
            Call::PullIn(delay) => pulled(timer.pull_in(delay)),
            Call::Cancel => cancelled(timer.cancel()),
            Call::Get => {
                let info = timer.get();
                Answer::Info(info.map(|info| note(notes, |notes| notes.info(info))))
            }
            Call::Schedule(..) | Call::IfAbsent(..) | Call::IsCancelled => {
                unreachable!("{call:?} is not by id")
            }
        };
    };
    let task = |script: Script| {
        let notes = Arc::clone(notes);
        move |firing: &Firing<'_, Key>| follow(firing, &notes, name, script)
    };
    match call {
        Call::Schedule(When::After(delay), script) => {
            armed(notes, name, handle.schedule(key, delay, task(script)))
        }
        Call::Schedule(when, script) => armed(
            notes,
            name,
            handle.schedule(key, moment(when), task(script)),
        ),
        Call::IfAbsent(delay, script) => {
            let answer = handle.schedule_if_absent(key, delay, task(script));
            armed(notes, name, answer)
        }
        Call::Reschedule(When::After(delay)) => moved(handle.reschedule(&key, delay)),
        Call::Reschedule(when) => moved(handle.reschedule(&key, moment(when))),
        Call::PullIn(delay) => pulled(handle.pull_in(&key, delay)),
        Call::Cancel => cancelled(handle.cancel(&key)),
        Call::Get => {
            let info = handle.get(&key);
            Answer::Info(info.map(|info| note(notes, |notes| notes.info(info))))
        }
        Call::IsCancelled => unreachable!("only in a task"),
    }
}

/// A task.
fn follow(firing: &Firing<'_, Key>, notes: &Shared, name: Name, script: Script) {
    let mut kept = None;
    let mut answers = Vec::new();
    for (index, (target, call)) in script.calls.into_iter().enumerate() {
        let (target, id) = match target {
            Target::Key(_) => (Target::Key(*firing.key()), None),
            Target::Run => (Target::Run, Some(firing.id())),
            other => (other, kept),
        };
        let child = child(name, index);
        answers.push(match call {
            Call::IsCancelled => Answer::Flag(firing.is_cancelled()),
            call => perform(firing.handle(), notes, target, id, call, child),
        });
        // Stale once it was replaced by the next; and when it was cancelled.
        kept = note(notes, |notes| notes.ids.get(&child).copied()).or(kept);
    }
    note(notes, |notes| {
        assert_eq!(notes.name(firing.id()), name);
        notes.told.push((name, answers));
    });
    if script.panics {
        // Without the panic hook, which would print each.
        resume_unwind(Box::new("as planned"));
    }
}
