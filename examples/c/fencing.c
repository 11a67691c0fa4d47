#include <redlatch.h>
#include <stdbool.h>
#include <stdio.h>

static uint64_t newest; /* in a program: a column, with "WHERE token <= ?" in its UPDATE */

/* Refuses a holder that is older than the last one that wrote. */
static bool write_report(uint64_t token)
{
    if (token < newest)
        return false;
    newest = token;
    return true;
}

int main(void)
{
    redlatch_options *options = NULL;
    redlatch_client *client = NULL;
    redlatch_lock *lock = NULL;
    uint64_t tokens[2] = {0, 0};

    if (redlatch_options_new(&options) != REDLATCH_OK ||
        redlatch_options_set(options, "fencing", "true") != REDLATCH_OK ||
        redlatch_client_open(NULL, NULL, &client) != REDLATCH_OK ||
        redlatch_lock_new(client, "report", options, &lock) != REDLATCH_OK) {
        fprintf(stderr, "%s\n", redlatch_last_error());
        return 1;
    }
    for (int holder = 0; holder < 2; holder++)
        if (redlatch_lock_acquire(lock, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, &tokens[holder]) == REDLATCH_OK)
            redlatch_lock_release(lock, REDLATCH_THREAD);
    int right = write_report(tokens[1]) && !write_report(tokens[0]); /* the first one wakes up, and is refused */
    redlatch_lock_free(lock);
    redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    redlatch_options_free(options);
    return right ? 0 : 1;
}
