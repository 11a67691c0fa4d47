#include <redlatch.h>
#include <stdio.h>

int main(void)
{
    redlatch_client *client = NULL;
    redlatch_lock *read = NULL, *write = NULL;
    redlatch_status status = redlatch_client_open(NULL, NULL, &client);

    if (status == REDLATCH_OK)
        status = redlatch_rw_lock_new(client, "prices", NULL, &read, &write);
    if (status == REDLATCH_OK)
        status = redlatch_lock_acquire(read, REDLATCH_THREAD, 2500, REDLATCH_LOCK_LEASE, NULL);
    if (status == REDLATCH_OK)
        status = redlatch_lock_release(read, REDLATCH_THREAD);
    if (status != REDLATCH_OK)
        fprintf(stderr, "%s\n", redlatch_last_error());
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    if (client)
        redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return status != REDLATCH_OK;
}
