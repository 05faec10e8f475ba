//! The hasher of a map, whose type also says whether the entries may belong to groups.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

use crate::scheduler::RandomState;

/// The hasher of an [`ExpiryMap`](crate::ExpiryMap): every [`BuildHasher`], for a map without
/// groups, and [`GroupedBy`], for a map with groups. Nothing else implements this.
///
/// A map without groups has no calls for groups, and groups cost it neither memory nor time.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, MapHasher};
///
/// /// Takes maps with any hasher, with groups and without.
/// fn report<S: MapHasher>(map: &ExpiryMap<u64, String, S>) {
///     println!("{} sessions", map.len());
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a hasher of an `ExpiryMap`",
    note = "the hasher of a map implements `BuildHasher + Send + Sync + 'static`",
    note = "the groups of a map with groups are named by a type that implements `Hash + Eq + Send + 'static`"
)]
pub trait MapHasher: kind::MapKind {}

/// The hasher of a [`GroupedExpiryMap`](crate::GroupedExpiryMap), whose entries may belong to
/// groups. A value of type `G` names a group. `S` hashes keys and groups.
///
/// [`ExpiryMapBuilder::groups`](crate::ExpiryMapBuilder::groups) makes it. Programs that name the
/// map seldom need this type.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMapBuilder, GroupedBy};
///
/// type Builder = ExpiryMapBuilder<u64, String, GroupedBy<String>>;
/// # let builder: Builder = tourbillon::ExpiryMap::builder().groups();
/// ```
pub struct GroupedBy<G, S = RandomState> {
    pub(super) hasher: S,
    group: PhantomData<fn() -> G>,
}

impl<G, S> GroupedBy<G, S> {
    pub(super) fn new(hasher: S) -> Self {
        GroupedBy {
            hasher,
            group: PhantomData,
        }
    }
}

impl<S: BuildHasher + Send + Sync + 'static> MapHasher for S {}

impl<G, S> MapHasher for GroupedBy<G, S>
where
    G: Hash + Eq + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
}

impl<G, S> fmt::Debug for GroupedBy<G, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupedBy")
    }
}

/// The place of an entry that is inserted in no group. It is a part of the type of an
/// [`Entry`](crate::Entry) or a [`Computing`](crate::Computing) that is stored.
///
/// # Examples
///
/// ```
/// use tourbillon::{Entry, ExpiryMap, NoGroup, RandomState};
///
/// fn name_of(entry: Entry<'_, u64, String, RandomState, NoGroup>) -> Option<String> {
///     Some(entry.or_insert("nobody".to_owned()).ok()?.into_value())
/// }
/// # let stepped = ExpiryMap::<u64, String>::builder().build_stepped(1, |_, _| ())?;
/// assert_eq!(name_of(stepped.map().entry(7)).as_deref(), Some("nobody"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct NoGroup;

/// The place of an entry that is inserted in a group, as [`NoGroup`] is for others.
///
/// # Examples
///
/// ```
/// use tourbillon::{Entry, ExpiryMap, GroupedBy, InGroup, RandomState};
///
/// type OfUser<'a> = Entry<'a, u64, String, GroupedBy<String, RandomState>, InGroup<'a, str>>;
///
/// # let stepped =
/// #     ExpiryMap::<u64, String>::builder().groups::<String>().build_stepped(1, |_, _| ())?;
/// # let sessions = stepped.map();
/// let session: OfUser<'_> = sessions.entry(7).group("ada");
/// session.insert("phone".to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct InGroup<'a, Q: ?Sized>(pub(super) &'a Q);

/// The place of an entry of a map with groups before the group is named. No finishing call takes
/// it.
///
/// # Examples
///
/// ```
/// use tourbillon::{Entry, ExpiryMap, GroupNotNamed, GroupedBy, RandomState};
///
/// type Unplaced<'a> = Entry<'a, u64, String, GroupedBy<String, RandomState>, GroupNotNamed>;
///
/// # let stepped =
/// #     ExpiryMap::<u64, String>::builder().groups::<String>().build_stepped(1, |_, _| ())?;
/// # let sessions = stepped.map();
/// let session: Unplaced<'_> = sessions.entry(7);
/// session.group("ada").insert("phone".to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct GroupNotNamed;

impl<Q: ?Sized> Clone for InGroup<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q: ?Sized> Copy for InGroup<'_, Q> {}

pub(super) mod kind {
    use std::hash::{BuildHasher, Hash};

    use super::super::eviction::GroupFull;
    use super::super::groups::GroupIndex;
    use super::super::tag::{GroupTag, Tag};
    use super::{GroupNotNamed, GroupedBy, NoGroup};

    /// The differences between the two kinds of maps.
    pub trait MapKind: Send + Sync + 'static {
        /// The hasher of keys and groups.
        type Hasher: BuildHasher + Send + Sync + 'static;
        /// The part of an entry that refers to its group.
        type Tag: Tag;
        /// The part of a map that holds all groups.
        type Index: Send + Sync + 'static;
        /// What a call knows of the place of an entry before its caller names a group.
        type Place: Default;

        fn hasher(&self) -> &Self::Hasher;

        #[cfg(any(test, feature = "test-util"))]
        fn hasher_mut(&mut self) -> &mut Self::Hasher;

        /// Makes an index whose groups have at most `most` members.
        fn index(most: Option<usize>, when_full: GroupFull) -> Self::Index;

        fn shrink_to_fit(index: &Self::Index);
    }

    impl<S: BuildHasher + Send + Sync + 'static> MapKind for S {
        type Hasher = S;
        type Tag = ();
        type Index = ();
        type Place = NoGroup;

        #[inline]
        fn hasher(&self) -> &S {
            self
        }

        #[cfg(any(test, feature = "test-util"))]
        fn hasher_mut(&mut self) -> &mut S {
            self
        }

        fn index(_: Option<usize>, _: GroupFull) {}

        fn shrink_to_fit((): &()) {}
    }

    impl<G, S> MapKind for GroupedBy<G, S>
    where
        G: Hash + Eq + Send + 'static,
        S: BuildHasher + Send + Sync + 'static,
    {
        type Hasher = S;
        type Tag = GroupTag<G>;
        type Index = GroupIndex<G>;
        type Place = GroupNotNamed;

        #[inline]
        fn hasher(&self) -> &S {
            &self.hasher
        }

        #[cfg(any(test, feature = "test-util"))]
        fn hasher_mut(&mut self) -> &mut S {
            &mut self.hasher
        }

        fn index(most: Option<usize>, when_full: GroupFull) -> GroupIndex<G> {
            GroupIndex::new(most, when_full)
        }

        fn shrink_to_fit(index: &GroupIndex<G>) {
            index.shrink_to_fit();
        }
    }
}
