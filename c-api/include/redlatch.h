/* redlatch.h - one distributed lock over Redis, compatible with Redisson's RLock.
 *
 *   redlatch_client *client = NULL;
 *   redlatch_lock *lock = NULL;
 *   if (redlatch_client_open(NULL, NULL, &client) != REDLATCH_OK ||       // NULL: REDLATCH_URL
 *       redlatch_lock_new(client, "orders:42", NULL, &lock) != REDLATCH_OK ||
 *       redlatch_lock_acquire(lock, REDLATCH_THREAD, 2500, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
 *       fprintf(stderr, "%s\n", redlatch_last_error());
 *   else
 *       redlatch_lock_release(lock, REDLATCH_THREAD);   // after the work
 *   redlatch_lock_free(lock);
 *   redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
 *   redlatch_client_free(client);
 *
 * Results. A call returns REDLATCH_OK, which is 0, or the reason for its failure; redlatch_last_error()
 * has the text. Each function lists the other statuses that it can return, and when. Every function can
 * also return REDLATCH_INTERNAL. NULL is allowed only where it is said to be; elsewhere it is refused with
 * REDLATCH_INVALID_ARGUMENT, naming the parameter. Times are milliseconds. Nothing here prints, throws,
 * or ends the program.
 *
 * Statuses of the server. A call that needs the server fails with REDLATCH_UNAVAILABLE if the server cannot be
 * reached or does not answer in time, REDLATCH_AUTH if it refuses user, password or certificate,
 * REDLATCH_DENIED if its access rules forbid a command, REDLATCH_SERVER if it answers with another error,
 * REDLATCH_NAME_NOT_CLUSTERABLE if it is a cluster and the name does not suit it; with REDLATCH_CLOSED if
 * the client is closed, and REDLATCH_FORKED if it is the parent process's. Functions list them in one line.
 *
 * Words. A lock is held by an owner, not by a handle: all handles of one name on one client are the same lock.
 * The owner is the calling thread (REDLATCH_THREAD), or a number of the program's choice, for instance from
 * redlatch_owner_new(); equal numbers of two clients are two owners. An owner that acquires again what it
 * holds enters once more (unless the option reentrant says no): it has one level for each acquisition, and
 * the lock is free when each level is released. The kind is how the lock lies in Redis, chosen by the option
 * kind: reentrant is Redisson's lock; fair is its fair lock, which serves waiters in their order; the simple
 * kinds (simple, redis-py, redlock, redsync, redis-semaphore, article, adaptive) are a key with a value, the
 * token. redlatch_rw_lock_new(), redlatch_semaphore_new() and redlatch_multi_lock_new() choose theirs. A name
 * has one kind. A lease is how long the server keeps a hold that is not renewed. A fencing token is a number that grows with each
 * hold, for the resource to refuse late writers. A plain semaphore and a latch are numbers without owners
 * and leases; their handles are no locks.
 *
 * Lost. A hold can end without a release: its key was deleted, its lease ran out, the server was away for too
 * long. Then redlatch_lock_check() says REDLATCH_LOST, the function of redlatch_lock_on_lost() is called, and
 * an event REDLATCH_EVENT_LOST comes for a hold that began with redlatch_lock_acquire_start().
 * redlatch_last_lost_reason() says why. The owner keeps the lost levels until it has released each of them:
 * its releases, extensions and acquisitions of this name return REDLATCH_LOST until then, because code
 * further out may still rely on the lock. So release after REDLATCH_LOST as after the work, and do not
 * simply acquire again: that would fail for ever. One case needs no release: the fixed lease of an
 * acquisition (lease_ms, or the option lease) ran out; just acquire again.
 *
 * Ownership. An object that a ..._new() or ..._open() call stores is yours. Give it back once, with the ..._free()
 * call of the same name, when you begin no other call with it any more; calls under way may end later.
 * The order does not matter: the others keep their client alive. Strings that you pass are copied; strings that
 * you get belong to the library. close() releases and reports; free() does no I/O, so what is still held
 * ends with its lease, and permits of a plain semaphore stay taken.
 *
 * Threads. Every handle may be used from any thread, by several at once. To end one wait from another thread,
 * or from a signal handler, acquire with redlatch_lock_acquire_cancellable(); to end all of them, close the
 * client: they return REDLATCH_CLOSED. When a thread ends while it holds a lock as
 * REDLATCH_THREAD, the lock is not renewed any more and ends with its lease. The library's own threads
 * block all signals, and call only the functions registered with ..._on_lost() and ..._on_event(), which
 * must return: they must not throw, longjmp() out, or call pthread_exit().
 *
 * Green threads. Where a runtime moves work between threads, or runs several pieces of work on one in turn
 * (goroutines, virtual threads, fibers, coroutines), REDLATCH_THREAD is wrong: two of them would be one owner,
 * and one that has moved is no owner any more. Give each acquisition an owner of redlatch_owner_new(), and
 * release with it. The text of redlatch_last_error() is that of the thread: stay on the thread from the
 * call until the text is read (Go: runtime.LockOSThread). A call that waits blocks its thread.
 *
 * Signals. A signal does not end a wait. A signal handler may call redlatch_canceller_cancel(), which is
 * async-signal-safe, and nothing else.
 *
 * pthread_cancel(). No call here is a cancellation point. A thread that is cancelled in a call finishes the
 * call, and ends at its next cancellation point: call pthread_testcancel() where no lock is held, and release
 * in a pthread_cleanup_push() handler elsewhere. pthread_cancel() does not end a wait. To cancel a thread
 * that may wait, call pthread_cancel() and then redlatch_canceller_cancel(). Threads whose cancel type is
 * PTHREAD_CANCEL_ASYNCHRONOUS must not call anything here.
 *
 * Event loops. redlatch_client_new() and the functions that end in _start never wait for the server. Each
 * function that waits has such a form; that of redlatch_client_open() is redlatch_client_new(), that of
 * redlatch_lock_holder() is redlatch_lock_holders_start(). redlatch_client_next_event() tells what became of
 * a call, when the descriptor of redlatch_client_event_fd() is readable. The tag tells which call an event
 * belongs to; it can be used again once its event was taken.
 *
 * fork(). In the child, calls with the parent's handles fail with REDLATCH_FORKED; releasing, closing
 * and freeing them does nothing. A client that the child opens works. The parent notices nothing.
 *
 * At the end of the program the library does nothing: what is held ends with its lease. Close the client
 * to release at once. The library stays loaded after dlclose(). */

#ifndef REDLATCH_H
#define REDLATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REDLATCH_VERSION "0.1.0"
#define REDLATCH_VERSION_MAJOR 0
#define REDLATCH_VERSION_MINOR 1
#define REDLATCH_VERSION_PATCH 0
/** To compare: major * 10000 + minor * 100 + patch. */
#define REDLATCH_VERSION_NUMBER 100

#if defined(__GNUC__)
#define REDLATCH_MUST_CHECK __attribute__((warn_unused_result))
#else
#define REDLATCH_MUST_CHECK
#endif

/** The values of redlatch_status: numbers are never changed and never used again. */
enum {
    /** Success. */
    REDLATCH_OK = 0,
    /** The lock was not acquired within the wait; nothing stays behind in Redis. */
    REDLATCH_TIMEOUT = 1,
    /** The waiting call was cancelled; whatever it may have acquired is released. */
    REDLATCH_CANCELLED = 2,
    /** The caller does not hold this lock. */
    REDLATCH_NOT_OWNER = 3,
    /** The lock was held and can no longer be relied on; the lost reason says why. */
    REDLATCH_LOST = 4,
    /** Another kind of lock, or other data, lies at this name; nothing was changed. */
    REDLATCH_FOREIGN_KIND = 5,
    /** The caller would wait for itself; nothing was sent to Redis. */
    REDLATCH_WOULD_DEADLOCK = 6,
    /** An argument or option is not acceptable; nothing was sent to Redis. */
    REDLATCH_INVALID_ARGUMENT = 16,
    /** The client is closed. */
    REDLATCH_CLOSED = 17,
    /** The client belongs to the parent process; open a new client in this one. */
    REDLATCH_FORKED = 18,
    /** The server did not answer in time or cannot be reached. A wait that ends before any answer ends so too, however short it was: nobody knows whether others have the lock. */
    REDLATCH_UNAVAILABLE = 32,
    /** User name, password or certificate are refused: the server's or ours. */
    REDLATCH_AUTH = 33,
    /** The server's access rules (ACL) do not allow a command this lock needs. */
    REDLATCH_DENIED = 34,
    /** The server answered with an error. */
    REDLATCH_SERVER = 35,
    /** Fewer replicas than asked for acknowledged the lock; it was rolled back. */
    REDLATCH_NOT_REPLICATED = 36,
    /** The keys of this lock fall into different slots of a cluster. */
    REDLATCH_NAME_NOT_CLUSTERABLE = 37,
    /** A fault in redlatch itself; please report it. */
    REDLATCH_INTERNAL = 99
};

