//! What a timer carries: its payload, and its meta.

use std::fmt;
use std::ops::Deref;

use crate::sync::Arc;

/// What a timer carries. It reads as its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Payload {
    /// The payload, as JSON.
    pub json: Box<str>,
    /// The meta that it was scheduled with.
    pub meta: Option<Meta>,
}

impl Payload {
    /// The length of both.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.json.len() + self.meta.as_ref().map_or(0, |meta| meta.as_str().len())
    }
}

impl Deref for Payload {
    type Target = str;

    fn deref(&self) -> &str {
        &self.json
    }
}

impl From<Box<str>> for Payload {
    fn from(json: Box<str>) -> Self {
        Payload { json, meta: None }
    }
}

impl From<&str> for Payload {
    fn from(json: &str) -> Self {
        Payload::from(Box::<str>::from(json))
    }
}

impl From<String> for Payload {
    fn from(json: String) -> Self {
        Payload::from(json.into_boxed_str())
    }
}

/// What is said about a timer beside its payload, as a JSON object: the context of a trace, a
/// tenant, tags.
///
/// `timers.meta(&meta).schedule(..)` gives it to a timer, and so does
/// [`InTransaction::meta`](crate::InTransaction::meta).
/// [`DurableBuilder::trace_context`](crate::DurableBuilder::trace_context) adds the trace context of
/// each caller. It stays with the timer: in a move, in its
/// retries, in [`Ending::Again`](crate::Ending::Again), as a dead letter, and when that is revived.
/// A schedule of the same key replaces it, by another one or by none. A handler has it by
/// [`Due::meta`](crate::Due::meta), a read by [`StoredTimer::meta`](crate::StoredTimer::meta), and
/// SQL in the column `meta` of the timers and of the dead letters.
///
/// # Limits
///
/// It has at most 8,192 bytes as JSON. Like a payload it has at most 127 objects and arrays within
/// each other, and no NUL character and no half of a surrogate pair in its strings.
///
/// What comes back has the same values, and not always the same text. PostgreSQL keeps a `jsonb`: it
/// sorts the keys, of two equal keys it has the last one, and it writes spaces. `Memory` and
/// `Sqlite` keep the text.
///
/// # Examples
///
/// ```
/// use std::collections::BTreeMap;
/// use std::time::Duration;
/// use tourbillon_durable::{Durable, Memory, Meta};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).start()?;
/// let meta = Meta::new(&BTreeMap::from([("tenant", "acme")]))?;
/// let day = Duration::from_secs(86_400);
/// timers.meta(&meta).schedule("pay-by", "order:7", day, &7).wait()?;
///
/// let timer = timers.get("pay-by", "order:7").wait()?.expect("it was scheduled");
/// let read = timer.meta.expect("it has a meta");
/// assert_eq!(read.parse::<BTreeMap<String, String>>()?["tenant"], "acme");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Meta(Arc<str>);

impl Meta {
    /// Takes the text of a JSON object that was checked. It is no public interface, but visible for
    /// tests of this repository, and for [`Next`](super::Next).
    #[doc(hidden)]
    pub fn of_json(json: impl Into<Arc<str>>) -> Self {
        Meta(json.into())
    }

    /// Returns it as JSON.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use tourbillon_durable::Meta;
    ///
    /// let meta = Meta::new(&BTreeMap::from([("tenant", "acme")]))?;
    /// assert_eq!(meta.as_str(), r#"{"tenant":"acme"}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads it as a type.
    ///
    /// # Errors
    ///
    /// It does not have this type.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// Returns the trace context of the caller that scheduled the timer: the member `traceparent`,
    /// as [W3C Trace Context](https://www.w3.org/TR/trace-context/#traceparent-header) has it.
    /// `None` if there is none, or if it does not have that form.
    ///
    /// [`DurableBuilder::trace_context`](crate::DurableBuilder::trace_context) puts it there, and so
    /// may any caller. It takes the time to read the meta as JSON.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use tourbillon_durable::Meta;
    ///
    /// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let meta = Meta::new(&BTreeMap::from([("traceparent", parent)]))?;
    /// assert_eq!(meta.traceparent().as_deref(), Some(parent));
    /// let wrong = Meta::new(&BTreeMap::from([("traceparent", "4bf92f35")]))?;
    /// assert_eq!(wrong.traceparent(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("trace", "span", "opentelemetry", "w3c"))]
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        match self.members()?.remove(TRACEPARENT) {
            Some(serde_json::Value::String(text)) if is_traceparent(&text) => Some(text),
            _ => None,
        }
    }

    /// Adds a trace context of good form to the meta of a call. The call's own one wins. `None` if
    /// the two have more than `limit` bytes.
    pub(crate) fn traced(meta: Option<&Meta>, traceparent: &str, limit: usize) -> Option<Meta> {
        // It has hexadecimal digits and hyphens alone, so it needs no escapes.
        let member = format!("{{\"{TRACEPARENT}\":\"{traceparent}\"");
        let json = match meta {
            None => member + "}",
            Some(meta) => {
                let members = meta.members()?;
                if members.contains_key(TRACEPARENT) {
                    return None;
                }
                let (_, rest) = meta.0.split_once('{')?;
                let comma = if members.is_empty() { "" } else { "," };
                format!("{member}{comma}{rest}")
            }
        };
        (json.len() <= limit).then(|| Meta::of_json(json))
    }

    fn members(&self) -> Option<serde_json::Map<String, serde_json::Value>> {
        self.parse().ok()
    }
}

