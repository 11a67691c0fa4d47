//! A price list that one refreshes and many read: nobody sees half a list.
//!
//! `price_list SHOP`, with the server in REDLATCH_URL and the version that is wanted, a line each,
//! on standard input. SHOP is a folder with the file `prices`.

use std::error::Error;
use std::fs::{OpenOptions, read_to_string, write};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use redlatch::{Client, RwLock};

const LIMIT: Duration = Duration::from_secs(10);

/// The version of the list. Its two lines tell the same while nobody writes; an empty list has
/// version 0.
fn version(prices: &Path) -> Result<u64, Box<dyn Error>> {
    let text = read_to_string(prices)?;
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(0),
        (Some(first), Some(second)) if first == second => Ok(first.parse()?),
        _ => Err("half a list".into()),
    }
}

/// Writes the list in two steps. Correct only while nobody else reads or writes.
async fn refresh(prices: &Path, wanted: u64) -> Result<(), Box<dyn Error>> {
    write(prices, format!("{wanted}\n"))?;
    tokio::time::sleep(Duration::from_millis(20)).await; // the query for the second half
    let mut file = OpenOptions::new().append(true).open(prices)?;
    Ok(file.write_all(format!("{wanted}\n").as_bytes())?)
}

async fn look_up(
    lock: &RwLock,
    prices: &Path,
    wanted: u64,
) -> Result<&'static str, Box<dyn Error>> {
    // Beside other readers.
    let reader = lock.read().acquire_timeout(LIMIT).await?;
    let known = version(prices);
    reader.release().await?;
    if known? >= wanted {
        return Ok("read");
    }
    // Alone.
    let writer = lock.write().acquire_timeout(LIMIT).await?;
    let known = version(prices);
    let refreshes = matches!(known, Ok(known) if known < wanted);
    let refreshed = if refreshes {
        refresh(prices, wanted).await
    } else {
        Ok(())
    };
    writer.release().await?;
    refreshed?;
    known?; // somebody else was faster
    Ok(if refreshes { "refreshed" } else { "read" })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let shop = std::env::args().nth(1).ok_or("usage: price_list SHOP")?;
    let prices = Path::new(&shop).join("prices");
    let client = Client::from_env().await?;
    let lock = client.rw_lock("prices")?;
    for line in std::io::stdin().lines() {
        let wanted: u64 = line?.trim().parse()?;
        match look_up(&lock, &prices, wanted).await {
            Ok(answer) => println!("{wanted} {answer}"),
            Err(error) => println!("{wanted} {error}"),
        }
    }
    client.close().await?;
    Ok(())
}