/** The values of redlatch_lost_reason. */
enum {
    /** The lease ended: it was fixed, or no renewal came in time. */
    REDLATCH_LOST_EXPIRED = 1,
    /** The key was deleted, evicted or flushed. */
    REDLATCH_LOST_DELETED = 2,
    /** Somebody else holds the name, or other data lies there. */
    REDLATCH_LOST_STOLEN = 3,
    /** The lock was force-released through this client. */
    REDLATCH_LOST_FORCED = 4,
    /** The server could not be reached until the deadline. */
    REDLATCH_LOST_UNREACHABLE = 5,
    /** The client was closed while it was held. */
    REDLATCH_LOST_CLOSED = 6
};

/* Options, for redlatch_options_set(): name, value, default, meaning. options.md among the docs tells more.
 *
 * Options of a client:
 *
 * connect_timeout: a time from 10 ms to 5 min; default: 5 s
 *     How long one attempt to connect may take, log-in included.
 *
 * recheck: a time from 100 ms to 1 h; default: 5 s
 *     The longest time between two tries of a waiter, should every wake-up be lost. Spread by a tenth.
 *
 * outage: a time from 0 ms to 1 h; default: 10 s
 *     How long a server that had been reached may be away before callers that acquire, release or close
 *     stop waiting for it.
 *
 * restart_delay: a time from 0 ms to 1 h; default: 30 s
 *     Quorum: how long a server has no vote after its start, because it may have lost its locks. At least
 *     the longest lease of all clients; 0 if the servers lose nothing (appendfsync always).
 *
 * handover_limit: a whole number from 0 to 1000000; default: 100
 *     How often in a row a release hands the lock to the next waiter of the same client; then others get a
 *     chance. 0: never.
 *
 * handover_time: a time from 0 ms to 1 h; default: 50 ms
 *     How long a client may go on handing the lock to its own waiters before others get a chance.
 *
 * close_limit: a time from 0 ms to 10 min; default: 5 s
 *     How long closing may take to release what is held; 0 leaves it to its lease.
 *
 * exit_limit: a time from 0 ms to 1 min; default: 1 s
 *     The same, when the program ends without closing (Python, Node.js); 0 leaves what is held to its
 *     lease. A signal may stop another thread inside malloc: then the process ends after this time, and
 *     what is held ends with its lease.
 *
 * tracking: true or false; default: true
 *     Ask the server to tell when the key of a hold changes, so that a loss is known in milliseconds.
 *
 * direct: true or false; default: true
 *     Make a call on the caller's thread, on one more connection, while no other caller uses the client.
 *     Not with TLS or a cluster.
 *
 * cluster_pubsub: auto, sharded, classic or both; default: auto
 *     How releases are published in a cluster: by shard where nodes can (auto), always by shard (sharded),
 *     to all nodes (classic), or both ways (both), for mixed fleets.
 *
 * client_name: 1 to 64 printable ASCII characters without spaces; default: redlatch
 *     The first part of the names of the connections in CLIENT LIST. Client id, language, process id and
 *     host follow.
 *
 * protocol: auto, resp2 or resp3; default: auto
 *     The protocol. With RESP2 a loss is noticed at the next renewal only. auto is RESP3 where the
 *     server knows it.
 *
 * keep_alive: a time from 1 s to 1 h; default: 5 s
 *     After how much silence TCP asks whether the server is still there. Not for Unix sockets.
 *
 * tls_ca: PEM text, or the path of a file of it; default: none: those of the system
 *     The certificates of the authorities that may have signed the server's certificate.
 *
 * tls_cert: PEM text, or the path of a file of it; default: none
 *     The client's certificate, for servers that ask for one, with the intermediate certificates up to its
 *     authority.
 *
 * tls_key: PEM text, or the path of a file of it; default: none
 *     The private key of tls_cert.
 *
 * events: a whole number from 0 to 1000000; default: 1024
 *     How many events are kept for a reader; 0 keeps none.
 *
 * debug_events: true or false; default: false
 *     Keep events about single locks as well: acquired, waiting, released.
 *
 * Options of a lock; a client takes them too, as defaults for its locks:
 *
 * kind: reentrant, simple, redis-py, redlock, redsync, redis-semaphore, article, adaptive, read, write, semaphore or fair; default: reentrant
 *     The wire protocol: that of Redisson's lock, of the simple lock, or of a program that has one.
 *
 * reentrant: true or false; default: none: true for the kinds reentrant, fair, adaptive, read and write, with a key that the caller names; else false
 *     Whether a caller that holds the lock enters once more, instead of waiting for itself.
 *
 * lease: a time from 100 ms to 24 h; default: none: the watchdog renews
 *     A fixed lease: the lock ends by itself after this time and is never renewed.
 *
 * watchdog_lease: a time from 100 ms to 24 h; default: 30 s
 *     The lease that the watchdog renews, every third of it, for as long as the lock is held.
 *
 * fencing: true or false; default: false
 *     Draw a fencing token with every first acquisition: a number that only grows, also together with
 *     Redisson's RFencedLock. Its counter stays in Redis for ever.
 *
 * fencing_expires: true or false; default: false
 *     Draw fencing tokens from a counter that expires 25 hours after its last use, unless it has no expiry
 *     already. Not for names that Java locks with RFencedLock: its tokens would begin at 1 again.
 *     Implies fencing.
 *
 * max_hold: a time from 100 ms to 365 days; default: none
 *     The longest time a hold may last, renewed or not.
 *
 * replicas: a whole number from 0 to 100; default: 0
 *     How many replicas must acknowledge an acquisition (WAIT); with fewer it is rolled back and fails.
 *
 * linger: true or false; default: false
 *     The lock outlives the client and the program: only a release or its lease ends it. For a job once an
 *     hour, say.
 *
 * writer_preference: a time from 0 ms to 1 min; default: 0 ms
 *     Read-write lock: how long new readers let a waiting writer go first, in all clients that have this
 *     option. 0: not at all.
 *
 * limit: a whole number from 0 to 2147483647; default: 0: others set it
 *     How many permits a semaphore gets, if it has none yet.
 *
 * fair: true or false; default: false
 *     Serve the callers of a semaphore that have this option in their order, over all programs. Redisson
 *     and callers without it can overtake them. A lock has the kind fair for that.
 *
 * The options of an acquisition (wait, lease, token, permits) are parameters in C; token and permits are set by
 * redlatch_lock_set_token() and redlatch_semaphore_set_take(). */

/** For redlatch_client_close(): as long as the option close_limit says. */
#define REDLATCH_CLOSE_LIMIT (-1)

/** For following single locks; only with the option debug_events. */
#define REDLATCH_LEVEL_DEBUG 0

/** Connections coming and going. */
#define REDLATCH_LEVEL_INFO 1

/** Something a person should look at. */
#define REDLATCH_LEVEL_WARN 2

/** wait_ms: as long as it takes. */
#define REDLATCH_FOREVER (-1)

/** lease_ms: as the lock's options say, by default renewed for as long as it is held. */
#define REDLATCH_LOCK_LEASE 0

/**
 * owner: the calling thread. Any other number is an owner of the program's own choice, for work
 * that changes threads; it re-enters wherever it comes from. redlatch_owner_new() gives one.
 */
#define REDLATCH_THREAD 0

/** No event waits. */
#define REDLATCH_EVENT_NONE 0

/**
 * redlatch_lock_acquire_start() or redlatch_plain_semaphore_acquire_start() has ended: result says
 * how.
 */
#define REDLATCH_EVENT_ACQUIRE 1

/**
 * redlatch_lock_release_start() or redlatch_plain_semaphore_release_start() has ended: result says
 * how.
 */
#define REDLATCH_EVENT_RELEASE 2

/** A hold that redlatch_lock_acquire_start() began was lost: result is REDLATCH_LOST. */
#define REDLATCH_EVENT_LOST 3

/** redlatch_lock_extend_start() has ended: result says how. */
#define REDLATCH_EVENT_EXTEND 4

/** redlatch_lock_force_release_start() has ended; value is 1 if there was a lock, else 0. */
#define REDLATCH_EVENT_FORCE_RELEASE 5

/** redlatch_lock_is_locked_start() has ended; value is 1 if somebody holds the lock, else 0. */
#define REDLATCH_EVENT_IS_LOCKED 6

