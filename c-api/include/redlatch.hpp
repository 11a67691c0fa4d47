// redlatch.hpp - redlatch.h for C++11 and later: handles that free themselves, and exceptions.
//
//   redlatch::client client;                               // the server in REDLATCH_URL
//   redlatch::mutex orders(client, "orders:42");
//   {
//       redlatch::lock_guard held(orders);                 // or std::lock_guard, std::unique_lock
//       ...
//   }                                                      // released
//   client.close();
//
// The rules of redlatch.h about threads, ownership and fork() hold here too. A failed call throws
// redlatch::error, unless it says otherwise.
#ifndef REDLATCH_HPP
#define REDLATCH_HPP

#include "redlatch.h"

#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS) && !defined(_CPPUNWIND)
#error redlatch.hpp needs exceptions, which are turned off here; use the functions of redlatch.h
#endif
#if defined(__has_include)
#if __has_include(<version>)
#include <version>
#endif
#endif
#ifdef __cpp_lib_jthread
#include <stop_token>
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace redlatch {

/// A failed call. what() has the text of redlatch_last_error().
class error : public std::runtime_error {
public:
    error(redlatch_status code, redlatch_lost_reason reason, const char *text)
        : std::runtime_error(text), code_(code), reason_(reason) {}

    /// REDLATCH_TIMEOUT and the like.
    redlatch_status code() const noexcept { return code_; }

    /// Why the lock was lost, for the code REDLATCH_LOST; else 0.
    redlatch_lost_reason lost_reason() const noexcept { return reason_; }

    /// Whether the same call can succeed later without changing anything.
    bool retryable() const noexcept { return redlatch_status_retryable(code_); }

private:
    redlatch_status code_;
    redlatch_lost_reason reason_;
};

/// Throws what this thread's last call has failed with, if `status` says that it has.
inline void require(redlatch_status status) {
    if (status != REDLATCH_OK)
        throw error(status, redlatch_last_lost_reason(), redlatch_last_error());
}

/// A number for `owner` that no call of this function in this process gives again: for work that changes threads.
inline std::uint64_t new_owner() noexcept { return redlatch_owner_new(); }

/// An owner of a lock: the calling thread (see REDLATCH_THREAD), or a number of 64 bits without a sign, such as that of
/// new_owner(). Other numbers are none, so that `orders.acquire(2500)`, meant as a time, does not compile: as an owner of its own
/// each thread would be inside at once.
class owner {
public:
    owner() noexcept : number_(REDLATCH_THREAD) {}

    owner(std::nullptr_t) noexcept : number_(REDLATCH_THREAD) {} // the literal of REDLATCH_THREAD

    template <class Number, class = typename std::enable_if<std::is_unsigned<Number>::value &&
                                                            sizeof(Number) == sizeof(std::uint64_t)>::type>
    owner(Number number) noexcept : number_(number) {}

    std::uint64_t number() const noexcept { return number_; }

private:
    std::uint64_t number_;
};

namespace detail {

struct deleter {
    void operator()(redlatch_options *options) const noexcept { redlatch_options_free(options); }
    void operator()(redlatch_client *client) const noexcept { redlatch_client_free(client); }
    void operator()(redlatch_lock *lock) const noexcept { redlatch_lock_free(lock); }
    void operator()(redlatch_canceller *canceller) const noexcept { redlatch_canceller_free(canceller); }
    void operator()(redlatch_plain_semaphore *semaphore) const noexcept { redlatch_plain_semaphore_free(semaphore); }
    void operator()(redlatch_latch *latch) const noexcept { redlatch_latch_free(latch); }
};

// Whole milliseconds, rounded up: a wait of 1 us must not become a single try. A time that is over is 0.
template <class Rep, class Period>
std::int64_t milliseconds(const std::chrono::duration<Rep, Period> &time) {
    using std::chrono::milliseconds;
    if (time <= time.zero())
        return 0;
    // The library refuses a time that does not fit as too long.
    if (std::chrono::duration<double>(time) > std::chrono::hours(24 * 365 * 1000))
        return std::numeric_limits<std::int64_t>::max();
    auto whole = std::chrono::duration_cast<milliseconds>(time);
    if (whole < time)
        ++whole;
    return static_cast<std::int64_t>(whole.count());
}

// As long a wait. One of more than a hundred years, such as max(), is no limit.
template <class Rep, class Period> std::int64_t wait(const std::chrono::duration<Rep, Period> &time) {
    if (std::chrono::duration<double>(time) > std::chrono::hours(24 * 365 * 100))
        return REDLATCH_FOREVER;
    return milliseconds(time);
}

// Whether a try was granted in its time. Every other failure is thrown.
inline bool granted(redlatch_status status) {
    if (status != REDLATCH_TIMEOUT)
        require(status);
    return status == REDLATCH_OK;
}

} // namespace detail

/// Options by name and value: `{{"watchdog_lease", "10s"}, {"fencing", "true"}}`.
class options {
public:
    options() : options(std::initializer_list<std::pair<const char *, std::string>>()) {}

    options(std::initializer_list<std::pair<const char *, std::string>> values) : handle_() {
        redlatch_options *made = nullptr;
        require(redlatch_options_new(&made));
        handle_.reset(made);
        for (const auto &value : values)
            set(value.first, value.second);
    }

    options &set(const std::string &name, const std::string &value) {
        require(redlatch_options_set(handle_.get(), name.c_str(), value.c_str()));
        return *this;
    }

    const redlatch_options *get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<redlatch_options, detail::deleter> handle_;
};

/// A client. Its destructor frees without I/O; close() releases what is held and reports.
class client {
public:
    /// Called for everything that happens, on a thread of the library; must not throw. `level` is
    /// REDLATCH_LEVEL_DEBUG and the like, `lock` the name of the lock or nullptr.
    using event_function =
        std::function<void(std::int32_t level, const char *kind, const char *lock, const char *text)>;

    /// Opens the server that the environment variable REDLATCH_URL names.
    client() : client(nullptr, nullptr, redlatch_client_open) {}

    explicit client(const std::string &url) : client(url.c_str(), nullptr, redlatch_client_open) {}

    client(const std::string &url, const options &options)
        : client(url.c_str(), options.get(), redlatch_client_open) {}

    explicit client(const options &options) : client(nullptr, options.get(), redlatch_client_open) {}

    /// A client that connects with its first call, so that the program can start before its server. Without a URL the
    /// environment variable REDLATCH_URL names the server.
    static client lazy() { return client(nullptr, nullptr, redlatch_client_new); }

    static client lazy(const options &options) { return client(nullptr, options.get(), redlatch_client_new); }

    static client lazy(const std::string &url) { return client(url.c_str(), nullptr, redlatch_client_new); }

    static client lazy(const std::string &url, const options &options) {
        return client(url.c_str(), options.get(), redlatch_client_new);
    }

    /// As long as the option close_limit says.
    void close() { require(redlatch_client_close(get(), REDLATCH_CLOSE_LIMIT)); }

    template <class Rep, class Period> void close(const std::chrono::duration<Rep, Period> &limit) {
        require(redlatch_client_close(get(), detail::milliseconds(limit)));
    }

    /// A counter by its name.
    std::uint64_t stats(const std::string &name) const {
        std::uint64_t count = 0;
        require(redlatch_client_stats(get(), name.c_str(), &count));
        return count;
    }

    /// Calls `told` for every event from now on; an empty function stops it. Not to be called from `told` itself.
    void on_event(event_function told) {
        require(redlatch_client_on_event(get(), nullptr, nullptr));
        self_->told = std::move(told);
        if (self_->told)
            require(redlatch_client_on_event(get(), &client::call, self_.get()));
    }

    /// NULL, which every call refuses, once it was moved from.
    redlatch_client *get() const noexcept { return self_ ? self_->handle.get() : nullptr; }

private:
    // Apart, so that it stays in its place when the client moves. The handle goes first: freeing it waits
    // for a function that is running.
    struct state {
        event_function told{};
        std::unique_ptr<redlatch_client, detail::deleter> handle{};
    };

    static void call(void *self, std::int32_t level, const char *kind, const char *lock, const char *text) noexcept {
        static_cast<state *>(self)->told(level, kind, lock, text);
    }

    client(const char *url, const redlatch_options *options, decltype(redlatch_client_open) *make)
        : self_(new state) {
        redlatch_client *made = nullptr;
        require(make(url, options, &made));
        self_->handle.reset(made);
    }

    std::unique_ptr<state> self_;
};

/// Ends waits from another thread: `orders.acquire(canceller)` throws an error with the code REDLATCH_CANCELLED once
/// `canceller.cancel()` was called. It can be moved but not copied, and serves any number of waits.
class canceller {
public:
    canceller() : handle_() {
        redlatch_canceller *made = nullptr;
        require(redlatch_canceller_new(&made));
        handle_.reset(made);
    }

    /// Ends all waits with this canceller, now and later. A signal handler may call it.
    void cancel() const noexcept { redlatch_canceller_cancel(get()); }

    bool is_cancelled() const noexcept { return redlatch_canceller_is_cancelled(get()); }

    redlatch_canceller *get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<redlatch_canceller, detail::deleter> handle_;
};

#ifdef __cpp_lib_jthread
namespace detail {

// Makes a call with a canceller that is cancelled once the token asks to stop.
template <class Call> auto until(const std::stop_token &stop, const Call &call) {
    const canceller canceller;
    const std::stop_callback cancels(stop, [&canceller] { canceller.cancel(); });
    return call(canceller);
}

} // namespace detail
#endif

/// How long one acquisition lasts, never renewed, in place of what the options of the lock say:
/// `orders.acquire(redlatch::lease(std::chrono::seconds(10)))`.
class lease {
public:
    template <class Rep, class Period>
    explicit lease(const std::chrono::duration<Rep, Period> &time)
        : ms_(time > time.zero() ? detail::milliseconds(time) : REFUSED) {}

    std::int64_t ms() const noexcept { return ms_; }

private:
    // A value that is no time is refused: 0 would mean the lease of the lock (REDLATCH_LOCK_LEASE).
    static constexpr std::int64_t REFUSED = -1;

    std::int64_t ms_;
};

/// The holder of a lock, as Redis has it.
struct holder {
    std::string owner{}; // a text that only equality makes sense of; "" if the lock is free
    std::uint32_t count = 0;
    std::chrono::milliseconds remaining{0}; // without a renewal; -1 if there is no expiry
    // The process, if pid is not 0. It is not known for a holder that is not of redlatch, one with a token of its own,
    // one that is no longer connected, and where the server refuses CLIENT LIST.
    std::string client_name{};
    std::string language{};
    std::string host{};
    std::uint32_t pid = 0;
};

/// A lock that the standard library's lock_guard, unique_lock and lock() can use (it is TimedLockable).
/// Unlike a std::timed_mutex, the thread that holds it may lock it once more.
///
/// `owner` is the calling thread unless it is given; see REDLATCH_THREAD.
class mutex {
public:
    /// Called once per loss, on a thread of the library; must not throw.
    using lost_function = std::function<void(std::uint64_t owner, std::uint64_t token, redlatch_lost_reason reason)>;

    mutex(const client &client, const std::string &name) : self_(new state) { make(client, name, nullptr); }

    mutex(const client &client, const std::string &name, const options &options) : self_(new state) {
        make(client, name, options.get());
    }

    /// Waits as long as it takes. Returns the fencing token, 0 without the option fencing.
    std::uint64_t acquire(redlatch::owner owner = {}) {
        return acquire_ms(owner, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE);
    }

    std::uint64_t acquire(const lease &lease, redlatch::owner owner = {}) {
        return acquire_ms(owner, REDLATCH_FOREVER, lease.ms());
    }

    /// Waits at most this long; an error with the code REDLATCH_TIMEOUT then.
    template <class Rep, class Period>
    std::uint64_t acquire_for(const std::chrono::duration<Rep, Period> &wait,
                              redlatch::owner owner = {}) {
        return acquire_ms(owner, detail::wait(wait), REDLATCH_LOCK_LEASE);
    }

    template <class Rep, class Period>
    std::uint64_t acquire_for(const std::chrono::duration<Rep, Period> &wait, const lease &lease,
                              redlatch::owner owner = {}) {
        return acquire_ms(owner, detail::wait(wait), lease.ms());
    }

    /// Waits until the lock is acquired, or fails with the code REDLATCH_CANCELLED.
    std::uint64_t acquire(const canceller &canceller, redlatch::owner owner = {}) {
        return acquire_ms(owner, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE, canceller.get());
    }

    template <class Rep, class Period>
    std::uint64_t acquire_for(const std::chrono::duration<Rep, Period> &wait, const canceller &canceller,
                              redlatch::owner owner = {}) {
        return acquire_ms(owner, detail::wait(wait), REDLATCH_LOCK_LEASE, canceller.get());
    }

#ifdef __cpp_lib_jthread
    /// Waits until the token asks to stop. A std::jthread has such a token.
    std::uint64_t acquire(const std::stop_token &stop, redlatch::owner owner = {}) {
        return detail::until(stop, [&](const canceller &canceller) { return acquire(canceller, owner); });
    }

    template <class Rep, class Period>
    std::uint64_t acquire_for(const std::chrono::duration<Rep, Period> &wait, const std::stop_token &stop,
                              redlatch::owner owner = {}) {
        return detail::until(stop, [&](const canceller &canceller) { return acquire_for(wait, canceller, owner); });
    }
#endif

    /// Gives back the newest level; an error with the code REDLATCH_LOST if the lock was lost.
    void release(redlatch::owner owner = {}) { require(redlatch_lock_release(get(), owner.number())); }

    void lock() { acquire(); }

    /// The value that the key of a simple lock gets from now on; nullptr: a fresh one.
    void set_token(const char *token) { require(redlatch_lock_set_token(get(), token)); }

    bool try_lock() { return try_ms(0); }

    template <class Rep, class Period> bool try_lock_for(const std::chrono::duration<Rep, Period> &wait) {
        return try_ms(detail::wait(wait));
    }

    template <class Clock, class Duration>
    bool try_lock_until(const std::chrono::time_point<Clock, Duration> &until) {
        return try_lock_for(until - Clock::now());
    }

    /// Like release(), but tells nothing, because what the standard library expects here must not throw.
    void unlock() noexcept { (void)redlatch_lock_release(get(), REDLATCH_THREAD); }

    /// Makes the lock live at least this long from now.
    template <class Rep, class Period>
    void extend(const std::chrono::duration<Rep, Period> &lease, redlatch::owner owner = {}) {
        require(redlatch_lock_extend(get(), owner.number(), detail::milliseconds(lease)));
    }

    /// Frees the lock if this is its value, in whatever process it was acquired.
    void release_token(const char *token) { require(redlatch_lock_release_token(get(), token)); }

    /// Takes over the lock if this is its value, in whatever process it was acquired.
    void adopt(const char *value, redlatch::owner owner = {}) {
        require(redlatch_lock_adopt(get(), owner.number(), value, REDLATCH_LOCK_LEASE, nullptr));
    }

    /// Makes the lock live at least this long from now if this is its value.
    template <class Rep, class Period>
    void extend_token(const char *token, const std::chrono::duration<Rep, Period> &lease) {
        require(redlatch_lock_extend_token(get(), token, detail::milliseconds(lease)));
    }

    /// Deletes the lock whoever holds it; whether there was one.
    bool force_release() {
        bool deleted = false;
        require(redlatch_lock_force_release(get(), &deleted));
        return deleted;
    }

    /// Whether anybody holds it; asks Redis.
    bool is_locked() const {
        bool locked = false;
        require(redlatch_lock_is_locked(get(), &locked));
        return locked;
    }

    /// Asks Redis for the holder.
    redlatch::holder holder() const {
        const std::vector<redlatch::holder> found = holders();
        return found.empty() ? redlatch::holder() : found.front();
    }

    /// Asks Redis for all holders: of the read side of a shared_mutex there may be several.
    std::vector<redlatch::holder> holders() const {
        std::vector<redlatch::holder> found;
        require(redlatch_lock_holders(get(), &mutex::add_holder, &found));
        return found;
    }

    /// Asks Redis for the queue of a fair lock, in the order in which its waiters are served.
    std::vector<redlatch::holder> waiters() const {
        std::vector<redlatch::holder> found;
        require(redlatch_lock_waiters(get(), &mutex::add_holder, &found));
        return found;
    }

    bool is_held(redlatch::owner owner = {}) const noexcept { return redlatch_lock_is_held(get(), owner.number()); }

    /// Throws why the lock is not held, if it is not.
    void check(redlatch::owner owner = {}) const { require(redlatch_lock_check(get(), owner.number())); }

    /// How long the lock can be relied on if nothing more is heard from Redis.
    std::chrono::milliseconds remaining(redlatch::owner owner = {}) const noexcept {
        return std::chrono::milliseconds(redlatch_lock_remaining_ms(get(), owner.number()));
    }

    std::uint32_t hold_count(redlatch::owner owner = {}) const noexcept {
        return redlatch_lock_hold_count(get(), owner.number());
    }

    std::uint64_t fencing_token(redlatch::owner owner = {}) const noexcept {
        return redlatch_lock_fencing_token(get(), owner.number());
    }

    /// Calls `told` for every loss from now on; an empty function stops it. Not to be called from `told` itself.
    void on_lost(lost_function told) {
        require(redlatch_lock_on_lost(get(), nullptr, nullptr));
        self_->told = std::move(told);
        if (self_->told)
            require(redlatch_lock_on_lost(get(), &mutex::call, self_.get()));
    }

    /// NULL, which every call refuses, once it was moved from.
    redlatch_lock *get() const noexcept { return self_ ? self_->handle.get() : nullptr; }

private:
    // Apart, so that it stays in its place when the mutex moves. The handle goes first: freeing it waits
    // for a function that is running.
    struct state {
        lost_function told{};
        std::unique_ptr<redlatch_lock, detail::deleter> handle{};
    };

    static void call(void *self, std::uint64_t owner, std::uint64_t token, redlatch_lost_reason reason) noexcept {
        static_cast<state *>(self)->told(owner, token, reason);
    }

    static void add_holder(void *found, const redlatch_holder *one) noexcept {
        const auto text = [](const char *known) { return std::string(known == nullptr ? "" : known); };
        redlatch::holder holder;
        holder.owner = one->owner;
        holder.count = one->count;
        holder.remaining = std::chrono::milliseconds(one->remaining_ms);
        holder.client_name = text(one->client_name);
        holder.language = text(one->language);
        holder.host = text(one->host);
        holder.pid = one->pid;
        static_cast<std::vector<redlatch::holder> *>(found)->push_back(std::move(holder));
    }

    explicit mutex(redlatch_lock *handle) : self_(new state) { self_->handle.reset(handle); }

    friend class shared_mutex;
    friend class multi_mutex;
    friend class semaphore;

    void make(const client &client, const std::string &name, const redlatch_options *options) {
        redlatch_lock *made = nullptr;
        require(redlatch_lock_new_n(client.get(), name.data(), name.size(), options, &made));
        self_->handle.reset(made);
    }

    std::uint64_t acquire_ms(redlatch::owner owner, std::int64_t wait_ms, std::int64_t lease_ms,
                             redlatch_canceller *canceller = nullptr) {
        std::uint64_t token = 0;
        require(redlatch_lock_acquire_cancellable(get(), owner.number(), wait_ms, lease_ms, canceller, &token));
        return token;
    }

    bool try_ms(std::int64_t wait_ms) {
        return detail::granted(redlatch_lock_acquire(get(), REDLATCH_THREAD, wait_ms, REDLATCH_LOCK_LEASE, nullptr));
    }

    std::unique_ptr<state> self_;
};

/// Holds a mutex as long as it lives, also if that is moved meanwhile; not if it is destroyed. It can be moved itself,
/// but the thread that releases must be the owner: give an owner of its own to a guard that goes to another thread.
class lock_guard {
public:
    explicit lock_guard(mutex &mutex, redlatch::owner owner = {})
        : lock_(mutex.get()), owner_(owner.number()), token_(mutex.acquire(owner)) {}

    /// Waits at most this long; an error with the code REDLATCH_TIMEOUT then.
    template <class Rep, class Period>
    lock_guard(mutex &mutex, const std::chrono::duration<Rep, Period> &wait, redlatch::owner owner = {})
        : lock_(mutex.get()), owner_(owner.number()), token_(mutex.acquire_for(wait, owner)) {}

    /// With a lease of its own.
    lock_guard(mutex &mutex, const lease &lease, redlatch::owner owner = {})
        : lock_(mutex.get()), owner_(owner.number()), token_(mutex.acquire(lease, owner)) {}

    /// Waits until the canceller is cancelled; an error with the code REDLATCH_CANCELLED then.
    lock_guard(mutex &mutex, const canceller &canceller, redlatch::owner owner = {})
        : lock_(mutex.get()), owner_(owner.number()), token_(mutex.acquire(canceller, owner)) {}

#ifdef __cpp_lib_jthread
    lock_guard(mutex &mutex, const std::stop_token &stop, redlatch::owner owner = {})
        : lock_(mutex.get()), owner_(owner.number()), token_(mutex.acquire(stop, owner)) {}
#endif

    lock_guard(lock_guard &&other) noexcept
        : lock_(other.lock_), owner_(other.owner_), token_(other.token_) {
        other.lock_ = nullptr;
    }

    lock_guard &operator=(lock_guard &&other) noexcept {
        std::swap(lock_, other.lock_);
        std::swap(owner_, other.owner_);
        std::swap(token_, other.token_);
        return *this;
    }

    lock_guard(const lock_guard &) = delete;
    lock_guard &operator=(const lock_guard &) = delete;

    ~lock_guard() {
        if (lock_ != nullptr)
            (void)redlatch_lock_release(lock_, owner_);
    }

    /// Releases now and tells, as the destructor cannot.
    void release() {
        if (lock_ != nullptr) {
            redlatch_lock *const held = lock_;
            lock_ = nullptr;
            require(redlatch_lock_release(held, owner_));
        }
    }

    /// Whether the lock can be relied on now.
    bool is_held() const noexcept { return lock_ != nullptr && redlatch_lock_is_held(lock_, owner_); }

    /// Throws why the lock is not held any more, if it is not.
    void check() const {
        if (lock_ == nullptr)
            throw error(REDLATCH_NOT_OWNER, 0, "this guard was released or moved from");
        require(redlatch_lock_check(lock_, owner_));
    }

    /// The fencing token; 0 without the option fencing.
    std::uint64_t fencing_token() const noexcept { return token_; }

private:
    redlatch_lock *lock_; // stays where it is when the mutex moves
    std::uint64_t owner_;
    std::uint64_t token_;
};

/// A read-write lock that the standard library's lock_guard, unique_lock and, from C++14 on, shared_lock can use (it is
/// SharedTimedLockable): many threads, of many programs, may have it shared at a time, or one has it alone. It is the
/// same lock as the RReadWriteLock of Redisson with this name.
///
/// Unlike with a std::shared_timed_mutex, a thread that has it alone may take it shared too, and keep that. One that has
/// it shared and asks for it alone gets an error with the code REDLATCH_WOULD_DEADLOCK.
class shared_mutex {
public:
    shared_mutex(const client &client, const std::string &name) : shared_mutex(sides(client, name, nullptr)) {}

    shared_mutex(const client &client, const std::string &name, const options &options)
        : shared_mutex(sides(client, name, options.get())) {}

    /// The side that many may have at a time, with all that a mutex can do.
    mutex &read() noexcept { return read_; }

    /// The side that one may have, while nobody else has the other.
    mutex &write() noexcept { return write_; }

    void lock() { write_.lock(); }

    bool try_lock() { return write_.try_lock(); }

    template <class Rep, class Period> bool try_lock_for(const std::chrono::duration<Rep, Period> &wait) {
        return write_.try_lock_for(wait);
    }

    template <class Clock, class Duration>
    bool try_lock_until(const std::chrono::time_point<Clock, Duration> &until) {
        return write_.try_lock_until(until);
    }

    /// Tells nothing, as mutex::unlock().
    void unlock() noexcept { write_.unlock(); }

    void lock_shared() { read_.lock(); }

    bool try_lock_shared() { return read_.try_lock(); }

    template <class Rep, class Period> bool try_lock_shared_for(const std::chrono::duration<Rep, Period> &wait) {
        return read_.try_lock_for(wait);
    }

    template <class Clock, class Duration>
    bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration> &until) {
        return read_.try_lock_until(until);
    }

    /// Tells nothing, as mutex::unlock().
    void unlock_shared() noexcept { read_.unlock(); }

private:
    struct handles {
        std::unique_ptr<redlatch_lock, detail::deleter> read{};
        std::unique_ptr<redlatch_lock, detail::deleter> write{};
    };

    static handles sides(const client &client, const std::string &name, const redlatch_options *options) {
        redlatch_lock *read = nullptr;
        redlatch_lock *write = nullptr;
        require(redlatch_rw_lock_new_n(client.get(), name.data(), name.size(), options, &read, &write));
        handles made;
        made.read.reset(read);
        made.write.reset(write);
        return made;
    }

    explicit shared_mutex(handles made) : read_(made.read.release()), write_(made.write.release()) {}

    mutex read_;
    mutex write_;
};

