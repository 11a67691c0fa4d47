//! The calls of a lock that is a string, and of an adaptive one.

use crate::primitives::ops::Scripts;
use crate::primitives::reentrant::ops::Lock;
use crate::wire::script::{Script, script};

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: [
        script!(reentrant "acquire" Plain),
        script!(reentrant "acquire" Plain crowd),
    ],
    release: [
        script!(reentrant "release" Plain),
        script!(reentrant "release" Plain crowd),
    ],
    lower: script!(reentrant "lower" Plain),
    renew: script!(reentrant "renew" Plain),
    force: script!(reentrant "force" Plain),
    inspect: script!(reentrant "inspect" Plain),
};
pub(crate) static LEARNING: Scripts = Scripts {
    acquire: [
        script!(reentrant "acquire" Learning),
        script!(reentrant "acquire" Learning crowd),
    ],
    release: [
        script!(reentrant "release" Learning),
        script!(reentrant "release" Learning crowd),
    ],
    ..SCRIPTS
};
pub(crate) static ACQUIRE_MANY: &Script = script!(reentrant "acquire_many" Plain);
pub(crate) static RELEASE_MANY: &Script = script!(reentrant "release_many" Plain);
pub(crate) static HAND_OVER: &Script = script!(reentrant "handover" Plain);

pub(crate) const OPS: Lock = Lock {
    scripts: &SCRIPTS,
    learns: false,
};
pub(crate) const ADAPTIVE: Lock = Lock {
    scripts: &LEARNING,
    learns: true,
};