/** redlatch_lock_holders_start() or redlatch_lock_waiters_start() has ended; value is their number. */
#define REDLATCH_EVENT_HOLDERS 7

/** redlatch_client_ready_start() has ended: result says how. */
#define REDLATCH_EVENT_READY 8

/** redlatch_client_close_start() has ended: result says how. */
#define REDLATCH_EVENT_CLOSE 9

/** redlatch_lock_release_token_start() has ended: result says how. */
#define REDLATCH_EVENT_RELEASE_TOKEN 10

/** redlatch_lock_extend_token_start() has ended: result says how. */
#define REDLATCH_EVENT_EXTEND_TOKEN 11

/**
 * redlatch_semaphore_permits_start() or redlatch_semaphore_set_permits_start() has ended; value is
 * how many permits are free: cast it to int64_t.
 */
#define REDLATCH_EVENT_PERMITS 12

/** redlatch_latch_wait_start() has ended: result says how. */
#define REDLATCH_EVENT_OPEN 13

/**
 * redlatch_plain_semaphore_try_set_permits_start() or redlatch_latch_try_set_count_start() has
 * ended; value is 1 if it had no number before, else 0.
 */
#define REDLATCH_EVENT_SET 14

/**
 * redlatch_plain_semaphore_add_permits_start(), redlatch_plain_semaphore_drain_start(),
 * redlatch_plain_semaphore_available_start(), redlatch_latch_count_down_start() or
 * redlatch_latch_count_start() has ended; value is the number: cast it to int64_t.
 */
#define REDLATCH_EVENT_NUMBER 15

/**
 * Ends waits from another thread. One canceller serves any number of waits, at the same time too.
 * It is used once: after redlatch_canceller_cancel() each wait with it ends at once.
 */
typedef struct redlatch_canceller redlatch_canceller;

/**
 * A connection to Redis under one identity, with a thread of its own that renews what is held. May
 * be used from any thread, by several at once.
 */
typedef struct redlatch_client redlatch_client;

/**
 * A count-down latch: the same as Redisson's RCountDownLatch with this name. May be used from any
 * thread, by several at once.
 */
typedef struct redlatch_latch redlatch_latch;

/** A name on a client. May be used from any thread, by several at once. */
typedef struct redlatch_lock redlatch_lock;

/**
 * A set of options, each a name and a value. May be used from any thread, by several at once, and
 * for any number of clients and locks; later changes do not reach these.
 */
typedef struct redlatch_options redlatch_options;

/**
 * A semaphore without leases: the same as Redisson's RSemaphore with this name. Permits have no
 * owner: any program gives back what any other took, and those of a program that dies never come
 * back. May be used from any thread, by several at once.
 */
typedef struct redlatch_plain_semaphore redlatch_plain_semaphore;

/** The result of a call: REDLATCH_OK or the number of an error. */
typedef int32_t redlatch_status;

/**
 * Called for what happens, for a log: level is one of REDLATCH_LEVEL_DEBUG and the like, kind a
 * word, lock the name of the lock or NULL, text a sentence. The strings are valid during the call
 * only. Unprintable characters are escaped in them as in the texts of errors: a newline in a name
 * is the two characters \n, and ESC is \u{1b}. The function should return soon: while it runs, no
 * other function of this client is called, and of the events only the newest are kept (option
 * events). Locks are renewed and calls are answered all the same.
 */
typedef void (*redlatch_event_fn)(void *user,
                                  int32_t level,
                                  const char *kind,
                                  const char *lock,
                                  const char *text);

/** A holder of a lock, as Redis has it. */
typedef struct {
  /**
   * A text that only equality makes sense of.
   */
  const char *owner;
  /**
   * Its hold count.
   */
  uint32_t count;
  /**
   * The process id, 0 if the process is not known. Containers number their processes separately.
   */
  uint32_t pid;
  /**
   * How long the lock lives without a renewal, -1 if it has no expiry.
   */
  int64_t remaining_ms;
  /**
   * The option client_name of its client; NULL if the process is not known, like the two below:
   * for a holder that is not of redlatch (Redisson names no process), one with a token of its
   * own, one that is no longer connected, and where the server refuses CLIENT LIST.
   */
  const char *client_name;
  /**
   * "c", "python", "node", "rust" or "cli".
   */
  const char *language;
  /**
   * The name of the machine or container, "" if it cannot be told.
   */
  const char *host;
} redlatch_holder;

/** Called for each holder of a lock. Its texts are valid during the call. */
typedef void (*redlatch_holder_fn)(void *user, const redlatch_holder *holder);

/** Why a hold was lost: one of REDLATCH_LOST_EXPIRED and the like. */
typedef int32_t redlatch_lost_reason;

/**
 * Called once when owner (as it was given to acquire) has lost the lock, with the fencing token of
 * the hold (0: none) and the reason. Called from a thread of the library, one call at a time; it
 * may call anything here, but there REDLATCH_THREAD means that thread. It should return soon:
 * while it runs, no other function of this client is called. Locks are renewed and calls are
 * answered all the same.
 */
typedef void (*redlatch_lost_fn)(void *user,
                                 uint64_t owner,
                                 uint64_t token,
                                 redlatch_lost_reason reason);

/**
 * Called with the numbers of permits of a semaphore: those that are free, and all, taken ones
 * included, as redlatch_semaphore_permits() stores them.
 */
typedef void (*redlatch_permits_fn)(void *user, int64_t available, int64_t limit);

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Makes an empty set of options. Free it with redlatch_options_free().
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
 */
redlatch_status redlatch_options_new(redlatch_options **options);

/**
 * Sets an option. The table above lists the names and what they mean. Times are "250ms", "2.5s",
 * "10m" or "1h", a number alone is milliseconds; flags are "true" or "false". NULL as value stands
 * for the default. An option of a lock that is given to a client is the default of its locks.
 *
 *     redlatch_options *options = NULL;
 *     redlatch_client *client = NULL;
 *     if (redlatch_options_new(&options) != REDLATCH_OK ||
 *         redlatch_options_set(options, "watchdog_lease", "10s") != REDLATCH_OK ||
 *         redlatch_client_open(NULL, options, &client) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *     redlatch_options_free(options);
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: there is no option of this name, the value is not of its type or
 *   out of its bounds, an argument is NULL (but value), or not UTF-8.
 */
redlatch_status redlatch_options_set(redlatch_options *options,
                                     const char *name,
                                     const char *value);

/**
 * The names of all options there are, one for each index from 0; NULL after the last. The
 * options of an acquisition, which are parameters in C, come last. Static.
 */
const char *redlatch_options_name(size_t index);

/** Frees a set of options; NULL is allowed. */
void redlatch_options_free(redlatch_options *options);

/**
 * Opens a client and waits until the server is reached. url is
 * "redis://[user:password@]host[:port][/database]" or "unix:///path"; NULL: the environment
 * variable REDLATCH_URL. options may be NULL. Close the client and free it with
 * redlatch_client_free().
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: url cannot be read, there is none in the environment, it does not
 *   fit the server (database, Sentinel, Cluster), options contradict each other, or client is
 *   NULL.
 * - REDLATCH_UNAVAILABLE: the server cannot be reached, or does not answer within the option
 *   connect_timeout.
 * - REDLATCH_AUTH: the server refuses user, password or certificate, or its certificate is
 *   refused.
 * - REDLATCH_DENIED: its access rules forbid what connecting needs.
 * - REDLATCH_SERVER: it answers with an error, for instance while it loads its data.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_client_open(const char *url,
                                     const redlatch_options *options,
                                     redlatch_client **client);

/**
 * Makes a client that connects with its first call: does no I/O, so that a program can start before
 * its server. Until the server was reached once, calls that need it fail with
 * REDLATCH_UNAVAILABLE after one attempt to connect, and later ones try again.
 * redlatch_client_ready_start() connects ahead. Arguments, closing and freeing are as for
 * redlatch_client_open().
 *
 *     redlatch_client *client = NULL; // the server may start later
 *     if (redlatch_client_new("redis://127.0.0.1:6379", NULL, &client) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: url cannot be read, there is none in the environment, options
 *   contradict each other, or client is NULL.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_client_new(const char *url,
                                    const redlatch_options *options,
                                    redlatch_client **client);

/**
 * Connects, if the client has not yet, and returns at once: an event REDLATCH_EVENT_READY with this
 * tag comes when the server was reached, or could not be. For a client of redlatch_client_new(),
 * which connects with its first call in any case.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or client is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_client_ready_start(redlatch_client *client, uint64_t tag);

/**
 * Releases all that is held, ends every call that waits (REDLATCH_CLOSED) and stops. Holders are
 * told that they lost their lock. Takes wait_ms at most, or as long as REDLATCH_CLOSE_LIMIT
 * allows; 0 leaves everything to its lease. Fails with REDLATCH_UNAVAILABLE, naming the locks, if
 * some could not be released; the client is closed all the same. Closing again is no error, and
 * releases nothing more. After fork() the child may call it for the parent's client; it does
 * nothing.
 *
 *     if (redlatch_client_close(client, REDLATCH_CLOSE_LIMIT) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error()); // these locks end with their leases
 *     redlatch_client_free(client);
 *
 * Statuses:
 * - REDLATCH_UNAVAILABLE: some locks could not be released in time; the text names them.
 * - REDLATCH_INVALID_ARGUMENT: client is NULL, or wait_ms is negative or above 10 minutes.
 */
