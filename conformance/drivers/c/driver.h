/* Shared by the modes of the program: flat JSON objects, clocks, and the usage of the process. */
#ifndef DRIVER_H
#define DRIVER_H

#define _GNU_SOURCE
#include <dirent.h>
#include <redlatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FIELDS = 24, LONGEST = 4096 };

/* An object of strings, numbers and truth values. */
struct request {
    int count;
    char *names[FIELDS];
    char *values[FIELDS];
    char line[LONGEST];
    char text[LONGEST];
};

void parse(struct request *request);
/* The text of a field, or NULL. */
const char *field(const struct request *request, const char *name);
int64_t number(const struct request *request, const char *name, int64_t otherwise);

/* Writes the answer to a request, or an object that answers none. */
void answer(int64_t id, const char *format, ...);
void write_object(const char *format, ...);
void answer_status(int64_t id, redlatch_status status);
/* A truth value, if status is REDLATCH_OK. */
void truth(int64_t id, redlatch_status status, bool value);
/* How the cancelling of a request's target ended; answers the target too if it was cancelled. */
void answer_cancel(const struct request *request, int64_t id, redlatch_status status, bool cancelled);
/* Whether the request is for the face for threads. */
bool is_blocked(const struct request *request);

void perform_on_semaphore(redlatch_plain_semaphore *semaphore, const struct request *request, int64_t id);
void perform_on_latch(redlatch_latch *latch, const struct request *request, int64_t id);

/* The lock itself, or one side of the read-write lock of that name, or the semaphore, or the multi lock. */
redlatch_status make_lock(redlatch_client *client, const struct request *request, redlatch_lock **made);

void perform_turn(redlatch_client *client, const struct request *request, int64_t id);
/* Frees the handles of all turns. */
void forget_turns(void);

int play_act(const struct request *plan);

/* CLOCK_MONOTONIC in nanoseconds. */
static inline int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline void pause_us(int64_t us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

/* The process's resident memory in KiB, its threads and descriptors. */
struct usage {
    long memory, threads, files;
};

static inline long entries(const char *folder)
{
    long count = -2; /* itself and its parent */
    DIR *directory = opendir(folder);
    while (directory != NULL && readdir(directory) != NULL)
        count++;
    if (directory != NULL)
        closedir(directory);
    return count;
}

static inline struct usage usage(void)
{
    char line[256];
    struct usage usage = {0, entries("/proc/self/task"), 0};
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "VmRSS:", 6) == 0)
            usage.memory = strtol(line + 6, NULL, 10);
    if (status != NULL)
        fclose(status);
    usage.files = entries("/proc/self/fd");
    return usage;
}

#endif
