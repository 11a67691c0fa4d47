/* Random calls with hostile arguments, in random order: every one comes back with a status that has a name, nothing
 * is read or written that should not be (run it under sanitizers), and nothing is left behind.
 *
 * HOSTILE_SEED (default 1) is the first seed, HOSTILE_SEEDS (default 4) how many, HOSTILE_CALLS (default 400) how
 * many calls each makes. */
#include "check.h"

#include <limits.h>

#define CLIENTS 2
#define LOCKS 4
#define OPTIONS 2
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t state;

/* SplitMix64: a seed makes a run. */
static uint64_t next(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t end)
{
    return (size_t)(next() % end);
}

static long number(const char *variable, long otherwise)
{
    const char *text = getenv(variable);
    return text == NULL ? otherwise : atol(text);
}

static redlatch_client *clients[CLIENTS];
static redlatch_lock *locks[LOCKS];
static redlatch_options *options[OPTIONS];
static redlatch_canceller *canceller;
static long heard;

static void told_event(void *user, int32_t level, const char *kind, const char *lock, const char *text)
{
    (void)user;
    __atomic_add_fetch(&heard, level + (long)strlen(kind) + (lock == NULL ? 0 : (long)strlen(lock)) + (long)strlen(text),
                       __ATOMIC_RELAXED);
}

static void told_loss(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    (void)user;
    __atomic_add_fetch(&heard, (long)(owner % 7 + token % 7) + reason, __ATOMIC_RELAXED);
}

static const char *hostile_text(void)
{
    static const char *const texts[] = {
        NULL, "", "a", "b", "a{b", "\xff\xfe", "\xed\xa0\x80", "%s%n%p", "\n", "fencing", "watchdog_lease", "true",
        "-1", "1e308h", "NaN", "2s", "99999999999999999999999", "redis://", "http://x", "redis://u:p@256.0.0.1:99999",
    };
    return texts[below(COUNT(texts))];
}

static int64_t hostile_time(void)
{
    static const int64_t times[] = {INT64_MIN, INT64_MAX, -2, 0, 1, 5, 99, 100, 1000, 86400000, 86400001};
    return times[below(COUNT(times))];
}

/* A wait that ends: the one thread of this program may not wait for itself. */
static int64_t short_wait(void)
{
    static const int64_t waits[] = {0, 0, 1, 20, -2, INT64_MIN};
    return waits[below(COUNT(waits))];
}

static uint64_t some_owner(void)
{
    static const uint64_t owners[] = {REDLATCH_THREAD, 1, 2, UINT64_MAX};
    return owners[below(COUNT(owners))];
}

/* A status has a name, and a failure a text. */
static redlatch_status known(redlatch_status status)
{
    CHECK(strcmp(redlatch_status_name(status), "unknown") != 0);
    CHECK(status != REDLATCH_INTERNAL);
    CHECK(status == REDLATCH_OK || redlatch_last_error()[0] != '\0');
    return status;
}

static void renew_client(void)
{
    redlatch_client **place = &clients[below(CLIENTS)];
    if (*place != NULL) {
        known(redlatch_client_close(*place, 10000));
        redlatch_client_free(*place);
        *place = NULL;
    }
    if (below(4) == 0) {
        redlatch_client *unmade = (redlatch_client *)&heard;
        redlatch_status status = redlatch_client_open(hostile_text(), NULL, &unmade);
        CHECK((known(status) == REDLATCH_OK) == (unmade != NULL));
        redlatch_client_free(unmade);
    }
    known(redlatch_client_open(NULL, below(2) ? options[below(OPTIONS)] : NULL, place));
}

