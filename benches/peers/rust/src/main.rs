//! The lock libraries for Rust that the benchmark measures beside ours; arguments and output: see
//! `../../README.md`.
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone)]
struct Args {
    peer: String,
    workload: String,
    url: String,
    seconds: f64,
    warmup: f64,
    tasks: usize,
    locks: usize,
    lease_ms: u64,
    cs_us: u64,
    poll_ms: f64,
    id: usize,
    ts_file: String,
    name: String,
    barrier: bool,
}
fn args() -> Args {
    let mut a = Args {
        peer: "rslock".into(),
        workload: "W1".into(),
        url: "redis://127.0.0.1:6379".into(),
        seconds: 5.0,
        warmup: 0.3,
        tasks: 64,
        locks: 10000,
        lease_ms: 30000,
        cs_us: 1000,
        poll_ms: 0.0,
        id: 0,
        ts_file: String::new(),
        name: "bench".into(),
        barrier: false,
    };
    let v: Vec<String> = std::env::args().skip(1).collect();
    let mut i = 0;
    while i < v.len() {
        if v[i] == "--barrier" {
            a.barrier = true;
            i += 1;
            continue;
        }
        let x = v[i + 1].clone();
        match v[i].as_str() {
            "--peer" => a.peer = x,
            "--workload" => a.workload = x,
            "--url" => a.url = x,
            "--seconds" => a.seconds = x.parse().unwrap(),
            "--warmup" => a.warmup = x.parse().unwrap(),
            "--tasks" => a.tasks = x.parse().unwrap(),
            "--locks" => a.locks = x.parse().unwrap(),
            "--lease-ms" => a.lease_ms = x.parse().unwrap(),
            "--cs-us" => a.cs_us = x.parse().unwrap(),
            "--poll-ms" => a.poll_ms = x.parse().unwrap(),
            "--id" => a.id = x.parse().unwrap(),
            "--ts-file" => a.ts_file = x,
            "--name" => a.name = x,
            o => panic!("argument {o}"),
        }
        i += 2;
    }
    a
}
fn clock(id: libc::clockid_t) -> i64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(id, &mut t) };
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}
fn now() -> i64 {
    clock(libc::CLOCK_MONOTONIC)
}
fn cpu() -> f64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID) as f64 / 1e9
}
fn status_kb(field: &str) -> i64 {
    std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .find(|l| l.starts_with(&format!("{field}:")))
        .and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
fn out(s: String) -> ! {
    println!("{s}");
    std::io::stdout().flush().unwrap();
    unsafe { libc::_exit(0) }
}
fn na(why: &str) -> ! {
    out(format!("{{\"na\":\"{why}\"}}"))
}
fn ready_go(a: &Args) {
    if !a.barrier {
        return;
    }
    println!("READY");
    std::io::stdout().flush().unwrap();
    let mut s = String::new();
    if std::io::stdin().read_line(&mut s).unwrap_or(0) == 0 {
        unsafe { libc::_exit(0) }
    }
}
fn pct(v: &mut [i64], q: f64) -> f64 {
    if v.is_empty() {
        return 0.0;
    }
    v.sort_unstable();
    v[((v.len() as f64 * q) as usize).min(v.len() - 1)] as f64 / 1e3
}

/// Which shares of all times are at most as long as each of the quantiles.
const SHARES: [f64; 12] = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];

