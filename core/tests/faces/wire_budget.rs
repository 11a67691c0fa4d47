//! What goes over the wire, as MONITOR shows it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::{LIMIT, World, eventually, ms, soon};
use crate::support::Server;

/// Sees every command that clients send; what scripts do inside is not counted.
pub(super) struct Monitor(BufReader<TcpStream>);

impl Monitor {
    pub(super) fn new(server: &Server) -> Monitor {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Monitor(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The commands up to a mark that the looking connection of `world` sets now.
    pub(super) fn until_now(&mut self, world: &mut World) -> Vec<String> {
        world.command::<String>(&["ECHO", "mark"]);
        let mut seen = Vec::new();
        loop {
            let line = self.line();
            if line.contains("\"ECHO\" \"mark\"") {
                return seen;
            }
            if !line.contains(" lua]") {
                seen.push(line);
            }
        }
    }
}

#[tokio::test]
async fn an_uncontended_pair_is_two_commands() {
    let mut world = World::new().await;
    let lock = world.lock("n");
    lock.acquire().await.unwrap().release().await.unwrap();
    let mut monitor = Monitor::new(&world.server);
    for _ in 0..5 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let seen = monitor.until_now(&mut world);
    assert_eq!(seen.len(), 10, "{seen:#?}");
}

#[tokio::test]
async fn waiters_send_nothing_while_they_wait() {
    let mut world = World::new().await;
    let holder = world.another().await;
    let guard = holder.lock("n").unwrap().acquire().await.unwrap();
    let waiters: Vec<_> = (0..10).map(|_| tokio::spawn(world.lock("n").acquire())).collect();
    eventually("all wait", || world.client.stats().waiting == 10).await;
    eventually("they are subscribed", || {
        world.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]) == ["redisson_lock__channel:{n}"]
    })
    .await;
    // The head tries once more when its subscription is there.
    tokio::time::sleep(ms(300)).await;
    let mut monitor = Monitor::new(&world.server);
    tokio::time::sleep(ms(3000)).await;
    let seen = monitor.until_now(&mut world);
    assert!(seen.is_empty(), "{seen:#?}");
    guard.release().await.unwrap();
    for waiter in waiters {
        soon("its turn", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
    eventually("nothing is left", || world.is_clean()).await;
}
