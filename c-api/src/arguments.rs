//! From C's arguments to Rust's types. All that is unsafe about them is in here.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use redlatch::embed::{Type, all_options, read_duration};
use redlatch::{Error, ErrorKind, OptionValue, Result};

use crate::calls::User;
use crate::canceller::redlatch_canceller;
use crate::client::redlatch_client;
use crate::counters::{redlatch_latch, redlatch_plain_semaphore};
use crate::lock::redlatch_lock;
use crate::options::redlatch_options;

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

pub(crate) fn is_null(name: &str) -> Error {
    invalid(format!("{name} is NULL; it has to be given"))
}

/// An argument, as C gives it.
pub(crate) trait Given: Sized {
    type Read;

    /// What is to be done before anything can fail.
    ///
    /// # Safety
    /// As for [`read`](Given::read).
    unsafe fn begin(&self) {}

    /// The argument, which has this name in errors.
    ///
    /// # Safety
    /// A pointer is NULL, or to what the header says. That stays as it is during the call, but for
    /// handles, which may be freed meanwhile.
    unsafe fn read(self, name: &'static str) -> Result<Self::Read>;
}

/// How each type is read.
macro_rules! given {
    ($($type:ty => $read:ty, $how:expr;)*) => { $(
        impl Given for $type {
            type Read = $read;

            unsafe fn read(self, name: &'static str) -> Result<$read> {
                // SAFETY: passed on.
                #[allow(unused_unsafe, clippy::redundant_closure_call)]
                unsafe { ($how)(self, name) }
            }
        }
    )* };
}

given! {
    usize => usize, plain;
    i64 => i64, plain;
    u64 => u64, plain;
    u32 => u32, plain;
    *mut c_void => User, |user, _| Ok(User(user));
    *const c_char => Chars, Chars::new;
    *mut c_char => Out<c_char>, Out::new;
    *mut bool => Out<bool>, Out::new;
    *mut c_int => Out<c_int>, Out::new;
    *mut i64 => Out<i64>, Out::new;
    *mut u64 => Out<u64>, Out::new;
    *mut u32 => Out<u32>, Out::new;
    *const redlatch_options => Option<Arc<redlatch_options>>, optional;
    *mut redlatch_options => Arc<redlatch_options>, shared;
    *mut redlatch_client => Arc<redlatch_client>, shared;
    *const redlatch_canceller => Arc<redlatch_canceller>, shared;
    *mut redlatch_canceller => Option<Arc<redlatch_canceller>>, optional;
    *const redlatch_lock => Arc<redlatch_lock>, shared;
    *mut redlatch_lock => Arc<redlatch_lock>, shared;
    *const *mut redlatch_lock => Locks, |locks, _| Ok(Locks(locks));
    *const redlatch_plain_semaphore => Arc<redlatch_plain_semaphore>, shared;
    *mut redlatch_plain_semaphore => Arc<redlatch_plain_semaphore>, shared;
    *const redlatch_latch => Arc<redlatch_latch>, shared;
    *mut redlatch_latch => Arc<redlatch_latch>, shared;
}

/// A function of the program.
impl<F> Given for Option<F> {
    type Read = Self;

    unsafe fn read(self, _: &'static str) -> Result<Self> {
        Ok(self)
    }
}

/// The place for a handle: NULL until it is made.
impl<T> Given for *mut *mut T {
    type Read = Out<*mut T>;

    unsafe fn begin(&self) {
        if !self.is_null() {
            // SAFETY: promised by the caller.
            unsafe { self.write(ptr::null_mut()) };
        }
    }

    unsafe fn read(self, name: &'static str) -> Result<Out<*mut T>> {
        let out = Out { place: self, name };
        out.needed().map(|()| out)
    }
}

fn plain<T>(value: T, _: &str) -> Result<T> {
    Ok(value)
}

/// The value behind a handle; it lives on for the call even if the handle is freed meanwhile.
///
/// # Safety
/// `pointer` is NULL or comes from [`Out::give`] and has not been freed.
unsafe fn shared<T>(pointer: *const T, name: &str) -> Result<Arc<T>> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: it comes from `Arc::into_raw`, and the handle still counts as one owner.
    unsafe {
        Arc::increment_strong_count(pointer);
        Ok(Arc::from_raw(pointer))
    }
}

/// The value behind a handle that may be NULL.
///
/// # Safety
/// As for [`shared`].
unsafe fn optional<T>(pointer: *const T, name: &str) -> Result<Option<Arc<T>>> {
    // SAFETY: passed on.
    (!pointer.is_null())
        .then(|| unsafe { shared(pointer, name) })
        .transpose()
}

/// Takes a handle back; `None` for NULL.
///
/// # Safety
/// As for [`shared`]; afterwards the handle must not be used any more.
pub(crate) unsafe fn taken<T>(pointer: *mut T) -> Option<Arc<T>> {
    // SAFETY: it comes from `Arc::into_raw`, and its owner gives it up.
    (!pointer.is_null()).then(|| unsafe { Arc::from_raw(pointer) })
}

/// What C has a handle to.
pub(crate) trait Freed: Sized {
    /// The program has given the handle back.
    fn freed(self: Arc<Self>) {}
}

