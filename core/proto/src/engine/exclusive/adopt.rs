//! Adoption: a caller takes over a lock whose token it was given, from whatever process has it.
//!
//! One call replaces the token by an owner of this client. So the process that handed the lock on can
//! neither release nor extend it any more, and what it does when its own hold ends does no harm. It is
//! told of the loss as of any other. A second adoption with the same token is refused.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::Hold;
use crate::engine::interface::{RequestId, Terms};
use crate::engine::ops::NOBODY;
use crate::engine::waiter::Waiter;
use crate::engine::{Engine, timing};
use crate::error::{Error, ErrorKind, LostReason};
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Form, Name, Op};

impl Engine {
    pub(in crate::engine) fn adopt(
        &mut self,
        id: RequestId,
        name: Name,
        key: OwnerKey,
        terms: Terms,
        token: Arc<str>,
    ) {
        let form = Form::of(terms.kind);
        let mine = self
            .names
            .hold_of(&self.holds, &name, key, form.kind)
            .filter(|owner| !self.forget_run_out(*owner, key));
        if mine.is_some_and(|owner| !self.holds.get(&owner).is_some_and(Hold::is_lost)) {
            // A release by this key could not tell which hold it gives back.
            let text = "this thread, task or key has the lock already; release it first, or use another key";
            let error = Error::new(ErrorKind::InvalidArgument, text);
            return self.cx.fail(id, error.on(&name));
        }
        let lease = terms.first_lease();
        let owner = self.cx.next_owner();
        let op = Op::HandOver {
            name: name.clone(),
            owner: NOBODY,
            adopts: Some(token),
            to: owner,
            form: form.clone(),
            lease,
            fencing: terms.fencing,
            replicas: terms.replicas.into(),
        };
        let adopter = Waiter::new(name, key, owner, terms, form, tuning::PLAIN_LIMIT);
        self.queries
            .add(&mut self.cx, id, Some(op), Some(Box::new(adopter)));
        self.send_query(id);
    }

    /// The server has given the lock to the adopter.
    pub(in crate::engine) fn adopted(
        &mut self,
        id: RequestId,
        sent: Moment,
        ttl: Duration,
        token: Option<u64>,
    ) {
        // An adopter that has left has begun the clean-up.
        let Some(adopter) = self.queries.take_adopter(&mut self.cx, id) else {
            return;
        };
        let (name, key, owner, form) = (
            adopter.name.clone(),
            adopter.key,
            adopter.owner,
            adopter.form.clone(),
        );
        if sent.after(timing::trusted(adopter.lease().min(ttl))) <= self.cx.now {
            let text = "the answer came after the lease could be trusted; raise the lease";
            let error = Error::new(ErrorKind::Unavailable, text);
            self.cx.fail(id, error.on(&name));
            return self.clean_up_waiter(&adopter);
        }
        let queue = self.names.queues.entry(name.clone()).or_default();
        queue.add_hold(owner);
        self.open_hold(id, *adopter, sent, ttl, token);
        // The server does not tell a client of its own changes.
        self.lose_all(&name, LostReason::Stolen, Some(owner));
        self.adopt_waiters(&name, key, owner, &form);
    }
}
