//! The workloads with futures, on a runtime as programs have it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use redlatch::Client;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::contested::Contested;
use crate::report::{LeastMemory, Turns, Usage, monotonic_ns};
use crate::window::Window;
use crate::{Failure, client};

#[tokio::main]
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    match args.workload.as_str() {
        "W1" => one_caller(args).await,
        "W2" => many_names(args).await,
        "W3" => hand_over_between_processes(args).await,
        "W4" => hand_over_inside(args).await,
        "W5" => many_held(args).await,
        other => Err(format!("there is no workload {other:?}; there are W1 to W5").into()),
    }
}

/// A name that is ready to be acquired.
async fn contested(client: &Client, args: &Args, name: &str) -> redlatch::Result<Contested> {
    let contested = Contested::new(client, args, name)?;
    if let Some(filled) = contested.fill() {
        filled.await?;
    }
    Ok(contested)
}

async fn warm(lock: &Contested, args: &Args) -> Result<(), Failure> {
    let window = Window::warming(args);
    while window.is_open() {
        lock.pair().await?;
    }
    Ok(())
}

/// A task for each caller; what they return.
async fn each<F, T>(
    args: &Args,
    window: &Arc<Window>,
    work: &impl Fn(usize, Arc<Window>) -> F,
) -> Result<Vec<T>, Failure>
where
    F: Future<Output = redlatch::Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let mut callers = JoinSet::new();
    for task in 0..args.tasks {
        callers.spawn(work(task, window.clone()));
    }
    let mut results = Vec::new();
    while let Some(done) = callers.join_next().await {
        results.push(done??);
    }
    Ok(results)
}

/// The same of callers that have warmed up in the way that is measured.
async fn measured<F, T>(
    args: &Args,
    work: impl Fn(usize, Arc<Window>) -> F,
) -> Result<(Arc<Window>, Vec<T>), Failure>
where
    F: Future<Output = redlatch::Result<T>> + Send + 'static,
    T: Send + 'static,
{
    each(args, &Arc::new(Window::warming(args)), &work).await?;
    let window = Arc::new(Window::open(args)?);
    let results = each(args, &window, &work).await?;
    Ok((window, results))
}

/// W1: one caller, one name.
async fn one_caller(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    let lock = contested(&client, args, &format!("{}:1", args.name)).await?;
    warm(&lock, args).await?;
    let window = Window::open(args)?;
    let mut times = Vec::with_capacity(1 << 20);
    while window.is_open() {
        let begun = Instant::now();
        lock.pair().await?;
        times.push(begun.elapsed().as_nanos() as f64 / 1000.0);
    }
    window.report().with_latencies(times).print();
    Ok(())
}

/// W2: many callers, each its own name.
async fn many_names(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    client.ready().await?;
    let (window, pairs) = measured(args, |task, window| {
        let lock = Contested::new(&client, args, &format!("{}:{task}", args.name));
        async move {
            let (lock, mut pairs) = (lock?, 0u64);
            if let Some(filled) = lock.fill() {
                filled.await?;
            }
            while window.is_open() {
                lock.pair().await?;
                pairs += 1;
            }
            Ok(pairs)
        }
    })
    .await?;
    let report = window
        .report()
        .with("pairs", pairs.iter().sum::<u64>() as f64);
    report.with("threads", Usage::now().threads).print();
    Ok(())
}

/// W3: one of several processes on one name, with work inside.
async fn hand_over_between_processes(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    let own = contested(&client, args, &format!("{}:warm{}", args.name, args.id)).await?;
    warm(&own, args).await?;
    let lock = contested(&client, args, &format!("{}:w3", args.name)).await?;
    let window = Window::open(args)?;
    let mut lines = String::new();
    let mut acquired = 0u64;
    while window.is_open() {
        let Ok(guard) = lock.acquire_timeout(window.time()).await else {
            break;
        };
        let since = monotonic_ns();
        std::thread::sleep(args.inside);
        let called = monotonic_ns();
        guard.release().await?;
        lines.push_str(&format!("{since} {called} {}\n", monotonic_ns()));
        acquired += 1;
    }
    if let Some(file) = &args.ts_file {
        std::fs::write(file, lines)?;
    }
    window.report().with("acq", acquired as f64).print();
    Ok(())
}

/// W4: many callers of one process, one name.
async fn hand_over_inside(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    client.ready().await?;
    let name = format!("{}:one", args.name);
    contested(&client, args, &name).await?;
    let last = Arc::new(AtomicUsize::new(usize::MAX));
    let (window, turns) = measured(args, |task, window| {
        let (lock, last) = (Contested::new(&client, args, &name), last.clone());
        async move {
            let (lock, mut turns) = (lock?, Turns::default());
            while window.is_open() {
                let begun = Instant::now();
                let guard = lock.acquire_timeout(window.time()).await;
                turns.waits.push(begun.elapsed().as_secs_f64() * 1000.0);
                let Ok(guard) = guard else { break };
                turns.acquired += 1;
                turns.handed += u64::from(last.swap(task, Ordering::Relaxed) != task);
                guard.release().await?;
            }
            Ok(turns)
        }
    })
    .await?;
    window.report().with_turns(turns).print();
    Ok(())
}

/// W5: many locks held and renewed.
async fn many_held(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    client.ready().await?;
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
    let window = Window::open(args)?;
    let mut least = LeastMemory::default();
    for _ in 0..LeastMemory::SAMPLES {
        tokio::time::sleep(LeastMemory::pause(args.seconds)).await;
        least.sample();
    }
    let report = window.report();
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    report.with_held(held, &before, &least, acquire_s).print();
    // The driver of the benchmark cleans up; ten thousand releases would only be in its way.
    std::process::exit(0);
}
