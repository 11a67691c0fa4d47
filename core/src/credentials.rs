//! Credentials that are asked for at each connection.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

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

/// Gives the credentials for each connection.
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn Fn() -> Result<Credentials, Failure> + Send + Sync>);

// A panic of the program's function reaches nobody but the thread that it is asked on.
impl UnwindSafe for Provider {}
impl RefUnwindSafe for Provider {}

impl Provider {
    pub(crate) fn new(
        ask: impl Fn() -> Result<Credentials, Failure> + Send + Sync + 'static,
    ) -> Self {
        Provider(Arc::new(ask))
    }

    /// May block for as long as the program's function does.
    pub(crate) fn ask(&self) -> Result<Credentials, Failure> {
        (self.0)()
    }
}
