//! One order per user: who clicks twice orders once, whichever servers get the clicks.
//!
//! `one_order_per_user SHOP`, with the server in REDLATCH_URL and one user a line on standard
//! input. SHOP is a folder with the file `orders`, a line per order.

use std::error::Error;
use std::fs::{OpenOptions, read_to_string};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use redlatch::Client;

/// Orders unless the user has ordered. Correct only while nobody else does the same for this user.
async fn order(shop: &Path, user: &str) -> Result<bool, Box<dyn Error>> {
    let orders = shop.join("orders");
    if read_to_string(&orders)?.lines().any(|line| line == user) {
        return Ok(false);
    }
    tokio::time::sleep(Duration::from_millis(20)).await; // the payment
    OpenOptions::new()
        .append(true)
        .open(&orders)?
        .write_all(format!("{user}\n").as_bytes())?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let shop = std::env::args()
        .nth(1)
        .ok_or("usage: one_order_per_user SHOP")?;
    let client = Client::from_env().await?;
    for line in std::io::stdin().lines() {
        let user = line?;
        // One name per user: others need not wait.
        let guard = client
            .lock(&format!("order:{user}"))?
            .acquire_timeout(Duration::from_secs(10))
            .await?;
        let ordered = order(Path::new(&shop), &user).await?;
        guard.release().await?;
        println!("{user} {}", if ordered { "ordered" } else { "refused" });
    }
    client.close().await?;
    Ok(())
}
