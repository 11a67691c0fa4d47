//! The numbers by which scripts tell what became of a call, for both sides: scripts get those that they use
//! as constants.

use crate::error::LostReason;

macro_rules! codes {
    ($( $name:ident = $code:expr; )+) => {
        $( pub(super) const $name: i64 = $code; )+
        /// Every code with its name in the scripts.
        pub(super) const CODES: &[(&str, i64)] = &[$( (stringify!($name), $name) ),+];
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
    // Of one lock among several, where a number that is not negative is a time or a count, and -1 no time.
    TAKEN = -3;
    ALONE = -4;
    // Why an owner's field is not there.
    DELETED = LostReason::Deleted.number() as i64;
    STOLEN = LostReason::Stolen.number() as i64;
}
