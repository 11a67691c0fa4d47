/* Acquiring and releasing, and what can be asked. */
#include "redis.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static void acquire_and_release(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:simple");
    char owner[64];
    uint32_t count = 9;
    int64_t remaining = -9;
    uint64_t token = 9;
    bool locked = true;

    CHECK_OK(redlatch_lock_is_locked(lock, &locked));
    CHECK(!locked);
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, &token));
    CHECK(token == 0); /* none without the option */
    CHECK(exists("c:simple"));
    CHECK(redlatch_lock_is_held(lock, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_check(lock, REDLATCH_THREAD));
    CHECK(redlatch_lock_hold_count(lock, REDLATCH_THREAD) == 1);
    CHECK(redlatch_lock_remaining_ms(lock, REDLATCH_THREAD) > 0);
    CHECK_OK(redlatch_lock_is_locked(lock, &locked));
    CHECK(locked);
    CHECK_OK(redlatch_lock_holder(lock, owner, sizeof owner, &count, &remaining));
    CHECK(strlen(owner) > 36 && owner[36] == ':' && count == 1 && remaining > 0);
    CHECK(strcmp(redis("HKEYS", "c:simple", NULL), owner) == 0);
    CHECK_OK(redlatch_lock_holder(lock, NULL, 0, NULL, NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_holder(lock, owner, 10, NULL, NULL));

    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    CHECK(!exists("c:simple"));
    CHECK(!redlatch_lock_is_held(lock, REDLATCH_THREAD));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_check(lock, REDLATCH_THREAD));
    CHECK(redlatch_lock_remaining_ms(lock, REDLATCH_THREAD) == 0);
    CHECK(redlatch_lock_hold_count(lock, REDLATCH_THREAD) == 0);
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_holder(lock, owner, sizeof owner, &count, &remaining));
    CHECK(owner[0] == '\0' && count == 0 && remaining == 0);
    redlatch_lock_free(lock);
    close_client(client);
}

/* The server tells only the direct connection nothing unasked; its last command is ours. */
static int calls_go_to_the_direct_connection(redlatch_lock *lock)
{
    char *line;
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    for (line = strtok((char *)redis("CLIENT", "LIST", NULL), "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (strstr(line, " name=c-direct;") != NULL && strstr(line, ";lang=c;") != NULL && strstr(line, " flags=N ") != NULL &&
            strstr(line, " cmd=evalsha") != NULL)
            return 1;
    return 0;
}

static void a_thread_makes_its_calls_on_the_direct_connection(void)
{
    redlatch_options *options = NULL;
    redlatch_client *client = NULL;
    redlatch_lock *lock;

    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, "client_name", "c-direct"));
    CHECK_OK(redlatch_client_open(NULL, options, &client));
    redlatch_options_free(options);
    lock = lock_of(client, "c:direct");
    EVENTUALLY(calls_go_to_the_direct_connection(lock));
    redlatch_lock_free(lock);
    close_client(client);
}

static void a_simple_lock_is_a_string(void)
{
    redlatch_client *client = open_client();
    redlatch_options *options = NULL;
    redlatch_lock *lock = NULL, *reentrant = lock_of(client, "c:kind");
    char owner[64];

    CHECK_OK(redlatch_options_new(&options));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_options_set(options, "kind", "fairest"));
    CHECK_OK(redlatch_options_set(options, "kind", "simple"));
    CHECK_OK(redlatch_lock_new(client, "c:kind", options, &lock));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_set_token(lock, ""));
    CHECK_OK(redlatch_lock_set_token(lock, "request-7"));
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK(redis_says("request-7", redis("GET", "c:kind", NULL)));
    /* It does not enter again, and it is no reentrant lock. */
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_FOREIGN_KIND, redlatch_lock_acquire(reentrant, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    CHECK(!exists("c:kind"));

    CHECK_OK(redlatch_lock_set_token(lock, NULL));
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_holder(lock, owner, sizeof owner, NULL, NULL));
    CHECK(redis_says(owner, redis("GET", "c:kind", NULL)) && strlen(owner) > 36);
    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    /* A kind without tokens refuses one, and goes on as before. */
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_set_token(reentrant, "x"));
    CHECK(strstr(redlatch_last_error(), "reentrant") != NULL && strstr(redlatch_last_error(), "simple") != NULL);
    CHECK_OK(redlatch_lock_set_token(reentrant, NULL));
    CHECK_OK(redlatch_lock_acquire(reentrant, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(reentrant, 1));
    redlatch_options_free(options);
    redlatch_lock_free(reentrant);
    redlatch_lock_free(lock);
    close_client(client);
}

