//! The way to the host, as records.

use redlatch_proto::net::{ConnId, Io, Server};
use redlatch_proto::url::{At, Host};

use crate::bytes::{Records, record};

/// The way of one client to the host.
pub(crate) struct Way<'a> {
    /// The client, for the host.
    pub(crate) client: u64,
    pub(crate) records: &'a mut Records,
    pub(crate) last_conn: &'a mut ConnId,
    pub(crate) random: &'a mut u64,
}

impl Io for Way<'_> {
    fn connect(&mut self, server: &Server) -> ConnId {
        *self.last_conn += 1;
        let manner = &server.manner;
        let (host, port) = match &server.at {
            At::Tcp(Host { name, port }) => (name, *port),
            At::Unix(path) => (path, 0),
        };
        self.records
            .byte(record::CONNECT)
            .number(*self.last_conn as f64)
            .number(self.client as f64)
            .byte(u8::from(manner.tls) | u8::from(manner.http) << 1)
            .text(host)
            .number(port.into())
            .number(manner.keep_alive.as_secs_f64() * 1000.0);
        *self.last_conn
    }

    fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        let records = self.records.byte(record::WRITE).number(conn as f64);
        records.bytes(bytes);
    }

    fn close(&mut self, conn: ConnId) {
        self.records.byte(record::CLOSE).number(conn as f64);
    }

    /// SplitMix64.
    fn random(&mut self) -> u32 {
        *self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u32
    }
}
