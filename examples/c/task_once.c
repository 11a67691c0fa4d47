/* Each task once: a queue delivers a task to several workers, or again; see docs/recipes.md.
 *
 * task_once FOLDER, with the server in REDLATCH_URL and one task a line on standard input
 * cc task_once.c $(pkg-config --cflags --libs redlatch) */
#define _POSIX_C_SOURCE 200809L
#include <redlatch.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static char done[4096]; /* the path of the file */

/* Runs the task unless it was done before; NULL if a file failed. Correct only while nobody else runs
 * the same one. A lock knows who is at work, not what is finished: that has to be noted with the work. */
static const char *run(const char *task)
{
    const struct timespec work = {0, 20000000};
    char line[256];
    FILE *file = fopen(done, "a+");

    if (file == NULL)
        return NULL;
    while (fscanf(file, "%255s", line) == 1)
        if (strcmp(line, task) == 0) {
            fclose(file);
            return "known";
        }
    nanosleep(&work, NULL);
    fprintf(file, "%s\n", task);
    return fclose(file) == 0 ? "done" : NULL;
}

static const char *once(redlatch_client *client, const char *task)
{
    char name[300];
    redlatch_lock *lock = NULL;
    const char *answer = NULL;
    redlatch_status status;

    snprintf(name, sizeof name, "task:%s", task);
    status = redlatch_lock_new(client, name, NULL, &lock);
    if (status == REDLATCH_OK)
        status = redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, REDLATCH_LOCK_LEASE, NULL);
    if (status == REDLATCH_OK) {
        answer = run(task);
        if (redlatch_lock_release(lock, REDLATCH_THREAD) != REDLATCH_OK)
            answer = NULL;
    } else if (status == REDLATCH_TIMEOUT) {
        /* Not acknowledged, so that the queue delivers it again should that worker die. */
        answer = "busy";
    }
    redlatch_lock_free(lock);
    return answer;
}

int main(int argc, char **argv)
{
    redlatch_client *client = NULL;
    const char *answer = "";
    char task[256];

    if (argc != 2 || redlatch_client_open(NULL, NULL, &client) != REDLATCH_OK) {
        fprintf(stderr, "usage: task_once FOLDER; %s\n", redlatch_last_error());
        return 1;
    }
    snprintf(done, sizeof done, "%s/done", argv[1]);
    while (answer != NULL && scanf("%255s", task) == 1) {
        answer = once(client, task);
        if (answer == NULL)
            fprintf(stderr, "%s: %s\n", task, redlatch_last_error());
        else
            printf("%s %s\n", task, answer);
        fflush(stdout);
    }
    redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return answer == NULL;
}