redlatch_status redlatch_client_close(redlatch_client *client, int64_t wait_ms);

/**
 * Begins what redlatch_client_close() does and returns at once: an event REDLATCH_EVENT_CLOSE with
 * this tag comes, after those of the calls that waited. Its result is REDLATCH_UNAVAILABLE, and the
 * text names the locks, if some could not be released. The thread of the client may end a moment
 * later.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: wait_ms is negative or above 10 minutes, an operation with this tag
 *   is under way, or client is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_client_close_start(redlatch_client *client, int64_t wait_ms, uint64_t tag);

/**
 * Frees a client; NULL is allowed. Does no I/O: what is still held ends with its lease. Locks of
 * this client stay usable until they are freed too, but nothing calls the program's event function
 * any more.
 */
void redlatch_client_free(redlatch_client *client);

/**
 * Registers told, to be called with user for everything that happens, from a thread of the
 * library; NULL stops it. The function may call anything here. When this returns, the function
 * before is not running and will not be called again, unless it is that function that calls this.
 *
 *     static void told(void *file, int32_t level, const char *kind, const char *lock, const char *text)
 *     {
 *         if (level >= REDLATCH_LEVEL_WARN)
 *             fprintf((FILE *)file, "%s %s: %s\n", kind, lock != NULL ? lock : "", text);
 *     }
 *
 *     if (redlatch_client_on_event(client, told, stderr) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: client is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_CLOSED: the client was closed before it was used.
 */
redlatch_status redlatch_client_on_event(redlatch_client *client,
                                         redlatch_event_fn told,
                                         void *user);

/**
 * A counter of the client by its name: "acquired", "lost", "renewed", "holds", ...; an unknown
 * name is refused with the list of all.
 *
 *     uint64_t lost = 0;
 *     if (redlatch_client_stats(client, "lost", &lost) == REDLATCH_OK)
 *         printf("%llu locks were lost\n", (unsigned long long)lost);
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: there is no such counter, or an argument is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 */
redlatch_status redlatch_client_stats(redlatch_client *client, const char *name, uint64_t *count);

/** The names of all counters there are, one for each index from 0; NULL after the last. Static. */
const char *redlatch_client_stats_name(size_t index);

/**
 * A descriptor that is readable while events wait for redlatch_client_next_event(): it is
 * level-triggered. Under edge triggering (EPOLLET) take all events each time, until
 * REDLATCH_EVENT_NONE: a new one makes no edge while others wait. Poll it; never read, write or
 * close it. It is the same one every time and is valid until the client is freed.
 * On Windows it is a socket for select() and WSAPoll(): cast it to SOCKET.
 *
 *     struct pollfd events = {-1, POLLIN, 0};
 *     if (redlatch_client_event_fd(client, &events.fd) == REDLATCH_OK && poll(&events, 1, 100) == 1)
 *         puts("redlatch_client_next_event() has something to tell");
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_client_event_fd(redlatch_client *client,
                                         int *fd);

/**
 * Makes a canceller, which keeps one file descriptor. Free it with redlatch_canceller_free().
 *
 *     redlatch_canceller *canceller = NULL; // a signal handler may call redlatch_canceller_cancel(canceller)
 *     if (redlatch_canceller_new(&canceller) != REDLATCH_OK ||
 *         redlatch_lock_acquire_cancellable(lock, REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE,
 *                                           canceller, NULL) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
 * - REDLATCH_UNAVAILABLE: there is no descriptor left.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_canceller_new(redlatch_canceller **canceller);

/** Whether redlatch_canceller_cancel() was called: for work in steps that is to stop as well. */
bool redlatch_canceller_is_cancelled(const redlatch_canceller *canceller);

/**
 * Frees a canceller; NULL is allowed. Waits that use it go on, and nothing can cancel them any
 * more.
 */
void redlatch_canceller_free(redlatch_canceller *canceller);

/**
 * Ends all waits with this canceller, now and later: they return REDLATCH_CANCELLED, unless they
 * have their lock already. NULL is allowed. Any thread may call it, and a signal handler too: it
 * takes no lock, allocates nothing, does not block and leaves errno as it is. In a process that
 * was forked after redlatch_canceller_new() it does nothing.
 */
void redlatch_canceller_cancel(const redlatch_canceller *canceller);

/**
 * Makes a lock; does no I/O. name is 1 to 1,024 bytes of UTF-8. options may be NULL; they are
 * added to those that the client was opened with. Free it with redlatch_lock_free().
 *
 *     redlatch_lock *order = NULL;
 *     if (redlatch_lock_new(client, "order:42", NULL, &order) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
 *   lock or contradicts another, or an argument is NULL (but options).
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_new(redlatch_client *client,
                                  const char *name,
                                  const redlatch_options *options,
                                  redlatch_lock **lock);

/**
 * As above, for a name of length bytes. The name needs no final NUL, and may contain some.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
 *   lock or contradicts another, or an argument is NULL (but options).
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_new_n(redlatch_client *client,
                                    const char *name,
                                    size_t length,
                                    const redlatch_options *options,
                                    redlatch_lock **lock);

/**
 * Makes both sides of a read-write lock: many owners may have *read at a time, or one has *write.
 * It is the same lock as the RReadWriteLock of Redisson with this name. Each side is a lock, to be
 * freed with redlatch_lock_free(). name and options are as for redlatch_lock_new(); the option kind
 * is refused, unless it is the client's or the default; fencing is for the writer. Does no I/O.
 *
 * An owner that has the write side may acquire the read side too, and keep it when it releases the
 * write side. The other way round it would wait for itself: REDLATCH_WOULD_DEADLOCK.
 *
 *     redlatch_lock *read = NULL, *write = NULL;
 *     if (redlatch_rw_lock_new(client, "config", NULL, &read, &write) != REDLATCH_OK ||
 *         redlatch_lock_acquire(read, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *     else
 *         redlatch_lock_release(read, REDLATCH_THREAD); // after reading
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
 *   lock or contradicts another, or an argument is NULL (but options).
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_rw_lock_new(redlatch_client *client,
                                     const char *name,
                                     const redlatch_options *options,
                                     redlatch_lock **read,
                                     redlatch_lock **write);

/**
 * As above, for a name of length bytes. The name needs no final NUL, and may contain some.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
 *   lock or contradicts another, or an argument is NULL (but options).
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_rw_lock_new_n(redlatch_client *client,
                                       const char *name,
                                       size_t length,
                                       const redlatch_options *options,
                                       redlatch_lock **read,
                                       redlatch_lock **write);

/**
 * Makes a multi lock of count locks of this client: an owner has all of them, or none. They may be of
 * any kind, in any order; each name once. A semaphore gives one permit. The multi lock keeps what it needs
 * of them, so each may be freed before it. It is a lock for all functions here, and is freed with
 * redlatch_lock_free(). Does no I/O.
 *
 * Every client waits for names in the same order, so no two callers wait for each other. While it
 * waits, it keeps the names before the one that it waits for. The loss of one is the loss of the whole;
 * the others stay held until the release. Its fencing token is 0: each lock has the owner's.
 *
 * It has no key of its own: what asks Redis about a lock (redlatch_lock_is_locked(),
 * redlatch_lock_holders(), redlatch_lock_waiters(), redlatch_lock_force_release()) or takes a token is
 * refused with REDLATCH_INVALID_ARGUMENT. Ask each of its locks.
 *
 *     redlatch_lock *accounts[2] = {NULL, NULL}, *both = NULL;
 *     if (redlatch_lock_new(client, "account:1", NULL, &accounts[0]) != REDLATCH_OK ||
 *         redlatch_lock_new(client, "account:2", NULL, &accounts[1]) != REDLATCH_OK ||
 *         redlatch_multi_lock_new(client, accounts, 2, &both) != REDLATCH_OK ||
 *         redlatch_lock_acquire(both, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *     else
 *         redlatch_lock_release(both, REDLATCH_THREAD); // after the work
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: count is 0, a name is given twice, a lock is of another client, or an
 *   argument or one of the locks is NULL.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_multi_lock_new(redlatch_client *client,
                                        redlatch_lock *const *locks,
                                        size_t count,
                                        redlatch_lock **lock);

/**
 * Frees a lock; NULL is allowed. Does no I/O. A hold through it is not released but
 * not renewed any more either, so that it ends with its lease; an event warns. An operation on it
 * is cancelled and gives no event. When this returns, no call of its lost function is running,
 * unless that function is the caller.
 */
