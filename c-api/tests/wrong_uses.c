/* Wrong uses: prints what is wrong, the use, and what it is told, with a tab between them, for tests/wrong_uses.py. */
#include "redis.h"

#define WRONG(what, use) wrong((what), #use, (use))

static void wrong(const char *what, const char *use, redlatch_status status)
{
    note_status(status, use);
    printf("%s\t%s\t%s\n", what, use, status == REDLATCH_OK ? "" : redlatch_last_error());
}

/* The URL of the server with other words before and behind it, until the next call. */
static const char *at(const char *before, const char *behind)
{
    static char url[128];
    snprintf(url, sizeof url, "%s127.0.0.1:%d%s", before, server_port(), behind);
    return url;
}

static void nobody(void *user, const redlatch_holder *holder)
{
    (void)user;
    (void)holder;
}

static void options_and_urls(void)
{
    redlatch_client *client = NULL;
    redlatch_options *options = NULL;
    redlatch_options *ca = options_of("tls_ca", "/ca.pem"), *cert = options_of("tls_cert", "/c.pem");

    CHECK_OK(redlatch_options_new(&options));
    WRONG("a word that is almost an option", redlatch_options_set(options, "leese", "5s"));
    WRONG("an option as another language spells it", redlatch_options_set(options, "watchdogLease", "5s"));
    WRONG("a misspelt option of a client", redlatch_options_set(options, "conect_timeout", "5s"));
    WRONG("an option of an acquisition for a lock", redlatch_options_set(options, "wait", "5s"));
    WRONG("a word that is like no option", redlatch_options_set(options, "zzz", "5s"));
    WRONG("a word of another library", redlatch_options_set(options, "ttl", "5s"));
    WRONG("the timeout of other libraries", redlatch_options_set(options, "timeout", "5s"));
    WRONG("a port beside a URL", redlatch_options_set(options, "port", "6379"));
    WRONG("a lease that is too short", redlatch_options_set(options, "lease", "50"));
    WRONG("a lease that is too long", redlatch_options_set(options, "watchdog_lease", "1000000s"));
    WRONG("a negative time", redlatch_options_set(options, "max_hold", "-2.5s"));
    WRONG("a time that is no number", redlatch_options_set(options, "lease", "NaN"));
    WRONG("a time as a flag", redlatch_options_set(options, "lease", "true"));
    WRONG("a time as a word", redlatch_options_set(options, "lease", "soon"));
    WRONG("a time of an unknown unit", redlatch_options_set(options, "lease", "1d"));
    WRONG("half a replica", redlatch_options_set(options, "replicas", "1.5"));
    WRONG("too many replicas", redlatch_options_set(options, "replicas", "1000000"));
    WRONG("a flag as a number", redlatch_options_set(options, "fencing", "1"));
    WRONG("a flag as a word", redlatch_options_set(options, "fencing", "yes"));
    WRONG("a kind that is none", redlatch_options_set(options, "kind", "mutex"));
    WRONG("a protocol that is none", redlatch_options_set(options, "protocol", "resp4"));
    WRONG("a name of the client with a space", redlatch_options_set(options, "client_name", "two words"));
    WRONG("a certificate without TLS", redlatch_client_new("redis://h", ca, &client));
    WRONG("a certificate without its key", redlatch_client_new("rediss://h", cert, &client));
    redlatch_options_free(ca);
    ca = options_of("tls_ca", "/not/there.pem");
    WRONG("a certificate that is not there", redlatch_client_new("rediss://h", ca, &client));
    WRONG("a URL without a scheme", redlatch_client_new("localhost:6379", NULL, &client));
    WRONG("the URL of something else", redlatch_client_new("http://u:secret@h", NULL, &client));
    WRONG("a list of URLs", redlatch_client_new("redis://a:1,redis://b:2", NULL, &client));
    WRONG("an empty URL", redlatch_client_new("", NULL, &client));
    WRONG("a port that is none", redlatch_client_new("redis://h:port", NULL, &client));
    WRONG("a port that is too large", redlatch_client_new("redis://h:99999", NULL, &client));
    WRONG("a database that is none", redlatch_client_new("redis://h/name", NULL, &client));
    WRONG("a Sentinel without the name of its service", redlatch_client_new("redis+sentinel://h", NULL, &client));
    redlatch_options_free(ca);
    redlatch_options_free(cert);
    redlatch_options_free(options);
}

