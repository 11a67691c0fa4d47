/* A price list that one refreshes and many read: nobody sees half a list; see docs/recipes.md.
 *
 * price_list SHOP, with the server in REDLATCH_URL and the version that is wanted, a line each, on
 * standard input
 * cc price_list.c $(pkg-config --cflags --libs redlatch) */
#define _POSIX_C_SOURCE 200809L
#include <redlatch.h>
#include <stdio.h>
#include <time.h>

static char prices[4096]; /* the path of the file */

/* The version of the list, or -1 for half a list. Its two lines tell the same while nobody writes;
 * an empty list has version 0. */
static int version(void)
{
    int first = 0, second = 0, found = -1;
    FILE *file = fopen(prices, "r");

    if (file == NULL)
        return -1;
    found = fscanf(file, "%d %d", &first, &second);
    fclose(file);
    return found == EOF || (found == 2 && first == second) ? first : -1;
}

/* Adds a line to the list, or begins it anew. */
static int put(const char *mode, int wanted)
{
    FILE *file = fopen(prices, mode);

    if (file == NULL)
        return -1;
    fprintf(file, "%d\n", wanted);
    return fclose(file) == 0 ? 0 : -1;
}

/* Writes the list in two steps. Correct only while nobody else reads or writes. */
static int refresh(int wanted)
{
    const struct timespec query = {0, 20000000}; /* for the second half */

    if (put("w", wanted) != 0)
        return -1;
    nanosleep(&query, NULL);
    return put("a", wanted);
}

static int acquire(redlatch_lock *side)
{
    return redlatch_lock_acquire(side, REDLATCH_THREAD, 10000, REDLATCH_LOCK_LEASE, NULL);
}

/* 0: read, 1: refreshed, -1: half a list, or an error. */
static int look_up(redlatch_lock *read, redlatch_lock *write, int wanted)
{
    int known, done = 0;

    if (acquire(read) != REDLATCH_OK) /* beside other readers */
        return -1;
    known = version();
    if (redlatch_lock_release(read, REDLATCH_THREAD) != REDLATCH_OK || known < 0)
        return -1;
    if (known >= wanted)
        return 0;
    if (acquire(write) != REDLATCH_OK) /* alone */
        return -1;
    known = version();
    if (known < 0)
        done = -1;
    else if (known < wanted) /* else somebody else was faster */
        done = refresh(wanted) == 0 ? 1 : -1;
    return redlatch_lock_release(write, REDLATCH_THREAD) == REDLATCH_OK ? done : -1;
}

int main(int argc, char **argv)
{
    redlatch_client *client = NULL;
    redlatch_lock *read = NULL, *write = NULL;
    int wanted;

    if (argc != 2 || redlatch_client_open(NULL, NULL, &client) != REDLATCH_OK ||
        redlatch_rw_lock_new(client, "prices", NULL, &read, &write) != REDLATCH_OK) {
        fprintf(stderr, "usage: price_list SHOP; %s\n", redlatch_last_error());
        return 1;
    }
    snprintf(prices, sizeof prices, "%s/prices", argv[1]);
    while (scanf("%d", &wanted) == 1) {
        int done = look_up(read, write, wanted);

        printf("%d %s\n", wanted, done < 0 ? "half a list" : done ? "refreshed" : "read");
        fflush(stdout);
    }
    redlatch_lock_free(read);
    redlatch_lock_free(write);
    redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return 0;
}
