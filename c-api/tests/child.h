/* How a forked child ended. */
#ifndef CHILD_H
#define CHILD_H

#include "check.h"

#include <signal.h>
#include <sys/wait.h>

/* How the child ended: its exit code, or -1. It is stopped if it does not end. */
static inline int outcome_of(pid_t child)
{
    int64_t give_up = now_ms() + LIMIT_MS;
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 && now_ms() < give_up)
        pause_ms(1);
    if (ended == 0) {
        printf("  the child does not end\n");
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return -1;
    }
    if (WIFSIGNALED(status))
        printf("  the child was ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
