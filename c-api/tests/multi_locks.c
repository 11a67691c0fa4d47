/* Several locks as one. */
#include "redis.h"

#include <pthread.h>
#include <stdatomic.h>

/* The multi lock of two names. Its locks are freed before it. */
static redlatch_lock *both_of(redlatch_client *client, const char *one, const char *other)
{
    redlatch_lock *locks[2] = {lock_of(client, one), lock_of(client, other)}, *both = NULL;
    CHECK_OK(redlatch_multi_lock_new(client, locks, 2, &both));
    redlatch_lock_free(locks[0]);
    redlatch_lock_free(locks[1]);
    return both;
}

static redlatch_status try_acquire(redlatch_lock *lock, uint64_t owner)
{
    return redlatch_lock_acquire(lock, owner, 0, REDLATCH_LOCK_LEASE, NULL);
}

static void an_owner_has_all_of_its_names_or_none(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *both = both_of(client, "c:multi:b", "c:multi:a"), *theirs = lock_of(other, "c:multi:b");

    CHECK_OK(try_acquire(both, 1));
    CHECK(exists("c:multi:a") && exists("c:multi:b"));
    CHECK(redlatch_lock_is_held(both, 1) && redlatch_lock_remaining_ms(both, 1) > 0);
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(theirs, 1));
    CHECK_OK(redlatch_lock_extend(both, 1, 100000));
    CHECK_OK(try_acquire(both, 1));
    CHECK(redlatch_lock_hold_count(both, 1) == 2);
    CHECK_OK(redlatch_lock_release(both, 1));
    CHECK(exists("c:multi:a"));
    CHECK_OK(redlatch_lock_release(both, 1));
    CHECK(!exists("c:multi:a") && !exists("c:multi:b"));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(both, 1));
    CHECK_OK(try_acquire(theirs, 1));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(both, 1));
    CHECK(strstr(redlatch_last_error(), "multi lock \"c:multi:a, c:multi:b\": ") != NULL);
    CHECK(strstr(redlatch_last_error(), "somebody else holds \"c:multi:b\"") != NULL);
    EVENTUALLY(!exists("c:multi:a"));
    CHECK_OK(redlatch_lock_release(theirs, 1));
    redlatch_lock_free(both);
    redlatch_lock_free(theirs);
    close_client(client);
    close_client(other);
}

struct caller {
    redlatch_lock *both;
    atomic_int *inside;
};

static void *takes_turns(void *given)
{
    struct caller *caller = given;
    for (int round = 0; round < 30; round++) {
        CHECK_OK(redlatch_lock_acquire(caller->both, REDLATCH_THREAD, LIMIT_MS, REDLATCH_LOCK_LEASE, NULL));
        CHECK(atomic_fetch_add(caller->inside, 1) == 0);
        atomic_fetch_sub(caller->inside, 1);
        CHECK_OK(redlatch_lock_release(caller->both, REDLATCH_THREAD));
    }
    return NULL;
}

static void names_in_any_order_never_wait_for_each_other(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *locks[] = {both_of(client, "c:multi:a", "c:multi:b"), both_of(client, "c:multi:b", "c:multi:a"),
                              both_of(other, "c:multi:a", "c:multi:b"), both_of(other, "c:multi:b", "c:multi:a")};
    pthread_t threads[4];
    struct caller callers[4];
    atomic_int inside = 0;

    for (int i = 0; i < 4; i++) {
        callers[i].both = locks[i];
        callers[i].inside = &inside;
        CHECK(pthread_create(&threads[i], NULL, takes_turns, &callers[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 4; i++)
        redlatch_lock_free(locks[i]);
    close_client(client);
    close_client(other);
}

static void the_loss_of_one_is_the_loss_of_the_whole(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *both = both_of(client, "c:multi:a", "c:multi:b");

    CHECK_OK(try_acquire(both, 1));
    redis("DEL", "c:multi:b", NULL);
    EVENTUALLY(redlatch_lock_check(both, 1) == REDLATCH_LOST);
    CHECK(exists("c:multi:a"));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(both, 1));
    CHECK(strstr(redlatch_last_error(), "\"c:multi:b\"") != NULL);
    EVENTUALLY(!exists("c:multi:a"));
    redlatch_lock_free(both);
    close_client(client);
}

static void its_locks_may_be_of_any_kind(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *read, *write, *fenced, *seats, *all;

    CHECK_OK(redlatch_rw_lock_new(client, "c:multi:rw", NULL, &read, &write));
    fenced = lock_with(client, "c:multi:fenced", "fencing", "true");
    CHECK_OK(redlatch_semaphore_new(client, "c:multi:seats", 2, NULL, &seats));
    {
        redlatch_lock *locks[] = {seats, read, fenced};
        CHECK_OK(redlatch_multi_lock_new(client, locks, 3, &all));
    }
    CHECK_OK(try_acquire(all, 1));
    CHECK(redlatch_lock_fencing_token(all, 1) == 0 && redlatch_lock_fencing_token(fenced, 1) > 0);
    CHECK_OK(try_acquire(read, 2));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(write, 3));
    CHECK_OK(redlatch_lock_release(read, 2));
    CHECK_OK(redlatch_lock_release(all, 1));
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    redlatch_lock_free(fenced);
    redlatch_lock_free(seats);
    redlatch_lock_free(all);
    close_client(client);
}

static void bad_arguments_are_refused(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *locks[2] = {lock_of(client, "c:multi:a"), NULL}, *theirs = lock_of(other, "c:multi:b");
    redlatch_lock *both = (redlatch_lock *)client;
    bool locked;

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, locks, 2, &both));
    CHECK(both == NULL && strstr(redlatch_last_error(), "locks[1] is NULL") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, locks, 0, &both));
    CHECK(strstr(redlatch_last_error(), "at least one") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, NULL, 1, &both));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, locks, SIZE_MAX, &both));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(NULL, locks, 1, &both));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, locks, 1, NULL));
    locks[1] = locks[0];
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, locks, 2, &both));
    CHECK(strstr(redlatch_last_error(), "\"c:multi:a\": ") != NULL);
    locks[1] = theirs;
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, locks, 2, &both));
    CHECK(strstr(redlatch_last_error(), "another client") != NULL);
    CHECK_OK(redlatch_multi_lock_new(client, locks, 1, &both));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_is_locked(both, &locked));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_set_token(both, "t"));
    redlatch_lock_free(both);
    redlatch_lock_free(locks[0]);
    redlatch_lock_free(theirs);
    close_client(client);
    close_client(other);
}

MAIN(TEST(an_owner_has_all_of_its_names_or_none), TEST(names_in_any_order_never_wait_for_each_other),
     TEST(the_loss_of_one_is_the_loss_of_the_whole), TEST(its_locks_may_be_of_any_kind),
     TEST(bad_arguments_are_refused))
