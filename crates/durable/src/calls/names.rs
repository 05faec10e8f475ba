//! The checks of a call before it goes to a store: queue, key, payload and due time.

use std::fmt;
use std::io;
use std::time::SystemTime;

use serde::Serialize;

use crate::store::schedule::{self, Schedule, When};
use crate::store::{DueAt, Meta, Payload, StoreTime};
use crate::sync::Arc;

/// The greatest length of the name of a queue, in bytes.
pub(crate) const LONGEST_QUEUE: usize = 64;

/// The greatest length of a key, in bytes.
pub(crate) const LONGEST_KEY: usize = 512;

/// The greatest length of a payload as JSON, in bytes, unless an option says another one.
pub(crate) const PAYLOAD_LIMIT: usize = 64 * 1024;

/// The greatest length of a meta as JSON, in bytes.
pub(crate) const META_LIMIT: usize = 8 * 1024;

/// The greatest number of entries of a page.
const LARGEST_PAGE: u32 = 10_000;

/// The greatest number of arrays and objects within each other. It is what `serde_json` reads.
const DEEPEST: usize = 127;

/// The reason why the arguments of a call are refused. Nothing was sent to the store.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{CallError, Durable, Invalid, Memory};
///
/// let timers = Durable::builder(Memory::new()).start()?;
/// let refused = timers.schedule("pay-by", "", Duration::from_secs(60), &()).wait();
/// assert!(matches!(refused, Err(CallError::Invalid(Invalid::KeyLength(0)))));
/// # Ok::<(), tourbillon_durable::StartError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Invalid {
    /// The name of the queue has this number of bytes, and not 1 to 64.
    QueueLength(usize),
    /// The name of the queue has a NUL character, which some stores can't keep.
    QueueNul,
    /// The key has this number of bytes, and not 1 to 512.
    KeyLength(usize),
    /// The key has a NUL character, which some stores can't keep.
    KeyNul,
    /// The payload is longer than this number of bytes as JSON.
    PayloadSize(usize),
    /// The payload has more than 127 arrays and objects within each other.
    PayloadDepth,
    /// The payload has a NUL character or half of a surrogate pair in a string. JSON allows them,
    /// and some stores can't keep them.
    PayloadText,
    /// The payload can't be written as JSON, for this reason.
    PayloadJson(String),
    /// The meta is longer than this number of bytes as JSON.
    MetaSize(usize),
    /// The meta is JSON, but no object.
    MetaObject,
    /// The meta can't be stored as JSON, for this reason.
    MetaJson(String),
    /// The meta has an object as its member `cron`, which is that of a schedule.
    MetaCron,
    /// The schedule has no first occurrence, for this reason.
    NoOccurrence(String),
    /// The due time is later than the year 9999.
    TooFar,
    /// Two calls of one batch have this key.
    SameKey(String),
    /// A page has this number of entries, and not 1 to 10,000.
    PageLimit(u32),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::QueueLength(bytes) => write!(
                f,
                "a queue name of {bytes} bytes: choose one of 1 to {LONGEST_QUEUE}"
            ),
            Invalid::QueueNul => f.write_str("the queue name has a NUL character: leave it out"),
            Invalid::KeyLength(bytes) => {
                write!(
                    f,
                    "a key of {bytes} bytes: choose one of 1 to {LONGEST_KEY}"
                )
            }
            Invalid::KeyNul => f.write_str("the key has a NUL character: leave it out"),
            Invalid::PayloadSize(limit) => write!(
                f,
                "the payload is longer than {limit} bytes as JSON: keep it elsewhere and schedule \
                 its name"
            ),
            Invalid::PayloadDepth => write!(
                f,
                "the payload has more than {DEEPEST} arrays and objects within each other: make it \
                 flatter, or schedule it as a string"
            ),
            Invalid::PayloadText => f.write_str(
                "a string of the payload has a NUL character or half of a surrogate pair: encode it, in \
                 base 64 for example",
            ),
            Invalid::PayloadJson(why) => {
                write!(f, "the payload can't be written as JSON: {why}")
            }
            Invalid::MetaSize(limit) => write!(
                f,
                "the meta is longer than {limit} bytes as JSON: put what the handler needs into the \
                 payload"
            ),
            Invalid::MetaObject => {
                f.write_str("the meta is no JSON object: use a struct or a map with keys that are text")
            }
            Invalid::MetaJson(why) => write!(f, "the meta can't be stored as JSON: {why}"),
            Invalid::MetaCron => f.write_str(
                "the member `cron` of a meta is that of a schedule: give it another name",
            ),
            Invalid::NoOccurrence(why) => {
                write!(f, "the schedule has no first occurrence: {why}")
            }
            Invalid::TooFar => f.write_str("the due time is later than the year 9999: choose an earlier one"),
            Invalid::SameKey(key) => {
                write!(f, "two calls of the batch have the key {key:?}: keep one")
            }
            Invalid::PageLimit(limit) => {
                write!(
                    f,
                    "a page of {limit} entries: choose between 1 and {LARGEST_PAGE}"
                )
            }
        }
    }
}