/// One library behind one call: acquire, run the critical section, release.
#[derive(Clone)]
enum P {
    Rslock(rslock::LockManager),
    Dlr(Arc<distributed_lock_redis::RedisLockProvider>, Duration),
    RedisLock(Arc<tokio::sync::Mutex<redis027::aio::MultiplexedConnection>>, Duration, Duration),
    Redlock(Arc<redlock::RedLock>),
}
impl P {
    async fn new(a: &Args) -> P {
        match a.peer.as_str() {
            // rslock 0.10: SET NX PX + EVALSHA on one multiplexed connection; retry after random
            // 0..200 ms
            "rslock" => {
                let mut m = rslock::LockManager::new(vec![a.url.clone()]);
                if a.poll_ms > 0.0 {
                    m.set_retry(3, Duration::from_secs_f64(a.poll_ms * 2.0 / 1000.0));
                }
                P::Rslock(m)
            }
            // distributed-lock-redis 0.2 (fred 9): acquire() on one server gives up at once when
            // the lock is held, so the waiting loop is ours: 100 ms by default, --poll-ms when
            // tuned
            "dlr" => {
                let b = distributed_lock_redis::RedisLockProvider::builder()
                    .url(a.url.clone())
                    .expiry(Duration::from_millis(a.lease_ms))
                    .extension_cadence(Duration::from_millis(a.lease_ms / 3))
                    .min_validity(Duration::from_millis(a.lease_ms * 9 / 10));
                P::Dlr(
                    Arc::new(b.build().await.expect("provider")),
                    Duration::from_secs_f64(if a.poll_ms > 0.0 { a.poll_ms } else { 100.0 } / 1000.0),
                )
            }
            // redis-lock 0.5.1 lock_across(): its defaults are TTL 10 ms, retry 100 ms; the tuned
            // row uses the harness's lease
            "redis-lock" => {
                let c = redis027::Client::open(a.url.as_str())
                    .unwrap()
                    .get_multiplexed_async_connection()
                    .await
                    .unwrap();
                let o = redis_lock::LockAcrossOptions::default();
                let (ttl, retry) = if a.poll_ms > 0.0 {
                    (Duration::from_millis(a.lease_ms), Duration::from_secs_f64(a.poll_ms / 1000.0))
                } else {
                    (o.ttl, o.retry)
                };
                P::RedisLock(Arc::new(tokio::sync::Mutex::new(c)), ttl, retry)
            }
            // redlock 2.0.0: synchronous, opens a new TCP connection for every command
            "redlock-rs" => {
                let mut m = redlock::RedLock::new(vec![a.url.clone()]);
                if a.poll_ms > 0.0 {
                    m.set_retry(3, (a.poll_ms * 2.0) as u32);
                }
                P::Redlock(Arc::new(m))
            }
            p => panic!("peer {p}"),
        }
    }
    fn sync_threads(&self) -> bool {
        matches!(self, P::Redlock(_))
    }
    /// Returns (acquired, release called), or None when the library gave up.
    async fn with_lock(&self, name: &str, lease_ms: u64, cs_us: u64) -> Option<(i64, i64)> {
        self.with_lock_as(name, lease_ms, cs_us, usize::MAX).await
    }
    async fn with_lock_as(&self, name: &str, lease_ms: u64, cs_us: u64, me: usize) -> Option<(i64, i64)> {
        // a blocking sleep: tokio's timer would stretch 1 ms to 2 ms, and this process has nothing
        // else to do meanwhile
        let cs = async move {
            let a = now();
            note_holder(me);
            if cs_us > 0 {
                std::thread::sleep(Duration::from_micros(cs_us));
            }
            (a, now())
        };
        match self {
            P::Rslock(m) => {
                let g = m.acquire(name.as_bytes(), Duration::from_millis(lease_ms)).await.ok()?;
                let r = cs.await;
                g.release().await;
                Some(r)
            }
            P::Dlr(p, poll) => {
                let l = p.create_lock(name);
                let h = loop {
                    match l.acquire(None).await {
                        Ok(h) => break h,
                        Err(_) => tokio::time::sleep(*poll).await,
                    }
                };
                let r = cs.await;
                h.release().await.ok()?;
                Some(r)
            }
            P::RedisLock(c, ttl, retry) => {
                let o = redis_lock::LockAcrossOptions { ttl: *ttl, retry: *retry, ..Default::default() };
                redis_lock::lock_across(std::slice::from_ref(c), name, cs, o).await.ok()
            }
            P::Redlock(_) => unreachable!(),
        }
    }
    fn with_lock_sync(&self, name: &str, lease_ms: u64, cs_us: u64, me: usize) -> Option<(i64, i64)> {
        let P::Redlock(m) = self else { unreachable!() };
        let g = m.acquire(name.as_bytes(), lease_ms as usize).ok()?;
        let a = now();
        note_holder(me);
        if cs_us > 0 {
            std::thread::sleep(Duration::from_micros(cs_us));
        }
        let b = now();
        drop(g);
        Some((a, b))
    }
}
/// Run a worker body either as a tokio task or, for the synchronous library, as a thread.
async fn one(p: &P, name: &str, lease: u64, cs: u64) -> Option<(i64, i64)> {
    if p.sync_threads() {
        p.with_lock_sync(name, lease, cs, usize::MAX)
    } else {
        p.with_lock(name, lease, cs).await
    }
}
async fn one_as(p: &P, name: &str, lease: u64, me: usize) -> Option<(i64, i64)> {
    if p.sync_threads() {
        p.with_lock_sync(name, lease, 0, me)
    } else {
        p.with_lock_as(name, lease, 0, me).await
    }
}
/// W4: how often the holder changed (guarded by the lock under test).
static HOLDER: AtomicU64 = AtomicU64::new(u64::MAX - 1);
static HANDOFFS: AtomicU64 = AtomicU64::new(0);
fn note_holder(me: usize) {
    if me != usize::MAX && HOLDER.swap(me as u64, Relaxed) != me as u64 {
        HANDOFFS.fetch_add(1, Relaxed);
    }
}
fn launch<F: std::future::Future<Output = ()> + Send + 'static>(p: &P, f: F) {
    if p.sync_threads() {
        std::thread::Builder::new()
            .stack_size(512 * 1024)
            .spawn(move || {
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
            })
            .unwrap();
    } else {
        tokio::spawn(f);
    }
}
#[derive(Default)]
struct Slot {
    n: AtomicU64,
    since: AtomicI64,
    max: AtomicI64,
    failed: AtomicU64,
    waits: Mutex<Vec<i64>>,
}

