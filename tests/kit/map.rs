//! Stepped expiry maps, keyed by number, that collect their expired entries.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tourbillon::test_util::SteppedMap;
use tourbillon::{Expired, ExpiryMap, ExpiryMapBuilder, Time};

/// One second.
pub const S: Duration = Duration::from_secs(1);
/// The time to idle of [`builder`].
pub const IDLE: Duration = Duration::from_secs(60);
/// A time to live that is longer than [`IDLE`].
pub const LIFE: Duration = Duration::from_secs(100);

/// The map under test.
pub type Map = ExpiryMap<u32, String>;
/// The expired entries that a map has delivered.
pub type Gone = Arc<Mutex<Vec<Expired<u32, String>>>>;

/// The time `seconds` after the start.
pub fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// A builder whose entries expire after [`IDLE`].
pub fn builder() -> ExpiryMapBuilder<u32, String> {
    Map::builder().time_to_idle(IDLE)
}

/// A stepped map, and the place where it delivers expired entries.
pub fn collecting(
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

/// Takes the entries that have expired since the last call.
pub fn take(gone: &Gone) -> Vec<Expired<u32, String>> {
    std::mem::take(&mut gone.lock().unwrap())
}

/// Takes the keys of the entries that have expired since the last call, sorted.
pub fn keys(gone: &Gone) -> Vec<u32> {
    let mut keys: Vec<_> = take(gone).iter().map(|expired| expired.key).collect();
    keys.sort_unstable();
    keys
}

/// The value that [`fill`] stores under `key`.
pub fn text(key: u32) -> String {
    format!("value {key}")
}

/// Inserts keys that the map does not have yet.
pub fn fill(map: &Map, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        assert_eq!(map.insert(key, text(key)).unwrap().replaced, None);
    }
}
