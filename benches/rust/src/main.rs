//! The workloads W1 to W5 for the Rust face; see `benches/README.md` for arguments and output.

mod args;
mod report;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use args::Args;
use redlatch::{Client, LockOptions};
use report::{Usage, jain, json, percentile};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// The time a workload runs, and what the process has used until it began.
struct Window {
    begun: Instant,
    end: Instant,
    usage: Usage,
}

impl Window {
    fn open(seconds: f64) -> Self {
        let begun = Instant::now();
        Window { begun, end: begun + Duration::from_secs_f64(seconds), usage: Usage::now() }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn cpu(&self) -> f64 {
        Usage::now().cpu - self.usage.cpu
    }
}

/// Tells the driver of the benchmark that we are ready and waits for its word.
fn barrier(args: &Args) -> Result<(), Failure> {
    if args.barrier {
        println!("READY");
        std::io::stdin().read_line(&mut String::new())?;
    }
    Ok(())
}

async fn client(args: &Args) -> Result<Client, Failure> {
    let lease = LockOptions::new().watchdog_lease(args.lease);
    let client = Client::builder(&args.url).lock_options(lease).build()?;
    client.ready().await?;
    Ok(client)
}

/// W1: one caller, one name.
async fn one_caller(args: &Args) -> Result<(), Failure> {
    let client = client(args).await?;
    let lock = client.lock(&format!("{}:1", args.name))?;
    let warm = Instant::now() + args.warmup;
    while Instant::now() < warm {
        lock.acquire().await?.release().await?;
    }
    barrier(args)?;
    let window = Window::open(args.seconds);
    let mut times = Vec::with_capacity(1 << 20);
    while !window.is_over() {
        let begun = Instant::now();
        lock.acquire().await?.release().await?;
        times.push(begun.elapsed().as_nanos() as f64 / 1000.0);
    }
    let (seconds, cpu) = (window.seconds(), window.cpu());
    times.sort_by(f64::total_cmp);
    json(&[
        ("pairs", times.len() as f64),
        ("seconds", seconds),
        ("p50_us", percentile(&times, 0.5)),
        ("p99_us", percentile(&times, 0.99)),
        ("max_us", times.last().copied().unwrap_or_default()),
        ("cpu_s", cpu),
    ]);
    Ok(())
}

/// W2: many callers, each its own name.
async fn many_names(args: &Args) -> Result<(), Failure> {
    let client = client(args).await?;
    let warm = client.lock(&format!("{}:warm", args.name))?;
    let end = Instant::now() + args.warmup;
    while Instant::now() < end {
        warm.acquire().await?.release().await?;
    }
    barrier(args)?;
    let window = Arc::new(Window::open(args.seconds));
    let mut callers = JoinSet::new();
    for task in 0..args.tasks {
        let (lock, window) = (client.lock(&format!("{}:{task}", args.name))?, window.clone());
        callers.spawn(async move {
            let mut pairs = 0u64;
            while !window.is_over() {
                lock.acquire().await?.release().await?;
                pairs += 1;
            }
            Ok::<u64, redlatch::Error>(pairs)
        });
    }
    let mut pairs = 0;
    while let Some(done) = callers.join_next().await {
        pairs += done??;
    }
    let threads = Usage::now().threads;
    json(&[
        ("pairs", pairs as f64),
        ("seconds", window.seconds()),
        ("cpu_s", window.cpu()),
        ("threads", threads as f64),
    ]);
    Ok(())
}

/// W3: one of several processes on one name, with work inside.
async fn hand_over_between_processes(args: &Args) -> Result<(), Failure> {
    let client = client(args).await?;
    let lock = client.lock(&format!("{}:w3", args.name))?;
    barrier(args)?;
    let window = Window::open(args.seconds);
    let mut lines = String::new();
    let mut acquired = 0u64;
    while !window.is_over() {
        let left = window.end.saturating_duration_since(Instant::now());
        let Ok(guard) = lock.acquire_timeout(left).await else { break };
        let since = report::monotonic_ns();
        std::thread::sleep(args.inside);
        let called = report::monotonic_ns();
        guard.release().await?;
        lines.push_str(&format!("{since} {called} {}\n", report::monotonic_ns()));
        acquired += 1;
    }
    if let Some(file) = &args.ts_file {
        std::fs::write(file, lines)?;
    }
    json(&[("acq", acquired as f64), ("seconds", window.seconds()), ("cpu_s", window.cpu())]);
    Ok(())
}

/// W4: many callers of one process, one name.
async fn hand_over_inside(args: &Args) -> Result<(), Failure> {
    let client = client(args).await?;
    let name = format!("{}:one", args.name);
    barrier(args)?;
    let window = Arc::new(Window::open(args.seconds));
    let last = Arc::new(AtomicUsize::new(usize::MAX));
    let mut callers = JoinSet::new();
    for task in 0..args.tasks {
        let (lock, window, last) = (client.lock(&name)?, window.clone(), last.clone());
        callers.spawn(async move {
            let (mut acquired, mut handed, mut waits) = (0u64, 0u64, Vec::new());
            while !window.is_over() {
                let begun = Instant::now();
                let left = window.end.saturating_duration_since(begun);
                let guard = lock.acquire_timeout(left).await;
                waits.push(begun.elapsed().as_secs_f64() * 1000.0);
                let Ok(guard) = guard else { break };
                acquired += 1;
                handed += u64::from(last.swap(task, Ordering::Relaxed) != task);
                guard.release().await?;
            }
            Ok::<_, redlatch::Error>((acquired, handed, waits))
        });
    }
    let (mut shares, mut handoffs, mut waits) = (Vec::new(), 0, Vec::new());
    while let Some(done) = callers.join_next().await {
        let (acquired, handed, waited) = done??;
        shares.push(acquired as f64);
        handoffs += handed;
        waits.extend(waited);
    }
    let (seconds, cpu) = (window.seconds(), window.cpu());
    waits.sort_by(f64::total_cmp);
    json(&[
        ("acq", shares.iter().sum()),
        ("handoffs", handoffs as f64),
        ("seconds", seconds),
        ("max_wait_ms", waits.last().copied().unwrap_or_default()),
        ("p99_wait_ms", percentile(&waits, 0.99)),
        ("jain", jain(&shares)),
        ("cpu_s", cpu),
    ]);
    Ok(())
}

/// W5: many locks held and renewed.
async fn many_held(args: &Args) -> Result<(), Failure> {
    let client = client(args).await?;
    let before = Usage::now();
    let begun = Instant::now();
    let mut guards = Vec::with_capacity(args.locks);
    let mut acquiring = JoinSet::new();
    for number in 0..args.locks {
        let lock = client.lock(&format!("{}:{number}", args.name))?;
        acquiring.spawn(async move { lock.acquire().await });
        if acquiring.len() == args.tasks
            && let Some(guard) = acquiring.join_next().await
        {
            guards.push(guard??);
        }
    }
    while let Some(guard) = acquiring.join_next().await {
        guards.push(guard??);
    }
    let acquire_s = begun.elapsed().as_secs_f64();
    barrier(args)?;
    let window = Window::open(args.seconds);
    tokio::time::sleep(Duration::from_secs_f64(args.seconds)).await;
    let (seconds, cpu, after) = (window.seconds(), window.cpu(), Usage::now());
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    json(&[
        ("locks", held as f64),
        ("seconds", seconds),
        ("cpu_s", cpu),
        ("rss_before_kb", before.rss_kb as f64),
        ("rss_after_kb", after.rss_kb as f64),
        ("threads", after.threads as f64),
        ("acquire_s", acquire_s),
    ]);
    // The driver of the benchmark cleans up; ten thousand releases would only be in its way.
    std::process::exit(0);
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse(std::env::args().skip(1))?;
    match args.workload.as_str() {
        "W1" => one_caller(&args).await,
        "W2" => many_names(&args).await,
        "W3" => hand_over_between_processes(&args).await,
        "W4" => hand_over_inside(&args).await,
        "W5" => many_held(&args).await,
        other => Err(format!("there is no workload {other:?}; there are W1 to W5").into()),
    }
}
