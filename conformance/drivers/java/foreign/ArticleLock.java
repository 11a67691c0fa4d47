// The lock that articles about Redis build step by step: SET NX EX, a value of its own, a compare-and-delete in Lua.
import java.util.List;
import java.util.UUID;

import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.params.SetParams;

final class ArticleLock implements Lock {
    private static final String PROCESS = UUID.randomUUID().toString().replace("-", "") + "-";
    private static final String UNLOCK =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

    private final UnifiedJedis jedis;
    private final String key;

    ArticleLock(UnifiedJedis jedis, String name) {
        this.jedis = jedis;
        this.key = "lock:" + name;
    }

    @Override
    public boolean tryLock(long seconds) {
        return "OK".equals(jedis.set(key, value(), SetParams.setParams().nx().ex(seconds)));
    }

    @Override
    public boolean unlock() {
        return Long.valueOf(1).equals(jedis.eval(UNLOCK, List.of(key), List.of(value())));
    }

    @Override
    public boolean isMine() {
        return value().equals(jedis.get(key));
    }

    private static String value() {
        return PROCESS + Thread.currentThread().getId();
    }
}
