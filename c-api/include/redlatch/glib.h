/* redlatch/glib.h - the events of a client in a main loop of GLib.
 *
 *   static redlatch_glib adapter;
 *   redlatch_glib_start(&adapter, NULL, client, taken, user);    // NULL: the default context
 *   redlatch_lock_acquire_start(lock, owner, 5000, REDLATCH_LOCK_LEASE, tag);
 *   g_main_loop_run(loop);                                       // calls taken for each event
 */

#ifndef REDLATCH_GLIB_H
#define REDLATCH_GLIB_H

#include <glib-unix.h>
#include <redlatch/events.h>

typedef struct redlatch_glib {
    GSource *source;
    redlatch_events events;
} redlatch_glib;

static inline gboolean redlatch_glib_readable(gint fd, GIOCondition condition, gpointer events)
{
    (void)fd, (void)condition;
    redlatch_events_take((const redlatch_events *)events);
    return G_SOURCE_CONTINUE;
}

/* Has the loop of this context call taken for each event of the client, one client in one context. */
static inline redlatch_status redlatch_glib_start(redlatch_glib *adapter, GMainContext *context, redlatch_client *client,
                                                  redlatch_taken_fn taken, void *user)
{
    int fd = -1;
    redlatch_status status = redlatch_events_begin(&adapter->events, client, taken, user, &fd);
    if (status != REDLATCH_OK)
        return status;
    adapter->source = g_unix_fd_source_new(fd, G_IO_IN);
    g_source_set_callback(adapter->source, G_SOURCE_FUNC(redlatch_glib_readable), &adapter->events, NULL);
    g_source_attach(adapter->source, context);
    return REDLATCH_OK;
}

/* Ends it, before the client is freed. */
static inline void redlatch_glib_stop(redlatch_glib *adapter)
{
    g_source_destroy(adapter->source);
    g_source_unref(adapter->source);
}

#endif
