//! What a form or a program asks for, and how it is done.

use std::time::Duration;

use serde_json::{Value, json};
use tourbillon_durable::{CallError, CancelAnswer, RescheduleAnswer, Revived};

use crate::access::Action;
use crate::sources::{DeadQuery, Store};
use crate::times::{self, Moment, moment, span};

/// How long an action may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The most dead letters of one action that names them.
const MOST_LETTERS: usize = 500;

/// Names and values of a form, or of an address.
pub(crate) type Pairs = Vec<(String, String)>;

/// The first value of a name, or nothing.
pub(crate) fn value<'p>(pairs: &'p Pairs, name: &str) -> &'p str {
    let found = pairs.iter().find(|(other, _)| other == name);
    found.map_or("", |(_, value)| value)
}

/// An action, with what it is done to.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Order {
    pub(crate) action: Action,
    pub(crate) store: String,
    pub(crate) target: Target,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Target {
    Queue(String),
    Timer {
        queue: String,
        key: String,
    },
    /// A timer, and when it is to be due, as it was typed.
    Moved {
        queue: String,
        key: String,
        when: String,
    },
    Letters(Vec<i64>),
    AllLetters(DeadQuery),
}

impl Target {
    /// The names of its parameters.
    fn names(&self) -> &'static [&'static str] {
        match self {
            Target::Queue(_) => &["queue"],
            Target::Timer { .. } => &["queue", "key"],
            Target::Moved { .. } => &["queue", "key", "when"],
            Target::Letters(_) => &["id"],
            Target::AllLetters(_) => &["all", "queue", "keys", "older_than"],
        }
    }
}

/// Done, or why not.
pub(crate) enum Outcome {
    Done(String),
    /// It can't be done to it now.
    Not(String),
    /// The store can't be reached, or refuses.
    Failed(String),
}

impl Order {
    /// Reads an order. An error says what is missing.
    pub(crate) fn of(pairs: &Pairs) -> Result<Self, String> {
        let action: Action = value(pairs, "action").parse()?;
        let needed = |name: &str| match value(pairs, name) {
            "" => Err(format!("{action} needs the parameter {name}")),
            found => Ok(found.to_owned()),
        };
        let target = match action {
            // An empty key is a mistake of a script, and must not stop the whole queue.
            Action::Pause | Action::Resume if !pairs.iter().any(|(name, _)| name == "key") => {
                Target::Queue(needed("queue")?)
            }
            Action::Pause | Action::Resume => Target::Timer {
                queue: needed("queue")?,
                key: needed("key")?,
            },
            Action::RunNow | Action::Cancel => Target::Timer {
                queue: needed("queue")?,
                key: needed("key")?,
            },
            Action::Move => {
                let when = needed("when")?;
                moment(when.trim())?;
                Target::Moved {
                    queue: needed("queue")?,
                    key: needed("key")?,
                    when,
                }
            }
            Action::Revive | Action::Discard if value(pairs, "all") == "1" => {
                Target::AllLetters(letters_of(pairs, 0)?)
            }
            Action::Revive | Action::Discard => {
                let ids = pairs.iter().filter(|(name, _)| name == "id");
                let ids = ids.map(|(_, id)| {
                    id.parse()
                        .map_err(|_| format!("{id:?} is no number of a dead letter"))
                });
                let ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
                match ids.len() {
                    0 => return Err("no dead letter was chosen".to_owned()),
                    many if many > MOST_LETTERS => {
                        return Err(format!(
                            "at most {MOST_LETTERS} dead letters at once: use a filter, and all of it"
                        ));
                    }
                    _ => Target::Letters(ids),
                }
            }
        };
        Ok(Order {
            action,
            store: value(pairs, "store").to_owned(),
            target,
        })
    }

