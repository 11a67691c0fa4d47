/* Bad input: a status, a text that names what is wrong, and nothing sent. */
#include "redis.h"

/* Whether a call was refused with a text that has both words. */
#define REFUSED(call, first, second) check_refused(REDLATCH_INVALID_ARGUMENT, (call), first, second, __LINE__, #call)

static void check_refused(redlatch_status wanted, redlatch_status found, const char *first, const char *second,
                          int line, const char *call)
{
    check_status(wanted, found, __FILE__, line, call);
    check_that(strstr(redlatch_last_error(), first) != NULL, __FILE__, line, first);
    check_that(strstr(redlatch_last_error(), second) != NULL, __FILE__, line, second);
}

static redlatch_status opened(const char *url, const redlatch_options *options)
{
    redlatch_client *client = (redlatch_client *)&failed_checks;
    redlatch_status status = redlatch_client_open(url, options, &client);
    CHECK((status == REDLATCH_OK) == (client != NULL)); /* never left as it was */
    redlatch_client_free(client);
    return status;
}

static redlatch_status named(redlatch_client *client, const char *name)
{
    redlatch_lock *lock = (redlatch_lock *)&failed_checks;
    redlatch_status status = redlatch_lock_new(client, name, NULL, &lock);
    CHECK((status == REDLATCH_OK) == (lock != NULL));
    redlatch_lock_free(lock);
    return status;
}

static void urls(void)
{
    char *saved = strdup(getenv("REDLATCH_URL"));
    REFUSED(opened("", NULL), "redis://", "");
    REFUSED(opened("localhost", NULL), "localhost", "redis://");
    REFUSED(opened("http://user:secret@host/", NULL), "redis://", "");
    CHECK(strstr(redlatch_last_error(), "secret") == NULL);
    REFUSED(opened("redis://host:port", NULL), "redis://", "");
    REFUSED(opened("redis://\xff\xfe/", NULL), "url", "UTF-8");
    unsetenv("REDLATCH_URL");
    REFUSED(opened(NULL, NULL), "no URL", "REDLATCH_URL");
    setenv("REDLATCH_URL", "nothing", 1);
    REFUSED(opened(NULL, NULL), "nothing", "redis://");
    setenv("REDLATCH_URL", saved, 1);
    free(saved);
}

static void servers(void)
{
    char url[64];
    int fd = deaf(url, sizeof url);

    CHECK_STATUS(REDLATCH_UNAVAILABLE, opened(url, NULL));
    CHECK(redlatch_status_retryable(REDLATCH_UNAVAILABLE));
    close(fd);

    CHECK(redis_says("OK", redis("ACL", "SETUSER", "c", "on", ">right", "~*", "&*", "+@all", NULL)));
    snprintf(url, sizeof url, "redis://c:wrong@127.0.0.1:%d", server_port());
    CHECK_STATUS(REDLATCH_AUTH, opened(url, NULL));
    CHECK(strstr(redlatch_last_error(), "wrong") == NULL);
    snprintf(url, sizeof url, "redis://c:right@127.0.0.1:%d", server_port());
    CHECK_OK(opened(url, NULL));
}

