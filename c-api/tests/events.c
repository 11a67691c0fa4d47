/* The face for event loops: a descriptor to poll, acquisitions that are started and cancelled. */
#include "loop.h"
#include "redis.h"

#include <fcntl.h>

static void the_descriptor_tells_what_waits(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_with(client, "c:loop", "fencing", "true"), *other = lock_of(client, "c:loop:2");
    struct event event;
    int fd = -1, again = -2;

    CHECK_OK(redlatch_client_event_fd(client, &fd));
    CHECK_OK(redlatch_client_event_fd(client, &again));
    CHECK(fd == again && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(!readable(client, 0));
    CHECK(next_event(client).kind == REDLATCH_EVENT_NONE);

    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 11));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_ACQUIRE, 11, REDLATCH_OK) && event.value != 0);
    CHECK(event.value == redlatch_lock_fencing_token(lock, 1));
    CHECK(redlatch_lock_is_held(lock, 1) && !readable(client, 0));

    /* Two answers: the descriptor stays readable until both are taken. */
    CHECK_OK(redlatch_lock_acquire_start(lock, 2, 0, 0, 12));
    CHECK_OK(redlatch_lock_acquire_start(other, 2, 0, 0, 13));
    EVENTUALLY(counter(client, "timeouts") == 1 && counter(client, "acquired") == 2);
    event = await_event(client);
    CHECK(readable(client, LIMIT_MS));
    if (event.tag == 12) {
        CHECK(is(event, REDLATCH_EVENT_ACQUIRE, 12, REDLATCH_TIMEOUT));
        CHECK(strstr(redlatch_last_error(), "c:loop") != NULL);
        CHECK(is(next_event(client), REDLATCH_EVENT_ACQUIRE, 13, REDLATCH_OK));
    } else {
        CHECK(is(event, REDLATCH_EVENT_ACQUIRE, 13, REDLATCH_OK));
        CHECK(is(next_event(client), REDLATCH_EVENT_ACQUIRE, 12, REDLATCH_TIMEOUT));
    }
    CHECK(!readable(client, 0));

    CHECK_OK(redlatch_lock_release_start(lock, 1, 14));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE, 14, REDLATCH_OK));
    CHECK(!exists("c:loop"));
    CHECK_OK(redlatch_lock_release_start(lock, 1, 15));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE, 15, REDLATCH_NOT_OWNER));
    CHECK_OK(redlatch_lock_release(other, 2)); /* both faces mix */
    redlatch_lock_free(lock);
    redlatch_lock_free(other);
    close_client(client);
}

static void waiting_in_line(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:line");

    for (uint64_t owner = 1; owner <= 20; owner++)
        CHECK_OK(redlatch_lock_acquire_start(lock, owner, REDLATCH_FOREVER, 0, owner));
    for (uint64_t owner = 1; owner <= 20; owner++) {
        CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, owner, REDLATCH_OK));
        CHECK(redlatch_lock_is_held(lock, owner));
        CHECK_OK(redlatch_lock_release(lock, owner));
    }
    redlatch_lock_free(lock);
    close_client(client);
}

static void note_holder(void *user, const redlatch_holder *holder)
{
    redlatch_client *client = user;
    int32_t kind;
    CHECK(holder->count == 2 && strlen(holder->owner) > 36);
    /* It may call anything, the function that calls it too. */
    CHECK_OK(redlatch_client_next_event(client, &kind, NULL, NULL, NULL));
    CHECK(kind == REDLATCH_EVENT_NONE);
}

