/* The acts of the fault matrix; see conformance/drivers/README.md. */
#include "driver.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/wait.h>

/* How long anything may take that has no limit of its own: only a hang reaches it. */
#define PATIENCE_MS 60000

static const char *act, *url, *name;
static int64_t lease_ms;
static int size;

static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

#define ENSURE(condition, ...)                                                                                  \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            say("failed " __VA_ARGS__);                                                                         \
            _exit(1);                                                                                           \
        }                                                                                                       \
    } while (0)
#define OK(call)                                                                                                \
    do {                                                                                                        \
        redlatch_status status_ = (call);                                                                       \
        ENSURE(status_ == REDLATCH_OK, "%s: %s", #call, redlatch_last_error());                                 \
    } while (0)
#define EVENTUALLY(condition, text)                                                                             \
    do {                                                                                                        \
        int64_t end_ = now() + PATIENCE_MS * INT64_C(1000000);                                                  \
        while (!(condition)) {                                                                                  \
            ENSURE(now() < end_, "%s", text);                                                                   \
            pause_us(2000);                                                                                     \
        }                                                                                                       \
    } while (0)

static void spin_us(int64_t us)
{
    int64_t end = now() + us * 1000;
    while (now() < end) {
    }
}

/* Says `ready`, and goes on when the matrix says so. */
static void ready(void)
{
    char line[16];
    say("ready");
    if (fgets(line, sizeof line, stdin) == NULL)
        _exit(1);
}

static redlatch_client *open_client(void)
{
    redlatch_client *client = NULL;
    redlatch_options *options = NULL;
    char lease[32];
    snprintf(lease, sizeof lease, "%lldms", (long long)lease_ms);
    OK(redlatch_options_new(&options));
    OK(redlatch_options_set(options, "watchdog_lease", lease));
    OK(redlatch_client_open(url, options, &client));
    redlatch_options_free(options);
    return client;
}

static redlatch_lock *lock_of(redlatch_client *client, const char *end)
{
    char text[256];
    redlatch_lock *lock = NULL;
    snprintf(text, sizeof text, "%s%s", name, end);
    OK(redlatch_lock_new(client, text, NULL, &lock));
    return lock;
}

static redlatch_lock *numbered(redlatch_client *client, int number)
{
    char end[32];
    snprintf(end, sizeof end, ":%d", number);
    return lock_of(client, end);
}

static void acquire(redlatch_lock *lock, uint64_t owner)
{
    OK(redlatch_lock_acquire(lock, owner, PATIENCE_MS, REDLATCH_LOCK_LEASE, NULL));
}

static uint64_t counter(redlatch_client *client, const char *what)
{
    uint64_t count = 0;
    OK(redlatch_client_stats(client, what, &count));
    return count;
}

static bool is_locked(redlatch_lock *lock)
{
    bool locked = true;
    OK(redlatch_lock_is_locked(lock, &locked));
    return locked;
}

static uint32_t count_there(redlatch_lock *lock)
{
    uint32_t count = 0;
    OK(redlatch_lock_holder(lock, NULL, 0, &count, NULL));
    return count;
}

/* Waits until the client has renewed so many times more, so that a hold is known to live on. */
static void renewed(redlatch_client *client, uint64_t times)
{
    uint64_t before = counter(client, "renewed");
    EVENTUALLY(counter(client, "renewed") >= before + times, "nothing is renewed");
}

static void at_rest(redlatch_client *client)
{
    EVENTUALLY(counter(client, "holds") == 0 && counter(client, "waiting") == 0,
               "something is still held or waited for");
}

/* The same client goes on as if nothing had happened. */
static void works(redlatch_client *client)
{
    redlatch_lock *lock = lock_of(client, "");
    acquire(lock, 7);
    ENSURE(redlatch_lock_hold_count(lock, 7) == 1, "the count is another one");
    OK(redlatch_lock_release(lock, 7));
    at_rest(client);
    redlatch_lock_free(lock);
    say("done");
    OK(redlatch_client_close(client, REDLATCH_CLOSE_LIMIT));
    redlatch_client_free(client);
}

/* The usage of the process; the matrix compares it. */
static void say_resources(const char *when)
{
    struct usage has = usage();
    say("%s memory=%ld threads=%ld descriptors=%ld", when, has.memory, has.threads, has.files);
}

/* ---- events ---- */

struct event {
    int32_t kind;
    uint64_t tag;
    redlatch_status result;
};

static struct event next_event(redlatch_client *client)
{
    struct event event = {REDLATCH_EVENT_NONE, 0, REDLATCH_OK};
    OK(redlatch_client_next_event(client, &event.kind, &event.tag, &event.result, NULL));
    return event;
}

static struct event await_event(redlatch_client *client)
{
    struct pollfd waiting = {-1, POLLIN, 0};
    OK(redlatch_client_event_fd(client, &waiting.fd));
    ENSURE(poll(&waiting, 1, PATIENCE_MS) == 1, "no event comes");
    return next_event(client);
}

static void start(redlatch_lock *lock, uint64_t owner, uint64_t tag)
{
    OK(redlatch_lock_acquire_start(lock, owner, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, tag));
}

/* Cancels it; 1 if it had been granted before, and then its event is there and it is released. */
static int cancel(redlatch_client *client, redlatch_lock *lock, uint64_t owner, uint64_t tag)
{
    bool cancelled = false;
    OK(redlatch_lock_acquire_cancel(lock, tag, &cancelled));
    struct event event = cancelled ? next_event(client) : await_event(client);
    if (cancelled) {
        ENSURE(event.kind == REDLATCH_EVENT_NONE, "cancelled, and an event comes");
        return 0;
    }
    ENSURE(event.kind == REDLATCH_EVENT_ACQUIRE && event.tag == tag && event.result == REDLATCH_OK,
           "not cancelled, and no grant: event %d", (int)event.kind);
    OK(redlatch_lock_release(lock, owner));
    return 1;
}

/* ---- parts of the process end ---- */

static void in_child(redlatch_lock *lock)
{
    redlatch_client *own;
    redlatch_lock *busy, *free_one;
    ENSURE(redlatch_lock_acquire(lock, 1, 0, 0, NULL) == REDLATCH_FORKED, "acquire does not say that it is forked");
    ENSURE(redlatch_lock_check(lock, 1) == REDLATCH_FORKED, "check does not say that it is forked");
    ENSURE(!redlatch_lock_is_held(lock, 1), "the child believes that it holds");
    OK(redlatch_lock_release(lock, 1));
    own = open_client();
    busy = lock_of(own, "");
    free_one = lock_of(own, ":child");
    ENSURE(redlatch_lock_acquire(busy, 1, 0, 0, NULL) == REDLATCH_TIMEOUT, "the child took what its parent holds");
    acquire(free_one, 1);
    OK(redlatch_lock_release(free_one, 1));
    OK(redlatch_client_close(own, REDLATCH_CLOSE_LIMIT));
}

static void play_fork(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, ""), *busy = lock_of(client, ":busy");
    struct event event;
    int status = 0;
    pid_t child;
    acquire(lock, 1);
    start(busy, 2, 9);
    EVENTUALLY(counter(client, "waiting") == 1, "nobody waits");
    child = fork();
    if (child == 0) {
        alarm(60);
        in_child(lock);
        _exit(0);
    }
    ENSURE(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
    ready();
    renewed(client, 3);
    OK(redlatch_lock_check(lock, 1));
    ENSURE(redlatch_lock_hold_count(lock, 1) == 1, "the count is another one");
    OK(redlatch_lock_release(lock, 1));
    event = await_event(client);
    ENSURE(event.tag == 9 && event.result == REDLATCH_OK, "what the parent waits for does not come");
    OK(redlatch_client_close(client, REDLATCH_CLOSE_LIMIT));
}

static void *wait_for_ever(void *lock)
{
    (void)!redlatch_lock_acquire(lock, REDLATCH_THREAD, REDLATCH_FOREVER, 0, NULL);
    return NULL;
}

static void play_exit(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, ""), *busy = lock_of(client, ":busy");
    pthread_t thread;
    acquire(lock, 1);
    start(busy, 2, 9);
    pthread_create(&thread, NULL, wait_for_ever, busy);
    EVENTUALLY(counter(client, "waiting") == 2, "nobody waits");
    ready();
    if (strcmp(act, "exit-exit") == 0)
        exit(3);
}

