/* Preloaded into a program: a clock of it is ahead by the microseconds in the file that FAULTS_CLOCK names, which may
 * change at any time. That is the wall clock; with FAULTS_CLOCK_OF=suspend it is CLOCK_BOOTTIME alone, which goes on
 * while a machine is suspended, when CLOCK_MONOTONIC does not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

static int64_t offset(void)
{
    if (ahead == NULL) {
        int file = open(getenv("FAULTS_CLOCK"), O_RDONLY | O_CLOEXEC);
        void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (page == MAP_FAILED)
            abort();
        ahead = page;
    }
    return *ahead;
}

/* Whether it is CLOCK_BOOTTIME that is ahead. */
static int of_suspend(void)
{
    static int known = -1;
    if (known < 0) {
        const char *which = getenv("FAULTS_CLOCK_OF");
        known = which != NULL && strcmp(which, "suspend") == 0;
    }
    return known;
}

static int is_ahead(clockid_t clock)
{
    if (of_suspend())
        return clock == CLOCK_BOOTTIME;
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

static int64_t now_us(clockid_t clock)
{
    struct timespec now;
    syscall(SYS_clock_gettime, clock, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + (is_ahead(clock) ? offset() : 0);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!is_ahead(clock))
        return (int)syscall(SYS_clock_gettime, clock, now);
    int64_t us = now_us(clock);
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    int64_t us = now_us(CLOCK_REALTIME);
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *now)
{
    time_t seconds = now_us(CLOCK_REALTIME) / 1000000;
    if (now != NULL)
        *now = seconds;
    return seconds;
}
