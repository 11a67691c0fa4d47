/* The program of C: driver [act JSON]; see conformance/drivers/README.md.
 *
 * Every request is served by a thread of its own; an actor thread is an owner number. Acquisitions go
 * through the event loop face, one loop thread per client, so that they can be cancelled; those that are
 * `blocked` go through the face for threads. */
#include "driver.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/wait.h>

enum { CLIENTS = 4096, LOCKS = 16384, PARTS = 8 };

/* ---- lines ---- */

static char *read_string(const char **at, char *out)
{
    for (++*at; **at != '"' && **at != 0; ++*at) {
        if (**at != '\\') {
            *out++ = **at;
            continue;
        }
        ++*at;
        *out++ = **at == 'n' ? '\n' : **at == 't' ? '\t' : **at;
    }
    ++*at;
    *out++ = 0;
    return out;
}

void parse(struct request *request)
{
    const char *at = strchr(request->line, '{');
    char *out = request->text;
    request->count = 0;
    while (at != NULL && request->count < FIELDS && (at = strchr(at, '"')) != NULL) {
        request->names[request->count] = out;
        out = read_string(&at, out);
        at += strspn(at, ": ");
        request->values[request->count++] = out;
        if (*at == '"') {
            out = read_string(&at, out);
        } else {
            size_t length = strcspn(at, ",}");
            memcpy(out, at, length);
            at += length;
            out += length;
            *out++ = 0;
        }
    }
}

const char *field(const struct request *request, const char *name)
{
    int i;
    for (i = 0; i < request->count; i++)
        if (strcmp(request->names[i], name) == 0)
            return request->values[i];
    return NULL;
}

int64_t number(const struct request *request, const char *name, int64_t otherwise)
{
    const char *text = field(request, name);
    return text == NULL ? otherwise : strtoll(text, NULL, 10);
}

static void write_line(const char *begin, const char *format, va_list arguments)
{
    flockfile(stdout);
    fputs(begin, stdout);
    vprintf(format, arguments);
    puts("}");
    fflush(stdout);
    funlockfile(stdout);
}

void answer(int64_t id, const char *format, ...)
{
    char begin[40];
    va_list arguments;
    snprintf(begin, sizeof begin, "{\"id\": %lld, ", (long long)id);
    va_start(arguments, format);
    write_line(begin, format, arguments);
    va_end(arguments);
}

void write_object(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line("{", format, arguments);
    va_end(arguments);
}

/* The text of the last error, as it can stand in a JSON string. */
static void write_error(char *out, size_t size)
{
    size_t at = 0;
    for (const char *from = redlatch_last_error(); *from != 0 && at + 2 < size; from++) {
        if (*from == '"' || *from == '\\')
            out[at++] = '\\';
        out[at++] = (unsigned char)*from < ' ' ? ' ' : *from;
    }
    out[at] = 0;
}

void answer_status(int64_t id, redlatch_status status)
{
    char text[LONGEST];
    if (status == REDLATCH_LOST)
        answer(id, "\"status\": \"lost\", \"reason\": \"%s\"", redlatch_lost_reason_name(redlatch_last_lost_reason()));
    else if (status == REDLATCH_OK)
        answer(id, "\"status\": \"ok\"");
    else {
        write_error(text, sizeof text);
        answer(id, "\"status\": \"%s\", \"text\": \"%s\"", redlatch_status_name(status), text);
    }
}

/* ---- clients, locks and owners, by name ---- */

struct client {
    char *name;
    redlatch_client *client;
    pthread_t loop;
};

struct place {
    char *name; /* client, name, and what tells places of one name apart */
    redlatch_lock *lock;
    redlatch_plain_semaphore *semaphore;
    redlatch_latch *latch;
};

static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;
static struct client clients[CLIENTS];
static struct place places[LOCKS];
static char *owners[LOCKS]; /* an owner's number is its index and 1 */
static int client_count, place_count, owner_count;

static char *joined(const char *a, const char *b)
{
    size_t size = strlen(a) + strlen(b) + 2;
    char *text = malloc(size);
    if (text == NULL)
        abort();
    snprintf(text, size, "%s\n%s", a, b);
    return text;
}

