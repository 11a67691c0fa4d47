//! The way to the host, as records.

use redlatch_proto::engine::{Done, RequestId};
use redlatch_proto::error::Result;
use redlatch_proto::moment::Moment;
use redlatch_proto::net::{ConnId, Io, Server};
use redlatch_proto::url::{At, Host};

use crate::bytes::{Records, record};

/// A call and its answer.
pub(crate) struct Answer {
    pub(crate) id: RequestId,
    pub(crate) result: Result<Done>,
}

/// What the host is to be told, and what only grows with it.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) records: Records,
    /// The answers to calls; they become records later.
    pub(crate) answers: Vec<Answer>,
    last_conn: ConnId,
    /// The state of the random numbers.
    pub(crate) random: u64,
}

/// The way of one client to the host, while it does something.
pub(crate) struct Way<'a> {
    pub(crate) now: Moment,
    /// The client, for the host.
    pub(crate) client: u64,
    pub(crate) out: &'a mut Outgoing,
}

impl Io for Way<'_> {
    fn connect(&mut self, server: &Server) -> ConnId {
        self.out.last_conn += 1;
        let manner = &server.manner;
        let (host, port) = match &server.at {
            At::Tcp(Host { name, port }) => (name, *port),
            At::Unix(path) => (path, 0),
        };
        let records = self.out.records.byte(record::CONNECT);
        records
            .number(self.out.last_conn as f64)
            .number(self.client as f64)
            .byte(u8::from(manner.tls) | u8::from(manner.http) << 1)
            .text(host)
            .number(port.into())
            .number(manner.keep_alive.as_secs_f64() * 1000.0);
        self.out.last_conn
    }

    fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        let records = self.out.records.byte(record::WRITE).number(conn as f64);
        records.bytes(bytes);
    }

    fn close(&mut self, conn: ConnId) {
        self.out.records.byte(record::CLOSE).number(conn as f64);
    }

    /// SplitMix64.
    fn random(&mut self) -> u32 {
        self.out.random = self.out.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.out.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u32
    }
}
