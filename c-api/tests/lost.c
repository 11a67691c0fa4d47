/* Told of a loss: the function registered with redlatch_lock_on_lost(). */
#include "redis.h"

#include <pthread.h>

/* Milliseconds, with room for a busy machine; every lease here is far longer. */
#define SOON_MS 2000

/* The arguments of the function, and a way to wait for it. */
struct told {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int calls;
    uint64_t owner, token;
    redlatch_lost_reason reason;
    int64_t at;
    pthread_t thread;
    bool blocks; /* the function waits until this is false */
};

#define NOT_TOLD {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0, 0, pthread_self(), false}

static void tell(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    struct told *told = user;
    pthread_mutex_lock(&told->mutex);
    told->calls++;
    told->owner = owner;
    told->token = token;
    told->reason = reason;
    told->at = now_ms();
    told->thread = pthread_self();
    pthread_cond_broadcast(&told->changed);
    while (told->blocks)
        pthread_cond_wait(&told->changed, &told->mutex);
    pthread_mutex_unlock(&told->mutex);
}

static int wait_for_calls(struct told *told, int wanted)
{
    struct timespec until;
    int calls;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LIMIT_MS / 1000;
    pthread_mutex_lock(&told->mutex);
    while (told->calls < wanted && pthread_cond_timedwait(&told->changed, &told->mutex, &until) == 0) {
    }
    calls = told->calls;
    pthread_mutex_unlock(&told->mutex);
    return calls == wanted;
}

/* Deletes the key as an administrator would: the holder hears of it at once. */
static void delete_and_check(struct told *told, redlatch_lock *lock, const char *name, uint64_t owner, int calls)
{
    int64_t deleted = now_ms();
    CHECK(redis_says("1", redis("DEL", name, NULL)));
    if (CHECK(wait_for_calls(told, calls))) {
        CHECK(told->at - deleted < SOON_MS);
        CHECK(told->owner == owner && told->reason == REDLATCH_LOST_DELETED);
        CHECK(!pthread_equal(told->thread, pthread_self()));
    }
    CHECK(!redlatch_lock_is_held(lock, owner));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_check(lock, owner));
    CHECK(redlatch_last_lost_reason() == REDLATCH_LOST_DELETED);
}

static void after_acquire(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:lost", "fencing", "true");
    struct told told = NOT_TOLD;
    uint64_t token = 0;

    CHECK_OK(redlatch_lock_on_lost(lock, tell, &told));
    for (int i = 1; i <= 3; i++) {
        CHECK_OK(redlatch_lock_acquire(lock, 40 + (uint64_t)i, 0, 0, &token));
        delete_and_check(&told, lock, "c:lost", 40 + (uint64_t)i, i);
        CHECK(told.token == token);
        CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 40 + (uint64_t)i));
    }
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, 0, NULL));
    delete_and_check(&told, lock, "c:lost", REDLATCH_THREAD, 4);
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, REDLATCH_THREAD));
    redlatch_lock_free(lock);
    close_client(client);
    CHECK(told.calls == 4);
}

static void after_a_renewal(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:lost", "watchdog_lease", "9s");
    struct told told = NOT_TOLD;

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_on_lost(lock, tell, &told)); /* registered late */
    EVENTUALLY(counter(client, "renewed") > 0);
    delete_and_check(&told, lock, "c:lost", 1, 1);
    redlatch_lock_free(lock);
    close_client(client);
}

static void after_re_entry_and_partial_release(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:lost");
    struct told told = NOT_TOLD;

    CHECK_OK(redlatch_lock_on_lost(lock, tell, &told));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    delete_and_check(&told, lock, "c:lost", 1, 1);
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_release(lock, 1));
    delete_and_check(&told, lock, "c:lost", 1, 2);
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
    CHECK(told.calls == 2); /* once per loss, not once per level */
}

static void after_a_reconnect(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:lost");
    struct told told = NOT_TOLD;
    uint64_t renewed;

    CHECK_OK(redlatch_lock_on_lost(lock, tell, &told));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    renewed = counter(client, "renewed");
    redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes", NULL);
    EVENTUALLY(counter(client, "renewed") > renewed);
    CHECK(redlatch_lock_is_held(lock, 1));
    delete_and_check(&told, lock, "c:lost", 1, 1);
    redlatch_lock_free(lock);
    close_client(client);
}

static void by_close_and_by_force(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:lost"), *forced = lock_of(client, "c:lost:forced");
    struct told told = NOT_TOLD, told_forced = NOT_TOLD;

    CHECK_OK(redlatch_lock_on_lost(lock, tell, &told));
    CHECK_OK(redlatch_lock_on_lost(forced, tell, &told_forced));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire(forced, 2, 0, 0, NULL));
    CHECK_OK(redlatch_lock_force_release(forced, NULL));
    CHECK(wait_for_calls(&told_forced, 1) && told_forced.reason == REDLATCH_LOST_FORCED);
    CHECK(told.calls == 0);
    CHECK_OK(redlatch_client_close(client, 10000));
    CHECK(wait_for_calls(&told, 1) && told.reason == REDLATCH_LOST_CLOSED);
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_check(lock, 1));
    CHECK(redlatch_last_lost_reason() == REDLATCH_LOST_CLOSED);
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_check(lock, 2));
    redlatch_lock_free(lock);
    redlatch_lock_free(forced);
    redlatch_client_free(client);
    CHECK(told.calls == 1 && told_forced.calls == 1);
}

static void a_release_is_no_loss(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:lost");
    struct told told = NOT_TOLD;

    CHECK_OK(redlatch_lock_on_lost(lock, tell, &told));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_lock_acquire(lock, 2, 0, 0, NULL));
    delete_and_check(&told, lock, "c:lost", 2, 1);
    redlatch_lock_free(lock);
    close_client(client);
    CHECK(told.calls == 1);
}

