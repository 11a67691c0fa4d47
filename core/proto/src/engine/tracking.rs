//! Invalidations: with client tracking, the server reports changes of keys that this client has
//! read.
//!
//! An invalidation proves nothing. It causes a probe of the hold, which is an early renewal, and
//! the reply tells whether the lock is still there. Most invalidations mean that another client
//! changed the key. But a server tracks a limited number of keys for all its clients
//! (`tracking-table-max-keys`). Above that limit it forgets a key and reports it as changed. The
//! probe makes the server track the key again, so it forgets another key, and so on without end.
//! Two limits stop this:
//!
//! - Each probe that finds the hold unchanged delays the next probe of that hold, up to the time
//!   between two renewals.
//! - All probes together may not cost the server more than the other work of this client. Above
//!   that, the client suspends probing: it notices a loss at the next renewal, as without client
//!   tracking. It resumes when few invalidations arrive.
//!
//! Readers and holders of permits share a key, which each of them changes. A probe comes some milliseconds
//! after such a change: most of these holds end before that. The same two limits hold. The work is counted
//! apart, since such changes say nothing about the server. Above the limit, a tenth of the lease passes
//! before a probe.

use std::time::Duration;

use super::context::Context;
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::tuning;

/// The cost of the probes that invalidations cause, and whether the client acts on invalidations.
///
/// Work is counted in locks, as in [`Flow`](super::watchdog::Flow).
#[derive(Debug)]
pub(super) struct Tracking {
    /// The work of probes that found the lock unchanged, minus the other work done since.
    extra: usize,
    /// The same of probes after changes of keys that several holders share.
    shared: usize,
    mode: Mode,
    /// The length of the next suspension.
    pause: Duration,
    /// The suspension was reported as an event.
    told: bool,
}

#[derive(Debug)]
enum Mode {
    /// Invalidations cause probes.
    Active { since: Moment },
    /// Invalidations and renewals are only counted until `until`. Then the two counts are compared.
    Suspended {
        until: Moment,
        renewed: usize,
        invalidated: usize,
    },
}

impl Default for Tracking {
    fn default() -> Self {
        Tracking {
            extra: 0,
            shared: 0,
            mode: Mode::Active {
                since: Moment::default(),
            },
            pause: tuning::TRACKING_PAUSE.0,
            told: false,
        }
    }
}

/// The holds of a call that renews: those of the schedule, those that are probed, and those that are
/// probed because of a key that they share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Renewing {
    pub(super) planned: usize,
    pub(super) looks: usize,
    pub(super) shared: usize,
}

impl Tracking {
    /// Accounts for a call that renews holds. `all`: the number of holds.
    pub(super) fn renewing(&mut self, cx: &mut Context, all: usize, work: Renewing) {
        let Renewing {
            planned,
            looks,
            shared,
        } = work;
        if planned > 0 {
            self.done_anyway(cx, all, planned, tuning::RENEWAL_CALL_WORK);
        }
        let call = if planned > 0 {
            0
        } else {
            tuning::RENEWAL_CALL_WORK
        };
        if shared == 0 {
            self.extra += looks + call;
        } else {
            self.extra += looks;
            self.shared += shared + call;
        }
    }

    /// Accounts for work on `holds` holds in `calls` calls that would have happened without client
    /// tracking too. `all`: the number of holds.
    pub(super) fn done_anyway(&mut self, cx: &mut Context, all: usize, holds: usize, calls: usize) {
        let now = cx.now;
        self.extra = self.extra.saturating_sub(holds + calls);
        self.shared = self.shared.saturating_sub(holds + calls);
        match &mut self.mode {
            Mode::Suspended { renewed, .. } => {
                *renewed += holds;
                self.review(now, all);
            }
            Mode::Active { since } if self.told && since.after(self.pause) <= now => {
                (self.told, self.pause) = (false, tuning::TRACKING_PAUSE.0);
                let text = "the server reports changes of keys again: losses are noticed at once";
                cx.link_event("tracking_resumed", EventLevel::Info, text.to_owned());
            }
            Mode::Active { .. } => {}
        }
    }

    /// A probe found that the lock was gone, so its cost does not count against probing.
    pub(super) fn look_was_right(&mut self) {
        self.extra = self.extra.saturating_sub(1 + tuning::RENEWAL_CALL_WORK);
        self.shared = self.shared.saturating_sub(1 + tuning::RENEWAL_CALL_WORK);
    }

    /// Whether a change of a shared key may cause a probe soon. Other holders change such a key all the
    /// time, which says nothing about the server: this suspends nothing.
    pub(super) fn may_look_at_shared(&self, all: usize) -> bool {
        self.shared < all + tuning::PROBE_SPARE
    }

    /// Whether an invalidation may cause a probe now.
    pub(super) fn may_look(&mut self, cx: &mut Context, all: usize) -> bool {
        self.review(cx.now, all);
        // One probe for each hold, and a constant.
        let allowed = all + tuning::PROBE_SPARE;
        match &mut self.mode {
            Mode::Suspended { invalidated, .. } => {
                *invalidated += 1;
                false
            }
            Mode::Active { .. } if self.extra < allowed => true,
            Mode::Active { .. } => {
                self.suspend(cx);
                false
            }
        }
    }

    fn suspend(&mut self, cx: &mut Context) {
        // This was an attempt to resume, and it failed.
        if self.told {
            self.pause = tuning::TRACKING_PAUSE.1.min(self.pause * 2);
        }
        let until = cx.now.after(self.pause);
        self.mode = Mode::Suspended {
            until,
            renewed: 0,
            invalidated: 0,
        };
        if !std::mem::replace(&mut self.told, true) {
            let text = "the server invalidates keys that have not changed, so losses are noticed at renewals only; it tracks more keys \
                        than its tracking-table-max-keys: raise that";
            cx.link_event("tracking_suspended", EventLevel::Warn, text.to_owned());
        }
    }

    /// Resumes probing when the suspension is over and few invalidations arrived during it.
    fn review(&mut self, now: Moment, all: usize) {
        let Mode::Suspended {
            until,
            renewed,
            invalidated,
        } = self.mode
        else {
            return;
        };
        if now < until {
            return;
        }
        if invalidated * tuning::TRACKING_RESUMES <= renewed {
            self.mode = Mode::Active { since: now };
            // The resumption is an attempt: at first, only the constant part of the work is
            // allowed.
            self.extra = all;
        } else {
            let until = now.after(self.pause);
            self.mode = Mode::Suspended {
                until,
                renewed: 0,
                invalidated: 0,
            };
        }
    }
}
