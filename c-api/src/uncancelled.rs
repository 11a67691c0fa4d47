//! `pthread_cancel` and the frames of Rust.

use std::ffi::c_int;

/// Keeps `pthread_cancel` from ending the calling thread while there is one of these.
///
/// glibc cancels a thread by unwinding its stack, and that ends the process when it meets frames of
/// Rust. A cancellation that came meanwhile stays pending: the C code acts on it where it calls a
/// cancellation point next.
pub(crate) struct Uncancelled(c_int);

/// The same number in glibc and musl; the crate `libc` has neither it nor the function.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

impl Uncancelled {
    pub(crate) fn enter() -> Self {
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: it changes the calling thread only, and `before` is there to be written to.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.0, &raw mut self.0) };
    }
}
