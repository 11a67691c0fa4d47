//! Listeners for the loss of a hold: callbacks, completion queues, futures.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::error::LostReason;
use crate::hold::{HoldCell, Listener, LossListener};

/// Called once, on the I/O thread, when the hold is lost. Must not block.
pub(crate) type LostWatcher = Box<dyn FnOnce(LostReason) + Send>;

/// A listener for a loss.
pub(crate) enum Watcher {
    Called(LostWatcher),
    /// Wakes the futures that wait for it.
    Woken(Arc<Notify>),
    /// In the order of their registration.
    Several(Vec<Watcher>),
}

impl Watcher {
    fn and(self, next: Watcher) -> Watcher {
        match self {
            Watcher::Several(mut all) => {
                all.push(next);
                Watcher::Several(all)
            }
            first => Watcher::Several(vec![first, next]),
        }
    }

    /// The signal for waiting futures, if there is one.
    fn signal(&self) -> Option<&Arc<Notify>> {
        match self {
            Watcher::Woken(signal) => Some(signal),
            Watcher::Several(all) => all.iter().find_map(Watcher::signal),
            Watcher::Called(_) => None,
        }
    }

    fn tell(self, reason: LostReason) {
        match self {
            Watcher::Called(watcher) => watcher(reason),
            Watcher::Woken(signal) => signal.notify_waiters(),
            Watcher::Several(all) => {
                for watcher in all {
                    // A panic in one must not keep the loss from the others.
                    let _ = catch_unwind(AssertUnwindSafe(|| watcher.tell(reason)));
                }
            }
        }
    }
}

impl LossListener for Watcher {
    fn lost(self: Box<Self>, reason: LostReason) {
        self.tell(reason);
    }
}

/// The watcher in the listener. Nothing else is ever put there.
fn watcher(listener: &Listener) -> Option<&Watcher> {
    let listener: &dyn Any = &***listener.as_ref()?;
    listener.downcast_ref()
}

fn take(listener: &mut Listener) -> Option<Watcher> {
    let listener: Box<dyn Any> = *listener.take()?;
    listener.downcast().ok().map(|watcher| *watcher)
}

fn add(listener: &mut Listener, next: Watcher) {
    let watcher = match take(listener) {
        None => next,
        Some(before) => before.and(next),
    };
    *listener = Some(Box::new(Box::new(watcher)));
}

/// Tells `watcher` when the hold is lost, at once if it is lost already. A watcher is dropped
/// without a call when the hold ends by a release.
pub(crate) fn watch(cell: &HoldCell, watcher: Watcher) {
    let mut watcher = Some(watcher);
    let ended = cell.listen(|listener| {
        if let Some(watcher) = watcher.take() {
            add(listener, watcher);
        }
    });
    if let (Err(Some(reason)), Some(watcher)) = (ended, watcher) {
        watcher.tell(reason);
    }
}

/// Waits for the loss of a hold. Cancel-safe.
pub(crate) async fn lost(cell: &HoldCell) -> LostReason {
    let signal = signal(cell);
    loop {
        // Made before the state is read, so that no later loss is missed.
        let told = signal.notified();
        if let Some(reason) = cell.told_lost() {
            return reason;
        }
        told.await;
    }
}

/// The signal for futures that wait for the loss. All of them share it, so that dropped futures
/// leave nothing behind.
fn signal(cell: &HoldCell) -> Arc<Notify> {
    let mut found = Arc::new(Notify::new());
    // A hold that has ended needs no signal: the future sees the loss, or waits for ever.
    let _ = cell.listen(
        |listener| match watcher(listener).and_then(Watcher::signal) {
            Some(signal) => found = signal.clone(),
            None => add(listener, Watcher::Woken(found.clone())),
        },
    );
    found
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};

    use redlatch_proto::key::OwnerKey;

    use super::*;
    use crate::completion_queue::{Completion, CompletionQueue, Outcome};
    use crate::wire::Form;

    fn cell() -> HoldCell {
        HoldCell::new("n".into(), OwnerKey::Once, 1, Form::default(), None)
    }

    /// How many watchers are registered.
    fn watchers(cell: &HoldCell) -> usize {
        let mut count = 0;
        let live = cell.listen(|listener| {
            count = match watcher(listener) {
                None => 0,
                Some(Watcher::Several(all)) => all.len(),
                Some(_) => 1,
            };
        });
        assert_eq!(live, Ok(()));
        count
    }

    #[test]
    fn all_watchers_are_told_once_in_their_order() {
        let (cell, queue, (told, heard)) =
            (cell(), CompletionQueue::with_notify(|| {}), mpsc::channel());
        let note = |number: u8| {
            let told = told.clone();
            Watcher::Called(Box::new(move |_| {
                told.send(number).expect("somebody listens")
            }))
        };
        watch(&cell, note(1));
        watch(
            &cell,
            Watcher::Called(Box::new(|_| panic!("a watcher that panics harms no other"))),
        );
        watch(&cell, queue.watcher(7));
        watch(&cell, note(2));
        let mut lost = pin!(lost(&cell));
        let mut context = Context::from_waker(Waker::noop());
        assert!(lost.as_mut().poll(&mut context).is_pending());
        assert!(cell.set_lost(LostReason::Deleted));
        for _ in 0..2 {
            cell.tell(LostReason::Deleted);
        }
        assert_eq!(
            lost.as_mut().poll(&mut context),
            Poll::Ready(LostReason::Deleted)
        );
        watch(&cell, note(3));
        assert_eq!(heard.try_iter().collect::<Vec<u8>>(), [1, 2, 3]);
        assert!(matches!(
            queue.drain()[..],
            [Completion {
                tag: 7,
                outcome: Outcome::Lost(LostReason::Deleted)
            }]
        ));
    }

    #[test]
    fn futures_that_are_dropped_leave_one_watcher_behind_at_most() {
        let cell = cell();
        for others in 0..3 {
            for _ in 0..10 {
                assert!(
                    pin!(lost(&cell))
                        .poll(&mut Context::from_waker(Waker::noop()))
                        .is_pending()
                );
            }
            assert_eq!(watchers(&cell), 1 + others);
            watch(&cell, Watcher::Called(Box::new(|_| {})));
        }
    }
}