void redlatch_lock_free(redlatch_lock *lock);

/**
 * Holds the lock for owner; if owner holds it already, once more. wait_ms 0 tries once,
 * REDLATCH_FOREVER waits as long as it takes; REDLATCH_TIMEOUT leaves nothing behind. lease_ms is
 * REDLATCH_LOCK_LEASE or a lease that is never renewed. *token, unless token is NULL, is the
 * fencing token, 0 without the option fencing. Give back every level with redlatch_lock_release().
 *
 *     redlatch_status status = redlatch_lock_acquire(lock, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL);
 *     if (status == REDLATCH_OK)
 *         redlatch_lock_release(lock, REDLATCH_THREAD); // after the work
 *     else if (status == REDLATCH_TIMEOUT)
 *         puts("others have had it for five seconds");
 *     else
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_TIMEOUT: wait_ms is over, and others have the lock.
 * - REDLATCH_LOST: owner lost this lock and has not released each level of it ("Lost" at the top).
 *   Trying again does not help; redlatch_lock_release() does.
 * - REDLATCH_WOULD_DEADLOCK: owner has the read side and asks for the write side.
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
 * - REDLATCH_NOT_REPLICATED: with the option replicas, too few of them acknowledged.
 * - REDLATCH_INVALID_ARGUMENT: wait_ms or lease_ms is out of bounds, or lock is NULL.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_acquire(redlatch_lock *lock,
                                      uint64_t owner,
                                      int64_t wait_ms,
                                      int64_t lease_ms,
                                      uint64_t *token);

/**
 * The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
 * leaves nothing behind, when canceller is cancelled before the lock is acquired. canceller may be
 * NULL.
 *
 * Statuses:
 * - REDLATCH_CANCELLED: canceller was cancelled.
 * - Those of redlatch_lock_acquire(): REDLATCH_TIMEOUT, REDLATCH_LOST, REDLATCH_WOULD_DEADLOCK,
 *   REDLATCH_FOREIGN_KIND, REDLATCH_NOT_REPLICATED, REDLATCH_INVALID_ARGUMENT, REDLATCH_CLOSED,
 *   REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED, REDLATCH_SERVER,
 *   REDLATCH_NAME_NOT_CLUSTERABLE.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_acquire_cancellable(redlatch_lock *lock,
                                                  uint64_t owner,
                                                  int64_t wait_ms,
                                                  int64_t lease_ms,
                                                  redlatch_canceller *canceller,
                                                  uint64_t *token);

/**
 * Begins what redlatch_lock_acquire() does and returns at once: an event REDLATCH_EVENT_ACQUIRE
 * with this tag comes, exactly one unless it is cancelled. The lock counts as held, and owner can
 * release it, once that event is taken.
 *
 *     uint64_t owner = redlatch_owner_new(); // and the tag, by which the event is known
 *     if (redlatch_lock_acquire_start(lock, owner, 5000, REDLATCH_LOCK_LEASE, owner) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: wait_ms or lease_ms is out of bounds, an operation with this tag is
 *   under way, or lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_acquire_start(redlatch_lock *lock,
                                            uint64_t owner,
                                            int64_t wait_ms,
                                            int64_t lease_ms,
                                            uint64_t tag);

/**
 * Cancels what redlatch_lock_acquire_start() began under this tag. cancelled may be NULL. *cancelled true: no event comes
 * and nothing is held. false: it had ended before, and its event tells how; if it was granted,
 * release it.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 */
redlatch_status redlatch_lock_acquire_cancel(redlatch_lock *lock,
                                             uint64_t tag,
                                             bool *cancelled);

/**
 * The value that a simple lock's key gets when it is acquired through this handle from now on, in
 * place of a fresh one; NULL: a fresh one. Give each attempt a token of its own, in every process.
 * A program that knows it can release and extend the lock.
 *
 *     redlatch_options *options = NULL;
 *     redlatch_lock *job = NULL; // another program calls redlatch_lock_adopt(job, owner, "request 7", ...)
 *     if (redlatch_options_new(&options) != REDLATCH_OK ||
 *         redlatch_options_set(options, "kind", "simple") != REDLATCH_OK ||
 *         redlatch_lock_new(client, "job:42", options, &job) != REDLATCH_OK ||
 *         redlatch_lock_set_token(job, "request 7") != REDLATCH_OK ||
 *         redlatch_lock_acquire(job, REDLATCH_THREAD, 5000, 60000, NULL) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *     redlatch_options_free(options);
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: locks of this kind have no token (reentrant, and both sides of a
 *   read-write lock), token is not 1 to 512 bytes of UTF-8, or lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 */
redlatch_status redlatch_lock_set_token(redlatch_lock *lock,
                                        const char *token);

/**
 * Gives back the newest level of owner. After fork() the child may call it for the
 * parent's hold; it does nothing.
 *
 * Statuses:
 * - REDLATCH_LOST: the lock was lost before; the level is given back all the same.
 * - REDLATCH_NOT_OWNER: owner does not hold the lock.
 * - REDLATCH_UNAVAILABLE: the server was out of reach for as long as the option outage says; the
 *   lock ends with its lease.
 * - REDLATCH_CLOSED: the client is closed; closing has released the lock, or it ends with its
 *   lease.
 * - REDLATCH_AUTH, REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE:
 *   "Statuses of the server" at the top; the lock ends with its lease.
 * - REDLATCH_INVALID_ARGUMENT: lock is NULL.
 */
redlatch_status redlatch_lock_release(redlatch_lock *lock, uint64_t owner);

