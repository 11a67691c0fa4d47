/* floor.c - hand-written hiredis lock: the floor and the physical limits of the peer benchmark.
 *
 * --peer poll    SET key tok NX PX + EVALSHA compare-and-delete; waiters poll every --poll-us.
 * --peer pubsub  the same lock, but release also PUBLISHes in its script and waiters sleep on SUBSCRIBE.
 * --peer rwire   the command sequence of Redisson 4.7 RLock (hash + hold count, unlock latch key, PUBLISH,
 *                trailing DEL that is not waited for); waiters sleep on SUBSCRIBE.
 * --peer blpop   LIMIT: a token in a list, BLPOP = acquire, LPUSH = release. One command each, FIFO, the
 *                server wakes exactly one waiter.  No lease, so not a usable lock: a bound, not a design.
 * --peer rmin    the least that still interoperates with Redisson: same hash, same channel, no latch key (the latch is
 *                private to the caller's own retries), so 2 commands per pair.
 * --peer plain   the least that interoperates with Redisson's RSemaphore: a number of permits, two scripts, PUBLISH;
 *                waiters sleep on SUBSCRIBE. A permit has no lease, and a lost reply loses it.
 * --peer local   SET + EVALSHA behind an in-process FIFO queue: one connection, at most one contender per process.
 * --peer pipe    LIMIT for W2 and W5: one connection, all tasks' commands pipelined.
 * --peer rpipe | rminpipe   the same with the rwire / rmin commands (W2 only).
 *
 * Arguments and output: see ../../README.md.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { POLL, PUBSUB, RWIRE, RMIN, BLPOP, PIPE, LOCAL, PLAIN };

static const char *peer_s = "poll", *wl = "W1", *host = "127.0.0.1", *ts_file = NULL, *name_arg = "bench";
static int pipe_wire = POLL, peer = POLL, port = 6379, barrier = 0, tasks = 64, id_arg = 0, nlocks = 10000,
           lease_ms = 30000;
static int poll_us = 1000, cs_us = 1000, batch = 500, limit = 8;
static double seconds = 5, warmup = 0.3;
static long pairs = 0; /* W1: so many, instead of seconds */
static char sha_lock[64], sha_unlock[64], sha_renew[64];

static const char *L_UNLOCK =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";
static const char *L_UNLOCK_PUB = "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('del',KEYS[1]) "
                                  "redis.call('publish',KEYS[2],'0') return 1 end return 0";
static const char *L_RLOCK =
    "if redis.call('exists',KEYS[1])==0 or redis.call('hexists',KEYS[1],ARGV[2])==1 then "
    "redis.call('hincrby',KEYS[1],ARGV[2],1) redis.call('pexpire',KEYS[1],ARGV[1]) return nil end "
    "return redis.call('pttl',KEYS[1])";
static const char *L_RUNLOCK =
    "local v=redis.call('get',KEYS[3]) if v~=false then return tonumber(v) end "
    "if redis.call('hexists',KEYS[1],ARGV[3])==0 then return nil end "
    "local c=redis.call('hincrby',KEYS[1],ARGV[3],-1) "
    "if c>0 then redis.call('pexpire',KEYS[1],ARGV[2]) redis.call('set',KEYS[3],0,'px',ARGV[5]) return 0 end "
    "redis.call('del',KEYS[1]) redis.call(ARGV[4],KEYS[2],ARGV[1]) "
    "redis.call('set',KEYS[3],1,'px',ARGV[5]) return 1";
static const char *L_RMINUNLOCK = "if redis.call('hexists',KEYS[1],ARGV[2])==0 then return nil end "
                                  "local c=redis.call('hincrby',KEYS[1],ARGV[2],-1) "
                                  "if c>0 then redis.call('pexpire',KEYS[1],ARGV[1]) return 0 end "
                                  "redis.call('del',KEYS[1]) redis.call('publish',KEYS[2],'0') return 1";
