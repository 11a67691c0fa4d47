// redlatch.hpp: what frees itself, what throws, and that the standard library can use it.
#include <redlatch.hpp>

#include <atomic>
#include <cstdio>
#include <iterator>
#include <mutex>
#if __cplusplus >= 201402L
#include <shared_mutex>
#endif
#include <thread>
#include <type_traits>
#include <vector>

namespace {

int failed;

void check_that(bool holds, const char *condition, int line) {
    if (!holds) {
        failed++;
        std::printf("  raii.cpp:%d: %s is not so; last error: %s\n", line, condition, redlatch_last_error());
    }
}

#define CHECK(condition) check_that(condition, #condition, __LINE__)

template <class F> redlatch_status thrown_by(F call) {
    try {
        call();
        return REDLATCH_OK;
    } catch (const redlatch::error &error) {
        CHECK(error.what() != nullptr && error.what()[0] != '\0');
        return error.code();
    }
}

const std::chrono::seconds LIMIT(30);
constexpr std::uint64_t SECOND = 2; // an owner

void handles_move_and_do_not_copy() {
    static_assert(!std::is_copy_constructible<redlatch::client>::value, "");
    static_assert(!std::is_copy_constructible<redlatch::mutex>::value, "");
    static_assert(!std::is_copy_constructible<redlatch::lock_guard>::value, "");
    static_assert(!std::is_copy_assignable<redlatch::lock_guard>::value, "");
    static_assert(std::is_nothrow_move_constructible<redlatch::lock_guard>::value, "");
    static_assert(std::is_nothrow_move_assignable<redlatch::lock_guard>::value, "");
    static_assert(std::is_move_constructible<redlatch::client>::value, "");
    static_assert(std::is_move_constructible<redlatch::mutex>::value, "");

    redlatch::client first;
    redlatch::client client(std::move(first));
    redlatch::mutex made(client, "cpp:move");
    redlatch::mutex mutex(std::move(made));
    redlatch::mutex other(client, "cpp:move:2");
    redlatch::lock_guard outer(mutex);
    {
        redlatch::lock_guard inner(std::move(outer));
        CHECK(inner.is_held() && !outer.is_held());
        CHECK(thrown_by([&] { outer.check(); }) == REDLATCH_NOT_OWNER);
        outer = redlatch::lock_guard(other);
        std::swap(outer, inner);
    }
    CHECK(mutex.is_locked() && !other.is_locked());
    outer.release();
    outer.release(); // nothing left to release
    CHECK(!mutex.is_locked());
    client.close();
}

void a_mutex_moves_under_its_guard() {
    redlatch::client client;
    std::vector<redlatch::mutex> all;
    all.emplace_back(client, "cpp:under");
    {
        redlatch::lock_guard held(all[0]);
        std::vector<redlatch::mutex> moved(std::make_move_iterator(all.begin()), std::make_move_iterator(all.end()));
        CHECK(held.is_held() && moved[0].is_held() && !all[0].is_held());
        held.check();
        CHECK(thrown_by([&] { all[0].acquire(); }) == REDLATCH_INVALID_ARGUMENT);
        CHECK(thrown_by([&] { all[0].on_lost(nullptr); }) == REDLATCH_INVALID_ARGUMENT);
        all = std::move(moved);
    }
    CHECK(!all[0].is_locked());
    redlatch::client other(std::move(client));
    CHECK(thrown_by([&] { client.close(); }) == REDLATCH_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { redlatch::mutex bad(client, "cpp:under"); }) == REDLATCH_INVALID_ARGUMENT);
    other.close();
}

void scopes_release() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:scope", {{"fencing", "true"}, {"watchdog_lease", "10s"}});
    std::uint64_t token = 0;
    try {
        redlatch::lock_guard held(mutex);
        token = held.fencing_token();
        CHECK(token > 0 && token == mutex.fencing_token());
        CHECK(mutex.remaining() > std::chrono::seconds(5));
        redlatch::lock_guard again(mutex);
        CHECK(mutex.hold_count() == 2 && again.fencing_token() == token);
        throw 1;
    } catch (int) {
    }
    CHECK(mutex.hold_count() == 0 && !mutex.is_locked());
    redlatch::lock_guard next(mutex, LIMIT);
    CHECK(next.fencing_token() > token);
}

