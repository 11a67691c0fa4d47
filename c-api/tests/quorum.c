/* The lock of a quorum: servers that know nothing of each other, of which most are enough. */
#include "redis.h"

enum { SERVERS = 3 };

static const char *quorum;

/* redis() and exists() speak with this server of the quorum. */
static void look_at(int server)
{
    char url[64];
    const char *port = quorum;

    for (int nth = -1; nth <= server; nth++)
        port = strchr(port, ':') + 1; /* the first one ends the scheme */
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", atoi(port));
    setenv("REDLATCH_URL", url, 1);
}

static int having(const char *name)
{
    int count = 0;
    for (int server = 0; server < SERVERS; server++) {
        look_at(server);
        count += exists(name);
    }
    return count;
}

/* A client for which servers that were started now have lost nothing. */
static redlatch_client *open_quorum(void)
{
    redlatch_client *client = NULL;
    redlatch_options *options = options_of("restart_delay", "0");
    if (!CHECK_OK(redlatch_client_open(quorum, options, &client)))
        exit(1);
    redlatch_options_free(options);
    return client;
}

static redlatch_status try_acquire(redlatch_lock *lock)
{
    return redlatch_lock_acquire(lock, 1, 0, REDLATCH_LOCK_LEASE, NULL);
}

static void a_lock_is_on_all_servers_and_excludes_others(void)
{
    redlatch_client *client = open_quorum(), *other = open_quorum();
    redlatch_lock *lock = lock_of(client, "c:quorum"), *theirs = lock_of(other, "c:quorum");

    CHECK_OK(try_acquire(lock));
    CHECK(having("c:quorum") == SERVERS);
    CHECK(redlatch_lock_is_held(lock, 1) && redlatch_lock_remaining_ms(lock, 1) > 0);
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(theirs));
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_lock_acquire(theirs, 1, LIMIT_MS, REDLATCH_LOCK_LEASE, NULL));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(lock));
    CHECK_OK(redlatch_lock_release(theirs, 1));
    EVENTUALLY(having("c:quorum") == 0);
    redlatch_lock_free(lock);
    redlatch_lock_free(theirs);
    close_client(client);
    close_client(other);
}

static void the_loss_of_one_key_is_no_loss_and_that_of_two_is(void)
{
    redlatch_client *client = open_quorum();
    redlatch_lock *lock = lock_of(client, "c:quorum:lost");

    CHECK_OK(try_acquire(lock));
    look_at(0);
    CHECK(redis_says("1", redis("DEL", "c:quorum:lost", NULL)));
    CHECK(redlatch_lock_is_held(lock, 1));
    look_at(1);
    CHECK(redis_says("1", redis("DEL", "c:quorum:lost", NULL)));
    EVENTUALLY(!redlatch_lock_is_held(lock, 1));
    CHECK(counter(client, "lost") == 1); /* the lock, not its keys */
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    EVENTUALLY(having("c:quorum:lost") == 0);
    redlatch_lock_free(lock);
    close_client(client);
}

static void what_a_quorum_has_not_is_refused(void)
{
    redlatch_client *client = open_quorum();
    redlatch_lock *lock = lock_of(client, "c:quorum"), *other = NULL;
    redlatch_options *options = options_of("fencing", "true");

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_new(client, "c:quorum", options, &other));
    CHECK(strstr(redlatch_last_error(), "quorum") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_new(client, "c:quorum", 1, NULL, &other));
    CHECK(strstr(redlatch_last_error(), "quorum") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_multi_lock_new(client, &lock, 1, &other));
    CHECK(strstr(redlatch_last_error(), "quorum") != NULL);
    redlatch_options_free(options);
    redlatch_lock_free(lock);
    close_client(client);
}

int main(int argc, char **argv)
{
    const struct test tests[] = {TEST(a_lock_is_on_all_servers_and_excludes_others),
                                 TEST(the_loss_of_one_key_is_no_loss_and_that_of_two_is),
                                 TEST(what_a_quorum_has_not_is_refused)};
    const char *url = getenv("REDLATCH_URL");

    if (url == NULL || strncmp(url, "redis+quorum://", 15) != 0) {
        printf("REDLATCH_URL names no quorum; run this by tests/run\n");
        return 2;
    }
    quorum = strcpy(malloc(strlen(url) + 1), url); /* look_at() changes the variable */
    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
