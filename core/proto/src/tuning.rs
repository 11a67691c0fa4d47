//! The numbers of the engine and the outbox that were chosen, each with its unit and its reason.
//!
//! `core/src/tuning.rs` has the numbers of the driver, and `core/src/options.rs` the options of a
//! user. A number that the protocol fixes stands where it is used.

use std::time::Duration;

// Tries, renewals and probes

/// The shortest and the longest pause before a renewal or a release is retried.
pub(crate) const RETRY_PAUSE: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(250));

/// The first and the longest pause after a transient server error (loading, busy, a demoted
/// primary).
pub(crate) const TRANSIENT_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_millis(500));

/// How long a waiter waits, after an invalidation, for the release message that usually follows.
pub(crate) const HINT_DELAY: Duration = Duration::from_millis(10);

/// A caller that waits so long for a lock that it holds itself is told of. A grant that nobody took is given
/// back before.
pub(crate) const SELF_WAIT: Duration = Duration::from_millis(100);

/// A waiter tries again this long after the holder's lease should have ended.
pub(crate) const EXPIRY_SLACK: Duration = Duration::from_millis(2);

/// Over HTTP a call has this long to be answered, or a quarter of its lease: a request takes longer than a
/// command, and may wait for the one before it.
pub const HTTP_LIMIT: Duration = Duration::from_secs(3);

/// The mark of a writer that waits counts for this long at least: the writer renews it in half of its time.
pub(crate) const MARK_LEAST: Duration = Duration::from_secs(1);

/// The mark of a writer that waits counts for so many rechecks at most. So a writer that dies keeps
/// readers back no longer than that.
pub(crate) const MARK_RECHECKS: u32 = 3;

/// An adaptive lock is renewed when this much of its lease remains.
pub(crate) const ADAPTIVE_RENEWAL: Duration = Duration::from_secs(5);

/// A hold that client tracking does not cover is probed when it is this old.
pub(crate) const PROBE_AGE: Duration = Duration::from_millis(5);

/// Probe times are rounded up to a multiple of this, so that the probes of several holds share a
/// call.
pub(crate) const PROBE_STEP: Duration = Duration::from_millis(10);

/// A lock may be handed over locally, before the server is asked, if the server confirmed it at
/// most this long ago. A hold that is not covered by client tracking reaches the same age before it
/// is probed.
pub(crate) const HANDOVER_FRESH: Duration = PROBE_AGE;

/// Invalidations may cause this many tries per recheck interval, where no release message follows
/// them.
pub(crate) const HINTED_TRIES: u32 = 20;

/// Invalidations may cause this many tries in vain more than other causes do.
pub(crate) const HINTED_TRIES_IN_VAIN: u8 = 8;

/// The response limit of calls without a lease.
pub(crate) const PLAIN_LIMIT: Duration = Duration::from_secs(1);

// Renewals

/// The most names in one call. A longer script would delay the other clients of the server.
pub(crate) const RENEWAL_BATCH: usize = 100;

/// A hold whose renewal is due within this part of its period is renewed together with one that is
/// due now.
pub(crate) const RENEWAL_EARLY: u32 = 10;

/// The most full calls that are sent together if some of them could wait. An early renewal costs
/// one more renewal in the end. More calls at once would delay the other calls of this client.
pub(crate) const RENEWAL_CALLS_EARLY: usize = 4;

/// The fixed cost of a call, in locks: a call without locks would cost the server and the client
/// about as much as this many of its locks. The limit that follows for the smallest calls is what a
/// connection always has room for (`outbox/limiter.rs`).
pub(crate) const RENEWAL_CALL_WORK: usize = 6;

// Renewals in flight

/// Maximum renewal calls of a hundred locks in flight per server; smaller calls count by their
/// work. Enough to keep the server busy, and small enough that other commands are not delayed and
/// no renewal is answered too late to be of use.
pub const RENEWALS_IN_FLIGHT: usize = 16;

// Clean-ups

/// The most clean-ups in flight at one server. No caller waits for their answers, and a hundred
/// thousand at once would delay everything else.
pub(crate) const CLEANUPS_IN_FLIGHT: usize = 64;

/// How many confirmed releases are kept.
pub(crate) const RELEASES_KEPT: usize = 1024;

/// How long they are kept. A fail-over whose verdict is slow takes that long.
pub(crate) const RELEASES_KEPT_FOR: Duration = Duration::from_secs(60);

/// How long a clean-up goes on if the server chose the lease and its answer was lost, or if other
/// owners may keep the key alive.
pub(crate) const LEARNT_LEASE: Duration = Duration::from_secs(3600);

// Quorums

