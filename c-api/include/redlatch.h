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
 * has the text. NULL is allowed only where it is said to be; elsewhere it is refused with
 * REDLATCH_INVALID_ARGUMENT, naming the parameter. Times are milliseconds. Nothing here prints, throws,
 * or ends the program.
 *
 * Ownership. An object that a ..._new() or ..._open() call stores is yours. Give it back once, with the ..._free()
 * call of the same name, when you begin no other call with it any more; calls under way may end later.
 * The order does not matter: locks keep their client alive. Strings that you pass are copied; strings that
 * you get belong to the library. close() releases and reports; free() does no I/O, so what is still held
 * ends with its lease.
 *
 * Threads. Every handle may be used from any thread, by several at once. To end one wait from another thread,
 * or from a signal handler, acquire with redlatch_lock_acquire_cancellable(); to end all of them, close the
 * client: they return REDLATCH_CLOSED. When a thread ends while it holds a lock as
 * REDLATCH_THREAD, the lock is not renewed any more and ends with its lease. The library's own threads
 * block all signals, and call only the functions registered with ..._on_lost() and ..._on_event(), which
 * must return: they must not throw, longjmp() out, or call pthread_exit(). Signal handlers may call
 * redlatch_canceller_cancel() and nothing else.
 *
 * pthread_cancel(). No call here is a cancellation point. A thread that is cancelled in a call finishes the
 * call, and ends at its next cancellation point: call pthread_testcancel() where no lock is held, and release
 * in a pthread_cleanup_push() handler elsewhere. pthread_cancel() does not end a wait. To cancel a thread
 * that may wait, call pthread_cancel() and then redlatch_canceller_cancel(). Threads whose cancel type is
 * PTHREAD_CANCEL_ASYNCHRONOUS must not call anything here.
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
    /** The server did not answer in time or cannot be reached. */
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
    /** The lease ended: a fixed one is never renewed, another was not in time. */
    REDLATCH_LOST_EXPIRED = 1,
    /** The key was deleted, evicted or flushed. */
    REDLATCH_LOST_DELETED = 2,
    /** Somebody else holds the name, or other data lies there. */
    REDLATCH_LOST_STOLEN = 3,
    /** The lock was force-released through this client. */
    REDLATCH_LOST_FORCED = 4,
    /** The server could not be reached until the deadline. */
    REDLATCH_LOST_UNREACHABLE = 5,
    /** The client was closed while the lock was held. */
    REDLATCH_LOST_CLOSED = 6
};

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
 * that changes threads; it re-enters wherever it comes from.
 */
#define REDLATCH_THREAD 0

/** No event waits. */
#define REDLATCH_EVENT_NONE 0

/** redlatch_lock_acquire_start() has ended: result says how. */
#define REDLATCH_EVENT_ACQUIRE 1

/** redlatch_lock_release_start() has ended: result says how. */
#define REDLATCH_EVENT_RELEASE 2

/** A hold that redlatch_lock_acquire_start() began was lost: result is REDLATCH_LOST. */
#define REDLATCH_EVENT_LOST 3

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

/** A name on a client. May be used from any thread, by several at once. */
typedef struct redlatch_lock redlatch_lock;

/**
 * A set of options, each a name and a value. May be used from any thread, by several at once, and
 * for any number of clients and locks; later changes do not reach these.
 */
typedef struct redlatch_options redlatch_options;

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

