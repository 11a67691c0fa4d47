//! The things that callers want: a lock, several as one, a semaphore with leases, or a plain semaphore.

use std::time::Duration;

use redlatch::{Client, Guard, Lock, Operation, PlainPermit, PlainSemaphore};

use crate::args::Args;

/// The value of `--kind` that is no option of a lock.
pub(crate) const PLAIN: &str = "plain-semaphore";

/// The value of `--kind` for multi locks, which is no option of a lock either.
pub(crate) const MULTI: &str = "multi";

pub(crate) enum Contested {
    Lock(Lock),
    Plain(PlainSemaphore, u32),
}

/// One acquisition of it.
pub(crate) enum Taken {
    Lock(Guard),
    Plain(PlainPermit),
}

impl Contested {
    pub(crate) fn new(client: &Client, args: &Args, name: &str) -> redlatch::Result<Contested> {
        Ok(match args.kind.as_str() {
            PLAIN => Contested::Plain(client.plain_semaphore(name)?, args.limit),
            MULTI => {
                let names = (0..args.names).map(|number| format!("{name}:{number}"));
                Contested::Lock(client.multi_lock(names)?)
            }
            _ => Contested::Lock(client.lock(name)?),
        })
    }

    /// Gives a plain semaphore its permits. Others get theirs by the first acquisition.
    pub(crate) fn fill(&self) -> Option<Operation<bool>> {
        match self {
            Contested::Lock(_) => None,
            Contested::Plain(plain, limit) => Some(plain.try_set_permits(*limit as usize)),
        }
    }

    pub(crate) async fn pair(&self) -> redlatch::Result<()> {
        match self {
            Contested::Lock(lock) => lock.acquire().await?.release().await,
            Contested::Plain(plain, _) => plain.acquire().await?.release().await,
        }
    }

    pub(crate) fn pair_blocking(&self) -> redlatch::Result<()> {
        match self {
            Contested::Lock(lock) => lock.acquire().wait()?.release().wait(),
            Contested::Plain(plain, _) => plain.acquire().wait()?.release().wait(),
        }
    }

    pub(crate) async fn acquire_timeout(&self, wait: Duration) -> redlatch::Result<Taken> {
        match self {
            Contested::Lock(lock) => lock.acquire_timeout(wait).await.map(Taken::Lock),
            Contested::Plain(plain, _) => plain.acquire_timeout(wait).await.map(Taken::Plain),
        }
    }

    pub(crate) fn acquire_timeout_blocking(&self, wait: Duration) -> redlatch::Result<Taken> {
        match self {
            Contested::Lock(lock) => lock.acquire_timeout(wait).wait().map(Taken::Lock),
            Contested::Plain(plain, _) => plain.acquire_timeout(wait).wait().map(Taken::Plain),
        }
    }
}

impl Taken {
    pub(crate) fn release(self) -> Operation<()> {
        match self {
            Taken::Lock(guard) => guard.release(),
            Taken::Plain(permit) => permit.release(),
        }
    }
}