/// How often an acquisition of a quorum that waits for one server looks at all of them. The server
/// that it waits for may be the only one that somebody else holds.
pub(crate) const QUORUM_LOOK: Duration = Duration::from_secs(1);

// Expired holds

/// How many holds whose fixed lease ran out are always kept: the newest ones.
pub(crate) const EXPIRED_KEPT: usize = 1024;

// Turns of other clients

/// How long another client may take to get the lock: a message to it and its try, on a busy
/// machine.
pub(crate) const TURN: Duration = Duration::from_micros(700);

/// How much longer a turn gets each time that a try after the turn found the lock taken. The others
/// came, but were not done yet, and such a try is in vain.
pub(crate) const TURN_STEP: Duration = Duration::from_micros(350);

/// The longest turn. The message of another client may never come.
pub(crate) const TURN_LONGEST: Duration = TURN.saturating_mul(4);

/// The largest number of turns that a client waits for.
pub(crate) const TURNS: u32 = 8;

/// The longest turn after a full streak. A client that had the lock for as long as it may leaves it
/// to others for the same time, and for twice as long with each such turn that nobody takes, up to
/// this. Otherwise slow clients (a busy machine, a JVM) never come in between. This is less than
/// half of the default `handover_time`.
pub(crate) const TURN_AFTER_STREAK: Duration = Duration::from_millis(20);

/// How many messages tell of permits that came back, at most. Redisson wakes one asynchronous waiter
/// for each.
pub(crate) const PERMIT_MESSAGES: u16 = 8;

/// How long the marker of a counter stays after the last change by its client. A change without an
/// answer can be repeated as long: longer than most partitions last.
pub const MARKER_LIFE: Duration = Duration::from_secs(300);

/// How often an invalidation has a latch looked at, at most: each step of its count sends one.
pub(crate) const LATCH_LOOK: Duration = Duration::from_millis(50);

/// How many waiters of a counter one command serves at most.
pub(crate) const TAKES: usize = 64;

/// How long a row of waiters of one client that get its permits goes on without a waiter.
pub(crate) const STREAK_LIFE: Duration = Duration::from_secs(60);

/// How long the message of our own release is expected.
pub(crate) const OWN_MESSAGE: Duration = Duration::from_millis(100);

// Invalidations

/// The delay before the second probe of a hold. It doubles with each further probe.
pub(crate) const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// The part of its lease that passes at least before a hold on a shared key is probed.
pub(crate) const SHARED_LOOK: u32 = 10;

/// The longest delay before a hold on a shared key is probed: a third of the 30 s to which a renewal
/// of Redisson may have cut its time.
pub(crate) const SHARED_LOOK_MOST: Duration = Duration::from_secs(10);

/// How many readers at the front of a queue ask at the same time, or callers that want permits.
pub(crate) const ASKING_AHEAD: usize = 128;

/// The work of 16 probes, each in a call of its own, that is allowed on top of one probe per hold.
pub(crate) const PROBE_SPARE: usize = 16 * (1 + RENEWAL_CALL_WORK);

/// The first and the longest suspension. It doubles with each failed attempt to resume.
pub(crate) const TRACKING_PAUSE: (Duration, Duration) =
    (Duration::from_secs(10), Duration::from_secs(320));

/// Probing resumes when at most one in `TRACKING_RESUMES` renewed keys was invalidated during the
/// suspension.
pub(crate) const TRACKING_RESUMES: usize = 10;

// Memory: timers

/// Up to this many stale entries stay in the timers, which costs less than removing them.
pub(crate) const STALE_TIMERS: usize = 64;

// Memory: queues

/// How many boxes the pool keeps: about as many as callers acquire at the same time.
pub(crate) const POOLED_QUEUES: usize = 64;

/// The pool keeps no box whose queue has room for more waiters than this.
pub(crate) const POOLED_QUEUE_ROOM: usize = 16;

// The outbox

/// A connection is given up after this much silence at the earliest.
pub(crate) const SILENCE: Duration = Duration::from_millis(500);

// The concurrency limiter

/// The least limit, in calls. A slow server gains nothing from a lower one, and on a busy machine
/// every answer is late, however few calls are in flight.
pub(crate) const LIMIT_LEAST: usize = 256;

/// The initial limit, in calls.
pub(crate) const LIMIT_FIRST: usize = 512;

/// An answer is late when it takes longer than the quickest one by more than this fraction of its
/// time limit (a divisor).
pub(crate) const LATE_PART: u32 = 4;

/// The limiter holds a call back for at most this fraction of its time limit (a divisor). The
/// server gets the rest.
pub(crate) const HELD_PART: u32 = 2;