static void questions_and_changes_are_events(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *lock = lock_of(client, "c:asked"), *foreign = lock_of(client, "c:asked:foreign");
    redlatch_lock *there = lock_of(other, "c:asked");
    struct event event;

    CHECK_OK(redlatch_lock_is_locked_start(lock, 71));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_IS_LOCKED, 71, REDLATCH_OK) && event.value == 0);
    CHECK_OK(redlatch_lock_holders_start(lock, note_holder, client, 72));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_HOLDERS, 72, REDLATCH_OK) && event.value == 0);
    CHECK_OK(redlatch_lock_waiters_start(lock, note_holder, client, 72));
    event = await_event(client); /* this lock is not fair */
    CHECK(is(event, REDLATCH_EVENT_HOLDERS, 72, REDLATCH_INVALID_ARGUMENT));
    CHECK_OK(redlatch_lock_force_release_start(lock, 73));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_FORCE_RELEASE, 73, REDLATCH_OK) && event.value == 0);
    CHECK_OK(redlatch_lock_extend_start(lock, 1, 60000, 74));
    CHECK(is(await_event(client), REDLATCH_EVENT_EXTEND, 74, REDLATCH_NOT_OWNER));

    CHECK_OK(redlatch_lock_acquire(there, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire(there, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_is_locked_start(lock, 71));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_holders_start(lock, note_holder, client, 71));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_IS_LOCKED, 71, REDLATCH_OK) && event.value == 1);
    CHECK_OK(redlatch_lock_holders_start(lock, note_holder, client, 72));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_HOLDERS, 72, REDLATCH_OK) && event.value == 1);
    CHECK_OK(redlatch_lock_extend_start(there, 1, 3600000, 74));
    CHECK(is(await_event(other), REDLATCH_EVENT_EXTEND, 74, REDLATCH_OK));
    CHECK(redlatch_lock_remaining_ms(there, 1) > 3000000);
    CHECK_OK(redlatch_lock_force_release_start(lock, 73));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_FORCE_RELEASE, 73, REDLATCH_OK) && event.value == 1);
    CHECK(!exists("c:asked"));

    redis("SET", "c:asked:foreign", "precious", NULL);
    CHECK_OK(redlatch_lock_is_locked_start(foreign, 75));
    CHECK(is(await_event(client), REDLATCH_EVENT_IS_LOCKED, 75, REDLATCH_FOREIGN_KIND));
    CHECK(strstr(redlatch_last_error(), "c:asked:foreign") != NULL);
    redis("DEL", "c:asked:foreign", NULL);
    redlatch_lock_free(foreign);
    redlatch_lock_free(lock);
    redlatch_lock_free(there);
    close_client(client);
    redlatch_client_free(other);
}

static void tokens_are_events(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *lock = lock_with(client, "c:token:loop", "kind", "simple");
    redlatch_lock *there = lock_with(other, "c:token:loop", "kind", "simple"), *bare = lock_of(client, "c:token:none");

    CHECK_OK(redlatch_lock_set_token(there, "secret"));
    CHECK_OK(redlatch_lock_acquire(there, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_extend_token_start(lock, "secret", 3600000, 61));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_release_token_start(lock, "secret", 61));
    CHECK(is(await_event(client), REDLATCH_EVENT_EXTEND_TOKEN, 61, REDLATCH_OK));
    CHECK(atol(redis("PTTL", "c:token:loop", NULL)) > 3000000);
    CHECK_OK(redlatch_lock_release_token_start(lock, "another", 62));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE_TOKEN, 62, REDLATCH_NOT_OWNER));
    CHECK_OK(redlatch_lock_release_token_start(lock, "secret", 63));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE_TOKEN, 63, REDLATCH_OK));
    CHECK(!exists("c:token:loop"));
    CHECK_OK(redlatch_lock_release_token_start(bare, "secret", 64)); /* a re-entrant lock has none */
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE_TOKEN, 64, REDLATCH_INVALID_ARGUMENT));
    redlatch_lock_free(bare);
    redlatch_lock_free(lock);
    redlatch_lock_free(there);
    close_client(client);
    close_client(other);
}

static void note_permits(void *user, int64_t available, int64_t limit)
{
    int64_t *permits = user;
    permits[0] = available;
    permits[1] = limit;
}

