/* One order per user: who clicks twice orders once, whichever servers get the clicks; see
 * docs/recipes.md.
 *
 * one_order_per_user SHOP, with the server in REDLATCH_URL and one user a line on standard input
 * cc one_order_per_user.c $(pkg-config --cflags --libs redlatch) */
#define _POSIX_C_SOURCE 200809L
#include <redlatch.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static char orders[4096]; /* the path of the file */

/* Orders unless the user has ordered. 1: ordered, 0: refused, -1: a file failed. Correct only while
 * nobody else does the same for this user. */
static int order(const char *user)
{
    const struct timespec payment = {0, 20000000};
    char line[256];
    FILE *file = fopen(orders, "a+");

    if (file == NULL)
        return -1;
    while (fscanf(file, "%255s", line) == 1)
        if (strcmp(line, user) == 0) {
            fclose(file);
            return 0;
        }
    nanosleep(&payment, NULL);
    fprintf(file, "%s\n", user);
    return fclose(file) == 0 ? 1 : -1;
}

/* The same, under the lock of this user: others need not wait. */
static int order_once(redlatch_client *client, const char *user)
{
    char name[300];
    redlatch_lock *lock = NULL;
    int ordered = -1;

    snprintf(name, sizeof name, "order:%s", user);
    if (redlatch_lock_new(client, name, NULL, &lock) == REDLATCH_OK &&
        redlatch_lock_acquire(lock, REDLATCH_THREAD, 10000, REDLATCH_LOCK_LEASE, NULL) == REDLATCH_OK) {
        ordered = order(user);
        if (redlatch_lock_release(lock, REDLATCH_THREAD) != REDLATCH_OK)
            ordered = -1;
    }
    redlatch_lock_free(lock);
    return ordered;
}

int main(int argc, char **argv)
{
    redlatch_client *client = NULL;
    char user[256];
    int ordered = 0;

    if (argc != 2 || redlatch_client_open(NULL, NULL, &client) != REDLATCH_OK) {
        fprintf(stderr, "usage: one_order_per_user SHOP; %s\n", redlatch_last_error());
        return 1;
    }
    snprintf(orders, sizeof orders, "%s/orders", argv[1]);
    while (ordered >= 0 && scanf("%255s", user) == 1) {
        ordered = order_once(client, user);
        if (ordered < 0)
            fprintf(stderr, "%s: %s\n", user, redlatch_last_error());
        else
            printf("%s %s\n", user, ordered ? "ordered" : "refused");
        fflush(stdout);
    }
    redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    return ordered < 0;
}
