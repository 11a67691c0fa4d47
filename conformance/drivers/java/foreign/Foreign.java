// The conformance driver of two locks that Java programs build themselves; see conformance/README.md for the protocol.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.UnifiedJedis;

public final class Foreign {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    /** A lock without a given lease that is not renewed must outlast the row. */
    private static final String LONG = "30000";
    private static final Map<String, UnifiedJedis> SERVERS = new ConcurrentHashMap<>();
    private static final Map<String, Client> CLIENTS = new ConcurrentHashMap<>();
    /** One thread per actor and name of a thread: the owner is the thread. */
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();
    private static final Map<String, Lock> LOCKS = new ConcurrentHashMap<>();

    private static final class Client {
        final UnifiedJedis jedis;
        final boolean adaptive;
        final String lease;

        Client(Map<String, String> request) {
            jedis = SERVERS.computeIfAbsent(request.get("url"), JedisPooled::new);
            adaptive = request.get("kind").equals("adaptive");
            lease = adaptive ? request.get("watchdog_ms") : LONG;
        }

        Lock lock(String name) {
            return adaptive ? new AdaptiveLock(jedis, name, UUID.randomUUID().toString()) : new ArticleLock(jedis, name);
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, String> request = Json.parse(line);
            String seat = request.getOrDefault("client", "") + "/" + request.getOrDefault("as", "main");
            if (request.get("op").equals("crash")) {
                // The thread ends without giving anything back.
                THREADS.remove(seat).shutdown();
                answer(request, status("ok"));
                continue;
            }
            THREADS.computeIfAbsent(seat, name -> Executors.newSingleThreadExecutor()).submit(() -> perform(request, seat));
        }
        System.exit(0);
    }

    private static void perform(Map<String, String> request, String seat) {
        Map<String, Object> reply;
        try {
            reply = run(request, seat);
        } catch (Exception e) {
            String text = String.valueOf(e);
            reply = status(text.contains("WRONGTYPE") ? "foreign_kind" : "error");
            reply.put("text", text);
        }
        answer(request, reply);
    }

    private static Map<String, Object> run(Map<String, String> request, String seat) {
        String client = request.get("client");
        switch (request.get("op")) {
            case "hello":
                Map<String, Object> hello = status("ok");
                hello.put("version", "rebuilt, with Jedis");
                return hello;
            case "open":
                CLIENTS.put(client, new Client(request));
                return status("ok");
            case "close":
                CLIENTS.remove(client);
                return status("ok");
            default:
                String name = request.get("lock");
                Lock lock = LOCKS.computeIfAbsent(seat + "/" + name, ignored -> CLIENTS.get(client).lock(name));
                return call(request, lock);
        }
    }

    private static Map<String, Object> call(Map<String, String> request, Lock lock) {
        switch (request.get("op")) {
            case "acquire":
                long lease = Long.parseLong(request.getOrDefault("lease_ms", CLIENTS.get(request.get("client")).lease));
                return status(lock.tryLock((lease + 999) / 1000) ? "ok" : "timeout");
            case "release":
                return status(lock.unlock() ? "ok" : "not_owner");
            case "held":
                Map<String, Object> reply = status("ok");
                reply.put("value", lock.isMine());
                return reply;
            default:
                return status("unsupported");
        }
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