static void permits_are_events(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *semaphore, *lock = lock_of(client, "c:permits:lock");
    int64_t permits[2] = {-9, -9};
    struct event event;

    redis("DEL", "c:permits", "{c:permits}:timeout", NULL);
    CHECK_OK(redlatch_semaphore_new(client, "c:permits", 3, NULL, &semaphore));
    CHECK_OK(redlatch_lock_acquire(semaphore, 1, 0, 0, NULL));
    CHECK_OK(redlatch_semaphore_permits_start(semaphore, note_permits, permits, 65));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_PERMITS, 65, REDLATCH_OK) && event.value == 2);
    CHECK(permits[0] == 2 && permits[1] == 3);
    CHECK_OK(redlatch_semaphore_set_permits_start(semaphore, 0, 66));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_PERMITS, 66, REDLATCH_OK) && (int64_t)event.value == -1);
    CHECK_OK(redlatch_semaphore_permits_start(semaphore, NULL, NULL, 67));
    event = await_event(client);
    CHECK(is(event, REDLATCH_EVENT_PERMITS, 67, REDLATCH_OK) && (int64_t)event.value == -1);
    CHECK_OK(redlatch_semaphore_set_permits_start(semaphore, UINT32_MAX, 68));
    CHECK(is(await_event(client), REDLATCH_EVENT_PERMITS, 68, REDLATCH_INVALID_ARGUMENT));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_permits_start(lock, NULL, NULL, 69));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_semaphore_set_permits_start(lock, 1, 69));
    CHECK_OK(redlatch_lock_release(semaphore, 1));
    redlatch_lock_free(lock);
    redlatch_lock_free(semaphore);
    close_client(client);
}

static redlatch_client *new_client(const char *url)
{
    redlatch_client *client = NULL;
    if (!CHECK_OK(redlatch_client_new(url, NULL, &client)))
        exit(1);
    return client;
}

static void a_new_client_connects_when_it_is_used(void)
{
    redlatch_client *client = new_client(NULL), *nowhere, *unused = new_client(NULL);
    redlatch_lock *lock = lock_of(client, "c:new"), *lost;
    char url[64];
    struct sockaddr_in address = {0};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(counter(client, "connects") == 0);
    CHECK_OK(redlatch_client_ready_start(client, 81));
    CHECK(is(await_event(client), REDLATCH_EVENT_READY, 81, REDLATCH_OK));
    CHECK(counter(client, "connects") > 0);
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);

    /* Bound and not listening: the server that is not there yet. */
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&address, size) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", ntohs(address.sin_port));
    nowhere = new_client(url);
    lost = lock_of(nowhere, "c:new");
    CHECK_OK(redlatch_client_ready_start(nowhere, 82));
    CHECK(is(await_event(nowhere), REDLATCH_EVENT_READY, 82, REDLATCH_UNAVAILABLE));
    CHECK_STATUS(REDLATCH_UNAVAILABLE, redlatch_lock_acquire(lost, 1, 0, 0, NULL));
    redlatch_lock_free(lost);
    close_client(nowhere);
    close(fd);

    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_client_new("nothing", NULL, &client));
    CHECK(client == NULL);
    CHECK_OK(redlatch_client_close_start(unused, REDLATCH_CLOSE_LIMIT, 83));
    CHECK(is(await_event(unused), REDLATCH_EVENT_CLOSE, 83, REDLATCH_OK));
    redlatch_client_free(unused);
}

static void closing_is_an_event(void)
{
    redlatch_client *client = open_client(), *other = open_client();
    redlatch_lock *lock = lock_of(client, "c:closing"), *there = lock_of(other, "c:closing");

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire_start(lock, 2, REDLATCH_FOREVER, 0, 91));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_client_close_start(client, -2, 92));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_client_close_start(client, 0, 91));
    CHECK_OK(redlatch_client_close_start(client, REDLATCH_CLOSE_LIMIT, 92));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 91, REDLATCH_CLOSED));
    CHECK(is(await_event(client), REDLATCH_EVENT_CLOSE, 92, REDLATCH_OK));
    CHECK(!exists("c:closing"));
    CHECK_STATUS(REDLATCH_CLOSED, redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_client_close_start(client, 0, 92)); /* again: no error */
    CHECK(is(await_event(client), REDLATCH_EVENT_CLOSE, 92, REDLATCH_OK));

    CHECK_OK(redlatch_lock_acquire(there, 1, 0, 0, NULL));
    CHECK_OK(redlatch_client_close_start(other, 0, 93));
    CHECK(is(await_event(other), REDLATCH_EVENT_CLOSE, 93, REDLATCH_UNAVAILABLE));
    CHECK(strstr(redlatch_last_error(), "could not release these: \"c:closing\"") != NULL);
    redis("DEL", "c:closing", NULL);
    redlatch_lock_free(lock);
    redlatch_lock_free(there);
    redlatch_client_free(client);
    redlatch_client_free(other);
}

