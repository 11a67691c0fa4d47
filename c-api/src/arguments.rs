//! From C's pointers to Rust's types. All that is unsafe about arguments is in here.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use redlatch::embed::{Type, all_options, read_duration};
use redlatch::{Error, ErrorKind, OptionValue, Result};

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

pub(crate) fn is_null(name: &str) -> Error {
    invalid(format!("{name} is NULL; it has to be given"))
}

/// Turns a value into a handle for C.
pub(crate) fn handle<T>(value: Arc<T>) -> *mut T {
    Arc::into_raw(value).cast_mut()
}

/// The value behind a handle; it lives on for the call even if the handle is freed meanwhile.
///
/// # Safety
/// `pointer` is NULL or comes from [`handle`] and has not been freed.
pub(crate) unsafe fn shared<T>(pointer: *const T, name: &str) -> Result<Arc<T>> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: it comes from `Arc::into_raw`, and the handle still counts as one owner.
    unsafe {
        Arc::increment_strong_count(pointer);
        Ok(Arc::from_raw(pointer))
    }
}

/// The values behind an array of handles.
///
/// # Safety
/// `pointer` is NULL or points to `count` pointers as for [`shared`].
pub(crate) unsafe fn all_shared<T>(
    pointer: *const *mut T,
    count: usize,
    name: &str,
) -> Result<Vec<Arc<T>>> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    if count > isize::MAX as usize / size_of::<*mut T>() {
        return Err(invalid(format!(
            "{name} has {count} entries; no memory is that large"
        )));
    }
    // SAFETY: not NULL, so the pointers are there.
    let pointers = unsafe { std::slice::from_raw_parts(pointer, count) };
    let one = |(at, pointer): (usize, &*mut T)| {
        // SAFETY: passed on.
        unsafe { shared(*pointer, &format!("{name}[{at}]")) }
    };
    pointers.iter().enumerate().map(one).collect()
}

/// The value behind a handle that may be NULL.
///
/// # Safety
/// As for [`shared`].
pub(crate) unsafe fn optional<T>(pointer: *const T, name: &str) -> Result<Option<Arc<T>>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on.
    unsafe { shared(pointer, name) }.map(Some)
}

/// Takes a handle back; `None` for NULL.
///
/// # Safety
/// As for [`shared`]; afterwards the handle must not be used any more.
pub(crate) unsafe fn taken<T>(pointer: *mut T) -> Option<Arc<T>> {
    // SAFETY: it comes from `Arc::into_raw`, and its owner gives it up.
    (!pointer.is_null()).then(|| unsafe { Arc::from_raw(pointer) })
}

/// The bytes of a string.
///
/// # Safety
/// `pointer` is NULL or points to a NUL-terminated string that stays as it is during the call.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_char, name: &str) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: not NULL, so it is terminated.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// The bytes of a string of this length.
///
/// # Safety
/// `pointer` is NULL or points to `length` bytes that stay as they are during the call.
pub(crate) unsafe fn counted<'a>(
    pointer: *const c_char,
    length: usize,
    name: &str,
) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    if isize::try_from(length).is_err() {
        return Err(invalid(format!(
            "{name} has {length} bytes; no memory is that large"
        )));
    }
    // SAFETY: not NULL, so the bytes are there.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), length) })
}

/// A string as text.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: passed on.
    let bytes = unsafe { bytes(pointer, name) }?;
    std::str::from_utf8(bytes).map_err(|error| {
        invalid(format!(
            "{name} is not UTF-8 from byte {} on; encode it as UTF-8",
            error.valid_up_to()
        ))
    })
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
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// `pointer` is NULL or may be written to during the call.
    pub(crate) unsafe fn required(pointer: *mut T, name: &str) -> Result<Self> {
        if pointer.is_null() {
            Err(is_null(name))
        } else {
            Ok(Out(pointer))
        }
    }

    /// # Safety
    /// As for [`required`](Out::required).
    pub(crate) unsafe fn optional(pointer: *mut T) -> Self {
        Out(pointer)
    }

    /// Stores a result, if it is wanted.
    pub(crate) fn put(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: promised when this was made; C's memory may be uninitialised, so nothing is
            // dropped.
            unsafe { self.0.write(value) };
        }
    }
}

impl<T> Out<*mut T> {
    /// Where a handle goes; NULL until it is made.
    ///
    /// # Safety
    /// As for [`required`](Out::required).
    pub(crate) unsafe fn handle(place: *mut *mut T, name: &str) -> Result<Self> {
        // SAFETY: passed on.
        let out = unsafe { Out::required(place, name) }?;
        out.put(ptr::null_mut());
        Ok(out)
    }
}

/// Where a text goes.
pub(crate) struct Buffer<'a> {
    place: Out<c_char>,
    size: usize,
    name: &'a str,
}

impl<'a> Buffer<'a> {
    /// # Safety
    /// `pointer` is NULL or `size` bytes may be written there during the call.
    pub(crate) unsafe fn new(pointer: *mut c_char, size: usize, name: &'a str) -> Self {
        Buffer {
            place: Out(pointer),
            size,
            name,
        }
    }

    /// Stores a text with a final NUL; all of it or nothing.
    pub(crate) fn put(&self, text: &str) -> Result<()> {
        if self.place.0.is_null() {
            return Ok(());
        }
        let needed = text.len() + 1;
        if needed > self.size {
            return Err(invalid(format!(
                "{} has {} bytes; {needed} are needed",
                self.name, self.size
            )));
        }
        // SAFETY: the buffer is long enough, as promised when this was made.
        unsafe {
            self.place
                .0
                .copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            self.place.0.add(text.len()).write(0);
        }
        Ok(())
    }
}