impl std::error::Error for Invalid {}

/// Checks the name of a queue.
pub(crate) fn queue(name: &str) -> Result<Arc<str>, Invalid> {
    if name.is_empty() || name.len() > LONGEST_QUEUE {
        return Err(Invalid::QueueLength(name.len()));
    }
    if name.contains('\0') {
        return Err(Invalid::QueueNul);
    }
    Ok(Arc::from(name))
}

/// Checks a key.
pub(crate) fn key(key: &str) -> Result<Box<str>, Invalid> {
    if key.is_empty() || key.len() > LONGEST_KEY {
        return Err(Invalid::KeyLength(key.len()));
    }
    if key.contains('\0') {
        return Err(Invalid::KeyNul);
    }
    Ok(Box::from(key))
}

/// Checks what keys begin with.
pub(crate) fn prefix(prefix: &str) -> Result<(), Invalid> {
    match prefix.is_empty() {
        true => Ok(()),
        false => key(prefix).map(drop),
    }
}

/// Writes a payload as JSON of at most `limit` bytes that all stores can keep.
pub(crate) fn payload<T: Serialize + ?Sized>(
    payload: &T,
    limit: usize,
) -> Result<Box<str>, Invalid> {
    let mut written = Limited {
        bytes: Vec::new(),
        limit,
        full: false,
    };
    let result = serde_json::to_writer(&mut written, payload);
    if written.full {
        return Err(Invalid::PayloadSize(limit));
    }
    result.map_err(|error| Invalid::PayloadJson(error.to_string()))?;
    let text = String::from_utf8(written.bytes)
        .map_err(|error| Invalid::PayloadJson(error.to_string()))?;
    check_json(text.as_bytes())?;
    Ok(text.into_boxed_str())
}

impl Meta {
    /// Writes a value as the meta of timers. It has to be an object as JSON, such as a struct or a
    /// map.
    ///
    /// # Errors
    ///
    /// [`Invalid`] says why it can't be one: it is too long, no object, or not to be stored.
    pub fn new<T: Serialize + ?Sized>(value: &T) -> Result<Self, Invalid> {
        let json = payload(value, META_LIMIT).map_err(|invalid| match invalid {
            Invalid::PayloadSize(limit) => Invalid::MetaSize(limit),
            Invalid::PayloadDepth => Invalid::MetaJson(format!(
                "it has more than {DEEPEST} arrays and objects within each other"
            )),
            Invalid::PayloadText => Invalid::MetaJson(
                "a string of it has a NUL character or half of a surrogate pair".to_owned(),
            ),
            Invalid::PayloadJson(why) => Invalid::MetaJson(why),
            other => other,
        })?;
        if !json.trim_start().starts_with('{') {
            return Err(Invalid::MetaObject);
        }
        let meta = Meta::of_json(json);
        match schedule::without(Some(&meta)) {
            Some(without) if without != meta => Err(Invalid::MetaCron),
            _ => Ok(meta),
        }
    }
}

/// Checks a due time. A delay that ends after the year 9999 by the clock of this machine is
/// refused.
pub(crate) fn when(when: impl Into<DueAt>) -> Result<DueAt, Invalid> {
    let when = when.into();
    let due = match when {
        DueAt::After(span) => StoreTime::from(SystemTime::now()) + span,
        DueAt::At(time) => StoreTime::from(time),
    };
    match due > StoreTime::LATEST {
        true => Err(Invalid::TooFar),
        false => Ok(when),
    }
}

/// Checks when a timer runs, and writes what it carries: the payload, which has at most `limit` bytes,
/// and the meta, with the schedule if it has one. `now` is asked for that alone.
pub(crate) fn scheduled<T: Serialize + ?Sized>(
    when: impl Into<Schedule>,
    json: &T,
    limit: usize,
    meta: Option<&Meta>,
    now: impl FnOnce() -> Option<SystemTime>,
) -> Result<(DueAt, Payload), Invalid> {
    let json = payload(json, limit)?;
    let (due, meta) = when_scheduled(when, meta, now)?;
    Ok((due, Payload { json, meta }))
}

/// Checks when a timer runs, and adds the schedule to the meta if it has one.
pub(crate) fn when_scheduled(
    when: impl Into<Schedule>,
    meta: Option<&Meta>,
    now: impl FnOnce() -> Option<SystemTime>,
) -> Result<(DueAt, Option<Meta>), Invalid> {
    let scheduled = match when.into().0 {
        // A handler may pass on the meta of a timer with a schedule.
        When::Once(due) => (self::when(due)?, schedule::without(meta)),
        #[cfg(feature = "cron")]
        When::Cron(schedule) => {
            let first = schedule.first(now(), meta);
            let (due, meta) = first.map_err(|why| Invalid::NoOccurrence(why.0))?;
            if meta.as_str().len() > META_LIMIT {
                return Err(Invalid::MetaSize(META_LIMIT));
            }
            (due, Some(meta))
        }
    };
    #[cfg(not(feature = "cron"))]
    drop(now);
    Ok(scheduled)
}

