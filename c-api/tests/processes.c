/* The end of a program, closing while others wait, and signals. */
#define _DEFAULT_SOURCE
#include "child.h"
#include "redis.h"

#include <dirent.h>
#include <pthread.h>

static void not_called(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    (void)user, (void)owner, (void)token, (void)reason;
    CHECK(!"called without a loss");
}

static void *wait_for_ever(void *lock)
{
    return (void *)(intptr_t)redlatch_lock_acquire(lock, 2, REDLATCH_FOREVER, 0, NULL);
}

/* Ends with a hold, a wait and functions registered; nothing was closed or freed. */
static void end_at_once(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:exit");
    pthread_t thread;

    CHECK_OK(redlatch_lock_on_lost(lock, not_called, NULL));
    CHECK_OK(acquire_patiently(lock, REDLATCH_THREAD, REDLATCH_LOCK_LEASE));
    CHECK_OK(redlatch_lock_acquire_start(lock, 3, REDLATCH_FOREVER, 0, 1));
    CHECK(pthread_create(&thread, NULL, wait_for_ever, lock) == 0);
    EVENTUALLY(counter(client, "waiting") == 2);
    fflush(stdout);
    exit(failed_checks == 0 ? 0 : 1); /* not _exit: with all that happens at an end */
}

static void a_program_may_end_with_holds_and_waits(void)
{
    for (int i = 0; i < 5; i++) {
        int64_t began = now_ms();
        pid_t child;
        fflush(stdout);
        child = fork();
        if (child == 0) {
            failed_checks = 0;
            end_at_once();
        }
        CHECK(outcome_of(child) == 0);
        CHECK(now_ms() - began < LIMIT_MS / 2);
        CHECK(exists("c:exit")); /* nothing ran at the end: it ends with its lease */
        redis("DEL", "c:exit", NULL);
    }
}

static struct {
    redlatch_client *client;
    redlatch_lock *held, *free;
} at_the_end;

/* REDLATCH_THREAD is still the thread that ends, after the thread-local data of the library is gone. */
static void use_locks_at_the_end(void *unused)
{
    (void)unused;
    CHECK_OK(redlatch_lock_check(at_the_end.held, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_release(at_the_end.held, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_acquire(at_the_end.free, REDLATCH_THREAD, LIMIT_MS, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_acquire(at_the_end.free, REDLATCH_THREAD, LIMIT_MS, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_check(at_the_end.free, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_release(at_the_end.free, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_release(at_the_end.free, REDLATCH_THREAD));
    CHECK(!exists("c:end:held") && !exists("c:end:free"));
}

static void in_a_handler(void)
{
    use_locks_at_the_end(NULL);
    fflush(stdout);
    if (failed_checks != 0)
        _exit(1);
}

static void hold_for_the_end(void)
{
    at_the_end.client = open_client();
    at_the_end.held = lock_of(at_the_end.client, "c:end:held");
    at_the_end.free = lock_of(at_the_end.client, "c:end:free");
    CHECK_OK(redlatch_lock_acquire(at_the_end.held, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL));
}

static void a_handler_of_atexit_is_the_thread_that_ends(void)
{
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        failed_checks = 0;
        hold_for_the_end();
        CHECK(atexit(in_a_handler) == 0);
        exit(failed_checks == 0 ? 0 : 1);
    }
    CHECK(outcome_of(child) == 0);
}

static pthread_key_t of_thread;

static void *hold_and_end(void *unused)
{
    (void)unused;
    hold_for_the_end();
    pthread_setspecific(of_thread, &of_thread);
    return NULL;
}

static void a_destructor_of_a_thread_is_that_thread(void)
{
    pthread_t thread;
    CHECK(pthread_key_create(&of_thread, use_locks_at_the_end) == 0);
    CHECK(pthread_create(&thread, NULL, hold_and_end, NULL) == 0);
    pthread_join(thread, NULL);
    pthread_key_delete(of_thread);
    redlatch_lock_free(at_the_end.held);
    redlatch_lock_free(at_the_end.free);
    close_client(at_the_end.client);
}

static void acquire_at_the_end(void *lock)
{
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, LIMIT_MS, REDLATCH_LOCK_LEASE, NULL));
}

static void *end_at_last(void *lock)
{
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, LIMIT_MS, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    pthread_setspecific(of_thread, lock);
    return NULL;
}

static void what_a_destructor_leaves_is_not_renewed(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:end:left", "watchdog_lease", "1s"), *others = lock_of(client, "c:end:left");
    pthread_t thread;

    CHECK(pthread_key_create(&of_thread, acquire_at_the_end) == 0);
    CHECK(pthread_create(&thread, NULL, end_at_last, lock) == 0);
    pthread_join(thread, NULL);
    pthread_key_delete(of_thread);
    CHECK_OK(redlatch_lock_acquire(others, 1, LIMIT_MS, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(others, 1));
    redlatch_lock_free(lock);
    redlatch_lock_free(others);
    close_client(client);
}

static void closing_ends_the_waits_of_other_threads(void)
{
    enum { THREADS = 4 };
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:waits");
    pthread_t threads[THREADS];

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, wait_for_ever, lock) == 0);
    EVENTUALLY(counter(client, "waiting") == THREADS);
    CHECK_OK(redlatch_client_close(client, 10000));
    redlatch_lock_free(lock); /* the calls keep what they need */
    redlatch_client_free(client);
    for (int i = 0; i < THREADS; i++) {
        void *status = NULL;
        pthread_join(threads[i], &status);
        CHECK_STATUS(REDLATCH_CLOSED, (redlatch_status)(intptr_t)status);
    }
    CHECK(!exists("c:waits"));
}

static void *close_it(void *client)
{
    return (void *)(intptr_t)redlatch_client_close(client, 10000);
}

static void closing_twice_at_once(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:twice");
    pthread_t threads[4];

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, close_it, client) == 0);
    for (int i = 0; i < 4; i++) {
        void *status = NULL;
        pthread_join(threads[i], &status);
        CHECK_OK((redlatch_status)(intptr_t)status);
    }
    CHECK(!exists("c:twice"));
    redlatch_lock_free(lock);
    redlatch_client_free(client);
}

