//! A caller that waits for its first level.

use std::time::Duration;

use super::cleanup::Left;
use super::hold::Hold;
use super::interface::{RequestId, Terms};
use super::names::Waiting;
use super::timing;
use super::turn::Turn;
use super::work::Entry;
use crate::error::Error;
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::primitives::facts::Ask;
use crate::wire::{Acquire, Form, Name, OwnerId};

/// What a caller asks for that has no hold on the name, as far as it knows.
#[derive(Debug)]
pub(super) struct Acquisition {
    pub(super) id: RequestId,
    pub(super) name: Name,
    pub(super) key: OwnerKey,
    /// `None` waits for ever, zero tries once.
    pub(super) wait: Option<Duration>,
    pub(super) terms: Terms,
    pub(super) form: Form,
}

impl Acquisition {
    /// Whether it tries once and does not wait.
    pub(super) fn once(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    /// Whether it is one more level of this hold, which its key has.
    pub(super) fn enters(&self, hold: &Hold) -> bool {
        match self.key {
            OwnerKey::Hold(_) => hold.cell.kind.side() == self.form.kind.side(),
            _ => self.terms.reenters() && hold.cell.form() == self.form,
        }
    }

    pub(super) fn entry(&self) -> Entry {
        Entry {
            key: self.key,
            terms: self.terms,
            wait: self.wait,
        }
    }
}

/// A caller that waits for its first level.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) name: Name,
    pub(super) key: OwnerKey,
    pub(super) call: OwnCall,
    pub(super) terms: Terms,
    pub(super) form: Form,
    pub(super) wait: Option<Duration>,
    /// Whether it tries, and others came before it that it must not pass.
    pub(super) behind: bool,
    /// When its caller came.
    pub(super) since: Moment,
    /// When the wait ends.
    pub(super) deadline: Option<Moment>,
    /// When the parked head tries again by itself.
    pub(super) retry: Option<Moment>,
    /// When it is told that it waits for a hold of its own key.
    pub(super) self_wait: Option<Moment>,
    /// Transient errors in a row.
    pub(super) failures: u32,
    /// The last transient error.
    pub(super) error: Option<Error>,
    /// The not-after of the last copy that got no answer.
    pub(super) unsettled: Option<Moment>,
    /// Whether it has a timer. Most waiters never have one.
    pub(super) timed: bool,
    /// Whether the call in flight is a hand-over from the previous hold.
    pub(super) handed: bool,
    /// Whether the caller has its answer. The waiter then stays only for the outcome of its call in
    /// flight.
    pub(super) answered: bool,
    /// Its owners before the last connections were made. One of them may have its place.
    pub(super) earlier: Vec<OwnerId>,
    /// Whether a call of this owner was sent without regard to the head of the queue.
    pub(super) asked: bool,
    /// Whether its caller may make that call itself, on a connection of its own. The calls of those behind
    /// it could overtake it.
    pub(super) inline: bool,
    pub(super) announced: bool,
    /// Whether that place is the first, so that it hears of what is free.
    pub(super) is_first: bool,
    /// How often in a row it was refused a lock that was free for the head of the queue on the server.
    pub(super) passed_by: u32,
    /// The owner of the write lock under which it reads: that lock does not keep it out.
    pub(super) under: Option<OwnerId>,
    /// Whether it has asked while another waiter was the head.
    pub(super) ahead: Ahead,
    /// Until when this reader stands back for writers of other clients that wait.
    pub(super) stands_back: Option<Moment>,
    /// Whether this writer may have noted at the server that it waits.
    pub(super) marked: bool,
    /// The holds of its own client that blocked it when its call was sent.
    pub(super) behind_own: Vec<OwnerId>,
    /// Whether its own timer causes its next try.
    pub(super) due: bool,
}

/// The call of a waiter. What the server grants to it may be given to another waiter, which then has this
/// call.
#[derive(Debug)]
pub(super) struct OwnCall {
    /// Drawn for this acquisition only, and retired if the acquisition fails.
    pub(super) owner: OwnerId,
    /// How long one copy may stay unanswered.
    pub(super) limit: Duration,
    /// Whether the last copy arrived after its not-after by the server's clock.
    pub(super) stale: bool,
    /// The place in a crowd that the last copy asked for.
    pub(super) in_crowd: Option<OwnerId>,
}

/// Whether a waiter asks that need not be the head of its queue: a reader, or one that has a place in
/// a queue on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// It has not asked.
    No,
    /// Its call is in flight. `again`: a wake-up came since it was sent.
    Asking { again: bool },
    /// It did not get the lock. A reader asks again when it is the head, or when the head reads.
    InVain,
}

impl Waiter {
    /// Whether it waits in a crowd. Others of this client may need the channel of the name.
    pub(super) fn crowds_in(&self, queue: &Waiting) -> bool {
        self.form.crowds()
            && self.terms.special.writer_preference.is_none()
            && !queue.has_places
            && !queue.has_readers
    }