static void a_loss_is_an_event(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:gone");

    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 21));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 21, REDLATCH_OK));
    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 22)); /* enters once more: the same hold */
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 22, REDLATCH_OK));
    CHECK(redlatch_lock_hold_count(lock, 1) == 2);
    redis("DEL", "c:gone", NULL);
    CHECK(is(await_event(client), REDLATCH_EVENT_LOST, 21, REDLATCH_LOST));
    CHECK(redlatch_last_lost_reason() == REDLATCH_LOST_DELETED);
    CHECK(next_event(client).kind == REDLATCH_EVENT_NONE);
    CHECK_OK(redlatch_lock_release_start(lock, 1, 23));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE, 23, REDLATCH_LOST));
    CHECK_STATUS(REDLATCH_LOST, redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

static void a_tag_means_one_thing(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:tag");
    bool cancelled = true;

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire_start(lock, 2, REDLATCH_FOREVER, 0, 31));
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_acquire_start(lock, 3, REDLATCH_FOREVER, 0, 31));
    CHECK(strstr(redlatch_last_error(), "31") != NULL);
    CHECK_STATUS(REDLATCH_INVALID_ARGUMENT, redlatch_lock_release_start(lock, 1, 31));
    CHECK(redlatch_lock_is_held(lock, 1)); /* a refused call does nothing */
    CHECK_OK(redlatch_lock_acquire_cancel(lock, 99, &cancelled));
    CHECK(!cancelled);
    CHECK_OK(redlatch_lock_acquire_cancel(lock, 31, &cancelled));
    CHECK(cancelled);
    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 31)); /* free again */
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 31, REDLATCH_OK));
    CHECK_OK(redlatch_lock_acquire_cancel(lock, 31, &cancelled)); /* too late: its event was taken */
    CHECK(!cancelled);
    CHECK_OK(redlatch_lock_release(lock, 1));
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

static void a_freed_lock_gives_no_event(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:freed"), *waiting = lock_of(client, "c:freed");

    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 41));
    CHECK(readable(client, LIMIT_MS)); /* granted and not taken */
    CHECK_OK(redlatch_lock_acquire_start(waiting, 2, REDLATCH_FOREVER, 0, 42));
    redlatch_lock_free(waiting);
    redlatch_lock_free(lock);
    CHECK(next_event(client).kind == REDLATCH_EVENT_NONE);
    EVENTUALLY(!exists("c:freed"));
    EVENTUALLY(counter(client, "holds") == 0 && counter(client, "waiting") == 0);
    close_client(client);
}

static void a_freed_lock_leaves_no_grant_in_the_queue(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:freed:2");

    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 43));
    CHECK(readable(client, LIMIT_MS));
    redlatch_lock_free(lock);
    EVENTUALLY(!exists("c:freed:2")); /* though nobody takes an event */
    CHECK(!readable(client, 0));
    close_client(client);
}

static void a_freed_lock_is_not_lost_any_more(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:freed:3"), *other = lock_of(client, "c:freed:4");

    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 44));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 44, REDLATCH_OK));
    CHECK_OK(redlatch_lock_acquire_start(other, 1, 0, 0, 45));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 45, REDLATCH_OK));
    redis("DEL", "c:freed:3", NULL);
    CHECK(readable(client, LIMIT_MS)); /* its loss waits */
    redlatch_lock_free(lock);
    redis("DEL", "c:freed:4", NULL);
    CHECK(is(await_event(client), REDLATCH_EVENT_LOST, 45, REDLATCH_LOST));
    CHECK(next_event(client).kind == REDLATCH_EVENT_NONE);
    redlatch_lock_free(other);
    close_client(client);
}

static void a_level_that_another_handle_gave_back_is_passed_over(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:handles"), *other = lock_of(client, "c:handles");

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_release(other, 1));
    CHECK_OK(redlatch_lock_release_start(lock, 1, 46));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE, 46, REDLATCH_OK));
    CHECK(!exists("c:handles"));
    CHECK_OK(redlatch_lock_release_start(lock, 1, 47));
    CHECK(is(await_event(client), REDLATCH_EVENT_RELEASE, 47, REDLATCH_NOT_OWNER));
    redlatch_lock_free(lock);
    redlatch_lock_free(other);
    close_client(client);
}

