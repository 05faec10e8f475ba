//! Lists the names that are held.
//!
//! A script walks over the keys of a node in steps. It is sent with the marker of a destination,
//! which leads a proxy to the node of that destination. In a cluster it is the marker of a node. The holders are asked for by one call for
//! each name, since a script of a cluster may only read keys of one slot.
//!
//! - **LIST-1** A page ends between two steps, and the next page begins with the step that follows.
//!   The server promises that a walk from cursor to cursor finds each key that is there all the
//!   time. A page that ended within a step would have to skip names of it, and the server may have
//!   moved its keys meanwhile.
//! - **LIST-2** If a step finds more than the page has room for, it is made again with fewer keys, or
//!   left to the next page. It is taken as it is only if the page is empty, and the step is the
//!   smallest one.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use redis::Value;

use super::RedisStore;
use super::answers::{good, holder, unexpected};
use super::errors::answered;
use super::scripts::Call;
use super::slot::Whose;
use crate::remote::Limit;
use crate::store::{Destination, HeldLock, LockPage, LockPaging, StoreError};

/// The number of holders that one round trip asks for.
const BATCH: usize = 100;
/// The number of keys that one step looks at. The server serves nobody else meanwhile, for some
/// tenths of a millisecond.
const STEP: usize = 1_000;

/// Where a walk goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    /// The number of a marker.
    marker: usize,
    cursor: String,
}

impl Place {
    fn begin(marker: usize) -> Self {
        let cursor = "0".to_owned();
        Place { marker, cursor }
    }

    /// The destination, which has the number of its marker. A cluster sends by the keys.
    fn destination(&self) -> Destination {
        Destination::new(self.marker as u64)
    }

    /// Reads the text of a place, as [`text`](Self::text) writes it.
    fn read(text: &str, markers: usize) -> Option<Self> {
        let (marker, cursor) = text.split_once('.')?;
        let place = Place {
            marker: marker.parse().ok()?,
            // A cursor is a number of 64 bits.
            cursor: cursor.parse::<u64>().ok()?.to_string(),
        };
        (place.marker < markers).then_some(place)
    }

    fn text(&self) -> String {
        format!("{}.{}", self.marker, self.cursor)
    }
}

impl RedisStore {
    pub(super) async fn list_held(
        &self,
        prefix: &str,
        paging: &LockPaging,
        limit: Duration,
    ) -> Result<LockPage, StoreError> {
        let keys = &self.0.options.keys;
        let (start, whole) = (Instant::now(), Limit::new(limit));
        let marked = self.marked(whole).await?;
        let mut place = match &paging.after {
            None => Place::begin(marked[0]),
            Some(text) => Place::read(text, keys.markers().len()).ok_or_else(|| {
                let what = "it knows no such place in a list; ask for the first page";
                StoreError::Refused(what.to_owned())
            })?,
        };
        let pattern = keys.pattern(prefix);
        let most = paging.limit.max(1);
        let mut found = Vec::new();
        // A walk may find a key twice. Several destinations may lie on one node, and the slots of one
        // destination on several nodes. So the walk of each destination takes whatever it finds.
        let mut seen = HashSet::new();
        let mut count = STEP;
        loop {
            let (cursor, mut names) = match self.step(&place, &pattern, count, whole).await {
                // The next page begins with this step, and fails if it fails again.
                Err(_) if !found.is_empty() => {
                    return Ok(LockPage::new(found, Some(place.text()), paging));
                }
                step => step?,
            };
            names.retain(|name| !seen.contains(name));
            let room = most - found.len();
            if names.len() > room && (count > 1 || !found.is_empty()) {
                // With the last locks of a page smaller steps would find little.
                if count == 1 || found.len() > most / 2 {
                    return Ok(LockPage::new(found, Some(place.text()), paging));
                }
                count = (count * room / names.len()).clamp(1, count / 2);
                continue;
            }
            for some in names.chunks(BATCH) {
                self.add_held(&place, some, &mut found, whole).await?;
            }
            seen.extend(names);
            place.cursor = cursor;
            if place.cursor == "0" {
                let Some(&next) = marked.iter().find(|&&next| next > place.marker) else {
                    return Ok(LockPage::new(found, None, paging));
                };
                place = Place::begin(next);
            }
            // The page ends before the limit does.
            if found.len() >= most || start.elapsed() >= limit / 2 {
                return Ok(LockPage::new(found, Some(place.text()), paging));
            }
        }
    }

    /// Makes one step of a walk, over about `count` keys. Returns the next cursor, and the names that
    /// were found.
    async fn step(
        &self,
        place: &Place,
        pattern: &str,
        count: usize,
        limit: Limit,
    ) -> Result<(String, Vec<String>), StoreError> {
        let marker = &self.0.options.keys.markers()[place.marker];
        let call = Call::new(&self.0.scripts.scan, [marker.clone()])
            .arg(&place.cursor)
            .arg(pattern)
            .arg(&count);
        let to = place.destination();
        let answer = self.ask(to, call, limit).await?;
        let answer = answer.map_err(|error| answered(&error))?;
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            _ => None,
        };
        if let Value::Array(parts) = &answer
            && let [cursor, Value::Array(found)] = &parts[..]
            && let Some(cursor) = text(cursor)
        {
            // Other keys than those of locks are nobody's names.
            let name = |key: &Value| self.0.options.keys.name(&text(key)?);
            return Ok((cursor, found.iter().filter_map(name).collect()));
        }
        Err(unexpected(&answer))
    }

    /// Adds those of the names that are held.
    async fn add_held(
        &self,
        place: &Place,
        names: &[String],
        found: &mut Vec<HeldLock>,
        limit: Limit,
    ) -> Result<(), StoreError> {
        let scripts = &self.0.scripts;
        let calls = names
            .iter()
            .map(|name| Call::new(&scripts.holder, [self.0.options.keys.lock(name)]))
            .collect();
        let to = place.destination();
        let asked = self.0.client.call(Whose::Callers, to, calls, limit);
        for (name, answer) in names.iter().zip(asked.await?) {
            // Released meanwhile, or only reserved, if there is none.
            if let Some(holder) = holder(&good(answer)?, self.0.options.longest_lease)? {
                found.push(HeldLock::new(name.clone(), holder));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_its_text_and_nothing_else() {
        let place = Place {
            marker: 2,
            cursor: u64::MAX.to_string(),
        };
        assert_eq!(Place::read(&place.text(), 3), Some(place.clone()));
        assert_eq!(Place::read(&place.text(), 2), None);
        for wrong in [
            "",
            ".",
            "0",
            "0.",
            ".0",
            "0.x",
            "0.-1",
            "70000.0",
            "0.0 MATCH *",
        ] {
            assert_eq!(Place::read(wrong, 3), None, "{wrong}");
        }
    }
}
