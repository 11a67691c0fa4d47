//! The numbers of the driver and of the faces that were chosen, each with its unit and its reason.
//!
//! `core/proto/src/tuning.rs` has the numbers of the engine and the outbox, and `options.rs` the
//! options of a user. A number that the protocol fixes stands where it is used.

use std::time::Duration;

pub(crate) use redlatch_proto::tuning::{ORPHAN_LIMIT, OWED_LIMIT};

// Callers that wait on threads

/// The largest number of callers in a group. At least this many calls leave together, if there are
/// as many.
pub(crate) const PARKING_GROUP: usize = 16;

/// How often `check` is called without a signal. It covers a signal that arrives
/// just before the thread goes to sleep.
pub(crate) const SIGNAL_CHECK: Duration = Duration::from_millis(250);

/// How many waits a thread sleeps alone after its parking group was woken and its own answer was
/// missing. As long as it waits for locks that others hold, that would happen again.
pub(crate) const WAITS_ALONE: u8 = 32;

// Event loops

/// The number of inline answers in a row, and the time after which they end: the step of an event
/// loop's own timers. The budget is spent when both are reached. A loop that computes between its
/// calls yields after that number, one that only locks after that time.
pub(crate) const INLINE_ANSWERS: u32 = 16;

/// See [`INLINE_ANSWERS`].
pub(crate) const INLINE_TIME: Duration = Duration::from_millis(1);

// The I/O thread

/// How many messages are taken in before their effects are carried out, so that their calls leave
/// together.
pub(crate) const INBOX_BATCH: usize = 32;

/// The same while the server is idle, so that it can start soon.
pub(crate) const INBOX_BATCH_IDLE: usize = PARKING_GROUP;

/// After this many calls the connections write, before more messages are taken in. With one large
/// batch, the client would wait while the server works, and the server while the client works.
pub(crate) const CALLS_PER_WRITE: usize = PARKING_GROUP;

/// How long the thread that waits for calls that their callers have left lives on without one.
pub(crate) const LATE_THREAD_IDLE: Duration = Duration::from_secs(1);

// Connecting

/// `TCP_USER_TIMEOUT`: when the kernel gives up a peer that does not acknowledge data.
pub(crate) const TCP_USER_TIMEOUT: Duration = Duration::from_secs(2);

// The inline connection

/// The connection is made after this many calls would have used it. Short programs need none.
pub(crate) const INLINE_WORTH: u32 = 2;

/// No other attempt to connect begins for this long after one began.
pub(crate) const INLINE_RETRY: Duration = Duration::from_secs(1);

/// The same after a failed attempt: a server that refuses is not asked often.
pub(crate) const INLINE_REFUSED: Duration = Duration::from_secs(60);

/// A connection that was unused for longer is checked before use: the server may have closed it.
pub(crate) const INLINE_IDLE: Duration = Duration::from_millis(100);

/// How long one read may take before the caller looks at the time and at signals.
pub(crate) const INLINE_TICK: Duration = Duration::from_millis(250);

/// How many bytes of any other connection are read at once.
pub(crate) const READ: usize = 1 << 14;

/// How many bytes are read at once; most replies are shorter.
pub(crate) const INLINE_READ: usize = 512;

/// The exponent of the longest pause: while every reply is late, one call in two to the power of
/// this is waited for.
pub(crate) const INLINE_LATE_EXPONENT: u32 = 8;

// The receive threshold

/// In bytes. A higher threshold may exceed what the socket can keep.
pub(crate) const RECEIVE_THRESHOLD_MOST: usize = 2048;
