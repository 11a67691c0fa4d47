/* Plain semaphores and latches: numbers without owners, their waits and their events. */
#include "loop.h"
#include "redis.h"

#include <pthread.h>

static redlatch_plain_semaphore *semaphore_of(redlatch_client *client, const char *name)
{
    redlatch_plain_semaphore *semaphore = NULL;
    if (!CHECK_OK(redlatch_plain_semaphore_new(client, name, &semaphore)))
        exit(1);
    return semaphore;
}

static redlatch_latch *latch_of(redlatch_client *client, const char *name)
{
    redlatch_latch *latch = NULL;
    if (!CHECK_OK(redlatch_latch_new(client, name, &latch)))
        exit(1);
    return latch;
}

static void permits_are_a_number_in_redis(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_plain_semaphore *here = semaphore_of(client, "c:seats"), *there = NULL;
    int64_t number = -9;
    bool set = false;

    CHECK(redis("DEL", "c:seats", NULL) != NULL);
    CHECK_OK(redlatch_plain_semaphore_new_n(other, "c:seats-", 7, &there));
    CHECK_OK(redlatch_plain_semaphore_try_set_permits(here, 5, &set));
    CHECK(set);
    CHECK_OK(redlatch_plain_semaphore_try_set_permits(there, 9, &set));
    CHECK(!set);
    CHECK_OK(redlatch_plain_semaphore_acquire(here, 2, 0));
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_plain_semaphore_acquire(there, 4, 0));
    CHECK(strstr(redlatch_last_error(), "c:seats") != NULL);
    CHECK_OK(redlatch_plain_semaphore_acquire(there, 3, 0));
    CHECK(redis_says("0", redis("GET", "c:seats", NULL)));
    CHECK_OK(redlatch_plain_semaphore_release(there, 2)); /* those that the other client took */
    CHECK_OK(redlatch_plain_semaphore_available(here, &number));
    CHECK(number == 2);
    CHECK_OK(redlatch_plain_semaphore_add_permits(here, -5, &number));
    CHECK(number == -3);
    CHECK_OK(redlatch_plain_semaphore_add_permits(here, 7, NULL));
    CHECK_OK(redlatch_plain_semaphore_drain(here, &number));
    CHECK(number == 4 && redis_says("0", redis("GET", "c:seats", NULL)));
    redlatch_plain_semaphore_free(here);
    redlatch_plain_semaphore_free(there);
    close_client(client);
    close_client(other);
}

static void a_latch_opens_at_0(void)
{
    redlatch_client *client = open_client();
    redlatch_latch *latch = latch_of(client, "c:ready"), *same = NULL;
    int64_t number = -9;
    bool set = false;

    CHECK(redis("DEL", "c:ready", NULL) != NULL);
    CHECK_OK(redlatch_latch_new_n(client, "c:ready-", 7, &same));
    CHECK_OK(redlatch_latch_wait(latch, 0)); /* without a count it is open */
    CHECK_OK(redlatch_latch_try_set_count(latch, 3, &set));
    CHECK(set);
    CHECK_OK(redlatch_latch_try_set_count(same, 4, &set));
    CHECK(!set);
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_latch_wait(latch, 0));
    CHECK_OK(redlatch_latch_count_down(same, 1, &number));
    CHECK(number == 2);
    CHECK_OK(redlatch_latch_count(latch, &number));
    CHECK(number == 2 && redis_says("2", redis("GET", "c:ready", NULL)));
    CHECK_OK(redlatch_latch_count_down(latch, 9, &number));
    CHECK(number == 0 && !exists("c:ready"));
    CHECK_OK(redlatch_latch_wait(latch, REDLATCH_FOREVER));
    redlatch_latch_free(latch);
    redlatch_latch_free(same);
    close_client(client);
}

struct waiter {
    redlatch_plain_semaphore *semaphore;
    redlatch_latch *latch;
    redlatch_canceller *canceller;
    redlatch_status status;
    pthread_t thread;
};

