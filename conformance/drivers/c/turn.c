/* A turn: acquires, holds for a while and releases; conformance/drivers/README.md says what it does and tells. */
#include "driver.h"

enum {
    LOOK_MS = 50, /* how often one that holds looks whether it does */
    ACTORS = 64,
    KEPT = 64 /* handles of an actor that are kept, for what may still be told of their holds */
};

struct turn {
    redlatch_lock *lock;
    int64_t actor, called;
};

static struct actor {
    int next;
    struct turn kept[KEPT];
} actors[ACTORS];

static void tell_loss(void *user, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
{
    const struct turn *turn = user;
    (void)owner;
    (void)token;
    write_object("\"told\": \"%s\", \"as\": \"%lld\", \"called\": %lld, \"at\": %lld", redlatch_lost_reason_name(reason),
                 (long long)turn->actor, (long long)turn->called, (long long)now());
}

/* A handle of its own for each turn; the one whose place it takes is given back. */
static redlatch_status prepare(redlatch_client *client, const struct request *request, struct turn **made)
{
    int64_t actor = number(request, "as", 0) % ACTORS;
    struct turn *turn = *made = &actors[actor].kept[actors[actor].next++ % KEPT];
    redlatch_status status;
    redlatch_lock_free(turn->lock);
    turn->lock = NULL;
    turn->actor = actor;
    status = make_lock(client, request, &turn->lock);
    if (status == REDLATCH_OK && field(request, "limit") != NULL)
        status = redlatch_semaphore_set_take(turn->lock, (uint32_t)number(request, "permits", 1));
    return status == REDLATCH_OK ? redlatch_lock_on_lost(turn->lock, tell_loss, turn) : status;
}

void forget_turns(void)
{
    int actor, each;
    for (actor = 0; actor < ACTORS; actor++)
        for (each = 0; each < KEPT; each++) {
            redlatch_lock_free(actors[actor].kept[each].lock);
            actors[actor].kept[each].lock = NULL;
        }
}

/* Does what holders do, and gives all levels back. */
static void hold(const struct turn *turn, const struct request *request, int64_t id, int64_t answered, uint64_t token)
{
    redlatch_lock *lock = turn->lock;
    int64_t again = number(request, "reenter_ms", -1), longer = number(request, "extend_ms", 0), at, sure = 0, freed, left;
    int64_t rest = number(request, "rest_ms", 0);
    int levels = 1, level;
    unsigned count;
    bool kept;
    redlatch_status status;
    char drawn[24] = "null";
    if (token != 0)
        snprintf(drawn, sizeof drawn, "%llu", (unsigned long long)token);
    if (again >= 0)
        levels += redlatch_lock_acquire(lock, REDLATCH_THREAD, again, REDLATCH_LOCK_LEASE, NULL) == REDLATCH_OK;
    if (longer > 0) /* a refusal is the loss that the release will tell */
        redlatch_lock_extend(lock, REDLATCH_THREAD, longer);
    count = redlatch_lock_hold_count(lock, REDLATCH_THREAD);
    for (;; rest -= LOOK_MS) {
        at = now();
        if ((kept = redlatch_lock_is_held(lock, REDLATCH_THREAD)))
            sure = at;
        if (rest <= 0)
            break;
        pause_us(1000 * (rest < LOOK_MS ? rest : LOOK_MS));
    }
    for (level = 1; level < levels; level++)
        redlatch_lock_release(lock, REDLATCH_THREAD);
    freed = now();
    left = redlatch_lock_remaining_ms(lock, REDLATCH_THREAD);
    status = redlatch_lock_release(lock, REDLATCH_THREAD);
    answer(id,
           "\"status\": \"ok\", \"called\": %lld, \"answered\": %lld, \"token\": %s, \"levels\": %d, \"count\": %u, "
           "\"sure\": %lld, \"kept\": %s, \"until\": %lld, \"freed\": %lld, \"done\": %lld, \"release\": \"%s\"",
           (long long)turn->called, (long long)answered, drawn, levels, count, (long long)sure, kept ? "true" : "false",
           left > 0 ? (long long)(freed + left * 1000000) : 0, (long long)freed, (long long)now(),
           redlatch_status_name(status));
}

void perform_turn(redlatch_client *client, const struct request *request, int64_t id)
{
    struct turn *turn;
    uint64_t token = 0;
    int64_t answered;
    redlatch_status status = prepare(client, request, &turn);
    if (status != REDLATCH_OK) {
        answer_status(id, status);
        return;
    }
    turn->called = now();
    status = redlatch_lock_acquire(turn->lock, REDLATCH_THREAD, number(request, "wait_ms", 0),
                                   number(request, "lease_ms", REDLATCH_LOCK_LEASE), &token);
    answered = now();
    if (status == REDLATCH_OK)
        hold(turn, request, id, answered, token);
    else
        answer(id, "\"status\": \"%s\", \"called\": %lld, \"answered\": %lld", redlatch_status_name(status),
               (long long)turn->called, (long long)answered);
}
