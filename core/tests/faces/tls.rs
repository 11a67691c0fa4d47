//! Encrypted connections: a real server behind a terminator of TLS, because the servers that tests
//! get by themselves are built without it.

use std::error::Error as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redlatch::{ClientBuilder, ClientOptions, Error, OptionValue};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::*;

/// The files that `tests/tls/make` has made.
fn made(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tls")
        .join(name)
}

fn path(name: &str) -> String {
    made(name).into_os_string().into_string().unwrap()
}

fn chain(name: &str) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_file(made(name)).unwrap()]
}

/// Speaks TLS in front of a server.
struct Terminator {
    addr: SocketAddr,
    /// How many connections were made to it.
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Terminator {
    /// Shows the certificate `name`, and may want one of the client.
    async fn start(server: &Server, name: &str, wants_client: bool) -> Terminator {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if wants_client {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(chain("ca.pem"));
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(made(&format!("{name}.key"))).unwrap();
        let config = builder
            .with_single_cert(chain(&format!("{name}.pem")), key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let task = tokio::spawn(serve(listener, accepted.clone(), acceptor, server.port()));
        Terminator {
            addr,
            accepted,
            task,
        }
    }

    fn url(&self) -> String {
        format!("rediss://localhost:{}", self.addr.port())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder(&self.url()).option("tls_ca", OptionValue::Text(&path("ca.pem")))
    }
}

impl Drop for Terminator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    accepted: Arc<AtomicUsize>,
    acceptor: TlsAcceptor,
    port: u16,
) {
    loop {
        let (outer, _) = listener.accept().await.unwrap();
        accepted.fetch_add(1, Ordering::SeqCst);
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let Ok(mut outer) = acceptor.accept(outer).await else {
                return;
            };
            let mut inner = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ = copy_bidirectional(&mut outer, &mut inner).await;
        });
    }
}

/// Why a client is not connected.
async fn refused(builder: ClientBuilder) -> Error {
    let client = builder.build().unwrap();
    let error = soon("an answer", client.ready())
        .await
        .expect_err("refused");
    // No way round it, for acquisitions either.
    let lock = client.lock("n").unwrap();
    assert!(soon("an answer", lock.try_acquire()).await.is_err());
    error
}

fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        let text = format!("{error:#}");
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

/// A lock is held, waited for, and its loss is told.
async fn works(server: &Server, client: &Client) {
    let lock = client.lock("n").unwrap();
    let guard = soon("the lock", lock.acquire()).await.unwrap();
    let waiting = lock.acquire();
    let waiter = tokio::spawn(async move { waiting.await.unwrap() });
    eventually("it waits", || client.stats().waiting == 1).await;
    soon("the release", guard.release()).await.unwrap();
    let guard = soon("the waiter", waiter).await.unwrap();
    redis::cmd("DEL")
        .arg("n")
        .exec(&mut server.connect())
        .unwrap();
    soon("the loss", guard.lost()).await;
}

#[tokio::test]
async fn a_lock_over_tls() {
    let server = Server::start();
    let terminator = Terminator::start(&server, "server", false).await;
    let client = terminator.builder().build().unwrap();
    works(&server, &client).await;

    // As text, and over the address that stands in the certificate as well.
    let pem = fs::read_to_string(made("ca.pem")).unwrap();
    let url = format!("rediss://{}", terminator.addr);
    let options = ClientOptions::new().tls_ca(pem.as_str().into());
    let client = Client::builder(&url).options(options).build().unwrap();
    soon("the server", client.ready()).await.unwrap();
}

#[tokio::test]
async fn a_lock_over_tls_with_a_certificate_of_the_client() {
    let server = Server::start();
    let terminator = Terminator::start(&server, "server", true).await;
    let builder = terminator
        .builder()
        .option("tls_cert", OptionValue::Text(&path("client.pem")))
        .option("tls_key", OptionValue::Text(&path("client.key")));
    works(&server, &builder.build().unwrap()).await;

    says(
        &refused(terminator.builder()).await,
        ErrorKind::Auth,
        &["TLS", "give tls_cert and tls_key"],
    );
}

/// There is none that is encrypted, and none in clear text beside it.
#[tokio::test]
async fn threads_over_tls_have_no_direct_connection() {
    let server = Server::start();
    let terminator = Terminator::start(&server, "server", false).await;
    let client = terminator.builder().build().unwrap();
    let lock = client.lock("n").unwrap();
    let pairs = tokio::task::spawn_blocking(move || {
        for _ in 0..50 {
            lock.acquire().wait().unwrap().release().wait().unwrap();
        }
    });
    soon("the pairs", pairs).await.unwrap();
    // One for commands and one for messages.
    assert!(terminator.accepted.load(Ordering::SeqCst) <= 2);
    assert_eq!(client.stats().connects, 1);
}