static redlatch_client *find_client(const char *name)
{
    redlatch_client *found = NULL;
    int i;
    pthread_mutex_lock(&tables);
    for (i = 0; i < client_count && found == NULL; i++)
        if (strcmp(clients[i].name, name) == 0)
            found = clients[i].client;
    pthread_mutex_unlock(&tables);
    return found;
}

static bool is_semaphore(const struct request *request)
{
    return field(request, "limit") != NULL;
}

/* The names are separated by commas. */
static redlatch_status make_multi_lock(redlatch_client *client, const char *names, redlatch_lock **made)
{
    redlatch_lock *locks[PARTS];
    redlatch_status status = REDLATCH_OK;
    char *copy = strdup(names), *rest = copy, *name;
    size_t count = 0, i;
    if (copy == NULL)
        abort();
    while (status == REDLATCH_OK && count < PARTS && (name = strsep(&rest, ",")) != NULL) {
        status = redlatch_lock_new(client, name, NULL, &locks[count]);
        count += status == REDLATCH_OK;
    }
    if (status == REDLATCH_OK)
        status = redlatch_multi_lock_new(client, locks, count, made);
    for (i = 0; i < count; i++)
        redlatch_lock_free(locks[i]);
    free(copy);
    return status;
}

/* Sets the option from a field of the request; without the field the option stays as it is. */
static redlatch_status set_option(redlatch_options *options, const struct request *request, const char *name,
                                  const char *from)
{
    const char *value = field(request, from);
    return value == NULL ? REDLATCH_OK : redlatch_options_set(options, name, value);
}

static redlatch_status make_semaphore(redlatch_client *client, const struct request *request, redlatch_lock **made)
{
    redlatch_options *options = NULL;
    redlatch_status status = redlatch_options_new(&options);
    if (status == REDLATCH_OK && field(request, "fair") != NULL)
        status = redlatch_options_set(options, "fair", "true");
    if (status == REDLATCH_OK)
        status = redlatch_semaphore_new(client, field(request, "lock"), (uint32_t)number(request, "limit", 0), options, made);
    redlatch_options_free(options);
    return status;
}

static redlatch_status make_single(redlatch_client *client, const struct request *request, redlatch_lock **made)
{
    redlatch_options *options = NULL;
    redlatch_status status = redlatch_options_new(&options);
    if (status == REDLATCH_OK)
        status = set_option(options, request, "kind", "kind");
    if (status == REDLATCH_OK)
        status = redlatch_lock_new(client, field(request, "lock"), options, made);
    redlatch_options_free(options);
    return status;
}

redlatch_status make_lock(redlatch_client *client, const struct request *request, redlatch_lock **made)
{
    const char *lock = field(request, "lock"), *side = field(request, "side");
    redlatch_lock *read, *write;
    redlatch_status status;
    if (is_semaphore(request))
        return make_semaphore(client, request, made);
    if (field(request, "multi") != NULL)
        return make_multi_lock(client, lock, made);
    if (side == NULL)
        return make_single(client, request, made);
    status = redlatch_rw_lock_new(client, lock, NULL, &read, &write);
    if (status == REDLATCH_OK) {
        bool reads = strcmp(side, "read") == 0;
        *made = reads ? read : write;
        redlatch_lock_free(reads ? write : read);
    }
    return status;
}

/* A request is about one of the three in a place. */
static redlatch_status make_place(redlatch_client *client, const struct request *request, struct place *made)
{
    const char *counter = field(request, "counter"), *lock = field(request, "lock");
    if (counter == NULL)
        return make_lock(client, request, &made->lock);
    if (strcmp(counter, "latch") == 0)
        return redlatch_latch_new(client, lock, &made->latch);
    return redlatch_plain_semaphore_new(client, lock, &made->semaphore);
}

