//! Credentials that are asked for at each connection.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::shared_call::SharedCall;

/// A user name and a password, as a credential provider gives them; see
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials). `Debug` shows neither.
///
/// # Examples
/// ```
/// use redlatch::Credentials;
///
/// let named = Credentials::new("app", "secret");
/// let of_the_default_user = Credentials::password("secret");
/// assert_eq!(format!("{named:?}"), "Credentials(***)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// The user of this name.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Credentials {
            user: Some(user.into()),
            password: password.into(),
        }
    }

    /// The default user, as with `requirepass`.
    pub fn password(password: impl Into<String>) -> Self {
        Credentials {
            user: None,
            password: password.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(***)")
    }
}

/// Why a credential provider has no credentials.
pub(crate) type Failure = Box<dyn StdError + Send + Sync>;

type Answer = std::result::Result<Credentials, Arc<dyn StdError + Send + Sync>>;

/// Gives the credentials for each connection.
#[derive(Clone)]
pub(crate) struct Provider {
    function: Arc<dyn Fn() -> std::result::Result<Credentials, Failure> + Send + Sync>,
    /// The clones for one client share it. It has a thread of its own: it may block for long, and
    /// nothing else may wait for it.
    calls: SharedCall<Answer>,
}

// A panic of the program's function reaches nobody but the thread that it is asked on.
impl UnwindSafe for Provider {}
impl RefUnwindSafe for Provider {}

impl Provider {
    pub(crate) fn new(
        function: impl Fn() -> std::result::Result<Credentials, Failure> + Send + Sync + 'static,
    ) -> Self {
        Provider {
            function: Arc::new(function),
            calls: SharedCall::default(),
        }
    }

    /// The same function for another client, which shares no calls.
    pub(crate) fn for_client(self) -> Self {
        Provider {
            calls: SharedCall::default(),
            ..self
        }
    }

    /// Asks the function, or waits for the answer to a call that is in flight.
    pub(crate) async fn ask(&self) -> Result<Credentials> {
        let function = self.function.clone();
        let answer = self.calls.ask(move || function().map_err(Arc::from)).await;
        match answer {
            Err(error) => {
                let text = format!("the credential provider needs a thread: {error}; trying again");
                Err(Error::new(ErrorKind::Unavailable, text).caused_by(Arc::new(error)))
            }
            Ok(None) => {
                let text = "the credential provider panicked; the panic hook has reported it";
                Err(Error::new(ErrorKind::Unavailable, text))
            }
            Ok(Some(Err(cause))) => {
                let text = format!("the credential provider failed: {cause}; asking it again");
                Err(Error::new(ErrorKind::Unavailable, text).caused_by(cause))
            }
            Ok(Some(Ok(credentials))) => Ok(credentials),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use futures_util::future::{join, join_all};
    use tokio::net::lookup_host;
    use tokio::runtime;
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A call that hung took the threads of the look-ups, and each attempt that was given up left
    /// another one behind.
    #[test]
    fn look_ups_go_on_beside_the_one_call_in_flight() {
        let (release, released) = mpsc::channel::<()>();
        let (released, asked) = (Mutex::new(released), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        let provider = Provider::new(move || {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let gate = released.lock().expect("no panic");
            gate.recv_timeout(LIMIT)?;
            Ok(Credentials::password(number.to_string()))
        });
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            for _ in 0..3 {
                let given_up = timeout(Duration::from_millis(1), provider.ask()).await;
                assert!(given_up.is_err(), "it hangs");
            }
            let waiting = join_all((0..6).map(|_| provider.ask()));
            let others = async {
                let found = timeout(LIMIT, lookup_host(("localhost", 1))).await;
                release.send(()).expect("it waits");
                drop(found.expect("in time").expect("an address"));
            };
            let (answers, ()) = join(waiting, others).await;
            for answer in answers {
                assert_eq!(answer.expect("an answer").password, "0");
            }
            assert_eq!(asked.load(Ordering::SeqCst), 1);
            release.send(()).expect("it is still there");
            let next = provider.ask().await.expect("an answer");
            assert_eq!(next.password, "1", "an answer is not kept");
        });
    }

    #[test]
    fn clients_of_one_function_share_no_calls() {
        let (all_ask, asking) = (
            Arc::new(std::sync::Barrier::new(2)),
            Arc::new(AtomicUsize::new(0)),
        );
        let count = asking.clone();
        let provider = Provider::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            all_ask.wait();
            Ok(Credentials::password("p"))
        });
        let (one, other) = (provider.clone().for_client(), provider.for_client());
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let both = async { timeout(LIMIT, join(one.ask(), other.ask())).await };
        let done = runtime.expect("a runtime").block_on(both);
        let (one, other) = done.expect("both are asked");
        assert!(one.is_ok() && other.is_ok());
        assert_eq!(asking.load(Ordering::SeqCst), 2);
    }
}