static void the_same_owner_enters_again(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:again");
    redlatch_lock *twin = lock_of(client, "c:again");

    CHECK_OK(redlatch_lock_acquire(lock, 7, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_acquire(twin, 7, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_acquire(lock, 7, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK(redlatch_lock_hold_count(twin, 7) == 3);
    CHECK(redis_says("3", redis("HVALS", "c:again", NULL)));
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(lock, 8, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));

    /* Whichever handle of the name releases: each call gives back one level. */
    CHECK_OK(redlatch_lock_release(twin, 7));
    CHECK_OK(redlatch_lock_release(twin, 7));
    CHECK(redlatch_lock_hold_count(lock, 7) == 1);
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, 8));
    CHECK_OK(redlatch_lock_release(lock, 7));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, 7));
    CHECK(!exists("c:again"));
    redlatch_lock_free(twin);
    redlatch_lock_free(lock);
    close_client(client);
}

struct counting {
    redlatch_lock *lock;
    int rounds;
    int value; /* protected by the lock only */
};

static void *count_up(void *data)
{
    struct counting *counting = data;
    intptr_t failures = 0;
    for (int round = 0; round < counting->rounds; round++) {
        if (redlatch_lock_acquire(counting->lock, REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL) != 0) {
            failures++;
            continue;
        }
        int before = counting->value;
        sched_yield();
        counting->value = before + 1;
        failures += redlatch_lock_release(counting->lock, REDLATCH_THREAD) != 0;
    }
    return (void *)failures;
}

static void threads_exclude_each_other(void)
{
    enum { THREADS = 8 };
    redlatch_client *clients[2] = {open_client(), open_client()};
    redlatch_lock *locks[2] = {lock_of(clients[0], "c:threads"), lock_of(clients[1], "c:threads")};
    struct counting first = {locks[0], scaled(50), 0};
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, count_up, &first) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *failures = NULL;
        pthread_join(threads[i], &failures);
        CHECK(failures == NULL);
    }
    CHECK(first.value == THREADS * scaled(50));
    CHECK_OK(redlatch_lock_acquire(locks[1], REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(locks[1], REDLATCH_THREAD));
    CHECK(!exists("c:threads"));
    for (int i = 0; i < 2; i++) {
        redlatch_lock_free(locks[i]);
        close_client(clients[i]);
    }
}

enum { OWNERS = 1000 };

static void *make_owners(void *data)
{
    uint64_t *owners = data;
    for (int i = 0; i < OWNERS; i++)
        owners[i] = redlatch_owner_new();
    return NULL;
}

static int compare_owners(const void *left, const void *right)
{
    uint64_t one = *(const uint64_t *)left, other = *(const uint64_t *)right;
    return (one > other) - (one < other);
}

static void a_new_owner_is_nobody_else(void)
{
    static uint64_t owners[2 * OWNERS];
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:owners");
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, make_owners, owners) == 0);
    make_owners(owners + OWNERS);
    pthread_join(thread, NULL);
    qsort(owners, 2 * OWNERS, sizeof owners[0], compare_owners);
    for (int i = 1; i < 2 * OWNERS; i++)
        CHECK(owners[i - 1] < owners[i]);
    CHECK(owners[0] > UINT32_MAX && owners[2 * OWNERS - 1] < UINT64_C(1) << 53);

    CHECK_OK(redlatch_lock_acquire(lock, owners[0], 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(lock, owners[1], 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, owners[1]));
    CHECK_OK(redlatch_lock_release(lock, owners[0]));
    redlatch_lock_free(lock);
    close_client(client);
}

static void a_wait_ends_in_time(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *held = lock_of(other, "c:wait"), *lock = lock_of(client, "c:wait");
    int64_t began;

    CHECK_OK(redlatch_lock_acquire(held, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    began = now_ms();
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(lock, 1, 200, REDLATCH_LOCK_LEASE, NULL));
    CHECK(now_ms() - began >= 199);
    CHECK(strstr(redlatch_last_error(), "c:wait") != NULL);
    CHECK(redlatch_status_retryable(REDLATCH_TIMEOUT) && !redlatch_status_retryable(REDLATCH_LOST));
    CHECK(counter(client, "waiting") == 0 && counter(client, "timeouts") == 1);
    CHECK_OK(redlatch_lock_release(held, 1));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(held);
    redlatch_lock_free(lock);
    close_client(client);
    close_client(other);
}

static void a_fixed_lease_ends_by_itself(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:fixed");

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 30000, NULL));
    CHECK(redlatch_lock_remaining_ms(lock, 1) <= 30000);
    CHECK_OK(redlatch_lock_extend(lock, 1, 600000));
    CHECK(redlatch_lock_remaining_ms(lock, 1) > 30000);
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(acquire_patiently(lock, 1, 500));
    EVENTUALLY(!redlatch_lock_is_held(lock, 1));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_check(lock, 1));
    CHECK(redlatch_last_lost_reason() == REDLATCH_LOST_EXPIRED);
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, 1));
    CHECK(redlatch_last_lost_reason() == 0);
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_extend(lock, 1, 2000));
    redlatch_lock_free(lock);
    close_client(client);
}