static const char *L_TAKE = "local n=redis.call('get',KEYS[1]) if n and tonumber(n)>=tonumber(ARGV[1]) then "
                            "redis.call('decrby',KEYS[1],ARGV[1]) return 1 end return 0";
static const char *L_GIVE = "redis.call('publish',KEYS[2],redis.call('incrby',KEYS[1],ARGV[1])) return 1";
static const char *L_RENEW = "local n=0 for i=1,#KEYS do if redis.call('get',KEYS[i])==ARGV[i+1] then "
                             "n=n+redis.call('pexpire',KEYS[i],ARGV[1]) end end return n";

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *m)
{
    fprintf(stderr, "floor: %s\n", m);
    exit(2);
}

static void nap_us(long us)
{
    struct timespec t = {us / 1000000, (us % 1000000) * 1000L};
    nanosleep(&t, NULL);
}

static long status_kb(const char *field)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long v = 0;
    size_t n = strlen(field);
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, field, n) && line[n] == ':')
            v = atol(line + n + 1);
    if (f)
        fclose(f);
    return v;
}

static redisContext *conn(void)
{
    redisContext *c = redisConnect(host, port);
    if (!c || c->err)
        die(c ? c->errstr : "no context");
    return c;
}

static redisReply *cmd(redisContext *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = redisvCommand(c, fmt, ap);
    va_end(ap);
    if (!r)
        die(c->errstr);
    if (r->type == REDIS_REPLY_ERROR)
        die(r->str);
    return r;
}

static void load(redisContext *c, const char *lua, char *out)
{
    redisReply *r = cmd(c, "SCRIPT LOAD %s", lua);
    strcpy(out, r->str);
    freeReplyObject(r);
}

typedef struct {
    redisContext *c, *sub;
    char key[128], chan[160], tok[64], latch[200];
    int pending;
    uint64_t seq;
} Worker;

static void w_init(Worker *w, const char *key, int n)
{
    memset(w, 0, sizeof *w);
    if (peer != LOCAL)
        w->c = conn();
    snprintf(w->key, sizeof w->key, "%s", key);
    snprintf(w->chan, sizeof w->chan, "%s:{%s}", peer == PLAIN ? "redisson_sc" : "redisson_lock__channel", key);
    snprintf(w->tok, sizeof w->tok, "%08x-%04x-4000-8000-%012x:%d", getpid(), n, (unsigned)now_ns(), n);
}

static void drain_pending(Worker *w)
{
    while (w->pending > 0) {
        redisReply *r;
        if (redisGetReply(w->c, (void **)&r) != REDIS_OK)
            die("pending");
        freeReplyObject(r);
        w->pending--;
    }
}

static int try_lock(Worker *w)
{
    redisReply *r;
    int ok;
    if (peer == RWIRE || peer == RMIN) {
        drain_pending(w);
        r = cmd(w->c, "EVALSHA %s 1 %s %d %s", sha_lock, w->key, lease_ms, w->tok);
        ok = r->type == REDIS_REPLY_NIL;
    } else if (peer == PLAIN) {
        r = cmd(w->c, "EVALSHA %s 1 %s 1", sha_lock, w->key);
        ok = r->integer == 1;
    } else {
        r = cmd(w->c, "SET %s %s NX PX %d", w->key, w->tok, lease_ms);
        ok = r->type == REDIS_REPLY_STATUS;
    }
    freeReplyObject(r);
    return ok;
}

static void ensure_sub(Worker *w)
{
    if (w->sub)
        return;
    w->sub = conn();
    redisReply *r = cmd(w->sub, "SUBSCRIBE %s", w->chan);
    freeReplyObject(r);
}

