//! The types that say whether the entries of a map may belong to groups.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

/// Whether a map's entries may belong to groups. Only [`NoGroups`] and [`Groups`] implement this.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Grouping, RandomState};
///
/// /// Takes maps with groups and maps without.
/// fn report<G: Grouping>(map: &ExpiryMap<u64, String, RandomState, G>) {
///     println!("{} sessions", map.len());
/// }
/// ```
pub trait Grouping: kind::MapKind {}

/// Entries do not belong to groups. Such a map has no calls for groups, and groups cost it neither
/// memory nor time.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, NoGroups, RandomState};
///
/// // These are the defaults of the last two parameters.
/// let map: ExpiryMap<u64, String, RandomState, NoGroups> =
///     ExpiryMap::builder().build(|_, _| ())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoGroups(());

/// An entry may belong to a group that a value of type `G` names, such as a user, a tenant or a
/// connection.
///
/// [`ExpiryMapBuilder::groups`](crate::ExpiryMapBuilder::groups) makes such a map. It needs 16 more
/// bytes per entry than a map without groups, whether the entry is in a group or not, and 12 to 24
/// more per member. In a group that has lost most of its members, each remaining member needs up to
/// 64 bytes.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Groups, RandomState};
///
/// struct Sessions {
///     by_user: ExpiryMap<u64, String, RandomState, Groups<String>>,
/// }
/// let by_user = ExpiryMap::builder().groups().build(|_, _| ())?;
/// let sessions = Sessions { by_user };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// The differences between the two kinds of maps.
    pub trait MapKind: 'static {
        /// The part of an entry that refers to its group.
        type Tag: Default + Send + 'static;
        /// The part of a map that holds all groups.
        type Index: Send + Sync + 'static;

        /// Makes an index whose groups have at most `most` members.
        fn index(most: Option<usize>) -> Self::Index;

        fn shrink_to_fit(index: &Self::Index);
    }

    impl MapKind for NoGroups {
        type Tag = ();
        type Index = ();

        fn index(_: Option<usize>) {}

        fn shrink_to_fit((): &()) {}
    }

    impl<G: Hash + Eq + Send + 'static> MapKind for Groups<G> {
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
