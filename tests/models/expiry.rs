//! Random calls on an `ExpiryMap` with groups, each answer compared with a plain model of it. Full
//! groups refuse or evict.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tourbillon::test_util::SteppedMap;
use tourbillon::{
    EntryError, Expired, Expiry, ExpiryMap, Found, GroupFull, GroupedBy, InsertError,
    InsertRefusal, Reason, Removed, RenameRefusal, Shutdown, Time, Touch, Updated,
};

const KEYS: u8 = 12;
const GROUPS: u8 = 3;

/// Spans in milliseconds; `None` is for good.
#[derive(Clone, Copy, Debug)]
struct Spans {
    idle: Option<u64>,
    lifetime: Option<u64>,
}

#[derive(Clone, Debug)]
enum Call {
    Insert(u8),
    InsertWith(u8, Spans),
    InsertMany(Vec<u8>),
    InsertIfAbsent(u8),
    TouchOrInsert(u8),
    GetOrTryInsert(u8, bool),
    GetOrCompute(u8, bool),
    InsertIn(u8, u8, Spans),
    InsertInIfAbsent(u8, u8),
    TouchOrInsertIn(u8, u8),
    GetOrTryInsertIn(u8, u8, bool),
    TouchGroup(u8),
    RemoveGroup(u8),
    SetExpiry(u8, Spans),
    Touch(u8),
    TouchMany(Vec<u8>),
    GetAndTouch(u8),
    TouchWith(u8),
    Update(u8),
    Remove(u8),
    RemoveMany(Vec<u8>),
    Rename(u8, u8),
    RetainBelow(u8),
    Clear,
    ShrinkToFit,
    /// The time passes and all that is due is delivered.
    Advance(u64),
    /// The time passes and nobody has had the time to deliver anything.
    Stall(u64),
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: u32,
    group: Option<u8>,
    idle: u64,
    end: u64,
    deadline: u64,
    touched: u64,
    /// How many insertions came before.
    arrival: u32,
    evicted: bool,
}

const FOR_GOOD: u64 = u64::MAX;

const NEVER: Spans = Spans {
    idle: None,
    lifetime: None,
};

/// In nanoseconds, without a wheel, a lock or a thread.
#[derive(Default)]
struct Model {
    now: u64,
    policy: GroupFull,
    entries: BTreeMap<u8, Entry>,
}

fn nanos(millis: Option<u64>) -> u64 {
    millis.map_or(FOR_GOOD, |millis| millis * 1_000_000)
}

impl Model {
    fn entry(&self, value: u32, spans: Spans) -> Entry {
        let idle = nanos(spans.idle);
        let end = self.now.saturating_add(nanos(spans.lifetime));
        Entry {
            value,
            group: None,
            idle,
            end,
            deadline: self.now.saturating_add(idle).min(end),
            touched: self.now,
            arrival: value,
            evicted: false,
        }
    }

    /// Makes room in a full group, and returns whether it did: there is one that refuses.
    fn evict(&mut self, group: u8) -> bool {
        let now = self.now;
        let members = self.entries.values_mut();
        let members = members.filter(|entry| entry.group == Some(group));
        let first = match self.policy {
            GroupFull::EvictOldest => members.min_by_key(|entry| entry.arrival),
            GroupFull::EvictLeastRecentlyTouched => {
                members.min_by_key(|entry| (entry.touched, entry.arrival))
            }
            _ => None,
        };
        let Some(first) = first else {
            return false;
        };
        first.group = None;
        // An entry whose lifetime is over is not ended by this.
        if now < first.end {
            first.evicted = true;
            first.deadline = first.deadline.min(now);
        }
        true
    }

    fn living(&mut self, key: u8) -> Option<&mut Entry> {
        let now = self.now;
        let entry = self.entries.get_mut(&key);
        entry.filter(|entry| now < entry.end && !entry.evicted)
    }

