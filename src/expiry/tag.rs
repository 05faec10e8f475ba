//! The part of a map's entry that refers to its group.

use std::convert::Infallible;
use std::fmt;

use super::eviction::Judged;
use super::groups::{MemberLocation, Membership};
use super::members::Member;
use crate::tick::Time;

/// What an entry knows of groups: nothing in a map without groups.
pub trait Tag: Default + Send + 'static {
    /// Records a touch. `now` is a moment before `Time::MAX`.
    fn touch(&mut self, now: Time);

    /// Returns whether a newer entry of its group has taken the entry's place.
    fn is_evicted(&self) -> bool;

    /// Where a member of a group is.
    type Location;

    /// Returns where the entry is, if it is in a group.
    fn location(&self) -> Option<Self::Location>;

    /// Returns whether the entry is there, or in no group if that is `None`.
    fn is_at(&self, location: Option<&Self::Location>) -> bool;

    /// Calls `rename` under the lock of the group, as [`MemberLocation::rename`] does.
    fn rename_at<R>(
        location: &Self::Location,
        rename: impl FnOnce() -> (R, Option<[Member; 2]>),
    ) -> R;
}

impl Tag for () {
    #[inline(always)]
    fn touch(&mut self, _: Time) {}

    #[inline(always)]
    fn is_evicted(&self) -> bool {
        false
    }

    type Location = Infallible;

    fn location(&self) -> Option<Infallible> {
        None
    }

    fn is_at(&self, _: Option<&Infallible>) -> bool {
        true
    }

    fn rename_at<R>(never: &Infallible, _: impl FnOnce() -> (R, Option<[Member; 2]>)) -> R {
        match *never {}
    }
}

/// The part of an entry that refers to its group.
pub struct GroupTag<G> {
    /// The membership of an entry that is in a group.
    pub(super) membership: Option<Membership<G>>,
    /// The last touch, or the insertion in a group. An entry that was evicted has no membership and
    /// [`EVICTED`](Self::EVICTED).
    touched: Time,
}

impl<G> GroupTag<G> {
    const EVICTED: Time = Time::MAX;

    /// Makes the tag of a new member.
    pub(super) fn new(membership: Membership<G>, now: Time) -> Self {
        GroupTag {
            membership: Some(membership),
            touched: now,
        }
    }

    /// Takes the membership of a member that was not touched after `latest`, and marks the entry as
    /// evicted if `ends`. Returns the last touch otherwise.
    pub(super) fn evict(&mut self, latest: Time, ends: bool) -> Judged<Membership<G>> {
        if self.touched > latest {
            return Judged::Touched(self.touched);
        }
        let Some(membership) = self.membership.take() else {
            unreachable!(
                "GROUP-6: a present member has its membership until it ends or is evicted"
            );
        };
        if ends {
            self.touched = Self::EVICTED;
        }
        Judged::Evicted(membership)
    }
}

impl<G> Default for GroupTag<G> {
    fn default() -> Self {
        GroupTag {
            membership: None,
            touched: Time::ZERO,
        }
    }
}

impl<G: Send + 'static> Tag for GroupTag<G> {
    #[inline(always)]
    fn touch(&mut self, now: Time) {
        // EVICT-1: the thread that read the clock first may get the stripe's lock last.
        self.touched = self.touched.max(now);
    }

    fn is_evicted(&self) -> bool {
        self.touched == Self::EVICTED
    }

    type Location = MemberLocation<G>;

    fn location(&self) -> Option<MemberLocation<G>> {
        self.membership.as_ref().map(Membership::location)
    }

    fn is_at(&self, location: Option<&MemberLocation<G>>) -> bool {
        match (&self.membership, location) {
            (Some(membership), Some(location)) => location.is_of(membership),
            (membership, location) => membership.is_none() && location.is_none(),
        }
    }

    fn rename_at<R>(
        location: &MemberLocation<G>,
        rename: impl FnOnce() -> (R, Option<[Member; 2]>),
    ) -> R {
        location.rename(rename)
    }
}

impl<G> fmt::Debug for GroupTag<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupTag")
            .field("membership", &self.membership)
            .field("touched", &self.touched)
            .finish()
    }
}
