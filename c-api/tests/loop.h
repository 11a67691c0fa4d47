/* Takes events, as the loop of a program does. */
#ifndef LOOP_H
#define LOOP_H

#include "check.h"

#include <poll.h>

struct event {
    int32_t kind;
    uint64_t tag;
    redlatch_status result;
    uint64_t value; /* the fencing token of an acquisition, for example */
};

static inline int readable(redlatch_client *client, int wait_ms)
{
    struct pollfd poll_fd = {-1, POLLIN, 0};
    CHECK_OK(redlatch_client_event_fd(client, &poll_fd.fd));
    return poll(&poll_fd, 1, wait_ms) == 1;
}

static inline struct event next_event(redlatch_client *client)
{
    struct event event = {-1, 0, -1, 0};
    CHECK_OK(redlatch_client_next_event(client, &event.kind, &event.tag, &event.result, &event.value));
    return event;
}

/* Sleeps until there is an event, as a loop does: there may be something to read that is none. */
static inline struct event await_event(redlatch_client *client)
{
    struct event event = {REDLATCH_EVENT_NONE, 0, -1, 0};
    while (event.kind == REDLATCH_EVENT_NONE && CHECK(readable(client, LIMIT_MS)))
        event = next_event(client);
    return event;
}

static inline int is(struct event event, int32_t kind, uint64_t tag, redlatch_status result)
{
    if (event.kind == kind && event.tag == tag && event.result == result)
        return 1;
    printf("  event kind %d, tag %llu, %s\n", (int)event.kind, (unsigned long long)event.tag,
           redlatch_status_name(event.result));
    return 0;
}

#endif