    /// The order as names and values, which [`of`](Self::of) reads.
    pub(crate) fn pairs(&self) -> Pairs {
        let mut pairs = vec![
            ("action".to_owned(), self.action.to_string()),
            ("store".to_owned(), self.store.clone()),
        ];
        let mut add = |name: &str, value: &str| pairs.push((name.to_owned(), value.to_owned()));
        match &self.target {
            Target::Queue(queue) => add("queue", queue),
            Target::Timer { queue, key } => {
                add("queue", queue);
                add("key", key);
            }
            Target::Moved { queue, key, when } => {
                add("queue", queue);
                add("key", key);
                add("when", when);
            }
            Target::Letters(ids) => ids.iter().for_each(|id| add("id", &id.to_string())),
            Target::AllLetters(query) => {
                add("all", "1");
                add("queue", query.queue.as_deref().unwrap_or_default());
                add("keys", &query.keys);
                if let Some(age) = query.older_than {
                    add("older_than", &format!("{}s", age.as_secs()));
                }
            }
        }
        pairs
    }

    /// Reads an order from an object.
    pub(crate) fn of_json(object: &Value) -> Result<Self, String> {
        let Value::Object(object) = object else {
            return Err("send one JSON object".to_owned());
        };
        let mut pairs = Pairs::new();
        for (name, value) in object {
            match value {
                Value::Array(all) if name == "ids" => {
                    pairs.extend(all.iter().map(|one| ("id".to_owned(), text(one))));
                }
                Value::Array(_) | Value::Object(_) => {
                    return Err(format!("{name} must be one text or number"));
                }
                Value::Bool(is) => {
                    pairs.push((name.clone(), if *is { "1" } else { "" }.to_owned()));
                }
                Value::Null => pairs.push((name.clone(), String::new())),
                value => pairs.push((name.clone(), text(value))),
            }
        }
        let order = Order::of(&pairs)?;
        // A name that was mistyped would leave a filter out, and all dead letters be deleted.
        let known = order.target.names();
        let unknown = pairs.iter().find(|(name, value)| {
            !value.is_empty()
                && !matches!(name.as_str(), "action" | "store")
                && !known.contains(&name.as_str())
        });
        match unknown {
            None => Ok(order),
            Some((name, _)) => Err(format!(
                "{} takes no {name} here: it takes {}",
                order.action,
                known.join(", ")
            )),
        }
    }

    /// The target in words, with control characters escaped.
    pub(crate) fn target_in_words(&self) -> String {
        let named =
            |queue: &str, key: &str| format!("{} {}", queue.escape_debug(), key.escape_debug());
        match &self.target {
            Target::Queue(queue) => format!("queue {}", queue.escape_debug()),
            Target::Timer { queue, key } => named(queue, key),
            Target::Moved { queue, key, when } => {
                format!("{} to {}", named(queue, key), when.escape_debug())
            }
            Target::Letters(ids) if ids.len() > 10 => format!("{} dead letters", ids.len()),
            Target::Letters(ids) => {
                let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
                format!("dead letters {}", ids.join(", "))
            }
            Target::AllLetters(query) => {
                let queue = query.queue.as_deref();
                let queue = queue.map_or("all queues".to_owned(), |queue| {
                    format!("{}", queue.escape_debug())
                });
                let keys = match query.keys.as_str() {
                    "" => String::new(),
                    keys => format!(", keys that begin with {}", keys.escape_debug()),
                };
                let age = query.older_than;
                let age = age.map_or(String::new(), |age| {
                    format!(", older than {}", times::short(age))
                });
                format!("all dead letters of {queue}{keys}{age}")
            }
        }
    }

    /// Does it.
    pub(crate) async fn carry_out(&self, store: &Store) -> Outcome {
        self.try_carry_out(store)
            .await
            .unwrap_or_else(|error| match error {
                CallError::Invalid(invalid) => Outcome::Not(invalid.to_string()),
                error => Outcome::Failed(error.to_string()),
            })
    }

