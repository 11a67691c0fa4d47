//! Windows. Experimental: C programs and the Node suite run under Wine, and nothing has run on Windows itself.
#![allow(unsafe_code, reason = "the system has no other interface")]

use std::io;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleA,
    GetModuleHandleExA, GetProcAddress,
};
use windows_sys::Win32::System::SystemInformation::GetTickCount64;

use crate::moment::Moment;

pub(crate) use super::portable::{
    Alarm, BlockingSocket, EventFd, HAS_INLINE, ReceiveMinimum, Sleeper, StopFlag, Timer,
    exit_signals, give_up_after, process_id,
};

/// `QueryInterruptTimePrecise`: units of 100 ns since the start, sleep and hibernation included.
type InterruptTime = unsafe extern "system" fn(*mut u64);

pub(crate) fn now() -> Moment {
    // Looked up when the program runs, because Wine 8 lacks it and would not load us.
    static PRECISE: OnceLock<Option<InterruptTime>> = OnceLock::new();
    let precise = PRECISE.get_or_init(|| {
        // SAFETY: the names end with a zero. The library is part of every process and is never
        // unloaded, and the function has this type.
        unsafe {
            let library = GetModuleHandleA(c"kernelbase.dll".as_ptr().cast());
            let found = GetProcAddress(library, c"QueryInterruptTimePrecise".as_ptr().cast())?;
            Some(std::mem::transmute::<
                unsafe extern "system" fn() -> isize,
                InterruptTime,
            >(found))
        }
    });
    match precise {
        Some(ask) => {
            let mut time = 0;
            // SAFETY: it writes one number, and cannot fail.
            unsafe { ask(&raw mut time) };
            Moment(time / 10)
        }
        // SAFETY: it cannot fail. It counts sleep as well, in steps of 16 ms.
        None => Moment(unsafe { GetTickCount64() }.saturating_mul(1000)),
    }
}

/// The name of the machine; empty if it cannot be told.
pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// There are no signals. The thread that is made here needs its code: a library stays loaded from now
/// on, where other systems have an option of the linker for it.
pub(crate) fn without_signals<T>(make: impl FnOnce() -> T) -> io::Result<T> {
    let mut library = ptr::null_mut();
    // SAFETY: with that flag the name is any address in the library, and `library` can be written to.
    let is_kept = unsafe {
        GetModuleHandleExA(
            GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
            ptr::from_ref(&KEPT),
            &raw mut library,
        )
    };
    if is_kept == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(make())
}

/// Lies in the library.
static KEPT: u8 = 0;

/// `WSAEMFILE` and `WSAENOBUFS`.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(10024 | 10055))
}

/// tokio has no sockets in the file system here. The type is one that it has.
pub(crate) type LocalStream = tokio::net::TcpStream;

pub(crate) async fn connect_local(_: &Path) -> io::Result<LocalStream> {
    let text = "unix:// is not supported on this system; use redis://";
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// All other threads are stopped when a library's handlers run.
pub(crate) fn at_exit(_: extern "C" fn()) -> bool {
    false
}

/// A thread is not cancelled by unwinding its stack.
pub struct Uncancelled(());

impl Uncancelled {
    /// Does nothing.
    #[allow(
        clippy::new_without_default,
        reason = "it changes the thread elsewhere"
    )]
    pub fn new() -> Self {
        Uncancelled(())
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {}
}