/// Several mutexes as one: an owner has all of them, or none.
///
///   redlatch::multi_mutex both(client, {"account:3", "account:7"});
///   redlatch::lock_guard held(both);
///
/// Unlike std::scoped_lock it takes what is free in one round trip, and waits in the same order in every program. The
/// loss of one is the loss of the whole.
class multi_mutex : public mutex {
public:
    /// The names, in any order; each once.
    multi_mutex(const client &client, std::initializer_list<std::string> names)
        : mutex(of(client, made(client, names, nullptr))) {}

    multi_mutex(const client &client, std::initializer_list<std::string> names, const options &options)
        : mutex(of(client, made(client, names, options.get()))) {}

    multi_mutex(const client &client, const std::vector<std::string> &names, const redlatch_options *options = nullptr)
        : mutex(of(client, made(client, names, options))) {}

    /// Mutexes of this client, sides of a shared_mutex included. They need not live as long as this.
    multi_mutex(const client &client, std::initializer_list<const mutex *> mutexes)
        : mutex(of(client, handles(mutexes))) {}

    multi_mutex(const client &client, const std::vector<const mutex *> &mutexes)
        : mutex(of(client, handles(mutexes))) {}

private:
    using owned = std::vector<std::unique_ptr<redlatch_lock, detail::deleter>>;

