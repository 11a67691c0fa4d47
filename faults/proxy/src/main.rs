//! A proxy between a client and Redis that does to commands and replies what networks do.
//!
//! It is told what to do on its standard input, one line each, and answers each with one line:
//!
//! ```text
//! open TARGET...                     listens for servers on these ports of 127.0.0.1; `ok PORT...`, in the order of their texts
//! arm PORT NEEDLE SKIP ACTION NUMBER a rule for the next command that contains the needle
//! arm-direct PORT ...                the same, for commands on the client's direct connection
//! direct PORT                        `ok CALLS`, how many scripts were called on direct connections
//! clear PORT                         drops the rules that have not been used, and ends what follows
//! fired PORT                         `ok RULES-USED REQUEST-SIZE REPLY-SIZE DONE-LATE`
//! scripts PORT                       `ok HASH...`, in the order in which scripts came first
//! kill PORT                          ends all connections
//! refuse|silent|mute PORT 0|1        closes new connections; lets nothing pass; drops messages
//! late PORT MS                       invalidations come so much later than what the server says after them
//! ```

mod connection;
mod frames;
mod rules;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;

use connection::{Proxy, serve};
use rules::{Action, Rule};

/// Shared by tasks; never held over an await.
type Shared<T> = Arc<Mutex<T>>;

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

type Proxies = HashMap<u16, Arc<Proxy>>;

/// A listener for each target. Clients of a quorum order servers by their addresses, so the order
/// of the targets is that of the ports.
async fn open(proxies: &mut Proxies, targets: &[&str]) -> Result<String, String> {
    let mut opened = Vec::new();
    for _ in targets {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        opened.push((address.port().to_string(), address.port(), listener));
    }
    opened.sort_by(|one, other| one.0.cmp(&other.0));
    let mut told = Vec::new();
    for (target, (text, port, listener)) in targets.iter().zip(opened) {
        let target = target.parse().map_err(|_| format!("no port: {target}"))?;
        let proxy = Arc::new(Proxy {
            target,
            ..Proxy::default()
        });
        proxies.insert(port, proxy.clone());
        drop(tokio::spawn(async move {
            // The listener ends with the process; a connection that fails is a connection that ends.
            while let Ok((client, _)) = listener.accept().await {
                drop(tokio::spawn(serve(client, proxy.clone())));
            }
        }));
        told.push(text);
    }
    Ok(told.join(" "))
}

fn arm(proxy: &Proxy, words: &[&str], direct: bool) -> Result<String, String> {
    let [needle, skip, action, number] = words else {
        return Err("arm: four words".to_owned());
    };
    let action =
        Action::parse(action, number).ok_or_else(|| format!("no action: {action} {number}"))?;
    let skip = skip.parse().map_err(|_| format!("no number: {skip}"))?;
    locked(&proxy.rules).arm(Rule {
        needle: needle.as_bytes().to_vec(),
        skip,
        action,
        direct,
    });
    Ok(String::new())
}

fn switch(flag: &AtomicBool, words: &[&str]) -> String {
    flag.store(words.first() == Some(&"1"), Ordering::Relaxed);
    String::new()
}

async fn obey(proxies: &mut Proxies, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let ["open", targets @ ..] = words.as_slice() {
        return open(proxies, targets).await;
    }
    let [word, place, rest @ ..] = words.as_slice() else {
        return Err(format!("not understood: {line}"));
    };
    let proxy = place.parse().ok().and_then(|port: u16| proxies.get(&port));
    let proxy = proxy.ok_or_else(|| format!("no proxy: {place}"))?;
    Ok(match *word {
        "arm" => arm(proxy, rest, false)?,
        "arm-direct" => arm(proxy, rest, true)?,
        "direct" => locked(&proxy.rules).direct.to_string(),
        "clear" => {
            locked(&proxy.rules).clear();
            proxy.let_all_pass();
            String::new()
        }
        "fired" => {
            let rules = locked(&proxy.rules);
            format!(
                "{} {} {} {}",
                rules.fired, rules.request_size, rules.reply_size, rules.delivered
            )
        }
        "scripts" => locked(&proxy.rules).scripts.join(" "),
        "kill" => {
            proxy.kill.notify_waiters();
            String::new()
        }
        "refuse" => switch(&proxy.refuses, rest),
        "silent" => switch(&proxy.silent, rest),
        "mute" => switch(&proxy.mute, rest),
        "late" => {
            let ms = rest
                .first()
                .and_then(|word| word.parse().ok())
                .ok_or("late: a number")?;
            proxy.late.store(ms, Ordering::Relaxed);
            String::new()
        }
        _ => return Err(format!("not understood: {line}")),
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let mut proxies = Proxies::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match obey(&mut proxies, &line).await {
            Ok(answer) => println!("ok {answer}"),
            Err(problem) => println!("error {problem}"),
        }
    }
    Ok(())
}
