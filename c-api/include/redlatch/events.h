/* redlatch/events.h - what the adapters for event loops share: redlatch/uv.h, redlatch/ev.h and redlatch/glib.h. */

#ifndef REDLATCH_EVENTS_H
#define REDLATCH_EVENTS_H

#include <redlatch.h>

/* Called on the loop's thread for each event, with what redlatch_client_next_event() stores. When kind is REDLATCH_EVENT_CLOSE, it may
 * stop the adapter and free the client; before, it must not. */
typedef void (*redlatch_taken_fn)(void *user, int32_t kind, uint64_t tag, redlatch_status result, uint64_t value);

/* The events of a client, and the function that takes them. */
typedef struct redlatch_events {
    redlatch_client *client;
    redlatch_taken_fn taken;
    void *user;
} redlatch_events;

/* Notes them, and stores the descriptor that is readable while events wait. */
static inline redlatch_status redlatch_events_begin(redlatch_events *events, redlatch_client *client,
                                                    redlatch_taken_fn taken, void *user, int *fd)
{
    events->client = client;
    events->taken = taken;
    events->user = user;
    return redlatch_client_event_fd(client, fd);
}

/* Takes all events that wait: what a loop does when the descriptor is readable. */
static inline void redlatch_events_take(const redlatch_events *events)
{
    const redlatch_events to = *events; /* the last call may free it */
    redlatch_status result = REDLATCH_OK;
    int32_t kind = REDLATCH_EVENT_NONE;
    uint64_t tag = 0, value = 0;
    while (redlatch_client_next_event(to.client, &kind, &tag, &result, &value) == REDLATCH_OK &&
           kind != REDLATCH_EVENT_NONE) {
        to.taken(to.user, kind, tag, result, value);
        if (kind == REDLATCH_EVENT_CLOSE)
            return;
    }
}

#endif
