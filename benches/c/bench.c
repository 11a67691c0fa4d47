/* The workloads W1 to W5 for C; see benches/README.md. The callers of W2 and W4 are threads.
 *
 * cc -O2 bench.c $(pkg-config --cflags --libs redlatch) -lpthread -lm */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <redlatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static struct {
    const char *workload, *kind, *url, *lease_ms, *name, *id, *ts_file;
    double seconds, warmup;
    int tasks, locks, inside_us, barrier, limit;
} args = {"W1", "reentrant", NULL, "30000", "bench", "", NULL, 3, 0.3, 64, 10000, 1000, 0, 8};

static redlatch_client *client;
static redlatch_options *lock_options, *fair_options;
/* Of the kind plain-semaphore, in place of a lock: that of the name that was asked for last. */
static redlatch_plain_semaphore *seats;
static double begun, end, cpu_before, closed, cpu_after;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, redlatch_last_error());
    exit(1);
}

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static double now_s(void)
{
    return (double)now_ns() / 1e9;
}

static double cpu(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static long status(const char *field)
{
    char line[256];
    long value = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            value = strtol(line + strlen(field), NULL, 10);
    if (file != NULL)
        fclose(file);
    return value;
}

static int fair_permits(void)
{
    return strcmp(args.kind, "fair-semaphore") == 0;
}

static int permits(void)
{
    return strcmp(args.kind, "semaphore") == 0 || fair_permits();
}

static int counted(void)
{
    return strcmp(args.kind, "plain-semaphore") == 0;
}

static redlatch_lock *lock_of(const char *name, int number)
{
    char full[256];
    redlatch_lock *lock = NULL;
    bool set;
    if (number < 0)
        snprintf(full, sizeof full, "%s:%s", args.name, name);
    else
        snprintf(full, sizeof full, "%s:%d", args.name, number);
    if (counted()) {
        if (redlatch_plain_semaphore_new(client, full, &seats) != REDLATCH_OK ||
            redlatch_plain_semaphore_try_set_permits(seats, args.limit, &set) != REDLATCH_OK)
            fail("semaphore");
        return NULL;
    }
    if ((permits() ? redlatch_semaphore_new(client, full, args.limit, fair_options, &lock)
                   : redlatch_lock_new(client, full, NULL, &lock)) != REDLATCH_OK)
        fail("lock");
    return lock;
}

static int acquire(redlatch_lock *lock, int64_t wait_ms)
{
    return (counted() ? redlatch_plain_semaphore_acquire(seats, 1, wait_ms)
                      : redlatch_lock_acquire(lock, REDLATCH_THREAD, wait_ms, REDLATCH_LOCK_LEASE, NULL)) == REDLATCH_OK;
}

static void release(redlatch_lock *lock)
{
    if ((counted() ? redlatch_plain_semaphore_release(seats, 1) : redlatch_lock_release(lock, REDLATCH_THREAD)) !=
        REDLATCH_OK)
        fail("release");
}

static void pair(redlatch_lock *lock)
{
    if (!acquire(lock, REDLATCH_FOREVER))
        fail("acquire");
    release(lock);
}

static void warm(redlatch_lock *lock)
{
    double until = now_s() + args.warmup;
    while (now_s() < until)
        pair(lock);
}

static void open_window(void)
{
    if (args.barrier) {
        puts("READY");
        fflush(stdout);
        getchar();
    }
    cpu_before = cpu();
    begun = now_s();
    end = begun + args.seconds;
}

static int64_t left_ms(void)
{
    double left = (end - now_s()) * 1000;
    return left > 0 ? (int64_t)left : 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double share(const double *sorted, long count, double part)
{
    return count == 0 ? 0 : sorted[lround((double)(count - 1) * part)];
}

struct values {
    double *items;
    long count, room;
};

static void push(struct values *values, double value)
{
    if (values->count == values->room) {
        values->room = values->room == 0 ? 4096 : values->room * 2;
        values->items = realloc(values->items, (size_t)values->room * sizeof *values->items);
        if (values->items == NULL)
            abort();
    }
    values->items[values->count++] = value;
}

/* Later work is not measured. */
static void close_window(void)
{
    closed = now_s();
    cpu_after = cpu();
}

static void finish(void)
{
    if (closed == 0)
        close_window();
    printf("\"seconds\": %f, \"cpu_s\": %f}\n", closed - begun, cpu_after - cpu_before);
    fflush(stdout);
    /* The runner cleans up; ten thousand releases would only be in the way. */
    _exit(0);
}

/* Which shares of all times are at most as long as each of the quantiles. */
static const double shares[] = {0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1};

static void w1(void)
{
    size_t i;
    redlatch_lock *lock = lock_of(NULL, 1);
    struct values times = {0};
    warm(lock);
    open_window();
    while (now_s() < end) {
        long long from = now_ns();
        pair(lock);
        push(&times, (double)(now_ns() - from) / 1000);
    }
    qsort(times.items, (size_t)times.count, sizeof *times.items, by_size);
    printf("{\"pairs\": %ld, \"p50_us\": %f, \"p99_us\": %f, \"max_us\": %f, \"quantiles_us\": [", times.count,
           share(times.items, times.count, 0.5), share(times.items, times.count, 0.99), share(times.items, times.count, 1));
    for (i = 0; i < sizeof shares / sizeof *shares; i++)
        printf("%s%.2f", i == 0 ? "" : ", ", share(times.items, times.count, shares[i]));
    printf("], ");
    finish();
}

struct caller {
    pthread_t thread;
    int number;
    redlatch_lock *lock;
    void (*work)(struct caller *);
    long acquired, handed;
    struct values waits;
};

static void call_own_name(struct caller *caller)
{
    for (; now_s() < end; caller->acquired++)
        pair(caller->lock);
}

static int last_holder = -1; /* written by whoever holds the lock */

static void call_one_name(struct caller *caller)
{
    while (now_s() < end) {
        double from = now_s();
        int won = redlatch_lock_acquire(caller->lock, REDLATCH_THREAD, left_ms(), REDLATCH_LOCK_LEASE, NULL) == REDLATCH_OK;
        push(&caller->waits, (now_s() - from) * 1000);
        if (!won)
            break;
        caller->acquired++;
        caller->handed += last_holder != caller->number;
        last_holder = caller->number;
        if (redlatch_lock_release(caller->lock, REDLATCH_THREAD) != REDLATCH_OK)
            fail("release");
    }
}

static pthread_barrier_t all; /* the callers and who opens the window */

static void *run_caller(void *of)
{
    struct caller *caller = of;
    caller->work(caller);
    caller->acquired = caller->handed = caller->waits.count = 0;
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    caller->work(caller);
    return NULL;
}

/* All of them, on one name or each on its own, warm up in the way that is measured, which begins when they are done. */
static struct caller *run_callers(void (*work)(struct caller *), const char *name)
{
    struct caller *callers = calloc((size_t)args.tasks, sizeof *callers);
    int i;
    if (callers == NULL || pthread_barrier_init(&all, NULL, (unsigned)args.tasks + 1) != 0)
        abort();
    end = now_s() + args.warmup;
    for (i = 0; i < args.tasks; i++) {
        callers[i].number = i;
        callers[i].work = work;
        callers[i].lock = lock_of(name, name == NULL ? i : -1);
        if (pthread_create(&callers[i].thread, NULL, run_caller, &callers[i]) != 0)
            abort();
    }
    pthread_barrier_wait(&all);
    open_window();
    pthread_barrier_wait(&all);
    for (i = 0; i < args.tasks; i++)
        pthread_join(callers[i].thread, NULL);
    close_window();
    return callers;
}

static void w2(void)
{
    struct caller *callers;
    long pairs = 0;
    int i;
    callers = run_callers(call_own_name, NULL);
    for (i = 0; i < args.tasks; i++)
        pairs += callers[i].acquired;
    printf("{\"pairs\": %ld, \"threads\": %ld, ", pairs, status("Threads:") + args.tasks);
    finish();
}

static void w3(void)
{
    redlatch_lock *lock;
    const struct timespec inside = {args.inside_us / 1000000, args.inside_us % 1000000 * 1000};
    char own[64];
    FILE *file = args.ts_file == NULL ? NULL : fopen(args.ts_file, "w");
    long acquired = 0;
    snprintf(own, sizeof own, "warm%s", args.id);
    warm(lock_of(own, -1));
    lock = lock_of("w3", -1);
    open_window();
    while (now_s() < end && acquire(lock, left_ms())) {
        long long since = now_ns(), called;
        nanosleep(&inside, NULL);
        called = now_ns();
        release(lock);
        if (file != NULL)
            fprintf(file, "%lld %lld %lld\n", since, called, now_ns());
        acquired++;
    }
    if (file != NULL)
        fclose(file);
    printf("{\"acq\": %ld, ", acquired);
    finish();
}

static void w4(void)
{
    struct caller *callers = run_callers(call_one_name, "one");
    struct values waits = {0};
    double sum = 0, squares = 0;
    long handed = 0, wait;
    int i;
    for (i = 0; i < args.tasks; i++) {
        double acquired = (double)callers[i].acquired;
        sum += acquired;
        squares += acquired * acquired;
        handed += callers[i].handed;
        for (wait = 0; wait < callers[i].waits.count; wait++)
            push(&waits, callers[i].waits.items[wait]);
    }
    qsort(waits.items, (size_t)waits.count, sizeof *waits.items, by_size);
    printf("{\"acq\": %.0f, \"handoffs\": %ld, \"jain\": %f, \"max_wait_ms\": %f, \"p99_wait_ms\": %f, ", sum, handed,
           squares == 0 ? 0 : sum * sum / (args.tasks * squares), share(waits.items, waits.count, 1),
           share(waits.items, waits.count, 0.99));
    finish();
}

static void w5(void)
{
    redlatch_lock **locks = calloc((size_t)args.locks, sizeof *locks);
    const struct timespec whole = {(time_t)args.seconds, (long)((args.seconds - floor(args.seconds)) * 1e9)};
    long before = status("VmRSS:");
    double from = now_s(), taken;
    int i, held = 0;
    if (locks == NULL)
        abort();
    for (i = 0; i < args.locks; i++) {
        locks[i] = lock_of(NULL, i);
        if (redlatch_lock_acquire(locks[i], REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
            fail("acquire");
    }
    taken = now_s() - from;
    open_window();
    nanosleep(&whole, NULL);
    close_window();
    for (i = 0; i < args.locks; i++)
        held += redlatch_lock_is_held(locks[i], REDLATCH_THREAD);
    printf("{\"locks\": %d, \"rss_before_kb\": %ld, \"rss_after_kb\": %ld, \"threads\": %ld, \"acquire_s\": %f, ", held,
           before, status("VmRSS:"), status("Threads:"), taken);
    finish();
}

static void read_arguments(int count, char **words)
{
    int i;
    for (i = 1; i < count; i++) {
        const char *flag = words[i], *value;
        if (strcmp(flag, "--barrier") == 0) {
            args.barrier = 1;
            continue;
        }
        value = i + 1 < count ? words[++i] : "";
        if (strcmp(flag, "--workload") == 0)
            args.workload = value;
        else if (strcmp(flag, "--kind") == 0)
            args.kind = value;
        else if (strcmp(flag, "--url") == 0)
            args.url = value;
        else if (strcmp(flag, "--seconds") == 0)
            args.seconds = atof(value);
        else if (strcmp(flag, "--warmup") == 0)
            args.warmup = atof(value);
        else if (strcmp(flag, "--tasks") == 0)
            args.tasks = atoi(value);
        else if (strcmp(flag, "--locks") == 0)
            args.locks = atoi(value);
        else if (strcmp(flag, "--lease-ms") == 0)
            args.lease_ms = value;
        else if (strcmp(flag, "--cs-us") == 0)
            args.inside_us = atoi(value);
        else if (strcmp(flag, "--ts-file") == 0)
            args.ts_file = value;
        else if (strcmp(flag, "--limit") == 0)
            args.limit = atoi(value);
        else if (strcmp(flag, "--name") == 0)
            args.name = value;
        else if (strcmp(flag, "--id") == 0)
            args.id = value;
    }
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } workloads[] = {{"W1", w1}, {"W2", w2}, {"W3", w3}, {"W4", w4}, {"W5", w5}};
    size_t i;
    read_arguments(count, words);
    if (redlatch_options_new(&lock_options) != REDLATCH_OK ||
        redlatch_options_set(lock_options, "watchdog_lease", args.lease_ms) != REDLATCH_OK ||
        (fair_permits() && (redlatch_options_new(&fair_options) != REDLATCH_OK ||
                            redlatch_options_set(fair_options, "fair", "true") != REDLATCH_OK)) ||
        (!permits() && !counted() && redlatch_options_set(lock_options, "kind", args.kind) != REDLATCH_OK) ||
        redlatch_client_open(args.url, lock_options, &client) != REDLATCH_OK)
        fail("open");
    for (i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (strcmp(args.workload, workloads[i].name) == 0)
            workloads[i].run();
    fprintf(stderr, "there is no workload %s; there are W1 to W5\n", args.workload);
    return 2;
}
