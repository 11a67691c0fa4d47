//! Operations that several objects send.

use std::time::Duration;

use crate::wire::{Form, Name, Op, OwnerId, Renewal};

/// Extends one lock: that of this owner, or of the token in `form`.
pub(super) fn extension_of(name: Name, owner: OwnerId, form: Form, ttl: Duration) -> Op {
    let holds = vec![Renewal {
        name,
        owner,
        form,
        ttl,
    }];
    Op::Renew { holds }
}

/// The owner of a call that identifies the lock by its token alone.
pub(super) const NOBODY: OwnerId = 0;
