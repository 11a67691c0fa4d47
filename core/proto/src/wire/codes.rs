//! Constants of the scripts, shared by both sides: a script gets those that it uses. Most are result
//! codes.

use crate::error::LostReason;
use crate::tuning;

macro_rules! codes {
    ($( $(#[$meta:meta])* $name:ident = $code:expr; )+) => {
        $( $(#[$meta])* pub(crate) const $name: i64 = $code; )+
        /// Every constant with its name in the scripts.
        pub(crate) const CODES: &[(&str, i64)] = &[$( (stringify!($name), $name) ),+];
    };
}

codes! {
    STALE = 0;
    ACQUIRED = 1;
    BUSY = 2;
    GONE = 3;
    FOREIGN = 4;
    RELEASED = 5;
    KEPT = 6;
    RENEWED = 7;
    FORCED = 8;
    HOLDER = 9;
    COUNTED = 10;
    CHANGED = 11;
    SUPERSEDED = 12;
    VAIN = 13;
    PARKED = 14;
    // What was done may not be published. More than can hear of it.
    DENIED = 1 << 31;
    // In a batch, the result of one lock. Other values there: a time or a count if not negative, -1
    // for no expiry.
    TAKEN = -3;
    ALONE = -4;
    // Why the field of an owner is missing.
    DELETED = LostReason::Deleted.number() as i64;
    STOLEN = LostReason::Stolen.number() as i64;
    // How often a release of permits is published at most.
    #[allow(dead_code)] // only the scripts use it
    MESSAGES = tuning::PERMIT_MESSAGES as i64;
    // How long a place in a queue is kept, in ms.
    #[allow(dead_code)] // only the scripts use it
    KEPTPLACE = tuning::PLACE_KEPT.as_millis() as i64;
    // How long the places of a crowd stay after the last one was asked for, in ms.
    #[allow(dead_code)] // only the scripts use it
    KEPTCROWD = tuning::CROWD_KEPT.as_millis() as i64;
    // The score of a place whose client has been told that it is among the first is the time less this, so below 0.
    #[allow(dead_code)] // only the scripts use it
    TOLD = 4_000_000_000_000_000;
    // How long the first one of a crowd is taken to listen after it was told that it is, in ms.
    #[allow(dead_code)] // only the scripts use it
    FIRSTCROWD = tuning::CROWD_FIRST.as_millis() as i64;
    // When a waiter that left free permits to the first place tries again, in ms.
    #[allow(dead_code)] // only the scripts use it
    LEFTCROWD = tuning::CROWD_LEFT.as_millis() as i64;
    // How long the marker of a counter's last change stays, in ms.
    #[allow(dead_code)] // only the scripts use it
    MARKED = tuning::MARKER_LIFE.as_millis() as i64;
}
