//! The smallest program: holds a lock and says so. The server is in `REDLATCH_URL`.

fn main() -> redlatch::Result<()> {
    let client = redlatch::Client::from_env().wait()?;
    let guard = client.lock("hello")?.acquire().wait()?;
    println!("held {}", guard.name());
    guard.release().wait()?;
    client.close().wait()?;
    Ok(())
}
