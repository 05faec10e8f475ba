//! Lists the names that are held.
//!
//! A script walks over the keys of a node in steps. It is sent with the marker of a destination,
//! which leads a proxy to the node of that destination, or to a node of a cluster by its identity. The
//! holders are asked for by one call for each name, since a script of a cluster may only read keys of one slot.
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
use super::scripts::{Call, Spot};
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
    /// The number of a destination, or the identity of a node.
    of: String,
    cursor: String,
}

impl Place {
    /// Reads the text of a place, as [`text`](Self::text) writes it.
    fn read(text: &str) -> Option<Self> {
        let (of, cursor) = text.split_once('.')?;
        let is_fine = !of.is_empty() && of.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_fine.then_some(Place {
            of: of.to_owned(),
            // A cursor is a number of 64 bits.
            cursor: cursor.parse::<u64>().ok()?.to_string(),
        })
    }

    fn text(&self) -> String {
        format!("{}.{}", self.of, self.cursor)
    }
}

/// Walks that are made one after the other.
struct Walks {
    spots: Vec<Spot>,
    at: usize,
    cursor: String,
}

impl Walks {
    /// Goes on at a place. A cursor means something only to the node that gave it. If that node has no
    /// slots any more, the next one is begun. Returns `None` if there is no such place.
    fn new(spots: Vec<Spot>, place: Option<Place>) -> Option<Self> {
        let begin = "0".to_owned();
        let (at, cursor) = match (place, spots.first()?) {
            (None, _) => (0, begin),
            (Some(place), Spot::Marker(_)) => (place.of.parse().ok()?, place.cursor),
            (Some(place), Spot::Node(_)) => {
                let at = spots
                    .partition_point(|spot| matches!(spot, Spot::Node(id) if **id < *place.of));
                match spots.get(at) {
                    Some(Spot::Node(id)) if **id == *place.of => (at, place.cursor),
                    _ => (at, begin),
                }
            }
        };
        (at < spots.len() || matches!(spots[0], Spot::Node(_))).then_some(Walks {
            spots,
            at,
            cursor,
        })
    }

    /// Returns what is walked over now, unless all has been.
    fn spot(&self) -> Option<&Spot> {
        self.spots.get(self.at)
    }

    /// The destination. A cluster sends by the node.
    fn destination(&self) -> Destination {
        Destination::new(self.at as u64)
    }

    fn place(&self) -> Option<String> {
        let of = match self.spot()? {
            Spot::Marker(_) => self.at.to_string(),
            Spot::Node(id) => id.to_string(),
        };
        let cursor = self.cursor.clone();
        Some(Place { of, cursor }.text())
    }

    /// Goes on with this cursor, which is 0 at the end of a walk.
    fn go_on(&mut self, cursor: String) {
        self.at += usize::from(cursor == "0");
        self.cursor = cursor;
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
        let unknown = || {
            let what = "it knows no such place in a list; ask for the first page";
            StoreError::Refused(what.to_owned())
        };
        let after = paging.after.as_ref();
        let after = after.map(|text| Place::read(text).ok_or_else(unknown));
        let after = after.transpose()?;
        let spots = self.spots(whole).await?;
        let mut walks = Walks::new(spots, after).ok_or_else(unknown)?;
        let pattern = keys.pattern(prefix);
        let most = paging.limit.max(1);
        let mut found = Vec::new();
        // A walk may find a key twice. Several destinations may lie on one node, and the slots of one
        // destination on several nodes. So the walk of each destination takes whatever it finds.
        let mut seen = HashSet::new();
        let mut count = STEP;
        while let Some(spot) = walks.spot() {
            let to = walks.destination();
            let step = self.step((to, spot), &walks.cursor, &pattern, count, whole);
            let (cursor, mut names) = match step.await {
                // The next page begins with this step, and fails if it fails again.
                Err(_) if !found.is_empty() => break,
                step => step?,
            };
            names.retain(|name| !seen.contains(name));
            let room = most - found.len();
            if names.len() > room && (count > 1 || !found.is_empty()) {
                // With the last locks of a page smaller steps would find little.
                if count == 1 || found.len() > most / 2 {
                    break;
                }
                count = (count * room / names.len()).clamp(1, count / 2);
                continue;
            }
            for some in names.chunks(BATCH) {
                self.add_held(to, some, &mut found, whole).await?;
            }
            seen.extend(names);
            walks.go_on(cursor);
            // The page ends before the limit does.
            if found.len() >= most || start.elapsed() >= limit / 2 {
                break;
            }
        }
        Ok(LockPage::new(found, walks.place(), paging))
    }

    /// Makes one step of a walk, over about `count` keys. Returns the next cursor, and the names that
    /// were found.
    async fn step(
        &self,
        (to, spot): (Destination, &Spot),
        cursor: &str,
        pattern: &str,
        count: usize,
        limit: Limit,
    ) -> Result<(String, Vec<String>), StoreError> {
        let call = Call::at(&self.0.scripts.scan, spot)
            .arg(cursor)
            .arg(pattern)
            .arg(&count);
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
        to: Destination,
        names: &[String],
        found: &mut Vec<HeldLock>,
        limit: Limit,
    ) -> Result<(), StoreError> {
        let scripts = &self.0.scripts;
        let calls = names
            .iter()
            .map(|name| Call::new(&scripts.holder, [self.0.options.keys.lock(name)]))
            .collect();
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
        let place = |of: &str| Place {
            of: of.to_owned(),
            cursor: u64::MAX.to_string(),
        };
        for of in ["2", "00ff"] {
            assert_eq!(Place::read(&place(of).text()), Some(place(of)));
        }
        for wrong in [
            "",
            ".",
            "0",
            "0.",
            ".0",
            "0.x",
            "0.-1",
            "-1.0",
            "g.0",
            "0.0 MATCH *",
        ] {
            assert_eq!(Place::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn walks_go_on_where_they_were_and_begin_the_next_node_if_theirs_is_gone() {
        let markers: Vec<_> = ["a", "b"].map(|key| Spot::Marker(key.into())).into();
        let nodes: Vec<_> = ["1a", "3c"].map(|id| Spot::Node(id.into())).into();
        let place = |spots: &[Spot], text: &str| {
            let walks = Walks::new(spots.to_vec(), Place::read(text))?;
            Some(walks.place().unwrap_or_default())
        };
        for there in ["0.7", "1.0"] {
            assert_eq!(place(&markers, there).as_deref(), Some(there));
        }
        assert_eq!(place(&markers, "2.0"), None);
        assert_eq!(place(&markers, "a.0"), None);
        for (text, there) in [
            ("1a.7", "1a.7"),
            ("3c.7", "3c.7"),
            ("0.7", "1a.0"),
            ("2b.7", "3c.0"),
            ("ff.7", ""),
        ] {
            assert_eq!(place(&nodes, text).as_deref(), Some(there), "{text}");
        }
        let mut walks = Walks::new(nodes, None).unwrap();
        let mut seen = Vec::new();
        for cursor in ["5", "0", "0"] {
            seen.extend(walks.place());
            walks.go_on(cursor.to_owned());
        }
        assert_eq!(seen, ["1a.0", "1a.5", "3c.0"]);
        assert_eq!(walks.place(), None);
    }
}
