#include <redlatch.h>
#include <stdio.h>

int main(void)
{
    redlatch_client *client = NULL;
    redlatch_lock *gpus = NULL; /* a lock for all functions */
    int64_t available = 0;
    redlatch_status status = redlatch_client_open(NULL, NULL, &client);

    if (status == REDLATCH_OK)
        status = redlatch_semaphore_new(client, "gpu", 5, NULL, &gpus);
    if (status == REDLATCH_OK)
        status = redlatch_semaphore_set_take(gpus, 2); /* two at once, from now on */
    if (status == REDLATCH_OK)
        status = redlatch_lock_acquire(gpus, REDLATCH_THREAD, 2500, REDLATCH_LOCK_LEASE, NULL);
    if (status == REDLATCH_OK) {
        status = redlatch_semaphore_permits(gpus, &available, NULL);
        printf("%d are free\n", (int)available);
        if (redlatch_lock_release(gpus, REDLATCH_THREAD) != REDLATCH_OK)
            fprintf(stderr, "%s\n", redlatch_last_error());
    }
    if (status != REDLATCH_OK)
        fprintf(stderr, "%s\n", redlatch_last_error());
    redlatch_lock_free(gpus);
    if (client)
        redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return status != REDLATCH_OK;
}