static void *wait_for_one(void *data)
{
    struct waiter *waiter = data;
    if (waiter->semaphore != NULL)
        waiter->status = redlatch_plain_semaphore_acquire_cancellable(waiter->semaphore, 2, REDLATCH_FOREVER,
                                                                      waiter->canceller);
    else
        waiter->status = redlatch_latch_wait_cancellable(waiter->latch, REDLATCH_FOREVER, waiter->canceller);
    return NULL;
}

/* Two threads wait for a semaphore and a latch of one client; what another thread does ends their waits. */
static void wait_for_both(redlatch_status wanted, redlatch_canceller *canceller,
                          void (*end)(redlatch_client *, redlatch_canceller *))
{
    redlatch_client *client = open_client(), *other = open_client();
    struct waiter seats = {semaphore_of(client, "c:wait:seats"), NULL, canceller, REDLATCH_INTERNAL, 0};
    struct waiter ready = {NULL, latch_of(client, "c:wait:ready"), canceller, REDLATCH_INTERNAL, 0};

    CHECK(redis("DEL", "c:wait:seats", "c:wait:ready", NULL) != NULL);
    CHECK_OK(redlatch_plain_semaphore_try_set_permits(seats.semaphore, 1, NULL));
    CHECK_OK(redlatch_latch_try_set_count(ready.latch, 1, NULL));
    CHECK(pthread_create(&seats.thread, NULL, wait_for_one, &seats) == 0);
    CHECK(pthread_create(&ready.thread, NULL, wait_for_one, &ready) == 0);
    EVENTUALLY(counter(client, "waiting") == 2);
    end(other, canceller);
    CHECK(pthread_join(seats.thread, NULL) == 0 && pthread_join(ready.thread, NULL) == 0);
    CHECK(seats.status == wanted && ready.status == wanted);
    CHECK(counter(client, "waiting") == 0);
    CHECK(redis_says(wanted == REDLATCH_OK ? "0" : "1", redis("GET", "c:wait:seats", NULL)));
    redlatch_plain_semaphore_free(seats.semaphore);
    redlatch_latch_free(ready.latch);
    close_client(client);
    close_client(other);
}

static void give_and_count(redlatch_client *other, redlatch_canceller *canceller)
{
    redlatch_plain_semaphore *semaphore = semaphore_of(other, "c:wait:seats");
    redlatch_latch *latch = latch_of(other, "c:wait:ready");

    (void)canceller;
    CHECK_OK(redlatch_plain_semaphore_release(semaphore, 1));
    CHECK_OK(redlatch_latch_count_down(latch, 1, NULL));
    redlatch_plain_semaphore_free(semaphore);
    redlatch_latch_free(latch);
}

static void cancel(redlatch_client *other, redlatch_canceller *canceller)
{
    (void)other;
    redlatch_canceller_cancel(canceller);
}

static void waits_end_by_another_client_or_a_canceller(void)
{
    redlatch_canceller *canceller = NULL;

    wait_for_both(REDLATCH_OK, NULL, give_and_count);
    CHECK_OK(redlatch_canceller_new(&canceller));
    wait_for_both(REDLATCH_CANCELLED, canceller, cancel);
    redlatch_canceller_free(canceller);
}

static int has(struct event event, int32_t kind, uint64_t tag, int64_t value)
{
    if (is(event, kind, tag, REDLATCH_OK) && (int64_t)event.value == value)
        return 1;
    printf("  its value is %lld\n", (long long)event.value);
    return 0;
}