/// An array of locks; each is NULL or a live handle.
pub(crate) struct Locks(*const *mut redlatch_lock);

impl Locks {
    pub(crate) fn all(&self, count: usize) -> Result<Vec<Arc<redlatch_lock>>> {
        // SAFETY: the header asks for so many.
        let pointers = unsafe { counted(self.0, count, "locks", "entries") }?;
        let one = |(at, pointer): (usize, &*mut redlatch_lock)| {
            // SAFETY: the header asks for live handles.
            unsafe { shared(*pointer, &format!("locks[{at}]")) }
        };
        pointers.iter().enumerate().map(one).collect()
    }
}

/// An array of this length.
///
/// # Safety
/// `pointer` is NULL or points to so many values that stay as they are.
unsafe fn counted<'a, T>(
    pointer: *const T,
    count: usize,
    name: &str,
    what: &str,
) -> Result<&'a [T]> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(invalid(format!(
            "{name} has {count} {what}; no memory is that large"
        )));
    }
    // SAFETY: not NULL, so the values are there.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A string, or the bytes of one.
pub(crate) struct Chars {
    place: *const c_char,
    name: &'static str,
}

impl Chars {
    fn new(place: *const c_char, name: &'static str) -> Result<Self> {
        Ok(Chars { place, name })
    }

    /// The bytes up to the NUL.
    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        if self.place.is_null() {
            return Err(is_null(self.name));
        }
        // SAFETY: not NULL, so it is terminated.
        Ok(unsafe { CStr::from_ptr(self.place) }.to_bytes())
    }

    pub(crate) fn counted(&self, length: usize) -> Result<&[u8]> {
        // SAFETY: the header asks for so many bytes.
        unsafe { counted(self.place.cast(), length, self.name, "bytes") }
    }

    pub(crate) fn text(&self) -> Result<&str> {
        std::str::from_utf8(self.bytes()?).map_err(|error| {
            invalid(format!(
                "{} is not UTF-8 from byte {} on; encode it as UTF-8",
                self.name,
                error.valid_up_to()
            ))
        })
    }

    /// `None` for NULL.
    pub(crate) fn optional(&self) -> Result<Option<&str>> {
        (!self.place.is_null()).then(|| self.text()).transpose()
    }
}

/// A time that C gives as a number of milliseconds, within the bounds of an option.
pub(crate) fn millis(parameter: &str, ms: i64, option: &str) -> Result<Duration> {
    within(parameter, ms, option, "")
}

/// The same; `None` for the constant of C that can stand in its place.
pub(crate) fn millis_or(
    (constant, name): (i64, &str),
    parameter: &str,
    ms: i64,
    option: &str,
) -> Result<Option<Duration>> {
    if ms == constant {
        return Ok(None);
    }
    within(parameter, ms, option, &format!("{name} or ")).map(Some)
}

/// A refusal names the parameter and its bounds as C writes them, after `other`.
fn within(parameter: &str, ms: i64, option: &str, other: &str) -> Result<Duration> {
    read_duration(option, OptionValue::Millis(ms as f64)).map_err(|error| {
        let info = all_options().find(|info| info.name == option);
        let Some(Type::Duration { least, most }) = info.map(|info| &info.r#type) else {
            return error;
        };
        let (least, most) = (least.as_millis(), most.as_millis());
        invalid(format!(
            "{parameter} is {ms}; give it {other}{least} to {most} milliseconds"
        ))
    })
}

/// Where a result goes.
pub(crate) struct Out<T> {
    place: *mut T,
    name: &'static str,
}

impl<T> Out<T> {
    fn new(place: *mut T, name: &'static str) -> Result<Self> {
        Ok(Out { place, name })
    }

    /// Refuses NULL.
    pub(crate) fn needed(&self) -> Result<()> {
        if self.place.is_null() {
            Err(is_null(self.name))
        } else {
            Ok(())
        }
    }

    /// Takes NULL, too.
    pub(crate) fn optional(&self) -> Result<()> {
        Ok(())
    }

    /// Stores a result, if it is wanted.
    pub(crate) fn put(&self, value: T) {
        if !self.place.is_null() {
            // SAFETY: promised when this was read; C's memory may be uninitialised, so nothing is
            // dropped.
            unsafe { self.place.write(value) };
        }
    }
}

impl<T> Out<*mut T> {
    /// Turns a value into a handle for C.
    pub(crate) fn give(&self, value: Arc<T>) -> Result<()> {
        self.put(Arc::into_raw(value).cast_mut());
        Ok(())
    }
}

impl Out<c_char> {
    /// Stores a text with a final NUL in so many bytes; all of it or nothing.
    pub(crate) fn put_text(&self, text: &str, size: usize) -> Result<()> {
        let needed = text.len() + 1;
        if self.place.is_null() {
            return Ok(());
        }
        if needed > size {
            return Err(invalid(format!(
                "{} has {size} bytes; {needed} are needed",
                self.name
            )));
        }
        // SAFETY: the buffer is long enough, as the header asks.
        unsafe {
            let bytes = text.as_ptr().cast();
            self.place.copy_from_nonoverlapping(bytes, text.len());
            self.place.add(text.len()).write(0);
        }
        Ok(())
    }
}