static void wait_msg(Worker *w, int ms)
{ /* consume one wake-up (drains all that are buffered) */
    redisReply *r = NULL;
    int got = 0;
    while (redisGetReplyFromReader(w->sub, (void **)&r) == REDIS_OK && r) {
        freeReplyObject(r);
        r = NULL;
        got = 1;
    }
    if (got)
        return;
    struct pollfd p = {w->sub->fd, POLLIN, 0};
    if (poll(&p, 1, ms) > 0) {
        if (redisBufferRead(w->sub) != REDIS_OK)
            die("sub read");
        while (redisGetReplyFromReader(w->sub, (void **)&r) == REDIS_OK && r) {
            freeReplyObject(r);
            r = NULL;
        }
    }
}

/* --peer local: a FIFO ticket queue in front of one shared connection */
static struct {
    pthread_mutex_t m;
    pthread_cond_t *cv;
    uint64_t next, serving;
    int slots;
    redisContext *c;
} Q = {.m = PTHREAD_MUTEX_INITIALIZER};

static void q_init(int slots)
{
    Q.slots = slots;
    Q.cv = malloc(slots * sizeof *Q.cv);
    for (int i = 0; i < slots; i++)
        pthread_cond_init(&Q.cv[i], NULL);
    Q.c = conn();
}

static void q_enter(void)
{
    pthread_mutex_lock(&Q.m);
    uint64_t t = Q.next++;
    while (Q.serving != t)
        pthread_cond_wait(&Q.cv[t % Q.slots], &Q.m);
    pthread_mutex_unlock(&Q.m);
}

static void q_leave(void)
{
    pthread_mutex_lock(&Q.m);
    Q.serving++;
    pthread_cond_signal(&Q.cv[Q.serving % Q.slots]);
    pthread_mutex_unlock(&Q.m);
}

static void acquire(Worker *w)
{
    if (peer == LOCAL) {
        q_enter();
        w->c = Q.c;
        while (!try_lock(w))
            nap_us(poll_us);
        return;
    }
    if (peer == BLPOP) {
        redisReply *r = cmd(w->c, "BLPOP %s 0", w->key);
        freeReplyObject(r);
        return;
    }
    if (try_lock(w))
        return;
    if (peer == POLL || peer == PIPE) {
        do
            nap_us(poll_us);
        while (!try_lock(w));
        return;
    }
    ensure_sub(w);
    while (!try_lock(w))
        wait_msg(w, lease_ms);
}

static void release(Worker *w)
{
    redisReply *r;
    if (peer == BLPOP)
        r = cmd(w->c, "LPUSH %s 1", w->key);
    else if (peer == RWIRE) {
        snprintf(w->latch, sizeof w->latch, "redisson_unlock_latch:{%s}:%016llx%016llx", w->key,
                 (unsigned long long)getpid(), (unsigned long long)++w->seq);
        r = cmd(w->c, "EVALSHA %s 3 %s %s %s 0 %d %s publish 20000", sha_unlock, w->key, w->chan, w->latch, lease_ms,
                w->tok);
        redisAppendCommand(w->c, "DEL %s", w->latch);
        int done = 0;
        redisBufferWrite(w->c, &done); /* fire and forget, as Redisson does */
        w->pending++;
    } else if (peer == RMIN)
        r = cmd(w->c, "EVALSHA %s 2 %s %s %d %s", sha_unlock, w->key, w->chan, lease_ms, w->tok);
    else if (peer == PLAIN)
        r = cmd(w->c, "EVALSHA %s 2 %s %s 1", sha_unlock, w->key, w->chan);
    else if (peer == PUBSUB)
        r = cmd(w->c, "EVALSHA %s 2 %s %s %s", sha_unlock, w->key, w->chan, w->tok);
    else
        r = cmd(w->c, "EVALSHA %s 1 %s %s", sha_unlock, w->key, w->tok);
    freeReplyObject(r);
    if (peer == LOCAL)
        q_leave();
}

