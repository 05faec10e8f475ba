//! What each command does.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::CommandFactory;
use serde_json::{Value, json};
use tourbillon_durable::{
    CallError, CancelAnswer, DeadFilter, DeadTimer, Durable, Paging, Postgres, QueueCounts,
    RescheduleAnswer, Revived, StoredNode, StoredTimer, TimerFilter,
};
use tourbillon_leases::{LeaseStore, LockPaging};
use tourbillon_web::json as of;
use tourbillon_web::times::{Moment, distance, short, time};
use tourbillon_web::{schedules, why};

use crate::args::{Args, Command, DeadArgs, LettersArgs, LocksArgs, TimersArgs};
use crate::failure::Failure;
use crate::show::{ANY_WIDTH, number, write_letters, write_nodes, write_queues, write_timers};
use crate::stores::within;
use crate::{serve, stores, table, watch};

/// The greatest number of timers that one call of the store returns here.
const PAGE: u32 = 1_000;

type Done = Result<(), Failure>;

/// Runs a command, and writes what it has found to the output.
pub(crate) fn run(args: &Args) -> Done {
    let mut out = io::stdout().lock();
    match &args.command {
        Command::Schema => {
            let schema = Postgres::in_schema(Postgres::SCHEMA, &args.store.schema)?;
            writeln!(out, "{schema}")?;
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "tourbillon", &mut text);
            out.write_all(&text)?;
        }
        Command::Locks {
            store,
            names,
            limit,
        } => locks(&mut out, args, store, names, *limit)?,
        command => {
            let session = Session {
                timers: stores::open(&args.store)?,
                limit: args.store.timeout,
                json: args.json,
            };
            session.run(&mut out, command)?;
        }
    }
    Ok(out.flush()?)
}

/// A store, and how its answers are shown.
pub(crate) struct Session {
    timers: Durable,
    limit: Duration,
    json: bool,
}

