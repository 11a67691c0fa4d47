//! A cron job that all hosts start and one of them runs.
//!
//! `cron_once FOLDER PERIOD`, with the server in REDLATCH_URL. PERIOD is how often cron starts it,
//! in seconds; the job adds a line to `reports` in FOLDER.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use redlatch::{Client, Kind, LockOptions};

fn report(folder: &Path) -> Result<(), Box<dyn Error>> {
    let line = format!("rust {:?}\n", SystemTime::now());
    OpenOptions::new()
        .append(true)
        .open(folder.join("reports"))?
        .write_all(line.as_bytes())?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, period] = args.as_slice() else {
        return Err("usage: cron_once FOLDER PERIOD".into());
    };
    let lease = Duration::from_secs_f64(0.9 * period.parse::<f64>()?);

    let client = Client::from_env().await?;
    // It lingers: the end of the client leaves it to its lease, which ends before the next period.
    let options = LockOptions::new()
        .kind(Kind::Simple)
        .lease(lease)
        .linger(true);
    let lock = client.lock_with("cron:report", options)?;
    let Some(guard) = lock.try_acquire().await? else {
        println!("skipped");
        return Ok(());
    };
    if let Err(error) = report(Path::new(folder)) {
        guard.release().await?; // it did not run: the next host may
        return Err(error);
    }
    guard.detach(); // not released: a host whose clock is late would run the job again
    client.close().await?;
    println!("ran");
    Ok(())
}
