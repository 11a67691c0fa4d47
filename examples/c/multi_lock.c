#include <redlatch.h>
#include <stdio.h>

int main(void)
{
    redlatch_client *client = NULL;
    redlatch_lock *locks[2] = {NULL, NULL}, *both = NULL;
    redlatch_status status = redlatch_client_open(NULL, NULL, &client);

    if (status == REDLATCH_OK)
        status = redlatch_lock_new(client, "account:7", NULL, &locks[0]);
    if (status == REDLATCH_OK)
        status = redlatch_lock_new(client, "account:3", NULL, &locks[1]);
    if (status == REDLATCH_OK)
        status = redlatch_multi_lock_new(client, locks, 2, &both); /* a lock for all functions */
    if (status == REDLATCH_OK)
        status = redlatch_lock_acquire(both, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL);
    if (status == REDLATCH_OK)
        status = redlatch_lock_release(both, REDLATCH_THREAD); /* after the work */
    if (status != REDLATCH_OK)
        fprintf(stderr, "%s\n", redlatch_last_error());
    redlatch_lock_free(both);
    redlatch_lock_free(locks[0]); /* may be freed earlier: both has what it needs */
    redlatch_lock_free(locks[1]);
    if (client)
        redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return status != REDLATCH_OK;
}