void the_standard_library_can_use_it() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:std"), second(client, "cpp:std:2");
    int value = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int round = 0; round < 10; round++) {
                std::lock_guard<redlatch::mutex> held(mutex);
                value++;
            }
        });
    for (auto &thread : threads)
        thread.join();
    CHECK(value == 40);

    std::unique_lock<redlatch::mutex> held(mutex);
    std::thread([&] {
        CHECK(!mutex.try_lock());
        CHECK(!mutex.try_lock_for(std::chrono::milliseconds(20)));
        CHECK(!mutex.try_lock_for(std::chrono::microseconds(-5)));
        CHECK(!mutex.try_lock_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
        CHECK(!mutex.try_lock_until(std::chrono::system_clock::now() - std::chrono::hours(1)));
        CHECK(thrown_by([&] { redlatch::lock_guard late(mutex, std::chrono::milliseconds(1)); }) ==
              REDLATCH_TIMEOUT);
        mutex.unlock(); // not ours: nothing happens
    }).join();
    CHECK(mutex.is_held());
    held.unlock();
    CHECK(held.try_lock_for(LIMIT));
    held.unlock();

    std::lock(mutex, second);
    CHECK(mutex.is_held() && second.is_held());
    mutex.unlock();
    second.unlock();
    client.close(LIMIT);
}

void a_guard_may_go_to_another_thread() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:go");
    redlatch::lock_guard guard(mutex, std::uint64_t(77));
    std::thread([&] {
        redlatch::lock_guard mine(std::move(guard));
        CHECK(mine.is_held());
        mine.check();
    }).join();
    CHECK(!mutex.is_locked());
}

void errors_have_code_and_text() {
    redlatch::client client;
    CHECK(thrown_by([] { redlatch::client bad("nonsense"); }) == REDLATCH_INVALID_ARGUMENT);
    CHECK(thrown_by([] { redlatch::options bad{{"leese", "1s"}}; }) == REDLATCH_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { redlatch::mutex bad(client, ""); }) == REDLATCH_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { client.stats("nothing"); }) == REDLATCH_INVALID_ARGUMENT);
    redlatch::mutex mutex(client, std::string("cpp:\0nul", 8));
    CHECK(thrown_by([&] { mutex.release(); }) == REDLATCH_NOT_OWNER);
    CHECK(thrown_by([&] { mutex.check(); }) == REDLATCH_NOT_OWNER);
    CHECK(thrown_by([&] { mutex.acquire(redlatch::lease(std::chrono::hours(24 * 365 * 200))); }) == REDLATCH_INVALID_ARGUMENT);
    redlatch::lock_guard held(mutex);
    mutex.extend(std::chrono::minutes(2));
    CHECK(mutex.remaining() > std::chrono::minutes(1));
    CHECK(mutex.force_release());
    try {
        for (auto give_up = std::chrono::steady_clock::now() + LIMIT; std::chrono::steady_clock::now() < give_up;)
            held.check();
        CHECK(!"told of the loss");
    } catch (const redlatch::error &error) {
        CHECK(error.code() == REDLATCH_LOST && error.lost_reason() == REDLATCH_LOST_FORCED && !error.retryable());
    }
    CHECK(thrown_by([&] { held.release(); }) == REDLATCH_LOST);
    client.close();
    CHECK(thrown_by([&] { mutex.lock(); }) == REDLATCH_CLOSED);
}

void a_lease_is_for_one_acquisition() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:lease");
    const redlatch::lease lease(std::chrono::hours(1));
    CHECK(mutex.holder().owner.empty() && mutex.holder().count == 0);
    CHECK(thrown_by([&] { mutex.waiters(); }) == REDLATCH_INVALID_ARGUMENT);
    {
        redlatch::lock_guard held(mutex, lease);
        CHECK(mutex.remaining() > std::chrono::minutes(50));
        mutex.acquire_for(LIMIT, lease);
        const redlatch::holder holder = mutex.holder();
        CHECK(!holder.owner.empty() && holder.count == 2 && holder.remaining > std::chrono::minutes(50));
        mutex.release();
    }
    redlatch::lock_guard next(mutex);
    CHECK(mutex.remaining() < std::chrono::minutes(1));
    CHECK(thrown_by([&] { mutex.acquire(redlatch::lease(std::chrono::seconds(-1))); }) == REDLATCH_INVALID_ARGUMENT);
}

