//! The wire protocol: the only place that knows the names of keys and channels, shared parts of Lua,
//! the words of a call and the shape of replies. The arguments of each primitive are in its folder.
//!
//! [`Op`] and [`Reply`] are plain data, so the engine can use them without I/O.

pub mod access;
mod batch;
#[cfg(test)]
mod batch_tests;
mod call;
pub(crate) mod codes;
#[cfg(test)]
mod counter_tests;
mod decode;
#[cfg(test)]
mod encode;
#[cfg(test)]
mod fair_tests;
pub(crate) mod ids;
pub(crate) mod kind;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod model_tests;
pub mod names;
pub(crate) mod op;
#[cfg(test)]
mod permit_tests;
mod process;
pub(crate) mod publish;
pub(crate) mod reply;
#[cfg(test)]
mod rw_tests;
pub(crate) mod script;
mod server_error;
pub mod servers;
#[cfg(test)]
mod simple_tests;
pub mod slots;
pub(crate) mod words;

pub use crate::primitives::counters::change::{Change, Counter};
pub use crate::primitives::facts::{Facts, Handover, Layout, Side, Topic};
pub use batch::{BatchKey, decode_many};
pub use call::{Call, ScriptId, slot_of};
pub use decode::decode;
#[cfg(test)]
pub use encode::{encode, encode_many};
pub use ids::{Name, OwnerId, first_owner};
pub use kind::{Form, Kind};
#[cfg(test)]
pub(crate) use names::timeout_key;
pub use op::{
    Acquire, Fencing, FollowUp, HandOver, Inspection, LeaseSample, Op, Payload, Place, Release,
    Renewal, Seat, Special,
};
pub use process::Process;
pub use publish::{Publish, is_shardable};
pub use reply::{Holder, Permits, RenewReply, Reply};
pub use server_error::{code_of, refusal};