/* Nobody connects to these servers. */
static void quorums(void)
{
    redlatch_client *client = NULL, *quorum = NULL;
    redlatch_options *fencing = options_of("fencing", "true"), *fair = options_of("kind", "fair");
    redlatch_lock *lock = NULL, *other = NULL, *read = NULL, *made = NULL, *locks[2];
    redlatch_latch *latch = NULL;
    bool is;

    WRONG("a quorum of an even number of servers", redlatch_client_new("redis+quorum://a,b", NULL, &client));
    WRONG("a quorum that names a server twice", redlatch_client_new("redis+quorum://a,b,a", NULL, &client));
    CHECK_OK(redlatch_client_new("redis+quorum://a,b,c", NULL, &quorum));
    CHECK_OK(redlatch_lock_new(quorum, "n", NULL, &lock));
    CHECK_OK(redlatch_lock_new(quorum, "m", NULL, &other));
    WRONG("a lease in a quorum that outlives restart_delay",
          redlatch_lock_acquire(lock, REDLATCH_THREAD, REDLATCH_FOREVER, 60000, NULL));
    WRONG("a read-write lock of a quorum", redlatch_rw_lock_new(quorum, "n", NULL, &read, &made));
    WRONG("a semaphore of a quorum", redlatch_semaphore_new(quorum, "n", 3, NULL, &made));
    WRONG("a latch of a quorum", redlatch_latch_new(quorum, "n", &latch));
    locks[0] = lock;
    locks[1] = other;
    WRONG("a multi lock of a quorum", redlatch_multi_lock_new(quorum, locks, 2, &made));
    WRONG("fencing in a quorum", redlatch_lock_new(quorum, "n", fencing, &made));
    WRONG("a fair lock of a quorum", redlatch_lock_new(quorum, "n", fair, &made));
    WRONG("a question about a lock of a quorum", redlatch_lock_is_locked(lock, &is));
    WRONG("a lock of a quorum that is forced", redlatch_lock_force_release(lock, &is));
    WRONG("a token for a lock of a quorum", redlatch_lock_set_token(lock, "t"));
    redlatch_lock_free(lock);
    redlatch_lock_free(other);
    redlatch_client_free(quorum);
    redlatch_options_free(fencing);
    redlatch_options_free(fair);
}

static void servers(void)
{
    redlatch_client *client = NULL;
    char nowhere[64];
    int fd = deaf(nowhere, sizeof nowhere);

    WRONG("a server that is not there", redlatch_client_open(nowhere, NULL, &client));
    close(fd);
    WRONG("a server that is no Sentinel", redlatch_client_open(at("redis+sentinel://", "/main"), NULL, &client));
    WRONG("a server that is no cluster", redlatch_client_open(at("redis+cluster://", ""), NULL, &client));
    WRONG("a database that the server does not have", redlatch_client_open(at("redis://", "/99"), NULL, &client));
    WRONG("a password that is wrong", redlatch_client_open(at("redis://app:wrong@", ""), NULL, &client));
}