    template <class Names>
    static owned made(const client &client, const Names &names, const redlatch_options *options) {
        owned made;
        for (const std::string &name : names) {
            redlatch_lock *lock = nullptr;
            require(redlatch_lock_new_n(client.get(), name.data(), name.size(), options, &lock));
            made.emplace_back(lock);
        }
        return made;
    }

    template <class Mutexes> static std::vector<redlatch_lock *> handles(const Mutexes &mutexes) {
        std::vector<redlatch_lock *> handles;
        for (const mutex *one : mutexes)
            handles.push_back(one == nullptr ? nullptr : one->get());
        return handles;
    }

    static redlatch_lock *of(const client &client, const owned &made) {
        std::vector<redlatch_lock *> handles;
        for (const auto &one : made)
            handles.push_back(one.get());
        return of(client, handles);
    }

    static redlatch_lock *of(const client &client, const std::vector<redlatch_lock *> &handles) {
        // The library refuses an empty array itself, but a NULL one with another text.
        redlatch_lock *const none = nullptr;
        redlatch_lock *lock = nullptr;
        require(redlatch_multi_lock_new(client.get(), handles.empty() ? &none : handles.data(), handles.size(), &lock));
        return lock;
    }
};

/// So many owners at a time as it has permits, over all programs; with the functions of std::counting_semaphore. What
/// acquire() took, any thread gives back by release(). A guard gives its own permits back.
class semaphore {
public:
    /// The first acquisition gives it `limit` permits; a number that is there already stays. With 0, others set it.
    semaphore(const client &client, const std::string &name, std::uint32_t limit,
              const redlatch_options *options = nullptr)
        : permits_(made(client, name, limit, options)), taken_(new taken) {}

