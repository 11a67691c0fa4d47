// Requests about an RPermitExpirableSemaphore.
import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;

final class Permits {
    /** The ids of the permits of each acquisition, by actor thread and lock, the newest last. */
    private static final Map<String, Deque<List<String>>> TAKEN = new ConcurrentHashMap<>();

    private Permits() {
    }

    static Map<String, Object> run(RedissonClient client, Map<String, String> request) throws Exception {
        String name = request.get("lock");
        RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(name);
        String seat = request.get("client") + "/" + request.get("as") + "/" + name;
        Deque<List<String>> taken = TAKEN.computeIfAbsent(seat, ignored -> new ArrayDeque<>());
        int permits = Integer.parseInt(request.getOrDefault("permits", "1"));
        Map<String, Object> reply = status("ok");
        switch (request.get("op")) {
            case "acquire":
                int limit = Integer.parseInt(request.get("limit"));
                if (limit > 0) {
                    semaphore.trySetPermits(limit);
                }
                List<String> ids = acquire(semaphore, request, permits);
                if (ids.isEmpty()) {
                    return status("timeout");
                }
                taken.addLast(ids);
                return reply;
            case "release":
                return status(!taken.isEmpty() && release(semaphore, taken.removeLast()) ? "ok" : "not_owner");
            case "permits":
                reply.put("free", semaphore.availablePermits());
                reply.put("limit", semaphore.getPermits());
                return reply;
            case "holders":
                reply.put("value", semaphore.acquiredPermits());
                return reply;
            case "set":
                semaphore.setPermits(permits);
                return reply;
            case "add":
                semaphore.addPermits(permits);
                return reply;
            case "extend":
                long lease = Long.parseLong(request.get("lease_ms"));
                boolean kept = true;
                for (String id : taken.getLast()) {
                    kept &= semaphore.updateLeaseTime(id, lease, TimeUnit.MILLISECONDS);
                }
                return status(kept ? "ok" : "not_owner");
            case "expire":
                reply.put("value", semaphore.expire(Duration.ofMillis(Long.parseLong(request.get("lease_ms")))));
                return reply;
            case "delete":
                reply.put("value", semaphore.delete());
                return reply;
            case "crash":
                taken.clear();
                return reply;
            case "plain":
                plain(client.getSemaphore(name + ":plain"));
                return reply;
            default:
                return status("unsupported");
        }
    }

    /** The ids that were taken; none if there were not enough permits in time. */
    private static List<String> acquire(RPermitExpirableSemaphore semaphore, Map<String, String> request, int permits)
            throws Exception {
        List<Object> arguments = new ArrayList<>();
        if (permits > 1) {
            arguments.add(permits);
        }
        String wait = request.get("wait_ms");
        if (wait != null) {
            arguments.add(Long.parseLong(wait));
        }
        arguments.add(Long.parseLong(request.getOrDefault("lease_ms", "-1")));
        arguments.add(TimeUnit.MILLISECONDS);
        boolean async = "true".equals(request.get("async"));
        Object ids = call(semaphore, (wait == null ? "acquire" : "tryAcquire") + (async ? "Async" : ""), arguments);
        if (async) {
            ids = ((Future<?>) ids).get();
        }
        return ids == null ? Collections.emptyList() : listOf(ids);
    }

    private static List<String> listOf(Object ids) {
        if (ids instanceof String) {
            return Collections.singletonList((String) ids);
        }
        List<String> list = new ArrayList<>();
        for (Object id : (List<?>) ids) {
            list.add((String) id);
        }
        return list;
    }

    /** Whether the permits were still those of the caller. */
    private static boolean release(RPermitExpirableSemaphore semaphore, List<String> ids) throws Exception {
        try {
            if (ids.size() == 1) {
                semaphore.release(ids.get(0));
            } else {
                call(semaphore, "release", Collections.singletonList(ids));
            }
            return true;
        } catch (IllegalArgumentException e) {
            return false;
        } catch (RedisException e) {
            if (e.getCause() instanceof IllegalArgumentException) {
                return false;
            }
            throw e;
        }
    }

    /** Calls by name what the oldest generation does not have: several permits at once. */
    private static Object call(RPermitExpirableSemaphore semaphore, String method, List<Object> arguments)
            throws Exception {
        Class<?>[] types = arguments.stream().map(Permits::typeOf).toArray(Class<?>[]::new);
        try {
            return RPermitExpirableSemaphore.class.getMethod(method, types).invoke(semaphore, arguments.toArray());
        } catch (InvocationTargetException e) {
            throw e.getCause() instanceof Exception ? (Exception) e.getCause() : new ExecutionException(e.getCause());
        }
    }

    private static Class<?> typeOf(Object argument) {
        if (argument instanceof Integer) {
            return int.class;
        }
        return argument instanceof Long ? long.class : argument instanceof List ? List.class : TimeUnit.class;
    }

    /** A plain semaphore is used once. */
    private static void plain(RSemaphore semaphore) throws InterruptedException {
        semaphore.trySetPermits(1);
        semaphore.acquire();
        semaphore.release();
        semaphore.delete();
    }

    private static Map<String, Object> status(String status) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("status", status);
        return reply;
    }
}