static void setup_scripts(void)
{
    redisContext *c = conn();
    int k = peer == PIPE ? pipe_wire : peer;
    load(c,
         k == RWIRE    ? L_RUNLOCK
         : k == RMIN   ? L_RMINUNLOCK
         : k == PUBSUB ? L_UNLOCK_PUB
         : k == PLAIN  ? L_GIVE
                       : L_UNLOCK,
         sha_unlock);
    if (k == RWIRE || k == RMIN || k == PLAIN)
        load(c, k == PLAIN ? L_TAKE : L_RLOCK, sha_lock);
    load(c, L_RENEW, sha_renew);
    redisFree(c);
}

static void seed_token(const char *key)
{ /* BLPOP limit: exactly one token per name; plain: the permits */
    if (peer != BLPOP && peer != PLAIN)
        return;
    redisContext *c = conn();
    if (peer == PLAIN)
        freeReplyObject(cmd(c, "SET %s %d NX", key, limit));
    else
        freeReplyObject(cmd(
            c, "EVAL %s 1 %s",
            "if redis.call('set',KEYS[1]..':seed','1','NX') then redis.call('lpush',KEYS[1],'1') end return 1", key));
    redisFree(c);
}

static void ready_go(void)
{
    if (!barrier)
        return;
    printf("READY\n");
    fflush(stdout);
    char b[128];
    if (!fgets(b, sizeof b, stdin))
        exit(0);
}

static int cmp64(const void *a, const void *b)
{
    int64_t x = *(int64_t *)a, y = *(int64_t *)b;
    return (x > y) - (x < y);
}

static void na(const char *why)
{
    printf("{\"na\":\"%s\"}\n", why);
    exit(0);
}

/* ---------- W1 ---------- */
static const double SHARES[] = {0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1};

static void w1(void)
{
    Worker w;
    char key[128];
    snprintf(key, sizeof key, "%s:1", name_arg);
    seed_token(key);
    w_init(&w, key, 0);
    int64_t end = now_ns() + (int64_t)(warmup * 1e9);
    while (now_ns() < end) {
        acquire(&w);
        release(&w);
    }
    ready_go();
    size_t cap = 1 << 22, n = 0;
    int64_t *lat = malloc(cap * 8);
    double c0 = cpu_s();
    int64_t t0 = now_ns(), t = t0;
    end = t0 + (int64_t)(seconds * 1e9);
    while ((pairs ? n < (size_t)pairs : t < end) && n < cap) {
        acquire(&w);
        release(&w);
        int64_t u = now_ns();
        lat[n++] = u - t;
        t = u;
    }
    double c1 = cpu_s(), el = (t - t0) / 1e9;
    qsort(lat, n, 8, cmp64);
    printf("{\"pairs\":%zu,\"seconds\":%.6f,\"p50_us\":%.2f,\"p99_us\":%.2f,\"max_us\":%.1f,\"cpu_s\":%.6f,\"quantiles_"
           "us\":[",
           n, el, lat[n / 2] / 1e3, lat[n * 99 / 100] / 1e3, lat[n - 1] / 1e3, c1 - c0);
    for (size_t i = 0; i < sizeof SHARES / sizeof *SHARES; i++)
        printf("%s%.2f", i ? "," : "", lat[(size_t)((n - 1) * SHARES[i] + 0.5)] / 1e3);
    printf("]}\n");
    fflush(stdout);
    _exit(0);
}

/* ---------- W2, W4 ---------- */
static volatile int started = 0, warm = 0;
static atomic_int nready;
static _Atomic uint64_t handoffs;
static _Atomic int holder = -1;

typedef struct {
    Worker w;
    int me;
    _Atomic uint64_t n;
    _Atomic int64_t since;
    _Atomic int64_t maxw;
    int64_t *waits;
    size_t nw;
} Task;

static Task *T;