/* How many threads of the library there are; none of them may get a signal. */
static int library_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int count = 0, signalled = 0;
    while (tasks != NULL && (task = readdir(tasks)) != NULL) {
        char path[300], line[256];
        unsigned long long blocked = 0;
        int ours = 0, threads = 0;
        FILE *status;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        status = fopen(path, "r");
        while (status != NULL && fgets(line, sizeof line, status) != NULL) {
            ours |= strncmp(line, "Name:\tredlatch", 14) == 0;
            sscanf(line, "Threads: %d", &threads);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        if (status != NULL)
            fclose(status);
        count += ours;
        /* The kernel shows no threads and no blocked signals while a thread ends. */
        signalled += ours && threads > 0 && (blocked & (1ull << (SIGINT - 1))) == 0;
    }
    if (tasks != NULL)
        closedir(tasks);
    CHECK(signalled == 0);
    return count;
}

static void signals_belong_to_the_program(void)
{
    redlatch_client *client;
    redlatch_lock *lock;

    EVENTUALLY(library_threads() == 0); /* those of the tests before end */
    client = open_client();
    lock = lock_of(client, "c:signals");
    CHECK_OK(redlatch_lock_on_lost(lock, not_called, NULL));
    EVENTUALLY(library_threads() == 2);
    redlatch_lock_free(lock);
    close_client(client);
    EVENTUALLY(library_threads() == 0);
}

static void failed_opens_leave_no_thread(void)
{
    redlatch_client *client = NULL;

    for (int i = 0; i < 10; i++)
        CHECK_STATUS(REDLATCH_UNAVAILABLE, redlatch_client_open("unix:///nowhere/at/all", NULL, &client));
    EVENTUALLY(library_threads() == 0);
}

MAIN(TEST(a_program_may_end_with_holds_and_waits), TEST(a_handler_of_atexit_is_the_thread_that_ends),
     TEST(a_destructor_of_a_thread_is_that_thread), TEST(what_a_destructor_leaves_is_not_renewed),
     TEST(closing_ends_the_waits_of_other_threads), TEST(closing_twice_at_once), TEST(signals_belong_to_the_program), TEST(failed_opens_leave_no_thread))