    fn touch(&mut self, key: u8) -> Touch {
        let now = self.now;
        if !self.entries.contains_key(&key) {
            return Touch::NotFound;
        }
        let Some(entry) = self.living(key) else {
            return Touch::Expired;
        };
        let before = entry.deadline;
        entry.touched = now;
        entry.deadline = now.saturating_add(entry.idle).min(entry.end);
        let deadline = Time::from_nanos(entry.deadline);
        if entry.deadline == before {
            Touch::Unchanged { deadline }
        } else {
            Touch::Touched { deadline }
        }
    }

    /// The keys of a group, those included that are too old.
    fn remove(&mut self, key: u8) -> Removed<u32> {
        match self.entries.remove(&key) {
            Some(entry) => Removed::Removed {
                value: entry.value,
                deadline: Time::from_nanos(entry.deadline),
            },
            None => Removed::NotFound,
        }
    }

    fn group(&self, group: u8) -> Vec<u8> {
        let entries = self.entries.iter();
        let of_group = entries.filter(|(_, entry)| entry.group == Some(group));
        of_group.map(|(key, _)| *key).collect()
    }

    /// Inserts an entry with the times of the builder, which are none.
    fn insert_if_absent(
        &mut self,
        group: Option<u8>,
        most: usize,
        key: u8,
        value: u32,
    ) -> Result<Option<u32>, InsertRefusal> {
        if self.living(key).is_some() {
            return Err(InsertRefusal::Occupied);
        }
        if let Some(group) = group {
            let members = self.group(group);
            let is_full = members.len() >= most && !members.contains(&key);
            if is_full && !self.evict(group) {
                return Err(InsertRefusal::GroupFull);
            }
        }
        let mut entry = self.entry(value, NEVER);
        entry.group = group;
        Ok(self.entries.insert(key, entry).map(|over| over.value))
    }

    fn rename(&mut self, old: u8, new: u8) -> Result<(), RenameRefusal> {
        if self.living(old).is_none() {
            return Err(RenameRefusal::NotFound);
        }
        if old != new && self.living(new).is_some() {
            return Err(RenameRefusal::Insert(InsertRefusal::Occupied));
        }
        // All of it stays, whatever the new key had before.
        let entry = self.entries.remove(&old).expect("it lives");
        self.entries.insert(new, entry);
        Ok(())
    }

    fn touch_or_insert(
        &mut self,
        group: Option<u8>,
        most: usize,
        key: u8,
        value: u32,
    ) -> Result<Updated<(Touch, u32), u32>, InsertRefusal> {
        if let Some(entry) = self.living(key) {
            entry.value += 1_000_000;
            let result = entry.value;
            let touch = self.touch(key);
            return Ok(Updated::Present((touch, result)));
        }
        let replaced = self.insert_if_absent(group, most, key, value)?;
        let deadline = Time::MAX;
        Ok(Updated::Inserted { deadline, replaced })
    }

    fn get_or_try_insert(
        &mut self,
        group: Option<u8>,
        most: usize,
        key: u8,
        value: Result<u32, u32>,
    ) -> Result<Found<u32>, Result<u32, InsertRefusal>> {
        if let Some(entry) = self.living(key) {
            return Ok(Found::Present(entry.value));
        }
        let value = value.map_err(Ok)?;
        let inserted = self.insert_if_absent(group, most, key, value);
        let replaced = inserted.map_err(Err)?;
        Ok(Found::Inserted {
            value,
            deadline: Time::MAX,
            replaced,
        })
    }

    /// What is delivered when all is settled, sorted.
    fn deliver(&mut self) -> Vec<(u8, u32, u64, Reason)> {
        let now = self.now;
        let due = |entry: &Entry| entry.deadline <= now && entry.deadline != FOR_GOOD;
        let gone = self.entries.iter().filter(|(_, entry)| due(entry));
        let gone = gone
            .map(|(key, entry)| {
                let over = entry.end <= entry.deadline;
                let reason = match () {
                    () if entry.evicted => Reason::GroupFull,
                    () if over => Reason::Lifetime,
                    () => Reason::Idle,
                };
                (*key, entry.value, entry.deadline, reason)
            })
            .collect();
        self.entries.retain(|_, entry| !due(entry));
        gone
    }
}