static void *task_main(void *a)
{
    Task *t = a;
    int64_t end = now_ns() + (int64_t)(warmup * 1e9);
    while (now_ns() < end) {
        acquire(&t->w);
        release(&t->w);
    }
    atomic_fetch_add(&nready, 1);
    while (!started)
        nap_us(500);
    int w4 = !strcmp(wl, "W4");
    for (;;) {
        if (w4) {
            int64_t s = now_ns();
            atomic_store(&t->since, s);
            acquire(&t->w);
            int64_t d = now_ns() - s;
            if (d > atomic_load(&t->maxw))
                atomic_store(&t->maxw, d);
            if (t->nw < 65536)
                t->waits[t->nw++] = d;
            atomic_fetch_add(&t->n, 1);
            if (atomic_exchange(&holder, t->me) != t->me)
                atomic_fetch_add(&handoffs, 1);
            release(&t->w);
        } else {
            acquire(&t->w);
            release(&t->w);
            atomic_fetch_add(&t->n, 1);
        }
    }
    return NULL;
}

static void w2pipe(void)
{ /* one connection, `tasks` commands in flight at all times */

    enum { LOCKED, UNLOCKED, DELETED };

    redisContext *c = conn();
    char **fs = malloc(tasks * sizeof *fs), **fu = malloc(tasks * sizeof *fu), **fd = malloc(tasks * sizeof *fd);
    int *ls = malloc(tasks * sizeof(int)), *lu = malloc(tasks * sizeof(int)), *ld = malloc(tasks * sizeof(int)),
        cap = tasks * 4, head = 0, tail = 0;

    struct {
        int task, kind;
    } *q = malloc(cap * sizeof *q);

#define SEND(i, f, l, k)                                                                                               \
    do {                                                                                                               \
        redisAppendFormattedCommand(c, f[i], l[i]);                                                                    \
        q[tail].task = (i);                                                                                            \
        q[tail].kind = (k);                                                                                            \
        tail = (tail + 1) % cap;                                                                                       \
    } while (0)
    for (int i = 0; i < tasks; i++) {
        char key[64], tok[64], ch[128], la[160];
        snprintf(key, sizeof key, "%s:%d", name_arg, i);
        snprintf(tok, sizeof tok, "%08x-0000-4000-8000-000000000000:%d", getpid(), i);
        snprintf(ch, sizeof ch, "redisson_lock__channel:{%s}", key);
        snprintf(la, sizeof la, "redisson_unlock_latch:{%s}:%032x", key, i);
        if (pipe_wire == POLL) {
            ls[i] = redisFormatCommand(&fs[i], "SET %s %s NX PX %d", key, tok, lease_ms);
            lu[i] = redisFormatCommand(&fu[i], "EVALSHA %s 1 %s %s", sha_unlock, key, tok);
            continue;
        }
        ls[i] = redisFormatCommand(&fs[i], "EVALSHA %s 1 %s %d %s", sha_lock, key, lease_ms, tok);
        if (pipe_wire == RMIN) {
            lu[i] = redisFormatCommand(&fu[i], "EVALSHA %s 2 %s %s %d %s", sha_unlock, key, ch, lease_ms, tok);
            continue;
        }
        lu[i] = redisFormatCommand(&fu[i], "EVALSHA %s 3 %s %s %s 0 %d %s publish 20000", sha_unlock, key, ch, la,
                                   lease_ms, tok);
        ld[i] = redisFormatCommand(&fd[i], "DEL %s", la);
    }
    for (int i = 0; i < tasks; i++)
        SEND(i, fs, ls, LOCKED);
    int64_t end = now_ns() + (int64_t)(warmup * 1e9), t0 = 0;
    double c0 = 0;
    uint64_t n = 0;
    int phase = 0;
    for (;;) {
        for (int m = 0; m < tasks; m++) {
            redisReply *r;
            if (redisGetReply(c, (void **)&r) != REDIS_OK)
                die(c->errstr);
            int i = q[head].task, k = q[head].kind;
            head = (head + 1) % cap;
            if (r->type == REDIS_REPLY_ERROR ||
                (k == LOCKED && (pipe_wire == POLL) != (r->type == REDIS_REPLY_STATUS)) ||
                (k == UNLOCKED && (r->type != REDIS_REPLY_INTEGER || r->integer != 1)))
                die("unexpected reply");
            freeReplyObject(r);
            if (k == LOCKED)
                SEND(i, fu, lu, UNLOCKED);
            else if (k == UNLOCKED) {
                n++;
                if (pipe_wire == RWIRE)
                    SEND(i, fd, ld, DELETED);
                SEND(i, fs, ls, LOCKED);
            }
        }
        int64_t t = now_ns();
        if (t >= end) {
            if (phase == 0) {
                ready_go();
                phase = 1;
                t0 = now_ns();
                end = t0 + (int64_t)(seconds * 1e9);
                c0 = cpu_s();
                n = 0;
            } else {
                printf("{\"pairs\":%llu,\"seconds\":%.6f,\"cpu_s\":%.6f,\"threads\":1}\n", (unsigned long long)n,
                       (t - t0) / 1e9, cpu_s() - c0);
                fflush(stdout);
                _exit(0);
            }
        }
    }
}

