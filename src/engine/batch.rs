//! Many armings in one call.

use super::{Engine, Frontend};
use crate::shard::KeyHash;
use crate::shard::batch::{ArmMany, ITEMS_PER_HOLD, Located, by_stripe};

/// What a call for many was given, and its answers.
pub(crate) struct Items<T, A> {
    given: Vec<Option<T>>,
    answers: Vec<Option<A>>,
}

impl<T, A> Items<T, A> {
    pub(crate) fn new(given: impl Iterator<Item = T>) -> Self {
        let given: Vec<_> = given.map(Some).collect();
        let answers = given.iter().map(|_| None).collect();
        Items { given, answers }
    }

    /// Returns an item that was not taken.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &T {
        match &self.given[index] {
            Some(item) => item,
            None => unreachable!("an item has one answer"),
        }
    }

    /// Takes an item, which then gets its answer.
    #[inline]
    pub(crate) fn take(&mut self, index: usize) -> T {
        match self.given[index].take() {
            Some(item) => item,
            None => unreachable!("an item has one answer"),
        }
    }

    #[inline]
    pub(crate) fn answer(&mut self, index: usize, answer: A) {
        self.answers[index] = Some(answer);
    }

    /// Returns the answers in the order of the items.
    pub(crate) fn into_answers(self) -> Vec<A> {
        let answers = self.answers.into_iter().map(|answer| match answer {
            Some(answer) => answer,
            None => unreachable!("each item is armed or refused"),
        });
        answers.collect()
    }
}

impl<F: Frontend> Engine<F>
where
    F::Key: Eq,
{
    /// Arms all items, whose stripes and hashes are `places`, in their order. `may_be_due` says that
    /// one of them may be due at once: a hold of a lock can hand over only one ticket.
    pub(crate) fn arm_many(
        &self,
        places: &[(usize, KeyHash)],
        may_be_due: bool,
        items: &mut impl ArmMany<F::Key, F::Payload>,
    ) {
        let located = places.iter().enumerate();
        let located = located.map(|(index, (stripe, hash))| Located::new(index, *stripe, *hash));
        let located = by_stripe(self.shards.stripes(), located.collect());
        let per_stripe = if may_be_due { 1 } else { ITEMS_PER_HOLD };
        let mut groups = self.groups(&located, per_stripe);
        while groups.lock_next() {
            let slots = groups.find_by(|item| item.item, |item| items.key(item.index()));
            let not_armed = groups.arm_each(&slots, items);
            groups.release();
            items.settle();
            for (index, refusal) in not_armed.refused {
                items.refuse(index, refusal);
            }
            for item in not_armed.left {
                self.arm_one(&item, items);
            }
        }
    }

    /// Arms an item under a hold of the lock of its own.
    #[cold]
    fn arm_one(&self, item: &Located<KeyHash>, items: &mut impl ArmMany<F::Key, F::Payload>) {
        let admitted = self.admit(item.stripe(), |stripe| {
            let key = items.key(item.index());
            let found = stripe.find(item.item, key);
            let if_absent = found.is_some_and(|slot| items.keeps(stripe, slot));
            stripe.admit(item.item, key, if_absent)
        });
        match admitted {
            Ok((mut stripe, admission)) => {
                items.arm(&mut stripe, admission, item);
                drop(stripe);
                items.settle();
            }
            Err(refusal) => items.refuse(item.index(), refusal),
        }
    }
}