// The batcher

/// The most locks in a command. A larger batch would save little, and the first lock waits until
/// the server has handled the last one: each takes about 3 us.
pub(crate) const BATCH_LOCKS: usize = 32;

// Clocks

/// The promises cover a server clock that runs slower than ours by up to one part in this many.
pub(crate) const CLOCK_DRIFT: u64 = 100;

/// How long the server keeps a permit beyond its lease. Redisson takes permits back by the clocks of
/// its own machines, which may be fast.
pub const PERMIT_MARGIN: Duration = Duration::from_secs(2);

// Queues of fair locks

/// How long a waiter keeps its place in the queue of a fair lock after it has asked. The place of a
/// program that has died is dropped then.
pub const PLACE_KEPT: Duration = Duration::from_secs(15);
/// A call names at most so many earlier owners of its waiter. One of them may have the waiter's place.
pub const FORMER_OWNERS: usize = 4;

/// How often a waiter asks for its place at least: three times before it runs out.
pub(crate) const PLACE_ASKED: Duration = Duration::from_secs(5);

/// A transient refusal is told when it has lasted for so long.
pub const REFUSAL_TOLD: Duration = Duration::from_secs(2);

/// A refusal that was not met for so long is over.
pub const REFUSAL_GAP: Duration = Duration::from_secs(10);

/// How many different refusals are watched at a time.
pub const REFUSALS: usize = 8;

// Crowds

/// A client leaves a permit of a plain semaphore to those in the crowd once in so many times.
pub(crate) const CROWD_ASKED: u64 = 8;

/// A waiter that left free permits to the first place of a crowd tries again after this time, because the client of
/// that place may have ended.
pub(crate) const CROWD_LEFT: Duration = Duration::from_millis(500);

/// The first one of a crowd is taken to listen for so long after it was told that it is. It asks again each
/// `recheck`, which is usually sooner.
pub(crate) const CROWD_FIRST: Duration = Duration::from_secs(30);

/// The places of a crowd go when nobody has asked for one for so long. Each one asks twice as often.
pub(crate) const CROWD_KEPT: Duration = Duration::from_secs(300);

/// A large crowd asks this often, on average, whether its first one has been woken in vain.
pub(crate) const CROWD_LOOK: Duration = Duration::from_millis(50);

/// A waiter in a crowd looks this much later than others do at most, however large the crowd is.
pub(crate) const CROWD_LOOK_LATEST: Duration = Duration::from_secs(100);

// Drivers: connections, channels, the end

/// The first and the longest pause between two attempts to connect.
pub const CONNECT_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_millis(500));

/// A connection that lasted this long counts as good: after its end the next attempt is made at
/// once.
pub const GOOD_CONNECTION: Duration = Duration::from_secs(1);

/// A connection that was silent for this long is pinged. Longer than the usual recheck of a waiter,
/// which covers a lost message just as well.
pub const PUBSUB_IDLE: Duration = Duration::from_secs(6);

/// How long the server may take to confirm a command.
pub const PUBSUB_CONFIRM: Duration = Duration::from_secs(2);

/// How long a connection stays when no channel is wanted.
pub const PUBSUB_LINGER: Duration = Duration::from_secs(60);

/// How long the channel of a lock stays subscribed after its last waiter has gone.
pub const CHANNEL_LINGER: Duration = Duration::from_millis(200);

/// After the last handle is gone, how long work that nobody waits for may go on.
pub const ORPHAN_LIMIT: Duration = Duration::from_secs(1);

/// How much longer it goes on for permits without leases that are to be given back.
pub const OWED_LIMIT: Duration = Duration::from_secs(30);

// Cluster

/// How many redirects a call follows before it fails with a transient error, to be tried again.
pub(crate) const CLUSTER_HOPS: u8 = 8;

/// How long the nodes may take to send the slot map.
pub(crate) const CLUSTER_MAP_LIMIT: Duration = Duration::from_secs(1);

/// How many nodes are asked for it at the same time.
pub(crate) const CLUSTER_MAP_NODES: usize = 3;

/// After every `CLUSTER_MAP_ROUNDS` maps that did not help, the pauses grow by their own length, up
/// to `CLUSTER_MAP_SLOWEST` times.
pub(crate) const CLUSTER_MAP_ROUNDS: u32 = 60;

pub(crate) const CLUSTER_MAP_SLOWEST: u32 = 10;

/// How long a connected node without slots is kept. A node that imports its first slots gets many
/// `ASK` redirects before the map shows it.
pub(crate) const CLUSTER_NODE_LINGER: Duration = Duration::from_secs(60);
