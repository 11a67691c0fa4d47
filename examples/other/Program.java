import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.PointerByReference;

public class Program {
    interface Redlatch extends Library {
        Redlatch C = Native.load("redlatch", Redlatch.class);
        int redlatch_client_open(String url, Pointer options, PointerByReference client);
        int redlatch_client_close(Pointer client, long waitMs);
        void redlatch_client_free(Pointer client);
        int redlatch_lock_new(Pointer client, String name, Pointer options, PointerByReference lock);
        int redlatch_lock_acquire(Pointer lock, long owner, long waitMs, long leaseMs, Pointer token);
        int redlatch_lock_check(Pointer lock, long owner);
        int redlatch_lock_release(Pointer lock, long owner);
        void redlatch_lock_free(Pointer lock);
        long redlatch_owner_new();
        String redlatch_last_error();
    }

    /** A virtual thread may change its carrier between the two: then pin it, or leave the text out. */
    static void check(int status) {
        if (status != 0) throw new IllegalStateException(Redlatch.C.redlatch_last_error());
    }

    public static void main(String[] arguments) {
        PointerByReference client = new PointerByReference(), lock = new PointerByReference();
        check(Redlatch.C.redlatch_client_open(null, null, client)); // REDLATCH_URL
        check(Redlatch.C.redlatch_lock_new(client.getValue(), "orders:42", null, lock));
        long owner = Redlatch.C.redlatch_owner_new();
        check(Redlatch.C.redlatch_lock_acquire(lock.getValue(), owner, 5000, 0, null));
        System.out.println("it is ours");
        check(Redlatch.C.redlatch_lock_release(lock.getValue(), owner));
        Redlatch.C.redlatch_lock_free(lock.getValue());
        check(Redlatch.C.redlatch_client_close(client.getValue(), -1)); // the option close_limit
        Redlatch.C.redlatch_client_free(client.getValue());
    }
}
