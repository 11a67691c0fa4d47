/* Preloaded into a server: its wall clock is ahead by the microseconds in the file that FAULTS_CLOCK names, which may
 * change at any time. Monotonic clocks are left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
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

static int64_t now_us(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + offset();
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, now);
    int64_t us = now_us();
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    int64_t us = now_us();
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *now)
{
    time_t seconds = now_us() / 1000000;
    if (now != NULL)
        *now = seconds;
    return seconds;
}
