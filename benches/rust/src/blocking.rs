//! The workloads with threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use redlatch::Client;

use crate::args::Args;
use crate::contested::Contested;
use crate::report::{LeastMemory, Turns, Usage, monotonic_ns};
use crate::window::Window;
use crate::{Failure, client};

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.workload.as_str() {
        "W1" => one_caller(args),
        "W2" => many_names(args),
        "W3" => hand_over_between_processes(args),
        "W4" => hand_over_inside(args),
        "W5" => many_held(args),
        other => Err(format!("there is no workload {other:?}; there are W1 to W5").into()),
    }
}

/// A name that is ready to be acquired.
fn contested(client: &Client, args: &Args, name: &str) -> redlatch::Result<Contested> {
    let contested = Contested::new(client, args, name)?;
    if let Some(filled) = contested.fill() {
        filled.wait()?;
    }
    Ok(contested)
}

fn warm(lock: &Contested, args: &Args) -> Result<(), Failure> {
    let window = Window::warming(args);
    while window.is_open() {
        lock.pair_blocking()?;
    }
    Ok(())
}

/// Runs `work` on a thread for each of the callers: all warm up in the way that is measured, which
/// begins when they are done. Returns what they return.
fn each<T: Send>(
    args: &Args,
    work: impl Fn(usize, &Window) -> redlatch::Result<T> + Sync,
) -> Result<(Window, Vec<T>), Failure> {
    let (warming, opened, all) = (
        Window::warming(args),
        OnceLock::new(),
        Barrier::new(args.tasks + 1),
    );
    let call = |number| {
        let warmed = work(number, &warming);
        all.wait();
        all.wait();
        // It is not there if nobody is to be measured.
        warmed.and_then(|last| opened.get().map_or(Ok(last), |window| work(number, window)))
    };
    let results: Result<Vec<T>, Failure> = thread::scope(|scope| {
        let call = &call;
        let callers: Vec<_> = (0..args.tasks)
            .map(|number| scope.spawn(move || call(number)))
            .collect();
        all.wait();
        let window = Window::open(args).map(|window| opened.set(window));
        all.wait();
        window?.ok();
        let done = callers.into_iter().map(|caller| match caller.join() {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err("a caller panicked".into()),
        });
        done.collect()
    });
    let results = results?;
    opened
        .into_inner()
        .map(|window| (window, results))
        .ok_or_else(|| "the window was not opened".into())
}

/// W1: one caller, one name.
fn one_caller(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    let lock = contested(&client, args, &format!("{}:1", args.name))?;
    warm(&lock, args)?;
    let window = Window::open(args)?;
    let mut times = Vec::with_capacity(1 << 20);
    while window.is_open() {
        let begun = Instant::now();
        lock.pair_blocking()?;
        times.push(begun.elapsed().as_nanos() as f64 / 1000.0);
    }
    window.report().with_latencies(times).print();
    Ok(())
}

/// W2: many callers, each its own name.
fn many_names(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    client.ready().wait()?;
    let (window, pairs) = each(args, |number, window| {
        let lock = contested(&client, args, &format!("{}:{number}", args.name))?;
        let mut pairs = 0u64;
        while window.is_open() {
            lock.pair_blocking()?;
            pairs += 1;
        }
        Ok(pairs)
    })?;
    let report = window
        .report()
        .with("pairs", pairs.iter().sum::<u64>() as f64);
    report
        .with("threads", Usage::now().threads + args.tasks as f64)
        .print();
    Ok(())
}

/// W3: one of several processes on one name, with work inside.
fn hand_over_between_processes(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    let own = contested(&client, args, &format!("{}:warm{}", args.name, args.id))?;
    warm(&own, args)?;
    let lock = contested(&client, args, &format!("{}:w3", args.name))?;
    let window = Window::open(args)?;
    let mut lines = String::new();
    let mut acquired = 0u64;
    while window.is_open() {
        let Ok(guard) = lock.acquire_timeout_blocking(window.time()) else {
            break;
        };
        let since = monotonic_ns();
        thread::sleep(args.inside);
        let called = monotonic_ns();
        guard.release().wait()?;
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
fn hand_over_inside(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    client.ready().wait()?;
    let name = format!("{}:one", args.name);
    let last = AtomicUsize::new(usize::MAX);
    let (window, turns) = each(args, |number, window| {
        let lock = contested(&client, args, &name)?;
        let mut turns = Turns::default();
        while window.is_open() {
            let begun = Instant::now();
            let guard = lock.acquire_timeout_blocking(window.time());
            turns.waits.push(begun.elapsed().as_secs_f64() * 1000.0);
            let Ok(guard) = guard else { break };
            turns.acquired += 1;
            turns.handed += u64::from(last.swap(number, Ordering::Relaxed) != number);
            guard.release().wait()?;
        }
        Ok(turns)
    })?;
    window.report().with_turns(turns).print();
    Ok(())
}

/// W5: many locks held and renewed.
fn many_held(args: &Args) -> Result<(), Failure> {
    let client = client(args)?;
    client.ready().wait()?;
    let before = Usage::now();
    let begun = Instant::now();
    let mut guards = Vec::with_capacity(args.locks);
    for number in 0..args.locks {
        guards.push(
            client
                .lock(&format!("{}:{number}", args.name))?
                .acquire()
                .wait()?,
        );
    }
    let acquire_s = begun.elapsed().as_secs_f64();
    let window = Window::open(args)?;
    let mut least = LeastMemory::default();
    for _ in 0..LeastMemory::SAMPLES {
        thread::sleep(LeastMemory::pause(args.seconds));
        least.sample();
    }
    let report = window.report();
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    report.with_held(held, &before, &least, acquire_s).print();
    // The driver of the benchmark cleans up; ten thousand releases would only be in its way.
    std::process::exit(0);
}