fn expiry(spans: Spans) -> Expiry {
    let mut expiry = Expiry::NEVER;
    if let Some(idle) = spans.idle {
        expiry = expiry.time_to_idle(Duration::from_millis(idle));
    }
    if let Some(lifetime) = spans.lifetime {
        expiry = expiry.time_to_live(Duration::from_millis(lifetime));
    }
    expiry
}

/// What all closures do to a value under the lock.
fn change(value: &mut u32) -> u32 {
    *value += 1_000_000;
    *value
}

fn refusal<T>(answer: Result<T, InsertError<u8, u32>>) -> Result<T, InsertRefusal> {
    answer.map_err(|error| error.refusal)
}

fn failure<T>(
    answer: Result<T, EntryError<u8, u32, u32>>,
) -> Result<T, Result<u32, InsertRefusal>> {
    answer.map_err(|error| match error {
        EntryError::Make(error) => Ok(error),
        EntryError::Insert(error) => Err(error.refusal),
        other => panic!("{other}"),
    })
}

type Gone = Arc<Mutex<Vec<Expired<u8, u32>>>>;

fn delivered(gone: &Gone) -> Vec<(u8, u32, u64, Reason)> {
    let mut gone: Vec<_> = std::mem::take(&mut *gone.lock().unwrap())
        .into_iter()
        .map(|gone| (gone.key, gone.value, gone.deadline.as_nanos(), gone.reason))
        .collect();
    gone.sort_unstable_by_key(|gone| gone.0);
    gone
}