void a_lazy_client_connects_when_it_is_used() {
    redlatch::client client = redlatch::client::lazy();
    CHECK(client.stats("connects") == 0);
    redlatch::mutex mutex(client, "cpp:lazy");
    const redlatch::lock_guard held(mutex);
    CHECK(client.stats("connects") > 0);
    CHECK(thrown_by([] { redlatch::client::lazy("nothing"); }) == REDLATCH_INVALID_ARGUMENT);
}

void a_new_owner_is_nobody_else() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:owner");
    const std::uint64_t owner = redlatch::new_owner();
    redlatch::lock_guard held(mutex, owner);
    CHECK(mutex.is_held(owner) && !mutex.is_held(redlatch::new_owner()));
    held.release();
    CHECK(!mutex.is_held(owner));
}

void a_holder_may_have_a_long_name() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:long", {{"kind", "simple"}});
    const std::string token(512, 't'); // the longest there is
    mutex.set_token(token.c_str());
    redlatch::lock_guard held(mutex);
    CHECK(mutex.holder().owner == token);
}

void events_call_what_was_captured() {
    redlatch::client client;
    std::atomic<int> told(0);
    client.on_event([&](std::int32_t level, const char *kind, const char *lock, const char *text) {
        if (std::string(kind) == "lost") {
            CHECK(level == REDLATCH_LEVEL_WARN && std::string(lock) == "cpp:event" && text[0] != '\0');
            told++;
        }
    });
    redlatch::client moved(std::move(client)); // still registered
    redlatch::mutex mutex(moved, "cpp:event");
    auto lose = [&] {
        mutex.acquire();
        mutex.force_release();
        CHECK(thrown_by([&] { mutex.release(); }) == REDLATCH_LOST);
    };
    lose();
    for (auto give_up = std::chrono::steady_clock::now() + LIMIT;
         told == 0 && std::chrono::steady_clock::now() < give_up;)
        std::this_thread::yield();
    moved.on_event(nullptr);
    CHECK(told == 1);
    lose();
    moved.close();
    CHECK(told == 1);
}

void a_loss_calls_what_it_captured() {
    redlatch::client client;
    std::atomic<int> calls(0), reason(0);
    {
        redlatch::mutex mutex(client, "cpp:lost");
        mutex.on_lost([&](std::uint64_t owner, std::uint64_t, redlatch_lost_reason why) {
            reason = owner == 5 ? why : -1;
            calls++;
        });
        redlatch::mutex moved(std::move(mutex)); // still registered
        moved.acquire(std::uint64_t(5));
        moved.force_release();
        for (auto give_up = std::chrono::steady_clock::now() + LIMIT;
             calls == 0 && std::chrono::steady_clock::now() < give_up;)
            std::this_thread::yield();
        CHECK(calls == 1 && reason == REDLATCH_LOST_FORCED);
        CHECK(thrown_by([&] { moved.release(std::uint64_t(5)); }) == REDLATCH_LOST);
        moved.on_lost(nullptr);
        moved.acquire(std::uint64_t(5));
        moved.force_release();
    }
    client.close();
    CHECK(calls == 1);
}

std::uint64_t waiting(const redlatch::client &client) {
    std::uint64_t count = 0;
    CHECK(redlatch_client_stats(client.get(), "waiting", &count) == REDLATCH_OK);
    return count;
}

// Has `wait` called on another thread, and once it waits `cancel` on this one.
template <class Wait, class Cancel>
redlatch_status cancelled_by(const redlatch::client &client, Wait wait, Cancel cancel) {
    redlatch_status status = REDLATCH_OK;
    std::thread thread([&] { status = thrown_by(wait); });
    while (waiting(client) == 0)
        std::this_thread::yield();
    cancel();
    thread.join();
    CHECK(waiting(client) == 0);
    return status;
}

void another_thread_ends_a_wait() {
    static_assert(!std::is_copy_constructible<redlatch::canceller>::value, "");
    static_assert(std::is_nothrow_move_constructible<redlatch::canceller>::value, "");
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:cancel");
    redlatch::lock_guard held(mutex, std::uint64_t(1));
    const redlatch::canceller canceller, guarded, timed;
    CHECK(!canceller.is_cancelled());
    CHECK(cancelled_by(client, [&] { mutex.acquire(canceller, SECOND); }, [&] { canceller.cancel(); }) ==
          REDLATCH_CANCELLED);
    CHECK(canceller.is_cancelled());
    CHECK(cancelled_by(client, [&] { redlatch::lock_guard never(mutex, guarded, SECOND); }, [&] { guarded.cancel(); }) ==
          REDLATCH_CANCELLED);
    CHECK(cancelled_by(client, [&] { mutex.acquire_for(std::chrono::hours(1), timed, SECOND); }, [&] { timed.cancel(); }) ==
          REDLATCH_CANCELLED);
    held.release();
    const redlatch::canceller unused;
    redlatch::lock_guard granted(mutex, unused);
    CHECK(granted.is_held());
}