static void handles(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = NULL, *write = NULL;
    redlatch_options *outage = options_of("outage", "5s"), *simple = options_of("kind", "simple"),
                     *reader = options_of("kind", "read"),
                     *limit = options_of("limit", "3"), *preference = options_of("writer_preference", "1s"),
                     *fencing = options_of("fencing", "true"),
                     *reentrant = options_of("reentrant", "true");
    char long_name[1026];

    memset(long_name, 'x', 1025);
    long_name[1025] = '\0';
    CHECK_OK(redlatch_options_set(reader, "fencing", "true"));
    WRONG("an option of a client for a lock", redlatch_lock_new(client, "n", outage, &lock));
    WRONG("an empty name", redlatch_lock_new(client, "", NULL, &lock));
    WRONG("a name that is too long", redlatch_lock_new(client, long_name, NULL, &lock));
    WRONG("no name", redlatch_lock_new(client, NULL, NULL, &lock));
    WRONG("a name that is no Unicode", redlatch_lock_new(client, "ab\xff", NULL, &lock));
    WRONG("a read-write lock with a kind", redlatch_rw_lock_new(client, "n", simple, &lock, &write));
    WRONG("a reader with fencing", redlatch_lock_new(client, "n", reader, &lock));
    WRONG("a limit of a lock", redlatch_lock_new(client, "n", limit, &lock));
    WRONG("a preference for writers of a lock without readers", redlatch_lock_new(client, "n", preference, &lock));
    WRONG("a semaphore with fencing", redlatch_semaphore_new(client, "s", 2, fencing, &lock));
    WRONG("a semaphore that is entered again", redlatch_semaphore_new(client, "s", 2, reentrant, &lock));
    redlatch_options_free(outage);
    redlatch_options_free(simple);
    redlatch_options_free(reader);
    redlatch_options_free(limit);
    redlatch_options_free(preference);
    redlatch_options_free(fencing);
    redlatch_options_free(reentrant);
    close_client(client);
}

