//! One distributed lock over Redis.
#![forbid(unsafe_code)]

mod blocking;
mod client;
mod clock;
mod driver;
mod engine;
mod error;
mod event;
mod guard;
mod hold;
mod lock;
mod moment;
mod operation;
mod options;
mod owner;
mod queue;
mod url;
mod wire;

pub use client::{Client, ClientBuilder};
pub use error::{Error, ErrorKind, LostReason, Result};
pub use event::{Event, Level, Stats};
pub use guard::Guard;
pub use lock::{Hold, Lock};
pub use operation::{Cancelled, Operation, Pending};
pub use options::{
    AcquireOptions, ClientOptions, LockOptions, OptionInfo, OptionValue, Scope, Type, all_options,
    read_duration,
};
pub use owner::Key;
pub use queue::{Entry, Outcome, Queue};
pub use wire::Holder;