#ifdef __cpp_lib_jthread
void a_stop_token_ends_a_wait() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:stop");
    redlatch::lock_guard held(mutex, std::uint64_t(1));
    redlatch_status status = REDLATCH_OK;
    std::jthread thread([&](const std::stop_token &stop) { status = thrown_by([&] { mutex.acquire(stop, SECOND); }); });
    while (waiting(client) == 0)
        std::this_thread::yield();
    thread.request_stop();
    thread.join();
    CHECK(status == REDLATCH_CANCELLED);
    std::stop_source source;
    CHECK(cancelled_by(client, [&] { mutex.acquire_for(std::chrono::hours(1), source.get_token(), SECOND); },
                       [&] { source.request_stop(); }) == REDLATCH_CANCELLED);
    // It was stopped before the wait began.
    CHECK(thrown_by([&] { redlatch::lock_guard never(mutex, source.get_token(), SECOND); }) == REDLATCH_CANCELLED);
    held.release();
    redlatch::lock_guard granted(mutex, std::stop_token(), SECOND);
    CHECK(granted.is_held());
}
#endif

} // namespace

void a_multi_mutex_is_all_of_its_mutexes() {
    redlatch::client client, other;
    redlatch::mutex one(client, "cpp:multi:1"), two(client, "cpp:multi:2"), theirs(other, "cpp:multi:2");
    const std::vector<std::string> names = {"cpp:multi:2", "cpp:multi:1"};
    redlatch::multi_mutex named(client, {"cpp:multi:2", "cpp:multi:1"}), both(client, {&one, &two}), same(client, names);
    CHECK(same.try_lock());
    same.unlock();
    {
        const redlatch::lock_guard held(both);
        CHECK(one.is_held() && two.is_held() && both.is_held());
        CHECK(!theirs.try_lock());
    }
    theirs.lock();
    CHECK(!named.try_lock());
    std::thread waiter([&] { const std::lock_guard<redlatch::multi_mutex> held(named); });
    theirs.release();
    waiter.join();
    CHECK(!named.is_held() && theirs.try_lock());
    theirs.release();
    CHECK(thrown_by([&] { redlatch::multi_mutex(client, {&one, &one}); }) == REDLATCH_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { redlatch::multi_mutex(client, std::vector<const redlatch::mutex *>()); }) ==
          REDLATCH_INVALID_ARGUMENT);
}