    void acquire() {
        const std::uint64_t owner = new_owner();
        permits_.acquire(owner);
        taken_->add(owner);
    }

    bool try_acquire() { return try_ms(0); }

    template <class Rep, class Period> bool try_acquire_for(const std::chrono::duration<Rep, Period> &wait) {
        return try_ms(detail::wait(wait));
    }

    template <class Clock, class Duration>
    bool try_acquire_until(const std::chrono::time_point<Clock, Duration> &until) {
        return try_acquire_for(until - Clock::now());
    }

    /// Gives `permits` permits back that acquire() and the like took, the newest first; an error with the code
    /// REDLATCH_NOT_OWNER if there are none. All are given back, also those after one that was lost; the first error is thrown.
    void release(std::ptrdiff_t permits = 1) {
        if (permits < 0)
            throw error(REDLATCH_INVALID_ARGUMENT, 0, "permits is negative; give back 0 or more");
        std::unique_ptr<error> first;
        for (; permits > 0; --permits) {
            const std::uint64_t owner = taken_->newest();
            try {
                if (owner == REDLATCH_THREAD)
                    throw error(REDLATCH_NOT_OWNER, 0, "this semaphore has no permit to give back; acquire() first");
                require(redlatch_lock_release(get(), owner));
            } catch (const error &failed) {
                if (!first)
                    first.reset(new error(failed));
            }
            if (owner == REDLATCH_THREAD)
                break;
        }
        if (first)
            throw error(*first);
    }

