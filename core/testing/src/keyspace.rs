//! The data: keys with their values and their times to live, in numbered databases.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The number of databases that `SELECT` knows.
pub(crate) const DATABASES: usize = 16;

pub(crate) type Key = Vec<u8>;
/// A field of a hash, and its value.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    String(Vec<u8>),
    /// In the order in which the fields came, as Redis keeps a small hash.
    Hash(Vec<Field>),
    List(VecDeque<Vec<u8>>),
    /// By score, then by member.
    Sorted(Vec<(f64, Vec<u8>)>),
}

impl Value {
    /// As `TYPE` names it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
            Value::Hash(_) => "hash",
            Value::List(_) => "list",
            Value::Sorted(_) => "zset",
        }
    }

    /// A key whose value has nothing left goes away.
    fn is_empty(&self) -> bool {
        match self {
            Value::String(_) => false,
            Value::Hash(fields) => fields.is_empty(),
            Value::List(list) => list.is_empty(),
            Value::Sorted(members) => members.is_empty(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The last ms of the server's clock at which it is there.
    ends: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    databases: [BTreeMap<Key, Entry>; DATABASES],
    /// All that have an end, the next one first.
    ends: BTreeSet<(u64, usize, Key)>,
}

impl Keyspace {
    pub(crate) fn get(&self, database: usize, key: &[u8]) -> Option<&Value> {
        Some(&self.databases.get(database)?.get(key)?.value)
    }

    /// `None` if there is no such key; else when it ends, if it does.
    pub(crate) fn end(&self, database: usize, key: &[u8]) -> Option<Option<u64>> {
        Some(self.databases.get(database)?.get(key)?.ends)
    }

    /// Replaces the value; a time to live stays.
    pub(crate) fn put(&mut self, database: usize, key: &[u8], value: Value) {
        if value.is_empty() {
            self.remove(database, key);
            return;
        }
        let Some(keys) = self.databases.get_mut(database) else {
            return;
        };
        match keys.get_mut(key) {
            Some(entry) => entry.value = value,
            None => {
                keys.insert(key.to_vec(), Entry { value, ends: None });
            }
        }
    }

    /// Lets a key that is there end at this time, or never.
    pub(crate) fn let_end(&mut self, database: usize, key: &[u8], ends: Option<u64>) {
        let entry = self
            .databases
            .get_mut(database)
            .and_then(|keys| keys.get_mut(key));
        let Some(entry) = entry else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut entry.ends, ends) {
            self.ends.remove(&(before, database, key.to_vec()));
        }
        if let Some(end) = ends {
            self.ends.insert((end, database, key.to_vec()));
        }
    }

    pub(crate) fn remove(&mut self, database: usize, key: &[u8]) -> bool {
        let removed = self
            .databases
            .get_mut(database)
            .and_then(|keys| keys.remove(key));
        if let Some(end) = removed.as_ref().and_then(|entry| entry.ends) {
            self.ends.remove(&(end, database, key.to_vec()));
        }
        removed.is_some()
    }

    /// The ms in which the next key ends.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(end, ..)| *end)
    }

    /// Removes a key whose end is over at `now`, and names it.
    pub(crate) fn take_ended(&mut self, now: u64) -> Option<Key> {
        let (_, database, key) = self.ends.first().filter(|(end, ..)| now > *end)?.clone();
        self.remove(database, &key);
        Some(key)
    }

    pub(crate) fn keys(&self, database: usize) -> impl Iterator<Item = &Key> {
        self.databases
            .get(database)
            .into_iter()
            .flat_map(BTreeMap::keys)
    }

    pub(crate) fn clear(&mut self, database: usize) {
        if let Some(keys) = self.databases.get_mut(database) {
            keys.clear();
        }
        self.ends.retain(|(_, of, _)| *of != database);
    }
}
