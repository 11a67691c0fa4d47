/* redlatch/uv.h - the events of a client in a loop of libuv.
 *
 *   static redlatch_uv adapter;                                  // lives until libuv has closed it
 *   redlatch_uv_start(&adapter, uv_default_loop(), client, taken, user);
 *   redlatch_lock_acquire_start(lock, owner, 5000, REDLATCH_LOCK_LEASE, tag);
 *   uv_run(uv_default_loop(), UV_RUN_DEFAULT);                   // calls taken for each event
 */

#ifndef REDLATCH_UV_H
#define REDLATCH_UV_H

#include <redlatch/events.h>
#include <uv.h>

typedef struct redlatch_uv {
    uv_poll_t poll;
    redlatch_events events;
} redlatch_uv;

static inline void redlatch_uv_readable(uv_poll_t *poll, int status, int flags)
{
    (void)status, (void)flags;
    redlatch_events_take((const redlatch_events *)poll->data);
}

/* Has the loop call taken for each event of the client, one client in one loop. Returns 0, a redlatch_status (above 0) or an error of
 * libuv (below 0). */
static inline int redlatch_uv_start(redlatch_uv *adapter, uv_loop_t *loop, redlatch_client *client,
                                    redlatch_taken_fn taken, void *user)
{
    int fd = -1;
    int error = redlatch_events_begin(&adapter->events, client, taken, user, &fd);
    if (error == 0)
        error = uv_poll_init_socket(loop, &adapter->poll, (uv_os_sock_t)fd);
    if (error != 0)
        return error;
    adapter->poll.data = &adapter->events;
    return uv_poll_start(&adapter->poll, UV_READABLE, redlatch_uv_readable);
}

/* Ends it, before the client is freed. The loop calls closed, which may be NULL, when the adapter may be freed. */
static inline void redlatch_uv_stop(redlatch_uv *adapter, uv_close_cb closed)
{
    uv_close((uv_handle_t *)&adapter->poll, closed);
}

#endif