/**
 * Begins what redlatch_lock_release() does and returns at once: an event REDLATCH_EVENT_RELEASE
 * with this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_release_start(redlatch_lock *lock, uint64_t owner, uint64_t tag);

/**
 * Makes the lock live at least lease_ms from now; never shortens it, and does not change whether
 * it is renewed.
 *
 * Statuses:
 * - REDLATCH_LOST: the lock was lost before.
 * - REDLATCH_NOT_OWNER: owner does not hold the lock.
 * - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, or lock is NULL.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_extend(redlatch_lock *lock, uint64_t owner, int64_t lease_ms);

/**
 * Begins what redlatch_lock_extend() does and returns at once: an event REDLATCH_EVENT_EXTEND with
 * this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, an operation with this tag is
 *   under way, or lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_extend_start(redlatch_lock *lock,
                                           uint64_t owner,
                                           int64_t lease_ms,
                                           uint64_t tag);

/**
 * Frees the lock if token is its value, in whatever process it was acquired: for work that is
 * passed on with its lock. Simple kinds only.
 *
 * Statuses:
 * - REDLATCH_NOT_OWNER: the lock is free, or has another value.
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
 * - REDLATCH_INVALID_ARGUMENT: locks of this kind have no token, token is not 1 to 512 bytes of
 *   UTF-8, or an argument is NULL.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_release_token(redlatch_lock *lock, const char *token);

/**
 * Begins what redlatch_lock_release_token() does and returns at once: an event
 * REDLATCH_EVENT_RELEASE_TOKEN with this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, token is not UTF-8, or an
 *   argument is NULL. The event says that locks of this kind have no token.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_release_token_start(redlatch_lock *lock,
                                                  const char *token,
                                                  uint64_t tag);

/**
 * Takes over the lock if value is its value, whichever process acquired it: owner holds it then, as
 * after redlatch_lock_acquire(). The value is worth nothing any more: whoever acquired with it can
 * neither release nor extend the lock, and is told that it is lost. Simple kinds only. lease_ms is
 * REDLATCH_LOCK_LEASE or a lease that is never renewed. *token, unless token is NULL, is the fencing
 * token, 0 without the option fencing.
 *
 * Statuses:
 * - REDLATCH_NOT_OWNER: the lock is free, or has another value.
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
 * - REDLATCH_NOT_REPLICATED: with the option replicas, too few of them acknowledged.
 * - REDLATCH_INVALID_ARGUMENT: owner has the lock already, lease_ms is out of bounds, or as for
 *   redlatch_lock_release_token().
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_adopt(redlatch_lock *lock,
                                    uint64_t owner,
                                    const char *value,
                                    int64_t lease_ms,
                                    uint64_t *token);

/**
 * Begins what redlatch_lock_adopt() does and returns at once: an event REDLATCH_EVENT_ACQUIRE with
 * this tag comes, as after redlatch_lock_acquire_start(), which redlatch_lock_acquire_cancel()
 * cancels too.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: lease_ms is out of bounds, value is no UTF-8, an operation with this
 *   tag is under way, or an argument is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_adopt_start(redlatch_lock *lock,
                                          uint64_t owner,
                                          const char *value,
                                          int64_t lease_ms,
                                          uint64_t tag);

/**
 * Makes the lock live at least lease_ms from now if token is its value; as
 * redlatch_lock_release_token.
 *
 * Statuses:
 * - REDLATCH_NOT_OWNER: the lock is free, or has another value.
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
 * - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, or as for
 *   redlatch_lock_release_token().
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_extend_token(redlatch_lock *lock,
                                           const char *token,
                                           int64_t lease_ms);

/**
 * Begins what redlatch_lock_extend_token() does and returns at once: an event
 * REDLATCH_EVENT_EXTEND_TOKEN with this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, or as for
 *   redlatch_lock_release_token_start().
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_extend_token_start(redlatch_lock *lock,
                                                 const char *token,
                                                 int64_t lease_ms,
                                                 uint64_t tag);

/**
 * Deletes the lock whoever holds it, and wakes who waits. *deleted, unless deleted is NULL:
 * whether there was one.
 *
 *     bool deleted = false;
 *     if (redlatch_lock_force_release(lock, &deleted) == REDLATCH_OK && deleted)
 *         puts("somebody held it");
 *
 * Statuses:
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name; it stays.
 * - REDLATCH_INVALID_ARGUMENT: lock is NULL.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_force_release(redlatch_lock *lock, bool *deleted);

/**
 * Begins what redlatch_lock_force_release() does and returns at once: an event
 * REDLATCH_EVENT_FORCE_RELEASE with this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_force_release_start(redlatch_lock *lock, uint64_t tag);

/**
 * Whether anybody holds the lock now; asks Redis.
 *
 * Statuses:
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
 * - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_is_locked(redlatch_lock *lock, bool *locked);

/**
 * Begins what redlatch_lock_is_locked() does and returns at once: an event
 * REDLATCH_EVENT_IS_LOCKED with this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_is_locked_start(redlatch_lock *lock, uint64_t tag);

/**
 * Asks Redis for the holder of the lock, one of them if it is a read lock. owner receives a text
 * that only equality makes sense of, "" if the lock is free; size is the size of that buffer. A
 * text that does not fit with its final NUL is refused, not cut: 64 bytes are enough for holders
 * of the kind reentrant, 513 for tokens, and redlatch_lock_holders() needs no buffer. *count is the hold count,
 * *remaining_ms how long the lock lives without a renewal, -1 if it has no expiry. Each of the
 * three may be NULL.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the text does not fit into size bytes, or lock is NULL.
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_holder(redlatch_lock *lock,
                                     char *owner,
                                     size_t size,
                                     uint32_t *count,
                                     int64_t *remaining_ms);

/**
 * Asks Redis for all holders of the lock (of a read lock there may be several), and calls function
 * with user for each, before it returns and on this thread. Their processes come from CLIENT LIST,
 * which takes the server about a microsecond for each of its connections.
 *
 *     static void show(void *file, const redlatch_holder *holder)
 *     {
 *         fprintf((FILE *)file, "process %u on %s\n", (unsigned)holder->pid, holder->host != NULL ? holder->host : "?");
 *     }
 *
 *     if (redlatch_lock_holders(lock, show, stdout) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
 * - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_holders(redlatch_lock *lock,
                                      redlatch_holder_fn function,
                                      void *user);

/**
 * Begins what redlatch_lock_holders() does and returns at once: an event REDLATCH_EVENT_HOLDERS
 * with this tag comes. redlatch_client_next_event() calls function with user for each holder
 * before it returns that event.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock or function is
 *   NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_holders_start(redlatch_lock *lock,
                                            redlatch_holder_fn function,
                                            void *user,
                                            uint64_t tag);

/**
 * Asks Redis for the queue of a fair lock or semaphore, and calls function with user for each waiter, in
 * the order in which they are served, those of other programs included; as redlatch_lock_holders() does.
 * count is how many permits it wants, 0 of a lock; remaining_ms is how long the place is kept if its
 * waiter does not ask again.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: Redis keeps no queue for a lock of this kind, or a semaphore without fair; or
 *   an argument is NULL.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_lock_waiters(redlatch_lock *lock,
                                      redlatch_holder_fn function,
                                      void *user);

/**
 * Begins what redlatch_lock_waiters() does and returns at once: an event REDLATCH_EVENT_HOLDERS
 * with this tag comes, as for redlatch_lock_holders_start().
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock or function is
 *   NULL. The event says that the lock is not of the kind fair.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_lock_waiters_start(redlatch_lock *lock,
                                            redlatch_holder_fn function,
                                            void *user,
                                            uint64_t tag);

/**
 * Whether owner can rely on the lock now. Like the following ones it answers at once, from a clock
 * that counts suspend, and has false or 0 for a failure.
 */
bool redlatch_lock_is_held(const redlatch_lock *lock, uint64_t owner);

/**
 * The same with the reason.
 *
 *     if (redlatch_lock_check(lock, REDLATCH_THREAD) == REDLATCH_LOST) // before each write that needs the lock
 *         fprintf(stderr, "%s\n", redlatch_lost_reason_name(redlatch_last_lost_reason()));
 *
 * Statuses:
 * - REDLATCH_LOST: owner has lost the lock; redlatch_last_lost_reason() says why.
 * - REDLATCH_NOT_OWNER: owner does not hold the lock.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_INVALID_ARGUMENT: lock is NULL.
 */
redlatch_status redlatch_lock_check(const redlatch_lock *lock,
                                    uint64_t owner);

/** How long owner can rely on the lock if nothing more is heard from Redis; 0 once it is lost. */
int64_t redlatch_lock_remaining_ms(const redlatch_lock *lock, uint64_t owner);

/** How many levels owner has. */
uint32_t redlatch_lock_hold_count(const redlatch_lock *lock, uint64_t owner);

/** The fencing token of owner's hold; 0 without a hold and without the option fencing. */
uint64_t redlatch_lock_fencing_token(const redlatch_lock *lock, uint64_t owner);

/**
 * Registers told, to be called with user once for every hold that is lost, those that began before
 * included; NULL stops it. When this returns, the function before is not running and will not be
 * called again, unless it is that function that calls this.
 *
 *     static void lost(void *work, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
 *     {
 *         (void)owner, (void)token, (void)reason;
 *         redlatch_canceller_cancel((redlatch_canceller *)work); // the work asks redlatch_canceller_is_cancelled()
 *     }
 *
 *     if (redlatch_lock_on_lost(lock, lost, canceller) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: lock is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_INTERNAL: the thread that calls cannot be started.
 */
redlatch_status redlatch_lock_on_lost(redlatch_lock *lock,
                                      redlatch_lost_fn told,
                                      void *user);

/**
 * A number for owner that no call of this function in this process gives again, for languages
 * whose work changes threads. It is 2^48 or more and below 2^53, so that it does not meet the
 * numbers that a program counts itself, and a floating-point number can hold it.
 *
 *     uint64_t owner = redlatch_owner_new(); // of this goroutine, fiber or request
 *     if (redlatch_lock_acquire(lock, owner, 5000, REDLATCH_LOCK_LEASE, NULL) == REDLATCH_OK)
 *         redlatch_lock_release(lock, owner); // from whatever thread
 */
uint64_t redlatch_owner_new(void);

