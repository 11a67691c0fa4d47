//! A forked child has copies of the server's sockets, but not its thread.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use redlatch_testing::MemoryServer;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs `child` in a forked process, which ends when it returns, and `parent` meanwhile.
fn beside(child: impl FnOnce(), parent: impl FnOnce()) {
    // SAFETY: the child uses nothing of other threads, allocates by a fork-safe malloc, and leaves
    // without exit handlers.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            nix::unistd::alarm::set(30);
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
            // SAFETY: as above.
            unsafe { nix::libc::_exit(i32::from(!passed)) }
        }
        ForkResult::Parent { child } => {
            parent();
            assert!(matches!(
                waitpid(child, None).unwrap(),
                WaitStatus::Exited(_, 0)
            ));
        }
    }
}

/// A connection that the server has accepted.
fn connected(server: &MemoryServer) -> TcpStream {
    let address = server.url().trim_start_matches("redis://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    stream.read_exact(&mut [0; 7]).unwrap();
    stream
}

#[test]
fn a_stopped_server_has_stopped_in_spite_of_the_copies_of_a_child() {
    let server = MemoryServer::start().unwrap();
    let address = server.url().trim_start_matches("redis://").to_owned();
    let mut stream = connected(&server);
    let (mut waits, goes) = std::io::pipe().unwrap();
    let (held, server) = (Cell::new(Some(goes)), Cell::new(Some(server)));
    beside(
        || {
            drop(held.take());
            waits.read_exact(&mut [0]).unwrap_err();
        },
        || {
            drop(server.take());
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            // Other systems do not end a port before its last copy.
            if cfg!(target_os = "linux") {
                TcpStream::connect(&address).unwrap_err();
            }
            drop(held.take());
        },
    );
}

#[test]
fn the_server_of_the_parent_goes_on_when_a_child_drops_it() {
    let server = MemoryServer::start().unwrap();
    let mut stream = connected(&server);
    let server = Cell::new(Some(server));
    beside(
        || {
            let server = server.take().unwrap();
            assert!(!server.take_away("n"));
            drop(server);
        },
        || {},
    );
    stream.write_all(b"PING\r\n").unwrap();
    stream.read_exact(&mut [0; 7]).unwrap();
    drop(connected(&server.take().unwrap()));
}
