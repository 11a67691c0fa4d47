//! The traits of every public type, checked by the compiler.

use std::panic::{RefUnwindSafe, UnwindSafe};

use redlatch::testing::MemoryServer;
use redlatch::{
    AcquireOptions, Canceller, Client, ClientBuilder, ClientOptions, Credentials, Error, Event,
    Guard, Hold, Holder, Lock, LockOptions, Operation, Permits, ReentryKey, RwLock, Semaphore,
    Stats,
};

/// It can be sent to another thread, and be used around `catch_unwind` without `AssertUnwindSafe`.
const fn crosses_threads_and_panics<T: Send + Sync + UnwindSafe + RefUnwindSafe + 'static>() {}

const _: () = {
    crosses_threads_and_panics::<AcquireOptions>();
    crosses_threads_and_panics::<Canceller>();
    crosses_threads_and_panics::<Client>();
    crosses_threads_and_panics::<ClientBuilder>();
    crosses_threads_and_panics::<ClientOptions>();
    crosses_threads_and_panics::<Credentials>();
    crosses_threads_and_panics::<Error>();
    crosses_threads_and_panics::<Event>();
    crosses_threads_and_panics::<Guard>();
    crosses_threads_and_panics::<Hold>();
    crosses_threads_and_panics::<Holder>();
    crosses_threads_and_panics::<Lock>();
    crosses_threads_and_panics::<LockOptions>();
    crosses_threads_and_panics::<MemoryServer>();
    crosses_threads_and_panics::<Operation<Guard>>();
    crosses_threads_and_panics::<Operation<()>>();
    crosses_threads_and_panics::<Permits>();
    crosses_threads_and_panics::<ReentryKey>();
    crosses_threads_and_panics::<RwLock>();
    crosses_threads_and_panics::<Semaphore>();
    crosses_threads_and_panics::<Stats>();
};