static void options(void)
{
    redlatch_options *options = NULL, *of_client = options_of("recheck", "1s");
    redlatch_client *client = open_client();
    redlatch_lock *lock = NULL;

    CHECK_OK(redlatch_options_new(&options));
    /* Neither a client's nor a lock's: that is not known yet. */
    REFUSED(redlatch_options_set(options, "leese", "1s"), "no option \"leese\"; did you mean lease?", "");
    REFUSED(redlatch_options_set(options, "watchdogLease", "1s"), "did you mean watchdog_lease?", "");
    REFUSED(redlatch_options_set(options, "colour", "1s"), "no option \"colour\"; there are", "limit");
    CHECK(strstr(redlatch_last_error(), "permits") == NULL);
    /* Options of an acquisition are parameters in C. */
    REFUSED(redlatch_options_set(options, "wait", "1s"), "\"wait\"", "wait_ms of redlatch_lock_acquire()");
    REFUSED(redlatch_options_set(options, "wait_ms", "1s"), "\"wait_ms\"", "wait_ms of redlatch_lock_acquire()");
    REFUSED(redlatch_options_set(options, "lease_ms", "1s"), "lease_ms of redlatch_lock_acquire()", "option lease");
    REFUSED(redlatch_options_set(options, "token", "abc"), "\"token\"", "redlatch_lock_set_token()");
    REFUSED(redlatch_options_set(options, "permits", "2"), "\"permits\"", "redlatch_semaphore_set_take()");
    REFUSED(redlatch_options_set(options, "", "1s"), "", "");
    REFUSED(redlatch_options_set(options, "\xff", "1s"), "name", "UTF-8");
    REFUSED(redlatch_options_set(options, "lease", "\xff"), "value", "UTF-8");
    REFUSED(redlatch_options_set(options, "lease", "soon"), "lease", "soon");
    REFUSED(redlatch_options_set(options, "lease", "-1"), "lease", "-1");
    REFUSED(redlatch_options_set(options, "lease", "99"), "lease", "100");
    REFUSED(redlatch_options_set(options, "watchdog_lease", "25h"), "watchdog_lease", "");
    REFUSED(redlatch_options_set(options, "fencing", "yes"), "fencing", "true");
    REFUSED(redlatch_options_set(options, "events", "1.5"), "events", "1.5");
    REFUSED(redlatch_options_set(options, "client_name", "two words"), "client_name", "two words");
    /* A client's option is none of a lock. */
    REFUSED(redlatch_lock_new(client, "c:x", of_client, &lock), "recheck", "client");
    CHECK(lock == NULL);
    redlatch_options_free(options);
    redlatch_options_free(of_client);
    close_client(client);
}

static void names(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = NULL;
    char name[1026];

    memset(name, 'x', sizeof name);
    name[1025] = '\0';
    REFUSED(named(client, name), "1025", "1,024");
    name[1024] = '\0';
    CHECK_OK(named(client, name));
    REFUSED(named(client, ""), "empty", "");
    REFUSED(named(client, "ab\xff"), "UTF-8", "2");
    REFUSED(named(client, "\xc3"), "UTF-8", "");
    CHECK_OK(named(client, "gr\xc3\xbc\xc3\x9f"));
    REFUSED(redlatch_lock_new_n(client, "", 0, NULL, &lock), "empty", "");
    REFUSED(redlatch_lock_new_n(client, "x", (size_t)-1, NULL, &lock), "name", "");
    REFUSED(redlatch_lock_new_n(client, NULL, 0, NULL, &lock), "name", "NULL");
    close_client(client);
}

static void times(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:times");
    int64_t calls = (int64_t)counter(client, "calls");

    /* The parameter, the number as it was given, and the bounds in milliseconds. */
    REFUSED(redlatch_lock_acquire(lock, 1, -2, 0, NULL), "wait_ms is -2; give it REDLATCH_FOREVER or 0 to ", "");
    REFUSED(redlatch_lock_acquire(lock, 1, INT64_MIN, 0, NULL), "wait_ms is -9223372036854775808;", "");
    REFUSED(redlatch_lock_acquire(lock, 1, INT64_MAX, 0, NULL), "wait_ms is 9223372036854775807;", "");
    REFUSED(redlatch_lock_acquire(lock, 1, 0, -1, NULL), "lease_ms is -1; give it REDLATCH_LOCK_LEASE or", "");
    REFUSED(redlatch_lock_acquire(lock, 1, 0, 99, NULL), "lease_ms is 99;", "100 to 86400000 milliseconds");
    REFUSED(redlatch_lock_acquire(lock, 1, 0, INT64_MAX, NULL), "lease_ms is 9223372036854775807;", "");
    REFUSED(redlatch_lock_extend(lock, 1, 0), "lease_ms is 0; give it 100 to 86400000 milliseconds", "");
    REFUSED(redlatch_lock_extend(lock, 1, -5), "lease_ms is -5;", "");
    REFUSED(redlatch_lock_extend_token(lock, "x", 99), "lease_ms is 99;", "");
    REFUSED(redlatch_lock_acquire_start(lock, 1, -2, 0, 1), "wait_ms is -2;", "REDLATCH_FOREVER");
    REFUSED(redlatch_lock_acquire_start(lock, 1, 0, -1, 1), "lease_ms is -1;", "REDLATCH_LOCK_LEASE");
    REFUSED(redlatch_lock_extend_start(lock, 1, 99, 1), "lease_ms is 99;", "");
    REFUSED(redlatch_lock_extend_token_start(lock, "x", 99, 1), "lease_ms is 99;", "");
    REFUSED(redlatch_client_close(client, -2), "wait_ms is -2; give it REDLATCH_CLOSE_LIMIT or 0 to 600000", "");
    REFUSED(redlatch_client_close(client, INT64_MAX), "wait_ms is 9223372036854775807;", "");
    REFUSED(redlatch_client_close_start(client, -2, 1), "wait_ms is -2;", "REDLATCH_CLOSE_LIMIT");
    CHECK((int64_t)counter(client, "calls") == calls); /* nothing was sent */
    redlatch_lock_free(lock);
    close_client(client);
}