void a_semaphore_has_so_many_owners_as_permits() {
    redlatch::client client, other;
    redlatch::semaphore here(client, "cpp:semaphore", 3), there(other, "cpp:semaphore", 3);
    // A test before may have left another number.
    here.set_limit(3);
    std::atomic<int> inside(0), most(0);
    std::vector<std::thread> threads;
    for (int at = 0; at < 8; at++)
        threads.emplace_back([&, at] {
            for (int round = 0; round < 20; round++) {
                const redlatch::lock_guard permit = (at % 2 == 0 ? here : there).guard();
                const int now = ++inside;
                int before = most;
                while (now > before && !most.compare_exchange_weak(before, now)) {}
                --inside;
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    CHECK(most >= 1 && most <= 3);
    CHECK(here.available() == 3 && here.limit() == 3);
    here.acquire();
    CHECK(here.try_acquire() && there.try_acquire_for(LIMIT) && !there.try_acquire());
    CHECK(there.available() == 0);
    std::thread([&] { here.release(2); }).join();
    CHECK(thrown_by([&] { here.release(); }) == REDLATCH_NOT_OWNER);
    there.release();
    CHECK(thrown_by([&] { here.waiters(); }) == REDLATCH_INVALID_ARGUMENT); // it is not fair
    there.set_limit(5);
    CHECK(here.available() == 5);
}

void a_release_of_several_permits_gives_all_back() {
    redlatch::client client;
    redlatch::semaphore permits(client, "cpp:several", 3);
    for (int i = 0; i < 3; i++)
        permits.acquire();
    CHECK(redlatch_lock_force_release(permits.get(), nullptr) == REDLATCH_OK);
    CHECK(thrown_by([&] { permits.release(3); }) == REDLATCH_LOST);
    CHECK(thrown_by([&] { permits.release(); }) == REDLATCH_NOT_OWNER); // none is left to give back
    CHECK(thrown_by([&] { permits.release(-3); }) == REDLATCH_INVALID_ARGUMENT);
}

template <class Number, class = void> struct takes : std::false_type {};
template <class Number>
struct takes<Number, decltype(void(std::declval<redlatch::mutex &>().acquire(std::declval<Number>())))> : std::true_type {};

template <class Number, class = void> struct adopts : std::false_type {};

template <class Number>
struct adopts<Number, decltype(void(std::declval<redlatch::mutex &>().adopt("", std::declval<Number>())))> : std::true_type {};

void a_bare_number_is_no_owner() {
    static_assert(!takes<int>::value && !takes<long>::value && !takes<unsigned>::value && !takes<double>::value, "");
    static_assert(!std::is_constructible<redlatch::lock_guard, redlatch::mutex &, int>::value, "");
    static_assert(takes<std::uint64_t>::value && takes<redlatch::owner>::value, "");
    static_assert(std::is_constructible<redlatch::lock_guard, redlatch::mutex &, std::uint64_t>::value, "");
    static_assert(!adopts<int>::value && adopts<std::uint64_t>::value, "");
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:thread");
    mutex.acquire(REDLATCH_THREAD);
    CHECK(mutex.is_held() && mutex.is_held(redlatch::owner()));
    mutex.release();
}

void a_wait_of_max_is_for_ever() {
    redlatch::client client;
    redlatch::mutex mutex(client, "cpp:max");
    CHECK(mutex.try_lock_for(std::chrono::hours::max()));
    CHECK(mutex.try_lock_until(std::chrono::steady_clock::time_point::max()));
    CHECK(mutex.try_lock_until(std::chrono::system_clock::time_point::max()));
    mutex.acquire_for(std::chrono::milliseconds::max());
    CHECK(mutex.hold_count() == 4);
    CHECK(thrown_by([&] { mutex.extend(std::chrono::hours::max()); }) == REDLATCH_INVALID_ARGUMENT);
    for (int i = 0; i < 4; i++)
        mutex.unlock();
    redlatch::plain_semaphore seats(client, "cpp:max:seats");
    seats.try_set_permits(1);
    CHECK(seats.try_acquire_for(std::chrono::hours::max()));
    seats.release();
    CHECK(redlatch::latch(client, "cpp:max:latch").wait_for(std::chrono::hours::max()));
}

void counters_have_no_owner() {
    static_assert(!std::is_copy_constructible<redlatch::plain_semaphore>::value, "");
    static_assert(std::is_nothrow_move_constructible<redlatch::permit_guard>::value, "");
    static_assert(std::is_nothrow_move_constructible<redlatch::latch>::value, "");
    redlatch::client client, other;
    redlatch::plain_semaphore made(client, "cpp:seats"), there(other, "cpp:seats");
    there.drain();
    CHECK(there.add_permits(1) == 1);
    CHECK(!there.try_set_permits(9));
    CHECK(there.add_permits(2) == 3);
    {
        redlatch::permit_guard two(made, 2);
        redlatch::plain_semaphore here(std::move(made)); // the guard stays with it
        redlatch::permit_guard moved(std::move(two));
        two.release(); // has nothing any more
        CHECK(there.available() == 1 && !there.try_acquire(2));
        CHECK(here.try_acquire_for(LIMIT) && !here.try_acquire_until(std::chrono::steady_clock::now()));
        there.release();
        moved.release();
        CHECK(there.available() == 3);
        redlatch::permit_guard again(here);
        CHECK(thrown_by([&] { here.acquire(0); }) == REDLATCH_INVALID_ARGUMENT);
        again = redlatch::permit_guard(here);
        CHECK(there.available() == 2);
    }
    CHECK(there.available() == 3 && there.drain() == 3);

    redlatch::latch ready(client, "cpp:ready"), seen(other, "cpp:ready");
    ready.count_down(9);
    CHECK(ready.try_set_count(2) && !seen.try_set_count(3) && !seen.try_wait());
    CHECK(seen.count_down() == 1 && seen.count() == 1);
    redlatch::canceller canceller;
    canceller.cancel();
    CHECK(thrown_by([&] { seen.wait(canceller); }) == REDLATCH_CANCELLED);
    CHECK(thrown_by([&] { there.acquire(canceller); }) == REDLATCH_CANCELLED);
    std::thread counts([&] { ready.count_down(); });
    seen.wait();
    counts.join();
    CHECK(seen.try_wait() && seen.wait_for(LIMIT) && seen.wait_until(std::chrono::steady_clock::now()));
    client.close();
    other.close();
}

void a_shared_mutex_is_shared_or_alone() {
    redlatch::client client, other;
    redlatch::shared_mutex here(client, "cpp:shared"), there(other, "cpp:shared");
    here.lock_shared();
    CHECK(!there.try_lock() && there.try_lock_shared() && !here.write().is_locked());
    CHECK(here.read().holders().size() == 2);
    const redlatch::holder one = here.read().holder();
    CHECK(one.count == 1 && one.language == "c" && one.pid != 0 && !one.host.empty());
    CHECK(here.write().holder().owner.empty());
    CHECK(thrown_by([&] { here.lock(); }) == REDLATCH_WOULD_DEADLOCK);
    there.unlock_shared();
    here.unlock_shared();
    {
        const std::lock_guard<redlatch::shared_mutex> alone(here);
        CHECK(!there.try_lock_shared() && !there.try_lock_for(std::chrono::seconds(1)));
        here.lock_shared(); // it reads what it writes
    }
    CHECK(here.read().is_held() && !here.write().is_held() && there.try_lock_shared_for(LIMIT));
    there.unlock_shared();
    here.unlock_shared();
    CHECK(there.try_lock_until(std::chrono::steady_clock::now() + LIMIT));
    there.unlock();
#if __cplusplus >= 201402L
    const std::shared_lock<redlatch::shared_mutex> reader(here);
    CHECK(reader.owns_lock() && there.try_lock_shared());
    there.unlock_shared();
#endif
    redlatch::shared_mutex odd(client, std::string("cpp:n\0ul", 8)), moved(std::move(odd));
    moved.lock();
    CHECK(moved.write().is_locked());
    moved.unlock();
    CHECK(thrown_by([&] { redlatch::shared_mutex(client, ""); }) == REDLATCH_INVALID_ARGUMENT);
}

int main() {
    const std::pair<const char *, void (*)()> tests[] = {
        {"handles_move_and_do_not_copy", handles_move_and_do_not_copy},
        {"a_mutex_moves_under_its_guard", a_mutex_moves_under_its_guard},
        {"scopes_release", scopes_release},
        {"the_standard_library_can_use_it", the_standard_library_can_use_it},
        {"a_guard_may_go_to_another_thread", a_guard_may_go_to_another_thread},
        {"errors_have_code_and_text", errors_have_code_and_text},
        {"a_lease_is_for_one_acquisition", a_lease_is_for_one_acquisition},
        {"a_lazy_client_connects_when_it_is_used", a_lazy_client_connects_when_it_is_used},
        {"a_release_of_several_permits_gives_all_back", a_release_of_several_permits_gives_all_back},
        {"a_bare_number_is_no_owner", a_bare_number_is_no_owner},
        {"a_wait_of_max_is_for_ever", a_wait_of_max_is_for_ever},
        {"a_new_owner_is_nobody_else", a_new_owner_is_nobody_else},
        {"a_holder_may_have_a_long_name", a_holder_may_have_a_long_name},
        {"events_call_what_was_captured", events_call_what_was_captured},
        {"a_loss_calls_what_it_captured", a_loss_calls_what_it_captured},
        {"a_multi_mutex_is_all_of_its_mutexes", a_multi_mutex_is_all_of_its_mutexes},
        {"a_semaphore_has_so_many_owners_as_permits", a_semaphore_has_so_many_owners_as_permits},
        {"counters_have_no_owner", counters_have_no_owner},
        {"a_shared_mutex_is_shared_or_alone", a_shared_mutex_is_shared_or_alone},
        {"another_thread_ends_a_wait", another_thread_ends_a_wait},
#ifdef __cpp_lib_jthread
        {"a_stop_token_ends_a_wait", a_stop_token_ends_a_wait},
#endif
    };
    int all = 0;
    for (const auto &test : tests) {
        failed = 0;
        try {
            test.second();
        } catch (const std::exception &error) {
            failed++;
            std::printf("  thrown: %s\n", error.what());
        }
        all += failed;
        std::printf("%s %s\n", failed == 0 ? "ok" : "FAILED", test.first);
    }
    return all != 0;
}
