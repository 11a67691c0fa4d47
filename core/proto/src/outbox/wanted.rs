//! The channels to subscribe to, and the locks that need them.

use crate::maps::Map;
use crate::wire::Name;

/// The channels to subscribe to. Several locks may share a channel: `a` and `{a}` do, as in
/// Redisson.
#[derive(Debug, Default)]
pub struct Wanted(Map<String, Vec<Name>>);

impl Wanted {
    /// Records that this lock needs the channel.
    pub fn add(&mut self, channel: &str, name: Name) {
        let names = self.0.entry(channel.to_owned()).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }

    /// Records that this lock no longer needs the channel. Returns true if it did, and no other
    /// lock does.
    pub fn remove(&mut self, channel: &str, name: &Name) -> bool {
        let Some(names) = self.0.get_mut(channel) else {
            return false;
        };
        names.retain(|other| other != name);
        let unwanted = names.is_empty();
        if unwanted {
            self.0.remove(channel);
        }
        unwanted
    }

    /// The locks that need the channel.
    pub fn names(&self, channel: &str) -> &[Name] {
        self.0.get(channel).map_or(&[], Vec::as_slice)
    }

    pub fn contains(&self, channel: &str) -> bool {
        self.0.contains_key(channel)
    }

    pub fn channels(&self) -> impl Iterator<Item = &String> {
        let all = self.0.keys();
        // A seed of the simulation determines their order as well.
        #[cfg(test)]
        let all = std::collections::BTreeSet::from_iter(all).into_iter();
        all
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_wanted_until_the_last_of_its_locks_does_not_want_it() {
        let (mut wanted, names) = (Wanted::default(), [Name::from("a"), Name::from("{a}")]);
        names.iter().for_each(|name| wanted.add("c", name.clone()));
        wanted.add("c", names[0].clone());
        assert_eq!(wanted.names("c"), names);
        assert!(!wanted.remove("c", &names[0]) && !wanted.remove("c", &names[0]));
        assert_eq!(wanted.names("c"), &names[1..]);
        assert!(wanted.remove("c", &names[1]) && wanted.is_empty());
        assert!(!wanted.remove("c", &names[1]) && wanted.names("c").is_empty());
    }
}
