//! A lazily allocated box for state that most holds and names never have, or only for a short time.

use std::ops::{Deref, DerefMut};

/// A state with an idle value that needs no memory.
pub(super) trait Idle: Default + 'static {
    /// The value that is read while nothing is allocated.
    const IDLE: &'static Self;

    /// Whether the state equals the idle value, so that its memory can be freed.
    fn is_idle(&self) -> bool;
}

/// Takes eight bytes while idle. A write allocates, a read does not.
#[derive(Debug)]
pub(super) struct LazyBox<T>(Option<Box<T>>);

impl<T> Default for LazyBox<T> {
    fn default() -> Self {
        LazyBox(None)
    }
}

impl<T> LazyBox<T> {
    /// The state if it is allocated. Unlike a write through `deref_mut`, this does not allocate.
    pub(super) fn made(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Takes the state out, with its box.
    pub(super) fn take(&mut self) -> Option<Box<T>> {
        self.0.take()
    }
}

impl<T: Idle> LazyBox<T> {
    /// Frees the memory if the state is idle.
    pub(super) fn tidy(&mut self) {
        self.0.take_if(|state| state.is_idle());
    }
}

impl<T: Idle> Deref for LazyBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::IDLE)
    }
}

impl<T: Idle> DerefMut for LazyBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
