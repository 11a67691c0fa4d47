/* Preloaded into a client whose server runs in valgrind, about a hundred times slower than it would: CLOCK_BOOTTIME, by
 * which a client of ours judges whether a server is quick, goes slower by as much. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOWER 100
#define SECOND 1000000000LL

static _Atomic int64_t begun;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || clock != CLOCK_BOOTTIME)
        return failed;
    int64_t ns = now->tv_sec * SECOND + now->tv_nsec, first = 0;
    if (atomic_compare_exchange_strong(&begun, &first, ns))
        first = ns;
    ns = first + (ns - first) / SLOWER;
    now->tv_sec = ns / SECOND;
    now->tv_nsec = ns % SECOND;
    return 0;
}
