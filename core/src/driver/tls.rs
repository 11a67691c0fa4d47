//! Encrypted connections: trusted certificates, client certificates, and the meaning of handshake
//! errors.

use std::error::Error as StdError;
use std::io;
use std::iter::successors;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as Failure, RootCertStore,
};

use crate::error::Piece::{self, Name};
use crate::error::{Error, ErrorKind, OptionFault, Result};
use crate::options::{ClientOptions, Pem};
use redlatch_proto::connecting::TlsFault;

pub(super) type Stream = TlsStream<TcpStream>;

type Cause = Arc<dyn StdError + Send + Sync>;

/// A TLS configuration.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Reads the certificates.
    ///
    /// # Errors
    /// `invalid_argument` for certificates that cannot be read, and when no certificate would be
    /// trusted.
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
            (Some(cert), Some(key)) => {
                let (chain, key) = (certificates("tls_cert", cert)?, private_key(key)?);
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    fault(
                        "tls_cert",
                        &[
                            " and ".into(),
                            Name("tls_key"),
                            format!(" do not belong together: {error}").into(),
                        ],
                    )
                })?
            }
            // `ClientOptions::check_tls` has refused one without the other.
            _ => builder.with_no_client_auth(),
        };
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }

    /// Encrypts a connection. The server's certificate must be valid for the host name.
    pub(super) async fn encrypt(&self, host: &str, tcp: TcpStream) -> io::Result<Stream> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, tcp).await
    }
}

/// The certificates that `tls_ca` gives.
fn own_roots(pem: &Pem) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls_ca", pem)? {
        roots
            .add(certificate)
            .map_err(|error| unreadable("tls_ca", &error))?;
    }
    Ok(roots)
}

/// The certificates that the system trusts. They include a company's own authority, and exclude
/// those that system updates have removed. Certificates that cannot be read are skipped.
fn system_roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (trusted, _) = roots.add_parsable_certificates(found.certs);
    if trusted > 0 {
        return Ok(roots);
    }
    let why = found
        .errors
        .first()
        .map_or_else(|| "none was found".to_owned(), ToString::to_string);
    let text = format!(
        "the system has no certificates to trust ({why}); install its package ca-certificates, or give "
    );
    Err(OptionFault::new("tls_ca", [text.into(), Name("tls_ca")]).into())
}

fn certificates(option: &'static str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(option, pem)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| unreadable(option, &error))?;
    if found.is_empty() {
        Err(unreadable(option, &"no certificate stands in it"))
    } else {
        Ok(found)
    }
}

fn private_key(pem: &Pem) -> Result<PrivateKeyDer<'static>> {
    // The parser's error is not shown, because it may contain a part of the key.
    PrivateKeyDer::from_pem_slice(&read("tls_key", pem)?)
        .map_err(|_| unreadable("tls_key", &"no private key stands in it"))
}

fn read(option: &'static str, pem: &Pem) -> Result<Vec<u8>> {
    match pem.path() {
        None => Ok(pem.text().as_bytes().to_vec()),
        Some(path) => std::fs::read(path).map_err(|error| {
            fault(
                option,
                &[format!(
                    ": cannot read {path:?}: {error}; give it PEM text, or the path of a file of it"
                )
                .into()],
            )
        }),
    }
}

fn unreadable(option: &'static str, why: &dyn std::fmt::Display) -> Error {
    let text = format!(": {why}; give it PEM text, or the path of a file of it");
    fault(option, &[text.into()])
}

/// The error with a text that begins with the name of the option.
fn fault(option: &'static str, text: &[Piece]) -> Error {
    OptionFault::new(option, [&[Name(option)], text].concat()).into()
}

/// What is wrong with the handshake that this error ends, and the failure itself; `None` if the error has
/// another cause. A server may refuse our certificate after the handshake has ended on our side.
pub(super) fn fault_of(error: &(dyn StdError + 'static)) -> Option<(TlsFault, Cause)> {
    let failure = causes(error).find_map(|cause| cause.downcast_ref::<Failure>())?;
    let fault = match failure {
        Failure::InvalidCertificate(why) => untrusted(why),
        Failure::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
        ) => TlsFault::CertificateWanted,
        Failure::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied,
        ) => TlsFault::CertificateRefused,
        Failure::InvalidMessage(_) => TlsFault::NoTls,
        _ => TlsFault::Other,
    };
    Some((fault, Arc::new(failure.clone())))
}

/// This error and those behind it, the innermost one last.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    successors(Some(error), |&error: &&'a (dyn StdError + 'static)| {
        match error.downcast_ref::<io::Error>().map(io::Error::get_ref) {
            // `source` of an I/O error skips the error that it wraps.
            Some(Some(inner)) => Some(inner),
            _ => error.source(),
        }
    })
}

/// The reason why the certificate of a server is not accepted.
fn untrusted(why: &CertificateError) -> TlsFault {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsFault::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsFault::NotYetValid
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsFault::OtherHost
        }
        CertificateError::UnknownIssuer => TlsFault::UnknownAuthority,
        CertificateError::Revoked => TlsFault::Revoked,
        _ => TlsFault::Certificate,
    }
}
