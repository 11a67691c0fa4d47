package bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.stream.IntStream;
import io.netty.channel.nio.NioEventLoopGroup;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's locks, which the benchmark measures beside ours: rlock, fair, spin, read, multi; permits of a semaphore, with a lease or plain. Arguments and output: see benches/README.md. */
public final class Bench {
    static String peer = "rlock", workload = "W1", url = "redis://127.0.0.1:6379", tsFile = "", name = "bench";
    static double seconds = 5, warmup = 1.5;      // the JIT needs longer than 0.3 s
    static int tasks = 64, locks = 10000, id = 0, limit = 8, names = 8, clients = 1;
    static long leaseMs = 30000, csUs = 1000;
    static boolean barrier = false;
    static RedissonClient client;
    /** Which shares of all times are at most as long as each of the quantiles. */
    static final double[] SHARES = {0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1};

    /** One acquisition, and its release. */
    interface Held {
        void lock();

        void unlock();
    }

    static Held lockFor(String n) { return lockFor(client, n); }

    static Held lockFor(RedissonClient client, String n) {
        if (peer.equals("permits")) return permitFor(client, n);
        if (peer.equals("plain")) return plainPermitFor(client, n);
        RLock l = peer.equals("fair") ? client.getFairLock(n)
            : peer.equals("spin") ? client.getSpinLock(n)
            : peer.equals("read") ? client.getReadWriteLock(n).readLock()
            : peer.equals("multi") ? client.getMultiLock(IntStream.range(0, names).mapToObj(i -> client.getLock(n + ":" + i)).toArray(RLock[]::new))
            : client.getLock(n);
        return new Held() {
            public void lock() { l.lock(); }

            public void unlock() { l.unlock(); }
        };
    }

    static final Set<String> limited = ConcurrentHashMap.newKeySet();