/**
 * Makes a semaphore: so many owners at a time as it has permits. It is the same semaphore as
 * Redisson's RPermitExpirableSemaphore with this name. It is a lock for all functions here, and is
 * freed with redlatch_lock_free(): acquiring takes permits, releasing gives them back, and a permit
 * is renewed and lost as a lock is. An owner has the permits of one acquisition at a time. A program
 * that dies gives its permits back after their lease and 2 s.
 *
 * The first acquisition gives the semaphore limit permits; a number that is there already stays.
 * With 0, others set it. name and options are as for redlatch_lock_new(); the option kind does not
 * count, nor do fencing, fencing_expires and reentrant of the client. Does no I/O.
 *
 *     redlatch_lock *gpus = NULL;
 *     if (redlatch_semaphore_new(client, "gpus", 4, NULL, &gpus) != REDLATCH_OK ||
 *         redlatch_lock_acquire(gpus, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *     else
 *         redlatch_lock_release(gpus, REDLATCH_THREAD); // after the work
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, limit is above 2147483647,
 *   an option is none of a lock or means nothing for a semaphore (fencing, reentrant), or an
 *   argument is NULL (but options).
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_semaphore_new(redlatch_client *client,
                                       const char *name,
                                       uint32_t limit,
                                       const redlatch_options *options,
                                       redlatch_lock **semaphore);

/**
 * As above, for a name of length bytes. The name needs no final NUL, and may contain some.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, limit is above 2147483647,
 *   an option is none of a lock or means nothing for a semaphore (fencing, reentrant), or an
 *   argument is NULL (but options).
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_semaphore_new_n(redlatch_client *client,
                                         const char *name,
                                         size_t length,
                                         uint32_t limit,
                                         const redlatch_options *options,
                                         redlatch_lock **semaphore);

/**
 * Sets how many permits each later acquisition through this handle takes at once, 1 to 1000;
 * without it, 1. They are given back together. Does no I/O.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: permits is 0, above 1000 or above the limit that the semaphore was
 *   made with, or it is no semaphore.
 * - REDLATCH_FORKED: the semaphore belongs to the parent of this process.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_semaphore_set_take(redlatch_lock *semaphore,
                                            uint32_t permits);

/**
 * Reads how many permits are free, and how many there are, taken ones included. Both places may be
 * NULL. *available is negative when the semaphore was given fewer permits than are taken; *limit is
 * 0 when nobody has set it yet.
 *
 * Statuses:
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 * - REDLATCH_FOREIGN_KIND: the name has other data.
 * - REDLATCH_INVALID_ARGUMENT: it is no semaphore, or it is NULL.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_semaphore_permits(const redlatch_lock *semaphore,
                                           int64_t *available,
                                           int64_t *limit);

/**
 * Begins what redlatch_semaphore_permits() does and returns at once: an event
 * REDLATCH_EVENT_PERMITS with this tag comes. redlatch_client_next_event() calls function, unless it
 * is NULL, with user and both numbers before it returns that event.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, it is no semaphore, or it is
 *   NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_semaphore_permits_start(redlatch_lock *semaphore,
                                                 redlatch_permits_fn function,
                                                 void *user,
                                                 uint64_t tag);

/**
 * Gives the semaphore so many permits, 0 to 2147483647, whatever it had before. Permits that are
 * taken stay taken: when there are fewer than that, callers wait until enough are given back.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: limit is above 2147483647, it is no semaphore, or it is NULL.
 * - REDLATCH_FOREIGN_KIND: the name has other data.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_semaphore_set_permits(redlatch_lock *semaphore,
                                               uint32_t limit);

/**
 * Begins what redlatch_semaphore_set_permits() does and returns at once: an event
 * REDLATCH_EVENT_PERMITS with this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, it is no semaphore, or it is
 *   NULL. The event says that limit is above 2147483647.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_semaphore_set_permits_start(redlatch_lock *semaphore,
                                                     uint32_t limit,
                                                     uint64_t tag);

/**
 * Makes a plain semaphore; does no I/O. name is 1 to 1,024 bytes of UTF-8. Free it with
 * redlatch_plain_semaphore_free().
 *
 *     redlatch_plain_semaphore *seats = NULL;
 *     bool set = false; // by the first program
 *     if (redlatch_plain_semaphore_new(client, "seats", &seats) != REDLATCH_OK ||
 *         redlatch_plain_semaphore_try_set_permits(seats, 100, &set) != REDLATCH_OK ||
 *         redlatch_plain_semaphore_acquire(seats, 2, 5000) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *     else
 *         redlatch_plain_semaphore_release(seats, 2); // by any program
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_plain_semaphore_new(redlatch_client *client,
                                             const char *name,
                                             redlatch_plain_semaphore **semaphore);

/**
 * As above, for a name of length bytes. The name needs no final NUL, and may contain some.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_plain_semaphore_new_n(redlatch_client *client,
                                               const char *name,
                                               size_t length,
                                               redlatch_plain_semaphore **semaphore);

/**
 * Frees a plain semaphore; NULL is allowed. Does no I/O. Permits that were taken stay taken. A wait
 * on it that was started is cancelled and gives no event.
 */
void redlatch_plain_semaphore_free(redlatch_plain_semaphore *semaphore);

/**
 * Takes so many permits at once. wait_ms 0 tries once, REDLATCH_FOREVER waits as long as it takes;
 * REDLATCH_TIMEOUT leaves nothing behind. Callers of one client come in their order. Give the
 * permits back with redlatch_plain_semaphore_release(): nothing else does, not even the end of the
 * program.
 *
 * Statuses:
 * - REDLATCH_TIMEOUT: wait_ms is over, and too few permits are free.
 * - REDLATCH_INVALID_ARGUMENT: permits is not 1 to 2147483647, wait_ms is out of bounds, or semaphore
 *   is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_plain_semaphore_acquire(redlatch_plain_semaphore *semaphore,
                                                 uint32_t permits,
                                                 int64_t wait_ms);

/**
 * The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
 * leaves nothing behind, when canceller is cancelled before the permits are taken. canceller may be NULL.
 *
 * Statuses:
 * - REDLATCH_CANCELLED: canceller was cancelled.
 * - Those of redlatch_plain_semaphore_acquire(): REDLATCH_TIMEOUT, REDLATCH_INVALID_ARGUMENT,
 *   REDLATCH_FOREIGN_KIND, REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH,
 *   REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_plain_semaphore_acquire_cancellable(redlatch_plain_semaphore *semaphore,
                                                             uint32_t permits,
                                                             int64_t wait_ms,
                                                             redlatch_canceller *canceller);

/**
 * Begins what redlatch_plain_semaphore_acquire() does and returns at once: an event
 * REDLATCH_EVENT_ACQUIRE with this tag comes, exactly one unless it is cancelled. The permits are taken
 * once that event is taken; if semaphore is freed before, and its client is open, they are given
 * back.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, an operation with this tag is under way, or
 *   semaphore is NULL. The event says that permits is out of bounds.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_plain_semaphore_acquire_start(redlatch_plain_semaphore *semaphore,
                                                       uint32_t permits,
                                                       int64_t wait_ms,
                                                       uint64_t tag);

/**
 * Cancels what redlatch_plain_semaphore_acquire_start() began under this tag. cancelled may be NULL. *cancelled true: no
 * event comes. false: it had ended before, and its event tells how; if it was granted, the
 * permits are taken: release them.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: semaphore is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 */
redlatch_status redlatch_plain_semaphore_acquire_cancel(redlatch_plain_semaphore *semaphore,
                                                        uint64_t tag,
                                                        bool *cancelled);

