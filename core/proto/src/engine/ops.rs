//! Operations that several objects send.

use std::time::Duration;

use crate::wire::{Form, Name, Op, OwnerId, Renewal};

/// Extends the lock whose value is the token in `form`.
pub(super) fn extension_of(name: Name, form: Form, ttl: Duration) -> Op {
    Op::Renew {
        holds: vec![Renewal {
            name,
            owner: NOBODY,
            form,
            ttl,
        }],
    }
}

/// The owner of a call that identifies the lock by its token alone.
pub(super) const NOBODY: OwnerId = 0;
