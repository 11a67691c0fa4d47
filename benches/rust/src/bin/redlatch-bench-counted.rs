//! The workloads, for counting: the same as `redlatch-bench` with an allocator that counts, and so
//! a little slower.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::Ordering;

use redlatch_bench::{ALLOCATIONS, LIVE_BYTES};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the same.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(size, Ordering::Relaxed);
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the same.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Follows all that programs tell, except what redlatch tells.
struct Others;

impl Subscriber for Others {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() != "redlatch"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn main() -> Result<(), redlatch_bench::Failure> {
    let (ours, others): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|word| word != "--subscriber");
    if !others.is_empty() {
        tracing::subscriber::set_global_default(Others)?;
    }
    redlatch_bench::run(ours.into_iter())
}