    /// Takes a permit and gives it back at the end of the guard's scope.
    lock_guard guard() { return lock_guard(permits_, new_owner()); }

    /// How many permits are free now; negative if there were made fewer than are taken.
    std::int64_t available() const {
        std::int64_t available = 0;
        require(redlatch_semaphore_permits(get(), &available, nullptr));
        return available;
    }

    /// How many permits there are, taken ones included.
    std::int64_t limit() const {
        std::int64_t limit = 0;
        require(redlatch_semaphore_permits(get(), nullptr, &limit));
        return limit;
    }

    /// Asks Redis for the queue of a semaphore with the option fair, in the order in which its waiters are served.
    std::vector<redlatch::holder> waiters() const { return permits_.waiters(); }

    /// Gives it so many permits, whatever it had before. Permits that are taken stay taken.
    void set_limit(std::uint32_t limit) { require(redlatch_semaphore_set_permits(get(), limit)); }

    redlatch_lock *get() const noexcept { return permits_.get(); }

private:
    // The owners of the permits that are not in guards.
    struct taken {
        std::mutex own{};
        std::vector<std::uint64_t> owners{};

        void add(std::uint64_t owner) {
            const std::lock_guard<std::mutex> alone(own);
            owners.push_back(owner);
        }

        // REDLATCH_THREAD if there is none.
        std::uint64_t newest() {
            const std::lock_guard<std::mutex> alone(own);
            if (owners.empty())
                return REDLATCH_THREAD;
            const std::uint64_t owner = owners.back();
            owners.pop_back();
            return owner;
        }
    };

