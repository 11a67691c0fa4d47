//! A slab: items found by a number from a counter, with neighbouring numbers stored together.
//!
//! Holds that are renewed together were mostly acquired together, and have consecutive numbers. A
//! plain hash map would scatter them over memory that has not been touched for seconds. With a
//! hundred thousand holds, the processor would then do little but wait for memory.

use crate::maps::SmallMap;

/// Numbers in a page. They share a look-up, and their memory is kept while one of them is in use.
const PAGE: usize = 8;

type Page<T> = [Option<Box<T>>; PAGE];

/// A map from such numbers to items.
#[derive(Debug)]
pub(super) struct Slab<T> {
    pages: SmallMap<u64, Page<T>>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab {
            pages: SmallMap::default(),
            len: 0,
        }
    }
}

/// The page of a number, and its index there.
fn place(number: u64) -> (u64, usize) {
    let page = PAGE as u64;
    (number / page, (number % page) as usize)
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn get(&self, number: &u64) -> Option<&T> {
        let (page, at) = place(*number);
        self.pages.get(&page)?[at].as_deref()
    }

    pub(super) fn get_mut(&mut self, number: &u64) -> Option<&mut T> {
        let (page, at) = place(*number);
        self.pages.get_mut(&page)?[at].as_deref_mut()
    }

    pub(super) fn contains_key(&self, number: &u64) -> bool {
        self.get(number).is_some()
    }

    /// Inserts an item; replaces the one with this number.
    pub(super) fn insert(&mut self, number: u64, thing: T) {
        let (page, at) = place(number);
        let thing = Some(Box::new(thing));
        if let Some(things) = self.pages.get_mut(&page) {
            let before = std::mem::replace(&mut things[at], thing);
            self.len += usize::from(before.is_none());
            return;
        }
        let mut things = Page::default();
        things[at] = thing;
        self.pages.insert(page, things);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, number: &u64) -> Option<Box<T>> {
        let (number, at) = place(*number);
        let page = self.pages.get_mut(&number)?;
        let thing = page[at].take()?;
        if page.iter().all(Option::is_none) {
            self.pages.remove(&number);
        }
        self.len -= 1;
        Some(thing)
    }

    /// All items with their numbers, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.pages.iter().flat_map(|(page, things)| {
            let numbered =
                move |(at, thing)| Some((page * PAGE as u64 + at as u64, Option::as_deref(thing)?));
            things.iter().enumerate().filter_map(numbered)
        })
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, thing)| thing)
    }
}

#[cfg(test)]
impl<T> std::ops::Index<&u64> for Slab<T> {
    type Output = T;

    fn index(&self, number: &u64) -> &T {
        self.get(number).expect("it is there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_found_by_its_number_and_by_no_other() {
        let mut pages = Slab::default();
        for number in [0, 7, 8, 9, 1000, u64::MAX] {
            pages.insert(number, number.to_string());
        }
        pages.insert(9, "nine".to_owned());
        assert_eq!(
            (pages.len(), pages.get(&7).map(String::as_str)),
            (6, Some("7"))
        );
        assert_eq!(
            (pages.get(&1), pages.get(&16), pages.contains_key(&999)),
            (None, None, false)
        );
        pages.get_mut(&8).expect("there").push('!');
        let mut all: Vec<(u64, &str)> = pages
            .iter()
            .map(|(number, text)| (number, text.as_str()))
            .collect();
        all.sort_unstable();
        let last = (u64::MAX, "18446744073709551615");
        assert_eq!(
            all,
            [
                (0, "0"),
                (7, "7"),
                (8, "8!"),
                (9, "nine"),
                (1000, "1000"),
                last
            ]
        );
        assert_eq!(pages.values().count(), 6);
    }

    #[test]
    fn a_removed_entry_leaves_nothing() {
        let mut pages = Slab::default();
        (0..20).for_each(|number| pages.insert(number, number));
        for number in 0..20 {
            assert_eq!(
                (pages.remove(&number).as_deref(), pages.remove(&number)),
                (Some(&number), None)
            );
        }
        assert!(pages.is_empty() && pages.pages.is_empty());
    }
}
