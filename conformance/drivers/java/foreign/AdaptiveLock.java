// The lock that remembers how long the work takes: a second key holds the seconds that the last works took, and the
// next lease is those and 10. Everything is in seconds.
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.params.SetParams;

final class AdaptiveLock implements Lock {
    private static final long DAY = 24 * 3600;
    private static final long NEARLY_OVER = 5;
    private static final String DELETE =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    private static final String EXPIRE = "if redis.call('get', KEYS[1]) == ARGV[1] "
        + "then return redis.call('expire', KEYS[1], ARGV[2]) end return 0";
    private static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });

    /** One thread holds this for one request. */
    private static final class Hold {
        long asked;
        long lease;
        long since;
        int count;
        ScheduledFuture<?> renewal;
    }

    private final UnifiedJedis jedis;
    private final String key;
    private final String requestId;
    private final Map<Thread, Hold> holds = new HashMap<>();

    AdaptiveLock(UnifiedJedis jedis, String name, String requestId) {
        this.jedis = jedis;
        this.key = name;
        this.requestId = requestId;
    }

    @Override
    public synchronized boolean tryLock(long asked) {
        Hold hold = holds.get(Thread.currentThread());
        if (hold != null) {
            hold.count++;
            return true;
        }
        Double remembered = remembered();
        long lease = remembered == null ? asked : (long) Math.floor(remembered + 10);
        if (!"OK".equals(jedis.set(key, requestId, SetParams.setParams().nx().ex(lease)))) {
            return false;
        }
        Hold won = new Hold();
        won.asked = asked;
        won.lease = lease;
        won.since = System.nanoTime();
        won.count = 1;
        Thread owner = Thread.currentThread();
        won.renewal = TIMER.scheduleWithFixedDelay(() -> renew(owner, won), 1, 1, TimeUnit.SECONDS);
        holds.put(owner, won);
        return true;
    }

    @Override
    public synchronized boolean unlock() {
        Hold hold = holds.get(Thread.currentThread());
        if (hold == null) {
            return false;
        }
        if (--hold.count > 0) {
            return true;
        }
        holds.remove(Thread.currentThread());
        hold.renewal.cancel(false);
        if (!isMine()) {
            return false;
        }
        remember(TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - hold.since), hold.asked);
        return Long.valueOf(1).equals(jedis.eval(DELETE, List.of(key), List.of(requestId)));
    }

    @Override
    public boolean isMine() {
        return Objects.equals(jedis.get(key), requestId);
    }

    private Double remembered() {
        String value = jedis.get(key + "_renew");
        return value == null ? null : Double.valueOf(value);
    }

    private void remember(long took, long asked) {
        if (took <= 0) {
            return;
        }
        Double before = remembered();
        if (before == null) {
            if (took > asked - 5) {
                jedis.setex(key + "_renew", DAY, String.valueOf(took));
            }
            return;
        }
        double average = (before * 8 + took * 2) / 10;
        if (average >= asked - 5) {
            jedis.setex(key + "_renew", DAY, String.valueOf(average));
        } else {
            jedis.del(key + "_renew");
        }
    }

    private void renew(Thread owner, Hold hold) {
        if (!owner.isAlive()) {
            hold.renewal.cancel(false);
        } else if (jedis.ttl(key) < NEARLY_OVER) {
            jedis.eval(EXPIRE, List.of(key), List.of(requestId, String.valueOf(hold.lease)));
        }
    }
}