static void data_of_others(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:foreign");
    bool flag;

    redis("SET", "c:foreign", "precious", NULL);
    CHECK_STATUS(REDLATCH_FOREIGN_KIND, redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK(strstr(redlatch_last_error(), "c:foreign") != NULL);
    CHECK_STATUS(REDLATCH_FOREIGN_KIND, redlatch_lock_is_locked(lock, &flag));
    CHECK_STATUS(REDLATCH_FOREIGN_KIND, redlatch_lock_force_release(lock, NULL));
    CHECK(redis_says("precious", redis("GET", "c:foreign", NULL)));
    redis("DEL", "c:foreign", NULL);
    redlatch_lock_free(lock);
    close_client(client);
}

static void nulls(void)
{
    redlatch_client *client = open_client(), *no_client = NULL;
    redlatch_lock *lock = lock_of(client, "c:null"), *no_lock = NULL;
    redlatch_options *options = options_of("fencing", "true"), *no_options = NULL;
    uint64_t number = 0;
    bool flag = false;
    int fd = -1;
    int32_t kind = -1;

    REFUSED(redlatch_options_new(NULL), "options", "NULL");
    REFUSED(redlatch_options_set(NULL, "fencing", "true"), "options", "NULL");
    REFUSED(redlatch_options_set(options, NULL, "true"), "name", "NULL");
    CHECK_OK(redlatch_options_set(options, "fencing", NULL)); /* the default */
    REFUSED(redlatch_client_open(NULL, NULL, NULL), "client", "NULL");
    REFUSED(redlatch_client_close(NULL, 0), "client", "NULL");
    REFUSED(redlatch_client_on_event(NULL, NULL, NULL), "client", "NULL");
    REFUSED(redlatch_client_stats(NULL, "lost", &number), "client", "NULL");
    REFUSED(redlatch_client_stats(client, NULL, &number), "name", "NULL");
    REFUSED(redlatch_client_stats(client, "lost", NULL), "count", "NULL");
    REFUSED(redlatch_client_stats(client, "gained", &number), "gained", "acquired");
    REFUSED(redlatch_client_event_fd(NULL, &fd), "client", "NULL");
    REFUSED(redlatch_client_event_fd(client, NULL), "fd", "NULL");
    REFUSED(redlatch_client_next_event(NULL, &kind, NULL, NULL, NULL), "client", "NULL");
    REFUSED(redlatch_client_next_event(client, NULL, NULL, NULL, NULL), "kind", "NULL");
    CHECK_OK(redlatch_client_next_event(client, &kind, NULL, NULL, NULL));
    CHECK(kind == REDLATCH_EVENT_NONE);
    REFUSED(redlatch_lock_new(NULL, "x", NULL, &no_lock), "client", "NULL");
    REFUSED(redlatch_lock_new(client, NULL, NULL, &no_lock), "name", "NULL");
    REFUSED(redlatch_lock_new(client, "x", NULL, NULL), "lock", "NULL");
    REFUSED(redlatch_lock_new_n(NULL, "x", 1, NULL, &no_lock), "client", "NULL");
    REFUSED(redlatch_lock_new_n(client, "x", 1, NULL, NULL), "lock", "NULL");
    REFUSED(redlatch_lock_acquire(NULL, 1, 0, 0, NULL), "lock", "NULL");
    REFUSED(redlatch_lock_release(NULL, 1), "lock", "NULL");
    REFUSED(redlatch_lock_extend(NULL, 1, 1000), "lock", "NULL");
    REFUSED(redlatch_lock_force_release(NULL, &flag), "lock", "NULL");
    REFUSED(redlatch_lock_is_locked(NULL, &flag), "lock", "NULL");
    REFUSED(redlatch_lock_is_locked(lock, NULL), "locked", "NULL");
    REFUSED(redlatch_lock_holder(NULL, NULL, 0, NULL, NULL), "lock", "NULL");
    REFUSED(redlatch_lock_check(NULL, 1), "lock", "NULL");
    REFUSED(redlatch_lock_on_lost(NULL, NULL, NULL), "lock", "NULL");
    REFUSED(redlatch_lock_acquire_start(NULL, 1, 0, 0, 1), "lock", "NULL");
    REFUSED(redlatch_lock_acquire_cancel(NULL, 1, &flag), "lock", "NULL");
    REFUSED(redlatch_lock_release_start(NULL, 1, 1), "lock", "NULL");
    REFUSED(redlatch_lock_extend_start(NULL, 1, 1000, 1), "lock", "NULL");
    REFUSED(redlatch_lock_force_release_start(NULL, 1), "lock", "NULL");
    REFUSED(redlatch_lock_is_locked_start(NULL, 1), "lock", "NULL");
    REFUSED(redlatch_lock_holders_start(lock, NULL, NULL, 1), "function", "NULL");
    REFUSED(redlatch_lock_release_token_start(NULL, "x", 1), "lock", "NULL");
    REFUSED(redlatch_lock_release_token_start(lock, NULL, 1), "token", "NULL");
    REFUSED(redlatch_lock_extend_token_start(NULL, "x", 1000, 1), "lock", "NULL");
    REFUSED(redlatch_semaphore_permits_start(NULL, NULL, NULL, 1), "semaphore", "NULL");
    REFUSED(redlatch_semaphore_set_permits_start(NULL, 1, 1), "semaphore", "NULL");
    REFUSED(redlatch_client_ready_start(NULL, 1), "client", "NULL");
    REFUSED(redlatch_client_close_start(NULL, 0, 1), "client", "NULL");
    REFUSED(redlatch_client_new(NULL, NULL, NULL), "client", "NULL");
    CHECK(!redlatch_lock_is_held(NULL, 1));
    CHECK(redlatch_lock_remaining_ms(NULL, 1) == 0);
    CHECK(redlatch_lock_hold_count(NULL, 1) == 0);
    CHECK(redlatch_lock_fencing_token(NULL, 1) == 0);
    redlatch_options_free(no_options);
    redlatch_client_free(no_client);
    redlatch_lock_free(no_lock);
    redlatch_options_free(options);
    redlatch_lock_free(lock);
    close_client(client);
}

/* Whether the text of the last failure names the lock and has this remedy. */
static int told(const char *remedy)
{
    return strstr(redlatch_last_error(), "\"c:ended\"") != NULL && strstr(redlatch_last_error(), remedy) != NULL;
}

static void what_has_ended_is_named_with_its_remedy(void)
{
    redlatch_client *client = open_client(), *unused = NULL;
    redlatch_lock *lock = lock_of(client, "c:ended"), *of_unused;
    bool flag;

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_force_release(lock, &flag));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_check(lock, 1));
    CHECK(told("acquire anew"));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK(told("give back each with redlatch_lock_release(), then acquire anew"));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_client_close(client, REDLATCH_CLOSE_LIMIT));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_lock_acquire(lock, 2, 0, 0, NULL));
    CHECK(told("open a new one"));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_lock_extend(lock, 1, 1000));
    CHECK(told("open a new one"));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_lock_is_locked(lock, &flag));
    CHECK(told("open a new one"));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_lock_release(lock, 1));
    CHECK(told("open a new one"));
    redlatch_lock_free(lock);
    redlatch_client_free(client);

    CHECK_OK(redlatch_client_new(NULL, NULL, &unused)); /* closed before it has connected */
    of_unused = lock_of(unused, "c:ended");
    CHECK_OK(redlatch_client_close(unused, 0));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_lock_acquire(of_unused, 1, 0, 0, NULL));
    CHECK(told("open a new one"));
    redlatch_lock_free(of_unused);
    redlatch_client_free(unused);
}

