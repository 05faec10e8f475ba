//! Models; see the crate page once it is filled.
