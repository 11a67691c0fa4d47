//! The hash map for what is looked up many times for every call. Its keys are numbers that we draw and names
//! that the program chooses; the standard library's hash, made against keys chosen by an enemy, takes as long
//! as the work.

use std::collections::{HashMap, HashSet};

/// A fast hash, seeded by the process.
pub(crate) type Hashing = foldhash::fast::RandomState;

/// A hash map with that hash.
pub(crate) type Map<K, V> = HashMap<K, V, Hashing>;

/// The same for a set.
pub(crate) type Set<T> = HashSet<T, Hashing>;
