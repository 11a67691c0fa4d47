/* The smallest program: holds a lock and says so. The server is in REDLATCH_URL. */
#include <redlatch.h>
#include <stdio.h>

int main(void)
{
    redlatch_client *client = NULL;
    redlatch_lock *lock = NULL;
    if (redlatch_client_open(NULL, NULL, &client) != 0 || redlatch_lock_new(client, "hello", NULL, &lock) != 0 ||
        redlatch_lock_acquire(lock, REDLATCH_THREAD, REDLATCH_FOREVER, 0, NULL) != 0)
        return fprintf(stderr, "%s\n", redlatch_last_error()), 1;
    puts("held hello");
    redlatch_lock_release(lock, REDLATCH_THREAD);
    redlatch_lock_free(lock);
    redlatch_client_close(client, 1000);
    redlatch_client_free(client);
    return 0;
}
