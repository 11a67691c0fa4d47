/* Semaphores: permits, their number, and what is left of them. */
#include "redis.h"

#include <pthread.h>

static redlatch_status try_acquire(redlatch_lock *lock, uint64_t owner)
{
    return redlatch_lock_acquire(lock, owner, 0, REDLATCH_LOCK_LEASE, NULL);
}

static void expect_permits(redlatch_lock *semaphore, int64_t available, int64_t limit)
{
    int64_t found = -9, all = -9;

    CHECK_OK(redlatch_semaphore_permits(semaphore, &found, &all));
    CHECK(found == available && all == limit);
}

static void count_holder(void *user, const redlatch_holder *holder)
{
    CHECK(strlen(holder->owner) == 32 && holder->pid == (uint32_t)getpid() && strcmp(holder->language, "c") == 0);
    *(uint32_t *)user += holder->count;
}

static void each_owner_has_its_permits(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *here, *there;
    uint32_t taken = 0;

    CHECK(redis("DEL", "c:sem", "{c:sem}:timeout", NULL) != NULL);
    CHECK_OK(redlatch_semaphore_new(client, "c:sem", 3, NULL, &here));
    CHECK_OK(redlatch_semaphore_new_n(other, "c:sem-", 5, 0, NULL, &there));
    expect_permits(there, 0, 0);
    CHECK_OK(try_acquire(here, 1));
    CHECK_OK(try_acquire(there, 1));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, try_acquire(here, 1));
    expect_permits(here, 1, 3);
    CHECK_OK(redlatch_semaphore_set_take(here, 2));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(here, 2));
    CHECK_OK(redlatch_lock_release(there, 1));
    CHECK_OK(try_acquire(here, 2));
    CHECK(redlatch_lock_is_held(here, 2));
    expect_permits(here, 0, 3);
    CHECK_OK(redlatch_lock_holders(here, count_holder, &taken));
    CHECK(taken == 3);
    CHECK_OK(redlatch_lock_release(here, 2));
    CHECK_OK(redlatch_lock_release(here, 1));
    CHECK_STATUS(REDLATCH_NOT_OWNER, redlatch_lock_release(here, 1));
    expect_permits(here, 3, 3);
    redlatch_lock_free(here);
    redlatch_lock_free(there);
    close_client(client);
    close_client(other);
}

static void the_number_of_permits_can_change(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *semaphore;
    bool freed = false;

    CHECK(redis("DEL", "c:sem:size", "{c:sem:size}:timeout", NULL) != NULL);
    CHECK_OK(redlatch_semaphore_new(client, "c:sem:size", 1, NULL, &semaphore));
    CHECK_OK(try_acquire(semaphore, 1));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(semaphore, 2));
    CHECK_OK(redlatch_semaphore_set_permits(semaphore, 2));
    CHECK_OK(try_acquire(semaphore, 2));
    CHECK_OK(redlatch_semaphore_set_permits(semaphore, 0));
    expect_permits(semaphore, -2, 0);
    CHECK_OK(redlatch_lock_force_release(semaphore, &freed));
    CHECK(freed);
    expect_permits(semaphore, 0, 0);
    redlatch_lock_free(semaphore);
    close_client(client);
}

static void the_client_s_defaults_for_locks_do_not_count(void)
{
    redlatch_client *client = NULL;
    redlatch_options *options;
    redlatch_lock *semaphore;

    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, "fencing", "true"));
    CHECK_OK(redlatch_options_set(options, "reentrant", "true"));
    CHECK_OK(redlatch_client_open(NULL, options, &client));
    CHECK_OK(redlatch_semaphore_new(client, "c:sem:defaults", 1, NULL, &semaphore));
    CHECK_OK(try_acquire(semaphore, 1));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(semaphore, 2));
    CHECK_OK(redlatch_lock_release(semaphore, 1));
    redlatch_lock_free(semaphore);
    redlatch_options_free(options);
    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, "reentrant", "true"));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new(client, "c:sem:defaults", 1, options, &semaphore));
    CHECK(strstr(redlatch_last_error(), "reentrant") != NULL);
    redlatch_options_free(options);
    close_client(client);
}

struct turn {
    redlatch_lock *semaphore;
    pthread_t thread;
    int at;
};

static int turns_taken;
/* One permit keeps the turns apart, but Helgrind does not see what goes through the server. */
static pthread_mutex_t turns_mutex = PTHREAD_MUTEX_INITIALIZER;

static int next_turn(void)
{
    int turn;

    pthread_mutex_lock(&turns_mutex);
    turn = turns_taken++;
    pthread_mutex_unlock(&turns_mutex);
    return turn;
}

static void count_place(void *user, const redlatch_holder *waiter)
{
    CHECK(waiter->count == 1 && waiter->remaining_ms > 0 && waiter->pid == (uint32_t)getpid());
    ++*(int *)user;
}

static int places(redlatch_lock *semaphore)
{
    int found = 0;

    CHECK_OK(redlatch_lock_waiters(semaphore, count_place, &found));
    return found;
}

