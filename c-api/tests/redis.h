/* Talks to the server of the test directly, to see and do what other clients could. */
#ifndef REDIS_H
#define REDIS_H

#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

/* The port in REDLATCH_URL; the test server is always on the loopback. */
static inline int server_port(void)
{
    const char *url = getenv("REDLATCH_URL");
    const char *colon = url == NULL ? NULL : strrchr(url, ':');
    if (colon == NULL) {
        printf("REDLATCH_URL names no server; run this by tests/run\n");
        exit(2);
    }
    return atoi(colon + 1);
}

/* One reply, flattened: a status, error or bulk string as it is, a number as digits, an array as its
 * elements separated by spaces, nil as "". */
static inline void read_reply(FILE *from, char *out, size_t size)
{
    char line[512];
    size_t used = 0;
    long length;

    out[0] = '\0';
    if (fgets(line, sizeof line, from) == NULL) {
        snprintf(out, size, "no answer");
        return;
    }
    line[strcspn(line, "\r")] = '\0';
    length = atol(line + 1);
    if (line[0] == '*') {
        for (long i = 0; i < length; i++) {
            char element[4096];
            read_reply(from, element, sizeof element);
            used += (size_t)snprintf(out + used, size - used, "%s%s", i == 0 ? "" : " ", element);
            if (used >= size)
                used = size - 1;
        }
    } else if (line[0] == '$' && length >= 0) {
        for (long i = 0; i < length + 2; i++) {
            int byte = getc(from);
            if (i < length && used + 1 < size)
                out[used++] = (char)byte;
        }
        out[used] = '\0';
    } else if (line[0] != '$') {
        snprintf(out, size, "%s", line + 1);
    }
}

/* Writes the URL of a place where nobody answers, and nobody else can: it is bound, and does not listen. The caller
 * closes what is returned. */
static inline int deaf(char *url, size_t size)
{
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&address, length) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    snprintf(url, size, "redis://127.0.0.1:%d", ntohs(address.sin_port));
    return fd;
}

/* redis("DEL", "name", NULL): one command on a connection of its own; the reply stays until the next. */
static inline const char *redis(const char *word, ...)
{
    static char reply[65536];
    struct sockaddr_in address = {0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    const char *words[16];
    size_t count = 0;
    FILE *stream;
    va_list rest;

    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)server_port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        printf("the server of the test does not answer\n");
        exit(2);
    }
    va_start(rest, word);
    for (; word != NULL && count < 16; word = va_arg(rest, const char *))
        words[count++] = word;
    va_end(rest);
    stream = fdopen(fd, "r+");
    fprintf(stream, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++)
        fprintf(stream, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    fflush(stream);
    read_reply(stream, reply, sizeof reply);
    fclose(stream);
    return reply;
}

static inline int redis_says(const char *wanted, const char *reply)
{
    if (strcmp(wanted, reply) != 0)
        printf("  the server says \"%s\", not \"%s\"\n", reply, wanted);
    return strcmp(wanted, reply) == 0;
}

static inline int exists(const char *key)
{
    return strcmp(redis("EXISTS", key, NULL), "1") == 0;
}

#endif
