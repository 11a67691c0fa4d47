//! Hash maps with a fast hash, for look-ups that happen several times per call. The keys are
//! numbers that we draw and names that the program chooses, so there is no attacker to guard
//! against. The hash of the standard library guards against one, and would take as long as the rest
//! of the work.
//!
//! Maps in the order of their keys, where the same inputs have to give the same outputs.

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

/// The most entries of a chunk.
const CHUNK: usize = 16;

/// A map in the order of its keys: chunks of a few entries. A `BTreeMap` does the same, with seven
/// kilobytes of a WebAssembly module for each pair of types, and allocates for its first entry
/// each time. This map keeps the memory of one chunk.
#[derive(Clone, Debug)]
pub struct SortedMap<K, V> {
    /// None is empty, unless it is the only one.
    chunks: Vec<Vec<(K, V)>>,
    len: usize,
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        SortedMap {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<K, V> SortedMap<K, V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.chunks
            .iter()
            .flatten()
            .map(|(key, value)| (key, value))
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.chunks.iter().flatten().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.chunks.iter().flatten().map(|(_, value)| value)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let entries = self.chunks.iter_mut().flatten();
        entries.map(|(key, value)| (&*key, value))
    }

    pub fn first(&self) -> Option<(&K, &V)> {
        let (key, value) = self.chunks.first()?.first()?;
        Some((key, value))
    }

    pub fn first_mut(&mut self) -> Option<(&K, &mut V)> {
        let (key, value) = self.chunks.first_mut()?.first_mut()?;
        Some((key, value))
    }

    pub fn pop_first(&mut self) -> Option<(K, V)> {
        (self.len > 0).then(|| self.take(0, 0))
    }

    pub fn clear(&mut self) {
        *self = SortedMap::default();
    }

    /// Keeps the entries that `keep` returns true for.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for chunk in &mut self.chunks {
            chunk.retain_mut(|(key, value)| keep(key, value));
        }
        self.chunks.retain(|chunk| !chunk.is_empty());
        self.len = self.chunks.iter().map(Vec::len).sum();
    }

    fn take(&mut self, at: usize, within: usize) -> (K, V) {
        let chunk = &mut self.chunks[at];
        let taken = chunk.remove(within);
        self.len -= 1;
        // A chunk of few joins its neighbour, so that many entries never leave many chunks behind.
        if chunk.len() < CHUNK / 4 && self.chunks.len() > 1 {
            let mut few = self.chunks.remove(at);
            if let Some(next) = self.chunks.get_mut(at) {
                few.append(next);
                *next = few;
            } else {
                self.chunks[at - 1].append(&mut few);
            }
        }
        taken
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The chunk and the place in it that a key has, or would have.
    fn find(&self, key: &K) -> Result<(usize, usize), (usize, usize)> {
        let before = |chunk: &Vec<(K, V)>| chunk.last().is_some_and(|(last, _)| last < key);
        let at = match self.chunks.len() {
            0 | 1 => 0,
            count => self.chunks[..count - 1].partition_point(before),
        };
        let chunk = self.chunks.get(at).map_or(&[][..], Vec::as_slice);
        // The keys of a chunk are so few that a binary search is no quicker.
        match chunk.iter().position(|(known, _)| known >= key) {
            Some(within) if chunk[within].0 == *key => Ok((at, within)),
            Some(within) => Err((at, within)),
            None => Err((at, chunk.len())),
        }
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_ok()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let (at, within) = self.find(key).ok()?;
        Some(&self.chunks[at][within].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (at, within) = self.find(key).ok()?;
        Some(&mut self.chunks[at][within].1)
    }

    /// The value of a key, which is inserted if it is missing.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let (at, within) = match self.find(&key) {
            Ok(place) => place,
            Err(place) => self.put(place, key, V::default()),
        };
        &mut self.chunks[at][within].1
    }

    /// Inserts a value, and returns the one it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok((at, within)) => Some(std::mem::replace(&mut self.chunks[at][within].1, value)),
            Err(place) => {
                self.put(place, key, value);
                None
            }
        }
    }

    /// Inserts an entry where it belongs, and returns where it is then.
    fn put(&mut self, (at, within): (usize, usize), key: K, value: V) -> (usize, usize) {
        self.len += 1;
        let entry = (key, value);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(vec![entry]);
            return (at, 0);
        };
        if chunk.len() < CHUNK {
            chunk.insert(within, entry);
            return (at, within);
        }
        // Most keys come in their order. All chunks but the last one stay full then.
        let half = if within == chunk.len() {
            within
        } else {
            CHUNK / 2
        };
        let mut next = chunk.split_off(half);
        let place = match within.checked_sub(half) {
            Some(behind) => {
                next.insert(behind, entry);
                (at + 1, behind)
            }
            None => {
                chunk.insert(within, entry);
                (at, within)
            }
        };
        self.chunks.insert(at + 1, next);
        place
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (at, within) = self.find(key).ok()?;
        Some(self.take(at, within).1)
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<(K, V)>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_iter().flatten()
    }
}

#[cfg(test)]
impl<K: Ord, V> std::ops::Index<&K> for SortedMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("it is there")
    }
}

/// A set in the order of its items.
pub type SortedSet<T> = SortedMap<T, ()>;

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut set = SortedSet::default();
        for item in items {
            set.insert(item, ());
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    /// After any sequence of changes, the map equals a `BTreeMap`, with chunks that are in use.
    #[test]
    fn a_sorted_map_is_as_a_tree() {
        let (mut sorted, mut tree, mut random) = (SortedMap::default(), BTreeMap::new(), 7_u64);
        for step in 0..60_000_u64 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let chance = random >> 33;
            // It grows and shrinks, by keys in order and by others.
            let key = if step % 3 == 0 { step } else { chance % 700 };
            match chance >> 20 & 7 {
                0 if step % 500 == 0 => {
                    sorted.retain(|key, _| key % 3 == 0);
                    tree.retain(|key, _| key % 3 == 0);
                }
                0 => assert_eq!(sorted.pop_first(), tree.pop_first()),
                1..=3 if step % 4_000 < 2_000 => {
                    assert_eq!(sorted.insert(key, step), tree.insert(key, step));
                }
                4 => {
                    *sorted.or_default(key) += 1;
                    *tree.entry(key).or_default() += 1;
                }
                _ => {
                    let key = tree
                        .keys()
                        .nth(chance as usize % 40)
                        .copied()
                        .unwrap_or(key);
                    assert_eq!(sorted.remove(&key), tree.remove(&key));
                }
            }
            assert_eq!(
                (sorted.len(), sorted.is_empty()),
                (tree.len(), tree.is_empty())
            );
            assert_eq!(sorted.first(), tree.first_key_value());
            assert_eq!(sorted.get(&key), tree.get(&key));
            assert_eq!(sorted.contains_key(&key), tree.contains_key(&key));
            if step % 100 == 0 {
                assert!(sorted.iter().eq(&tree) && sorted.keys().eq(tree.keys()));
                assert!(sorted.clone().into_iter().eq(tree.clone()));
                assert!(sorted.chunks.len() <= 2 + 4 * tree.len() / CHUNK);
            }
        }
    }
}