    static redlatch_lock *made(const client &client, const std::string &name, std::uint32_t limit,
                               const redlatch_options *options) {
        redlatch_lock *made = nullptr;
        require(redlatch_semaphore_new_n(client.get(), name.data(), name.size(), limit, options, &made));
        return made;
    }

    bool try_ms(std::int64_t wait_ms) {
        const std::uint64_t owner = new_owner();
        if (!detail::granted(redlatch_lock_acquire(get(), owner, wait_ms, REDLATCH_LOCK_LEASE, nullptr)))
            return false;
        taken_->add(owner);
        return true;
    }

    mutex permits_;
    std::unique_ptr<taken> taken_;
};

/// A semaphore without leases, the same as the RSemaphore of Redisson with this name; with the functions of
/// std::counting_semaphore. Permits have no owner: any program gives back what any other took, and those of a program
/// that dies never come back. It can be moved but not copied.
class plain_semaphore {
public:
    plain_semaphore(const client &client, const std::string &name) : handle_() {
        redlatch_plain_semaphore *made = nullptr;
        require(redlatch_plain_semaphore_new_n(client.get(), name.data(), name.size(), &made));
        handle_.reset(made);
    }

    /// Takes so many permits at once, and waits for them as long as it takes.
    void acquire(std::uint32_t permits = 1) {
        require(redlatch_plain_semaphore_acquire(get(), permits, REDLATCH_FOREVER));
    }

