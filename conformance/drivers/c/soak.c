/* Acquires as fast as it can; conformance/drivers/README.md says what it does and writes. */
#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>

enum {
    PATIENCE_MS = 20000, /* until threads and descriptors of a closed client have to be gone */
    REENTERING_MS = 2000,
    LOOK_MS = 50, /* how often one that holds looks whether it does */
    CALLERS = 64,
    KEPT = 64 /* handles of a caller that are kept, for what may still be told of their holds */
};

static const int waits_ms[] = {20, 200, 2000, 20000};

/* The plan: chances are per thousand, times milliseconds. */
static long long until, lease, callers, seed, hot, hot_names, shared, shared_names, reads, cold_names, tries, fixed, reenter, extend,
    linger, oversleep;

static redlatch_client *client;
enum kind { REENTRANT, SIMPLE, READ, WRITE };
static redlatch_options *of_kind[2]; /* reentrant, simple */
static int history;

struct attempt {
    redlatch_lock *lock;
    long long called;
    int caller;
};

struct caller {
    pthread_t thread;
    int number;
    uint64_t random;
    long attempts, granted;
    int next;
    struct attempt kept[KEPT];
};

static struct caller all[CALLERS];

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, redlatch_last_error());
    exit(1);
}

/* A line that is in the file at once, whole: what a killed program did is known. */
static void write_line(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (write(history, line, (size_t)length) != length)
        fail("history");
}

/* SplitMix64. */
static long long below(struct caller *caller, long long end)
{
    uint64_t z = caller->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (long long)((z ^ (z >> 31)) % (uint64_t)end);
}

static int chance(struct caller *caller, long long per_mille)
{
    return below(caller, 1000) < per_mille;
}

static void told(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    const struct attempt *attempt = user;
    (void)owner;
    (void)token;
    write_line("l %d %lld %lld %s\n", attempt->caller, attempt->called, now(), redlatch_lost_reason_name(reason));
}

/* A handle of its own for each attempt; the one whose place it takes is given back. */
static struct attempt *prepare(struct caller *caller, const char *name, enum kind kind)
{
    redlatch_lock *sides[2];
    redlatch_status status;
    struct attempt *attempt = &caller->kept[caller->next++ % KEPT];
    redlatch_lock_free(attempt->lock);
    attempt->caller = caller->number;
    if (kind == REENTRANT || kind == SIMPLE)
        status = redlatch_lock_new(client, name, of_kind[kind], &attempt->lock);
    else if ((status = redlatch_rw_lock_new(client, name, NULL, &sides[0], &sides[1])) == REDLATCH_OK) {
        attempt->lock = sides[kind == WRITE];
        redlatch_lock_free(sides[kind == READ]);
    }
    if (status != REDLATCH_OK ||
        redlatch_lock_on_lost(attempt->lock, told, attempt) != REDLATCH_OK)
        fail("lock");
    return attempt;
}

static long long pause_of(struct caller *caller)
{
    if (chance(caller, oversleep))
        return lease * 3 / 2;
    return chance(caller, linger) ? lease * below(caller, 50) / 100 : 0;
}

/* Does what holders do: the levels made and told, when it was last called held, and whether it was in the end. */
static long long hold(struct caller *caller, redlatch_lock *lock, enum kind kind, int *levels, unsigned *counted,
                      int *kept)
{
    long long rest, at, sure = 0;
    *levels = 1;
    if (kind != SIMPLE && chance(caller, reenter))
        *levels += redlatch_lock_acquire(lock, REDLATCH_THREAD, REENTERING_MS, REDLATCH_LOCK_LEASE, NULL) == REDLATCH_OK;
    if (chance(caller, extend)) /* a refusal is the loss that the release will tell */
        redlatch_lock_extend(lock, REDLATCH_THREAD, lease);
    *counted = redlatch_lock_hold_count(lock, REDLATCH_THREAD);
    for (rest = pause_of(caller);; rest -= LOOK_MS) {
        at = now();
        if ((*kept = redlatch_lock_is_held(lock, REDLATCH_THREAD)))
            sure = at;
        if (rest <= 0)
            return sure;
        pause_us(1000 * (rest < LOOK_MS ? rest : LOOK_MS));
    }
}

