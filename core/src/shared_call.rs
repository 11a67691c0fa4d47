//! A call of a function that blocks, on a thread of its own, for all who ask while it lasts.
//!
//! tokio's `spawn_blocking` panics where the system has no thread left. Here that is an error, and
//! the next attempt may succeed.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use tokio::sync::watch;

use crate::sys::without_signals;

/// At most one call at a time. The clones share it.
pub(crate) struct SharedCall<T>(Arc<Mutex<Option<InFlight<T>>>>);

/// The channel closes without an answer if the call panics.
type InFlight<T> = watch::Receiver<Option<T>>;

impl<T> Clone for SharedCall<T> {
    fn clone(&self) -> Self {
        SharedCall(self.0.clone())
    }
}

impl<T> Default for SharedCall<T> {
    fn default() -> Self {
        SharedCall(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SharedCall<T> {
    /// Calls the function, or waits for the answer to the call in flight; `None` if that panics. A
    /// call goes on when nobody waits for it any more, so that attempts that are given up do not pile
    /// up calls.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) async fn ask(
        &self,
        function: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let mut call = self.call(function)?;
        let Ok(answer) = call.wait_for(Option::is_some).await else {
            return Ok(None);
        };
        Ok(answer.clone())
    }

    fn call(&self, function: impl FnOnce() -> T + Send + 'static) -> io::Result<InFlight<T>> {
        let mut in_flight = self.in_flight();
        if let Some(call) = in_flight.as_ref().filter(|call| call.has_changed().is_ok()) {
            return Ok(call.clone());
        }
        let (sender, call) = watch::channel(None);
        let own = self.clone();
        start(move || {
            let answer = function();
            // A caller that asks from now on wants a newer answer.
            *own.in_flight() = None;
            let _ = sender.send(Some(answer));
        })?;
        *in_flight = Some(call.clone());
        Ok(call)
    }

    fn in_flight(&self) -> MutexGuard<'_, Option<InFlight<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a thread of ours, without signals.
///
/// # Errors
/// When the system has none.
pub(crate) fn start<T: Send + 'static>(
    life: impl FnOnce() -> T + Send + 'static,
) -> io::Result<std::thread::JoinHandle<T>> {
    #[cfg(test)]
    if let Some(refusal) = REFUSED.get() {
        return Err(io::Error::from_raw_os_error(refusal));
    }
    without_signals(|| Builder::new().name("redlatch".to_owned()).spawn(life))?
}

#[cfg(test)]
thread_local! {
    /// The error with which the system refuses threads to this one.
    pub(crate) static REFUSED: std::cell::Cell<Option<i32>> = const { std::cell::Cell::new(None) };
}