static void w24(void)
{
    int w4 = !strcmp(wl, "W4");
    char key[128];
    if (!w4 && peer == PIPE) {
        w2pipe();
        return;
    }
    if (w4 && peer == PIPE)
        na("pipe is a W2/W5 limit");
    T = calloc(tasks, sizeof *T);
    for (int i = 0; i < tasks; i++) {
        if (w4)
            snprintf(key, sizeof key, "%s:one", name_arg);
        else
            snprintf(key, sizeof key, "%s:%d", name_arg, i);
        seed_token(key);
        w_init(&T[i].w, key, i);
        T[i].me = i;
        T[i].waits = malloc(65536 * 8);
        pthread_t th;
        pthread_attr_t at;
        pthread_attr_init(&at);
        pthread_attr_setstacksize(&at, 256 * 1024);
        if (pthread_create(&th, &at, task_main, &T[i]))
            die("pthread_create");
    }
    /* A caller that still waits when the others have ended is woken by nobody. It goes on waiting. */
    int64_t last = now_ns() + (int64_t)((warmup + 1) * 1e9);
    while (atomic_load(&nready) < tasks && now_ns() < last)
        nap_us(1000);
    ready_go();
    double c0 = cpu_s();
    int64_t t0 = now_ns();
    started = 1;
    nap_us((long)(seconds * 1e6));
    uint64_t n = 0;
    double s1 = 0, s2 = 0;
    int64_t t1 = now_ns(), mx = 0;
    double c1 = cpu_s();
    size_t tot = 0;
    for (int i = 0; i < tasks; i++)
        tot += T[i].nw;
    int64_t *all = malloc((tot + 64) * 8 + 8);
    size_t k = 0;
    for (int i = 0; i < tasks; i++) {
        uint64_t v = atomic_load(&T[i].n);
        n += v;
        s1 += v;
        s2 += (double)v * v;
        int64_t m = atomic_load(&T[i].maxw), cur = t1 - atomic_load(&T[i].since);
        if (w4 && cur > m)
            m = cur;
        if (m > mx)
            mx = m;
        size_t lim = T[i].nw;
        for (size_t j = 0; j < lim && k < tot; j++)
            all[k++] = T[i].waits[j];
    }
    qsort(all, k, 8, cmp64);
    if (w4)
        printf("{\"acq\":%llu,\"seconds\":%.6f,\"max_wait_ms\":%.2f,\"p99_wait_ms\":%.3f,\"jain\":%.4f,\"cpu_s\":%.6f,"
               "\"handoffs\":%llu}\n",
               (unsigned long long)n, (t1 - t0) / 1e9, mx / 1e6, k ? all[k * 99 / 100] / 1e6 : 0,
               s2 > 0 ? s1 * s1 / (tasks * s2) : 0, c1 - c0, (unsigned long long)atomic_load(&handoffs));
    else
        printf("{\"pairs\":%llu,\"seconds\":%.6f,\"cpu_s\":%.6f,\"threads\":%ld}\n", (unsigned long long)n,
               (t1 - t0) / 1e9, c1 - c0, status_kb("Threads"));
    fflush(stdout);
    _exit(0);
}