static void what_was_started_ends_by_an_event(void)
{
    redlatch_client *client = open_client();
    redlatch_plain_semaphore *semaphore = semaphore_of(client, "c:loop:seats");
    redlatch_latch *latch = latch_of(client, "c:loop:ready");

    CHECK(redis("DEL", "c:loop:seats", "c:loop:ready", NULL) != NULL);
    CHECK_OK(redlatch_plain_semaphore_try_set_permits_start(semaphore, 2, 1));
    CHECK(has(await_event(client), REDLATCH_EVENT_SET, 1, 1));
    CHECK_OK(redlatch_plain_semaphore_acquire_start(semaphore, 2, 0, 2));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 2, REDLATCH_OK));
    CHECK_OK(redlatch_plain_semaphore_acquire_start(semaphore, 1, 0, 3));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 3, REDLATCH_TIMEOUT));
    CHECK_OK(redlatch_plain_semaphore_add_permits_start(semaphore, -3, 4));
    CHECK(has(await_event(client), REDLATCH_EVENT_NUMBER, 4, -3));
    CHECK_OK(redlatch_plain_semaphore_release_start(semaphore, 7, 5));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE, 5, REDLATCH_OK));
    CHECK_OK(redlatch_plain_semaphore_available_start(semaphore, 6));
    CHECK(has(await_event(client), REDLATCH_EVENT_NUMBER, 6, 4));
    CHECK_OK(redlatch_plain_semaphore_drain_start(semaphore, 7));
    CHECK(has(await_event(client), REDLATCH_EVENT_NUMBER, 7, 4));
    CHECK_OK(redlatch_plain_semaphore_release_start(semaphore, 0, 8));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE, 8, REDLATCH_INVALID_ARGUMENT));

    CHECK_OK(redlatch_latch_try_set_count_start(latch, 3, 11));
    CHECK(has(await_event(client), REDLATCH_EVENT_SET, 11, 1));
    CHECK_OK(redlatch_latch_try_set_count_start(latch, 4, 12));
    CHECK(has(await_event(client), REDLATCH_EVENT_SET, 12, 0));
    CHECK_OK(redlatch_latch_wait_start(latch, 0, 13));
    CHECK(is(await_event(client), REDLATCH_EVENT_OPEN, 13, REDLATCH_TIMEOUT));
    CHECK_OK(redlatch_latch_wait_start(latch, REDLATCH_FOREVER, 14));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_latch_count_start(latch, 14));
    CHECK_OK(redlatch_latch_count_down_start(latch, 2, 15));
    CHECK(has(await_event(client), REDLATCH_EVENT_NUMBER, 15, 1));
    CHECK_OK(redlatch_latch_count_start(latch, 16));
    CHECK(has(await_event(client), REDLATCH_EVENT_NUMBER, 16, 1));
    CHECK(redis("DEL", "c:loop:ready", NULL) != NULL);
    CHECK(is(await_event(client), REDLATCH_EVENT_OPEN, 14, REDLATCH_OK));
    redlatch_plain_semaphore_free(semaphore);
    redlatch_latch_free(latch);
    close_client(client);
}

static void waits_that_were_started_can_be_given_up(void)
{
    redlatch_client *client = open_client();
    redlatch_plain_semaphore *semaphore = semaphore_of(client, "c:up:seats"),
                             *freed = semaphore_of(client, "c:up:seats");
    redlatch_latch *latch = latch_of(client, "c:up:ready"), *forgotten = latch_of(client, "c:up:ready");
    bool cancelled = false;

    CHECK(redis("DEL", "c:up:seats", "c:up:ready", NULL) != NULL);
    CHECK_OK(redlatch_plain_semaphore_try_set_permits(semaphore, 1, NULL));
    CHECK_OK(redlatch_latch_try_set_count(latch, 1, NULL));
    /* Granted, but nobody takes the event: the permit comes back. */
    CHECK_OK(redlatch_plain_semaphore_acquire_start(freed, 1, 0, 1));
    CHECK(readable(client, LIMIT_MS));
    CHECK(redis_says("0", redis("GET", "c:up:seats", NULL)));
    redlatch_plain_semaphore_free(freed);
    EVENTUALLY(strcmp(redis("GET", "c:up:seats", NULL), "1") == 0);

    CHECK_OK(redlatch_plain_semaphore_acquire_start(semaphore, 2, REDLATCH_FOREVER, 2));
    CHECK_OK(redlatch_latch_wait_start(latch, REDLATCH_FOREVER, 3));
    CHECK_OK(redlatch_latch_wait_start(forgotten, REDLATCH_FOREVER, 4));
    EVENTUALLY(counter(client, "waiting") == 3);
    CHECK_OK(redlatch_plain_semaphore_acquire_cancel(semaphore, 3, &cancelled)); /* the latch's */
    CHECK(!cancelled);
    CHECK_OK(redlatch_plain_semaphore_acquire_cancel(semaphore, 2, &cancelled));
    CHECK(cancelled);
    CHECK_OK(redlatch_latch_wait_cancel(latch, 4, &cancelled)); /* of another handle */
    CHECK(!cancelled);
    CHECK_OK(redlatch_latch_wait_cancel(latch, 3, &cancelled));
    CHECK(cancelled);
    redlatch_latch_free(forgotten);
    EVENTUALLY(counter(client, "waiting") == 0);
    CHECK(next_event(client).kind == REDLATCH_EVENT_NONE);
    redlatch_plain_semaphore_free(semaphore);
    redlatch_latch_free(latch);
    close_client(client);
}