static void renew_lock(void)
{
    redlatch_lock **place = &locks[below(LOCKS)];
    redlatch_client *client = clients[below(CLIENTS)];
    redlatch_status status;
    redlatch_lock_free(*place);
    *place = (redlatch_lock *)&heard;
    if (below(3) == 0) {
        static const char bytes[2000] = {'x', 0, 'y'};
        status = redlatch_lock_new_n(client, below(8) ? bytes : NULL, below(1100), NULL, place);
    } else {
        status = redlatch_lock_new(client, hostile_text(), below(2) ? options[below(OPTIONS)] : NULL, place);
    }
    CHECK((known(status) == REDLATCH_OK) == (*place != NULL));
}

static void renew_options(void)
{
    redlatch_options **place = &options[below(OPTIONS)];
    redlatch_options_free(*place);
    *place = NULL;
    known(redlatch_options_new(below(8) ? place : NULL));
}

static void ask_lock(redlatch_lock *lock, uint64_t owner)
{
    char text[40];
    size_t size = below(sizeof text + 1);
    uint32_t count = 0;
    int64_t left = 0;
    bool flag = false;
    memset(text, 'z', sizeof text);
    known(redlatch_lock_holder(lock, size == 0 && below(2) ? NULL : text, size, below(2) ? &count : NULL,
                               below(2) ? &left : NULL));
    for (size_t i = size; i < sizeof text; i++)
        CHECK(text[i] == 'z'); /* never more than there is room for */
    known(redlatch_lock_is_locked(lock, below(8) ? &flag : NULL));
    known(redlatch_lock_check(lock, owner));
    if (redlatch_lock_is_held(lock, owner))
        CHECK(redlatch_lock_hold_count(lock, owner) > 0);
    CHECK(redlatch_lock_remaining_ms(lock, owner) >= 0);
    (void)redlatch_lock_fencing_token(lock, owner);
}

static void use_client(redlatch_client *client)
{
    int32_t kind = 0;
    uint64_t tag, token, count;
    redlatch_status result;
    int fd;
    switch (below(5)) {
    case 0: known(redlatch_client_on_event(client, below(2) ? told_event : NULL, &heard)); break;
    case 1: known(redlatch_client_stats(client, hostile_text(), below(8) ? &count : NULL)); break;
    case 2: known(redlatch_client_event_fd(client, below(8) ? &fd : NULL)); break;
    /* With no time to release, a hold would stay for its lease, of a day perhaps. */
    case 3: known(redlatch_client_close(client, below(2) ? 10000 : INT64_MIN)); break;
    default:
        for (int i = 0; i < 50; i++) {
            if (known(redlatch_client_next_event(client, &kind, &tag, &result, &token)) != REDLATCH_OK || kind == 0)
                break;
        }
    }
}

static void told_holder(void *user, const redlatch_holder *holder)
{
    CHECK(user == &heard && holder->owner != NULL);
}

static void told_permits(void *user, int64_t available, int64_t limit)
{
    CHECK(user == &heard && available <= limit);
}

static void start_any(redlatch_lock *lock, uint64_t owner)
{
    uint64_t tag = below(4);
    switch (below(6)) {
    case 0: known(redlatch_lock_extend_start(lock, owner, hostile_time(), tag)); break;
    case 1: known(redlatch_lock_is_locked_start(lock, tag)); break;
    case 2: known(redlatch_lock_release_token_start(lock, hostile_text(), tag)); break;
    case 3: known(redlatch_lock_extend_token_start(lock, hostile_text(), hostile_time(), tag)); break;
    case 4: known(redlatch_semaphore_permits_start(lock, below(2) ? told_permits : NULL, &heard, tag)); break;
    default: known(redlatch_lock_holders_start(lock, below(8) ? told_holder : NULL, &heard, tag));
    }
}

