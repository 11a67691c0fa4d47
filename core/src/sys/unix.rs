//! Shared by the systems with POSIX signals, clocks and sockets in the file system.

use std::ffi::c_int;
use std::io;
use std::path::Path;

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};
use tokio::net::UnixStream;

/// The time on this clock. The call fails only for a clock that does not exist. The time is at its
/// maximum then, so that every hold counts as expired.
#[cfg(not(redlatch_portable))]
pub(super) fn time_on(clock: nix::time::ClockId) -> crate::moment::Moment {
    use crate::moment::Moment;
    nix::time::clock_gettime(clock).map_or(Moment(u64::MAX), |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
        let micros = u64::try_from(time.tv_nsec()).unwrap_or_default() / 1000;
        Moment(seconds.saturating_mul(1_000_000).saturating_add(micros))
    })
}

pub(crate) type LocalStream = UnixStream;

pub(crate) async fn connect_local(path: &Path) -> io::Result<LocalStream> {
    LocalStream::connect(path).await
}

pub(crate) fn without_signals<T>(make: impl FnOnce() -> T) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let made = make();
    before.thread_set_mask()?;
    Ok(made)
}

/// Whether the system has no descriptor, thread, memory or buffer left, for now.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let code = error.raw_os_error().map(Errno::from_raw);
    code.is_some_and(|code| {
        matches!(
            code,
            Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM | Errno::ENOBUFS
        )
    })
}

/// The name of the machine or container; empty if it cannot be told.
pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[allow(unsafe_code, reason = "exit handlers are to be had from libc only")]
pub(crate) fn at_exit(handler: extern "C" fn()) -> bool {
    // SAFETY: a plain call. The caller promises that the code of `handler` stays mapped.
    unsafe { libc::atexit(handler) == 0 }
}

/// Keeps `pthread_cancel` from ending the calling thread while there is one of these.
///
/// glibc cancels a thread by unwinding its stack, and that ends the process when it meets frames of
/// Rust. A cancellation that came meanwhile stays pending: the C code acts on it where it calls a
/// cancellation point next.
pub struct Uncancelled(c_int);

/// The crate `libc` has neither it nor the function. Its number is the same in glibc and musl.
const PTHREAD_CANCEL_DISABLE: c_int = if cfg!(target_os = "macos") { 0 } else { 1 };

#[allow(unsafe_code, reason = "the system has no other interface")]
mod cancelling {
    use std::ffi::c_int;

    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }

    /// Returns the state before.
    pub(super) fn set(state: c_int) -> c_int {
        let mut before = state;
        // SAFETY: it changes the calling thread only, and `before` is there to be written to.
        unsafe { pthread_setcancelstate(state, &raw mut before) };
        before
    }
}

impl Uncancelled {
    /// Postpones cancellation of the calling thread.
    #[allow(clippy::new_without_default, reason = "it changes the thread")]
    pub fn new() -> Self {
        Uncancelled(cancelling::set(PTHREAD_CANCEL_DISABLE))
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        cancelling::set(self.0);
    }
}
