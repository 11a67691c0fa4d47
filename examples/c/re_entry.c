#include <redlatch.h>
#include <stdio.h>

enum { OWNER = 7 }; /* a piece of work; REDLATCH_THREAD is the calling thread */

int main(void)
{
    redlatch_client *client = NULL;
    redlatch_lock *lock = NULL;
    redlatch_status status = redlatch_client_open(NULL, NULL, &client);

    if (status == REDLATCH_OK)
        status = redlatch_lock_new(client, "order:42", NULL, &lock);
    for (int level = 0; level < 2 && status == REDLATCH_OK; level++)
        status = redlatch_lock_acquire(lock, OWNER, 5000, REDLATCH_LOCK_LEASE, NULL);
    if (status != REDLATCH_OK)
        fprintf(stderr, "%s\n", redlatch_last_error());
    while (lock && redlatch_lock_hold_count(lock, OWNER) > 0) /* as many releases as acquisitions */
        redlatch_lock_release(lock, OWNER);
    redlatch_lock_free(lock);
    if (client)
        redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return status;
}
