/* The flash sale with threads; see examples/README.md.
 *
 * flash_sale SHOP WORKERS [--without-lock], with the server in REDLATCH_URL
 * cc flash_sale.c $(pkg-config --cflags --libs redlatch) -lpthread */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <redlatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST_WORKERS 64

static const char *shop;
static redlatch_lock *lock; /* NULL: sell without */

static FILE *open_in_shop(const char *file, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", shop, file);
    return fopen(path, mode);
}

/* Sells one item. 1: sold, 0: the stock is empty, -1: a file failed. Correct only while nobody
 * else does the same. */
static int sell(void)
{
    const struct timespec payment = {0, 1000000};
    int left = -1;
    FILE *stock = open_in_shop("stock", "r+");
    FILE *orders;

    if (stock == NULL)
        return -1;
    if (fscanf(stock, "%d", &left) != 1 || left <= 0) {
        fclose(stock);
        return left == 0 ? 0 : -1;
    }
    nanosleep(&payment, NULL);
    rewind(stock);
    fprintf(stock, "%04d", left - 1);
    if (fclose(stock) != 0)
        return -1;
    orders = open_in_shop("orders", "a");
    if (orders == NULL)
        return -1;
    fputs("c\n", orders);
    return fclose(orders) == 0 ? 1 : -1;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, redlatch_last_error());
    return -1;
}

static void *work(void *unused)
{
    int sold = 1;
    (void)unused;
    while (sold > 0) {
        if (lock != NULL && redlatch_lock_acquire(lock, REDLATCH_THREAD, REDLATCH_FOREVER, 0, NULL) != 0) {
            sold = failed("acquire");
            break;
        }
        sold = sell();
        if (lock != NULL && redlatch_lock_release(lock, REDLATCH_THREAD) != 0)
            sold = failed("release");
    }
    return sold < 0 ? &shop : NULL;
}

int main(int argc, char **argv)
{
    redlatch_client *client = NULL;
    redlatch_options *options = NULL;
    pthread_t threads[MOST_WORKERS];
    int workers = argc > 2 ? atoi(argv[2]) : 0;
    int worker, status = 0;

    if (workers < 1 || workers > MOST_WORKERS) {
        fprintf(stderr, "usage: flash_sale SHOP WORKERS [--without-lock]\n");
        return 2;
    }
    shop = argv[1];
    /* Workers of all programs have their turn in the order in which they come. */
    if (redlatch_options_new(&options) != 0 || redlatch_options_set(options, "kind", "fair") != 0 ||
        redlatch_client_open(NULL, NULL, &client) != 0 ||
        (argc == 3 && redlatch_lock_new(client, "flash-sale", options, &lock) != 0)) {
        failed("open");
        return 1;
    }
    redlatch_options_free(options);
    puts("ready"); /* the sale begins for everybody at once */
    fflush(stdout);
    getchar();

    for (worker = 0; worker < workers; worker++)
        if (pthread_create(&threads[worker], NULL, work, NULL) != 0)
            return 1;
    for (worker = 0; worker < workers; worker++) {
        void *result = NULL;
        pthread_join(threads[worker], &result);
        if (result != NULL)
            status = 1;
    }
    redlatch_lock_free(lock);
    redlatch_client_close(client, 5000);
    redlatch_client_free(client);
    return status;
}