static redlatch_status find_place(const struct request *request, struct place *found)
{
    const char *client = field(request, "client"), *lock = field(request, "lock");
    const char *counter = field(request, "counter"), *side = field(request, is_semaphore(request) ? "limit" : "side");
    const char *apart = counter != NULL ? counter : side != NULL ? side : "";
    char *of_client = joined(client, lock), *name = joined(of_client, apart);
    redlatch_status status;
    int i;
    free(of_client);
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&tables);
    for (i = 0; i < place_count && found->name == NULL; i++)
        if (strcmp(places[i].name, name) == 0)
            *found = places[i];
    pthread_mutex_unlock(&tables);
    if (found->name != NULL) {
        free(name);
        return REDLATCH_OK;
    }
    status = make_place(find_client(client), request, found);
    if (status != REDLATCH_OK) {
        free(name);
        return status;
    }
    found->name = name;
    pthread_mutex_lock(&tables);
    places[place_count++] = *found;
    pthread_mutex_unlock(&tables);
    return REDLATCH_OK;
}

static uint64_t find_owner(const char *client, const char *thread)
{
    char *name = joined(client, thread);
    int i;
    pthread_mutex_lock(&tables);
    for (i = 0; i < owner_count && strcmp(owners[i], name) != 0; i++) {
    }
    if (i == owner_count)
        owners[owner_count++] = name;
    else
        free(name);
    pthread_mutex_unlock(&tables);
    return (uint64_t)i + 1;
}

/* ---- operations ---- */

/* Answers the acquisitions of one client as they end; their tags are the requests' ids. */
static void *run_loop(void *of)
{
    redlatch_client *client = of;
    struct pollfd waiting = {-1, POLLIN, 0};
    if (redlatch_client_event_fd(client, &waiting.fd) != REDLATCH_OK)
        return NULL;
    while (poll(&waiting, 1, -1) > 0) {
        int32_t kind;
        uint64_t tag, token;
        redlatch_status result;
        while (redlatch_client_next_event(client, &kind, &tag, &result, &token) == REDLATCH_OK &&
               kind != REDLATCH_EVENT_NONE) {
            if (kind != REDLATCH_EVENT_ACQUIRE && kind != REDLATCH_EVENT_OPEN)
                continue;
            if (result == REDLATCH_OK)
                answer((int64_t)tag, "\"status\": \"ok\", \"token\": %llu", (unsigned long long)token);
            else
                answer_status((int64_t)tag, result);
        }
    }
    return NULL;
}

static void open_client(const struct request *request, int64_t id)
{
    static const char *const given[][2] = {{"watchdog_lease", "watchdog_ms"},
                                           {"fencing", "fencing"},
                                           {"recheck", "recheck_ms"},
                                           {"restart_delay", "restart_delay_ms"},
                                           {"writer_preference", "preference_ms"},
                                           {"cluster_pubsub", "cluster_pubsub"},
                                           {"kind", "kind"},
                                           {"reentrant", "reentrant"}};
    redlatch_options *options = NULL;
    redlatch_client *client = NULL;
    size_t i;
    redlatch_status status = redlatch_options_new(&options);
    for (i = 0; i < sizeof given / sizeof *given && status == REDLATCH_OK; i++)
        status = set_option(options, request, given[i][0], given[i][1]);
    if (status == REDLATCH_OK)
        status = redlatch_client_open(field(request, "url"), options, &client);
    redlatch_options_free(options);
    if (status == REDLATCH_OK) {
        pthread_mutex_lock(&tables);
        clients[client_count].name = strdup(field(request, "client"));
        clients[client_count].client = client;
        pthread_create(&clients[client_count++].loop, NULL, run_loop, client);
        pthread_mutex_unlock(&tables);
    }
    answer_status(id, status);
}

static void free_place(const struct place *place)
{
    redlatch_lock_free(place->lock);
    redlatch_plain_semaphore_free(place->semaphore);
    redlatch_latch_free(place->latch);
    free(place->name);
}

/* Frees a closed client, and all handles. */
static void forget_client(const char *name)
{
    int i;
    pthread_mutex_lock(&tables);
    forget_turns();
    while (place_count > 0)
        free_place(&places[--place_count]);
    for (i = 0; i < client_count; i++)
        if (strcmp(clients[i].name, name) == 0) {
            pthread_cancel(clients[i].loop);
            pthread_join(clients[i].loop, NULL);
            redlatch_client_free(clients[i].client);
            free(clients[i].name);
            clients[i] = clients[--client_count];
            break;
        }
    pthread_mutex_unlock(&tables);
}

