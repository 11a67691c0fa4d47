//! Which inputs reach what no input has reached before: the counters that LLVM's SanitizerCoverage
//! puts at every edge of a program built with `-C passes=sancov-module -C
//! llvm-args=-sanitizer-coverage-level=3 -C llvm-args=-sanitizer-coverage-inline-8bit-counters`,
//! which the stable compiler takes. In a program built without there are none, and nothing is ever
//! new.

use std::ptr::slice_from_raw_parts_mut;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// The counters of each linked object, as places that are valid for as long as the program runs.
static OBJECTS: Mutex<Vec<&'static [AtomicU8]>> = Mutex::new(Vec::new());

/// Called by each object before `main`.
///
/// # Safety
/// The linker puts the counters of an object between these two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let length = (stop as usize).saturating_sub(start as usize);
    // SAFETY: the section is never unmapped, and a counter is a byte that is always valid.
    let counters = unsafe { &*(slice_from_raw_parts_mut(start, length) as *const [AtomicU8]) };
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    if !objects
        .iter()
        .any(|known| known.as_ptr() == counters.as_ptr())
    {
        objects.push(counters);
    }
}

/// What has been reached so far, and about how often by one input.
#[derive(Debug)]
pub struct Coverage {
    objects: Vec<&'static [AtomicU8]>,
    /// For each edge a bit for each order of magnitude.
    seen: Vec<u8>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self::new()
    }
}

impl Coverage {
    /// Nothing has been reached.
    pub fn new() -> Coverage {
        let objects = OBJECTS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let edges = objects.iter().map(|counters| counters.len()).sum();
        let coverage = Coverage {
            objects,
            seen: vec![0; edges],
        };
        coverage.begin();
        coverage
    }

    /// Whether the program was built for this.
    pub fn is_on(&self) -> bool {
        !self.seen.is_empty()
    }

    /// An input begins.
    pub fn begin(&self) {
        self.counters()
            .for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    /// An input has ended: whether it reached something new.
    pub fn end(&mut self) -> bool {
        let mut new = false;
        let counters = self.objects.iter().flat_map(|counters| counters.iter());
        for (seen, counter) in self.seen.iter_mut().zip(counters) {
            let bit = magnitude(counter.load(Ordering::Relaxed));
            new |= bit & !*seen != 0;
            *seen |= bit;
        }
        new
    }

    /// How many edges have been reached.
    pub fn edges(&self) -> usize {
        self.seen.iter().filter(|seen| **seen != 0).count()
    }

    fn counters(&self) -> impl Iterator<Item = &'static AtomicU8> {
        self.objects.iter().flat_map(|counters| counters.iter())
    }
}

/// Once, twice, thrice, and then powers of two, as other fuzzers have it.
fn magnitude(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 1 << 1,
        3 => 1 << 2,
        4..8 => 1 << 3,
        8..16 => 1 << 4,
        16..32 => 1 << 5,
        32..128 => 1 << 6,
        128.. => 1 << 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_new_if_it_reaches_more() {
        static COUNTERS: [AtomicU8; 3] = [const { AtomicU8::new(0) }; 3];
        let mut coverage = Coverage {
            objects: vec![&COUNTERS],
            seen: vec![0; 3],
        };
        for (counts, new) in [
            ([1, 0, 0], true),
            ([1, 0, 0], false),
            ([2, 0, 0], true),
            ([0, 9, 0], true),
            ([0, 15, 0], false),
        ] {
            coverage.begin();
            for (counter, count) in COUNTERS.iter().zip(counts) {
                counter.store(count, Ordering::Relaxed);
            }
            assert_eq!(coverage.end(), new, "{counts:?}");
        }
        assert_eq!(coverage.edges(), 2);
    }
}