#ifdef __cplusplus
extern "C" {
#endif

/** Makes an empty set of options. Free it with redlatch_options_free(). */
redlatch_status redlatch_options_new(redlatch_options **options);

/**
 * Sets an option. docs/options.md lists the names and what they mean. Times are "250ms", "2.5s",
 * "10m" or "1h", a number alone is milliseconds; flags are "true" or "false". NULL as value stands
 * for the default. An option of a lock that is given to a client is the default of its locks.
 */
redlatch_status redlatch_options_set(redlatch_options *options,
                                     const char *name,
                                     const char *value);

/**
 * The names of all options there are, one for each index from 0; NULL after the last. Those of a
 * single acquisition, which are parameters in C, come last. Static.
 */
const char *redlatch_options_name(size_t index);

/** Frees a set of options; NULL is allowed. */
void redlatch_options_free(redlatch_options *options);

/**
 * Opens a client and waits until the server is reached. url is
 * "redis://[user:password@]host[:port][/database]" or "unix:///path"; NULL: the environment
 * variable REDLATCH_URL. options may be NULL. Close the client and free it with
 * redlatch_client_free().
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_client_open(const char *url,
                                     const redlatch_options *options,
                                     redlatch_client **client);

/**
 * Releases all that is held, ends every call that waits (REDLATCH_CLOSED) and stops. Holders are
 * told that they lost their lock. Takes wait_ms at most, or as long as REDLATCH_CLOSE_LIMIT
 * allows; 0 leaves everything to its lease. Fails with REDLATCH_UNAVAILABLE, naming the locks, if
 * some could not be released; the client is closed all the same. Closing again is no error, and
 * releases nothing more. After fork() the child may call it for the parent's client; it does
 * nothing.
 */
redlatch_status redlatch_client_close(redlatch_client *client, int64_t wait_ms);

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
 */
redlatch_status redlatch_client_on_event(redlatch_client *client,
                                         redlatch_event_fn told,
                                         void *user);

/**
 * A counter of the client by its name: "acquired", "lost", "renewed", "holds", ...; an unknown
 * name is refused with the list of all.
 */
redlatch_status redlatch_client_stats(redlatch_client *client, const char *name, uint64_t *count);

/** The names of all counters there are, one for each index from 0; NULL after the last. Static. */
const char *redlatch_client_stats_name(size_t index);

/**
 * A descriptor that is readable while events wait for redlatch_client_next_event(). Poll it; never
 * read, write or close it. It is the same one every time and is valid until the client is freed.
 * On Windows it is a socket for select() and WSAPoll(): cast it to SOCKET.
 */
redlatch_status redlatch_client_event_fd(redlatch_client *client, int *fd);

/**
 * Makes a canceller, which keeps one file descriptor. Free it with redlatch_canceller_free().
 * Fails with REDLATCH_INTERNAL when there is no descriptor left.
 */
REDLATCH_MUST_CHECK redlatch_status redlatch_canceller_new(redlatch_canceller **canceller);

/**
 * Ends all waits with this canceller, now and later: they return REDLATCH_CANCELLED, unless they
 * have their lock already. NULL is allowed. Any thread may call it, and a signal handler too: it
 * takes no lock, allocates nothing, does not block and leaves errno as it is. In a process that
 * was forked after redlatch_canceller_new() it does nothing.
 */
void redlatch_canceller_cancel(const redlatch_canceller *canceller);

/** Whether redlatch_canceller_cancel() was called: for work in steps that is to stop as well. */
bool redlatch_canceller_is_cancelled(const redlatch_canceller *canceller);

/**
 * Frees a canceller; NULL is allowed. Waits that use it go on, and nothing can cancel them any
 * more.
 */
void redlatch_canceller_free(redlatch_canceller *canceller);

/**
 * A number for owner that no call of this function in this process gives again, for languages
 * whose work changes threads. It is 2^48 or more and below 2^53, so that it does not meet the
 * numbers that a program counts itself, and a floating-point number can hold it.
 */
uint64_t redlatch_owner_new(void);

/**
 * Makes a lock; does no I/O. name is 1 to 1,024 bytes of UTF-8. options may be NULL; they are
 * added to those that the client was opened with. Free it with redlatch_lock_free().
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_new(redlatch_client *client,
                                  const char *name,
                                  const redlatch_options *options,
                                  redlatch_lock **lock);

/** As above, for a name of length bytes. The name needs no final NUL, and may contain some. */
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
 * does not count, and fencing is for the writer. Does no I/O.
 *
 * An owner that has the write side may acquire the read side too, and keep it when it releases the
 * write side. The other way round it would wait for itself: REDLATCH_WOULD_DEADLOCK.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_rw_lock_new(redlatch_client *client,
                                     const char *name,
                                     const redlatch_options *options,
                                     redlatch_lock **read,
                                     redlatch_lock **write);

/** As above, for a name of length bytes. The name needs no final NUL, and may contain some. */
REDLATCH_MUST_CHECK
redlatch_status redlatch_rw_lock_new_n(redlatch_client *client,
                                       const char *name,
                                       size_t length,
                                       const redlatch_options *options,
                                       redlatch_lock **read,
                                       redlatch_lock **write);

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
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_acquire_cancellable(redlatch_lock *lock,
                                                  uint64_t owner,
                                                  int64_t wait_ms,
                                                  int64_t lease_ms,
                                                  redlatch_canceller *canceller,
                                                  uint64_t *token);

/**
 * The value that a simple lock's key gets when it is acquired through this handle from now on, in
 * place of a fresh one; NULL: a fresh one. Give each attempt a token of its own, in every process.
 * A program that knows it can release and extend the lock.
 */
redlatch_status redlatch_lock_set_token(redlatch_lock *lock, const char *token);

/**
 * Gives back the newest level of owner. REDLATCH_LOST: the lock was lost before, and the level is
 * given back all the same. REDLATCH_UNAVAILABLE: the server was out of reach for as long as the
 * option outage says, and the lock ends with its lease. After fork() the child may call it for the
 * parent's hold; it does nothing.
 */
redlatch_status redlatch_lock_release(redlatch_lock *lock, uint64_t owner);

/**
 * Makes the lock live at least lease_ms from now; never shortens it, and does not change whether
 * it is renewed.
 */
redlatch_status redlatch_lock_extend(redlatch_lock *lock, uint64_t owner, int64_t lease_ms);

/**
 * Frees the lock if token is its value, in whatever process it was acquired: for work that is
 * passed on with its lock. Simple kinds only; REDLATCH_NOT_OWNER if the lock is free or has
 * another value.
 */
redlatch_status redlatch_lock_release_token(redlatch_lock *lock, const char *token);

/**
 * Makes the lock live at least lease_ms from now if token is its value; as
 * redlatch_lock_release_token.
 */
redlatch_status redlatch_lock_extend_token(redlatch_lock *lock,
                                           const char *token,
                                           int64_t lease_ms);

/**
 * Deletes the lock whoever holds it, and wakes who waits. *deleted, unless deleted is NULL:
 * whether there was one.
 */
redlatch_status redlatch_lock_force_release(redlatch_lock *lock, bool *deleted);

/** Whether anybody holds the lock now; asks Redis. */
redlatch_status redlatch_lock_is_locked(redlatch_lock *lock, bool *locked);

/**
 * Asks Redis for the holder of the lock. owner receives up to size bytes, the final NUL among
 * them: a text that only equality makes sense of, "" if the lock is free. *count is the hold count,
 * *remaining_ms how long the lock lives without a renewal, -1 if it has no expiry. Each of the
 * three may be NULL.
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
 */
redlatch_status redlatch_lock_holders(redlatch_lock *lock, redlatch_holder_fn function, void *user);

/**
 * Whether owner can rely on the lock now. Like the following ones it answers at once, from a clock
 * that counts suspend, and has false or 0 for a failure.
 */
bool redlatch_lock_is_held(const redlatch_lock *lock, uint64_t owner);

/** The same with the reason: REDLATCH_LOST (see redlatch_last_lost_reason()) or REDLATCH_NOT_OWNER. */
redlatch_status redlatch_lock_check(const redlatch_lock *lock, uint64_t owner);

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
 */
redlatch_status redlatch_lock_on_lost(redlatch_lock *lock, redlatch_lost_fn told, void *user);

/**
 * Begins what redlatch_lock_acquire() does and returns at once: an event REDLATCH_EVENT_ACQUIRE
 * with this tag comes, exactly one unless it is cancelled. The lock counts as held, and owner can
 * release it, once that event is taken.
 */
REDLATCH_MUST_CHECK
redlatch_status redlatch_lock_acquire_start(redlatch_lock *lock,
                                            uint64_t owner,
                                            int64_t wait_ms,
                                            int64_t lease_ms,
                                            uint64_t tag);

/**
 * Cancels what redlatch_lock_acquire_start() began under this tag. *cancelled true: no event comes
 * and nothing is held. false: it had ended before, and its event tells how; if it was granted,
 * release it.
 */
redlatch_status redlatch_lock_acquire_cancel(redlatch_lock *lock, uint64_t tag, bool *cancelled);

/**
 * Begins what redlatch_lock_release() does and returns at once: an event REDLATCH_EVENT_RELEASE
 * with this tag comes.
 */
redlatch_status redlatch_lock_release_start(redlatch_lock *lock, uint64_t owner, uint64_t tag);

/**
 * Takes the oldest event; *kind is REDLATCH_EVENT_NONE if none waits. Never blocks. For the
 * others, *tag is the one given to ..._start(), *result what became of it (redlatch_last_error()
 * has the text) and *token the fencing token of an acquisition. tag, result and token may be NULL.
 */
redlatch_status redlatch_client_next_event(redlatch_client *client,
                                           int32_t *kind,
                                           uint64_t *tag,
                                           redlatch_status *result,
                                           uint64_t *token);

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

/** Whether the same call can succeed later without changing anything. */
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