static void tell_usage(redlatch_client *client, int64_t id)
{
    struct usage has = usage();
    uint64_t holds = 0, waiting = 0;
    if (client != NULL) {
        redlatch_client_stats(client, "holds", &holds);
        redlatch_client_stats(client, "waiting", &waiting);
    }
    answer(id, "\"status\": \"ok\", \"memory\": %ld, \"threads\": %ld, \"files\": %ld, \"holds\": %llu, \"waiting\": %llu",
           has.memory, has.threads, has.files, (unsigned long long)holds, (unsigned long long)waiting);
}

struct told {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t owner;
    redlatch_lost_reason reason;
};

static void tell(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    struct told *told = user;
    (void)token;
    pthread_mutex_lock(&told->mutex);
    if (owner == told->owner)
        told->reason = reason;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->mutex);
}

static void wait_for_loss(redlatch_lock *lock, uint64_t owner, int64_t id, int64_t within)
{
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, owner, 0};
    struct timespec end;
    int timed_out = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += within / 1000 + 1;
    if (redlatch_lock_on_lost(lock, tell, &told) != REDLATCH_OK) {
        answer(id, "\"status\": \"not_owner\"");
        return;
    }
    pthread_mutex_lock(&told.mutex);
    if (redlatch_lock_check(lock, owner) == REDLATCH_LOST) /* before anybody listened */
        told.reason = redlatch_last_lost_reason();
    while (told.reason == 0 && !timed_out)
        timed_out = pthread_cond_timedwait(&told.changed, &told.mutex, &end) != 0;
    pthread_mutex_unlock(&told.mutex);
    if (redlatch_lock_on_lost(lock, NULL, NULL) != REDLATCH_OK || told.reason == 0)
        answer(id, "\"status\": \"timeout\"");
    else
        answer(id, "\"status\": \"ok\", \"reason\": \"%s\"", redlatch_lost_reason_name(told.reason));
}

static void tell_holder(redlatch_lock *lock, int64_t id)
{
    char owner[128];
    uint32_t count;
    redlatch_status status = redlatch_lock_holder(lock, owner, sizeof owner, &count, NULL);
    if (status != REDLATCH_OK)
        answer_status(id, status);
    else if (owner[0] == 0)
        answer(id, "\"status\": \"ok\", \"value\": null");
    else
        answer(id, "\"status\": \"ok\", \"value\": {\"owner\": \"%s\", \"count\": %u}", owner, count);
}

static void tell_permits(redlatch_lock *semaphore, int64_t id)
{
    int64_t available, limit;
    redlatch_status status = redlatch_semaphore_permits(semaphore, &available, &limit);
    if (status != REDLATCH_OK)
        answer_status(id, status);
    else
        answer(id, "\"status\": \"ok\", \"free\": %lld, \"limit\": %lld", (long long)available, (long long)limit);
}

static void add_up(void *user, const redlatch_holder *holder)
{
    *(uint32_t *)user += holder->count;
}

/* How many permits all holders have. */
static void tell_holders(redlatch_lock *semaphore, int64_t id)
{
    uint32_t sum = 0;
    redlatch_status status = redlatch_lock_holders(semaphore, add_up, &sum);
    if (status != REDLATCH_OK)
        answer_status(id, status);
    else
        answer(id, "\"status\": \"ok\", \"value\": %u", sum);
}

/* A child process is told this when it uses the parent's client. */
static void fork_and_try(redlatch_lock *lock, int64_t id)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(redlatch_lock_acquire(lock, REDLATCH_THREAD, 1000, REDLATCH_LOCK_LEASE, NULL));
    waitpid(child, &status, 0);
    answer_status(id, WIFEXITED(status) ? WEXITSTATUS(status) : REDLATCH_INTERNAL);
}

