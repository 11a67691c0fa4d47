require "fiddle/import"

module Redlatch
  extend Fiddle::Importer
  dlload "libredlatch.so.0"
  typealias "uint64_t", "unsigned long long"
  typealias "int64_t", "long long"
  extern "int redlatch_client_open(const char *, void *, void **)"
  extern "int redlatch_client_close(void *, int64_t)"
  extern "void redlatch_client_free(void *)"
  extern "int redlatch_lock_new(void *, const char *, void *, void **)"
  extern "int redlatch_lock_acquire(void *, uint64_t, int64_t, int64_t, void *)"
  extern "int redlatch_lock_check(void *, uint64_t)"
  extern "int redlatch_lock_release(void *, uint64_t)"
  extern "void redlatch_lock_free(void *)"
  extern "uint64_t redlatch_owner_new()"
  extern "const char *redlatch_last_error()"

  def self.check(status)
    raise redlatch_last_error.to_s unless status.zero?
  end

  def self.made # the object that a call puts into its last argument
    place = Fiddle::Pointer.malloc(Fiddle::SIZEOF_VOIDP, Fiddle::RUBY_FREE)
    check(yield(place))
    place.ptr
  end
end

client = Redlatch.made { |place| Redlatch.redlatch_client_open(nil, nil, place) } # REDLATCH_URL
lock = Redlatch.made { |place| Redlatch.redlatch_lock_new(client, "orders:42", nil, place) }
owner = Redlatch.redlatch_owner_new
Redlatch.check(Redlatch.redlatch_lock_acquire(lock, owner, 5000, 0, nil))
puts "it is ours"
Redlatch.check(Redlatch.redlatch_lock_check(lock, owner)) # before every write that matters
Redlatch.check(Redlatch.redlatch_lock_release(lock, owner))
Redlatch.redlatch_lock_free(lock)
Redlatch.check(Redlatch.redlatch_client_close(client, -1)) # the option close_limit
Redlatch.redlatch_client_free(client)