static void wrong_use_is_refused(void)
{
    redlatch_client *client = open_client();
    redlatch_plain_semaphore *semaphore = semaphore_of(client, "c:bad");
    redlatch_latch *latch = latch_of(client, "c:bad");
    int64_t number;

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_acquire(semaphore, 0, 0));
    CHECK(strstr(redlatch_last_error(), "permits is 0; give it a whole number from 1") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_acquire(semaphore, 1, -2));
    CHECK(strstr(redlatch_last_error(), "wait_ms is -2; give it REDLATCH_FOREVER or 0 to") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_acquire_start(semaphore, 1, -2, 1));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_release(semaphore, UINT32_MAX));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_try_set_permits(semaphore, UINT32_MAX, NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_add_permits(semaphore, INT64_MIN, &number));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_available(semaphore, NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_drain(NULL, NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_latch_try_set_count(latch, 0, NULL));
    CHECK(strstr(redlatch_last_error(), "count is 0") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_latch_count_down(latch, 0, NULL));
    CHECK(strstr(redlatch_last_error(), "by is 0") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_latch_wait(latch, -2));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_latch_wait(NULL, 0));
    CHECK(redis("HSET", "c:bad", "field", "1", NULL) != NULL);
    CHECK_STATUS(REDLATCH_FOREIGN_KIND, redlatch_plain_semaphore_acquire(semaphore, 1, 0));
    CHECK_STATUS(REDLATCH_FOREIGN_KIND, redlatch_latch_count(latch, &number));
    CHECK(redis("DEL", "c:bad", NULL) != NULL);
    redlatch_plain_semaphore_free(semaphore);
    redlatch_latch_free(latch);
    redlatch_plain_semaphore_free(NULL);
    redlatch_latch_free(NULL);

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_new(client, "", &semaphore));
    CHECK(semaphore == NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_latch_new_n(client, "\xff", 1, &latch));
    CHECK(latch == NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_latch_new(client, "c:bad", NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_plain_semaphore_new_n(NULL, "c:bad", 5, &semaphore));
    semaphore = semaphore_of(client, "c:bad");
    CHECK_OK(redlatch_client_close(client, 10000));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_plain_semaphore_acquire(semaphore, 1, 0));
    CHECK(strstr(redlatch_last_error(), "c:bad") != NULL);
    redlatch_plain_semaphore_free(semaphore);
    redlatch_client_free(client);
}

MAIN(TEST(permits_are_a_number_in_redis), TEST(a_latch_opens_at_0), TEST(waits_end_by_another_client_or_a_canceller),
     TEST(what_was_started_ends_by_an_event), TEST(waits_that_were_started_can_be_given_up),
     TEST(wrong_use_is_refused))
