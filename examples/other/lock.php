<?php
$c = FFI::cdef('
    int redlatch_client_open(const char *url, void *options, void **client);
    int redlatch_client_close(void *client, int64_t wait_ms);
    void redlatch_client_free(void *client);
    int redlatch_lock_new(void *client, const char *name, void *options, void **lock);
    int redlatch_lock_acquire(void *lock, uint64_t owner, int64_t wait_ms, int64_t lease_ms, uint64_t *token);
    int redlatch_lock_check(void *lock, uint64_t owner);
    int redlatch_lock_release(void *lock, uint64_t owner);
    void redlatch_lock_free(void *lock);
    uint64_t redlatch_owner_new();
    const char *redlatch_last_error();
', 'libredlatch.so.0');

$check = function (int $status) use ($c) {
    if ($status !== 0) {
        throw new RuntimeException($c->redlatch_last_error());
    }
};

[$client, $lock] = [$c->new('void *'), $c->new('void *')];
$check($c->redlatch_client_open(null, null, FFI::addr($client))); // REDLATCH_URL
$check($c->redlatch_lock_new($client, 'orders:42', null, FFI::addr($lock)));
$owner = $c->redlatch_owner_new();
$check($c->redlatch_lock_acquire($lock, $owner, 5000, 0, null));
echo "it is ours\n";
$check($c->redlatch_lock_check($lock, $owner)); // before every write that matters
$check($c->redlatch_lock_release($lock, $owner));
$c->redlatch_lock_free($lock);
$check($c->redlatch_client_close($client, -1)); // the option close_limit
$c->redlatch_client_free($client);