/// The member of a meta with the trace context, named as the header of HTTP.
const TRACEPARENT: &str = "traceparent";

/// Whether a text is a trace context: `00-`, 32 hexadecimal digits of the trace, 16 of the span, and
/// 2 of flags, all in lower case, with hyphens between them. A later version of the format may add
/// something after a further hyphen.
pub(crate) fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut digits = |length: usize| {
        let part = parts.next().unwrap_or_default();
        let is_good = part.len() == length
            && part
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_good { part } else { "" }
    };
    let is_set = |part: &str| part.bytes().any(|byte| byte != b'0');
    let version = digits(2);
    let (trace, span, flags) = (digits(32), digits(16), digits(2));
    let is_long = parts.next().is_some();
    let has_all = is_set(trace) && is_set(span) && !flags.is_empty();
    // The version 255 is none, and only a later one may be longer.
    let fits = !version.is_empty() && version != "ff" && (version != "00" || !is_long);
    has_all && fits && text.is_ascii() && text.len() <= LONGEST_TRACEPARENT
}

/// The greatest length of a trace context of a later version, in bytes.
const LONGEST_TRACEPARENT: usize = 512;

/// As text, like a payload.
#[cfg(feature = "serde")]
impl serde::Serialize for Meta {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Writes it as JSON.
impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meta").field(&&*self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_context_has_the_form_of_w3c() {
        assert!(is_traceparent(PARENT));
        let later = PARENT.replacen("00", "cc", 1);
        for good in [&later, &format!("{later}-more-of_it")] {
            assert!(is_traceparent(good), "{good}");
        }
        for bad in [
            String::new(),
            "-".repeat(3),
            PARENT.to_uppercase(),
            PARENT.replacen("00", "ff", 1),
            PARENT.replacen("00", "0", 1),
            format!("{PARENT}-more"),
            format!("{PARENT}-"),
            format!("{PARENT}0"),
            format!(" {PARENT}"),
            format!("{PARENT}\n"),
            PARENT[..52].to_owned(),
            PARENT.replace('-', "_"),
            PARENT.replace("4bf9", "4bg9"),
            PARENT.replace("4bf9", "4b\u{e9}9"),
            PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            format!("{later}-\u{e9}"),
            format!("{later}-{}", "x".repeat(LONGEST_TRACEPARENT)),
        ] {
            assert!(!is_traceparent(&bad), "{bad:?}");
        }
    }

    #[test]
    fn a_trace_context_is_added_unless_there_is_one_or_no_room() {
        let of = |json: &str| Meta::of_json(json);
        let added = |meta: Option<&Meta>| Meta::traced(meta, PARENT, 8_192);
        let alone = format!(r#"{{"traceparent":"{PARENT}"}}"#);
        assert_eq!(added(None).expect("it fits").as_str(), alone);
        assert_eq!(added(Some(&of("{}"))).expect("it fits").as_str(), alone);
        for (before, after) in [
            (
                r#"{"a":1}"#,
                format!(r#"{{"traceparent":"{PARENT}","a":1}}"#),
            ),
            (" { \n } ", format!("{{\"traceparent\":\"{PARENT}\" \n }} ")),
        ] {
            let meta = added(Some(&of(before))).expect("it fits");
            assert_eq!(meta.as_str(), after);
            assert_eq!(meta.traceparent().as_deref(), Some(PARENT));
        }
        // Also one that is no text, or written with escapes, is the caller's own.
        for own in [
            r#"{"traceparent":null}"#,
            r#"{"trace\u0070arent":"mine"}"#,
            r#"{"a":{},"traceparent":"mine"}"#,
        ] {
            assert_eq!(added(Some(&of(own))), None, "{own}");
            assert_eq!(of(own).traceparent(), None, "{own}");
        }
        // One within another member is none of the meta's.
        let within = of(r#"{"a":{"traceparent":"mine"}}"#);
        assert!(added(Some(&within)).is_some());
        let length = alone.len();
        assert!(Meta::traced(None, PARENT, length).is_some());
        assert_eq!(Meta::traced(None, PARENT, length - 1), None);
    }
}