/* It was lost until the owner had released what it had left to its lease. */
static void a_fixed_lease_that_was_left_to_run_out_is_acquired_anew(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:left");
    const uint64_t owners[] = {1, REDLATCH_THREAD};

    for (int at = 0; at < 2; at++) {
        CHECK_OK(redlatch_lock_acquire(lock, owners[at], 10000, 200, NULL));
        EVENTUALLY(!redlatch_lock_is_held(lock, owners[at]));
        CHECK_OK(redlatch_lock_acquire(lock, owners[at], 10000, REDLATCH_LOCK_LEASE, NULL));
        CHECK_OK(redlatch_lock_release(lock, owners[at]));
        CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, owners[at]));
    }
    redlatch_lock_free(lock);
    close_client(client);
}

static void a_hold_outlives_its_lease(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:renewed", "watchdog_lease", "6s");

    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
    EVENTUALLY(counter(client, "renewed") >= 4);
    CHECK(redlatch_lock_is_held(lock, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    redlatch_lock_free(lock);
    close_client(client);
}

static void tokens_grow(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:token", "fencing", "true");
    uint64_t last = 0, token = 0;

    for (int i = 0; i < 3; i++) {
        CHECK_OK(redlatch_lock_acquire(lock, 5, 0, REDLATCH_LOCK_LEASE, &token));
        CHECK(token > last);
        CHECK(redlatch_lock_fencing_token(lock, 5) == token);
        last = token;
        CHECK_OK(redlatch_lock_acquire(lock, 5, 0, REDLATCH_LOCK_LEASE, &token));
        CHECK(token == last);
        CHECK_OK(redlatch_lock_release(lock, 5));
        CHECK_OK(redlatch_lock_release(lock, 5));
    }
    CHECK(redlatch_lock_fencing_token(lock, 5) == 0);
    redlatch_lock_free(lock);
    close_client(client);
}

static void whoever_knows_the_token_releases_it(void)
{
    redlatch_client *first = open_client(), *second = open_client();
    redlatch_lock *lock = lock_with(first, "c:passed-on", "kind", "simple");
    redlatch_lock *there = lock_with(second, "c:passed-on", "kind", "simple");

    CHECK_OK(redlatch_lock_set_token(lock, "job 7"));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 60000, NULL));
    CHECK_OK(redlatch_lock_set_token(there, "job 7"));
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(there, 1, 0, 60000, NULL));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release_token(there, "job 8"));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_extend_token(there, "job 8", 120000));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_release_token(there, NULL));
    CHECK_OK(redlatch_lock_extend_token(there, "job 7", 120000));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_adopt(there, 2, "job 8", REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_adopt(there, 2, "job 7", REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_adopt(there, 2, "job 7", REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release_token(there, "job 7"));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    CHECK(redlatch_lock_is_held(there, 2));
    CHECK_OK(redlatch_lock_release(there, 2));
    CHECK(!exists("c:passed-on"));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 60000, NULL));
    CHECK_OK(redlatch_lock_release_token(there, "job 7"));
    CHECK(!exists("c:passed-on"));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    redlatch_lock_free(there);
    redlatch_lock_free(lock);
    close_client(second);
    close_client(first);
}