impl Session {
    fn run(&self, out: &mut impl Write, command: &Command) -> Done {
        let (timers, limit) = (&self.timers, self.limit);
        match command {
            Command::Queues => {
                let counts = self.counts()?;
                match self.json {
                    true => self.objects(out, counts.iter().map(of::queue)),
                    false => Ok(write_queues(out, &counts, ANY_WIDTH)?),
                }
            }
            Command::List {
                queue,
                keys,
                state,
                schedules: alone,
                limit: most,
            } => {
                let filter = queue
                    .as_deref()
                    .map_or_else(TimerFilter::all, TimerFilter::queue);
                let filter = filter.prefix(keys.as_deref().unwrap_or_default());
                let filter = match state {
                    Some(state) => filter.state((*state).into()),
                    None => filter,
                };
                let (filter, nodes) = match alone {
                    true => (filter.schedules(), Some(self.nodes()?)),
                    false => (filter, None),
                };
                let nodes = nodes.as_deref();
                let found = timers
                    .list(filter, &Paging::first(*most))
                    .within(limit)
                    .wait()?;
                match self.json {
                    true => self.objects(
                        out,
                        found.iter().map(|timer| {
                            let mut object = of::timer(timer);
                            object["schedule"] = schedules::json(timer, nodes, None);
                            object
                        }),
                    ),
                    false => Ok(write_timers(out, &found, nodes, ANY_WIDTH)?),
                }
            }
            Command::Show { queue, key } => {
                let found = timers.get(queue, key).within(limit).wait()?;
                let timer = found.ok_or_else(|| none(queue, key))?;
                self.show(out, &timer)
            }
            Command::Move { queue, key, when } => {
                let moved = match when {
                    Moment::After(span) => timers.reschedule(queue, key, *span),
                    Moment::At(at) => timers.reschedule(queue, key, *at),
                };
                let answer = moved.within(limit).wait()?;
                self.moved(out, queue, key, answer)
            }
            Command::RunNow { timers: which } => self.each(out, which, "is due now", |key| {
                let answer = timers.run_now(&which.queue, key).within(limit).wait()?;
                Ok(match answer {
                    RescheduleAnswer::Moved { .. } => Some(true),
                    RescheduleAnswer::NotFound => None,
                    _ => Some(false),
                })
            }),
            Command::Cancel { timers: which } => {
                if !which.yes {
                    return Err(Failure::Usage("it destroys timers: add --yes".to_owned()));
                }
                self.each(out, which, "is cancelled", |key| {
                    let answer = timers.cancel(&which.queue, key).within(limit).wait()?;
                    Ok(match answer {
                        CancelAnswer::Cancelled { .. } => Some(true),
                        CancelAnswer::NotFound => None,
                        _ => Some(false),
                    })
                })
            }
            Command::Pause {
                queue,
                key: Some(key),
            } => match timers.pause_schedule(queue, key).within(limit).wait()? {
                true => self.said(
                    out,
                    &json!({"queue": queue, "key": key, "paused": true}),
                    &format!("{queue} {key} is paused"),
                ),
                false => Err(no_schedule(queue, key)),
            },
            Command::Resume {
                queue,
                key: Some(key),
            } => match timers.resume_schedule(queue, key).within(limit).wait()? {
                true => self.said(
                    out,
                    &json!({"queue": queue, "key": key, "paused": false}),
                    &format!("{queue} {key} goes on"),
                ),
                false => Err(no_schedule(queue, key)),
            },
            Command::Pause { queue, key: None } => {
                timers.pause(queue).within(limit).wait()?;
                self.said(
                    out,
                    &json!({"queue": queue, "paused": true}),
                    &format!("{queue} is paused"),
                )
            }
            Command::Resume { queue, key: None } => {
                timers.resume(queue).within(limit).wait()?;
                self.said(
                    out,
                    &json!({"queue": queue, "paused": false}),
                    &format!("{queue} goes on"),
                )
            }
            Command::Dead {
                filter,
                limit: most,
                after,
            } => {
                let found = timers.dead(dead_filter(filter), *after, *most);
                let found = found.within(limit).wait()?;
                match self.json {
                    true => self.objects(out, found.iter().map(letter)),
                    false => Ok(write_letters(out, &found)?),
                }
            }
            Command::Revive { letters } => self.revive(out, letters),
            Command::Discard { letters } => self.discard(out, letters),
            Command::Nodes { all } => {
                let mut nodes = timers.nodes().within(limit).wait()?;
                nodes.retain(|node| *all || node.gone.is_none());
                match self.json {
                    true => self.objects(out, nodes.iter().map(of::node)),
                    false => Ok(write_nodes(out, &nodes, ANY_WIDTH)?),
                }
            }
            Command::Watch { every, times } => watch::run(self, out, *every, *times),
            Command::Check { behind } => self.check(out, *behind),
            Command::Serve { page } => serve::run(timers, page, limit, &mut |line| {
                writeln!(out, "{line}").and_then(|()| out.flush())
            }),
            Command::Schema | Command::Completions { .. } | Command::Locks { .. } => {
                unreachable!("they need no timers")
            }
        }
    }

    pub(crate) fn counts(&self) -> Result<Vec<QueueCounts>, CallError> {
        self.timers.counts().within(self.limit).wait()
    }

    pub(crate) fn nodes(&self) -> Result<Vec<StoredNode>, CallError> {
        let mut nodes = self.timers.nodes().within(self.limit).wait()?;
        nodes.retain(|node| node.gone.is_none());
        Ok(nodes)
    }

    pub(crate) fn next(&self, most: u32) -> Result<Vec<StoredTimer>, CallError> {
        let next = self.timers.list(TimerFilter::all(), &Paging::first(most));
        next.within(self.limit).wait()
    }

    /// Writes a list of objects, or one line.
    fn objects(&self, out: &mut impl Write, objects: impl Iterator<Item = Value>) -> Done {
        write_json(out, &Value::Array(objects.collect()))
    }

