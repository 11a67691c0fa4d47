/* The socket for event loops on Windows, with WSAPoll and with select. scripts/test-platforms runs it beside redlatch.dll,
 * with the server in REDLATCH_URL. */
#include <redlatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <winsock2.h>

enum { OWNER = 1, LIMIT_MS = 60000 };

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            printf("line %d: %s; %s\n", __LINE__, #condition, redlatch_last_error());       \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)
#define CHECK_OK(call) CHECK((call) == REDLATCH_OK)

static SOCKET socket_of(redlatch_client *client)
{
    int fd = -1;
    CHECK_OK(redlatch_client_event_fd(client, &fd));
    CHECK(fd > 0);
    return (SOCKET)fd;
}

static int polled(redlatch_client *client, int wait_ms)
{
    WSAPOLLFD poll_fd = {socket_of(client), POLLRDNORM, 0};
    int found = WSAPoll(&poll_fd, 1, wait_ms);
    CHECK(found != SOCKET_ERROR);
    return found;
}

static int selected(redlatch_client *client, int wait_ms)
{
    struct timeval limit = {wait_ms / 1000, 1000 * (wait_ms % 1000)};
    fd_set reading;
    int found;

    FD_ZERO(&reading);
    FD_SET(socket_of(client), &reading);
    found = select(0, &reading, NULL, NULL, &limit);
    CHECK(found != SOCKET_ERROR);
    return found;
}

/* Sleeps until an event comes, by one way or the other; there may be something to read that is none. */
static void expect(redlatch_client *client, int (*readable)(redlatch_client *, int), int32_t wanted, uint64_t wanted_tag)
{
    int32_t kind = REDLATCH_EVENT_NONE;
    redlatch_status result = REDLATCH_OK;
    uint64_t tag = 0;

    while (kind == REDLATCH_EVENT_NONE) {
        CHECK(readable(client, LIMIT_MS) == 1);
        CHECK_OK(redlatch_client_next_event(client, &kind, &tag, &result, NULL));
    }
    CHECK(kind == wanted && tag == wanted_tag);
    CHECK_OK(result);
    CHECK(readable(client, 0) == 0);
}

static void events(redlatch_client *client, int (*readable)(redlatch_client *, int))
{
    redlatch_lock *lock = NULL;
    bool cancelled = false;

    CHECK_OK(redlatch_lock_new(client, "windows:events", NULL, &lock));
    CHECK(readable(client, 0) == 0);
    CHECK_OK(redlatch_lock_acquire_start(lock, OWNER, 0, 0, 11));
    expect(client, readable, REDLATCH_EVENT_ACQUIRE, 11);
    CHECK_OK(redlatch_lock_acquire_start(lock, OWNER + 1, REDLATCH_FOREVER, 0, 12));
    CHECK(readable(client, 50) == 0);
    CHECK_OK(redlatch_lock_acquire_cancel(lock, 12, &cancelled));
    CHECK(cancelled);
    CHECK_OK(redlatch_lock_release_start(lock, OWNER, 13));
    expect(client, readable, REDLATCH_EVENT_RELEASE, 13);
    redlatch_lock_free(lock);
}

int main(void)
{
    redlatch_client *client = NULL;

    CHECK_OK(redlatch_client_open(NULL, NULL, &client));
    events(client, polled);
    events(client, selected);
    CHECK_OK(redlatch_client_close(client, REDLATCH_CLOSE_LIMIT));
    redlatch_client_free(client);
    return 0;
}