#[tokio::test]
async fn a_certificate_that_is_not_right_is_refused() {
    let server = Server::start();
    let right = Terminator::start(&server, "server", false).await;
    let stranger =
        Client::builder(&right.url()).option("tls_ca", OptionValue::Text(&path("other.pem")));
    let error = refused(stranger).await;
    says(
        &error,
        ErrorKind::Auth,
        &["TLS", "give tls_ca", &right.addr.port().to_string()],
    );
    let cause = error.source().expect("that of rustls");
    assert!(cause.is::<tokio_rustls::rustls::Error>());
    assert!(!error.to_string().contains(&cause.to_string()), "{error}");
    // Nobody in the world has signed it either. A system may have nobody to trust; that is told
    // too.
    match Client::builder(&right.url()).build() {
        Ok(client) => {
            let error = soon("an answer", client.ready())
                .await
                .expect_err("refused");
            says(&error, ErrorKind::Auth, &["TLS", "give tls_ca"]);
        }
        Err(error) => says(&error, ErrorKind::InvalidArgument, &["give tls_ca"]),
    }

    let expired = Terminator::start(&server, "expired", false).await;
    says(
        &refused(expired.builder()).await,
        ErrorKind::Auth,
        &["TLS", "renew the server's certificate"],
    );
    let other = Terminator::start(&server, "wronghost", false).await;
    says(
        &refused(other.builder()).await,
        ErrorKind::Auth,
        &["TLS", "the certificate is for another host"],
    );
}

#[tokio::test]
async fn clear_text_is_never_spoken_instead() {
    let server = Server::start();
    // The server takes the handshake for the beginning of a command, and may wait for the rest.
    let url = format!("rediss://:geheim@localhost:{}", server.port());
    let builder = Client::builder(&url).options(
        ClientOptions::new()
            .connect_timeout(ms(1000))
            .tls_ca(path("ca.pem").into()),
    );
    let error = refused(builder).await;
    says(&error, ErrorKind::Unavailable, &["TLS"]);
    assert!(!error.to_string().contains("geheim"));

    // And the other way round.
    let terminator = Terminator::start(&server, "server", false).await;
    let error = refused(Client::builder(&format!(
        "redis://localhost:{}",
        terminator.addr.port()
    )))
    .await;
    says(&error, ErrorKind::Unavailable, &["cannot reach"]);
}

#[test]
fn certificates_that_cannot_be_used_are_refused_before_anything_is_sent() {
    let refused = |url: &str, options: &[(&str, &str)]| {
        let builder = options
            .iter()
            .fold(Client::builder(url), |builder, (name, value)| {
                builder.option(name, OptionValue::Text(value))
            });
        let error = builder.build().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(!error.to_string().contains("geheim"), "{error}");
        error.message().to_owned()
    };
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    let (server_key, make) = (path("server.key"), path("make"));
    let tls = "rediss://localhost";
    assert!(refused("redis://localhost", &[("tls_ca", &ca)]).contains("let it begin with rediss"));
    assert!(refused(tls, &[("tls_ca", "/no/such/file")]).contains("cannot read \"/no/such/file\""));
    assert!(refused(tls, &[("tls_ca", &make)]).contains("no certificate stands in it"));
    assert!(refused(tls, &[("tls_ca", "")]).contains("give it PEM text"));
    assert!(refused(tls, &[("tls_ca", &ca), ("tls_key", &key)]).contains("tls_cert; give both"));
    assert!(refused(tls, &[("tls_ca", &ca), ("tls_cert", &cert)]).contains("tls_key; give both"));
    let others = [
        ("tls_ca", &*ca),
        ("tls_cert", &cert),
        ("tls_key", &server_key),
    ];
    assert!(refused(tls, &others).contains("do not belong together"));
    let others = [("tls_ca", &*ca), ("tls_cert", &cert), ("tls_key", &cert)];
    assert!(refused(tls, &others).contains("no private key stands in it"));
    let broken = "-----BEGIN PRIVATE KEY-----\ngeheim\n-----END PRIVATE KEY-----";
    let others = [("tls_ca", &*ca), ("tls_cert", &cert), ("tls_key", broken)];
    assert!(refused(tls, &others).starts_with("tls_"));
}

#[tokio::test]
async fn a_protocol_can_be_demanded() {
    let server = Server::start();
    for (protocol, spoken) in [("auto", "resp=3"), ("resp3", "resp=3"), ("resp2", "resp=2")] {
        let client = Client::builder(&server.url())
            .option("protocol", OptionValue::Text(protocol))
            .option("client_name", OptionValue::Text(protocol));
        let client = client.build().unwrap();
        soon("the server", client.ready()).await.unwrap();
        let list: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut server.connect())
            .unwrap();
        let line = list
            .lines()
            .find(|line| line.contains(&format!(" name={protocol};")))
            .unwrap();
        // Before Redis 7 the list does not say.
        assert!(line.contains(spoken) || !line.contains("resp="), "{line}");
        client.close().await.unwrap();
    }
}