static void locks(void)
{
    redlatch_client *client = open_client(), *closed = open_client();
    redlatch_lock *lock = lock_of(client, "n"), *of_closed = lock_of(closed, "n"), *lost = lock_of(client, "lost"),
                  *held = lock_of(client, "held"), *data = lock_of(client, "data"),
                  *simple = lock_with(client, "simple", "kind", "simple"),
                  *simple_held = lock_with(client, "held", "kind", "simple"),
                  *replicated = lock_with(client, "n", "replicas", "1"), *read = NULL, *write = NULL;
    redlatch_canceller *cancelled = NULL;

    CHECK_OK(redlatch_client_close(closed, REDLATCH_CLOSE_LIMIT));
    CHECK_OK(redlatch_lock_acquire(lost, 1, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    redis("DEL", "lost", NULL);
    EVENTUALLY(!redlatch_lock_is_held(lost, 1));
    CHECK_OK(redlatch_lock_acquire(held, 1, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    redis("SET", "data", "mine", NULL);
    CHECK_OK(redlatch_rw_lock_new(client, "sides", NULL, &read, &write));
    CHECK_OK(redlatch_lock_acquire(read, 1, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_canceller_new(&cancelled));
    redlatch_canceller_cancel(cancelled);

    WRONG("a client that is closed", redlatch_lock_acquire(of_closed, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    WRONG("a lock that is lost", redlatch_lock_check(lost, 1));
    WRONG("a lock that is not held", redlatch_lock_release(lock, 1));
    WRONG("a lock that somebody else holds", redlatch_lock_acquire(held, 2, 500, REDLATCH_LOCK_LEASE, NULL));
    WRONG("a time without an end", redlatch_lock_acquire(lock, 1, 0, INT64_MAX, NULL));
    WRONG("a canceller that was used before",
          redlatch_lock_acquire_cancellable(held, 2, 0, REDLATCH_LOCK_LEASE, cancelled, NULL));
    WRONG("other data at the name", redlatch_lock_acquire(data, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    WRONG("a lock at the name of another kind", redlatch_lock_acquire(simple_held, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    WRONG("the queue of a lock without one", redlatch_lock_waiters(lock, nobody, NULL));
    WRONG("a callback that is no function", redlatch_lock_holders(lock, NULL, NULL));
    WRONG("a token of a lock without one", redlatch_lock_release_token(lock, "t"));
    WRONG("a token that the lock does not have", redlatch_lock_release_token(simple, "other"));
    WRONG("an empty token", redlatch_lock_set_token(simple, ""));
    WRONG("a writer that reads already", redlatch_lock_acquire(write, 1, 0, REDLATCH_LOCK_LEASE, NULL));
    WRONG("an extension that is too short", redlatch_lock_extend(held, 1, 50));
    WRONG("an extension of a lock that is not held", redlatch_lock_extend(lock, 1, 5000));
    WRONG("permits of a lock", redlatch_semaphore_set_take(lock, 2));
    WRONG("a replica that is not there", redlatch_lock_acquire(replicated, 1, 0, REDLATCH_LOCK_LEASE, NULL));

    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lost, 1));
    CHECK_OK(redlatch_lock_release(held, 1));
    CHECK_OK(redlatch_lock_release(read, 1));
    redlatch_canceller_free(cancelled);
    redlatch_lock *all[] = {lock, of_closed, lost, held, data, simple, simple_held, replicated, read, write};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        redlatch_lock_free(all[i]);
    redlatch_client_free(closed);
    close_client(client);
}

static void permits(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *semaphore = NULL, *held = lock_of(client, "held");
    redlatch_plain_semaphore *plain = NULL, *plain_held = NULL;
    redlatch_latch *latch = NULL, *latch_held = NULL, *shut = NULL;

    CHECK_OK(redlatch_lock_acquire(held, 1, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_semaphore_new(client, "s", 2, NULL, &semaphore));
    CHECK_OK(redlatch_plain_semaphore_new(client, "p", &plain));
    CHECK_OK(redlatch_plain_semaphore_new(client, "held", &plain_held));
    CHECK_OK(redlatch_latch_new(client, "l", &latch));
    CHECK_OK(redlatch_latch_new(client, "held", &latch_held));
    CHECK_OK(redlatch_latch_new(client, "shut", &shut));
    CHECK_OK(redlatch_latch_try_set_count(shut, 1, NULL));

    WRONG("no permits at once", redlatch_semaphore_set_take(semaphore, 0));
    WRONG("more permits at once than the limit", redlatch_semaphore_set_take(semaphore, 3));
    WRONG("more permits at once than one call takes", redlatch_semaphore_set_take(semaphore, 1001));
    WRONG("a negative number of permits", redlatch_semaphore_set_permits(semaphore, (uint32_t)-1));
    WRONG("more permits than a semaphore has", redlatch_semaphore_set_permits(semaphore, 2147483648u));
    WRONG("a plain semaphore at the name of a lock", redlatch_plain_semaphore_acquire(plain_held, 1, 0));
    WRONG("a latch at the name of a lock", redlatch_latch_wait(latch_held, 0));
    WRONG("no plain permits", redlatch_plain_semaphore_acquire(plain, 0, 0));
    WRONG("a negative number of plain permits", redlatch_plain_semaphore_try_set_permits(plain, (uint32_t)-1, NULL));
    WRONG("a latch with a negative count", redlatch_latch_try_set_count(latch, (uint32_t)-1, NULL));
    WRONG("a latch with no count", redlatch_latch_try_set_count(latch, 0, NULL));
    WRONG("a count down by nothing", redlatch_latch_count_down(latch, 0, NULL));
    WRONG("a latch that nobody opens", redlatch_latch_wait(shut, 500));

    CHECK_OK(redlatch_lock_release(held, 1));
    redlatch_lock_free(semaphore);
    redlatch_lock_free(held);
    redlatch_plain_semaphore_free(plain);
    redlatch_plain_semaphore_free(plain_held);
    redlatch_latch_free(latch);
    redlatch_latch_free(latch_held);
    redlatch_latch_free(shut);
    close_client(client);
}

MAIN(TEST(options_and_urls), TEST(quorums), TEST(servers), TEST(handles), TEST(locks), TEST(permits))