    /// A waiter that has not asked yet, and has no deadline.
    pub(super) fn new(asked: Acquisition, owner: OwnerId, limit: Duration) -> Self {
        Waiter {
            name: asked.name,
            key: asked.key,
            call: OwnCall {
                owner,
                limit,
                stale: false,
                in_crowd: None,
            },
            terms: asked.terms,
            form: asked.form,
            wait: asked.wait,
            behind: false,
            since: Moment::default(),
            deadline: None,
            retry: None,
            self_wait: None,
            failures: 0,
            error: None,
            unsettled: None,
            timed: false,
            handed: false,
            answered: false,
            earlier: Vec::new(),
            asked: false,
            inline: false,
            announced: false,
            is_first: false,
            passed_by: 0,
            under: None,
            ahead: Ahead::No,
            stands_back: None,
            marked: false,
            behind_own: Vec::new(),
            due: false,
        }
    }

    /// What it may have left in Redis.
    pub(super) fn left(&self) -> Left {
        Left {
            marked: self.marked,
            ..Left::of(&self.name, self.call.owner, &self.form, self.lease())
        }
    }

    /// Whether it tries once and does not wait.
    pub(super) fn once(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    /// Whether it tries behind others, and has no call in flight but perhaps that of the head.
    pub(super) fn is_to_be_told(&self) -> bool {
        self.behind && !self.answered && !self.is_asking()
    }

    /// Whether what the server grants the one may be given to the other.
    pub(super) fn wants_as(&self, other: &Waiter) -> bool {
        self.form == other.form && self.terms == other.terms
    }

    /// Whether its wait has ended.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|end| end <= now)
    }

    /// Whether its call is in flight that was sent without regard to the head of the queue.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.ahead, Ahead::Asking { .. })
    }

    /// Notes a wake-up for the call in flight.
    pub(super) fn ask_again(&mut self) {
        if let Ahead::Asking { again } = &mut self.ahead {
            *again = true;
        }
    }

    pub(super) fn lease(&self) -> Duration {
        self.terms.first_lease()
    }

    /// Until when it leaves the lock to other clients. A caller whose wait ends before that tries
    /// at once.
    pub(super) fn waits_for_turn(&self, turn: &Turn, now: Moment) -> Option<Moment> {
        let end = turn.of_others(now)?;
        let patient = !self.once() && self.deadline.is_none_or(|last| last > end);
        patient.then_some(end)
    }

    /// Whether Redis keeps the queue that it waits in.
    pub(super) fn queues(&self) -> bool {
        self.form.kind.facts().queues
    }

    /// Whether it may have a place in that queue: a call of its owner was sent.
    pub(super) fn has_place(&self) -> bool {
        self.asked && self.queues() && !self.once()
    }

    /// Whether it has a place there, as the last answer says. One that wants more permits than there are has
    /// none.
    pub(super) fn is_seated(&self) -> bool {
        self.announced && self.queues()
    }

    /// Whether it may have left something at the server, although it does not have the lock.
    pub(super) fn leaves_something(&self) -> bool {
        self.unsettled.is_some() || self.has_place() || self.marked
    }

    /// Whether its first call, which got no answer, may have got a place before those that have theirs since.
    pub(super) fn lines_up_anew(&self) -> bool {
        let first = !self.announced && self.earlier.is_empty();
        first && !self.answered && !self.once()
    }

    /// Whether it is a writer whose tries leave a mark at the server.
    pub(super) fn marks(&self) -> bool {
        self.form.kind.writes() && !self.once() && self.terms.special.writer_preference.is_some()
    }

    /// Whether its next mark is due. A try renews the mark, and a timer causes the next one.
    pub(super) fn marks_now(&self, now: Moment) -> bool {
        self.marks() && self.retry.is_none_or(|at| at <= now)
    }

    /// The time for the mark of waiting writers, if the next try regards it. Each reader does so for
    /// a while only, so that no number of writers keeps it out for longer.
    fn mark(&self, now: Moment, recheck: Duration) -> Option<Duration> {
        let stands_back = self.stands_back.is_some_and(|end| end > now);
        let counts = stands_back || self.marks();
        let preference = self.terms.special.writer_preference.filter(|_| counts)?;
        Some(timing::mark(preference, recheck))
    }

    /// The longest time between two of its tries. A writer renews its mark before that ends.
    pub(super) fn recheck(&self, recheck: Duration) -> Duration {
        let preference = self.terms.special.writer_preference.filter(|_| self.marked);
        preference.map_or(recheck, |time| recheck.min(timing::mark(time, recheck) / 2))
    }

    /// The operation that its next try sends.
    pub(super) fn next_try(&mut self, now: Moment, recheck: Duration) -> Acquire {
        self.retry = None;
        let mark = self.mark(now, recheck);
        self.marked |= self.marks();
        self.handed = false;
        // The deadline of a try was for the wait before its call.
        if self.once() {
            self.deadline = None;
        }
        let payload = (self.form.kind.facts().payload)(Ask {
            once: self.once(),
            special: self.terms.special,
            mark,
            under: self.under,
            earlier: &self.earlier,
        });
        let (name, form) = (self.name.clone(), self.form.clone());
        Acquire {
            count: self.count(),
            fencing: self.terms.fencing,
            replicas: self.terms.replicas.into(),
            payload,
            ..Acquire::of(name, self.call.owner, form, self.lease())
        }
    }

    /// The hold count to ask for. Other clients may use the same token as this caller. So a token
    /// in Redis counts as ours only after a copy without an answer. Before that, the count 0 makes
    /// the server treat the lock as held by another owner.
    fn count(&self) -> u32 {
        u32::from(self.form.token.is_none() || self.unsettled.is_some())
    }
}
