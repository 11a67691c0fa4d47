//! A lock that is made of several holds. It has no key: each of its locks is stored by its own kind.

use crate::error::Thing;
use crate::primitives::facts::{Facts, Side};
use crate::primitives::simple;

pub const MULTI: Facts = Facts {
    name: "multi",
    thing: Thing::MultiLock,
    side: Side::Several,
    reenters: true,
    takes_tokens: false,
    ..simple::facts::FACTS
};

pub const QUORUM: Facts = Facts {
    name: "quorum",
    thing: Thing::Lock,
    ..MULTI
};
