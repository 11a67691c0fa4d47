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

use std::time::Duration;

use super::hold::Phase;
use super::{Engine, timing};
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Name, OwnerId};

/// The cost of the probes that invalidations cause, and whether the client acts on invalidations.
///
/// Work is counted in locks, as in [`Flow`](super::watchdog::Flow).
#[derive(Debug)]
pub(super) struct Tracking {
    /// The work of probes that found the lock unchanged, minus the other work done since.
    extra: usize,
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
            mode: Mode::Active {
                since: Moment::default(),
            },
            pause: tuning::TRACKING_PAUSE.0,
            told: false,
        }
    }
}

impl Engine {
    /// Handles an invalidation: either the keys of these names were changed, or the server stopped
    /// tracking them (`None`: all names). Holds are probed, and waiters may try.
    pub(super) fn invalidated(&mut self, names: Option<Vec<Name>>) {
        for name in names.unwrap_or_else(|| self.all_names()) {
            for owner in self.holds_on(&name) {
                self.key_changed(owner);
            }
            self.hint(&name);
        }
    }

    fn key_changed(&mut self, owner: OwnerId) {
        let up = self.is_up_for(owner);
        let Some(hold) = self
            .holds
            .get_mut(&owner)
            .filter(|hold| up && hold.phase == Phase::Held)
        else {
            return;
        };
        // A probe of this hold is planned or in flight already.
        if hold.renewal.invalidated || hold.renewal.put_off {
            return;
        }
        hold.renewal.invalidated = true;
        // A renewal in flight may have read the key before the change; `renewal_kept` handles that.
        if !hold.renewal.in_flight {
            self.plan_look(owner);
        }
    }

    /// Plans a probe of a hold whose key was invalidated: now, after its delay, or with its next
    /// renewal.
    pub(super) fn plan_look(&mut self, owner: OwnerId) {
        let may = self.may_look();
        let now = self.cx.now;
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let at = now.after(rest(hold.harmless).min(timing::period(hold.longest())));
        let due = hold.renewal.due.get();
        if !may || due.is_some_and(|due| due <= at) {
            // Without a planned renewal nothing would clear the flag, and the next invalidation
            // would be ignored.
            hold.renewal.invalidated = due.is_some();
            return;
        }
        hold.harmless = hold.harmless.saturating_add(1);
        hold.look = true;
        if at <= now {
            self.hurried.push(owner);
        } else {
            hold.renewal.due = Some(at).into();
            self.arm_hold(owner);
        }
    }

    /// Sends the probes that are due now. Holds that were renewed in the meantime need none.
    pub(super) fn look_at_hurried(&mut self) {
        let mut hurried = std::mem::take(&mut self.hurried);
        hurried.retain(|owner| self.holds.get(owner).is_some_and(|hold| hold.look));
        self.renew_now(hurried);
    }

    /// Accounts for a call that renews `planned` holds as scheduled and probes `looks` others.
    pub(super) fn renewing(&mut self, planned: usize, looks: usize) {
        if planned > 0 {
            self.done_anyway(planned, tuning::RENEWAL_CALL_WORK);
        }
        self.tracking.extra += looks
            + if planned > 0 {
                0
            } else {
                tuning::RENEWAL_CALL_WORK
            };
    }

    /// Accounts for work on `holds` holds in `calls` calls that would have happened without client
    /// tracking too.
    pub(super) fn done_anyway(&mut self, holds: usize, calls: usize) {
        let (now, tracking) = (self.cx.now, &mut self.tracking);
        tracking.extra = tracking.extra.saturating_sub(holds + calls);
        match &mut tracking.mode {
            Mode::Suspended { renewed, .. } => {
                *renewed += holds;
                self.review();
            }
            Mode::Active { since } if tracking.told && since.after(tracking.pause) <= now => {
                (tracking.told, tracking.pause) = (false, tuning::TRACKING_PAUSE.0);
                let text = "the server reports changes of keys again: losses are noticed at once";
                self.link_event("tracking_resumed", EventLevel::Info, text.to_owned());
            }
            Mode::Active { .. } => {}
        }
    }

    /// A probe found that the lock was gone, so its cost does not count against probing.
    pub(super) fn look_was_right(&mut self) {
        self.tracking.extra = self
            .tracking
            .extra
            .saturating_sub(1 + tuning::RENEWAL_CALL_WORK);
    }

    /// Whether an invalidation may cause a probe now.
    fn may_look(&mut self) -> bool {
        self.review();
        let allowed = self.allowed_work();
        match &mut self.tracking.mode {
            Mode::Suspended { invalidated, .. } => {
                *invalidated += 1;
                false
            }
            Mode::Active { .. } if self.tracking.extra < allowed => true,
            Mode::Active { .. } => {
                self.suspend();
                false
            }
        }
    }

    /// One probe for each hold, and a constant.
    fn allowed_work(&self) -> usize {
        self.holds.len() + tuning::PROBE_SPARE
    }

    fn suspend(&mut self) {
        let tracking = &mut self.tracking;
        // This was an attempt to resume, and it failed.
        if tracking.told {
            tracking.pause = tuning::TRACKING_PAUSE.1.min(tracking.pause * 2);
        }
        let until = self.cx.now.after(tracking.pause);
        tracking.mode = Mode::Suspended {
            until,
            renewed: 0,
            invalidated: 0,
        };
        if !std::mem::replace(&mut tracking.told, true) {
            let text = "the server invalidates keys that have not changed, so losses are noticed at renewals only; it tracks more keys \
                        than its tracking-table-max-keys: raise that";
            self.link_event("tracking_suspended", EventLevel::Warn, text.to_owned());
        }
    }

    /// Resumes probing when the suspension is over and few invalidations arrived during it.
    fn review(&mut self) {
        let (now, holds) = (self.cx.now, self.holds.len());
        let tracking = &mut self.tracking;
        let Mode::Suspended {
            until,
            renewed,
            invalidated,
        } = tracking.mode
        else {
            return;
        };
        if now < until {
            return;
        }
        if invalidated * tuning::TRACKING_RESUMES <= renewed {
            tracking.mode = Mode::Active { since: now };
            // The resumption is an attempt: at first, only the constant part of the work is
            // allowed.
            tracking.extra = holds;
        } else {
            let until = now.after(tracking.pause);
            tracking.mode = Mode::Suspended {
                until,
                renewed: 0,
                invalidated: 0,
            };
        }
    }
}

/// The delay before the next probe of a hold, after `harmless` probes that found it unchanged.
fn rest(harmless: u8) -> Duration {
    match harmless {
        0 => Duration::ZERO,
        some => tuning::PROBE_PAUSE
            .saturating_mul(1_u32.checked_shl(u32::from(some - 1)).unwrap_or(u32::MAX)),
    }
}
