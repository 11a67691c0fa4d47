//! One distributed lock over Redis.
#![forbid(unsafe_code)]

mod clock;
mod driver;
mod engine;
mod error;
mod event;
mod hold;
mod moment;
mod owner;
mod wire;

pub use error::{Error, ErrorKind, LostReason, Result};
pub use event::{Event, Level, Stats};
pub use owner::Key;
pub use wire::Holder;
