/* The adapters for event loops, each in its own library's loop: with -DWITH_UV, -DWITH_EV or -DWITH_GLIB. */
#include "redis.h"

#if defined(WITH_UV)
#include <redlatch/uv.h>

static redlatch_uv adapter;
static int closed;

static void note_closed(uv_handle_t *handle)
{
    closed = handle == (uv_handle_t *)&adapter.poll;
}

static void begin(redlatch_client *client, redlatch_taken_fn taken, void *user)
{
    CHECK(redlatch_uv_start(&adapter, uv_default_loop(), NULL, taken, user) == REDLATCH_INVALID_ARGUMENT);
    CHECK(redlatch_uv_start(&adapter, uv_default_loop(), client, taken, user) == 0);
}

static void end(void)
{
    redlatch_uv_stop(&adapter, note_closed);
}

static void run(void)
{
    CHECK(uv_run(uv_default_loop(), UV_RUN_DEFAULT) == 0);
    CHECK(closed && uv_loop_close(uv_default_loop()) == 0);
}
#elif defined(WITH_EV)
#include <redlatch/ev.h>

static redlatch_ev adapter;

static void begin(redlatch_client *client, redlatch_taken_fn taken, void *user)
{
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_ev_start(EV_DEFAULT_ & adapter, NULL, taken, user));
    CHECK_OK(redlatch_ev_start(EV_DEFAULT_ & adapter, client, taken, user));
}

static void end(void)
{
    redlatch_ev_stop(EV_DEFAULT_UC_ & adapter);
}

static void run(void)
{
    CHECK(!ev_run(EV_DEFAULT_ 0));
}
#else
#include <redlatch/glib.h>

static redlatch_glib adapter;
static GMainLoop *loop;

static void begin(redlatch_client *client, redlatch_taken_fn taken, void *user)
{
    loop = g_main_loop_new(NULL, FALSE);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_glib_start(&adapter, NULL, NULL, taken, user));
    CHECK_OK(redlatch_glib_start(&adapter, NULL, client, taken, user));
}

static void end(void)
{
    redlatch_glib_stop(&adapter);
    g_main_loop_quit(loop);
}

static void run(void)
{
    g_main_loop_run(loop);
    g_main_loop_unref(loop);
}
#endif

enum { OWNER = 7, ACQUIRING = 100, RELEASING = 101, CLOSING = 102 };

struct story {
    redlatch_client *client;
    redlatch_lock *lock;
    int acquired, lost, released;
};

/* A lock is acquired and lost; its release tells of the loss, and the end of the client ends the loop. */
static void taken(void *user, int32_t kind, uint64_t tag, redlatch_status result, uint64_t value)
{
    struct story *story = user;
    switch (kind) {
    case REDLATCH_EVENT_ACQUIRE:
        story->acquired += CHECK(tag == ACQUIRING && result == REDLATCH_OK && value != 0);
        CHECK(strcmp(redis("DEL", "c:adapter", NULL), "1") == 0);
        break;
    case REDLATCH_EVENT_LOST:
        story->lost += CHECK(tag == ACQUIRING && result == REDLATCH_LOST);
        CHECK(redlatch_last_lost_reason() == REDLATCH_LOST_DELETED);
        CHECK_OK(redlatch_lock_release_start(story->lock, OWNER, RELEASING));
        break;
    case REDLATCH_EVENT_RELEASE:
        story->released += CHECK(tag == RELEASING && result == REDLATCH_LOST);
        CHECK_OK(redlatch_client_close_start(story->client, REDLATCH_CLOSE_LIMIT, CLOSING));
        break;
    default:
        CHECK(kind == REDLATCH_EVENT_CLOSE && tag == CLOSING && result == REDLATCH_OK);
        end();
        redlatch_lock_free(story->lock);
        redlatch_client_free(story->client);
        story->client = NULL;
    }
}

static void a_loop_takes_a_grant_and_a_loss(void)
{
    struct story story = {open_client(), NULL, 0, 0, 0};

    story.lock = lock_with(story.client, "c:adapter", "fencing", "true");
    begin(story.client, taken, &story);
    CHECK_OK(redlatch_lock_acquire_start(story.lock, OWNER, LIMIT_MS, REDLATCH_LOCK_LEASE, ACQUIRING));
    run();
    CHECK(story.acquired == 1 && story.lost == 1 && story.released == 1 && story.client == NULL);
}

MAIN(TEST(a_loop_takes_a_grant_and_a_loss))
