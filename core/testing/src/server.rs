//! The thread of the server: it accepts connections, serves them, and lets keys run out.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{LocalSet, spawn_local};

use crate::hub::{ClientId, Clock, Hub};
use crate::resp::{Input, Reply};
use crate::session::{Outcome, Server};

/// Something that the program does to the server, on the server's thread.
pub(crate) type Control = Box<dyn FnOnce(&mut Hub) + Send>;

const CHUNK: usize = 16 * 1024;
/// The pause between two attempts to accept a connection, if the first one failed. A process without a
/// free descriptor would try again at once, for ever.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);
/// The longest time that the server takes to write the reply to `QUIT`.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where clients connect to.
pub(crate) struct Listeners {
    pub(crate) tcp: std::net::TcpListener,
    #[cfg(unix)]
    pub(crate) local: Option<std::os::unix::net::UnixListener>,
}

/// A socket that ends for all processes when it is dropped: a copy in a forked child keeps neither a
/// connection nor the port open.
#[cfg(unix)]
struct Ending<S: std::os::fd::AsRawFd>(S);

#[cfg(unix)]
impl<S: std::os::fd::AsRawFd> Drop for Ending<S> {
    fn drop(&mut self) {
        use nix::sys::socket::{Shutdown, shutdown};
        // It may have ended before.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

/// Without `fork` there is no copy.
#[cfg(not(unix))]
struct Ending<S>(S);

/// A connection of a client.
#[cfg(unix)]
trait Stream: AsyncRead + AsyncWrite + Unpin + std::os::fd::AsRawFd {}
#[cfg(unix)]
impl<S: AsyncRead + AsyncWrite + Unpin + std::os::fd::AsRawFd> Stream for S {}
#[cfg(not(unix))]
trait Stream: AsyncRead + AsyncWrite + Unpin {}
#[cfg(not(unix))]
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The place of a connection in the hub, until the connection ends. A panic of a command ends it too.
struct Member<'a> {
    server: &'a Server,
    id: ClientId,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if let Ok(mut hub) = self.server.hub.try_borrow_mut() {
            hub.leave(self.id);
        }
    }
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

/// Serves until the other end of `controls` is dropped; `stops` ends a script that runs then.
///
/// # Errors
/// The system has no more descriptors.
pub(crate) fn serve(
    listeners: Listeners,
    clock: Clock,
    stops: Arc<AtomicBool>,
    controls: UnboundedReceiver<Control>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, accept_all(listeners, clock, stops, controls))
}

async fn accept_all(
    listeners: Listeners,
    clock: Clock,
    stops: Arc<AtomicBool>,
    mut controls: UnboundedReceiver<Control>,
) -> io::Result<()> {
    listeners.tcp.set_nonblocking(true)?;
    let tcp = Ending(TcpListener::from_std(listeners.tcp)?);
    #[cfg(unix)]
    let local = match listeners.local {
        Some(local) => {
            local.set_nonblocking(true)?;
            Some(Ending(tokio::net::UnixListener::from_std(local)?))
        }
        None => None,
    };
    let server = Server::new(Hub::new(clock), stops);
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
                Some(local) => after_failure(local.0.accept().await).await,
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
            accepted = async { after_failure(tcp.0.accept().await).await }, if !paused => {
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

/// Waits a little after a failure: without a descriptor left, the next attempt fails at once too.
async fn after_failure<T>(accepted: io::Result<T>) -> io::Result<T> {
    if accepted.is_err() {
        tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
    }
    accepted
}

async fn connection(server: Server, stream: impl Stream, addresses: [String; 2]) {
    let mut stream = Ending(stream);
    let (id, wake) = server.hub.borrow_mut().enter(addresses);
    let _member = Member {
        server: &server,
        id,
    };
    // Every way out is an end of the connection.
    let _ = converse(&server, id, &wake, &mut stream.0).await;
}

async fn converse(
    server: &Server,
    id: ClientId,
    wake: &Notify,
    stream: &mut impl Stream,
) -> io::Result<()> {
    let (mut input, mut chunk) = (Input::default(), vec![0; CHUNK]);
    loop {
        running(server, id, wake).await;
        while !closes(server, id) {
            let words = match input.next_command() {
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
                        flush(server, id, wake, stream).await?;
                        tokio::select! {
                            () = &mut until => break,
                            () = wake.notified() => if closes(server, id) { break },
                        }
                    }
                    answer(server, id, &reply);
                }
            }
        }
        flush(server, id, wake, stream).await?;
        if closes(server, id) {
            return Ok(());
        }
        tokio::select! {
            size = stream.read(&mut chunk) => match size? {
                0 => return Ok(()),
                size => input.add(&chunk[..size]),
            },
            () = wake.notified() => {}
        }
    }
}

/// Waits while the server is paused, and false if the connection has to end meanwhile.
async fn running(server: &Server, id: ClientId, wake: &Notify) -> bool {
    loop {
        let resumed: Rc<Notify> = server.hub.borrow().resumed.clone();
        let resumed = resumed.notified();
        if !server.hub.borrow().paused {
            return true;
        }
        if closes(server, id) {
            return false;
        }
        tokio::select! {
            () = resumed => {}
            () = wake.notified() => {}
        }
    }
}

fn closes(server: &Server, id: ClientId) -> bool {
    server
        .hub
        .borrow()
        .clients
        .get(&id)
        .is_none_or(|client| client.closing)
}

fn answer(server: &Server, id: ClientId, reply: &Reply) {
    let mut hub = server.hub.borrow_mut();
    hub.end(id, reply);
    // The main loop looks for the next end anew.
    hub.sooner.notify_one();
}

/// Writes what there is to say. A client that does not read it keeps no connection open that has to end.
async fn flush(
    server: &Server,
    id: ClientId,
    wake: &Notify,
    stream: &mut impl Stream,
) -> io::Result<()> {
    while running(server, id, wake).await {
        let out = server
            .hub
            .borrow_mut()
            .clients
            .get_mut(&id)
            .map(|client| std::mem::take(&mut client.out));
        let Some(out) = out.filter(|out| !out.is_empty()) else {
            break;
        };
        tokio::select! {
            written = stream.write_all(&out) => written?,
            () = ending(server, id, wake) => break,
        }
    }
    Ok(())
}

/// Waits until the connection has to end; its last words get a little time.
async fn ending(server: &Server, id: ClientId, wake: &Notify) {
    if closes(server, id) {
        return tokio::time::sleep(LAST_WORDS).await;
    }
    while !closes(server, id) {
        wake.notified().await;
    }
}
