//! Each task once: a queue delivers a task to several workers, or again.
//!
//! `task_once FOLDER`, with the server in REDLATCH_URL and one task a line on standard input.
//! FOLDER has the file `done`, a line per task that is finished.

use std::error::Error;
use std::fs::{OpenOptions, read_to_string};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use redlatch::{Client, Lock};

/// Runs the task unless it was done before. Correct only while nobody else runs the same one.
///
/// A lock knows who is at work, not what is finished: that has to be noted with the work.
async fn run(folder: &Path, task: &str) -> Result<bool, Box<dyn Error>> {
    let done = folder.join("done");
    if read_to_string(&done)?.lines().any(|line| line == task) {
        return Ok(false);
    }
    tokio::time::sleep(Duration::from_millis(20)).await; // the work
    OpenOptions::new()
        .append(true)
        .open(&done)?
        .write_all(format!("{task}\n").as_bytes())?;
    Ok(true)
}

async fn once(lock: &Lock, folder: &Path, task: &str) -> Result<&'static str, Box<dyn Error>> {
    // Not acknowledged, so that the queue delivers it again should that worker die.
    let Some(guard) = lock.try_acquire().await? else {
        return Ok("busy");
    };
    let ran = run(folder, task).await?;
    guard.release().await?;
    Ok(if ran { "done" } else { "known" })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: task_once FOLDER")?;
    let client = Client::from_env().await?;
    for line in std::io::stdin().lines() {
        let task = line?;
        let lock = client.lock(&format!("task:{task}"))?;
        println!("{task} {}", once(&lock, Path::new(&folder), &task).await?);
    }
    client.close().await?;
    Ok(())
}
