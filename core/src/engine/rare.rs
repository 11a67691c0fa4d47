//! State that most holds and names never have, or only for a moment: it has room of its own, while it is there.

use std::ops::{Deref, DerefMut};

/// A state with a value that stands for none.
pub(super) trait Idle: Default + 'static {
    /// What is read where nothing was ever written.
    const IDLE: &'static Self;

    /// Whether it can be forgotten.
    fn is_idle(&self) -> bool;
}

/// Eight bytes while idle. Writing makes room, reading does not.
#[derive(Debug)]
pub(super) struct Rare<T>(Option<Box<T>>);

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Rare(None)
    }
}

impl<T> Rare<T> {
    /// What there is, to be changed or taken from.
    pub(super) fn made(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Takes all of it.
    pub(super) fn take(&mut self) -> Option<Box<T>> {
        self.0.take()
    }
}

impl<T: Idle> Rare<T> {
    /// Gives the room back if there is nothing in it.
    pub(super) fn tidy(&mut self) {
        self.0.take_if(|state| state.is_idle());
    }
}

impl<T: Idle> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::IDLE)
    }
}

impl<T: Idle> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