static void *hold_and_end(void *lock)
{
    acquire(lock, REDLATCH_THREAD);
    ready();
    return NULL;
}

static void play_owner_ends(void)
{
    redlatch_client *client = open_client();
    pthread_t thread;
    pthread_create(&thread, NULL, hold_and_end, lock_of(client, ""));
    pthread_join(thread, NULL);
    say("ended");
    works(client);
}

/* C has no collector: a lock is freed that is held. */
static void play_collected(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "");
    acquire(lock, 1);
    ready();
    redlatch_lock_free(lock);
    works(client);
}

/* ---- cancelling ---- */

/* Cancelled some time after the call began, from nothing to longer than it takes. */
static void play_instants(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *lock = lock_of(client, ""), *others = lock_of(other, "");
    int turn, granted = 0;
    ready();
    for (turn = 0; turn < size; turn++) {
        if (turn % 2)
            acquire(others, 5);
        start(lock, 1, (uint64_t)turn);
        if (turn % 2)
            OK(redlatch_lock_release_start(others, 5, 1));
        spin_us(lease_ms * 1000 / 400 * turn / size);
        granted += cancel(client, lock, 1, (uint64_t)turn);
        if (turn % 2)
            ENSURE(await_event(other).kind == REDLATCH_EVENT_RELEASE, "the other one's release does not end");
    }
    say("granted %d cancelled %d", granted, size - granted);
    works(client);
}

/* Cancelled when the lock is won and its event has not been taken: it is granted. */
static void play_granted(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "");
    int turn;
    ready();
    for (turn = 0; turn < size; turn++) {
        uint64_t before = counter(client, "acquired");
        start(lock, 1, (uint64_t)turn);
        EVENTUALLY(counter(client, "acquired") > before, "it is not granted");
        (void)cancel(client, lock, 1, (uint64_t)turn);
        at_rest(client);
        EVENTUALLY(!is_locked(lock), "the lock stays");
    }
    works(client);
}

