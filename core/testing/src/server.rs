//! The thread of the server: it accepts connections, serves them, and lets keys run out.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread::{Builder, JoinHandle};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{LocalSet, spawn_local};

use crate::hub::{Clock, Hub};
use crate::resp::{Reply, next_command};
use crate::session::{Outcome, Server};

/// Something that the program does to the server, on the server's thread.
pub(crate) type Control = Box<dyn FnOnce(&mut Hub) + Send>;

const CHUNK: usize = 16 * 1024;

/// Where clients connect to.
pub(crate) struct Listeners {
    pub(crate) tcp: std::net::TcpListener,
    #[cfg(unix)]
    pub(crate) local: Option<std::os::unix::net::UnixListener>,
}

/// Starts the thread of a server. No signal of the program is delivered to it.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn spawn(
    life: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let thread = Builder::new().name("redlatch-testing".to_owned());
    #[cfg(unix)]
    {
        use nix::sys::signal::{SigSet, SigmaskHow};
        // A thread inherits the mask of the one that starts it.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let started = thread.spawn(life);
        before.thread_set_mask()?;
        started
    }
    #[cfg(not(unix))]
    thread.spawn(life)
}

/// Serves until the other end of `controls` is dropped.
///
/// # Errors
/// The system has no more descriptors.
pub(crate) fn serve(
    listeners: Listeners,
    clock: Clock,
    controls: UnboundedReceiver<Control>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, accept_all(listeners, clock, controls))
}

async fn accept_all(
    listeners: Listeners,
    clock: Clock,
    mut controls: UnboundedReceiver<Control>,
) -> io::Result<()> {
    listeners.tcp.set_nonblocking(true)?;
    let tcp = TcpListener::from_std(listeners.tcp)?;
    #[cfg(unix)]
    let local = match listeners.local {
        Some(local) => {
            local.set_nonblocking(true)?;
            Some(tokio::net::UnixListener::from_std(local)?)
        }
        None => None,
    };
    let server = Server::new(Hub::new(clock));
    let sooner = server.hub.borrow().sooner.clone();
    loop {
        let (paused, due) = {
            let hub = server.hub.borrow();
            (hub.paused, hub.next_end())
        };
        let runs_out = async {
            match due {
                Some(due) => tokio::time::sleep(due).await,
                None => std::future::pending().await,
            }
        };
        #[cfg(unix)]
        let accept_local = async {
            match &local {
                Some(local) => local.accept().await,
                None => std::future::pending().await,
            }
        };
        #[cfg(not(unix))]
        let accept_local =
            std::future::pending::<io::Result<(tokio::net::TcpStream, SocketAddr)>>();
        tokio::select! {
            control = controls.recv() => match control {
                Some(control) => control(&mut server.hub.borrow_mut()),
                None => return Ok(()),
            },
            accepted = tcp.accept(), if !paused => {
                // Without a descriptor left, the client is told by the system.
                if let Ok((stream, from)) = accepted {
                    let _ = stream.set_nodelay(true);
                    let here = stream.local_addr().as_ref().map(SocketAddr::to_string).unwrap_or_default();
                    spawn_local(connection(server.clone(), stream, [from.to_string(), here]));
                }
            }
            accepted = accept_local, if !paused => {
                if let Ok((stream, _)) = accepted {
                    spawn_local(connection(server.clone(), stream, ["local:0".to_owned(), "local:0".to_owned()]));
                }
            }
            () = runs_out => server.hub.borrow_mut().expire(),
            () = sooner.notified() => {}
        }
    }
}

async fn connection(
    server: Server,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    addresses: [String; 2],
) {
    let (id, wake) = server.hub.borrow_mut().enter(addresses);
    // Every way out is an end of the connection.
    let _ = converse(&server, id, &wake, stream).await;
    server.hub.borrow_mut().leave(id);
}

async fn converse(
    server: &Server,
    id: u64,
    wake: &Notify,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    let (mut input, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    loop {
        running(server).await;
        while !closes(server, id) {
            let words = match next_command(&mut input) {
                Ok(Some(words)) => words,
                Ok(None) => break,
                Err(refusal) => {
                    answer(server, id, &Reply::Error(refusal));
                    server.hub.borrow_mut().close(Some(id));
                    break;
                }
            };
            match server.run(id, &words) {
                Outcome::Reply(reply) => answer(server, id, &reply),
                Outcome::Quit(reply) => {
                    answer(server, id, &reply);
                    server.hub.borrow_mut().close(Some(id));
                }
                Outcome::Later(after, reply) => {
                    let until = tokio::time::sleep(after);
                    tokio::pin!(until);
                    loop {
                        flush(server, id, &mut stream).await?;
                        tokio::select! {
                            () = &mut until => break,
                            () = wake.notified() => if closes(server, id) { break },
                        }
                    }
                    answer(server, id, &reply);
                }
            }
        }
        flush(server, id, &mut stream).await?;
        if closes(server, id) {
            // A copy of the descriptor in a forked child does not keep the connection open.
            return stream.shutdown().await;
        }
        tokio::select! {
            size = stream.read(&mut chunk) => match size? {
                0 => return Ok(()),
                size => input.extend_from_slice(&chunk[..size]),
            },
            () = wake.notified() => {}
        }
    }
}

/// Waits while the server is paused.
async fn running(server: &Server) {
    loop {
        let resumed: Rc<Notify> = server.hub.borrow().resumed.clone();
        let resumed = resumed.notified();
        if !server.hub.borrow().paused {
            return;
        }
        resumed.await;
    }
}

fn closes(server: &Server, id: u64) -> bool {
    server
        .hub
        .borrow()
        .clients
        .get(&id)
        .is_none_or(|client| client.closing)
}

fn answer(server: &Server, id: u64, reply: &Reply) {
    let mut hub = server.hub.borrow_mut();
    hub.end(id, reply);
    // The main loop looks for the next end anew.
    hub.sooner.notify_one();
}

async fn flush(server: &Server, id: u64, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    loop {
        running(server).await;
        let out = server
            .hub
            .borrow_mut()
            .clients
            .get_mut(&id)
            .map(|client| std::mem::take(&mut client.out));
        match out {
            Some(out) if !out.is_empty() => stream.write_all(&out).await?,
            _ => return Ok(()),
        }
    }
}
