//! Operations that several objects send.

use std::time::Duration;

use crate::wire::{Form, Name, Op, OwnerId, Renewal};

/// The release that frees the lock if it has this owner and form. It carries no lease sample.
pub(super) fn release_of(name: Name, owner: OwnerId, form: Form) -> Op {
    Op::Release {
        name,
        owner,
        form,
        remaining: 0,
        ttl: Duration::ZERO,
        lesson: None,
        unmark: false,
        place: None,
    }
}

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
