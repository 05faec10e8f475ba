//! Lists the names that are held.
//!
//! A script walks over the keys of a node in steps. It is sent with the marker of a destination,
//! which leads a proxy to the node of that destination. The holders are asked for by one call for
//! each name, since a script of a cluster may only read keys of one slot.

use std::collections::HashSet;

use redis::Value;

use super::RedisStore;
use super::answers::{holder, unexpected};
use super::errors::answered;
use super::link::Limit;
use super::pool::Whose;
use super::scripts::Call;
use crate::store::{Destination, HeldLock, StoreError};

/// The number of holders that one round trip asks for.
const BATCH: usize = 100;

impl RedisStore {
    pub(super) fn list_held(
        &self,
        prefix: &str,
        most: usize,
        limit: Limit,
    ) -> Result<Vec<HeldLock>, StoreError> {
        let keys = &self.0.options.keys;
        let pattern = keys.pattern(prefix);
        let mut found = Vec::new();
        // A walk may find a key twice, and several destinations may lie on one node.
        let mut seen = HashSet::new();
        for (destination, marker) in (0_u64..).map(Destination::new).zip(keys.markers()) {
            let mut cursor = "0".to_owned();
            while found.len() < most {
                let names;
                (cursor, names) = self.step(destination, marker, &cursor, &pattern, limit)?;
                let new: Vec<_> = names
                    .into_iter()
                    .filter(|name| seen.insert(name.clone()))
                    .collect();
                for some in new.chunks(BATCH) {
                    if found.len() < most {
                        self.add_held(destination, some, &mut found, limit)?;
                    }
                }
                if cursor == "0" {
                    break;
                }
            }
        }
        found.truncate(most);
        Ok(found)
    }

    /// Makes one step of a walk. Returns the next cursor, and the names that were found.
    fn step(
        &self,
        destination: Destination,
        marker: &str,
        cursor: &str,
        pattern: &str,
        limit: Limit,
    ) -> Result<(String, Vec<String>), StoreError> {
        let call = Call::new(&self.0.scripts.scan, [marker.to_owned()])
            .arg(cursor)
            .arg(pattern);
        let whose = Whose::User(destination);
        let answer = self.0.pool.call(whose, &[call], limit)?.into_iter().next();
        let answer = match answer {
            Some(Value::ServerError(error)) => return Err(answered(&error)),
            Some(answer) => answer,
            None => return Err(StoreError::Unavailable("no answer".to_owned())),
        };
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
    fn add_held(
        &self,
        destination: Destination,
        names: &[String],
        found: &mut Vec<HeldLock>,
        limit: Limit,
    ) -> Result<(), StoreError> {
        let scripts = &self.0.scripts;
        let calls: Vec<_> = names
            .iter()
            .map(|name| Call::new(&scripts.holder, [self.0.options.keys.lock(name)]))
            .collect();
        let answers = self.0.pool.call(Whose::User(destination), &calls, limit)?;
        for (name, answer) in names.iter().zip(answers) {
            if let Value::ServerError(error) = &answer {
                return Err(answered(error));
            }
            // Released meanwhile, or only reserved, if there is none.
            if let Some(holder) = holder(&answer, self.0.options.longest_lease)? {
                found.push(HeldLock::new(name.clone(), holder));
            }
        }
        Ok(())
    }
}
