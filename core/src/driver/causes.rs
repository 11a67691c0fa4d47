//! The errors behind an error.

use std::error::Error as StdError;
use std::io;
use std::iter::successors;
use std::sync::Arc;

/// This error and those behind it, the innermost one last.
pub(super) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    successors(Some(error), |&error: &&'a (dyn StdError + 'static)| {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            // `source` of an I/O error skips the error that it wraps.
            return match io.get_ref() {
                Some(inner) => Some(inner),
                None => io.source(),
            };
        }
        // redis-rs wraps errors in an `Arc`, whose `source` skips the wrapped error.
        match error.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
            Some(shared) => Some(&**shared),
            None => error.source(),
        }
    })
}

/// A copy of the I/O error behind this error, with its code if the system gave one.
pub(super) fn io_error(error: &(dyn StdError + 'static)) -> Option<io::Error> {
    let io = causes(error).find_map(|cause| cause.downcast_ref::<io::Error>())?;
    Some(match io.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(io.kind(), io.to_string()),
    })
}