#[tokio::main]
async fn main() {
    let a = args();
    let p = P::new(&a).await;
    let warm = |name: String| {
        let (p, a) = (p.clone(), a.clone());
        async move {
            let end = now() + (a.warmup * 1e9) as i64;
            while now() < end {
                one(&p, &name, a.lease_ms, 0).await;
            }
        }
    };
    match a.workload.as_str() {
        "W1" => {
            let name = format!("{}:1", a.name);
            warm(name.clone()).await;
            ready_go(&a);
            let (mut lat, c0, t0) = (Vec::with_capacity(1 << 20), cpu(), now());
            let (mut t, end) = (t0, t0 + (a.seconds * 1e9) as i64);
            while t < end {
                if one(&p, &name, a.lease_ms, 0).await.is_some() {
                    let u = now();
                    lat.push(u - t);
                    t = u;
                } else {
                    t = now();
                }
            }
            let c = cpu() - c0;
            let (n, p50, p99, mx) = (lat.len(), pct(&mut lat, 0.5), pct(&mut lat, 0.99), pct(&mut lat, 1.0));
            let quantiles: Vec<String> = SHARES.iter().map(|q| format!("{:.2}", pct(&mut lat, *q))).collect();
            let (el, quantiles) = ((t - t0) as f64 / 1e9, quantiles.join(","));
            out(format!("{{\"pairs\":{n},\"seconds\":{el:.6},\"p50_us\":{p50:.2},\"p99_us\":{p99:.2},\"max_us\":{mx:.1},\"cpu_s\":{c:.6},\"quantiles_us\":[{quantiles}]}}"));
        }
        "W2" | "W4" => {
            let w4 = a.workload == "W4";
            let slots: Arc<Vec<Slot>> = Arc::new((0..a.tasks).map(|_| Slot::default()).collect());
            let (started, nready) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
            for i in 0..a.tasks {
                let (p2, a2, s, st, nr) =
                    (p.clone(), a.clone(), slots.clone(), started.clone(), nready.clone());
                launch(&p, async move {
                    let name = if w4 { format!("{}:one", a2.name) } else { format!("{}:{i}", a2.name) };
                    let end = now() + (a2.warmup * 1e9) as i64;
                    while now() < end {
                        one(&p2, &name, a2.lease_ms, 0).await;
                    }
                    nr.fetch_add(1, Relaxed);
                    while !st.load(Relaxed) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let me = &s[i];
                    loop {
                        if !w4 {
                            if one(&p2, &name, a2.lease_ms, 0).await.is_some() {
                                me.n.fetch_add(1, Relaxed);
                            }
                            continue;
                        }
                        let b = now();
                        me.since.store(b, Relaxed);
                        let r = loop {
                            match one_as(&p2, &name, a2.lease_ms, i).await {
                                Some(r) => break r,
                                None => {
                                    me.failed.fetch_add(1, Relaxed);
                                }
                            }
                        };
                        let d = r.0 - b;
                        me.since.store(0, Relaxed);
                        me.max.fetch_max(d, Relaxed);
                        me.waits.lock().unwrap().push(d);
                        me.n.fetch_add(1, Relaxed);
                    }
                });
            }
            // A caller that still waits when the others have ended is woken by nobody. It goes on
            // waiting.
            let last = now() + ((a.warmup + 1.0) * 1e9) as i64;
            while nready.load(Relaxed) < a.tasks as u64 && now() < last {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            ready_go(&a);
            let (c0, t0) = (cpu(), now());
            started.store(true, Relaxed);
            tokio::task::spawn_blocking({
                let s = a.seconds;
                move || std::thread::sleep(Duration::from_secs_f64(s))
            })
            .await
            .unwrap();
            let (t1, c) = (now(), cpu() - c0);
            let el = (t1 - t0) as f64 / 1e9;
            let counts: Vec<f64> = slots.iter().map(|s| s.n.load(Relaxed) as f64).collect();
            let (sum, sq) = (counts.iter().sum::<f64>(), counts.iter().map(|x| x * x).sum::<f64>());
            if !w4 {
                out(format!(
                    "{{\"pairs\":{},\"seconds\":{el:.6},\"cpu_s\":{c:.6},\"threads\":{}}}",
                    sum as u64,
                    status_kb("Threads")
                ));
            }
            let mx = slots
                .iter()
                .map(|s| {
                    let b = s.since.load(Relaxed);
                    s.max.load(Relaxed).max(if b > 0 { t1 - b } else { 0 })
                })
                .max()
                .unwrap();
            let mut w: Vec<i64> = slots.iter().flat_map(|s| s.waits.lock().unwrap().clone()).collect();
            let failed: u64 = slots.iter().map(|s| s.failed.load(Relaxed)).sum();
            out(format!("{{\"acq\":{},\"seconds\":{el:.6},\"max_wait_ms\":{:.3},\"p99_wait_ms\":{:.3},\"jain\":{:.4},\"cpu_s\":{c:.6},\"failed\":{failed},\"handoffs\":{}}}",
                sum as u64, mx as f64 / 1e6, pct(&mut w, 0.99) / 1e3, if sq > 0.0 { sum * sum / (counts.len() as f64 * sq) } else { 0.0 }, HANDOFFS.load(Relaxed)));
        }
        "W3" => {
            let name = format!("{}:w3", a.name);
            warm(format!("{}:warm{}", a.name, a.id)).await;
            let ts: Arc<Mutex<Vec<(i64, i64, i64)>>> = Arc::default();
            let failed = Arc::new(AtomicU64::new(0));
            ready_go(&a);
            let (c0, t0) = (cpu(), now());
            let (p2, a2, ts2, f2) = (p.clone(), a.clone(), ts.clone(), failed.clone());
            launch(&p, async move {
                loop {
                    match one(&p2, &name, a2.lease_ms, a2.cs_us).await {
                        Some((x, y)) => ts2.lock().unwrap().push((x, y, now())),
                        None => {
                            f2.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
            tokio::task::spawn_blocking({
                let s = a.seconds;
                move || std::thread::sleep(Duration::from_secs_f64(s))
            })
            .await
            .unwrap();
            let (c, el, v) = (cpu() - c0, (now() - t0) as f64 / 1e9, ts.lock().unwrap());
            let mut f = std::io::BufWriter::new(std::fs::File::create(&a.ts_file).unwrap());
            for (x, y, z) in v.iter() {
                writeln!(f, "{x} {y} {z}").unwrap();
            }
            f.flush().unwrap();
            out(format!(
                "{{\"acq\":{},\"seconds\":{el:.6},\"cpu_s\":{c:.6},\"failed\":{}}}",
                v.len(),
                failed.load(Relaxed)
            ));
        }
        "W5" => {
            if !p.sync_threads() {
                one(&p, &format!("{}:warm", a.name), a.lease_ms, 0).await;
            }
            let (rss0, a0) = (status_kb("VmRSS"), now());
            let mut handles = Vec::new();
            match &p {
                P::Rslock(m) => {
                    // using() is the crate's only renewing call: one task per lock, extended 0.5 s
                    // before the end of validity
                    let held = Arc::new(AtomicU64::new(0));
                    let ls = tokio::task::LocalSet::new();
                    let (n, lease, m, h2, a2) = (a.locks, a.lease_ms, m.clone(), held.clone(), a.clone());
                    ls.run_until(async move {
                        for i in 0..n {
                            let (m, h, name) = (m.clone(), h2.clone(), format!("{}:{i}", a2.name));
                            tokio::task::spawn_local(async move {
                                let r = m
                                    .using(name.as_bytes(), Duration::from_millis(lease), async || {
                                        h.fetch_add(1, Relaxed);
                                        std::future::pending::<()>().await
                                    })
                                    .await;
                                eprintln!("using() ended: {:?}", r.err());
                            });
                            while h2.load(Relaxed) < i as u64 {
                                tokio::task::yield_now().await;
                            } // acquire one after the other
                        }
                        while h2.load(Relaxed) < n as u64 {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        let acq = (now() - a0) as f64 / 1e9;
                        tokio::task::spawn_blocking({
                            let a = a2.clone();
                            move || ready_go(&a)
                        })
                        .await
                        .unwrap();
                        let (c0, t0) = (cpu(), now());
                        tokio::time::sleep(Duration::from_secs_f64(a2.seconds)).await;
                        finish5(&a2, c0, t0, rss0, acq);
                    })
                    .await;
                }
                P::Dlr(pr, _) => {
                    for i in 0..a.locks {
                        handles.push(
                            pr.create_lock(&format!("{}:{i}", a.name)).acquire(None).await.expect("acquire"),
                        );
                    }
                    let acq = (now() - a0) as f64 / 1e9;
                    tokio::task::spawn_blocking({
                        let a = a.clone();
                        move || ready_go(&a)
                    })
                    .await
                    .unwrap();
                    let (c0, t0) = (cpu(), now());
                    tokio::time::sleep(Duration::from_secs_f64(a.seconds)).await;
                    finish5(&a, c0, t0, rss0, acq);
                }
                P::RedisLock(..) => na("no automatic renewal (the lock is bounded by its TTL)"),
                P::Redlock(..) => na("no automatic renewal"),
            }
        }
        w => na(&format!("unknown workload {w}")),
    }
}
fn finish5(a: &Args, c0: f64, t0: i64, rss0: i64, acq: f64) -> ! {
    out(format!("{{\"locks\":{},\"seconds\":{:.3},\"cpu_s\":{:.6},\"rss_before_kb\":{rss0},\"rss_after_kb\":{},\"threads\":{},\"acquire_s\":{acq:.3}}}",
        a.locks, (now() - t0) as f64 / 1e9, cpu() - c0, status_kb("VmRSS"), status_kb("Threads")))
}