    fn said(&self, out: &mut impl Write, object: &Value, line: &str) -> Done {
        match self.json {
            true => write_json(out, object),
            false => Ok(writeln!(out, "{}", table::plain(line))?),
        }
    }

    fn show(&self, out: &mut impl Write, timer: &StoredTimer) -> Done {
        if self.json {
            let mut object = of::timer(timer);
            let nodes = self.nodes()?;
            object["schedule"] = schedules::json(timer, Some(&nodes), Some(SystemTime::now()));
            object["payload"] = of::parsed(&timer.payload);
            object["meta"] = timer
                .meta
                .as_ref()
                .map_or(Value::Null, |meta| of::parsed(meta.as_str()));
            return write_json(out, &object);
        }
        let (now, nodes) = (SystemTime::now(), self.nodes()?);
        let mut line = |name: &str, value: &str| writeln!(out, "{name:<12}{}", table::plain(value));
        line("queue", &timer.queue)?;
        line("key", &timer.key)?;
        line("state", timer.state.as_str())?;
        line(
            "due",
            &format!("{} ({})", time(timer.due), distance(timer.due, now)),
        )?;
        for (name, text) in schedules::facts(timer, Some(&nodes), now) {
            line(&name.to_lowercase(), &text)?;
        }
        if timer.planned != timer.due {
            line("planned", &time(timer.planned))?;
        }
        line("attempts", &timer.attempt.to_string())?;
        line("errors", &timer.fails.to_string())?;
        line("crashes", &timer.crashes.to_string())?;
        if let (Some(node), Some(since)) = (&timer.node, timer.running) {
            line(
                "runs on",
                &format!("{node}, since {}", distance(since, now)),
            )?;
        }
        if timer.cancelled {
            line("cancelled", "no other run follows")?;
        }
        if timer.follows {
            line(
                "follows",
                "the run under way; due time and payload are those of the next timer",
            )?;
        }
        line("payload", &timer.payload)?;
        if let Some(meta) = &timer.meta {
            line("meta", meta.as_str())?;
        }
        let counts = self.counts()?;
        let counts = counts.iter().find(|counts| counts.queue == timer.queue);
        for (number, reason) in why(timer, counts, &nodes, now).iter().enumerate() {
            line(if number == 0 { "why" } else { "" }, reason)?;
        }
        Ok(())
    }

    fn moved(
        &self,
        out: &mut impl Write,
        queue: &str,
        key: &str,
        answer: RescheduleAnswer,
    ) -> Done {
        match answer {
            RescheduleAnswer::Moved { to, .. } => {
                let object = json!({"queue": queue, "key": key, "due": time(to)});
                self.said(
                    out,
                    &object,
                    &format!("{queue} {key} is due at {}", time(to)),
                )
            }
            RescheduleAnswer::NotFound => Err(none(queue, key)),
            _ => Err(runs(queue, key)),
        }
    }

    /// Does something to one timer, or to all with a prefix. `act` returns whether it was done, or
    /// `None` if there was no such timer.
    fn each(
        &self,
        out: &mut impl Write,
        which: &TimersArgs,
        done: &str,
        act: impl Fn(&str) -> Result<Option<bool>, Failure>,
    ) -> Done {
        let queue = &which.queue;
        if let Some(key) = &which.key {
            return match act(key)? {
                Some(true) => self.said(
                    out,
                    &json!({"queue": queue, "key": key}),
                    &format!("{queue} {key} {done}"),
                ),
                Some(false) => Err(runs(queue, key)),
                None => Err(none(queue, key)),
            };
        }
        let filter = TimerFilter::queue(queue).prefix(which.keys.as_deref().unwrap_or_default());
        // First all of them, since a timer that is moved changes its place in the list.
        let mut keys = Vec::new();
        let mut paging = Paging::first(PAGE);
        loop {
            let page = self
                .timers
                .list(filter.clone(), &paging)
                .within(self.limit)
                .wait()?;
            let Some(last) = page.last() else { break };
            paging = Paging::after(last, PAGE);
            keys.extend(page.into_iter().map(|timer| timer.key));
        }
        let (mut did, mut running) = (0, 0);
        for key in keys {
            match act(&key)? {
                Some(true) => did += 1,
                Some(false) => running += 1,
                None => {}
            }
        }
        let object = json!({"queue": queue, "done": did, "running": running});
        self.said(
            out,
            &object,
            &format!("{did} timers: each {done}; {running} are running, and were left as they are"),
        )
    }

