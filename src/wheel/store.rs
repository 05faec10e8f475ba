//! Where a wheel keeps its values, and the keys that name them: a slab with a free list and
//! generations.

use std::fmt;

use super::filing::{EntryStore, WheelPosition};
use super::slab::{NO_ENTRY, Slab};
use crate::tick::Tick;

/// Names a value in the [`Wheel`](super::Wheel) that gave the key out.
///
/// A key is stale once its value has expired or been removed; from then on it answers `None` in
/// every call, also when the wheel has put another value in the same place. Keys of other wheels
/// are not recognised: they may answer `None` or name an unrelated value.
///
/// # Examples
///
/// ```
/// use tourbillon::wheel::{Tick, Wheel};
///
/// let mut wheel = Wheel::new();
/// let stale = wheel.insert(Tick::new(1), 'a');
/// wheel.remove(stale);
/// let key = wheel.insert(Tick::new(1), 'b');
/// assert_eq!(wheel.get(stale), None);
/// assert_eq!(wheel.get(key), Some(&'b'));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub(super) id: u32,
    pub(super) generation: u32,
}

/// What [`Wheel::advance`](super::Wheel::advance) hands out.
///
/// # Examples
///
/// ```
/// use tourbillon::wheel::{Tick, Wheel};
///
/// let mut wheel = Wheel::new();
/// let key = wheel.insert(Tick::new(7), "value");
/// let _ = wheel.advance(Tick::new(9), 1, |expired| {
///     assert_eq!(expired.key, key); // stale by now
///     assert_eq!(expired.due, Tick::new(7));
///     assert_eq!(expired.value, "value");
/// });
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Expired<T> {
    /// The key the value had. It is stale already.
    pub key: Key,
    /// When the value was due.
    pub due: Tick,
    /// The value.
    pub value: T,
}

/// The values of a wheel, with the list of free places threaded through them.
pub(super) struct Store<T> {
    pub(super) nodes: Slab<Node<T>>,
    /// The first free node, or [`NO_ENTRY`].
    free: u32,
}

pub(super) enum Node<T> {
    Free {
        /// That of the next value put here.
        generation: u32,
        /// The next free node, or [`NO_ENTRY`].
        next: u32,
    },
    Filed(Filed<T>),
}

pub(super) struct Filed<T> {
    pub(super) due: Tick,
    pub(super) generation: u32,
    pub(super) pos: u32,
    pub(super) wheel_position: WheelPosition,
    pub(super) value: T,
}

impl<T> Store<T> {
    pub(super) fn new(nodes: Slab<Node<T>>) -> Self {
        Store {
            nodes,
            free: NO_ENTRY,
        }
    }

    pub(super) fn occupy(&mut self, due: Tick, value: T) -> Result<Key, T> {
        let mut filed = Filed {
            due,
            generation: 0,
            pos: 0,
            wheel_position: WheelPosition::NONE,
            value,
        };
        if self.free == NO_ENTRY {
            return match self.nodes.push(Node::Filed(filed)) {
                Ok(id) => Ok(Key { id, generation: 0 }),
                Err(Node::Filed(Filed { value, .. })) => Err(value),
                Err(Node::Free { .. }) => unreachable!("the very node comes back"),
            };
        }
        let id = self.free;
        let node = &mut self.nodes[id];
        let Node::Free { generation, next } = *node else {
            unreachable!("the list of free nodes holds free nodes only")
        };
        self.free = next;
        filed.generation = generation;
        *node = Node::Filed(filed);
        Ok(Key { id, generation })
    }

    /// Takes the value out and makes its key stale.
    pub(super) fn vacate(&mut self, id: u32) -> Expired<T> {
        let free = Node::Free {
            generation: 0,
            next: NO_ENTRY,
        };
        let Node::Filed(filed) = std::mem::replace(&mut self.nodes[id], free) else {
            unreachable!("the wheel files nodes with a value only")
        };
        debug_assert_eq!(filed.wheel_position, WheelPosition::NONE);
        // A node whose generations are used up is never used again: its keys would come back.
        if let Some(generation) = filed.generation.checked_add(1) {
            self.nodes[id] = Node::Free {
                generation,
                next: self.free,
            };
            self.free = id;
        }
        let key = Key {
            id,
            generation: filed.generation,
        };
        Expired {
            key,
            due: filed.due,
            value: filed.value,
        }
    }

    pub(super) fn filed(&self, key: Key) -> Option<&Filed<T>> {
        match self.nodes.get(key.id)? {
            Node::Filed(filed) if filed.generation == key.generation => Some(filed),
            _ => None,
        }
    }

    pub(super) fn filed_mut(&mut self, key: Key) -> Option<&mut Filed<T>> {
        match self.nodes.get_mut(key.id)? {
            Node::Filed(filed) if filed.generation == key.generation => Some(filed),
            _ => None,
        }
    }

    pub(super) fn node(&self, id: u32) -> &Filed<T> {
        match &self.nodes[id] {
            Node::Filed(filed) => filed,
            Node::Free { .. } => unreachable!("the wheel files nodes with a value only"),
        }
    }
}

impl<T> EntryStore for Store<T> {
    fn due(&self, id: u32) -> Tick {
        self.node(id).due
    }

    fn wheel_position(&self, id: u32) -> (WheelPosition, u32) {
        let filed = self.node(id);
        (filed.wheel_position, filed.pos)
    }

    fn set_wheel_position(&mut self, id: u32, wheel_position: WheelPosition, pos: u32) {
        if let Node::Filed(filed) = &mut self.nodes[id] {
            filed.wheel_position = wheel_position;
            filed.pos = pos;
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}#{})", self.id, self.generation)
    }
}