    async fn try_carry_out(&self, store: &Store) -> Result<Outcome, CallError> {
        let timers = &store.timers;
        Ok(match (&self.target, self.action) {
            (Target::Queue(queue), Action::Pause) => {
                timers.pause(queue).within(LIMIT).await?;
                Outcome::Done("the queue is paused".to_owned())
            }
            (Target::Queue(queue), _) => {
                timers.resume(queue).within(LIMIT).await?;
                Outcome::Done("the queue goes on".to_owned())
            }
            (Target::Timer { queue, key }, Action::Cancel) => {
                match timers.cancel(queue, key).within(LIMIT).await? {
                    CancelAnswer::Cancelled { .. } => {
                        Outcome::Done("the timer is cancelled".to_owned())
                    }
                    CancelAnswer::NotFound => none(),
                    _ => Outcome::Not(
                        "the timer runs: the run goes on, and no other one follows".to_owned(),
                    ),
                }
            }
            (Target::Timer { queue, key }, Action::Pause) => {
                match timers.pause_schedule(queue, key).within(LIMIT).await? {
                    true => Outcome::Done("the schedule is paused".to_owned()),
                    false => no_schedule(),
                }
            }
            (Target::Timer { queue, key }, Action::Resume) => {
                match timers.resume_schedule(queue, key).within(LIMIT).await? {
                    true => Outcome::Done("the schedule goes on".to_owned()),
                    false => no_schedule(),
                }
            }
            (Target::Timer { queue, key }, _) => {
                moved(timers.run_now(queue, key).within(LIMIT).await?)
            }
            (Target::Moved { queue, key, when }, _) => {
                // It was read when the order was.
                let to = moment(when.trim()).unwrap_or(Moment::After(Duration::ZERO));
                let sent = match to {
                    Moment::After(span) => timers.reschedule(queue, key, span),
                    Moment::At(at) => timers.reschedule(queue, key, at),
                };
                moved(sent.within(LIMIT).await?)
            }
            (Target::Letters(ids), action) => letters(timers, ids, action).await?,
            (Target::AllLetters(query), Action::Revive) => {
                let report = timers.revive_dead(query.filter()).within(LIMIT).await?;
                let (revived, exist) = (report.revived, report.exist);
                Outcome::Done(format!(
                    "{revived} timers are due now; {exist} have a timer again, and were left as they are"
                ))
            }
            (Target::AllLetters(query), _) => {
                let count = timers.discard_dead(query.filter()).within(LIMIT).await?;
                Outcome::Done(format!("{count} dead letters were deleted"))
            }
        })
    }
}

impl Outcome {
    pub(crate) fn result(&self) -> Result<String, String> {
        match self {
            Outcome::Done(done) => Ok(done.clone()),
            Outcome::Not(why) | Outcome::Failed(why) => Err(why.clone()),
        }
    }

    pub(crate) fn json(&self) -> Value {
        match self.result() {
            Ok(done) => json!({"done": done}),
            Err(error) => json!({"error": error}),
        }
    }
}

/// Reads a filter of dead letters.
pub(crate) fn letters_of(pairs: &Pairs, limit: u32) -> Result<DeadQuery, String> {
    let optional = |name| Some(value(pairs, name).trim()).filter(|text| !text.is_empty());
    let older_than = optional("older_than").map(span).transpose()?;
    let after = optional("after").map(str::parse).transpose();
    Ok(DeadQuery {
        queue: Some(value(pairs, "queue").to_owned()).filter(|queue| !queue.is_empty()),
        keys: value(pairs, "keys").to_owned(),
        older_than,
        after: after
            .map_err(|_| "after must be the number of a dead letter".to_owned())?
            .unwrap_or(0),
        limit,
    })
}

