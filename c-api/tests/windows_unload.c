/* A program for Windows that frees the library while its threads run, as plug-ins do. It is not linked with it, for then the
 * system would keep it anyway. scripts/test-platforms runs it beside redlatch.dll, with the server in REDLATCH_URL. */
#include <redlatch.h>
#include <stdio.h>
#include <windows.h>

typedef redlatch_status (*open_function)(const char *, const redlatch_options *, redlatch_client **);
typedef redlatch_status (*close_function)(redlatch_client *, int64_t);
typedef void (*free_function)(redlatch_client *);

/* By way of void *, as compilers ask where the types of functions differ. */
#define FIND(type, name) ((type)(void *)GetProcAddress(library, name))

int main(void)
{
    HMODULE library = LoadLibraryA("redlatch.dll");
    open_function open = FIND(open_function, "redlatch_client_open");
    close_function close = FIND(close_function, "redlatch_client_close");
    free_function free_client = FIND(free_function, "redlatch_client_free");
    redlatch_client *client = NULL;

    if (library == NULL || open == NULL || close == NULL || free_client == NULL || open(NULL, NULL, &client) != REDLATCH_OK) {
        puts("there is no library with a server to use");
        return 1;
    }
    FreeLibrary(library);
    if (GetModuleHandleA("redlatch.dll") != library) {
        puts("the library was unloaded");
        return 1;
    }
    if (close(client, REDLATCH_CLOSE_LIMIT) != REDLATCH_OK) {
        puts("the client does not close");
        return 1;
    }
    free_client(client);
    return 0;
}
