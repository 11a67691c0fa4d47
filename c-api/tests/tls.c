/* An encrypted connection: the options of TLS reach the core, and nobody is trusted by chance. */
#include "check.h"

static redlatch_status opened(const char *ca, redlatch_client **client)
{
    redlatch_options *options = NULL;
    redlatch_status status;
    CHECK_OK(redlatch_options_new(&options));
    CHECK_OK(redlatch_options_set(options, "tls_ca", ca));
    status = redlatch_client_open(getenv("REDLATCH_TLS_URL"), options, client);
    redlatch_options_free(options);
    return status;
}

static void a_lock_over_tls(void)
{
    redlatch_client *client = NULL;
    redlatch_lock *lock = NULL;
    if (!CHECK_OK(opened(getenv("REDLATCH_TLS_CA"), &client))) return;
    CHECK_OK(redlatch_lock_new(client, "tls", NULL, &lock));
    CHECK_OK(redlatch_lock_acquire(lock, REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, REDLATCH_THREAD));
    redlatch_lock_free(lock);
    redlatch_client_free(client);
}

static void an_authority_that_is_not_there(void)
{
    redlatch_client *client = NULL;
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, opened("/no/such/file", &client));
    CHECK(client == NULL && strstr(redlatch_last_error(), "tls_ca") != NULL);
}

MAIN(TEST(a_lock_over_tls), TEST(an_authority_that_is_not_there))