static void closing_ends_what_waits(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:closing");

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    CHECK_OK(redlatch_lock_acquire_start(lock, 2, REDLATCH_FOREVER, 0, 51));
    CHECK_OK(redlatch_client_close(client, 10000));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 51, REDLATCH_CLOSED));
    CHECK_OK(redlatch_lock_acquire_start(lock, 2, 0, 0, 52));
    CHECK(is(await_event(client), REDLATCH_EVENT_ACQUIRE, 52, REDLATCH_CLOSED));
    redlatch_lock_free(lock);
    redlatch_client_free(client);
}

static void what_nobody_took_is_released(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:untaken");

    CHECK_OK(redlatch_lock_acquire_start(lock, 1, 0, 0, 61));
    CHECK(readable(client, LIMIT_MS));
    redlatch_lock_free(lock);
    redlatch_client_free(client); /* not closed */
    EVENTUALLY(!exists("c:untaken"));
}

/* ---- ten thousand cancels ---- */

enum { NAMES = 4, SLOTS = 12 };

struct slot {
    enum { FREE, ASKED, HELD } state;
    redlatch_lock *lock;
    uint64_t tag;
};

static uint64_t seed = 1;

static unsigned draw(unsigned below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

static struct slot *slot_of(struct slot *slots, uint64_t tag)
{
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].state != FREE && slots[i].tag == tag)
            return &slots[i];
    return NULL;
}

#define RELEASING ((uint64_t)1 << 63)

static void take_events(redlatch_client *client, struct slot *slots)
{
    for (struct event event; (event = next_event(client)).kind != REDLATCH_EVENT_NONE;) {
        struct slot *slot = slot_of(slots, event.tag);
        if (event.kind == REDLATCH_EVENT_RELEASE) {
            CHECK((event.tag & RELEASING) != 0 && event.result == REDLATCH_OK);
        } else if (CHECK(event.kind == REDLATCH_EVENT_ACQUIRE && slot != NULL && slot->state == ASKED)) {
            /* Something that was cancelled has no slot any more: its event would be a second answer. */
            CHECK(event.result == REDLATCH_OK || redlatch_status_retryable(event.result));
            slot->state = event.result == REDLATCH_OK ? HELD : FREE;
        }
    }
}

/* Whether it was cancelled; if not, its event is there. */
static bool cancel(redlatch_client *client, struct slot *slots, struct slot *slot)
{
    bool cancelled = false;
    CHECK_OK(redlatch_lock_acquire_cancel(slot->lock, slot->tag, &cancelled));
    if (cancelled)
        slot->state = FREE;
    else
        take_events(client, slots);
    CHECK(slot->state != ASKED);
    return cancelled;
}

static void ten_thousand_cancels_leave_nothing(void)
{
    static const int64_t waits[] = {REDLATCH_FOREVER, REDLATCH_FOREVER, 0, 1, 5};
    redlatch_client *clients[2] = {open_client(), open_client()};
    redlatch_lock *locks[2][NAMES];
    struct slot slots[2][SLOTS] = {{{FREE, NULL, 0}}};
    int cancels = 0, in_time = 0, wanted = scaled(10000);
    char name[32];

    for (int i = 0; i < 2 * NAMES; i++) {
        snprintf(name, sizeof name, "c:cancel:%d", i / 2);
        locks[i % 2][i / 2] = lock_of(clients[i % 2], name);
    }
    for (uint64_t tag = 1; cancels < wanted && failed_checks == 0; tag++) {
        unsigned who = draw(2);
        struct slot *slot = &slots[who][draw(SLOTS)];
        switch (slot->state) {
        case FREE:
            *slot = (struct slot){ASKED, locks[who][draw(NAMES)], tag};
            CHECK_OK(redlatch_lock_acquire_start(slot->lock, tag, waits[draw(5)], 0, tag));
            break;
        case HELD:
            CHECK_OK(redlatch_lock_release_start(slot->lock, slot->tag, slot->tag | RELEASING));
            slot->state = FREE;
            break;
        case ASKED:
            cancels++;
            in_time += cancel(clients[who], slots[who], slot);
        }
        if (draw(4) == 0) {
            readable(clients[who], (int)draw(2));
            take_events(clients[who], slots[who]);
        }
    }
    CHECK(in_time > 0 && in_time < cancels); /* both answers came up */

    for (int who = 0; who < 2; who++) {
        for (int i = 0; i < SLOTS; i++) {
            if (slots[who][i].state == ASKED)
                cancel(clients[who], slots[who], &slots[who][i]);
            if (slots[who][i].state == HELD)
                CHECK_OK(redlatch_lock_release(slots[who][i].lock, slots[who][i].tag));
        }
        EVENTUALLY(counter(clients[who], "holds") == 0 && counter(clients[who], "waiting") == 0);
        take_events(clients[who], slots[who]);
    }
    EVENTUALLY(redis("KEYS", "c:cancel:*", NULL)[0] == '\0');
    EVENTUALLY(redis("PUBSUB", "CHANNELS", NULL)[0] == '\0');
    for (int i = 0; i < 2 * NAMES; i++)
        redlatch_lock_free(locks[i % 2][i / 2]);
    close_client(clients[0]);
    close_client(clients[1]);
}

