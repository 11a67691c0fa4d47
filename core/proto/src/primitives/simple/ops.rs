//! The calls of a lock that is a string, and of an adaptive one.

use crate::primitives::ops::Scripts;
use crate::primitives::reentrant::ops::Lock;
use crate::wire::script::{Script, script};

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: [script!("acquire" Plain), script!("acquire" Plain crowd)],
    release: [script!("release" Plain), script!("release" Plain crowd)],
    lower: script!("lower" Plain),
    renew: script!("renew" Plain),
    force: script!("force" Plain),
    inspect: script!("inspect" Plain),
};
pub(crate) static LEARNING: Scripts = Scripts {
    acquire: [
        script!("acquire" Learning),
        script!("acquire" Learning crowd),
    ],
    release: [
        script!("release" Learning),
        script!("release" Learning crowd),
    ],
    ..SCRIPTS
};
pub(crate) static ACQUIRE_MANY: &Script = script!("acquire_many" Plain);
pub(crate) static RELEASE_MANY: &Script = script!("release_many" Plain);
pub(crate) static HAND_OVER: &Script = script!("handover" Plain);

pub(crate) const OPS: Lock = Lock {
    scripts: &SCRIPTS,
    learns: false,
};
pub(crate) const ADAPTIVE: Lock = Lock {
    scripts: &LEARNING,
    learns: true,
};
