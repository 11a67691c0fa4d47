/* redlatch/ev.h - the events of a client in a loop of libev. EV_A_ is the loop and a comma, as in ev_io_start(EV_A_ ...).
 *
 *   static redlatch_ev adapter;
 *   redlatch_ev_start(EV_DEFAULT_ &adapter, client, taken, user);
 *   redlatch_lock_acquire_start(lock, owner, 5000, REDLATCH_LOCK_LEASE, tag);
 *   ev_run(EV_DEFAULT_ 0);                                       // calls taken for each event
 */

#ifndef REDLATCH_EV_H
#define REDLATCH_EV_H

#include <ev.h>
#include <redlatch/events.h>

typedef struct redlatch_ev {
    ev_io io;
    redlatch_events events;
} redlatch_ev;

static inline void redlatch_ev_readable(EV_P_ ev_io *io, int flags)
{
#if EV_MULTIPLICITY
    (void)loop;
#endif
    (void)flags;
    redlatch_events_take((const redlatch_events *)io->data);
}

/* Has the loop call taken for each event of the client, one client in one loop. */
static inline redlatch_status redlatch_ev_start(EV_P_ redlatch_ev *adapter, redlatch_client *client,
                                                redlatch_taken_fn taken, void *user)
{
    int fd = -1;
    redlatch_status status = redlatch_events_begin(&adapter->events, client, taken, user, &fd);
    if (status != REDLATCH_OK)
        return status;
    ev_io_init(&adapter->io, redlatch_ev_readable, fd, EV_READ);
    adapter->io.data = &adapter->events;
    ev_io_start(EV_A_ &adapter->io);
    return REDLATCH_OK;
}

/* Ends it, before the client is freed. */
static inline void redlatch_ev_stop(EV_P_ redlatch_ev *adapter)
{
    ev_io_stop(EV_A_ &adapter->io);
}

#endif
