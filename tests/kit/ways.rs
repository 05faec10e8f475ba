//! The ways in which a map runs user code under a lock, for what must come through a drop there.

use std::future::{Future, pending};
use std::hash::{Hash, Hasher};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use tourbillon::{ExpiryMap, Scheduler};

const HOUR: Duration = Duration::from_secs(3_600);

/// Something to be dropped, by whoever gets at it first.
type Slot = Mutex<Option<Box<dyn Send>>>;

/// A key whose `Eq` and `Clone` drop what lies in the slot, both under a lock.
#[derive(Clone, Debug, Default)]
pub struct Dropping {
    number: u32,
    slot: SharedSlot,
}

/// A value that is dropped together with what lies in it.
#[derive(Default)]
pub struct SharedSlot(Arc<Slot>);

impl SharedSlot {
    fn empty(&self) {
        let content = self.0.lock().unwrap().take();
        drop(content);
    }
}

impl std::fmt::Debug for SharedSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSlot")
    }
}

impl Clone for SharedSlot {
    fn clone(&self) -> Self {
        self.empty();
        SharedSlot(Arc::clone(&self.0))
    }
}

impl PartialEq for Dropping {
    fn eq(&self, other: &Self) -> bool {
        self.slot.empty();
        other.slot.empty();
        self.number == other.number
    }
}

impl Eq for Dropping {}

impl Hash for Dropping {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

/// A map whose keys and values are such.
pub type Map = ExpiryMap<Dropping, SharedSlot>;

/// A map with one entry, under number 0.
pub fn map() -> Map {
    let map = Map::builder().time_to_live(HOUR).build(|_, _| ()).unwrap();
    let key = Dropping::default();
    map.insert(key, SharedSlot::default()).unwrap();
    map
}

fn key_with(content: Box<dyn Send>) -> Dropping {
    Dropping {
        number: 0,
        slot: SharedSlot(Arc::new(Mutex::new(Some(content)))),
    }
}

/// The ways in which a map calls user code under a lock, each of which drops `content`.
pub const WAYS: usize = 9;

/// Drops `content` in one of the ways.
pub fn drop_under_a_lock(way: usize, content: Box<dyn Send>) {
    let map = map();
    let key = Dropping::default();
    match way {
        0 => assert!(map.update(&key, move |_| drop(content)).is_some()),
        1 => assert!(map.with(&key, move |_| drop(content)).is_some()),
        2 => {
            let mut content = Some(content);
            assert_eq!(map.retain(|_, _| content.take().is_none()), 1);
        }
        3 => {
            let value = SharedSlot(Arc::new(Mutex::new(Some(content))));
            map.insert(key.clone(), value).unwrap();
            assert!(map.get(&key).is_some());
        }
        4 => assert!(map.contains(&key_with(content))),
        5 => assert_eq!(map.touch_many(&[key_with(content)]).len(), 1),
        6 => {
            let key = Dropping {
                number: 1,
                ..key_with(content)
            };
            map.insert(key, SharedSlot::default()).unwrap();
            assert_eq!(map.iter().count(), 2);
        }
        7 => {
            // Under the lock of the computations in progress.
            let compute = pending::<Result<SharedSlot, ()>>;
            map.remove(&key);
            let mut context = Context::from_waker(Waker::noop());
            let mut leads = pin!(map.entry(key).or_compute(compute));
            assert!(leads.as_mut().poll(&mut context).is_pending());
            let waits = pin!(map.entry(key_with(content)).or_compute(compute));
            assert!(waits.poll(&mut context).is_pending());
        }
        _ => {
            // Under the lock of a group, and under that of a stripe inside of it.
            let map = ExpiryMap::<Dropping, u32>::builder()
                .groups::<Dropping>()
                .build(|_, _| ())
                .unwrap();
            let (group, key) = (Dropping::default(), Dropping::default());
            map.entry(key).group(&group).insert(1).unwrap();
            // Its drop needs the group's lock again.
            let again = {
                let map = map.clone();
                AtDrop(Box::new(move || {
                    assert_eq!(map.group_len(&Dropping::default()), 1);
                }))
            };
            map.entry(key_with(Box::new((content, put_off(again)))))
                .group(&group)
                .insert(2)
                .unwrap();
        }
    }
}

/// Runs something at its drop.
pub struct AtDrop(pub Box<dyn Fn() + Send>);

impl std::fmt::Debug for AtDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtDrop")
    }
}

impl Drop for AtDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A guard whose timer has a task with this drop, which runs when the guard cancels the timer.
fn put_off(drop: AtDrop) -> Box<dyn Send> {
    let scheduler = Scheduler::<u32>::builder().build().unwrap();
    let timers = scheduler.handle();
    let timer = timers.schedule(7, HOUR, move |_| {
        let _ = &drop;
    });
    Box::new((timers.cancel_on_drop(timer.unwrap().id), scheduler))
}

/// Drops `content` in every way, and has a look each time.
pub fn in_every_way(mut content: impl FnMut() -> Box<dyn Send>, mut done: impl FnMut(usize)) {
    for way in 0..WAYS {
        drop_under_a_lock(way, content());
        done(way);
    }
}
