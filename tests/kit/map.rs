//! Stepped maps whose expired entries are collected.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tourbillon::test_util::SteppedMap;
use tourbillon::{Expired, ExpiryMap, ExpiryMapBuilder, Inserted, Time};

pub(crate) const S: Duration = Duration::from_secs(1);
pub(crate) const IDLE: Duration = Duration::from_secs(60);
pub(crate) const LIFE: Duration = Duration::from_secs(100);

pub(crate) type Map = ExpiryMap<u32, String>;
pub(crate) type Gone = Arc<Mutex<Vec<Expired<u32, String>>>>;

pub(crate) fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

pub(crate) fn builder() -> ExpiryMapBuilder<u32, String> {
    Map::builder().time_to_idle(IDLE)
}

/// A stepped map whose expired entries are collected.
pub(crate) fn collecting(
    builder: ExpiryMapBuilder<u32, String>,
    seed: u64,
) -> (SteppedMap<u32, String>, Gone) {
    let gone = Gone::default();
    let collect = Arc::clone(&gone);
    let stepped = builder
        .build_stepped(seed, move |_, expired| {
            collect.lock().unwrap().push(expired);
        })
        .unwrap();
    (stepped, gone)
}

/// What has expired since the last look.
pub(crate) fn take(gone: &Gone) -> Vec<Expired<u32, String>> {
    std::mem::take(&mut gone.lock().unwrap())
}

/// The same as keys, sorted.
pub(crate) fn keys(gone: &Gone) -> Vec<u32> {
    let mut keys: Vec<_> = take(gone).iter().map(|expired| expired.key).collect();
    keys.sort_unstable();
    keys
}

pub(crate) fn text(key: u32) -> String {
    format!("value {key}")
}

pub(crate) fn fill(map: &Map, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        assert_eq!(map.insert(key, text(key)).unwrap(), Inserted::New);
    }
}
