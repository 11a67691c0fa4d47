/* Shared by the test programs: running named tests, checking, waiting for a condition. */
#ifndef CHECK_H
#define CHECK_H

#include <redlatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Longer than anything takes on a busy machine: a condition that is not met by then never will be. */
#define LIMIT_MS 30000

static int failed_checks;

#define CHECK(condition) check_that((condition) ? 1 : 0, __FILE__, __LINE__, #condition)

/* The text belongs to the condition where that is a call that failed. */
static int check_that(int holds, const char *file, int line, const char *condition)
{
    if (!holds) {
        failed_checks++;
        printf("  %s:%d: %s is not so; last error: %s\n", file, line, condition, redlatch_last_error());
        fflush(stdout);
    }
    return holds;
}

#define CHECK_STATUS(wanted, call) check_status((wanted), (call), __FILE__, __LINE__, #call)

/* Notes what a call returned, for tests/statuses.py: the header lists for each function what it can return. */
static void note_status(redlatch_status found, const char *call)
{
    const char *path = getenv("TEST_STATUSES");
    FILE *file = found == REDLATCH_OK || path == NULL ? NULL : fopen(path, "a");
    if (file != NULL) {
        fprintf(file, "%.*s %s\n", (int)strcspn(call, "("), call, redlatch_status_name(found));
        fclose(file);
    }
}

static int check_status(redlatch_status wanted, redlatch_status found, const char *file, int line, const char *call)
{
    note_status(found, call);
    if (wanted != found) {
        failed_checks++;
        printf("  %s:%d: %s is %s, not %s; last error: %s\n", file, line, call, redlatch_status_name(found),
               redlatch_status_name(wanted), redlatch_last_error());
        fflush(stdout);
    }
    return wanted == found;
}

#define CHECK_OK(call) CHECK_STATUS(REDLATCH_OK, call)

static inline int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Waits until a condition holds that nothing can be waited on for. One look decides: it may not hold at the next one. */
#define EVENTUALLY(condition)                                                                                   \
    do {                                                                                                        \
        int64_t give_up_ = now_ms() + LIMIT_MS;                                                                 \
        int holds_ = 0;                                                                                         \
        while (!(holds_ = (condition) ? 1 : 0) && now_ms() < give_up_)                                          \
            pause_ms(1);                                                                                        \
        check_that(holds_, __FILE__, __LINE__, #condition);                                                     \
    } while (0)

/* How much of a long test is done: all by default, less under a tool that slows it down. */
static inline int scaled(int count)
{
    const char *divisor = getenv("TEST_DIVISOR");
    return divisor == NULL ? count : count / atoi(divisor);
}

static inline redlatch_client *open_client(void)
{
    redlatch_client *client = NULL;
    if (!CHECK_OK(redlatch_client_open(NULL, NULL, &client)))
        exit(1);
    return client;
}

static inline redlatch_options *options_of(const char *name, const char *value)
{
    redlatch_options *options = NULL;
    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, name, value));
    return options;
}

static inline redlatch_lock *lock_with(redlatch_client *client, const char *name, const char *option, const char *value)
{
    redlatch_lock *lock = NULL;
    redlatch_options *options = option == NULL ? NULL : options_of(option, value);
    if (!CHECK_OK(redlatch_lock_new(client, name, options, &lock)))
        exit(1);
    redlatch_options_free(options);
    return lock;
}

static inline redlatch_lock *lock_of(redlatch_client *client, const char *name)
{
    return lock_with(client, name, NULL, NULL);
}

/* Acquires with a short lease. Such a lease leaves the server so little time to answer that a busy machine may
 * need several tries. */
static inline redlatch_status acquire_patiently(redlatch_lock *lock, uint64_t owner, int64_t lease_ms)
{
    int64_t give_up = now_ms() + LIMIT_MS;
    redlatch_status status;
    do {
        status = redlatch_lock_acquire(lock, owner, REDLATCH_FOREVER, lease_ms, NULL);
    } while (status == REDLATCH_UNAVAILABLE && now_ms() < give_up);
    return status;
}

static inline uint64_t counter(redlatch_client *client, const char *name)
{
    uint64_t count = 0;
    CHECK_OK(redlatch_client_stats(client, name, &count));
    return count;
}

static inline void close_client(redlatch_client *client)
{
    CHECK_OK(redlatch_client_close(client, 10000));
    redlatch_client_free(client);
}

struct test {
    const char *name;
    void (*run)(void);
};

#define TEST(name) {#name, name}

/* Runs all tests, or those that are named; one line for each. */
static int run_tests(const struct test *tests, size_t count, int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        int wanted = argc < 2;
        for (int arg = 1; arg < argc; arg++)
            wanted |= strcmp(argv[arg], tests[i].name) == 0;
        if (!wanted)
            continue;
        failed_checks = 0;
        tests[i].run();
        failed += failed_checks != 0;
        printf("%s %s\n", failed_checks == 0 ? "ok" : "FAILED", tests[i].name);
        fflush(stdout);
    }
    return failed != 0;
}

#define MAIN(...)                                                                                               \
    int main(int argc, char **argv)                                                                             \
    {                                                                                                           \
        const struct test tests[] = {__VA_ARGS__};                                                              \
        return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);                                    \
    }

#endif
