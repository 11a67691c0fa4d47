//! The flash sale: many workers sell the same stock, in many programs and languages at once.
//!
//! `flash_sale SHOP WORKERS [--without-lock]`, with the server in REDLATCH_URL. SHOP is a folder
//! with the file `stock` (four digits); every sale adds a line to `orders`.

use std::error::Error;
use std::fs::{OpenOptions, read_to_string};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use redlatch::{Client, Kind, Lock, LockOptions};

type Failure = Box<dyn Error + Send + Sync>;

/// Sells one item; false when the stock is empty. Correct only while nobody else does the same.
async fn sell(shop: &Path) -> Result<bool, Failure> {
    let stock: u32 = read_to_string(shop.join("stock"))?.trim().parse()?;
    if stock == 0 {
        return Ok(false);
    }
    tokio::time::sleep(Duration::from_millis(1)).await; // the payment
    OpenOptions::new()
        .write(true)
        .open(shop.join("stock"))?
        .write_all(format!("{:04}", stock - 1).as_bytes())?;
    OpenOptions::new()
        .append(true)
        .open(shop.join("orders"))?
        .write_all(b"rust\n")?;
    Ok(true)
}

async fn work(lock: Option<Lock>, shop: &Path) -> Result<(), Failure> {
    loop {
        let sold = match &lock {
            Some(lock) => {
                let guard = lock.acquire().await?;
                let sold = sell(shop).await?;
                guard.release().await?;
                sold
            }
            None => sell(shop).await?,
        };
        if !sold {
            return Ok(());
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [shop, workers, rest @ ..] = args.as_slice() else {
        return Err("usage: flash_sale SHOP WORKERS [--without-lock]".into());
    };
    let client = Client::from_env().await?;
    // Workers of all programs have their turn in the order in which they come.
    let fair = LockOptions::new().kind(Kind::Fair);
    let lock = if rest.is_empty() {
        Some(client.lock_with("flash-sale", fair)?)
    } else {
        None
    };

    println!("ready"); // the sale begins for everybody at once
    std::io::stdin().read_line(&mut String::new())?;

    let shop: &'static Path = Box::leak(Path::new(shop).into());
    let workers: Vec<_> = (0..workers.parse()?)
        .map(|_| tokio::spawn(work(lock.clone(), shop)))
        .collect();
    for worker in workers {
        worker.await??;
    }
    client.close().await?;
    Ok(())
}