static void many_pending_calls_are_found_by_their_tags(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:many");
    int64_t began = now_ms();
    int count = scaled(40000), ended = 0;

    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    for (int i = 0; i < count; i++)
        ended += redlatch_lock_acquire_start(lock, 10 + (uint64_t)i, REDLATCH_FOREVER, 0, (uint64_t)i) != REDLATCH_OK;
    CHECK(ended == 0);
    for (int i = 0; i < count; i++) {
        bool cancelled = false;
        redlatch_lock_acquire_cancel(lock, (uint64_t)i, &cancelled);
        ended += cancelled ? 1 : 0;
    }
    CHECK(ended == count);
    CHECK(now_ms() - began < LIMIT_MS); /* 50 s when each call looked at all tags */
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    close_client(client);
}

static void many_locks_with_pending_calls_are_freed(void)
{
    redlatch_client *client = open_client();
    redlatch_lock *lock = lock_of(client, "c:many"), **others;
    int count = scaled(40000), failed = 0;
    int64_t began;

    others = calloc((size_t)count, sizeof *others);
    CHECK(others != NULL);
    CHECK_OK(redlatch_lock_acquire(lock, 1, 0, 0, NULL));
    for (int i = 0; i < count; i++) {
        others[i] = lock_of(client, "c:many");
        failed += redlatch_lock_acquire_start(others[i], 10 + (uint64_t)i, REDLATCH_FOREVER, 0, (uint64_t)i) != REDLATCH_OK;
    }
    CHECK(failed == 0);
    began = now_ms();
    for (int i = 0; i < count; i++)
        redlatch_lock_free(others[i]);
    CHECK(now_ms() - began < LIMIT_MS); /* 100 s when each looked at all calls */
    for (int i = 0; i < count; i++) {
        bool cancelled = true;
        redlatch_lock_acquire_cancel(lock, (uint64_t)i, &cancelled);
        failed += cancelled ? 1 : 0;
    }
    CHECK(failed == 0);
    CHECK_OK(redlatch_lock_release(lock, 1));
    redlatch_lock_free(lock);
    free(others);
    close_client(client);
}

MAIN(TEST(many_pending_calls_are_found_by_their_tags), TEST(many_locks_with_pending_calls_are_freed), TEST(the_descriptor_tells_what_waits), TEST(waiting_in_line), TEST(questions_and_changes_are_events),
     TEST(tokens_are_events), TEST(permits_are_events),
     TEST(a_new_client_connects_when_it_is_used), TEST(closing_is_an_event), TEST(a_loss_is_an_event),
     TEST(a_tag_means_one_thing), TEST(a_freed_lock_gives_no_event),
     TEST(a_freed_lock_leaves_no_grant_in_the_queue), TEST(a_freed_lock_is_not_lost_any_more),
     TEST(a_level_that_another_handle_gave_back_is_passed_over), TEST(closing_ends_what_waits),
     TEST(what_nobody_took_is_released), TEST(ten_thousand_cancels_leave_nothing))