/* C evaluates arguments in any order: the text may be asked for before the call that fails. */
static void texts_stay_readable(void)
{
    redlatch_options *options = options_of("fencing", "true");
    const char *text;
    char value[8000];

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_options_set(options, "leese", "1s"));
    text = redlatch_last_error();
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_options_set(options, "lease", "soon"));
    CHECK(strstr(text, "soon") != NULL);
    memset(value, 'x', sizeof value);
    value[sizeof value - 1] = '\0';
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_options_set(options, value, "1s"));
    CHECK(strlen(text) > 0); /* freed memory is what the sanitizers and valgrind would find here */
    redlatch_options_free(options);
}

static void unknown_numbers(void)
{
    CHECK(strcmp(redlatch_status_name(REDLATCH_OK), "ok") == 0);
    CHECK(strcmp(redlatch_status_name(REDLATCH_TIMEOUT), "timeout") == 0);
    CHECK(strcmp(redlatch_status_name(-7), "unknown") == 0);
    CHECK(strcmp(redlatch_lost_reason_name(REDLATCH_LOST_DELETED), "deleted") == 0);
    CHECK(strcmp(redlatch_lost_reason_name(0), "unknown") == 0);
    CHECK(!redlatch_status_retryable(REDLATCH_OK) && !redlatch_status_retryable(INT32_MIN));
    CHECK(strcmp(redlatch_version(), REDLATCH_VERSION) == 0);
    CHECK(redlatch_version_number() == REDLATCH_VERSION_NUMBER);
    CHECK(REDLATCH_VERSION_NUMBER ==
          REDLATCH_VERSION_MAJOR * 10000 + REDLATCH_VERSION_MINOR * 100 + REDLATCH_VERSION_PATCH);
}

