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
/// [`InTransaction::meta`](crate::InTransaction::meta). It stays with the timer: in a move, in its
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
    /// Takes the text of a JSON object that was checked.
    pub(crate) fn of_json(json: impl Into<Arc<str>>) -> Self {
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
}

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