/// Checks the number of entries of a page.
pub(crate) fn page_limit(limit: u32) -> Result<u32, Invalid> {
    match (1..=LARGEST_PAGE).contains(&limit) {
        true => Ok(limit),
        false => Err(Invalid::PageLimit(limit)),
    }
}

/// Refuses to grow beyond its limit, so that a huge payload does not take memory first.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks JSON that is known to be well-formed for its depth, and its strings for what not all
/// stores can keep.
fn check_json(text: &[u8]) -> Result<(), Invalid> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match (in_string, byte) {
            (_, b'"') => in_string = !in_string,
            (true, b'\\') => at = check_escape(text, at)?,
            (false, b'[' | b'{') => {
                depth += 1;
                if depth > DEEPEST {
                    return Err(Invalid::PayloadDepth);
                }
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Checks the escape whose backslash is before `at`, and returns where it ends.
fn check_escape(text: &[u8], at: usize) -> Result<usize, Invalid> {
    let Some(unit) = unit_at(text, at) else {
        return Ok(at + 1);
    };
    match unit {
        0 => Err(Invalid::PayloadText),
        0xD800..=0xDBFF => match (text.get(at + 5), unit_at(text, at + 6)) {
            (Some(b'\\'), Some(0xDC00..=0xDFFF)) => Ok(at + 11),
            _ => Err(Invalid::PayloadText),
        },
        0xDC00..=0xDFFF => Err(Invalid::PayloadText),
        _ => Ok(at + 5),
    }
}

/// Reads `uXXXX` at `at`.
fn unit_at(text: &[u8], at: usize) -> Option<u32> {
    let escape = text.get(at..at + 5)?;
    if escape[0] != b'u' {
        return None;
    }
    let digits = std::str::from_utf8(&escape[1..]).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_that_stores_cannot_keep_are_refused() {
        for good in [
            r#""\ud83d\ude00""#,
            r#""\\u0000""#,
            r#""\"[[[""#,
            r#"{"a":["\u0001"]}"#,
            r#""\\\\""#,
        ] {
            assert_eq!(check_json(good.as_bytes()), Ok(()), "{good}");
        }
        for bad in [
            r#""\u0000""#,
            r#""\\\u0000""#,
            r#""\ud800""#,
            r#""\ud800\n""#,
            r#""\ud800x\udc00""#,
            r#""\udc00""#,
            r#""\uDBFF\uDBFF""#,
        ] {
            assert_eq!(
                check_json(bad.as_bytes()),
                Err(Invalid::PayloadText),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_greatest_depth_can_be_read_back() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let deepest = nested(DEEPEST);
        assert_eq!(check_json(deepest.as_bytes()), Ok(()));
        assert!(serde_json::from_str::<serde_json::Value>(&deepest).is_ok());
        let deeper = nested(DEEPEST + 1);
        assert_eq!(check_json(deeper.as_bytes()), Err(Invalid::PayloadDepth));
    }

    #[test]
    fn a_meta_is_an_object_within_its_limits() {
        use std::collections::BTreeMap;
        let object = |value: &str| Meta::new(&BTreeMap::from([("k", value)]));
        assert_eq!(object("v").expect("an object").as_str(), r#"{"k":"v"}"#);
        // A key, quotes and braces take 8 bytes.
        assert!(object(&"x".repeat(META_LIMIT - 8)).is_ok());
        let too_long = Err(Invalid::MetaSize(META_LIMIT));
        assert_eq!(object(&"x".repeat(META_LIMIT - 7)), too_long);
        assert_eq!(object(&"x".repeat(1 << 20)), too_long);
        assert!(matches!(object("a\0b"), Err(Invalid::MetaJson(_))));
        for no_object in [
            Meta::new(&()),
            Meta::new(&7),
            Meta::new("text"),
            Meta::new(&["{"]),
            Meta::new(&None::<BTreeMap<String, u8>>),
        ] {
            assert_eq!(no_object, Err(Invalid::MetaObject));
        }
        let keys_are_numbers = BTreeMap::from([(vec![1], 1)]);
        assert!(matches!(
            Meta::new(&keys_are_numbers),
            Err(Invalid::MetaJson(_))
        ));
        let nested = |depth: usize| {
            let json = r#"{"a":"#.repeat(depth - 1) + "{}" + &"}".repeat(depth - 1);
            let mut value = serde_json::Value::Null;
            for _ in 0..depth {
                value = match value {
                    serde_json::Value::Null => serde_json::json!({}),
                    inner => serde_json::json!({ "a": inner }),
                };
            }
            assert_eq!(value.to_string(), json);
            Meta::new(&value)
        };
        assert!(nested(DEEPEST).is_ok());
        assert!(matches!(nested(DEEPEST + 1), Err(Invalid::MetaJson(_))));
    }
}
