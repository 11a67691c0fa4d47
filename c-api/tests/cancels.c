/* Threads that are cancelled, and waits that another thread ends. */
#include "redis.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

static int cancel_state(void)
{
    int before = -1, unused;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    pthread_setcancelstate(before, &unused);
    return before;
}

static redlatch_canceller *new_canceller(void)
{
    redlatch_canceller *canceller = NULL;
    if (!CHECK_OK(redlatch_canceller_new(&canceller)))
        exit(1);
    return canceller;
}

struct busy {
    redlatch_lock *lock;
    atomic_int pairs;
};

static void *lock_until_cancelled(void *data)
{
    struct busy *busy = data;
    for (;;) {
        if (redlatch_lock_acquire(busy->lock, REDLATCH_THREAD, REDLATCH_FOREVER, 0, NULL) == REDLATCH_OK &&
            redlatch_lock_release(busy->lock, REDLATCH_THREAD) == REDLATCH_OK)
            atomic_fetch_add(&busy->pairs, 1);
        pthread_testcancel();
    }
    return NULL;
}

/* The process ended: "FATAL: exception not rethrown". */
static void threads_that_are_cancelled_in_their_calls_finish_them(void)
{
    enum { THREADS = 50 };
    redlatch_client *client = open_client();
    struct busy busy[THREADS];
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++) {
        char name[32];
        snprintf(name, sizeof name, "c:cancel:%d", i % 25); /* every other thread waits for another one */
        busy[i].lock = lock_of(client, name);
        atomic_init(&busy[i].pairs, 0);
        CHECK(pthread_create(&threads[i], NULL, lock_until_cancelled, &busy[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result = NULL;
        EVENTUALLY(atomic_load(&busy[i].pairs) >= 3);
        CHECK(pthread_cancel(threads[i]) == 0);
        CHECK(pthread_join(threads[i], &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(counter(client, "holds") == 0 && counter(client, "waiting") == 0);
    for (int i = 0; i < THREADS; i++) {
        char name[32];
        snprintf(name, sizeof name, "c:cancel:%d", i % 25);
        CHECK(!exists(name));
        redlatch_lock_free(busy[i].lock);
    }
    close_client(client);
}

static void calls_leave_the_cancel_state_as_it_is(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:cancel:state");
    int before;

    CHECK(cancel_state() == PTHREAD_CANCEL_ENABLE);
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK(redlatch_lock_is_held(lock, 1));
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(lock, 2, 0, 0, NULL));
    CHECK(cancel_state() == PTHREAD_CANCEL_ENABLE);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK(cancel_state() == PTHREAD_CANCEL_DISABLE);
    pthread_setcancelstate(before, &before);
    redlatch_lock_free(lock);
    close_client(client);
}

struct waiter {
    redlatch_lock *lock;
    redlatch_canceller *canceller;
    uint64_t owner;
    int64_t wait_ms;
    redlatch_status status;
    char text[512];
    pthread_t thread;
};

static void *wait_for_lock(void *data)
{
    struct waiter *waiter = data;
    waiter->status = redlatch_lock_acquire_cancellable(waiter->lock, waiter->owner, waiter->wait_ms,
                                                       REDLATCH_LOCK_LEASE, waiter->canceller, NULL);
    if (waiter->status != REDLATCH_OK)
        snprintf(waiter->text, sizeof waiter->text, "%s", redlatch_last_error());
    pthread_testcancel();
    return NULL;
}

static void start(struct waiter *waiter, redlatch_lock *lock, redlatch_canceller *canceller, uint64_t owner)
{
    memset(waiter, 0, sizeof *waiter);
    waiter->lock = lock;
    waiter->canceller = canceller;
    waiter->owner = owner;
    waiter->wait_ms = REDLATCH_FOREVER;
    CHECK(pthread_create(&waiter->thread, NULL, wait_for_lock, waiter) == 0);
}

/* It slept for as long as it would wait, here for ever. */
static void a_sleeping_waiter_that_is_cancelled_ends(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:cancel:sleep");
    redlatch_canceller *canceller = new_canceller();
    struct waiter waiter;
    void *result = NULL;

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    start(&waiter, lock, canceller, 2);
    EVENTUALLY(counter(client, "waiting") == 1);
    CHECK(pthread_cancel(waiter.thread) == 0);
    redlatch_canceller_cancel(canceller);
    CHECK(pthread_join(waiter.thread, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK_STATUS(REDLATCH_CANCELLED, waiter.status);
    if (!CHECK(strstr(waiter.text, "\"c:cancel:sleep\"") != NULL))
        printf("  %s\n", waiter.text);
    CHECK(counter(client, "waiting") == 0 && counter(client, "cancelled") == 1);
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK(!exists("c:cancel:sleep"));
    redlatch_canceller_free(canceller);
    redlatch_lock_free(lock);
    close_client(client);
}

static void one_canceller_ends_many_waits_and_all_that_follow(void)
{
    enum { WAITERS = 8 };
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:cancel:many");
    redlatch_canceller *canceller = new_canceller();
    struct waiter waiters[WAITERS];
    uint64_t calls;

    CHECK_OK(redlatch_lock_acquire_cancellable(lock, 1, 0, 0, canceller, NULL));
    CHECK(!redlatch_canceller_is_cancelled(canceller));
    for (int i = 0; i < WAITERS; i++)
        start(&waiters[i], lock, canceller, (uint64_t)(i + 2));
    EVENTUALLY(counter(client, "waiting") == WAITERS);
    redlatch_canceller_cancel(canceller);
    redlatch_canceller_cancel(canceller);
    for (int i = 0; i < WAITERS; i++) {
        CHECK(pthread_join(waiters[i].thread, NULL) == 0);
        CHECK_STATUS(REDLATCH_CANCELLED, waiters[i].status);
    }
    CHECK(redlatch_canceller_is_cancelled(canceller));
    CHECK_OK(redlatch_lock_release(lock, 1));
    calls = counter(client, "calls");
    CHECK_STATUS(REDLATCH_CANCELLED, redlatch_lock_acquire_cancellable(lock, 1, 0, 0, canceller, NULL));
    CHECK(counter(client, "calls") == calls && !exists("c:cancel:many"));
    redlatch_canceller_free(canceller);

    /* A wait goes on when its canceller is freed, and NULL is none. */
    canceller = new_canceller();
    CHECK_OK(redlatch_lock_acquire_cancellable(lock, 1, 0, 0, NULL, NULL));
    start(&waiters[0], lock, canceller, 2);
    EVENTUALLY(counter(client, "waiting") == 1);
    redlatch_canceller_free(canceller);
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK(pthread_join(waiters[0].thread, NULL) == 0);
    CHECK_OK(waiters[0].status);
    CHECK_OK(redlatch_lock_release(lock, 2));
    redlatch_lock_free(lock);
    close_client(client);
}

static redlatch_canceller *of_handler;

static void cancel_in_handler(int number)
{
    (void)number;
    errno = 77;
    redlatch_canceller_cancel(of_handler);
    if (errno != 77)
        abort();
}

static void a_signal_handler_ends_a_wait(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:cancel:signal");
    struct sigaction action;
    struct waiter waiter;

    memset(&action, 0, sizeof action);
    action.sa_handler = cancel_in_handler;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    of_handler = new_canceller();
    start(&waiter, lock, of_handler, 2);
    EVENTUALLY(counter(client, "waiting") == 1);
    CHECK(pthread_kill(waiter.thread, SIGUSR1) == 0); /* on the thread that waits */
    CHECK(pthread_join(waiter.thread, NULL) == 0);
    CHECK_STATUS(REDLATCH_CANCELLED, waiter.status);
    redlatch_canceller_free(of_handler);
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

/* Granted or cancelled, and never both. */
static void cancelling_at_random_leaves_nothing(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *lock = lock_of(client, "c:cancel:random"), *held = lock_of(other, "c:cancel:random");
    int rounds = scaled(300), granted = 0, cancelled = 0;
    unsigned int seed = (unsigned int)getpid();

    for (int i = 0; i < rounds && failed_checks == 0; i++) {
        redlatch_canceller *canceller = new_canceller();
        struct waiter waiter;
        CHECK_OK(redlatch_lock_acquire(held, 1, REDLATCH_FOREVER, 0, NULL));
        start(&waiter, lock, canceller, 2);
        if (i % 2 == 0) /* asleep, or wherever it is */
            EVENTUALLY(counter(client, "waiting") == 1);
        CHECK_OK(redlatch_lock_release(held, 1));
        seed = seed * 1103515245u + 12345u;
        for (volatile unsigned int spin = (seed >> 8) % 300000; spin > 0; spin--)
            ;
        redlatch_canceller_cancel(canceller);
        CHECK(pthread_join(waiter.thread, NULL) == 0);
        if (waiter.status == REDLATCH_OK) {
            granted++;
            CHECK(redlatch_lock_hold_count(lock, 2) == 1);
            CHECK_OK(redlatch_lock_release(lock, 2));
        } else {
            cancelled++;
            CHECK_STATUS(REDLATCH_CANCELLED, waiter.status);
            CHECK(redlatch_lock_hold_count(lock, 2) == 0);
        }
        redlatch_canceller_free(canceller);
    }
    printf("  %d granted, %d cancelled\n", granted, cancelled);
    /* A try of a cancelled wait can reach the server late. The engine gives back what it wins, before a close ends. */
    EVENTUALLY(counter(client, "holds") == 0 && counter(client, "waiting") == 0);
    redlatch_lock_free(lock);
    redlatch_lock_free(held);
    close_client(client);
    CHECK(!exists("c:cancel:random"));
    close_client(other);
}

static void cancel_itself(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    (void)owner, (void)token, (void)reason;
    pthread_cancel(pthread_self());
    pause_ms(1); /* a cancellation point */
    atomic_fetch_add((atomic_int *)user, 1);
}

static void the_thread_that_calls_functions_of_the_program_cannot_be_cancelled(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:cancel:lost");
    atomic_int told;

    atomic_init(&told, 0);
    CHECK_OK(redlatch_lock_on_lost(lock, cancel_itself, &told));
    for (int i = 1; i <= 2; i++) {
        CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
        redis("DEL", "c:cancel:lost", NULL);
        EVENTUALLY(atomic_load(&told) == i);
        CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    }
    redlatch_lock_free(lock);
    close_client(client);
}

static void a_canceller_that_cannot_be_made_says_what_is_missing(void)
{
    struct rlimit before, none;
    redlatch_canceller *canceller = NULL;

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_canceller_new(NULL));
    CHECK(strstr(redlatch_last_error(), "canceller is NULL") != NULL);
    CHECK(!redlatch_canceller_is_cancelled(NULL));
    redlatch_canceller_cancel(NULL);
    redlatch_canceller_free(NULL);

    /* scripts/test portable: there it needs no descriptor. */
    if (getenv("REDLATCH_PORTABLE"))
        return;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK_STATUS(REDLATCH_UNAVAILABLE, redlatch_canceller_new(&canceller));
    CHECK(canceller == NULL && strstr(redlatch_last_error(), "file descriptor") != NULL);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

MAIN(TEST(threads_that_are_cancelled_in_their_calls_finish_them), TEST(calls_leave_the_cancel_state_as_it_is),
     TEST(a_sleeping_waiter_that_is_cancelled_ends), TEST(one_canceller_ends_many_waits_and_all_that_follow),
     TEST(a_signal_handler_ends_a_wait), TEST(cancelling_at_random_leaves_nothing),
     TEST(the_thread_that_calls_functions_of_the_program_cannot_be_cancelled),
     TEST(a_canceller_that_cannot_be_made_says_what_is_missing))
