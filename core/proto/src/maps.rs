//! Hash maps with a fast hash, for look-ups that happen several times per call. The keys are
//! numbers that we draw and names that the program chooses, so there is no attacker to guard
//! against. The hash of the standard library guards against one, and would take as long as the rest
//! of the work.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// A fast hash, seeded once per process.
pub type Hashing = foldhash::fast::RandomState;

/// A hash map with that hash.
pub type Map<K, V> = HashMap<K, V, Hashing>;

/// A hash set with that hash.
pub type Set<T> = HashSet<T, Hashing>;

/// A map that usually has one entry, stored outside the table so that it is found without hashing.
#[derive(Debug)]
pub struct SmallMap<K, V> {
    one: Option<(K, V)>,
    /// Entries that were added while `one` was taken.
    others: Map<K, V>,
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        SmallMap {
            one: None,
            others: Map::default(),
        }
    }
}

impl<K: Copy + Eq + Hash, V> SmallMap<K, V> {
    pub fn len(&self) -> usize {
        self.others.len() + usize::from(self.one.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.is_empty()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        match &self.one {
            Some((one, value)) if one == key => Some(value),
            _ if self.others.is_empty() => None,
            _ => self.others.get(key),
        }
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.one {
            Some((one, value)) if one == key => Some(value),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(key),
        }
    }

    /// Inserts a value, and returns the one it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.one {
            Some((one, before)) if *one == key => Some(std::mem::replace(before, value)),
            None if self.others.is_empty() => {
                self.one = Some((key, value));
                None
            }
            _ => self.others.insert(key, value),
        }
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        match self.one.take_if(|(one, _)| one == key) {
            Some((_, value)) => Some(value),
            None if self.others.is_empty() => None,
            None => self.others.remove(key),
        }
    }

    /// All entries, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.one
            .iter()
            .map(|(key, value)| (key, value))
            .chain(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After any sequence of inserts and removals, the map equals a `Map`.
    #[test]
    fn few_are_as_many_are() {
        let (mut few, mut map, mut random) = (SmallMap::default(), Map::default(), 7_u64);
        for step in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (key, most) = ((random >> 33) % 5, if step % 100 < 50 { 3 } else { 1 });
            if random >> 63 == 1 && map.len() < most {
                assert_eq!(few.insert(key, step), map.insert(key, step));
            } else {
                assert_eq!(few.remove(&key), map.remove(&key));
            }
            assert_eq!((few.len(), few.is_empty()), (map.len(), map.is_empty()));
            for key in 0..5 {
                assert_eq!(few.get(&key), map.get(&key));
                assert_eq!(few.get_mut(&key), map.get_mut(&key));
            }
            let (mut all, mut wanted): (Vec<_>, Vec<_>) =
                (few.iter().collect(), map.iter().collect());
            all.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(all, wanted);
        }
    }
}