/* ---------- W3 ---------- */
static void w3(void)
{
    if (peer == PIPE)
        na("pipe is a W2/W5 limit");
    Worker w;
    char key[128];
    snprintf(key, sizeof key, "%s:w3", name_arg);
    seed_token(key);
    w_init(&w, key, id_arg);
    if (peer == PUBSUB || peer == RWIRE || peer == RMIN)
        ensure_sub(&w);
    char own[160];
    snprintf(own, sizeof own, "%s:warm%d", name_arg, id_arg);
    Worker x;
    seed_token(own);
    w_init(&x, own, 1000 + id_arg);
    int64_t end = now_ns() + (int64_t)(warmup * 1e9);
    while (now_ns() < end) {
        acquire(&x);
        release(&x);
    }
    size_t cap = 1 << 20, n = 0;
    int64_t *ts = malloc(cap * 24);
    ready_go();
    double c0 = cpu_s();
    int64_t t0 = now_ns();
    end = t0 + (int64_t)(seconds * 1e9);
    while (n < cap) {
        acquire(&w);
        int64_t a = now_ns();
        if (cs_us)
            nap_us(cs_us);
        int64_t b = now_ns();
        release(&w);
        int64_t d = now_ns();
        ts[n * 3] = a;
        ts[n * 3 + 1] = b;
        ts[n * 3 + 2] = d;
        n++;
        if (d >= end)
            break;
    }
    double c1 = cpu_s();
    FILE *f = fopen(ts_file, "w");
    if (!f)
        die("ts file");
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%lld %lld %lld\n", (long long)ts[i * 3], (long long)ts[i * 3 + 1], (long long)ts[i * 3 + 2]);
    fclose(f);
    printf("{\"acq\":%zu,\"seconds\":%.6f,\"cpu_s\":%.6f}\n", n, (now_ns() - t0) / 1e9, c1 - c0);
    fflush(stdout);
    _exit(0);
}

