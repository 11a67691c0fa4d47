/* Requests about a plain semaphore or a latch. */
#include "driver.h"

static void tell_number(int64_t id, redlatch_status status, int64_t value)
{
    if (status == REDLATCH_OK)
        answer(id, "\"status\": \"ok\", \"value\": %lld", (long long)value);
    else
        answer_status(id, status);
}

/* The event tells how a wait that was started has ended. */
static void tell_started(int64_t id, redlatch_status status)
{
    if (status != REDLATCH_OK)
        answer_status(id, status);
}

void perform_on_semaphore(redlatch_plain_semaphore *semaphore, const struct request *request, int64_t id)
{
    const char *op = field(request, "op");
    int64_t permits = number(request, "permits", 1), wait = number(request, "wait_ms", REDLATCH_FOREVER);
    int64_t value = 0;
    bool yes = false;
    redlatch_status status;
    if (strcmp(op, "acquire") == 0 && is_blocked(request))
        answer_status(id, redlatch_plain_semaphore_acquire(semaphore, (uint32_t)permits, wait));
    else if (strcmp(op, "acquire") == 0)
        tell_started(id, redlatch_plain_semaphore_acquire_start(semaphore, (uint32_t)permits, wait, (uint64_t)id));
    else if (strcmp(op, "cancel") == 0) {
        status = redlatch_plain_semaphore_acquire_cancel(semaphore, (uint64_t)number(request, "target", 0), &yes);
        answer_cancel(request, id, status, yes);
    } else if (strcmp(op, "release") == 0)
        answer_status(id, redlatch_plain_semaphore_release(semaphore, (uint32_t)permits));
    else if (strcmp(op, "set") == 0) {
        status = redlatch_plain_semaphore_try_set_permits(semaphore, (uint32_t)permits, &yes);
        truth(id, status, yes);
    } else if (strcmp(op, "add") == 0)
        answer_status(id, redlatch_plain_semaphore_add_permits(semaphore, permits, NULL));
    else if (strcmp(op, "drain") == 0) {
        status = redlatch_plain_semaphore_drain(semaphore, &value);
        tell_number(id, status, value);
    } else if (strcmp(op, "permits") == 0) {
        status = redlatch_plain_semaphore_available(semaphore, &value);
        tell_number(id, status, value);
    } else
        answer(id, "\"status\": \"unsupported\"");
}

void perform_on_latch(redlatch_latch *latch, const struct request *request, int64_t id)
{
    const char *op = field(request, "op");
    int64_t wait = number(request, "wait_ms", REDLATCH_FOREVER), value = 0;
    uint32_t size = (uint32_t)number(request, "number", 1);
    bool yes = false;
    redlatch_status status;
    if (strcmp(op, "wait") == 0 && is_blocked(request))
        answer_status(id, redlatch_latch_wait(latch, wait));
    else if (strcmp(op, "wait") == 0)
        tell_started(id, redlatch_latch_wait_start(latch, wait, (uint64_t)id));
    else if (strcmp(op, "cancel") == 0) {
        status = redlatch_latch_wait_cancel(latch, (uint64_t)number(request, "target", 0), &yes);
        answer_cancel(request, id, status, yes);
    } else if (strcmp(op, "set") == 0) {
        status = redlatch_latch_try_set_count(latch, size, &yes);
        truth(id, status, yes);
    } else if (strcmp(op, "down") == 0)
        answer_status(id, redlatch_latch_count_down(latch, size, NULL));
    else if (strcmp(op, "count") == 0) {
        status = redlatch_latch_count(latch, &value);
        tell_number(id, status, value);
    } else
        answer(id, "\"status\": \"unsupported\"");
}