static void *release_late(void *lock)
{
    spin_us(100);
    OK(redlatch_lock_release(lock, 1));
    return NULL;
}

/* One level is given back while the next one is being acquired by the same owner. */
static void play_race(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "");
    int turn;
    ready();
    for (turn = 0; turn < size; turn++) {
        pthread_t thread;
        acquire(lock, 1);
        acquire(lock, 1);
        pthread_create(&thread, NULL, release_late, lock);
        spin_us(turn % 20 * 10);
        acquire(lock, 1);
        pthread_join(thread, NULL);
        uint32_t here = redlatch_lock_hold_count(lock, 1), there = count_there(lock);
        ENSURE(here == 2 && there == 2, "the client counts %u, the server %u, and not 2", here, there);
        OK(redlatch_lock_release(lock, 1));
        OK(redlatch_lock_release(lock, 1));
        ENSURE(!is_locked(lock), "the lock stays");
    }
    works(client);
}

/* ---- scale ---- */

static void start_all(redlatch_client *client, redlatch_lock *lock)
{
    int number;
    for (number = 0; number < size; number++)
        start(lock, (uint64_t)number + 100, (uint64_t)number);
    EVENTUALLY(counter(client, "waiting") == (uint64_t)size, "not all wait");
}

/* All wait for one name and are served one after the other; then all wait again and are cancelled. */
static void play_waiters(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *lock = lock_of(client, ""), *others = lock_of(other, "");
    int turn, number;
    ready();
    for (turn = 0; turn < 3; turn++) {
        int granted = 0, released = 0;
        acquire(others, 5);
        start_all(client, lock);
        OK(redlatch_lock_release(others, 5));
        while (released < size) {
            struct event event = await_event(client);
            ENSURE(event.result == REDLATCH_OK, "a waiter is told %s", redlatch_status_name(event.result));
            if (event.kind == REDLATCH_EVENT_ACQUIRE) {
                granted++;
                OK(redlatch_lock_release_start(lock, event.tag + 100, event.tag));
            } else if (event.kind == REDLATCH_EVENT_RELEASE)
                released++;
        }
        ENSURE(granted == size, "%d of %d were served", granted, size);
        acquire(others, 5);
        start_all(client, lock);
        for (number = 0; number < size; number++)
            ENSURE(cancel(client, lock, (uint64_t)number + 100, (uint64_t)number) == 0, "granted what is held");
        OK(redlatch_lock_release(others, 5));
        at_rest(client);
        say_resources(turn == 0 ? "before" : "after");
    }
    works(client);
}

static void play_holds(void)
{
    redlatch_client *client = open_client();
    redlatch_lock **locks = calloc((size_t)size, sizeof *locks);
    int number, kept = 0, round;
    ready();
    for (number = 0; number < size; number++)
        acquire(locks[number] = numbered(client, number), 1);
    say("held");
    for (round = 0; round < 3; round++)
        renewed(client, (uint64_t)size);
    for (number = 0; number < size; number++)
        kept += redlatch_lock_is_held(locks[number], 1);
    ENSURE(kept == size && counter(client, "lost") == 0, "%d of %d are held", kept, size);
    ready();
    for (number = 0; number < size; number++) {
        OK(redlatch_lock_release(locks[number], 1));
        redlatch_lock_free(locks[number]);
    }
    free(locks);
    works(client);
}

/* Each name is used once. Memory that grows while the second half is used grows with the names. */
static void play_names(void)
{
    redlatch_client *client = open_client();
    int number;
    ready();
    for (number = 0; number < size; number++) {
        redlatch_lock *lock;
        if (number == size / 2) {
            at_rest(client);
            say_resources("before");
        }
        lock = numbered(client, number);
        acquire(lock, REDLATCH_THREAD);
        OK(redlatch_lock_release(lock, REDLATCH_THREAD));
        redlatch_lock_free(lock);
    }
    at_rest(client);
    say_resources("after");
    works(client);
}

static const struct {
    const char *name;
    void (*play)(void);
} acts[] = {
    {"fork", play_fork},
    {"exit-return", play_exit},
    {"exit-exit", play_exit},
    {"owner-ends", play_owner_ends},
    {"collected", play_collected},
    {"cancel-instants", play_instants},
    {"cancel-granted", play_granted},
    {"race", play_race},
    {"waiters", play_waiters},
    {"holds", play_holds},
    {"names", play_names},
};

int play_act(const struct request *plan)
{
    size_t each;
    act = field(plan, "act");
    url = field(plan, "url");
    name = field(plan, "lock");
    lease_ms = number(plan, "lease_ms", 0);
    size = (int)number(plan, "size", 0);
    for (each = 0; each < sizeof acts / sizeof *acts; each++)
        if (strcmp(acts[each].name, act) == 0) {
            acts[each].play();
            return 0;
        }
    say("failed no act %s", act);
    return 1;
}
