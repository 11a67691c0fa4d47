//! The way to the host, and what comes from it.

use redlatch_proto::connecting::{self, Doubt, TlsFault};
use redlatch_proto::error::Error;
use redlatch_proto::url::{At, Host};

use crate::attempt::Server;
use crate::bytes::{Records, record};

pub(crate) type ConnId = u64;

/// The way to the host.
pub(crate) struct Io<'a> {
    pub(crate) records: &'a mut Records,
    pub(crate) last_conn: &'a mut ConnId,
    pub(crate) random: &'a mut u64,
}

impl Io<'_> {
    pub(crate) fn connect(&mut self, server: &Server) -> ConnId {
        *self.last_conn += 1;
        let manner = &server.manner;
        let (host, port) = match &server.at {
            At::Tcp(Host { name, port }) => (name, *port),
            At::Unix(path) => (path, 0),
        };
        self.records
            .byte(record::CONNECT)
            .number(*self.last_conn as f64)
            .number(manner.client)
            .byte(u8::from(manner.tls) | u8::from(manner.http) << 1)
            .text(host)
            .number(port.into())
            .number(manner.keep_alive.as_secs_f64() * 1000.0);
        *self.last_conn
    }

    pub(crate) fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        if !bytes.is_empty() {
            let records = self.records.byte(record::WRITE).number(conn as f64);
            records.bytes(bytes);
        }
    }

    pub(crate) fn close(&mut self, conn: ConnId) {
        self.records.byte(record::CLOSE).number(conn as f64);
    }

    /// A random number for the jitter of pauses (SplitMix64).
    pub(crate) fn random(&mut self) -> u32 {
        *self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u32
    }
}

/// An event of a connection, as the host tells it.
pub(crate) enum Arrival<'a> {
    /// It is open. The number is for the last group of the uuids of owners.
    Opened(u64),
    Bytes(&'a [u8]),
    /// It is gone, or could not be made.
    Closed(Lost<'a>),
}

/// Why a connection is gone.
pub(crate) struct Lost<'a> {
    pub(crate) text: &'a str,
    pub(crate) tls: Option<TlsFault>,
}

impl Lost<'_> {
    /// The error for a connection that could not be made. `spoken`: it was made, and ended during
    /// the log-in.
    pub(crate) fn unreachable(&self, server: &Server, spoken: bool) -> Error {
        let shown = server.shown();
        match self.tls {
            Some(fault) => fault.error(&shown, self.text),
            None => {
                let doubt = match server.manner.http {
                    true => Doubt::NoHttp,
                    false if spoken && !server.manner.tls => Doubt::Closes,
                    false => Doubt::NotRunning,
                };
                connecting::unreachable(&shown, self.text, doubt)
            }
        }
    }
}
