// The conformance driver for Redisson; see conformance/README.md for the protocol.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.SubscriptionMode;

public final class Driver {
    private static final String QUORUM = "redis+quorum://";
    private static final String VERSION = Redisson.class.getPackage().getImplementationVersion();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Map<String, RedissonClient> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, RedissonClient> SHARED = new ConcurrentHashMap<>();
    /** Clients of rows with fencing: their locks are fenced ones. */
    private static final Set<String> FENCED = ConcurrentHashMap.newKeySet();
    /** Clients whose locks are fair ones. */
    private static final Set<String> FAIR = ConcurrentHashMap.newKeySet();
    /** The clients of the servers of each quorum. */
    private static final Map<String, List<RedissonClient>> QUORUMS = new ConcurrentHashMap<>();
    /** One thread per actor and name of a thread: Redisson's owner is the thread. */
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();
    private static final Map<String, Future<?>> RUNNING = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, String> request = Json.parse(line);
            if (request.get("op").equals("cancel")) {
                Future<?> target = RUNNING.get(request.get("target"));
                boolean cancelled = target != null && target.cancel(true);
                answer(request, status(cancelled ? "ok" : "not_found"));
                continue;
            }
            String thread = request.getOrDefault("client", "") + "/" + request.getOrDefault("as", "main");
            ExecutorService executor = THREADS.computeIfAbsent(thread, name -> Executors.newSingleThreadExecutor());
            RUNNING.put(request.get("id"), executor.submit(() -> perform(request)));
        }
        System.exit(0);
    }

    private static void perform(Map<String, String> request) {
        Map<String, Object> reply;
        try {
            reply = run(request);
        } catch (InterruptedException e) {
            reply = status("cancelled");
        } catch (Throwable e) {
            // The cause is named in the text: old multi locks wrap it. 3.27 fails with a NullPointerException of its own when a
            // script gets an error from the server.
            String text = String.valueOf(e);
            boolean notOwner = text.contains("IllegalMonitorStateException");
            boolean stumbled = VERSION.startsWith("3.27.") && e.getCause() instanceof NullPointerException;
            boolean foreign = text.contains("WRONGTYPE") || stumbled;
            reply = status(notOwner ? "not_owner" : foreign ? "foreign_kind" : "error");
            reply.put("text", text);
        }
        RUNNING.remove(request.get("id"));
        answer(request, reply);
    }

    private static Map<String, Object> run(Map<String, String> request) throws Exception {
        String op = request.get("op");
        if (op.equals("hello")) {
            Map<String, Object> reply = status("ok");
            reply.put("language", "java");
            reply.put("version", VERSION);
            return reply;
        }
        if (op.equals("open") && request.get("url").startsWith(QUORUM)) {
            QUORUMS.put(request.get("client"), openQuorum(request));
            return status("ok");
        }
        if (op.equals("open")) {
            CLIENTS.put(request.get("client"), open(request));
            if ("true".equals(request.get("fencing"))) {
                FENCED.add(request.get("client"));
            }
            if ("fair".equals(request.get("kind"))) {
                FAIR.add(request.get("client"));
            }
            return status("ok");
        }
        RedissonClient client = CLIENTS.get(request.get("client"));
        if (op.equals("close")) {
            // Shared clients stay: the lock of a row is released by its own steps.
            CLIENTS.remove(request.get("client"));
            FENCED.remove(request.get("client"));
            FAIR.remove(request.get("client"));
            if (!SHARED.containsValue(client)) {
                client.shutdown(0, 2, TimeUnit.SECONDS);
            }
            return status("ok");
        }
        if (request.containsKey("limit")) {
            return Permits.run(client, request);
        }
        if (request.containsKey("counter")) {
            return Counters.run(client, request);
        }
        Map<String, Object> reply = status("ok");
        RFencedLock fenced = FENCED.contains(request.get("client")) ? client.getFencedLock(request.get("lock")) : null;
        List<RedissonClient> quorum = QUORUMS.get(request.get("client"));
        RLock lock = fenced != null ? fenced : quorum != null ? redLock(quorum, request) : lockOf(client, request);
        switch (op) {
            case "acquire":
                if (fenced != null) {
                    Long token = acquireFenced(fenced, request);
                    reply.put("token", token);
                    return token != null ? reply : status("timeout");
                }
                return status(acquire(lock, request) ? "ok" : "timeout");
            case "release":
                lock.unlock();
                return reply;
            case "force":
                reply.put("value", lock.forceUnlock());
                return reply;
            case "held":
                reply.put("value", lock.isHeldByCurrentThread());
                return reply;
            case "locked":
                reply.put("value", lock.isLocked());
                return reply;
            case "count":
                reply.put("value", lock.getHoldCount());
                return reply;
            default:
                return status("unsupported");
        }
    }

    /** The lock of one name on several servers, of which most are enough. */
    @SuppressWarnings("deprecation")
    private static RLock redLock(List<RedissonClient> quorum, Map<String, String> request) {
        return new RedissonRedLock(quorum.stream().map(client -> client.getLock(request.get("lock"))).toArray(RLock[]::new));
    }

    /** The lock itself, or one side of the read-write lock of that name, or the multi lock. */
    private static RLock lockOf(RedissonClient client, Map<String, String> request) {
        String name = request.get("lock");
        if (request.containsKey("multi")) {
            return client.getMultiLock(Stream.of(name.split(",")).map(client::getLock).toArray(RLock[]::new));
        }
        String side = request.get("side");
        if (side == null) {
            return isFair(request) ? client.getFairLock(name) : client.getLock(name);
        }
        RReadWriteLock both = client.getReadWriteLock(name);
        return side.equals("read") ? both.readLock() : both.writeLock();
    }

    private static boolean isFair(Map<String, String> request) {
        return FAIR.contains(request.get("client"));
    }

    private static boolean acquire(RLock lock, Map<String, String> request) throws InterruptedException {
        long lease = Long.parseLong(request.getOrDefault("lease_ms", "-1"));
        String wait = request.get("wait_ms");
        if ("0".equals(wait) && lease < 0 && isFair(request)) {
            // With a time, even with none, a fair lock queues.
            return lock.tryLock();
        }
        if (wait != null) {
            return lock.tryLock(Long.parseLong(wait), lease, TimeUnit.MILLISECONDS);
        }
        lock.lockInterruptibly(lease, TimeUnit.MILLISECONDS);
        return true;
    }

    /** The token, or null if the lock was not acquired in time. */
    private static Long acquireFenced(RFencedLock lock, Map<String, String> request) {
        String wait = request.get("wait_ms");
        if (wait == null) {
            return lock.lockAndGetToken();
        }
        long lease = Long.parseLong(request.getOrDefault("lease_ms", "-1"));
        return lock.tryLockAndGetToken(Long.parseLong(wait), lease, TimeUnit.MILLISECONDS);
    }

    /** Clients are dear in Java: rows share one per role and watchdog unless they ask for their own. */
    private static RedissonClient open(Map<String, String> request) {
        if (request.containsKey("private")) {
            return create(request);
        }
        String role = request.get("role") + "/" + request.get("watchdog_ms");
        return SHARED.computeIfAbsent(role, ignored -> create(request));
    }

    /** One client for each server. */
    private static List<RedissonClient> openQuorum(Map<String, String> request) {
        List<RedissonClient> clients = new ArrayList<>();
        for (String server : request.get("url").substring(QUORUM.length()).split(",")) {
            Map<String, String> one = new LinkedHashMap<>(request);
            one.put("url", "redis://" + server);
            clients.add(create(one));
        }
        return clients;
    }

    private static RedissonClient create(Map<String, String> request) {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(request.get("watchdog_ms")));
        config.setThreads(4);
        config.setNettyThreads(4);
        servers(config, request.get("url"));
        return Redisson.create(config);
    }

    /** The same URLs as redlatch's. */
    private static void servers(Config config, String url) {
        if (url.startsWith("redis://")) {
            config.useSingleServer()
                .setAddress(url)
                .setConnectionMinimumIdleSize(1)
                .setConnectionPoolSize(16)
                .setSubscriptionConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionPoolSize(8);
            return;
        }
        String[] parts = url.substring(url.indexOf("://") + 3).split("/");
        String[] addresses = ("redis://" + parts[0].replace(",", ",redis://")).split(",");
        BaseMasterSlaveServersConfig<?> servers = url.startsWith("redis+sentinel://")
            ? config.useSentinelServers().setMasterName(parts[1]).addSentinelAddress(addresses)
            : config.useClusterServers().addNodeAddress(addresses);
        servers.setReadMode(ReadMode.MASTER)
            .setSubscriptionMode(SubscriptionMode.MASTER)
            .setMasterConnectionMinimumIdleSize(1)
            .setMasterConnectionPoolSize(16)
            .setSlaveConnectionMinimumIdleSize(1)
            .setSlaveConnectionPoolSize(4)
            .setSubscriptionConnectionMinimumIdleSize(1)
            .setSubscriptionConnectionPoolSize(8);
    }

    private static Map<String, Object> status(String status) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("status", status);
        return reply;
    }

    private static void answer(Map<String, String> request, Map<String, Object> reply) {
        reply.put("id", request.get("id"));
        synchronized (OUT) {
            OUT.println(Json.write(reply));
            OUT.flush();
        }
    }
}