static void *let_it_go_on(void *user)
{
    struct told *told = user;
    pause_ms(50); /* so that the other thread has begun to wait */
    pthread_mutex_lock(&told->mutex);
    told->blocks = false;
    pthread_cond_broadcast(&told->changed);
    pthread_mutex_unlock(&told->mutex);
    return NULL;
}

static void unregistering_waits_for_a_running_call(void)
{
    for (int by_free = 0; by_free < 2; by_free++) {
        redlatch_client *client = open_client();
        redlatch_lock *lock = lock_of(client, "c:lost");
        struct told told = NOT_TOLD;
        pthread_t thread;

        told.blocks = true;
        CHECK_OK(redlatch_lock_on_lost(lock, tell, &told));
        CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
        redis("DEL", "c:lost", NULL);
        CHECK(wait_for_calls(&told, 1));
        CHECK(pthread_create(&thread, NULL, let_it_go_on, &told) == 0);
        if (by_free) {
            redlatch_lock_free(lock);
            CHECK(!told.blocks);
        } else {
            CHECK_OK(redlatch_lock_on_lost(lock, NULL, NULL));
            CHECK(!told.blocks);
            redlatch_lock_free(lock);
        }
        pthread_join(thread, NULL);
        close_client(client);
    }
}

/* A function calls the library that calls it. */
struct acting {
    struct told told;
    redlatch_client *client;
    redlatch_lock *lock;
    redlatch_status released, acquired, unregistered;
};

static void act(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    struct acting *acting = user;
    acting->released = redlatch_lock_release(acting->lock, owner);
    acting->acquired = acquire_patiently(acting->lock, owner, REDLATCH_LOCK_LEASE);
    acting->unregistered = redlatch_lock_on_lost(acting->lock, NULL, NULL);
    redlatch_lock_free(acting->lock);
    redlatch_client_free(acting->client); /* the last handle: its own thread ends the thread */
    tell(&acting->told, owner, token, reason);
}

static void the_function_may_call_the_library(void)
{
    struct acting acting = {NOT_TOLD, open_client(), NULL, -1, -1, -1};
    acting.lock = lock_with(acting.client, "c:lost", "watchdog_lease", "6s");

    CHECK_OK(redlatch_lock_on_lost(acting.lock, act, &acting));
    CHECK_OK(redlatch_lock_acquire(acting.lock, 1, 0, 0, NULL));
    redis("DEL", "c:lost", NULL);
    CHECK(wait_for_calls(&acting.told, 1));
    CHECK_STATUS(REDLATCH_LOST, acting.released);
    CHECK_OK(acting.acquired);
    CHECK_OK(acting.unregistered);
    EVENTUALLY(!exists("c:lost"));
}

static void each_handle_is_told(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *first = lock_of(client, "c:lost"), *second = lock_of(client, "c:lost");
    struct told told_first = NOT_TOLD, told_second = NOT_TOLD;

    CHECK_OK(redlatch_lock_on_lost(first, tell, &told_first));
    CHECK_OK(redlatch_lock_on_lost(second, tell, &told_second));
    CHECK_OK(redlatch_lock_acquire(first, 1, 0, 0, NULL));
    for (int i = 0; i < 3; i++) { /* entering and leaving again and again adds no call */
        CHECK_OK(redlatch_lock_acquire(second, 1, 0, 0, NULL));
        CHECK_OK(redlatch_lock_release(second, 1));
    }
    redis("DEL", "c:lost", NULL);
    CHECK(wait_for_calls(&told_first, 1));
    CHECK(wait_for_calls(&told_second, 1));
    redlatch_lock_free(first);
    redlatch_lock_free(second);
    close_client(client);
    CHECK(told_first.calls == 1 && told_second.calls == 1);
}

static void while_the_function_blocks_locks_are_renewed_and_calls_answered(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:lost:blocked"), *third = lock_of(client, "c:lost:third");
    redlatch_lock *held = lock_with(client, "c:lost:held", "watchdog_lease", "6s");
    struct told told = NOT_TOLD;
    uint64_t renewed;

    told.blocks = true;
    CHECK_OK(redlatch_lock_on_lost(lock, tell, &told));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(acquire_patiently(held, 1, REDLATCH_LOCK_LEASE));
    redis("DEL", "c:lost:blocked", NULL);
    CHECK(wait_for_calls(&told, 1));
    renewed = counter(client, "renewed");
    EVENTUALLY(counter(client, "renewed") > renewed + 1);
    CHECK_OK(redlatch_lock_check(held, 1));
    CHECK_OK(redlatch_lock_acquire(third, 1, LIMIT_MS, 0, NULL));
    CHECK_OK(redlatch_lock_release(third, 1));
    CHECK_OK(redlatch_lock_release(held, 1));
    pthread_mutex_lock(&told.mutex);
    told.blocks = false;
    pthread_cond_broadcast(&told.changed);
    pthread_mutex_unlock(&told.mutex);
    redlatch_lock_free(lock);
    redlatch_lock_free(held);
    redlatch_lock_free(third);
    close_client(client);
}

MAIN(TEST(after_acquire), TEST(after_a_renewal), TEST(after_re_entry_and_partial_release),
     TEST(after_a_reconnect), TEST(by_close_and_by_force), TEST(a_release_is_no_loss),
     TEST(unregistering_waits_for_a_running_call),
     TEST(while_the_function_blocks_locks_are_renewed_and_calls_answered), TEST(the_function_may_call_the_library),
     TEST(each_handle_is_told))