static void use_lock(redlatch_lock *lock)
{
    uint64_t owner = some_owner(), token = 7;
    bool done = true;
    switch (below(12)) {
    case 0:
    case 1: known(redlatch_lock_acquire(lock, owner, short_wait(), hostile_time(), below(2) ? &token : NULL)); break;
    case 2: known(redlatch_lock_release(lock, owner)); break;
    case 3: known(redlatch_lock_extend(lock, owner, hostile_time())); break;
    case 4: known(redlatch_lock_acquire_start(lock, owner, hostile_time(), hostile_time(), below(4))); break;
    case 5: known(redlatch_lock_acquire_cancel(lock, below(4), below(8) ? &done : NULL)); break;
    case 6: known(redlatch_lock_release_start(lock, owner, below(4))); break;
    case 7: known(redlatch_lock_on_lost(lock, below(2) ? told_loss : NULL, &heard)); break;
    case 8:
        known(redlatch_lock_acquire_cancellable(lock, owner, short_wait(), hostile_time(), canceller,
                                                below(2) ? &token : NULL));
        break;
    case 9:
    case 10: start_any(lock, owner); break;
    default: ask_lock(lock, owner);
    }
    if (below(20) == 0)
        known(redlatch_lock_force_release(lock, below(2) ? &done : NULL));
}

static void use_canceller(void)
{
    switch (below(4)) {
    case 0:
        redlatch_canceller_free(canceller);
        canceller = NULL;
        break;
    case 1:
        redlatch_canceller_cancel(canceller);
        CHECK(redlatch_canceller_is_cancelled(canceller) == (canceller != NULL));
        break;
    default:
        redlatch_canceller_free(canceller);
        canceller = NULL;
        known(redlatch_canceller_new(below(8) ? &canceller : NULL));
    }
}

static void one_call(void)
{
    switch (below(17)) {
    case 16: use_canceller(); break;
    case 0: renew_client(); break;
    case 1:
    case 2: renew_lock(); break;
    case 3: renew_options(); break;
    case 4: known(redlatch_options_set(options[below(OPTIONS)], hostile_text(), hostile_text())); break;
    case 5: use_client(clients[below(CLIENTS)]); break;
    case 6:
        (void)redlatch_options_name(below(100));
        (void)redlatch_client_stats_name((size_t)next());
        CHECK(redlatch_status_name((redlatch_status)next()) != NULL);
        CHECK(redlatch_lost_reason_name((redlatch_lost_reason)next()) != NULL);
        (void)redlatch_status_retryable((redlatch_status)next());
        break;
    default: use_lock(locks[below(LOCKS)]);
    }
}

static void nothing_is_left(void)
{
    redlatch_client *client = open_client();
    static const char *const names[] = {"a", "b", "a{b", "%s%n%p", "\n", "fencing", "true"};
    for (size_t i = 0; i < COUNT(names); i++) {
        redlatch_lock *lock = lock_of(client, names[i]);
        bool locked = true;
        EVENTUALLY(redlatch_lock_is_locked(lock, &locked) == REDLATCH_OK && !locked);
        redlatch_lock_free(lock);
    }
    close_client(client);
}

static void calls_in_any_order(void)
{
    long first = number("HOSTILE_SEED", 1), seeds = number("HOSTILE_SEEDS", 4);
    int calls = scaled((int)number("HOSTILE_CALLS", 400));
    for (long seed = first; seed < first + seeds && failed_checks == 0; seed++) {
        state = (uint64_t)seed;
        for (int call = 0; call < calls; call++)
            one_call();
        for (size_t i = 0; i < CLIENTS; i++) {
            if (clients[i] != NULL)
                known(redlatch_client_close(clients[i], 10000));
            redlatch_client_free(clients[i]);
            clients[i] = NULL;
        }
        for (size_t i = 0; i < LOCKS; i++) {
            redlatch_lock_free(locks[i]);
            locks[i] = NULL;
        }
        for (size_t i = 0; i < OPTIONS; i++) {
            redlatch_options_free(options[i]);
            options[i] = NULL;
        }
        redlatch_canceller_free(canceller);
        canceller = NULL;
        nothing_is_left();
        if (failed_checks != 0)
            printf("  seed %ld\n", seed);
    }
    printf("  hostile: seeds=%ld calls=%d each\n", seeds, calls);
}

MAIN(TEST(calls_in_any_order))
