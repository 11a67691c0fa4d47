#include <redlatch.h>
#include <stdio.h>

int main(void)
{
    redlatch_client *client = NULL;
    redlatch_latch *ready = NULL;
    int64_t left = 0;
    redlatch_status status = redlatch_client_open(NULL, NULL, &client);

    if (status == REDLATCH_OK)
        status = redlatch_latch_new(client, "ready:c", &ready);
    if (status == REDLATCH_OK)
        status = redlatch_latch_try_set_count(ready, 3, NULL); /* only if it has no count */
    for (int worker = 0; status == REDLATCH_OK && worker < 3; worker++)
        status = redlatch_latch_count_down(ready, 1, &left); /* by any program */
    if (status == REDLATCH_OK)
        status = redlatch_latch_wait(ready, 30000); /* REDLATCH_TIMEOUT after 30 s */
    if (status != REDLATCH_OK)
        fprintf(stderr, "%s\n", redlatch_last_error());
    redlatch_latch_free(ready);
    if (client)
        redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return status != REDLATCH_OK;
}