    /// Waits until the canceller is cancelled; an error with the code REDLATCH_CANCELLED then.
    void acquire(const canceller &canceller, std::uint32_t permits = 1) {
        require(redlatch_plain_semaphore_acquire_cancellable(get(), permits, REDLATCH_FOREVER, canceller.get()));
    }

#ifdef __cpp_lib_jthread
    void acquire(const std::stop_token &stop, std::uint32_t permits = 1) {
        detail::until(stop, [&](const canceller &canceller) { acquire(canceller, permits); });
    }
#endif

    bool try_acquire(std::uint32_t permits = 1) { return try_ms(permits, 0); }

    template <class Rep, class Period>
    bool try_acquire_for(const std::chrono::duration<Rep, Period> &wait, std::uint32_t permits = 1) {
        return try_ms(permits, detail::wait(wait));
    }

    template <class Clock, class Duration>
    bool try_acquire_until(const std::chrono::time_point<Clock, Duration> &until, std::uint32_t permits = 1) {
        return try_acquire_for(until - Clock::now(), permits);
    }

    /// Gives so many permits back, whoever took them.
    void release(std::uint32_t permits = 1) { require(redlatch_plain_semaphore_release(get(), permits)); }

    /// Gives the semaphore so many permits if it has no number yet; whether it did.
    bool try_set_permits(std::uint32_t permits) {
        bool set = false;
        require(redlatch_plain_semaphore_try_set_permits(get(), permits, &set));
        return set;
    }

