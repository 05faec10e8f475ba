//! The types that say whether the entries of a map may belong to groups.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

/// Whether a map's entries may belong to groups: [`NoGroups`] or [`Groups`]. There are no others.
pub trait Grouping: kind::Kind {}

/// Entries do not belong to groups: no call for groups, and no byte and no instruction for them.
#[derive(Clone, Copy, Debug)]
pub struct NoGroups(());

/// An entry may belong to a group that a `G` names: a user, a tenant, a connection.
///
/// [`ExpiryMapBuilder::groups`](crate::ExpiryMapBuilder::groups) makes such a map. It takes 16
/// bytes more per entry than one without groups, in a group or not, and 12 to 24 more per member.
/// In a group that has lost most of its members, each remaining member takes up to 64 bytes.
pub struct Groups<G>(PhantomData<fn() -> G>);

impl Grouping for NoGroups {}

impl<G: Hash + Eq + Send + 'static> Grouping for Groups<G> {}

impl<G> fmt::Debug for Groups<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Groups")
    }
}

pub(super) mod kind {
    use std::hash::Hash;

    use super::super::groups::{GroupIndex, Membership};
    use super::{Groups, NoGroups};

    /// What the two kinds of maps differ in.
    pub trait Kind: 'static {
        /// What an entry holds of its group.
        type Tag: Default + Send + 'static;
        /// What a map holds of all groups.
        type Index: Send + Sync + 'static;

        /// With a bound for the members of each.
        fn index(most: Option<usize>) -> Self::Index;

        fn shrink_to_fit(index: &Self::Index);
    }

    impl Kind for NoGroups {
        type Tag = ();
        type Index = ();

        fn index(_: Option<usize>) {}

        fn shrink_to_fit((): &()) {}
    }

    impl<G: Hash + Eq + Send + 'static> Kind for Groups<G> {
        type Tag = Option<Membership<G>>;
        type Index = GroupIndex<G>;

        fn index(most: Option<usize>) -> GroupIndex<G> {
            GroupIndex::new(most)
        }

        fn shrink_to_fit(index: &GroupIndex<G>) {
            index.shrink_to_fit();
        }
    }
}
