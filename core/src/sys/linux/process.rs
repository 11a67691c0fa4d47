//! The id of this process, without a system call.
//!
//! A request sent before a fork belongs to the parent, so every operation first compares process
//! ids.
//! `getpid` is a system call: a quarter of a microsecond on a virtual machine, four or more times
//! for an acquire and release. The kernel can be told to zero a page of memory in every forked
//! child (`MADV_WIPEONFORK`, Linux 4.14). As long as an id is in that page, it was written by this
//! process.
#![allow(unsafe_code, reason = "such a page is to be had from the system only")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use nix::libc::{
    MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, c_void,
    madvise, mmap, munmap,
};

/// The page with the id, which is 0 until this process asks for the first time. Null before the
/// first call of [`id`].
static PLACE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// In place of a page, on a system that does not empty one: nothing is ever written here.
static UNMAPPED: AtomicU32 = AtomicU32::new(0);

/// The id of this process.
pub(crate) fn id() -> u32 {
    let place = PLACE.load(Ordering::Acquire);
    // SAFETY: the pointer is null, a static, or a page that is never unmapped.
    match unsafe { place.as_ref() }.map(|place| place.load(Ordering::Relaxed)) {
        Some(known) if known != 0 => known,
        _ => ask(),
    }
}

/// The slow path: the first call in this process, or a system without such a page.
#[cold]
#[inline(never)]
fn ask() -> u32 {
    let own = std::process::id();
    let place = place();
    if !ptr::eq(place, &UNMAPPED) {
        place.store(own, Ordering::Relaxed);
    }
    own
}

/// Makes the page. Takes no lock: another thread may fork at any moment, and the child would
/// inherit the lock locked.
fn place() -> &'static AtomicU32 {
    let made = page().unwrap_or(ptr::from_ref(&UNMAPPED).cast_mut());
    let kept = PLACE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    if kept.is_err() && !ptr::eq(made, &UNMAPPED) {
        // SAFETY: nobody has seen it.
        unsafe { munmap(made.cast(), SIZE) };
    }
    // SAFETY: as in `id`. The pointer is not null.
    unsafe { &*kept.err().unwrap_or(made) }
}

/// The kernel rounds this up to a whole page.
const SIZE: usize = size_of::<AtomicU32>();

/// A zeroed page that the kernel zeroes again in every forked child. `None` if the kernel cannot do
/// that.
fn page() -> Option<*mut AtomicU32> {
    // SAFETY: a new anonymous mapping at an address that the kernel chooses. It is zeroed, big
    // enough and aligned.
    unsafe {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        let page: *mut c_void = mmap(ptr::null_mut(), SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);
        if page == MAP_FAILED {
            return None;
        }
        // An emulator that accepts every `madvise`, even an invalid one, does not zero the page.
        if madvise(page, SIZE, MADV_WIPEONFORK) != 0 || madvise(page, SIZE, -1) == 0 {
            munmap(page, SIZE);
            return None;
        }
        Some(page.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// Runs `told` in a forked child and returns its result. `told` must not allocate: another test
    /// thread may hold the allocator's lock.
    fn in_child(told: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only computes and exits.
        match unsafe { fork() }.expect("a child") {
            // SAFETY: as above.
            ForkResult::Child => unsafe { nix::libc::_exit(i32::from(!told())) },
            ForkResult::Parent { child } => {
                matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0)))
            }
        }
    }

    fn is_right() -> bool {
        id() == std::process::id() && id() == std::process::id()
    }

    #[test]
    fn a_process_and_its_children_and_theirs_know_who_they_are() {
        assert!(is_right());
        assert!(in_child(|| is_right() && in_child(is_right)));
        assert!(is_right());
    }

    #[test]
    fn a_page_is_empty_in_a_child_that_did_not_write_there() {
        // SAFETY: the page is never unmapped.
        let place = unsafe { &*page().expect("Linux 4.14") };
        place.store(7, Ordering::Relaxed);
        assert!(in_child(|| place.load(Ordering::Relaxed) == 0));
        assert_eq!(place.load(Ordering::Relaxed), 7);
    }
}
