/* A cron job that all hosts start and one of them runs; see docs/recipes.md.
 *
 * cron_once FOLDER PERIOD, with the server in REDLATCH_URL. PERIOD is how often cron starts it, in
 * seconds.
 * cc cron_once.c $(pkg-config --cflags --libs redlatch) */
#include <redlatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int report(const char *folder)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/reports", folder);
    file = fopen(path, "a");
    if (file == NULL)
        return -1;
    fprintf(file, "c %lld\n", (long long)time(NULL));
    return fclose(file);
}

int main(int argc, char **argv)
{
    redlatch_options *options = NULL;
    redlatch_client *client = NULL;
    redlatch_lock *lock = NULL;
    redlatch_status status;
    int64_t lease_ms = argc == 3 ? (int64_t)(900 * atof(argv[2])) : 0;

    if (lease_ms <= 0) {
        fprintf(stderr, "usage: cron_once FOLDER PERIOD\n");
        return 2;
    }
    status = redlatch_options_new(&options);
    if (status == REDLATCH_OK)
        status = redlatch_options_set(options, "kind", "simple");
    if (status == REDLATCH_OK) /* the end of the client leaves it to its lease, which ends before the next period */
        status = redlatch_options_set(options, "linger", "true");
    if (status == REDLATCH_OK)
        status = redlatch_client_open(NULL, NULL, &client);
    if (status == REDLATCH_OK)
        status = redlatch_lock_new(client, "cron:report", options, &lock);
    if (status == REDLATCH_OK)
        status = redlatch_lock_acquire(lock, REDLATCH_THREAD, 0, lease_ms, NULL);
    if (status == REDLATCH_TIMEOUT) {
        puts("skipped");
        status = REDLATCH_OK;
    } else if (status != REDLATCH_OK) {
        fprintf(stderr, "%s\n", redlatch_last_error());
    } else if (report(argv[1]) != 0) {
        perror("reports");
        redlatch_lock_release(lock, REDLATCH_THREAD); /* it did not run: the next host may */
        status = -1;
    } else {
        puts("ran"); /* not released: a host whose clock is late would run the job again */
    }
    redlatch_lock_free(lock);
    redlatch_client_close(client, REDLATCH_CLOSE_LIMIT);
    redlatch_client_free(client);
    redlatch_options_free(options);
    return status != REDLATCH_OK;
}