fn run(seed: u64, default: Spans, most: usize, policy: GroupFull, calls: &[Call]) {
    let gone = Gone::default();
    let collect = Arc::clone(&gone);
    let left = Arc::new(Mutex::new(0));
    let count = Arc::clone(&left);
    let stepped: SteppedMap<u8, u32, GroupedBy<u8>> = ExpiryMap::builder()
        .shards(2)
        .stripes(4)
        .groups()
        .max_per_group(most)
        .when_group_full(policy)
        .on_removal(move |_, _, _| *count.lock().unwrap() += 1)
        .build_stepped(seed, move |_, expired| {
            collect.lock().unwrap().push(expired);
        })
        .unwrap();
    let map = stepped.map();
    let mut model = Model {
        policy,
        ..Model::default()
    };
    let mut ends = 0;
    for (number, call) in (0..).zip(calls) {
        match *call {
            Call::Insert(key) | Call::InsertWith(key, _) => {
                let spans = match *call {
                    Call::InsertWith(_, spans) => spans,
                    _ => default,
                };
                let entry = model.entry(number, spans);
                let deadline = Time::from_nanos(entry.deadline);
                let replaced = model.entries.insert(key, entry).map(|old| old.value);
                let answer = map
                    .entry(key)
                    .no_group()
                    .expiry(expiry(spans))
                    .insert(number)
                    .unwrap();
                assert_eq!((answer.deadline, answer.replaced), (deadline, replaced));
            }
            Call::InsertMany(ref keys) => {
                let mut expected = Vec::new();
                for key in keys {
                    let entry = model.entry(number, NEVER);
                    let deadline = Time::from_nanos(entry.deadline);
                    let replaced = model.entries.insert(*key, entry).map(|old| old.value);
                    expected.push((deadline, replaced));
                }
                let answers = map.insert_many(keys.iter().map(|key| (*key, number)));
                let answers = answers.into_iter().map(|answer| {
                    let inserted = answer.unwrap();
                    (inserted.deadline, inserted.replaced)
                });
                assert_eq!(answers.collect::<Vec<_>>(), expected);
            }
            Call::InsertIfAbsent(key) => {
                let expected = model.insert_if_absent(None, most, key, number);
                let answer = map.entry(key).no_group().insert_if_absent(number);
                assert_eq!(refusal(answer.map(|inserted| inserted.replaced)), expected);
            }
            Call::InsertInIfAbsent(group, key) => {
                let expected = model.insert_if_absent(Some(group), most, key, number);
                let answer = map.entry(key).group(&group).insert_if_absent(number);
                assert_eq!(refusal(answer.map(|inserted| inserted.replaced)), expected);
            }
            Call::TouchOrInsert(key) => {
                let expected = model.touch_or_insert(None, most, key, number);
                let answer = map
                    .entry(key)
                    .no_group()
                    .touch_with(change)
                    .or_insert_with(|| number);
                assert_eq!(refusal(answer), expected);
            }
            Call::TouchOrInsertIn(group, key) => {
                let expected = model.touch_or_insert(Some(group), most, key, number);
                let answer = map
                    .entry(key)
                    .group(&group)
                    .touch_with(change)
                    .or_insert_with(|| number);
                assert_eq!(refusal(answer), expected);
            }
            Call::GetOrCompute(key, makes) => {
                let value = if makes { Ok(number) } else { Err(number) };
                let expected = model.get_or_try_insert(None, most, key, value);
                let answer = map.entry(key).no_group().or_compute(|| value).wait();
                assert_eq!(failure(answer), expected);
            }
            Call::GetOrTryInsert(key, makes) => {
                let value = if makes { Ok(number) } else { Err(number) };
                let expected = model.get_or_try_insert(None, most, key, value);
                let answer = map.entry(key).no_group().or_try_insert_with(|| value);
                assert_eq!(failure(answer), expected);
            }
            Call::GetOrTryInsertIn(group, key, makes) => {
                let value = if makes { Ok(number) } else { Err(number) };
                let expected = model.get_or_try_insert(Some(group), most, key, value);
                let answer = map.entry(key).group(&group).or_try_insert_with(|| value);
                assert_eq!(failure(answer), expected);
            }
            Call::InsertIn(group, key, spans) => {
                let mut entry = model.entry(number, spans);
                entry.group = Some(group);
                let members = model.group(group);
                let is_full = members.len() >= most && !members.contains(&key);
                let expected = if is_full && !model.evict(group) {
                    Err(InsertRefusal::GroupFull)
                } else {
                    Ok(model.entries.insert(key, entry).map(|old| old.value))
                };
                let answer = map
                    .entry(key)
                    .group(&group)
                    .expiry(expiry(spans))
                    .insert(number);
                assert_eq!(
                    answer
                        .map(|inserted| inserted.replaced)
                        .map_err(|error| error.refusal),
                    expected
                );
            }
            Call::TouchGroup(group) => {
                let touches = model.group(group).into_iter().map(|key| model.touch(key));
                let alive = touches.filter(|touch| touch.is_alive()).count();
                assert_eq!(map.touch_group(&group), alive);
            }
            Call::RemoveGroup(group) => {
                let members = model.group(group).into_iter();
                let expected: Vec<_> = members
                    .map(|key| (key, model.entries.remove(&key).unwrap().value))
                    .collect();
                let mut removed = map.remove_group(&group);
                removed.sort_unstable();
                assert_eq!(removed, expected);
            }
            Call::SetExpiry(key, spans) => {
                let fresh = model.entry(0, spans);
                let known = model.entries.contains_key(&key);
                let expected = match model.living(key) {
                    None if known => Touch::Expired,
                    None => Touch::NotFound,
                    Some(entry) => {
                        let before = entry.deadline;
                        *entry = Entry {
                            value: entry.value,
                            group: entry.group,
                            arrival: entry.arrival,
                            ..fresh
                        };
                        let deadline = Time::from_nanos(entry.deadline);
                        if entry.deadline == before {
                            Touch::Unchanged { deadline }
                        } else {
                            Touch::Touched { deadline }
                        }
                    }
                };
                assert_eq!(map.set_expiry(&key, expiry(spans)), expected);
            }
            Call::Touch(key) => assert_eq!(map.touch(&key), model.touch(key)),
            Call::TouchMany(ref keys) => {
                let expected: Vec<_> = keys.iter().map(|key| model.touch(*key)).collect();
                assert_eq!(map.touch_many(keys), expected);
            }
            Call::GetAndTouch(key) => {
                let expected = model.living(key).map(|entry| entry.value);
                model.touch(key);
                assert_eq!(map.get_and_touch(&key), expected);
            }
            Call::TouchWith(key) => {
                let touch = model.touch(key);
                let expected = model.living(key).map(|entry| {
                    entry.value += 1_000_000;
                    entry.value
                });
                let answer = map.touch_with(&key, change);
                assert_eq!(answer, (touch, expected));
                assert_eq!(touch.is_alive(), answer.1.is_some());
            }
            Call::Update(key) => {
                let expected = model.living(key).map(|entry| {
                    entry.value += 1_000_000;
                    entry.value
                });
                assert_eq!(map.update(&key, change), expected);
            }
            Call::Remove(key) => assert_eq!(map.remove(&key), model.remove(key)),
            Call::RemoveMany(ref keys) => {
                let expected: Vec<_> = keys.iter().map(|key| model.remove(*key)).collect();
                assert_eq!(map.remove_many(keys), expected);
            }
            Call::Rename(old, new) => {
                let answer = map.rename(&old, new);
                let answer = answer.map_err(|error| {
                    assert_eq!(error.key, new);
                    error.refusal
                });
                assert_eq!(answer, model.rename(old, new), "{call:?}");
            }
            Call::RetainBelow(least) => {
                let before = model.entries.len();
                let now = model.now;
                model
                    .entries
                    .retain(|key, entry| now >= entry.end || entry.evicted || *key < least);
                let removed = map.retain(|key, _| *key < least);
                assert_eq!(removed, before - model.entries.len());
            }
            Call::Clear => {
                assert_eq!(map.clear(), model.entries.len());
                model.entries.clear();
            }
            Call::ShrinkToFit => map.shrink_to_fit(),
            Call::Advance(millis) => {
                // Each at its own moment, so that what is due meanwhile is gone.
                stepped.advance(Duration::from_millis(millis));
                model.now += millis * 1_000_000;
                let expected = model.deliver();
                ends += expected.len() as u64;
                assert_eq!(delivered(&gone), expected);
            }
            Call::Stall(millis) => {
                model.now += millis * 1_000_000;
                stepped.clock().set(Time::from_nanos(model.now));
            }
        }
        assert_eq!(map.len(), model.entries.len(), "after {call:?}");
        let accepted = map.stats().inserted as usize;
        let told = *left.lock().unwrap();
        assert_eq!(told + map.len(), accepted, "the listener, after {call:?}");
        for key in 0..KEYS {
            let expected = model.living(key).map(|entry| entry.deadline);
            let deadline = map.deadline(&key).map(Time::as_nanos);
            assert_eq!(deadline, expected, "{key} after {call:?}");
            let expected = expected.map(|deadline| match deadline {
                FOR_GOOD => Duration::MAX,
                deadline => Duration::from_nanos(deadline.saturating_sub(model.now)),
            });
            assert_eq!(map.remaining(&key), expected, "{key} after {call:?}");
            let expected = model.living(key).and_then(|entry| entry.group);
            assert_eq!(map.group_of(&key), expected, "{key} after {call:?}");
        }
        let deadlines = model.entries.values().map(|entry| entry.deadline);
        let to_come = |deadline: &u64| *deadline > model.now && *deadline != FOR_GOOD;
        let next = deadlines.filter(to_come).min();
        assert_eq!(
            map.next_deadline(),
            next.map(Time::from_nanos),
            "after {call:?}"
        );
        let mut shown: Vec<_> = map.iter().with_deadlines().collect();
        shown.sort_unstable();
        let living = (0..KEYS).filter_map(|key| {
            let entry = model.living(key)?;
            Some((key, entry.value, Time::from_nanos(entry.deadline)))
        });
        assert_eq!(shown, living.collect::<Vec<_>>(), "after {call:?}");
        for group in 0..GROUPS {
            let members = model.group(group);
            assert_eq!(map.group_len(&group), members.len(), "after {call:?}");
            let mut entries = map.group_entries(&group);
            entries.sort_unstable();
            let living = members.into_iter().filter_map(|key| {
                let entry = model.living(key)?;
                Some((key, entry.value))
            });
            assert_eq!(entries, living.collect::<Vec<_>>(), "after {call:?}");
        }
    }
    let stats = map.stats();
    assert!(stats.balances());
    let mut left: Vec<_> = model
        .entries
        .iter()
        .map(|(key, entry)| (*key, entry.value))
        .collect();
    stepped.settle();
    for gone in delivered(&gone) {
        let expected = model.entries[&gone.0].deadline;
        assert!(gone.2 == expected && expected <= model.now);
        left.retain(|(key, _)| *key != gone.0);
        ends += 1;
    }
    let report = stepped.shutdown(Shutdown::HandBack);
    let mut back: Vec<_> = report
        .handed_back
        .iter()
        .map(|back| (back.key, back.value))
        .collect();
    back.sort_unstable();
    assert_eq!(back, left);
    for group in 0..GROUPS {
        assert_eq!(map.group_len(&group), 0);
    }
    let stats = map.stats();
    assert_eq!(stats.expired + stats.evicted, ends);
}