static void try_once(struct caller *caller)
{
    int is_hot = chance(caller, hot), is_shared = !is_hot && chance(caller, shared), tried = chance(caller, tries), level,
        levels, kept;
    const char *sort = is_hot ? "hot" : is_shared ? "shared" : "cold";
    long long number = below(caller, is_hot ? hot_names : is_shared ? shared_names : cold_names), answered, sure, freed,
              remaining, relied;
    enum kind kind = is_shared ? (chance(caller, reads) ? READ : WRITE) : !is_hot && number % 5 == 0 ? SIMPLE : REENTRANT;
    long long wait = tried ? 0 : waits_ms[below(caller, sizeof waits_ms / sizeof *waits_ms)];
    unsigned counted;
    uint64_t token = 0;
    char name[40], drawn[24] = "-";
    snprintf(name, sizeof name, "%s%lld", sort, number);
    struct attempt *attempt = prepare(caller, name, kind);
    if (kind == READ)
        strcat(name, "/read");
    long long called = attempt->called = now();
    write_line("b %d %s %lld\n", caller->number, name, called);
    redlatch_status status = redlatch_lock_acquire(attempt->lock, REDLATCH_THREAD, wait,
                                                   chance(caller, fixed) ? lease : REDLATCH_LOCK_LEASE, &token);
    answered = now();
    caller->attempts++;
    if (status != REDLATCH_OK) {
        write_line("e %d %s %lld %lld %s %d - 0 0 0 0 0 0 0 -\n", caller->number, name, called, answered,
                   redlatch_status_name(status), tried);
        return;
    }
    caller->granted++;
    if (kind != READ)
        snprintf(drawn, sizeof drawn, "%llu", (unsigned long long)token);
    sure = hold(caller, attempt->lock, kind, &levels, &counted, &kept);
    for (level = 1; level < levels; level++)
        redlatch_lock_release(attempt->lock, REDLATCH_THREAD);
    freed = now();
    remaining = redlatch_lock_remaining_ms(attempt->lock, REDLATCH_THREAD);
    relied = remaining > 0 ? freed + remaining * 1000000LL : 0;
    status = redlatch_lock_release(attempt->lock, REDLATCH_THREAD);
    write_line("e %d %s %lld %lld ok %d %s %d %u %lld %d %lld %lld %lld %s\n", caller->number, name, called, answered,
               tried, drawn, levels, counted, sure, kept, relied, freed, now(),
               redlatch_status_name(status));
}

static void *work(void *of)
{
    struct caller *caller = of;
    while (now() < until)
        try_once(caller);
    return NULL;
}

static void read_plan(const struct request *plan)
{
    const struct {
        const char *name;
        long long *value;
    } numbers[] = {{"until", &until},     {"lease", &lease},           {"callers", &callers},       {"seed", &seed},
                   {"hot", &hot},         {"hot_names", &hot_names},   {"cold_names", &cold_names}, {"tries", &tries},
                   {"shared", &shared},   {"shared_names", &shared_names}, {"reads", &reads},
                   {"fixed", &fixed},     {"reenter", &reenter},       {"extend", &extend},         {"linger", &linger},
                   {"oversleep", &oversleep}};
    size_t each;
    for (each = 0; each < sizeof numbers / sizeof *numbers; each++)
        *numbers[each].value = number(plan, numbers[each].name, 0);
    if (callers > CALLERS)
        callers = CALLERS;
}

static void open_client(const char *url)
{
    char text[32];
    int simple;
    redlatch_options *options = NULL;
    snprintf(text, sizeof text, "%lld", lease);
    if (redlatch_options_new(&options) != REDLATCH_OK ||
        redlatch_options_set(options, "watchdog_lease", text) != REDLATCH_OK ||
        redlatch_options_set(options, "fencing", "true") != REDLATCH_OK ||
        redlatch_client_open(url, options, &client) != REDLATCH_OK)
        fail("open");
    redlatch_options_free(options);
    for (simple = 0; simple < 2; simple++)
        if (redlatch_options_new(&of_kind[simple]) != REDLATCH_OK ||
            redlatch_options_set(of_kind[simple], "kind", simple ? "simple" : "reentrant") != REDLATCH_OK)
            fail("options");
}

static long total_attempts(void)
{
    long sum = 0;
    int at;
    for (at = 0; at < callers; at++)
        sum += all[at].attempts;
    return sum;
}

static unsigned long long stat_of(const char *name)
{
    uint64_t value = 0;
    if (redlatch_client_stats(client, name, &value) != REDLATCH_OK)
        fail(name);
    return value;
}

static void close_client(void)
{
    int at, each;
    redlatch_status status = redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    printf("\"unreleased\": %d, ", status != REDLATCH_OK);
    for (at = 0; at < callers; at++)
        for (each = 0; each < KEPT; each++)
            redlatch_lock_free(all[at].kept[each].lock);
    redlatch_options_free(of_kind[0]);
    redlatch_options_free(of_kind[1]);
    redlatch_client_free(client);
}

static long grown(long after, long before)
{
    return after > before ? after - before : 0;
}

int soak(const struct request *plan)
{
    struct usage before = usage(), after;
    long memory, since, granted = 0;
    int at, waited;
    read_plan(plan);
    history = open(field(plan, "file"), O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0600);
    if (history < 0)
        fail("history");
    before.files++;
    open_client(field(plan, "url"));
    for (at = 0; at < callers; at++) {
        all[at].number = at;
        all[at].random = (uint64_t)seed + ((uint64_t)at << 32);
        if (pthread_create(&all[at].thread, NULL, work, &all[at]) != 0)
            fail("thread");
    }
    pause_us((until - now()) / 2000);
    memory = usage().memory;
    since = total_attempts();
    for (at = 0; at < callers; at++) {
        pthread_join(all[at].thread, NULL);
        granted += all[at].granted;
    }
    memory = grown(usage().memory, memory);
    since = total_attempts() - since;
    printf("{\"attempts\": %ld, \"granted\": %ld, \"holds\": %llu, \"waiting\": %llu, ", total_attempts(), granted,
           stat_of("holds"), stat_of("waiting"));
    close_client();
    after = usage();
    for (waited = 0; waited < PATIENCE_MS && (after.threads > before.threads || after.files > before.files); waited += LOOK_MS) {
        pause_us(1000 * LOOK_MS);
        after = usage();
    }
    printf("\"files\": %ld, \"threads\": %ld, \"memory\": %ld, \"since\": %ld}\n", grown(after.files, before.files),
           grown(after.threads, before.threads), memory, since);
    return 0;
}
