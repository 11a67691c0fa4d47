/* fork() while threads of the library and of the program run. Not with AddressSanitizer: its allocator is not made ready for a fork
 * before LLVM 18 and GCC 14, as that of glibc is, so a child that was forked while another thread allocated waits for ever at its
 * own first allocation. */
#include "child.h"
#include "redis.h"

#include <pthread.h>

/* Runs in a child; what it checks counts for the test. */
static void in_child(void (*run)(redlatch_client *, redlatch_lock *), redlatch_client *client, redlatch_lock *lock)
{
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        failed_checks = 0;
        run(client, lock);
        fflush(stdout);
        _exit(failed_checks == 0 ? 0 : 1);
    }
    CHECK(outcome_of(child) == 0);
}

static void not_called(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    (void)user, (void)owner, (void)token, (void)reason;
    CHECK(!"called in a child or without a loss");
}

static void inherited(redlatch_client *client, redlatch_lock *lock)
{
    redlatch_lock *another = NULL;
    uint64_t count;
    int32_t kind;
    bool flag;
    int fd;

    CHECK(!redlatch_lock_is_held(lock, 1));
    CHECK(redlatch_lock_remaining_ms(lock, 1) == 0 && redlatch_lock_hold_count(lock, 1) == 0);
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_check(lock, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_acquire(lock, 2, REDLATCH_FOREVER, 0, NULL));
    CHECK(strstr(redlatch_last_error(), "fork") != NULL);
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_extend(lock, 1, 1000));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_set_token(lock, "token"));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_force_release(lock, NULL));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_is_locked(lock, &flag));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_holder(lock, NULL, 0, NULL, NULL));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_on_lost(lock, not_called, NULL));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_acquire_start(lock, 1, 0, 0, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_acquire_cancel(lock, 1, &flag));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_release_start(lock, 1, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_extend_start(lock, 1, 1000, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_is_locked_start(lock, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_client_ready_start(client, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_client_close_start(client, 0, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_client_event_fd(client, &fd));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_client_next_event(client, &kind, NULL, NULL, NULL));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_client_stats(client, "holds", &count));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_client_on_event(client, NULL, NULL));
    CHECK_OK(redlatch_client_close(client, 0));
    CHECK_OK(redlatch_lock_release(lock, 1)); /* the parent's hold: nothing to do, nothing done */
    CHECK_OK(redlatch_lock_new(client, "c:fork:2", NULL, &another));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_acquire(another, 1, 0, 0, NULL));
    redlatch_lock_free(another);
    redlatch_lock_free(lock);
    redlatch_client_free(client);

    client = open_client();
    lock = lock_of(client, "c:fork");
    CHECK_STATUS(REDLATCH_TIMEOUT, redlatch_lock_acquire(lock, 1, 0, 0, NULL)); /* the parent holds it */
    another = lock_of(client, "c:fork:child");
    CHECK_OK(redlatch_lock_acquire(another, REDLATCH_THREAD, 0, 0, NULL));
    CHECK_OK(redlatch_lock_release(another, REDLATCH_THREAD));
    redlatch_lock_free(lock);
    redlatch_lock_free(another);
    close_client(client);
}

static void a_child_leaves_the_parents_lock_alone(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:fork", "watchdog_lease", "6s");
    uint64_t renewed;
    int fd;

    CHECK_OK(redlatch_lock_on_lost(lock, not_called, NULL));
    CHECK_OK(redlatch_client_event_fd(client, &fd));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    for (int i = 0; i < 3; i++)
        in_child(inherited, client, lock);
    CHECK(redlatch_lock_is_held(lock, 1));
    CHECK(redis_says("2", redis("HVALS", "c:fork", NULL)));
    renewed = counter(client, "renewed");
    EVENTUALLY(counter(client, "renewed") > renewed); /* its connection still works */
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

static redlatch_plain_semaphore *seats;
static redlatch_latch *ready;

static void inherited_counters(redlatch_client *client, redlatch_lock *lock)
{
    int64_t number;
    bool flag;

    CHECK_STATUS(REDLATCH_FORKED, redlatch_plain_semaphore_acquire(seats, 1, 0));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_plain_semaphore_available(seats, &number));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_plain_semaphore_add_permits(seats, 1, NULL));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_plain_semaphore_acquire_start(seats, 1, 0, 1));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_plain_semaphore_acquire_cancel(seats, 1, &flag));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_plain_semaphore_release_start(seats, 1, 1));
    CHECK_OK(redlatch_plain_semaphore_release(seats, 1)); /* the parent's permit */
    CHECK_STATUS(REDLATCH_FORKED, redlatch_latch_wait(ready, 0));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_latch_count_down(ready, 1, NULL));
    CHECK_STATUS(REDLATCH_FORKED, redlatch_latch_wait_start(ready, 0, 1));
    redlatch_plain_semaphore_free(seats);
    redlatch_latch_free(ready);
    redlatch_lock_free(lock);
    redlatch_client_free(client);
}

static void a_child_leaves_the_parents_permits_alone(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:fork:lock");

    CHECK(redis("DEL", "c:fork:seats", "c:fork:ready", NULL) != NULL);
    CHECK_OK(redlatch_plain_semaphore_new(client, "c:fork:seats", &seats));
    CHECK_OK(redlatch_latch_new(client, "c:fork:ready", &ready));
    CHECK_OK(redlatch_plain_semaphore_try_set_permits(seats, 2, NULL));
    CHECK_OK(redlatch_latch_try_set_count(ready, 2, NULL));
    CHECK_OK(redlatch_plain_semaphore_acquire(seats, 1, 0));
    in_child(inherited_counters, client, lock);
    CHECK(redis_says("1", redis("GET", "c:fork:seats", NULL)));
    CHECK(redis_says("2", redis("GET", "c:fork:ready", NULL)));
    CHECK_OK(redlatch_plain_semaphore_release(seats, 1));
    CHECK_OK(redlatch_latch_count_down(ready, 2, NULL));
    redlatch_plain_semaphore_free(seats);
    redlatch_latch_free(ready);
    redlatch_lock_free(lock);
    close_client(client);
}

struct busy {
    redlatch_lock *lock;
    volatile int stop;
};

static void *keep_busy(void *data)
{
    struct busy *busy = data;
    while (!busy->stop)
        if (redlatch_lock_acquire(busy->lock, REDLATCH_THREAD, REDLATCH_FOREVER, 0, NULL) == REDLATCH_OK)
            redlatch_lock_release(busy->lock, REDLATCH_THREAD);
    return NULL;
}

static void refused(redlatch_client *client, redlatch_lock *lock)
{
    CHECK_STATUS(REDLATCH_FORKED, redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_client_close(client, 0));
    redlatch_lock_free(lock);
    redlatch_client_free(client);
}

static void forking_in_the_middle_of_everything(void)
{
    redlatch_client *client = open_client();
    struct busy busy = {lock_of(client, "c:busy"), 0};
    pthread_t threads[2];

    /* Some of these forks happen while another thread has a lock of the library. */
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, keep_busy, &busy) == 0);
    for (int i = 0; i < scaled(100) && failed_checks == 0; i++)
        in_child(refused, client, busy.lock);
    busy.stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    redlatch_lock_free(busy.lock);
    close_client(client);
}

MAIN(TEST(a_child_leaves_the_parents_lock_alone), TEST(a_child_leaves_the_parents_permits_alone),
     TEST(forking_in_the_middle_of_everything))
