/* Both sides of a read-write lock. */
#include "redis.h"

#include <pthread.h>

static void sides_of(redlatch_client *client, const char *name, redlatch_lock **read, redlatch_lock **write)
{
    CHECK_OK(redlatch_rw_lock_new(client, name, NULL, read, write));
}

static redlatch_status try_acquire(redlatch_lock *lock, uint64_t owner)
{
    return redlatch_lock_acquire(lock, owner, 0, REDLATCH_LOCK_LEASE, NULL);
}

static void count_holder(void *user, const redlatch_holder *holder)
{
    CHECK(strlen(holder->owner) > 36 && holder->owner[36] == ':' && holder->count == 1 && holder->remaining_ms > 0);
    CHECK(holder->pid == (uint32_t)getpid() && strcmp(holder->language, "c") == 0);
    CHECK(strcmp(holder->client_name, "redlatch") == 0 && holder->host[0] != '\0');
    ++*(int *)user;
}

static int holders(redlatch_lock *lock)
{
    int found = 0;
    CHECK_OK(redlatch_lock_holders(lock, count_holder, &found));
    return found;
}

static void readers_are_beside_each_other_and_a_writer_is_alone(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *read, *write, *their_read, *their_write;

    sides_of(client, "c:rw", &read, &write);
    sides_of(other, "c:rw", &their_read, &their_write);
    CHECK_OK(try_acquire(read, 1));
    CHECK_OK(try_acquire(read, 2));
    CHECK_OK(try_acquire(their_read, 1));
    CHECK(holders(read) == 3 && holders(write) == 0);
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(write, 3));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(their_write, 3));
    CHECK_OK(redlatch_lock_release(read, 1));
    CHECK_OK(redlatch_lock_release(read, 2));
    CHECK_OK(redlatch_lock_release(their_read, 1));
    CHECK(!exists("c:rw"));
    CHECK_OK(try_acquire(their_write, 1));
    CHECK(holders(write) == 1 && holders(read) == 0);
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(read, 1));
    CHECK_OK(redlatch_lock_release(their_write, 1));
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    redlatch_lock_free(their_read);
    redlatch_lock_free(their_write);
    close_client(client);
    close_client(other);
}

static void a_writer_may_read_and_keep_reading(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *read, *write;

    sides_of(client, "c:rw:down", &read, &write);
    CHECK_OK(try_acquire(write, 7));
    CHECK_OK(try_acquire(read, 7));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(read, 8));
    CHECK_OK(redlatch_lock_release(write, 7));
    CHECK(redis_says("read", redis("HGET", "c:rw:down", "mode", NULL)));
    CHECK(redlatch_lock_is_held(read, 7) && !redlatch_lock_is_held(write, 7));
    CHECK_OK(try_acquire(read, 8));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(write, 9));
    CHECK_OK(redlatch_lock_release(read, 8));
    CHECK_OK(redlatch_lock_release(read, 7));
    CHECK(!exists("c:rw:down"));
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    close_client(client);
}

static void a_reader_that_asks_to_write_is_refused(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *read, *write;

    sides_of(client, "c:rw:up", &read, &write);
    CHECK_OK(try_acquire(read, REDLATCH_THREAD));
    CHECK_STATUS(REDLATCH_WOULD_DEADLOCK,
                 redlatch_lock_acquire(write, REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    CHECK(strstr(redlatch_last_error(), "release the read lock first") != NULL);
    CHECK(redlatch_lock_is_held(read, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_release(read, REDLATCH_THREAD));
    CHECK_OK(try_acquire(write, REDLATCH_THREAD));
    CHECK_OK(redlatch_lock_release(write, REDLATCH_THREAD));
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    close_client(client);
}

static void *write_once(void *lock)
{
    CHECK_OK(redlatch_lock_acquire(lock, 2, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, NULL));
    CHECK_OK(redlatch_lock_release(lock, 2));
    return NULL;
}

static void new_readers_stand_back_for_a_writer_of_another_client(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_options *options = options_of("writer_preference", "60s");
    redlatch_lock *read, *write, *their_read, *their_write, *plain_read, *plain_write;
    pthread_t writer;

    CHECK_OK(redlatch_rw_lock_new(client, "c:rw:prefer", options, &read, &write));
    CHECK_OK(redlatch_rw_lock_new(other, "c:rw:prefer", options, &their_read, &their_write));
    sides_of(client, "c:rw:prefer", &plain_read, &plain_write);
    CHECK_OK(try_acquire(read, 1));
    CHECK(pthread_create(&writer, NULL, write_once, their_write) == 0);
    EVENTUALLY(exists("{c:rw:prefer}:redlatch:writer"));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(read, 3));
    CHECK_OK(try_acquire(plain_read, 4));
    CHECK_OK(redlatch_lock_release(plain_read, 4));
    CHECK_OK(redlatch_lock_release(read, 1));
    CHECK(pthread_join(writer, NULL) == 0);
    CHECK(!exists("{c:rw:prefer}:redlatch:writer"));
    CHECK_OK(try_acquire(read, 3));
    CHECK_OK(redlatch_lock_release(read, 3));
    redlatch_options_free(options);
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    redlatch_lock_free(their_read);
    redlatch_lock_free(their_write);
    redlatch_lock_free(plain_read);
    redlatch_lock_free(plain_write);
    close_client(client);
    close_client(other);
}

static void bad_arguments_are_refused(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *read = (redlatch_lock *)client, *write = NULL;

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_rw_lock_new(client, "", NULL, &read, &write));
    CHECK(read == NULL && write == NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_rw_lock_new(client, "c:rw:bad", NULL, &read, NULL));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_rw_lock_new(client, "c:rw:bad", NULL, NULL, &write));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_rw_lock_new(NULL, "c:rw:bad", NULL, &read, &write));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_rw_lock_new_n(client, "", 0, NULL, &read, &write));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_rw_lock_new_n(client, NULL, 1, NULL, &read, &write));
    CHECK_OK(redlatch_rw_lock_new_n(client, "c:n\0ul", 6, NULL, &read, &write));
    CHECK_OK(try_acquire(read, 1));
    CHECK_STATUS(REDLATCH_TIMEOUT, try_acquire(write, 2));
    CHECK_OK(redlatch_lock_release(read, 1));
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    sides_of(client, "c:rw:bad", &read, &write);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_holders(read, NULL, NULL));
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    close_client(client);
}

MAIN(TEST(readers_are_beside_each_other_and_a_writer_is_alone), TEST(a_writer_may_read_and_keep_reading),
     TEST(a_reader_that_asks_to_write_is_refused), TEST(new_readers_stand_back_for_a_writer_of_another_client), TEST(bad_arguments_are_refused))
