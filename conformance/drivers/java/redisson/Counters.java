// Requests about an RSemaphore or an RCountDownLatch.
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RCountDownLatch;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

final class Counters {
    private Counters() {
    }

    static Map<String, Object> run(RedissonClient client, Map<String, String> request) throws Exception {
        String name = request.get("lock");
        if (request.get("counter").equals("latch")) {
            return latch(client.getCountDownLatch(name), request);
        }
        return semaphore(client.getSemaphore(name), request);
    }

    private static Map<String, Object> semaphore(RSemaphore semaphore, Map<String, String> request) throws Exception {
        int permits = Integer.parseInt(request.getOrDefault("permits", "1"));
        switch (request.get("op")) {
            case "acquire":
                return status(acquire(semaphore, request, permits) ? "ok" : "timeout");
            case "release":
                semaphore.release(permits);
                return status("ok");
            case "set":
                return value(semaphore.trySetPermits(permits));
            case "add":
                semaphore.addPermits(permits);
                return status("ok");
            case "drain":
                return value(semaphore.drainPermits());
            case "permits":
                return value(semaphore.availablePermits());
            case "delete":
                return value(semaphore.delete());
            default:
                return status("unsupported");
        }
    }

    // The oldest generation has no Duration here.
    @SuppressWarnings("deprecation")
    private static boolean acquire(RSemaphore semaphore, Map<String, String> request, int permits) throws Exception {
        String wait = request.get("wait_ms");
        boolean async = "true".equals(request.get("async"));
        if (wait != null) {
            return semaphore.tryAcquire(permits, Long.parseLong(wait), TimeUnit.MILLISECONDS);
        }
        if (async) {
            semaphore.acquireAsync(permits).get();
        } else {
            semaphore.acquire(permits);
        }
        return true;
    }

    private static Map<String, Object> latch(RCountDownLatch latch, Map<String, String> request) throws Exception {
        int number = Integer.parseInt(request.getOrDefault("number", "1"));
        switch (request.get("op")) {
            case "wait":
                String wait = request.get("wait_ms");
                if (wait != null) {
                    return status(latch.await(Long.parseLong(wait), TimeUnit.MILLISECONDS) ? "ok" : "timeout");
                }
                if ("true".equals(request.get("async"))) {
                    latch.awaitAsync().get();
                } else {
                    latch.await();
                }
                return status("ok");
            case "set":
                return value(latch.trySetCount(number));
            case "down":
                for (int each = 0; each < number; each++) {
                    latch.countDown();
                }
                return status("ok");
            case "count":
                return value(latch.getCount());
            case "delete":
                return value(latch.delete());
            default:
                return status("unsupported");
        }
    }

    private static Map<String, Object> value(Object value) {
        Map<String, Object> reply = status("ok");
        reply.put("value", value);
        return reply;
    }

    private static Map<String, Object> status(String status) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("status", status);
        return reply;
    }
}