bool is_blocked(const struct request *request)
{
    const char *blocked = field(request, "blocked");
    return blocked != NULL && strcmp(blocked, "true") == 0;
}

static void acquire(redlatch_lock *lock, uint64_t owner, const struct request *request, int64_t id)
{
    int64_t wait = number(request, "wait_ms", REDLATCH_FOREVER);
    int64_t lease = number(request, "lease_ms", REDLATCH_LOCK_LEASE);
    int64_t longer = number(request, "extend_ms", 0);
    const char *token = field(request, "token");
    uint64_t fencing = 0;
    redlatch_status status = token == NULL ? REDLATCH_OK : redlatch_lock_set_token(lock, token);
    if (is_semaphore(request))
        status = redlatch_semaphore_set_take(lock, (uint32_t)number(request, "permits", 1));
    if (status == REDLATCH_OK && is_blocked(request)) {
        status = redlatch_lock_acquire(lock, owner, wait, lease, &fencing);
        if (status == REDLATCH_OK && longer > 0)
            status = redlatch_lock_extend(lock, owner, longer);
        if (status == REDLATCH_OK) {
            answer(id, "\"status\": \"ok\", \"token\": %llu", (unsigned long long)fencing);
            return;
        }
    } else if (status == REDLATCH_OK)
        status = redlatch_lock_acquire_start(lock, owner, wait, lease, (uint64_t)id);
    if (status != REDLATCH_OK)
        answer_status(id, status);
}

static void adopt(redlatch_lock *lock, uint64_t owner, const struct request *request, int64_t id)
{
    const char *token = field(request, "token");
    if (is_blocked(request))
        answer_status(id, redlatch_lock_adopt(lock, owner, token, REDLATCH_LOCK_LEASE, NULL));
    else {
        redlatch_status status = redlatch_lock_adopt_start(lock, owner, token, REDLATCH_LOCK_LEASE, (uint64_t)id);
        if (status != REDLATCH_OK)
            answer_status(id, status);
    }
}

void answer_cancel(const struct request *request, int64_t id, redlatch_status status, bool cancelled)
{
    if (cancelled)
        answer(number(request, "target", 0), "\"status\": \"cancelled\"");
    answer_status(id, status);
}

void truth(int64_t id, redlatch_status status, bool value)
{
    if (status == REDLATCH_OK)
        answer(id, "\"status\": \"ok\", \"value\": %s", value ? "true" : "false");
    else
        answer_status(id, status);
}

static void perform_on_lock(redlatch_lock *lock, const struct request *request, const char *op, int64_t id)
{
    uint64_t owner = find_owner(field(request, "client"), field(request, "as"));
    bool value = false;
    redlatch_status status;
    if (strcmp(op, "acquire") == 0)
        acquire(lock, owner, request, id);
    else if (strcmp(op, "adopt") == 0)
        adopt(lock, owner, request, id);
    else if (strcmp(op, "cancel") == 0) {
        status = redlatch_lock_acquire_cancel(lock, (uint64_t)number(request, "target", 0), &value);
        answer_cancel(request, id, status, value);
    } else if (strcmp(op, "release") == 0)
        answer_status(id, redlatch_lock_release(lock, owner));
    else if (strcmp(op, "extend") == 0)
        answer_status(id, redlatch_lock_extend(lock, owner, number(request, "lease_ms", 0)));
    else if (strcmp(op, "force") == 0) {
        status = redlatch_lock_force_release(lock, &value);
        truth(id, status, value);
    } else if (strcmp(op, "locked") == 0) {
        status = redlatch_lock_is_locked(lock, &value);
        truth(id, status, value);
    } else if (strcmp(op, "held") == 0)
        truth(id, REDLATCH_OK, redlatch_lock_is_held(lock, owner));
    else if (strcmp(op, "count") == 0)
        answer(id, "\"status\": \"ok\", \"value\": %u", redlatch_lock_hold_count(lock, owner));
    else if (strcmp(op, "holder") == 0)
        tell_holder(lock, id);
    else if (strcmp(op, "permits") == 0)
        tell_permits(lock, id);
    else if (strcmp(op, "set") == 0)
        answer_status(id, redlatch_semaphore_set_permits(lock, (uint32_t)number(request, "permits", 0)));
    else if (strcmp(op, "holders") == 0)
        tell_holders(lock, id);
    else if (strcmp(op, "lost") == 0)
        wait_for_loss(lock, owner, id, number(request, "within_ms", 0));
    else if (strcmp(op, "fork") == 0)
        fork_and_try(lock, id);
    else
        answer(id, "\"status\": \"unsupported\"");
}