static void forcing_frees_it(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:forced");
    bool deleted = true;

    CHECK_OK(redlatch_lock_force_release(lock, &deleted));
    CHECK(!deleted);
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_force_release(lock, &deleted));
    CHECK(deleted && !exists("c:forced"));
    EVENTUALLY(!redlatch_lock_is_held(lock, 1));
    /* A lost hold stays until each level of it is released. */
    for (int level = 0; level < 2; level++) {
        CHECK_STATUS(REDLATCH_LOST, redlatch_lock_check(lock, 1));
        CHECK_STATUS(REDLATCH_LOST, redlatch_lock_extend(lock, 1, 60000));
        CHECK_STATUS(REDLATCH_LOST, redlatch_lock_acquire(lock, 1, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
        CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
        CHECK(redlatch_last_lost_reason() == REDLATCH_LOST_FORCED);
    }
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

static void *acquire_and_end(void *lock)
{
    return acquire_patiently(lock, REDLATCH_THREAD, REDLATCH_LOCK_LEASE) == REDLATCH_OK ? lock : NULL;
}

static void what_an_ended_thread_held_ends_with_its_lease(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:ended", "watchdog_lease", "1s");
    pthread_t thread;
    void *acquired = NULL;

    CHECK(pthread_create(&thread, NULL, acquire_and_end, lock) == 0);
    pthread_join(thread, &acquired);
    CHECK(acquired != NULL);
    /* Another thread is another owner, even if the system gives it the same id. */
    CHECK(!redlatch_lock_is_held(lock, REDLATCH_THREAD));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, REDLATCH_THREAD));
    EVENTUALLY(!exists("c:ended"));
    redlatch_lock_free(lock);
    close_client(client);
}

static void what_a_freed_lock_held_ends_with_its_lease(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:freed", "watchdog_lease", "2s");

    CHECK_OK(acquire_patiently(lock, 3, REDLATCH_LOCK_LEASE));
    redlatch_lock_free(lock);
    CHECK(exists("c:freed")); /* freeing does no I/O */
    EVENTUALLY(!exists("c:freed"));
    close_client(client);
}

static void locks_keep_their_client(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:kept");

    redlatch_client_free(client);
    CHECK_OK(redlatch_lock_acquire(lock, 3, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, 3));
    redlatch_lock_free(lock);
}

static void close_releases_and_refuses(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:closed");

    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_client_close(client, REDLATCH_CLOSE_LIMIT));
    CHECK(!exists("c:closed"));
    CHECK(!redlatch_lock_is_held(lock, REDLATCH_THREAD));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_client_close(client, 0));
    redlatch_lock_free(lock);
    redlatch_client_free(client);
}

static void closing_names_what_could_not_be_released(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:left");

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK(redis_says("OK", redis("CLIENT", "PAUSE", "300", "ALL", NULL)));
    CHECK_STATUS(REDLATCH_UNAVAILABLE, redlatch_client_close(client, 20));
    CHECK(strstr(redlatch_last_error(), "c:left") != NULL);
    redlatch_lock_free(lock);
    redlatch_client_free(client);
    redis("DEL", "c:left", NULL);
}

static void options_are_layered(void)
{
    redlatch_options *all = options_of("fencing", "true");
    redlatch_client *client = NULL;
    redlatch_lock *lock = NULL, *without = NULL;
    redlatch_options *none = options_of("fencing", NULL);
    uint64_t token = 0;

    CHECK_OK(redlatch_options_set(all, "connect_timeout", "2s"));
    CHECK_OK(redlatch_client_open(NULL, all, &client));
    redlatch_options_free(all);
    CHECK_OK(redlatch_lock_new(client, "c:layers", NULL, &lock));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, &token));
    CHECK(token != 0);
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_lock_new(client, "c:layers", none, &without));
    redlatch_options_free(none);
    CHECK_OK(redlatch_lock_acquire(without, 1, 0, REDLATCH_LOCK_LEASE, &token));
    CHECK(token == 0);
    CHECK_OK(redlatch_lock_release(without, 1));
    redlatch_lock_free(lock);
    redlatch_lock_free(without);
    close_client(client);
}

static void names_may_contain_nul(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = NULL, *shorter = lock_of(client, "c:n");

    CHECK_OK(redlatch_lock_new_n(client, "c:n\0ul", 6, NULL, &lock));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_acquire(shorter, 2, 0, REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(lock, 2));
    CHECK(strstr(redlatch_last_error(), "ul") != NULL); /* not cut at the NUL */
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_lock_release(shorter, 2));
    redlatch_lock_free(lock);
    redlatch_lock_free(shorter);
    close_client(client);
}

struct told {
    atomic_int count;
    atomic_int warned;
};

static void count_event(void *user, int32_t level, const char *kind, const char *lock, const char *text)
{
    struct told *told = user;
    if (kind[0] != '\0' && text[0] != '\0')
        atomic_fetch_add(&told->count, 1);
    if (level == REDLATCH_LEVEL_WARN && lock != NULL && strcmp(lock, "c:log") == 0)
        atomic_fetch_add(&told->warned, 1);
}