async fn letters(
    timers: &tourbillon_durable::Durable,
    ids: &[i64],
    action: Action,
) -> Result<Outcome, CallError> {
    let (mut done, mut left, mut failed) = (0, 0, None);
    for id in ids {
        let did = match action {
            Action::Revive => timers
                .revive(*id)
                .within(LIMIT)
                .await
                .map(|revived| matches!(revived, Revived::Revived { .. })),
            _ => timers.discard(*id).within(LIMIT).await,
        };
        match did {
            Ok(true) => done += 1,
            Ok(false) => left += 1,
            Err(error) if done == 0 => return Err(error),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let (what, why) = match action {
        Action::Revive => (
            "timers are due now",
            "have a timer again, or are no dead letters any more",
        ),
        _ => (
            "dead letters were deleted",
            "were deleted or revived before",
        ),
    };
    if let Some(error) = failed {
        // The letters that were done stay done, so the answer counts them beside the error.
        return Ok(Outcome::Failed(format!("{done} {what}, and then: {error}")));
    }
    Ok(match left {
        0 => Outcome::Done(format!("{done} {what}")),
        _ if done == 0 => Outcome::Not(format!("{left} {why}")),
        _ => Outcome::Done(format!("{done} {what}; {left} {why}")),
    })
}

fn no_schedule() -> Outcome {
    Outcome::Not(
        "there is no such schedule: a timer that runs once can't be paused alone".to_owned(),
    )
}

fn none() -> Outcome {
    Outcome::Not(
        "there is no such timer: it has run, was cancelled, or is a dead letter".to_owned(),
    )
}

fn moved(answer: RescheduleAnswer) -> Outcome {
    match answer {
        RescheduleAnswer::Moved { to, .. } => {
            Outcome::Done(format!("the timer is due at {}", times::time(to)))
        }
        RescheduleAnswer::NotFound => none(),
        _ => Outcome::Not("the timer runs, and was left as it is".to_owned()),
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        for target in [
            json!({"action": "pause", "queue": "a b&c=d"}),
            json!({"action": "pause", "queue": "q", "key": "k"}),
            json!({"action": "resume", "queue": "q", "key": "\u{0}\n<b>"}),
            json!({"action": "run-now", "queue": "q", "key": "k"}),
            json!({"action": "cancel", "queue": "q", "key": "\u{0}\n<b>"}),
            json!({"action": "move", "queue": "q", "key": "k", "when": "15m"}),
            json!({"action": "revive", "ids": [3, -4]}),
            json!({"action": "discard", "all": true, "queue": "q", "keys": "order:", "older_than": "30d"}),
        ] {
            let order = Order::of_json(&target).unwrap();
            assert_eq!(Order::of(&order.pairs()), Ok(order.clone()), "{target}");
            assert!(!order.target_in_words().contains(['\n', '\u{0}']));
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        let many: Vec<i64> = (0..501).collect();
        for (bad, word) in [
            (json!([]), "object"),
            (json!({}), "no action"),
            (json!({"action": "explode"}), "run-now"),
            (json!({"action": "pause"}), "queue"),
            (json!({"action": "cancel", "queue": "q"}), "key"),
            (json!({"action": "move", "queue": "q", "key": "k"}), "when"),
            (
                json!({"action": "move", "queue": "q", "key": "k", "when": "soon"}),
                "15m",
            ),
            (json!({"action": "discard"}), "chosen"),
            (json!({"action": "discard", "ids": ["x"]}), "number"),
            // What would be left out silently: a wrong name, a name of another target, a second value.
            (
                json!({"action": "discard", "all": true, "que": "q"}),
                "takes no que",
            ),
            (
                json!({"action": "discard", "all": true, "key": "k"}),
                "takes no key",
            ),
            (
                json!({"action": "revive", "ids": [1], "queue": "q"}),
                "takes no queue",
            ),
            (
                json!({"action": "cancel", "queue": "q", "key": ["a", "b"]}),
                "key must be one",
            ),
            (
                json!({"action": "pause", "queue": {"a": 1}}),
                "queue must be one",
            ),
            (json!({"action": "discard", "ids": many}), "at most 500"),
            (
                json!({"action": "discard", "all": true, "older_than": "1y"}),
                "days",
            ),
        ] {
            let error = Order::of_json(&bad).unwrap_err();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }
}