/* ---------- W5 ---------- */
static void w5(void)
{
    if (peer != PIPE)
        na("no auto-renewal in this variant");
    redisContext *c = conn();
    long rss0 = status_kb("VmRSS");
    int64_t a0 = now_ns();
    char (*keys)[40] = malloc(nlocks * 40), (*toks)[48] = malloc(nlocks * 48);
    for (int i = 0; i < nlocks; i++) {
        snprintf(keys[i], 40, "%s:%d", name_arg, i);
        snprintf(toks[i], 48, "%08x-0000-4000-8000-00000000:%d", getpid(), i);
    }
    for (int i = 0; i < nlocks;) {
        int b = 0;
        for (; b < 500 && i < nlocks; b++, i++)
            redisAppendCommand(c, "SET %s %s NX PX %d", keys[i], toks[i], lease_ms);
        while (b--) {
            redisReply *r;
            redisGetReply(c, (void **)&r);
            freeReplyObject(r);
        }
    }
    double acq = (now_ns() - a0) / 1e9;
    const char **av = malloc((batch * 2 + 8) * sizeof *av);
    char nk[16], ls[16];
    snprintf(ls, sizeof ls, "%d", lease_ms);
    int lost = 0;
    int64_t period = lease_ms / 3 * 1000000LL;
    ready_go();
    double c0 = cpu_s();
    int64_t t0 = now_ns(), end = t0 + (int64_t)(seconds * 1e9), next = a0 + period;
    while (now_ns() < end) {
        int64_t t = now_ns();
        int64_t until = next < end ? next : end;
        if (until > t)
            nap_us((until - t) / 1000);
        if (now_ns() < next)
            continue;
        next += period;
        for (int i = 0; i < nlocks; i += batch) { /* one EVALSHA per `batch` locks */
            int b = nlocks - i < batch ? nlocks - i : batch, k = 0;
            snprintf(nk, sizeof nk, "%d", b);
            av[k++] = "EVALSHA";
            av[k++] = sha_renew;
            av[k++] = nk;
            for (int j = 0; j < b; j++)
                av[k++] = keys[i + j];
            av[k++] = ls;
            for (int j = 0; j < b; j++)
                av[k++] = toks[i + j];
            redisReply *r = redisCommandArgv(c, k, av, NULL);
            if (!r || r->type != REDIS_REPLY_INTEGER)
                die("renew");
            lost += b - (int)r->integer;
            freeReplyObject(r);
        }
    }
    printf("{\"locks\":%d,\"seconds\":%.3f,\"cpu_s\":%.6f,\"rss_before_kb\":%ld,\"rss_after_kb\":%ld,\"threads\":%ld,"
           "\"acquire_s\":%.3f,\"client_lost\":%d}\n",
           nlocks, (now_ns() - t0) / 1e9, cpu_s() - c0, rss0, status_kb("VmRSS"), status_kb("Threads"), acq, lost);
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *a = argv[i];
        if (!strcmp(a, "--barrier")) {
            barrier = 1;
            continue;
        }
        if (i + 1 >= argc)
            die("argument without a value");
        char *v = argv[++i];
        if (!strcmp(a, "--peer"))
            peer_s = v;
        else if (!strcmp(a, "--workload"))
            wl = v;
        else if (!strcmp(a, "--url")) {
            char h[64];
            int p;
            if (sscanf(v, "redis://%63[^:]:%d", h, &p) == 2) {
                host = strdup(h);
                port = p;
            }
        } else if (!strcmp(a, "--seconds"))
            seconds = atof(v);
        else if (!strcmp(a, "--warmup"))
            warmup = atof(v);
        else if (!strcmp(a, "--tasks"))
            tasks = atoi(v);
        else if (!strcmp(a, "--id"))
            id_arg = atoi(v);
        else if (!strcmp(a, "--ts-file"))
            ts_file = v;
        else if (!strcmp(a, "--name"))
            name_arg = v;
        else if (!strcmp(a, "--locks"))
            nlocks = atoi(v);
        else if (!strcmp(a, "--lease-ms"))
            lease_ms = atoi(v);
        else if (!strcmp(a, "--cs-us"))
            cs_us = atoi(v);
        else if (!strcmp(a, "--poll-ms"))
            poll_us = (int)(atof(v) * 1000);
        else if (!strcmp(a, "--pairs"))
            pairs = atol(v);
        else if (!strcmp(a, "--limit"))
            limit = atoi(v);
        else if (!strcmp(a, "--batch"))
            batch = atoi(v);
    }
    peer = !strcmp(peer_s, "pubsub")  ? PUBSUB
           : !strcmp(peer_s, "rwire") ? RWIRE
           : !strcmp(peer_s, "blpop") ? BLPOP
           : !strcmp(peer_s, "rmin")  ? RMIN
           : !strcmp(peer_s, "local") ? LOCAL
           : !strcmp(peer_s, "plain") ? PLAIN
           : strstr(peer_s, "pipe")   ? PIPE
                                      : POLL;
    if (!strcmp(peer_s, "rpipe"))
        pipe_wire = RWIRE;
    if (!strcmp(peer_s, "rminpipe"))
        pipe_wire = RMIN;
    setup_scripts();
    if (peer == LOCAL) {
        if (strcmp(wl, "W4"))
            na("only W4 has in-process contention");
        q_init(tasks + 1);
    }
    if (!strcmp(wl, "W1")) {
        if (peer == PIPE)
            na("pipe is a W2/W5 limit");
        w1();
    } else if (!strcmp(wl, "W2") || !strcmp(wl, "W4"))
        w24();
    else if (!strcmp(wl, "W3"))
        w3();
    else if (!strcmp(wl, "W5"))
        w5();
    na("unknown workload");
}