    fn revive(&self, out: &mut impl Write, letters: &LettersArgs) -> Done {
        if letters.ids.is_empty() {
            agreed(letters, "it makes many timers due at once")?;
            let report = self.timers.revive_dead(dead_filter(&letters.filter));
            let report = report.within(self.limit).wait()?;
            let (revived, exist) = (report.revived, report.exist);
            let object = json!({"revived": revived, "exist": exist});
            return self.said(
                out,
                &object,
                &format!(
                    "{revived} are due now; {exist} have a timer again, and were left as they are"
                ),
            );
        }
        let mut refused = None;
        for id in &letters.ids {
            match self.timers.revive(*id).within(self.limit).wait()? {
                Revived::Revived { queue, key } => {
                    let object = json!({"id": id, "queue": queue, "key": key});
                    self.said(out, &object, &format!("{queue} {key} is due now"))?;
                }
                Revived::Exists => {
                    refused = Some(format!(
                        "{id}: its key has a timer again. Discard the letter, or cancel the timer"
                    ));
                }
                _ => refused = Some(format!("{id}: there is no such dead letter")),
            }
        }
        refused.map_or(Ok(()), |why| Err(Failure::Not(why)))
    }

    fn discard(&self, out: &mut impl Write, letters: &LettersArgs) -> Done {
        agreed(letters, "it deletes dead letters")?;
        if letters.ids.is_empty() {
            let discarded = self.timers.discard_dead(dead_filter(&letters.filter));
            let discarded = discarded.within(self.limit).wait()?;
            return self.said(
                out,
                &json!({"discarded": discarded}),
                &format!("{discarded} dead letters were deleted"),
            );
        }
        let mut missing = None;
        for id in &letters.ids {
            match self.timers.discard(*id).within(self.limit).wait()? {
                true => self.said(out, &json!({"id": id}), &format!("{id} was deleted"))?,
                false => missing = Some(*id),
            }
        }
        match missing {
            Some(id) => Err(Failure::Not(format!("{id}: there is no such dead letter"))),
            None => Ok(()),
        }
    }

    /// Whether timers can run.
    fn check(&self, out: &mut impl Write, behind: Duration) -> Done {
        let (counts, nodes) = (self.counts()?, self.nodes()?);
        let now = SystemTime::now();
        let mut wrong = Vec::new();
        for counts in counts.iter().filter(|counts| !counts.paused) {
            let (queue, due) = (&counts.queue, number(counts.overdue));
            let handlers = nodes.iter().filter(|node| node.queues.contains(queue));
            let seen = handlers.map(|node| node.silent_for).min();
            let late = counts
                .oldest
                .and_then(|oldest| now.duration_since(oldest).ok());
            match (seen, late) {
                (None, _) if counts.overdue > 0 => wrong.push(format!(
                    "{queue}: {due} due timers, and no process handles the queue"
                )),
                // How long a process may be silent is its own choice, so silence alone is no fault.
                (Some(seen), Some(late)) if late > behind => wrong.push(format!(
                    "{queue}: behind by {}, with {due} due timers; a process that handles it was seen {} ago",
                    short(late),
                    short(seen)
                )),
                _ => {}
            }
        }
        let paused = counts
            .iter()
            .filter(|counts| counts.paused && counts.overdue > 0);
        let notes: Vec<String> = paused
            .map(|counts| {
                format!(
                    "{}: paused, with {} due timers",
                    counts.queue,
                    number(counts.overdue)
                )
            })
            .collect();
        match self.json {
            true => write_json(
                out,
                &json!({"ok": wrong.is_empty(), "wrong": wrong, "paused": notes}),
            )?,
            false => {
                for line in wrong.iter().chain(&notes) {
                    writeln!(out, "{}", table::plain(line))?;
                }
            }
        }
        match wrong.len() {
            0 => self.json.then_some(()).map_or_else(
                || {
                    Ok(writeln!(
                        out,
                        "ok: {} queues, {} processes",
                        counts.len(),
                        nodes.len()
                    )?)
                },
                Ok,
            ),
            queues => Err(Failure::Not(format!(
                "{queues} queues do not run their timers"
            ))),
        }
    }
}