static void *take_a_turn(void *own)
{
    struct turn *turn = own;

    CHECK_OK(redlatch_lock_acquire(turn->semaphore, REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    CHECK(next_turn() == turn->at);
    CHECK_OK(redlatch_lock_release(turn->semaphore, REDLATCH_THREAD));
    return NULL;
}

static void in_fair_mode_threads_of_two_clients_come_in_their_order(void)
{
    redlatch_client *clients[2] = {open_client(), open_client()};
    redlatch_lock *semaphores[2], *plain;
    redlatch_options *options;
    struct turn turns[3];
    int i;

    CHECK(redis("DEL", "c:sem:fair", "{c:sem:fair}:timeout", NULL) != NULL);
    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, "fair", "true"));
    for (i = 0; i < 2; i++)
        CHECK_OK(redlatch_semaphore_new(clients[i], "c:sem:fair", 1, options, &semaphores[i]));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_new(clients[0], "c:sem:fair", options, &plain));
    CHECK(strstr(redlatch_last_error(), "give a lock the kind fair") != NULL);
    redlatch_options_free(options);
    CHECK_OK(try_acquire(semaphores[0], 1));
    turns_taken = 0;
    for (i = 0; i < 3; i++) {
        turns[i].semaphore = semaphores[(i + 1) % 2];
        turns[i].at = i;
        CHECK(pthread_create(&turns[i].thread, NULL, take_a_turn, &turns[i]) == 0);
        EVENTUALLY(places(semaphores[0]) == i + 1);
    }
    CHECK_OK(redlatch_lock_release(semaphores[0], 1));
    for (i = 0; i < 3; i++)
        CHECK(pthread_join(turns[i].thread, NULL) == 0);
    CHECK(turns_taken == 3 && places(semaphores[1]) == 0);
    CHECK_OK(redlatch_semaphore_new(clients[0], "c:sem:fair", 1, NULL, &plain));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_waiters(plain, count_place, NULL));
    CHECK(strstr(redlatch_last_error(), "give it the option fair") != NULL);
    redlatch_lock_free(plain);
    for (i = 0; i < 2; i++) {
        redlatch_lock_free(semaphores[i]);
        close_client(clients[i]);
    }
}

static void *take_two(void *own)
{
    redlatch_lock *semaphore = own;

    CHECK_OK(redlatch_lock_acquire(semaphore, REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(semaphore, REDLATCH_THREAD));
    return NULL;
}

static void count_two(void *user, const redlatch_holder *waiter)
{
    CHECK(waiter->count == 2);
    ++*(int *)user;
}

static int waits_for_two(redlatch_lock *semaphore)
{
    int found = 0;

    CHECK_OK(redlatch_lock_waiters(semaphore, count_two, &found));
    return found;
}

/* One permit is free, and a waiter of another client wants two. */
static void in_fair_mode_a_try_overtakes_nobody(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *one, *two, *plain;
    redlatch_options *options;
    pthread_t thread;

    CHECK(redis("DEL", "c:sem:try", "{c:sem:try}:timeout", NULL) != NULL);
    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, "fair", "true"));
    CHECK_OK(redlatch_semaphore_new(client, "c:sem:try", 2, options, &one));
    CHECK_OK(redlatch_semaphore_new(other, "c:sem:try", 2, options, &two));
    CHECK_OK(redlatch_semaphore_new(client, "c:sem:try", 2, NULL, &plain));
    redlatch_options_free(options);
    CHECK_OK(redlatch_semaphore_set_take(two, 2));
    CHECK_OK(try_acquire(one, 1));
    CHECK(pthread_create(&thread, NULL, take_two, two) == 0);
    EVENTUALLY(waits_for_two(one) == 1);
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(one, 2));
    CHECK_OK(try_acquire(plain, 3));
    CHECK_OK(redlatch_lock_release(plain, 3));
    CHECK_OK(redlatch_lock_release(one, 1));
    CHECK(pthread_join(thread, NULL) == 0);
    redlatch_lock_free(one);
    redlatch_lock_free(two);
    redlatch_lock_free(plain);
    close_client(client);
    close_client(other);
}

static void wrong_use_is_refused(void)
{
    redlatch_client *client = open_client();
    redlatch_options *options;
    redlatch_lock *semaphore, *lock;
    int64_t found;

    CHECK_OK(redlatch_options_new(&options));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new(client, "", 1, NULL, &semaphore));
    CHECK(semaphore == NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new(client, "c:sem:bad", UINT32_MAX, NULL, &semaphore));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new(client, "c:sem:bad", 1, NULL, NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new(NULL, "c:sem:bad", 1, NULL, &semaphore));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new_n(client, NULL, 1, 1, NULL, &semaphore));
    CHECK_OK(redlatch_options_set(options, "fencing", "true"));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new(client, "c:sem:bad", 1, options, &semaphore));
    CHECK(strstr(redlatch_last_error(), "fencing") != NULL);
    CHECK_OK(redlatch_semaphore_new(client, "c:sem:bad", 2, NULL, &semaphore));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_set_take(semaphore, 0));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_set_take(semaphore, 3));
    CHECK(strstr(redlatch_last_error(), "limit of at least 3") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_set_permits(semaphore, UINT32_MAX));
    CHECK_OK(redlatch_lock_new(client, "c:sem:lock", NULL, &lock));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_permits(lock, &found, NULL));
    CHECK(strstr(redlatch_last_error(), "redlatch_semaphore_new") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_set_permits(lock, 1));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_set_take(lock, 1));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_permits(NULL, &found, NULL));
    redlatch_lock_free(lock);
    redlatch_lock_free(semaphore);
    redlatch_options_free(options);
    close_client(client);
}

MAIN(TEST(each_owner_has_its_permits), TEST(the_number_of_permits_can_change),
     TEST(in_fair_mode_threads_of_two_clients_come_in_their_order),
     TEST(in_fair_mode_a_try_overtakes_nobody), TEST(the_client_s_defaults_for_locks_do_not_count), TEST(wrong_use_is_refused))
