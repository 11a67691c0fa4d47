//! Encrypted connections: whom we trust, who we are, and what a handshake failed with.
//!
//! The handshake is ours and not redis-rs', which reads the certificates of the system from disk for
//! every connection, and takes its cryptography from a setting of the whole process, which is the
//! program's and not ours to make.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use futures_util::future::select_ok;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as Failure, RootCertStore,
};

use crate::error::{Error, ErrorKind, Result};
use crate::options::{ClientOptions, Pem};

/// How to encrypt.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Reads the certificates.
    ///
    /// # Errors
    /// `invalid_argument` for certificates that cannot be read, and when nobody would be trusted.
    pub(super) fn new(options: &ClientOptions) -> Result<Tls> {
        let roots = match &options.tls_ca {
            Some(own) => own_roots(own)?,
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Internal, format!("TLS: {error}")))?
            .with_root_certificates(roots);
        let config = match (&options.tls_cert, &options.tls_key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let (chain, key) = (certificates("tls_cert", cert)?, private_key(key)?);
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    Error::invalid(format!("tls_cert and tls_key do not belong together: {error}"))
                })?
            }
            (None, Some(_)) => return Err(Error::invalid("tls_key is given without tls_cert; give both")),
            (Some(_), None) => return Err(Error::invalid("tls_cert is given without tls_key; give both")),
        };
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }

    /// Refuses options that ask for encryption when the URL does not.
    pub(super) fn refuse_unused(options: &ClientOptions) -> Result<()> {
        let given =
            [("tls_ca", &options.tls_ca), ("tls_cert", &options.tls_cert), ("tls_key", &options.tls_key)];
        match given.into_iter().find(|(_, pem)| pem.is_some()) {
            Some((name, _)) => Err(Error::invalid(format!(
                "{name} is given, but the URL does not ask for TLS; let it begin with rediss"
            ))),
            None => Ok(()),
        }
    }

    /// Connects; the name of the host has to stand in the server's certificate.
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        settings: &TcpSettings,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let tcp = tcp(host, port, settings).await?;
        self.0.connect(name, tcp).await
    }
}

/// A connection in clear, to whichever address of the host is the first to answer.
pub(super) async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let attempts: Vec<_> =
        lookup_host((host, port)).await?.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(io::Error::other("the name of the host has no address"));
    }
    let (tcp, _) = select_ok(attempts).await?;
    tcp.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&tcp);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(tcp)
}

/// The certificates that `tls_ca` gives.
fn own_roots(pem: &Pem) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls_ca", pem)? {
        roots.add(certificate).map_err(|error| unreadable("tls_ca", &error))?;
    }
    Ok(roots)
}

/// What the system trusts, as its owner has set it up: a company's own authority is among it, and
/// what the system's updates take away is gone. Some certificates that cannot be read do no harm.
fn system_roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (trusted, _) = roots.add_parsable_certificates(found.certs);
    if trusted > 0 {
        return Ok(roots);
    }
    let why = found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
    Err(Error::invalid(format!(
        "the system has no certificates to trust ({why}); install its package ca-certificates, or give tls_ca"
    )))
}

fn certificates(option: &str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(option, pem)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| unreadable(option, &error))?;
    if found.is_empty() { Err(unreadable(option, &"no certificate stands in it")) } else { Ok(found) }
}

fn private_key(pem: &Pem) -> Result<PrivateKeyDer<'static>> {
    // Not repeated, whatever it is: it may be a part of the key.
    PrivateKeyDer::from_pem_slice(&read("tls_key", pem)?)
        .map_err(|_| unreadable("tls_key", &"no private key stands in it"))
}

fn read(option: &str, pem: &Pem) -> Result<Vec<u8>> {
    match pem.path() {
        None => Ok(pem.text().as_bytes().to_vec()),
        Some(path) => std::fs::read(path)
            .map_err(|error| Error::invalid(format!("{option}: cannot read {path:?}: {error}"))),
    }
}

fn unreadable(option: &str, why: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("{option}: {why}; give it PEM text, or the path of a file of it"))
}

/// What a failed handshake means, and what helps; nothing if it failed with something else. A server
/// may refuse us after the handshake has ended for us.
pub(super) fn explain(error: &(dyn StdError + 'static)) -> Option<(ErrorKind, String)> {
    let mut cause = Some(error);
    let failure = loop {
        match cause? {
            failure if failure.is::<Failure>() => break failure.downcast_ref::<Failure>()?,
            // The error inside an I/O error is not its source.
            io if io.is::<io::Error>() => match io.downcast_ref::<io::Error>()?.get_ref() {
                Some(inner) => cause = Some(inner),
                None => cause = io.source(),
            },
            // redis-rs shares what it wraps, and the sharing hides what is shared from its source.
            other => match other.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
                Some(shared) => cause = Some(&**shared),
                None => cause = other.source(),
            },
        }
    };
    let (kind, remedy) = match failure {
        Failure::InvalidCertificate(why) => (ErrorKind::Auth, untrusted(why)),
        Failure::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
        ) => (ErrorKind::Auth, "the server wants a certificate of the client; give tls_cert and tls_key"),
        Failure::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied,
        ) => (
            ErrorKind::Auth,
            "the server refused the certificate in tls_cert; give one of an authority that it trusts",
        ),
        Failure::InvalidMessage(_) => (
            ErrorKind::Unavailable,
            "the server does not speak TLS; use its TLS port, or redis:// without TLS",
        ),
        _ => (ErrorKind::Unavailable, "see the server's log"),
    };
    Some((kind, format!("TLS: {failure}; {remedy}")))
}

/// What helps against a certificate of the server that is not acceptable.
fn untrusted(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "renew the server's certificate, or set this machine's clock"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate begins later; set this machine's clock"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the certificate is for another host; write that host into the URL, or add this one to the certificate"
        }
        CertificateError::UnknownIssuer => {
            "no authority that is trusted here has signed it; give tls_ca the certificate of the one that has"
        }
        CertificateError::Revoked => "renew the server's certificate",
        _ => "mend the server's certificate",
    }
}