fn spans() -> impl Strategy<Value = Spans> {
    let span = || prop_oneof![1 => Just(None), 4 => (0_u64..50).prop_map(Some), 1 => (0_u64..100_000).prop_map(Some)];
    (span(), span()).prop_map(|(idle, lifetime)| Spans { idle, lifetime })
}

fn policy() -> impl Strategy<Value = GroupFull> {
    prop_oneof![
        Just(GroupFull::Refuse),
        Just(GroupFull::EvictOldest),
        Just(GroupFull::EvictLeastRecentlyTouched),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let key = || 0..KEYS;
    let group = || 0..GROUPS;
    prop_oneof![
        8 => (group(), key(), spans()).prop_map(|(group, key, spans)| Call::InsertIn(group, key, spans)),
        2 => group().prop_map(Call::TouchGroup),
        1 => group().prop_map(Call::RemoveGroup),
        6 => key().prop_map(Call::Insert),
        4 => (key(), spans()).prop_map(|(key, spans)| Call::InsertWith(key, spans)),
        3 => prop::collection::vec(key(), 0..20).prop_map(Call::InsertMany),
        2 => prop::collection::vec(key(), 0..20).prop_map(Call::RemoveMany),
        2 => key().prop_map(Call::InsertIfAbsent),
        2 => key().prop_map(Call::TouchOrInsert),
        2 => (key(), any::<bool>()).prop_map(|(key, makes)| Call::GetOrTryInsert(key, makes)),
        2 => (key(), any::<bool>()).prop_map(|(key, makes)| Call::GetOrCompute(key, makes)),
        3 => (group(), key()).prop_map(|(group, key)| Call::InsertInIfAbsent(group, key)),
        3 => (group(), key()).prop_map(|(group, key)| Call::TouchOrInsertIn(group, key)),
        2 => (group(), key(), any::<bool>())
            .prop_map(|(group, key, makes)| Call::GetOrTryInsertIn(group, key, makes)),
        3 => (key(), spans()).prop_map(|(key, spans)| Call::SetExpiry(key, spans)),
        8 => key().prop_map(Call::Touch),
        2 => prop::collection::vec(key(), 0..20).prop_map(Call::TouchMany),
        2 => key().prop_map(Call::GetAndTouch),
        3 => key().prop_map(Call::TouchWith),
        2 => key().prop_map(Call::Update),
        3 => key().prop_map(Call::Remove),
        6 => (key(), key()).prop_map(|(old, new)| Call::Rename(old, new)),
        1 => key().prop_map(Call::RetainBelow),
        1 => Just(Call::Clear),
        2 => Just(Call::ShrinkToFit),
        8 => (0_u64..60).prop_map(Call::Advance),
        1 => (0_u64..100_000).prop_map(Call::Advance),
        4 => (0_u64..60).prop_map(Call::Stall),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 900, ..ProptestConfig::default() })]

    #[test]
    fn the_map_answers_as_its_model(
        seed in any::<u64>(),
        spans in spans(),
        most in 1_usize..8,
        policy in policy(),
        calls in prop::collection::vec(call(), 1..80),
    ) {
        run(seed, spans, most, policy, &calls);
    }
}