    /// Adds permits, or takes some away without waiting for them; the new number.
    std::int64_t add_permits(std::int64_t permits) {
        std::int64_t now = 0;
        require(redlatch_plain_semaphore_add_permits(get(), permits, &now));
        return now;
    }

    /// Takes all permits that there are; how many they were.
    std::int64_t drain() {
        std::int64_t drained = 0;
        require(redlatch_plain_semaphore_drain(get(), &drained));
        return drained;
    }

    /// How many permits there are. It may change at any time.
    std::int64_t available() const {
        std::int64_t available = 0;
        require(redlatch_plain_semaphore_available(get(), &available));
        return available;
    }

    /// NULL, which every call refuses, once it was moved from.
    redlatch_plain_semaphore *get() const noexcept { return handle_.get(); }

private:
    bool try_ms(std::uint32_t permits, std::int64_t wait_ms) {
        return detail::granted(redlatch_plain_semaphore_acquire(get(), permits, wait_ms));
    }

    std::unique_ptr<redlatch_plain_semaphore, detail::deleter> handle_;
};

/// Has permits of a plain semaphore as long as it lives, also if that is moved meanwhile; not if it is destroyed.
class permit_guard {
public:
    explicit permit_guard(plain_semaphore &semaphore, std::uint32_t permits = 1)
        : semaphore_(semaphore.get()), permits_(permits) {
        semaphore.acquire(permits);
    }

    permit_guard(permit_guard &&other) noexcept : semaphore_(other.semaphore_), permits_(other.permits_) {
        other.semaphore_ = nullptr;
    }

    permit_guard &operator=(permit_guard &&other) noexcept {
        std::swap(semaphore_, other.semaphore_);
        std::swap(permits_, other.permits_);
        return *this;
    }

    permit_guard(const permit_guard &) = delete;
    permit_guard &operator=(const permit_guard &) = delete;

    ~permit_guard() {
        if (semaphore_ != nullptr)
            (void)redlatch_plain_semaphore_release(semaphore_, permits_);
    }

    /// Gives the permits back now and tells, as the destructor cannot.
    void release() {
        if (semaphore_ != nullptr) {
            redlatch_plain_semaphore *const taken = semaphore_;
            semaphore_ = nullptr;
            require(redlatch_plain_semaphore_release(taken, permits_));
        }
    }

private:
    redlatch_plain_semaphore *semaphore_; // stays where it is when the semaphore moves
    std::uint32_t permits_;
};

/// A count-down latch, the same as the RCountDownLatch of Redisson with this name. It has count_down, try_wait and wait
/// of std::latch; wait_for and wait_until set a limit. It can be moved but not copied.
class latch {
public:
    latch(const client &client, const std::string &name) : handle_() {
        redlatch_latch *made = nullptr;
        require(redlatch_latch_new_n(client.get(), name.data(), name.size(), &made));
        handle_.reset(made);
    }

    /// Gives the latch this count if it has none; whether it did.
    bool try_set_count(std::uint32_t count) {
        bool set = false;
        require(redlatch_latch_try_set_count(get(), count, &set));
        return set;
    }

    /// Counts down; what is left. At 0 everybody who waits goes on.
    std::int64_t count_down(std::uint32_t by = 1) {
        std::int64_t left = 0;
        require(redlatch_latch_count_down(get(), by, &left));
        return left;
    }

    /// The count; 0 when the latch is open.
    std::int64_t count() const {
        std::int64_t count = 0;
        require(redlatch_latch_count(get(), &count));
        return count;
    }

    /// Waits until the count is 0; at once if it is, or if the latch has no count.
    void wait() const { require(redlatch_latch_wait(get(), REDLATCH_FOREVER)); }

    /// Waits until the canceller is cancelled; an error with the code REDLATCH_CANCELLED then.
    void wait(const canceller &canceller) const {
        require(redlatch_latch_wait_cancellable(get(), REDLATCH_FOREVER, canceller.get()));
    }

#ifdef __cpp_lib_jthread
    void wait(const std::stop_token &stop) const {
        detail::until(stop, [&](const canceller &canceller) { wait(canceller); });
    }
#endif

    /// Whether the count is 0 now.
    bool try_wait() const { return try_ms(0); }

    /// Waits at most this long; whether the count got to 0.
    template <class Rep, class Period> bool wait_for(const std::chrono::duration<Rep, Period> &wait) const {
        return try_ms(detail::wait(wait));
    }

    template <class Clock, class Duration>
    bool wait_until(const std::chrono::time_point<Clock, Duration> &until) const {
        return wait_for(until - Clock::now());
    }

    /// NULL, which every call refuses, once it was moved from.
    redlatch_latch *get() const noexcept { return handle_.get(); }

private:
    bool try_ms(std::int64_t wait_ms) const {
        return detail::granted(redlatch_latch_wait(get(), wait_ms));
    }

    std::unique_ptr<redlatch_latch, detail::deleter> handle_;
};

} // namespace redlatch

#endif // REDLATCH_HPP
