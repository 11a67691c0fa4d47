//! What the options of a lock and its client make of a call: what they refuse, and the request.

use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::quorum::{self, Members};

use super::{AcquireOptions, LockOptions};
use crate::engine::{AcquireAll, Part, Request, Terms};
use crate::error::{Error, Result};
use crate::wire::{Form, Inspection, Kind, Name};

/// A lock of a client, as its requests name it.
pub(crate) struct LockRequests<'a> {
    pub(crate) name: &'a Name,
    pub(crate) options: &'a LockOptions,
    /// The servers of the client's quorum, and its `restart_delay`.
    pub(crate) quorum: Option<(&'a Members, Duration)>,
}

impl LockRequests<'_> {
    /// How its hold is found: a lock of a quorum has one of its own kind on each server.
    pub(crate) fn kind(&self) -> Kind {
        match self.quorum {
            Some(_) => Kind::Quorum,
            None => self.options.wire_kind(),
        }
    }

    /// The error with the name of this lock.
    pub(crate) fn blamed(&self, error: Error) -> Error {
        error.on(self.name).of(self.kind().thing())
    }

    /// Refuses a lease that a server of a quorum may have forgotten when it has a vote again.
    pub(crate) fn check_lease(&self, lease: Duration) -> Result<()> {
        match self.quorum {
            Some((_, delay)) => quorum::check_lease(lease, delay),
            None => Ok(()),
        }
    }

    /// Refuses what does not go with the options. The token comes first: the next check advises the kind
    /// simple, and the lock of a quorum takes no token of any kind.
    fn check(&self, acquire: &AcquireOptions) -> Result<()> {
        if acquire.token.is_some() && self.quorum.is_some() {
            return Err(quorum::takes_no_token());
        }
        acquire.validate_for(self.options)
    }

    /// The request of an acquisition. `multi`: the locks that a multi lock is made of.
    #[allow(
        clippy::useless_conversion,
        reason = "in the module for WebAssembly both keys are one type"
    )]
    pub(crate) fn acquire(
        &self,
        acquire: AcquireOptions,
        multi: Option<Vec<(&Name, &LockOptions)>>,
    ) -> Result<Request> {
        let terms = self.options.terms(&acquire);
        self.check(&acquire)
            .and_then(|()| self.check_lease(terms.lease.duration()))
            .map_err(|error| self.blamed(error))?;
        let part = |(name, options): (&Name, &LockOptions)| Part {
            name: name.clone(),
            terms: options.terms(&acquire),
        };
        let parts: Option<(Arc<[Part]>, usize)> = match self.quorum {
            Some((members, _)) => Some(members.parts(self.name, terms)),
            None => multi.map(|all| (all.iter().copied().map(part).collect(), all.len())),
        };
        let (name, key, wait) = (self.name.clone(), acquire.key.into(), acquire.wait);
        let terms = Terms {
            kind: self.kind(),
            ..terms
        };
        Ok(match (parts, acquire.token) {
            (Some((parts, needed)), _) => Request::AcquireAll(AcquireAll {
                name,
                parts,
                needed,
                key,
                wait,
                terms,
            }),
            (None, Some(token)) if acquire.adopts => Request::Adopt {
                name,
                key,
                terms,
                token,
            },
            (None, token) => Request::Acquire {
                name,
                key,
                wait,
                terms,
                token,
            },
        })
    }

    /// The form in Redis of a hold with this token.
    pub(crate) fn form(&self, token: &str) -> Result<Form> {
        let acquire = AcquireOptions::new().token(token);
        self.check(&acquire).map_err(|error| self.blamed(error))?;
        Ok(Form {
            kind: self.options.kind,
            token: Some(token.into()),
            ..Form::default()
        })
    }

    /// Releases the lock that has this token, or extends it by a lease that was checked.
    pub(crate) fn by_token(&self, token: &str, lease: Option<Duration>) -> Result<Request> {
        let (name, form) = (self.name.clone(), self.form(token)?);
        Ok(match lease {
            Some(lease) => Request::ExtendToken { name, form, lease },
            None => Request::ReleaseToken { name, form },
        })
    }

    pub(crate) fn inspect(&self, what: Inspection) -> Request {
        let (name, kind) = (self.name.clone(), self.kind());
        Request::Inspect { name, kind, what }
    }

    pub(crate) fn force(&self) -> Request {
        let (name, kind) = (self.name.clone(), self.kind());
        Request::Force { name, kind }
    }

    /// Asks for the permits of a semaphore, after it was given so many; the number was checked.
    pub(crate) fn count(&self, limit: Option<usize>) -> Request {
        let (name, limit) = (self.name.clone(), limit.map(|limit| limit as u32));
        Request::Count { name, limit }
    }
}

/// The most permits of a plain semaphore, and the highest count of a latch, that a call may name.
const MOST: u32 = i32::MAX.unsigned_abs();

/// Checks a number of permits or a count.
pub(crate) fn counted(what: &str, number: u64, least: u32) -> Result<u32> {
    let count = u32::try_from(number).ok();
    let count = count.filter(|count| (least..=MOST).contains(count));
    count.ok_or_else(|| {
        Error::invalid(format!(
            "{what} is {number}; give it a whole number from {least} to {MOST}"
        ))
    })
}