fn locks(out: &mut impl Write, args: &Args, store: &LocksArgs, names: &str, most: u32) -> Done {
    let Some(store) = stores::locks(store)? else {
        return Err(Failure::Usage(
            "where are the locks? Name a server by --locks, such as redis://cache/ or postgres://app@db/shop"
                .to_owned(),
        ));
    };
    let (limit, names) = (args.store.timeout, names.to_owned());
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    // By name: a name may come in several pages.
    let (mut held, mut paging) = (BTreeMap::new(), Some(LockPaging::first(most)));
    // The time limit holds for each page: a server with many other keys takes several.
    while let Some(of) = paging.filter(|_| held.len() < most) {
        let (store, names) = (store.clone(), names.clone());
        let page = within(limit, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.map_err(|error| Failure::Store(error.to_string()))?;
            let page = runtime.block_on(store.list(&names, &of, limit));
            page.map_err(|error| Failure::Store(error.to_string()))
        })?;
        held.extend(page.locks.into_iter().map(|lock| (lock.name.clone(), lock)));
        paging = page.next;
    }
    let held: Vec<_> = held.into_values().take(most).collect();
    if args.json {
        return write_json(out, &Value::Array(held.iter().map(of::lock).collect()));
    }
    let rows: Vec<[String; 6]> = held
        .iter()
        .map(|lock| {
            let holder = &lock.holder;
            [
                lock.name.clone(),
                holder.owner.clone(),
                holder.token.to_string(),
                short(holder.remaining),
                of::mode(holder),
                holder.data.clone(),
            ]
        })
        .collect();
    table::write(
        out,
        ["NAME", "OWNER", "TOKEN", "RESTS", "MODE", "DATA"],
        &rows,
        ANY_WIDTH,
    )?;
    Ok(())
}

/// A dead letter, with its payload.
fn letter(letter: &DeadTimer) -> Value {
    let mut object = of::letter(letter);
    object["payload"] = of::parsed(&letter.payload);
    object
}

fn write_json(out: &mut impl Write, value: &Value) -> Done {
    Ok(writeln!(out, "{}", table::plain_json(&value.to_string()))?)
}

fn agreed(letters: &LettersArgs, what: &str) -> Done {
    match letters.yes {
        true => Ok(()),
        false => Err(Failure::Usage(format!("{what}: add --yes"))),
    }
}

fn dead_filter(args: &DeadArgs) -> DeadFilter {
    let filter = args
        .queue
        .as_deref()
        .map_or_else(DeadFilter::all, DeadFilter::queue);
    let filter = filter.prefix(args.keys.as_deref().unwrap_or_default());
    match args.older_than {
        Some(age) => filter.older_than(age),
        None => filter,
    }
}

fn none(queue: &str, key: &str) -> Failure {
    Failure::Not(format!(
        "{queue} {key}: there is no such timer. It has run, was cancelled, or is a dead letter: see `tourbillon dead --queue {queue}`"
    ))
}

fn no_schedule(queue: &str, key: &str) -> Failure {
    Failure::Not(format!(
        "{queue} {key}: there is no such schedule. A timer that runs once can't be paused alone: see `tourbillon list --schedules`"
    ))
}

fn runs(queue: &str, key: &str) -> Failure {
    Failure::Not(format!("{queue} {key} is running: see `tourbillon show`"))
}
