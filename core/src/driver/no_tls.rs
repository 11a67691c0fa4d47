//! The place of TLS in a build without the feature `tls`: nothing can be encrypted.

use std::io;

use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::options::ClientOptions;
use redlatch_proto::connecting::TlsFault;

/// A TLS configuration, of which there is none.
#[derive(Clone)]
pub(super) enum Tls {}

pub(super) type Stream = TcpStream;

impl Tls {
    /// # Errors
    /// `invalid_argument`, always.
    pub(super) fn new(_: &ClientOptions) -> Result<Tls> {
        Err(Error::invalid(
            "the URL asks for TLS (rediss), which this program was built without; turn on the feature tls: \
             `cargo add redlatch --features tls`",
        ))
    }

    pub(super) async fn encrypt(&self, _: &str, _: TcpStream) -> io::Result<Stream> {
        match *self {}
    }
}

/// No error comes from a handshake.
pub(super) fn fault_of(
    _: &io::Error,
) -> Option<(
    TlsFault,
    std::sync::Arc<dyn std::error::Error + Send + Sync>,
)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_build_without_tls_names_the_feature() {
        let Err(error) = Tls::new(&ClientOptions::new());
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.message().contains("turn on the feature tls"),
            "{error}"
        );
    }
}