/* Every name that is listed is known, and the other way round. */
static void lists_of_names(void)
{
    redlatch_client *client = open_client();
    redlatch_options *options = options_of("fencing", "true");
    uint64_t count;
    size_t i;
    int fencing = 0;

    for (i = 0; redlatch_client_stats_name(i) != NULL; i++)
        CHECK_OK(redlatch_client_stats(client, redlatch_client_stats_name(i), &count));
    CHECK(i > 5 && redlatch_client_stats_name((size_t)-1) == NULL);
    for (i = 0; redlatch_options_name(i) != NULL; i++) {
        fencing += strcmp(redlatch_options_name(i), "fencing") == 0;
        /* An option of one acquisition does not belong to a set of options. */
        if (strcmp(redlatch_options_name(i), "wait") != 0 && strcmp(redlatch_options_name(i), "token") != 0 &&
            strcmp(redlatch_options_name(i), "permits") != 0)
            CHECK_OK(redlatch_options_set(options, redlatch_options_name(i), NULL));
    }
    CHECK(i > 5 && fencing == 1);
    redlatch_options_free(options);
    close_client(client);
}

MAIN(TEST(urls), TEST(servers), TEST(options), TEST(names), TEST(times), TEST(data_of_others), TEST(nulls),
     TEST(what_has_ended_is_named_with_its_remedy),
     TEST(texts_stay_readable), TEST(unknown_numbers), TEST(lists_of_names))
