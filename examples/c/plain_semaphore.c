#include <redlatch.h>
#include <stdio.h>

int main(void)
{
    redlatch_client *client = NULL;
    redlatch_plain_semaphore *seats = NULL;
    int64_t available = 0;
    redlatch_status status = redlatch_client_open(NULL, NULL, &client);

    if (status == REDLATCH_OK)
        status = redlatch_plain_semaphore_new(client, "seats:c", &seats);
    if (status == REDLATCH_OK)
        status = redlatch_plain_semaphore_try_set_permits(seats, 5, NULL); /* only if it has no number */
    if (status == REDLATCH_OK)
        status = redlatch_plain_semaphore_acquire(seats, 2, 2500); /* two at once; REDLATCH_TIMEOUT after 2.5 s */
    if (status == REDLATCH_OK) {
        status = redlatch_plain_semaphore_available(seats, &available);
        printf("%d are free\n", (int)available);
        if (redlatch_plain_semaphore_release(seats, 2) != REDLATCH_OK)
            fprintf(stderr, "%s\n", redlatch_last_error());
    }
    if (status != REDLATCH_OK)
        fprintf(stderr, "%s\n", redlatch_last_error());
    redlatch_plain_semaphore_free(seats);
    if (client)
        redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return status != REDLATCH_OK;
}
