//! How a release is published.

use super::ids::Name;
use super::names::channel_parts;
use super::slots::slot;
use crate::primitives::facts::Topic;

/// How a release is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Publish {
    /// `PUBLISH`: to every node of a cluster.
    #[default]
    Classic,
    /// `SPUBLISH`: to the subscribers at the node of the lock.
    Sharded,
    /// Both, for subscribers of either sort.
    Both,
}

/// The command that publishes a release outside of clusters.
pub(crate) const CLASSIC: &str = "PUBLISH";

/// The commands that publish a release. The channel is passed as an argument, not as a key, so that
/// it may have another slot and an ACL need not allow it as a key. With another slot, only
/// `PUBLISH` reaches every subscriber.
pub(crate) fn verbs(topic: Topic, name: &Name, publish: Publish) -> &'static str {
    match publish {
        Publish::Sharded if is_shardable(topic, name) => "SPUBLISH",
        Publish::Both if is_shardable(topic, name) => "SPUBLISH PUBLISH",
        _ => CLASSIC,
    }
}

/// Whether the channel has the slot of the lock, as `SPUBLISH` requires.
pub fn is_shardable(topic: Topic, name: &str) -> bool {
    slot(&channel_parts(topic, name).concat()) == slot(name)
}