static void perform_on_place(const struct request *request, const char *op, int64_t id)
{
    struct place place;
    redlatch_status status = find_place(request, &place);
    if (status != REDLATCH_OK)
        answer_status(id, status);
    else if (place.semaphore != NULL)
        perform_on_semaphore(place.semaphore, request, id);
    else if (place.latch != NULL)
        perform_on_latch(place.latch, request, id);
    else
        perform_on_lock(place.lock, request, op, id);
}

static void hello(int64_t id)
{
    int32_t n;
    size_t option;
    const char *between = "";
    flockfile(stdout);
    printf("{\"id\": %lld, \"status\": \"ok\", \"language\": \"c\", \"version\": \"%s\", \"errors\": {", (long long)id,
           redlatch_version());
    for (n = 1; n < 256; n++)
        if (strcmp(redlatch_status_name(n), "unknown") != 0) {
            printf("%s\"%s\": %d", between, redlatch_status_name(n), n);
            between = ", ";
        }
    printf("}, \"reasons\": {");
    for (n = 1, between = ""; n < 256; n++)
        if (strcmp(redlatch_lost_reason_name(n), "unknown") != 0) {
            printf("%s\"%s\": %d", between, redlatch_lost_reason_name(n), n);
            between = ", ";
        }
    printf("}, \"options\": [");
    for (option = 0; redlatch_options_name(option) != NULL; option++)
        printf("%s\"%s\"", option == 0 ? "" : ", ", redlatch_options_name(option));
    puts("]}");
    fflush(stdout);
    funlockfile(stdout);
}

static void *perform(void *of)
{
    struct request *request = of;
    const char *op = field(request, "op");
    int64_t id = number(request, "id", 0);
    if (strcmp(op, "hello") == 0)
        hello(id);
    else if (strcmp(op, "open") == 0)
        open_client(request, id);
    else if (strcmp(op, "close") == 0)
        answer_status(id, redlatch_client_close(find_client(field(request, "client")), REDLATCH_CLOSE_LIMIT));
    else if (strcmp(op, "usage") == 0)
        tell_usage(find_client(field(request, "client")), id);
    else if (strcmp(op, "turn") == 0)
        perform_turn(find_client(field(request, "client")), request, id);
    else if (strcmp(op, "forget") == 0) {
        forget_client(field(request, "client"));
        answer_status(id, REDLATCH_OK);
    } else
        perform_on_place(request, op, id);
    free(request);
    return NULL;
}

/* Whether serving the request only starts it. */
static bool is_started(const struct request *request)
{
    const char *op = field(request, "op");
    bool started = strcmp(op, "acquire") == 0 || strcmp(op, "wait") == 0 || strcmp(op, "adopt") == 0;
    return started && !is_blocked(request);
}

static int serve(void)
{
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (;;) {
        struct request *request = malloc(sizeof *request);
        pthread_t thread;
        if (request == NULL || fgets(request->line, sizeof request->line, stdin) == NULL)
            return 0;
        parse(request);
        if (is_started(request))
            perform(request); /* in order with what comes next */
        else if (pthread_create(&thread, &detached, perform, request) != 0)
            return 1;
    }
}

int main(int count, char **words)
{
    static struct request plan;
    if (count == 1)
        return serve();
    if (count == 3 && strlen(words[2]) < sizeof plan.line) {
        strcpy(plan.line, words[2]);
        parse(&plan);
        if (strcmp(words[1], "act") == 0)
            return play_act(&plan);
    }
    fprintf(stderr, "driver [act JSON]\n");
    return 2;
}