static void events_reach_the_log(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:log");
    struct told told = {0, 0};
    int before;

    CHECK_OK(redlatch_client_on_event(client, count_event, &told));
    EVENTUALLY(atomic_load(&told.count) > 0); /* connected: it happened before */
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    redis("DEL", "c:log", NULL);
    EVENTUALLY(atomic_load(&told.warned) > 0);
    CHECK_OK(redlatch_client_on_event(client, NULL, NULL));
    before = atomic_load(&told.count);
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
    CHECK(atomic_load(&told.count) == before);
}

static void keep_event(void *user, int32_t level, const char *kind, const char *lock, const char *text)
{
    char *shown = user;
    (void)level;
    if (strcmp(kind, "lost") == 0 && lock != NULL && shown[0] == '\0') {
        snprintf(shown + 1, 255, "%s|%s", lock, text);
        __atomic_store_n(shown, '!', __ATOMIC_RELEASE);
    }
}

/* A name is what somebody has typed: it must not write lines of its own into a log, or colour a terminal. */
static void events_escape_what_cannot_be_printed(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:\x1b[31m\nlog \"\\\xc3\xa9");
    char shown[256] = "";

    CHECK_OK(redlatch_client_on_event(client, keep_event, shown));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    redis("DEL", "c:\x1b[31m\nlog \"\\\xc3\xa9", NULL);
    EVENTUALLY(__atomic_load_n(shown, __ATOMIC_ACQUIRE) == '!');
    if (!CHECK(strstr(shown + 1, "c:\\u{1b}[31m\\nlog \"\\\xc3\xa9|") == shown + 1))
        printf("  %s\n", shown + 1);
    CHECK(strchr(shown, '\n') == NULL && strchr(shown, '\x1b') == NULL);
    CHECK_OK(redlatch_client_on_event(client, NULL, NULL));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

static void count_waiter(void *user, const redlatch_holder *waiter)
{
    CHECK(waiter->count == 0 && waiter->remaining_ms > 0 && waiter->pid == (uint32_t)getpid());
    ++*(int *)user;
}

static int waiters(redlatch_lock *lock)
{
    int found = 0;
    CHECK_OK(redlatch_lock_waiters(lock, count_waiter, &found));
    return found;
}

static void *take_a_turn(void *lock)
{
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, REDLATCH_FOREVER, 0, NULL));
    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    return NULL;
}

static void the_queue_of_a_fair_lock_can_be_asked(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = NULL, *plain = lock_of(client, "c:fair");
    redlatch_options *options = NULL;
    pthread_t first, second;

    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, "kind", "fair"));
    CHECK_OK(redlatch_lock_new(client, "c:fair", options, &lock));
    redlatch_options_free(options);
    CHECK_OK(redlatch_lock_acquire(lock, 1, REDLATCH_FOREVER, 0, NULL));
    CHECK(waiters(lock) == 0);
    CHECK(pthread_create(&first, NULL, take_a_turn, lock) == 0);
    EVENTUALLY(waiters(lock) == 1);
    CHECK(pthread_create(&second, NULL, take_a_turn, lock) == 0);
    EVENTUALLY(waiters(lock) == 2);
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK(pthread_join(first, NULL) == 0 && pthread_join(second, NULL) == 0);
    CHECK(waiters(lock) == 0);

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_waiters(plain, count_waiter, NULL));
    CHECK(strstr(redlatch_last_error(), "of the kind reentrant; give it the kind fair") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_waiters(lock, NULL, NULL));
    redlatch_lock_free(plain);
    redlatch_lock_free(lock);
    close_client(client);
}

MAIN(TEST(acquire_and_release), TEST(the_queue_of_a_fair_lock_can_be_asked), TEST(a_thread_makes_its_calls_on_the_direct_connection),
     TEST(a_simple_lock_is_a_string), TEST(the_same_owner_enters_again), TEST(threads_exclude_each_other),
     TEST(a_new_owner_is_nobody_else), TEST(a_wait_ends_in_time), TEST(a_fixed_lease_ends_by_itself),
     TEST(a_fixed_lease_that_was_left_to_run_out_is_acquired_anew), TEST(a_hold_outlives_its_lease),
     TEST(tokens_grow), TEST(whoever_knows_the_token_releases_it), TEST(forcing_frees_it), TEST(what_an_ended_thread_held_ends_with_its_lease),
     TEST(what_a_freed_lock_held_ends_with_its_lease), TEST(locks_keep_their_client),
     TEST(close_releases_and_refuses), TEST(closing_names_what_could_not_be_released),
     TEST(options_are_layered), TEST(names_may_contain_nul), TEST(events_reach_the_log),
     TEST(events_escape_what_cannot_be_printed))
