//! One connection through the proxy, and what is done to it.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use crate::frames;
use crate::rules::{Action, Rules, is_greeting};
use crate::{Shared, locked};

/// Shared by all connections of one proxy.
#[derive(Debug, Default)]
pub(crate) struct Proxy {
    pub(crate) target: u16,
    pub(crate) rules: Shared<Rules>,
    /// New connections are closed at once.
    pub(crate) refuses: AtomicBool,
    /// Nothing passes, on no connection, and new ones are not served.
    pub(crate) silent: AtomicBool,
    /// Messages on channels do not pass.
    pub(crate) mute: AtomicBool,
    /// By how many milliseconds invalidations of tracked keys are late; what comes after them is
    /// not.
    pub(crate) late: AtomicU64,
    pub(crate) kill: Notify,
}

impl Proxy {
    /// Switches everything off that lasts until it is switched off.
    pub(crate) fn let_all_pass(&self) {
        for flag in [&self.refuses, &self.silent, &self.mute] {
            flag.store(false, Ordering::Relaxed);
        }
        self.late.store(0, Ordering::Relaxed);
    }
}

/// The plan for the replies of one connection, by the number of the command.
type Plans = Shared<HashMap<u64, Action>>;

/// Serves a client until one side is gone, or a rule ends it.
pub(crate) async fn serve(client: TcpStream, proxy: Arc<Proxy>) -> io::Result<()> {
    if proxy.refuses.load(Ordering::Relaxed) {
        return Ok(());
    }
    let server = TcpStream::connect(("127.0.0.1", proxy.target)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let plans = Plans::default();
    tokio::select! {
        ended = requests(from_client, to_server, &proxy, &plans) => ended,
        ended = replies(from_server, to_client, &proxy, &plans) => ended,
        () = proxy.kill.notified() => Ok(()),
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    proxy: &Arc<Proxy>,
    plans: &Plans,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut number = 0;
    let mut direct = None;
    loop {
        while let Some(size) = frames::length(&buffer) {
            let command: Vec<u8> = buffer.drain(..size).collect();
            let direct = *direct.get_or_insert_with(|| !is_greeting(&command));
            let action = locked(&proxy.rules).judge(&command, direct);
            while_silent(proxy).await;
            match action {
                Some(Action::CutRequest(bytes)) => {
                    to.write_all(&command[..bytes.min(size)]).await?;
                    // It has to arrive before the end of the connection does.
                    return to.shutdown().await;
                }
                Some(Action::Hole) => return swallow(&mut from).await,
                Some(Action::Stall(time)) => {
                    drop(tokio::spawn(deliver(proxy.clone(), command, time)));
                    return Ok(());
                }
                Some(Action::Delay(time)) => sleep(time).await,
                Some(Action::Twice(time)) => {
                    drop(tokio::spawn(deliver(proxy.clone(), command.clone(), time)));
                }
                Some(
                    action @ (Action::CutReply(_) | Action::ReplyHole | Action::DelayReply(_)),
                ) => {
                    locked(plans).insert(number, action);
                }
                None => {}
            }
            to.write_all(&command).await?;
            number += 1;
        }
        if from.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    proxy: &Proxy,
    plans: &Plans,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut number = 0;
    let mut late = VecDeque::new();
    loop {
        while let Some(size) = frames::length(&buffer) {
            let frame: Vec<u8> = buffer.drain(..size).collect();
            while_silent(proxy).await;
            if proxy.mute.load(Ordering::Relaxed) && frames::is_message(&frame) {
                continue;
            }
            let lateness = proxy.late.load(Ordering::Relaxed);
            if lateness > 0 && frames::is_invalidation(&frame) {
                late.push_back((Instant::now() + Duration::from_millis(lateness), frame));
                continue;
            }
            if !frames::is_unasked(&frame) {
                let plan = locked(plans).remove(&number);
                number += 1;
                match plan {
                    Some(Action::CutReply(bytes)) => {
                        locked(&proxy.rules).reply_size = size;
                        to.write_all(&frame[..bytes.min(size)]).await?;
                        return to.shutdown().await;
                    }
                    Some(Action::ReplyHole) => pending().await,
                    Some(Action::DelayReply(time)) => sleep(time).await,
                    _ => {}
                }
            }
            to.write_all(&frame).await?;
        }
        tokio::select! {
            read = from.read_buf(&mut buffer) => {
                if read? == 0 {
                    return Ok(());
                }
            }
            () = due(&late) => {
                if let Some((_, frame)) = late.pop_front() {
                    to.write_all(&frame).await?;
                    locked(&proxy.rules).delivered += 1;
                }
            }
        }
    }
}

/// Waits until the first of what is late may go on.
async fn due(late: &VecDeque<(Instant, Vec<u8>)>) {
    match late.front() {
        Some((at, _)) => sleep_until(*at).await,
        None => pending().await,
    }
}

/// Data that come meanwhile are not lost, as with a network that is away for a while.
async fn while_silent(proxy: &Proxy) {
    while proxy.silent.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Lets nothing more pass, until the client has gone: a server has nothing to say to one that it
/// does not hear, so nothing else would ever end the connection.
async fn swallow(from: &mut OwnedReadHalf) -> io::Result<()> {
    let mut lost = Vec::new();
    while from.read_buf(&mut lost).await? > 0 {
        lost.clear();
    }
    Ok(())
}

/// Sends a command on a connection of its own, late, and waits until it was done.
async fn deliver(proxy: Arc<Proxy>, command: Vec<u8>, after: Duration) -> io::Result<()> {
    sleep(after).await;
    let mut server = TcpStream::connect(("127.0.0.1", proxy.target)).await?;
    server.write_all(&command).await?;
    let mut reply = Vec::new();
    while frames::length(&reply).is_none() {
        if server.read_buf(&mut reply).await? == 0 {
            break;
        }
    }
    locked(&proxy.rules).delivered += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rule;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    const CALL: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const REPLY: &[u8] = b"+PONG\r\n";
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A client and its server, and a proxy between them that does this to the second command.
    async fn pair(action: Action) -> io::Result<(TcpStream, TcpStream)> {
        let (front, back) = (
            TcpListener::bind("127.0.0.1:0").await?,
            TcpListener::bind("127.0.0.1:0").await?,
        );
        let proxy = Arc::new(Proxy {
            target: back.local_addr()?.port(),
            ..Proxy::default()
        });
        locked(&proxy.rules).arm(Rule {
            needle: b"PING".to_vec(),
            skip: 1,
            action,
            direct: false,
        });
        let client = TcpStream::connect(front.local_addr()?).await?;
        drop(tokio::spawn(serve(front.accept().await?.0, proxy)));
        Ok((client, back.accept().await?.0))
    }

    async fn take(from: &mut TcpStream, expected: &[u8]) -> io::Result<()> {
        let mut bytes = vec![0; expected.len()];
        from.read_exact(&mut bytes).await?;
        assert_eq!(bytes, expected);
        Ok(())
    }

    /// Data that a hole had swallowed were never looked at again: the server kept the connection
    /// of a client that had gone long ago, and `make soak` counted it as left by the client.
    #[tokio::test]
    async fn a_black_hole_ends_with_its_client_and_lets_nothing_pass_before() -> io::Result<()> {
        for action in [Action::Hole, Action::ReplyHole] {
            let (mut client, mut server) = pair(action).await?;
            client.write_all(CALL).await?;
            take(&mut server, CALL).await?;
            server.write_all(REPLY).await?;
            take(&mut client, REPLY).await?;
            for _ in 0..2 {
                client.write_all(CALL).await?;
            }
            drop(client);
            let mut arrived = Vec::new();
            let ended = timeout(PATIENCE, server.read_to_end(&mut arrived)).await;
            assert!(
                ended.is_ok(),
                "{action:?}: the server still has the connection"
            );
            let expected: &[u8] = if action == Action::Hole {
                b""
            } else {
                &[CALL, CALL].concat()
            };
            assert_eq!(arrived, expected, "{action:?}");
        }
        Ok(())
    }
}
