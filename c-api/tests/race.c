/* A race of the program, for Helgrind: the function that the library calls writes what the program reads meanwhile. */
#include "redis.h"

static int value;

static void tell(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    (void)owner, (void)token, (void)reason;
    value++;
    (void)!write(*(int *)user, "x", 1);
}

static void races(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:race");
    int pipe_fds[2];
    char byte;

    CHECK(pipe(pipe_fds) == 0);
    CHECK_OK(redlatch_lock_on_lost(lock, tell, &pipe_fds[1]));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    redis("DEL", "c:race", NULL);
    CHECK(read(pipe_fds[0], &byte, 1) == 1);
    /* A pipe orders nothing, as far as Helgrind knows. */
    CHECK(value == 1);
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

MAIN(TEST(races))
