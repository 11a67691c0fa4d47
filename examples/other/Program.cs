using System;
using System.Runtime.InteropServices;

static class Program
{
    const string C = "redlatch";
    [DllImport(C)] static extern int redlatch_client_open(string url, IntPtr options, out IntPtr client);
    [DllImport(C)] static extern int redlatch_client_close(IntPtr client, long waitMs);
    [DllImport(C)] static extern void redlatch_client_free(IntPtr client);
    [DllImport(C)] static extern int redlatch_lock_new(IntPtr client, string name, IntPtr options, out IntPtr made);
    [DllImport(C)] static extern int redlatch_lock_acquire(IntPtr made, ulong owner, long waitMs, long leaseMs, IntPtr token);
    [DllImport(C)] static extern int redlatch_lock_check(IntPtr made, ulong owner);
    [DllImport(C)] static extern int redlatch_lock_release(IntPtr made, ulong owner);
    [DllImport(C)] static extern void redlatch_lock_free(IntPtr made);
    [DllImport(C)] static extern ulong redlatch_owner_new();
    [DllImport(C)] static extern IntPtr redlatch_last_error();

    // No await between a call and its Check: what follows an await may run on another thread.
    static void Check(int status)
    {
        if (status != 0) throw new InvalidOperationException(Marshal.PtrToStringUTF8(redlatch_last_error()));
    }

    static void Main()
    {
        Check(redlatch_client_open(null, IntPtr.Zero, out var client)); // REDLATCH_URL
        Check(redlatch_lock_new(client, "orders:42", IntPtr.Zero, out var orders));
        var owner = redlatch_owner_new();
        Check(redlatch_lock_acquire(orders, owner, 5000, 0, IntPtr.Zero));
        Console.WriteLine("it is ours");
        Check(redlatch_lock_check(orders, owner)); // before every write that matters
        Check(redlatch_lock_release(orders, owner));
        redlatch_lock_free(orders);
        Check(redlatch_client_close(client, -1)); // the option close_limit
        redlatch_client_free(client);
    }
}