/**
 * Gives so many permits back, whoever took them, in whatever program. Nothing stops a caller that
 * gives back more than were taken: the semaphore then has more permits than before. After fork() the
 * child may call it for what the parent took; it does nothing.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: permits is not 1 to 2147483647, or semaphore is NULL.
 * - REDLATCH_UNAVAILABLE: the server did not confirm within the option outage. The permits are given
 *   back as soon as it answers: do not release them again.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_AUTH, REDLATCH_DENIED, REDLATCH_SERVER,
 *   REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_plain_semaphore_release(redlatch_plain_semaphore *semaphore,
                                                 uint32_t permits);

/**
 * Begins what redlatch_plain_semaphore_release() does and returns at once: an event
 * REDLATCH_EVENT_RELEASE with this tag comes.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
 *   permits is out of bounds, the event says.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_plain_semaphore_release_start(redlatch_plain_semaphore *semaphore,
                                                       uint32_t permits,
                                                       uint64_t tag);

/**
 * Gives the semaphore so many permits if it has no number yet. *set, unless set is NULL, tells
 * whether it did.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: permits is above 2147483647, or semaphore is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_plain_semaphore_try_set_permits(redlatch_plain_semaphore *semaphore,
                                                         uint32_t permits,
                                                         bool *set);

/**
 * Begins what redlatch_plain_semaphore_try_set_permits() does and returns at once: an event
 * REDLATCH_EVENT_SET with this tag comes. Its value is 1 if it did, else 0.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
 *   permits is out of bounds, the event says.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_plain_semaphore_try_set_permits_start(redlatch_plain_semaphore *semaphore,
                                                               uint32_t permits,
                                                               uint64_t tag);

/**
 * Adds permits, or takes some away if permits is negative; it does not wait for them, so the number
 * may get below 0. *now, unless now is NULL, is the new number. The time to live of the key stays as
 * it is.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: permits is beyond 2147483647 either way, or semaphore is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_plain_semaphore_add_permits(redlatch_plain_semaphore *semaphore,
                                                     int64_t permits,
                                                     int64_t *now);

/**
 * Begins what redlatch_plain_semaphore_add_permits() does and returns at once: an event
 * REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
 * to int64_t.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
 *   permits is out of bounds, the event says.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_plain_semaphore_add_permits_start(redlatch_plain_semaphore *semaphore,
                                                           int64_t permits,
                                                           uint64_t tag);

/**
 * Takes all permits that there are. *drained, unless drained is NULL, is how many; a number below 0
 * becomes 0 and is told, as by drainPermits() of Redisson.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: semaphore is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_plain_semaphore_drain(redlatch_plain_semaphore *semaphore,
                                               int64_t *drained);

/**
 * Begins what redlatch_plain_semaphore_drain() does and returns at once: an event
 * REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
 * to int64_t.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_plain_semaphore_drain_start(redlatch_plain_semaphore *semaphore,
                                                     uint64_t tag);

/**
 * Reads how many permits there are. It may change at any time.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_plain_semaphore_available(const redlatch_plain_semaphore *semaphore,
                                                   int64_t *available);

/**
 * Begins what redlatch_plain_semaphore_available() does and returns at once: an event
 * REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
 * to int64_t.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_plain_semaphore_available_start(redlatch_plain_semaphore *semaphore,
                                                         uint64_t tag);

/**
 * Makes a latch; does no I/O. name is 1 to 1,024 bytes of UTF-8. Free it with
 * redlatch_latch_free().
 *
 *     redlatch_latch *ready = NULL;
 *     bool set = false; // by the first program
 *     if (redlatch_latch_new(client, "ready", &ready) != REDLATCH_OK ||
 *         redlatch_latch_try_set_count(ready, 1, &set) != REDLATCH_OK ||
 *         redlatch_latch_count_down(ready, 1, NULL) != REDLATCH_OK ||
 *         redlatch_latch_wait(ready, 5000) != REDLATCH_OK)
 *         fprintf(stderr, "%s\n", redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_latch_new(redlatch_client *client,
                                   const char *name,
                                   redlatch_latch **latch);

/**
 * As above, for a name of length bytes. The name needs no final NUL, and may contain some.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_latch_new_n(redlatch_client *client,
                                     const char *name,
                                     size_t length,
                                     redlatch_latch **latch);

/**
 * Frees a latch; NULL is allowed. Does no I/O. A wait on it that was started is cancelled and gives
 * no event.
 */
void redlatch_latch_free(redlatch_latch *latch);

/**
 * Waits until the count is 0; returns at once if it is 0 or the latch has no count. wait_ms 0 looks
 * once, REDLATCH_FOREVER waits as long as it takes.
 *
 * Statuses:
 * - REDLATCH_TIMEOUT: wait_ms is over, and the count is above 0.
 * - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, or latch is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
REDLATCH_MUST_CHECK redlatch_status redlatch_latch_wait(redlatch_latch *latch, int64_t wait_ms);

/**
 * The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
 * leaves nothing behind, when canceller is cancelled before the latch is open. canceller may be NULL.
 *
 * Statuses:
 * - REDLATCH_CANCELLED: canceller was cancelled.
 * - Those of redlatch_latch_wait(): REDLATCH_TIMEOUT, REDLATCH_INVALID_ARGUMENT,
 *   REDLATCH_FOREIGN_KIND, REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH,
 *   REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_latch_wait_cancellable(redlatch_latch *latch,
                                                int64_t wait_ms,
                                                redlatch_canceller *canceller);

/**
 * Begins what redlatch_latch_wait() does and returns at once: an event
 * REDLATCH_EVENT_OPEN with this tag comes, exactly one unless it is cancelled.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, an operation with this tag is under way, or
 *   latch is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_latch_wait_start(redlatch_latch *latch,
                                          int64_t wait_ms,
                                          uint64_t tag);

/**
 * Cancels what redlatch_latch_wait_start() began under this tag. cancelled may be NULL. *cancelled true: no
 * event comes. false: it had ended before, and its event tells how.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: latch is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 */
redlatch_status redlatch_latch_wait_cancel(redlatch_latch *latch,
                                           uint64_t tag,
                                           bool *cancelled);

/**
 * Gives the latch this count if it has none. *set, unless set is NULL, tells whether it did.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: count is not 1 to 2147483647, or latch is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_latch_try_set_count(redlatch_latch *latch, uint32_t count, bool *set);

/**
 * Begins what redlatch_latch_try_set_count() does and returns at once: an event
 * REDLATCH_EVENT_SET with this tag comes. Its value is 1 if it did, else 0.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL. That
 *   count is out of bounds, the event says.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_latch_try_set_count_start(redlatch_latch *latch,
                                                   uint32_t count,
                                                   uint64_t tag);

/**
 * Counts down by that number. *left, unless left is NULL, is what is left. The count does not get
 * below 0: at 0 the latch is open, and everybody who waits goes on.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: by is not 1 to 2147483647, or latch is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
redlatch_status redlatch_latch_count_down(redlatch_latch *latch, uint32_t by, int64_t *left);

/**
 * Begins what redlatch_latch_count_down() does and returns at once: an event
 * REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
 * to int64_t.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL. That
 *   by is out of bounds, the event says.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_latch_count_down_start(redlatch_latch *latch, uint32_t by, uint64_t tag);

/**
 * Reads the count; 0 when the latch is open.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
 * - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
 * - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
 *   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_latch_count(const redlatch_latch *latch,
                                     int64_t *count);

/**
 * Begins what redlatch_latch_count() does and returns at once: an event
 * REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
 * to int64_t.
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - REDLATCH_UNAVAILABLE: the process has no descriptor left.
 */
redlatch_status redlatch_latch_count_start(redlatch_latch *latch, uint64_t tag);

/**
 * Takes the oldest event; *kind is REDLATCH_EVENT_NONE if none waits. Never blocks. For the
 * others, *tag is the one given to ..._start(), *result what became of it (redlatch_last_error()
 * has the text) and *value the fencing token of an acquisition, or what the kind says. tag, result
 * and value may be NULL.
 *
 *     int32_t kind = REDLATCH_EVENT_NONE;
 *     uint64_t tag = 0;
 *     redlatch_status result = REDLATCH_OK;
 *     while (redlatch_client_next_event(client, &kind, &tag, &result, NULL) == REDLATCH_OK &&
 *            kind != REDLATCH_EVENT_NONE)
 *         if (result != REDLATCH_OK)
 *             fprintf(stderr, "call %llu: %s\n", (unsigned long long)tag, redlatch_last_error());
 *
 * Statuses:
 * - REDLATCH_INVALID_ARGUMENT: client or kind is NULL.
 * - REDLATCH_FORKED: the client belongs to the parent process.
 * - *result can be what the function without _start returns, and REDLATCH_LOST for
 *   REDLATCH_EVENT_LOST.
 */
redlatch_status redlatch_client_next_event(redlatch_client *client,
                                           int32_t *kind,
                                           uint64_t *tag,
                                           redlatch_status *result,
                                           uint64_t *value);

/**
 * The text of the calling thread's last failure, "" if none of its calls has failed. It never
 * contains a password. The next failure of this thread overwrites it, so copy what is needed for
 * longer. The pointer itself can be read until the thread ends.
 */
const char *redlatch_last_error(void);

/** Why the hold was lost, if the calling thread's last failure was REDLATCH_LOST; else 0. */
redlatch_lost_reason redlatch_last_lost_reason(void);

/** The name of a status, as in every language: "timeout", "not_owner", ... Static, never NULL. */
const char *redlatch_status_name(redlatch_status status);

/** The name of a reason for a loss: "expired", "deleted", ... Static, never NULL. */
const char *redlatch_lost_reason_name(redlatch_lost_reason reason);

/**
 * Whether the same call can succeed later without changing anything.
 *
 *     redlatch_status status = redlatch_lock_acquire(lock, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL);
 *     if (status != REDLATCH_OK)
 *         fprintf(stderr, "%s (%s)%s\n", redlatch_last_error(), redlatch_status_name(status),
 *                 redlatch_status_retryable(status) ? ": it may go better later" : "");
 */
bool redlatch_status_retryable(redlatch_status status);

/**
 * The version of the library that runs: "major.minor.patch". REDLATCH_VERSION is the one of the
 * header. Static.
 */
const char *redlatch_version(void);

/**
 * The same as a number that can be compared, like REDLATCH_VERSION_NUMBER, which is the one of the
 * header: major * 10000 + minor * 100 + patch.
 */
uint32_t redlatch_version_number(void);

#ifdef __cplusplus
}
#endif

#endif  /* REDLATCH_H */