    /** A permit with a lease: without one it stays taken when its program dies. */
    static Held permitFor(RedissonClient client, String n) {
        RPermitExpirableSemaphore s = client.getPermitExpirableSemaphore(n);
        if (limited.add(n)) s.trySetPermits(limit);
        return new Held() {
            String permit;

            public void lock() {
                try {
                    permit = s.acquire(leaseMs, TimeUnit.MILLISECONDS);
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            }

            public void unlock() { s.release(permit); }
        };
    }

    /** A permit without a lease. */
    static Held plainPermitFor(RedissonClient client, String n) {
        RSemaphore s = client.getSemaphore(n);
        if (limited.add(n)) s.trySetPermits(limit);
        return new Held() {
            public void lock() {
                try {
                    s.acquire();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            }

            public void unlock() { s.release(); }
        };
    }

    static double cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    static long statusKb(String field) throws IOException {
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
            if (line.startsWith(field + ":")) return Long.parseLong(line.trim().split("\\s+")[1]);
        }
        return 0;
    }

    static void out(String json) {
        System.out.println(json);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void readyGo() throws IOException {
        if (!barrier) return;
        System.out.println("READY");
        System.out.flush();
        if (new BufferedReader(new InputStreamReader(System.in)).readLine() == null) Runtime.getRuntime().halt(0);
    }

    static double pct(long[] sorted, int n, double q) {
        return n == 0 ? 0 : sorted[Math.min(n - 1, (int) (n * q))] / 1e3;
    }

    static String f(String fmt, Object... args) {
        return String.format(Locale.ROOT, fmt, args);
    }

    static void warm(String n) {
        long end = System.nanoTime() + (long) (warmup * 1e9);
        while (System.nanoTime() < end) {
            Held l = lockFor(n);
            l.lock();
            l.unlock();
        }
    }

    static void napUs(long us) {
        try {
            Thread.sleep(us / 1000, (int) (us % 1000) * 1000);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    static final class LongList {
        long[] a = new long[1 << 16];
        int n;

        void add(long v) {
            if (n == a.length) a = Arrays.copyOf(a, n * 2);
            a[n++] = v;
        }
    }

    public static void main(String[] argv) throws Exception {
        for (int i = 0; i < argv.length; i++) {
            String k = argv[i];
            if (k.equals("--barrier")) { barrier = true; continue; }
            String v = argv[++i];
            switch (k) {
                case "--peer": peer = v; break;
                case "--workload": workload = v; break;
                case "--url": url = v; break;
                case "--seconds": seconds = Double.parseDouble(v); break;
                case "--warmup": warmup = Double.parseDouble(v); break;
                case "--tasks": tasks = Integer.parseInt(v); break;
                case "--locks": locks = Integer.parseInt(v); break;
                case "--names": names = Integer.parseInt(v); break;
                case "--limit": limit = Integer.parseInt(v); break;
                case "--lease-ms": leaseMs = Long.parseLong(v); break;
                case "--cs-us": csUs = Long.parseLong(v); break;
                case "--clients": clients = Integer.parseInt(v); break;
                case "--id": id = Integer.parseInt(v); break;
                case "--ts-file": tsFile = v; break;
                case "--name": name = v; break;
                default: break;                    // --poll-ms and the like do not apply
            }
        }
        client = Redisson.create(config());
        switch (workload) {
            case "W1": w1(); break;
            case "W2": w24(false); break;
            case "W3": w3(); break;
            case "W4": w24(true); break;
            case "W5": w5(); break;
            default: out("{\"na\":\"unknown workload\"}");
        }
    }

    static Config config() {
        Config config = new Config();
        config.setLockWatchdogTimeout(leaseMs);    // lock() without a lease: the watchdog renews every third of this
        config.useSingleServer().setAddress(url);
        return config;
    }

    /** So many clients of this program: they share its threads, and have a connection for commands and one for messages each. */
    static List<RedissonClient> several() {
        NioEventLoopGroup loops = new NioEventLoopGroup(4);
        ExecutorService executor = Executors.newFixedThreadPool(16);
        List<RedissonClient> found = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            Config config = config();
            config.setEventLoopGroup(loops).setExecutor(executor);
            config.useSingleServer().setConnectionMinimumIdleSize(1).setConnectionPoolSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(1);
            found.add(Redisson.create(config));
        }
        return found;
    }

    static void w1() throws Exception {
        String n = name + ":1";
        warm(n);
        readyGo();
        LongList lat = new LongList();
        double c0 = cpu();
        long t0 = System.nanoTime(), t = t0, end = t0 + (long) (seconds * 1e9);
        while (t < end) {
            Held l = lockFor(n);
            l.lock();
            l.unlock();
            long u = System.nanoTime();
            lat.add(u - t);
            t = u;
        }
        double c = cpu() - c0;
        long[] s = Arrays.copyOf(lat.a, lat.n);
        Arrays.sort(s);
        StringBuilder quantiles = new StringBuilder();
        for (double q : SHARES) {
            quantiles.append(quantiles.length() == 0 ? "" : ",").append(f("%.2f", pct(s, lat.n, q)));
        }
        out(f("{\"pairs\":%d,\"seconds\":%.6f,\"p50_us\":%.2f,\"p99_us\":%.2f,\"max_us\":%.1f,\"cpu_s\":%.6f,\"quantiles_us\":[%s]}", lat.n,
            (t - t0) / 1e9, pct(s, lat.n, 0.5), pct(s, lat.n, 0.99), pct(s, lat.n, 1.0), c, quantiles));
    }

    static void w24(boolean w4) throws Exception {
        AtomicLongArray counts = new AtomicLongArray(tasks), since = new AtomicLongArray(tasks), max = new AtomicLongArray(tasks);
        LongList[] waits = new LongList[tasks];
        AtomicLong handoffs = new AtomicLong(), holder = new AtomicLong(-1);
        CountDownLatch ready = new CountDownLatch(tasks), go = new CountDownLatch(1);
        for (int i = 0; i < tasks; i++) {
            final int me = i;
            waits[i] = new LongList();
            Thread th = new Thread(null, () -> {
                String n = w4 ? name + ":one" : name + ":" + me;
                warm(n);
                ready.countDown();
                try {
                    go.await();
                } catch (InterruptedException e) {
                    return;
                }
                for (;;) {
                    long s = System.nanoTime();
                    if (w4) since.set(me, s);
                    Held l = lockFor(n);
                    l.lock();
                    if (w4) {
                        long d = System.nanoTime() - s;
                        since.set(me, 0);
                        if (d > max.get(me)) max.set(me, d);
                        if (holder.getAndSet(me) != me) handoffs.incrementAndGet();
                        synchronized (waits[me]) {
                            waits[me].add(d);
                        }
                    }
                    counts.incrementAndGet(me);
                    l.unlock();
                }
            }, "bench-" + i, 512 * 1024);
            th.setDaemon(true);
            th.start();
        }
        // A caller that still waits when the others have ended is woken by nobody. It goes on waiting.
        ready.await((long) ((warmup + 1) * 1e9), TimeUnit.NANOSECONDS);
        readyGo();
        double c0 = cpu();
        long t0 = System.nanoTime();
        go.countDown();
        Thread.sleep((long) (seconds * 1000));
        long t1 = System.nanoTime();
        double c = cpu() - c0, el = (t1 - t0) / 1e9, sum = 0, sq = 0;
        long mx = 0;
        LongList all = new LongList();
        for (int i = 0; i < tasks; i++) {
            double v = counts.get(i);
            sum += v;
            sq += v * v;
            long s = since.get(i);
            mx = Math.max(mx, Math.max(max.get(i), s > 0 ? t1 - s : 0));
            synchronized (waits[i]) {
                for (int j = 0; j < waits[i].n; j++) all.add(waits[i].a[j]);
            }
        }
        if (!w4) {
            out(f("{\"pairs\":%d,\"seconds\":%.6f,\"cpu_s\":%.6f,\"threads\":%d}", (long) sum, el, c, statusKb("Threads")));
        }
        long[] srt = Arrays.copyOf(all.a, all.n);
        Arrays.sort(srt);
        out(f("{\"acq\":%d,\"seconds\":%.6f,\"max_wait_ms\":%.3f,\"p99_wait_ms\":%.4f,\"jain\":%.4f,\"cpu_s\":%.6f,\"failed\":0,\"handoffs\":%d}", (long) sum, el,
            mx / 1e6, pct(srt, all.n, 0.99) / 1e3, sq > 0 ? sum * sum / (tasks * sq) : 0.0, c, handoffs.get()));
    }

    static void w3() throws Exception {
        String n = name + ":w3";
        warm(name + ":warm" + id);
        List<long[]> ts = new ArrayList<>();
        List<RedissonClient> all = clients == 1 ? List.of(client) : several();
        readyGo();
        double c0 = cpu();
        long t0 = System.nanoTime();
        for (int i = 0; i < all.size(); i++) {
            final int me = i;
            Thread th = new Thread(null, () -> {
                for (;;) {
                    Held l = lockFor(all.get(me), n);
                    l.lock();
                    long a = System.nanoTime();       // CLOCK_MONOTONIC on Linux, shared by the processes
                    napUs(csUs);
                    long b = System.nanoTime();
                    l.unlock();
                    long d = System.nanoTime();
                    synchronized (ts) {
                        ts.add(new long[] {a, b, d, me});
                    }
                }
            }, "bench-" + i, 512 * 1024);
            th.setDaemon(true);
            th.start();
        }
        Thread.sleep((long) (seconds * 1000));
        double c = cpu() - c0, el = (System.nanoTime() - t0) / 1e9;
        int count;
        synchronized (ts) {
            count = ts.size();
            try (PrintWriter w = new PrintWriter(Files.newBufferedWriter(Paths.get(tsFile)))) {
                for (long[] r : ts) w.println(r[0] + " " + r[1] + " " + r[2] + " " + r[3]);
            }
        }
        out(f("{\"acq\":%d,\"seconds\":%.6f,\"cpu_s\":%.6f,\"failed\":0,\"clients\":%d}", count, el, c, clients));
    }

    static void w5() throws Exception {
        if (peer.equals("permits")) out("{\"na\":\"no automatic renewal (manual updateLeaseTime() only)\"}");
        if (!peer.equals("rlock")) out("{\"na\":\"measured on rlock only\"}");
        warm(name + ":warm");
        System.gc();
        long rss0 = statusKb("VmRSS"), a0 = System.nanoTime();
        List<Held> held = new ArrayList<>(locks);
        for (int i = 0; i < locks; i++) {
            Held l = lockFor(name + ":" + i);
            l.lock();                             // no lease time: the watchdog renews it
            held.add(l);
        }
        double acq = (System.nanoTime() - a0) / 1e9;
        readyGo();
        double c0 = cpu();
        long t0 = System.nanoTime();
        Thread.sleep((long) (seconds * 1000));
        out(f("{\"locks\":%d,\"seconds\":%.3f,\"cpu_s\":%.6f,\"rss_before_kb\":%d,\"rss_after_kb\":%d,\"threads\":%d,\"acquire_s\":%.3f}", held.size(),
            (System.nanoTime() - t0) / 1e9, cpu() - c0, rss0, statusKb("VmRSS"), statusKb("Threads"), acq));
    }
}
