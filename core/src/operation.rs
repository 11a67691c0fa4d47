//! One request, and the ways to wait for it: `.await`, blocking with or without interruption, or an
//! answer through a completion queue.

use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::canceller::Canceller;
use crate::client::{ClientInner, Running};
use crate::completion_queue::{Answers, CompletionQueue, Outcome};
use crate::driver::{InlineCall, Sink, Way};
use crate::engine::{AcquireAll, Done, Input, Request, RequestId, Terms};
use crate::error::{Error, ErrorKind, Result, Thing};
use crate::guard::{Guard, PlainPermit, spent};
use crate::hold::HoldCell;
use crate::log::{self, Span};
use crate::parking::ParkingGroup;
use crate::sync::{Mutex, MutexGuard, thread_local};
use crate::wake_list::{DeferredWakers, WakeList};
use crate::yield_budget::YieldBudget;

thread_local! {
    /// The budget of inline answers for the tasks that this thread polls.
    static SERIES: YieldBudget = const { YieldBudget::new() };
}

/// A request that may have to go to Redis. Nothing is sent before it is awaited or waited for.
///
/// The same request can be waited for in these ways:
///
/// | way | for |
/// |---|---|
/// | `.await` | async Rust, on any runtime |
/// | [`wait`](Operation::wait) | threads |
/// | [`wait_cancellable`](Operation::wait_cancellable) | threads whose wait another thread may have to end |
/// | [`wait_interruptibly`](crate::embed::OperationExt::wait_interruptibly) | threads that signals must reach (Python) |
/// | [`deliver_to`](crate::embed::OperationExt::deliver_to) | event loops of other languages |
///
/// # Blocking
/// While nobody else uses the client, the first poll makes the call itself: it writes to the server
/// and waits up to 100 us for the answer. When a server that has always answered in time is late,
/// that poll ends with the system's next tick (within 8 ms at 250 Hz), and the following calls are
/// not waited for. With the option [`direct`](crate::ClientOptions::direct) off, with TLS and in a
/// cluster, no poll touches the network.
///
/// # Cancel safety
/// Dropping an operation cancels what it has sent. An acquisition that was granted but not taken is
/// released. A release that was sent goes on. Other requests may or may not have taken effect.
///
/// # Examples
/// ```no_run
/// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
/// let guard = lock.acquire().await?; // a task
/// guard.release().await?;
///
/// let guard = lock.acquire().wait()?; // a thread
/// guard.release().wait()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sent before an operation is awaited or waited for"]
pub struct Operation<T> {
    stage: Stage,
    /// Turns the outcome into the result. Most are plain functions, for which the box allocates
    /// nothing.
    finish: Option<Finish<T>>,
    span: Span,
}

// A panic leaves nothing half changed: the state is replaced as a whole, and what it is taken out of
// for the time of a call is then over.
impl<T> UnwindSafe for Operation<T> {}
impl<T> RefUnwindSafe for Operation<T> {}

type Finish<T> = Box<dyn FnOnce(Outcome) -> Result<T> + Send + Sync>;

enum Stage {
    /// The outcome is known.
    Known(Outcome),
    Unsent(Unsent),
    Sent(Sent),
    Done,
}

struct Unsent {
    request: Request,
    from: Origin,
}

/// Where a request comes from.
enum Origin {
    /// A client, whose I/O thread may have to be started.
    Client(Arc<ClientInner>),
    /// A guard of this hold.
    Hold(Arc<Running>, Arc<HoldCell>),
    /// The guard whose level is to be released. If nothing is ever sent, dropping the guard
    /// releases the level.
    Released(Guard),
    /// The permits that are to be given back. If nothing is ever sent, dropping them does it.
    GivenBack(PlainPermit),
    /// The request was sent.
    Nobody,
}

impl Origin {
    /// The engine that takes the request, and the hold that it is about. The caller sends it at
    /// once.
    fn take(&mut self) -> Result<(Arc<Running>, Option<Arc<HoldCell>>)> {
        match self {
            Origin::Client(client) => return Ok((client.running()?, None)),
            Origin::Hold(running, _) => running.refuse_fork()?,
            Origin::Released(guard) => guard.refuse_fork()?,
            Origin::GivenBack(permit) => permit.refuse_fork()?,
            Origin::Nobody => {}
        }
        match mem::replace(self, Origin::Nobody) {
            Origin::Hold(running, cell) => Ok((running, Some(cell))),
            Origin::Released(guard) => guard
                .disarm()
                .map(|(running, cell, _)| (running, Some(cell)))
                .ok_or_else(spent),
            Origin::GivenBack(mut permit) => permit
                .disarm()
                .map(|taken| (taken.running, None))
                .ok_or_else(spent),
            Origin::Client(_) | Origin::Nobody => Err(gone()),
        }
    }
}

/// The caller's end of a request.
struct Sent {
    promise: Arc<Promise>,
    id: RequestId,
    /// The inline call that the caller has to finish before it waits for the answer.
    own: Option<InlineCall>,
    /// Waiters that this request granted the lock to. They are woken when this caller goes to sleep
    /// or finishes. Woken earlier, they would only wait for the processor, or for Python's GIL.
    later: WakeList,
}

/// The state of a request that its caller and the engine share. The engine answers it exactly once.
struct Promise {
    running: Arc<Running>,
    slot: Slot,
    /// The name of the operation.
    name: &'static str,
    /// The thing that the request is about.
    thing: Thing,
    terms: Option<Terms>,
    /// The hold of the guard that made the request.
    of: Option<Arc<HoldCell>>,
}

/// Where the answer lies until it is taken.
#[derive(Default)]
struct Slot(Mutex<SlotState>);

#[derive(Default)]
enum SlotState {
    #[default]
    Waiting,
    /// The answer wakes this waker.
    Polled(Waker),
    /// The answer goes to this queue.
    Forward(Arc<dyn Answers>, u64),
    Answered(Outcome),
    /// Taken or forwarded.
    Over,
    /// The answer is no longer wanted.
    Cancelled,
}

impl Slot {
    fn place(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the answer where it is waited for. An answer that is no longer wanted is dropped
    /// outside the lock, because dropping a guard releases its level.
    fn answer(&self, outcome: Outcome, tasks: &DeferredWakers) {
        let mut place = self.place();
        match mem::replace(&mut *place, SlotState::Over) {
            SlotState::Waiting | SlotState::Answered(_) => *place = SlotState::Answered(outcome),
            SlotState::Polled(waker) => {
                *place = SlotState::Answered(outcome);
                drop(place);
                tasks.wake(waker);
            }
            // Entered under the lock, so that a caller that gets `Cancelled::No` finds the entry in
            // the queue.
            SlotState::Forward(queue, ticket) => {
                let entered = queue.answered(ticket, outcome);
                drop(place);
                entered.finish();
            }
            before @ (SlotState::Over | SlotState::Cancelled) => {
                *place = before;
                drop(place);
                drop(outcome);
            }
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Outcome> {
        let mut place = self.place();
        if let SlotState::Polled(waker) = &*place
            && waker.will_wake(cx.waker())
        {
            return Poll::Pending;
        }
        let before = mem::replace(&mut *place, SlotState::Over);
        match before {
            SlotState::Answered(outcome) => Poll::Ready(outcome),
            SlotState::Over | SlotState::Forward(..) | SlotState::Cancelled => {
                Poll::Ready(Outcome::Failed(gone()))
            }
            SlotState::Waiting | SlotState::Polled(_) => {
                *place = SlotState::Polled(cx.waker().clone());
                // The last waker of a task may drop the task. That must not happen under the lock.
                drop(place);
                Poll::Pending
            }
        }
    }

    /// Puts the answer into `queue`, at once if it is there.
    fn forward(&self, queue: Arc<dyn Answers>, ticket: u64) {
        let mut place = self.place();
        match mem::replace(&mut *place, SlotState::Over) {
            SlotState::Answered(outcome) => {
                let entered = queue.answered(ticket, outcome);
                drop(place);
                entered.finish();
            }
            _ => *place = SlotState::Forward(queue, ticket),
        }
    }

    /// Whether there is no answer yet.
    fn is_open(&self) -> bool {
        matches!(
            *self.place(),
            SlotState::Waiting | SlotState::Polled(_) | SlotState::Forward(..)
        )
    }

    /// Takes the answer if it is there.
    fn take(&self) -> Option<Outcome> {
        let mut place = self.place();
        match mem::replace(&mut *place, SlotState::Over) {
            SlotState::Answered(outcome) => Some(outcome),
            before => {
                *place = before;
                None
            }
        }
    }

    /// Stops waiting. Returns true if there was no answer yet. An answer that was there is dropped.
    fn give_up(&self) -> bool {
        let mut place = self.place();
        let before = mem::replace(&mut *place, SlotState::Cancelled);
        let answered = matches!(before, SlotState::Answered(_) | SlotState::Over);
        if answered {
            *place = SlotState::Over;
        }
        drop(place);
        !answered
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Internal, "the answer was taken before")
}

impl Unsent {
    /// Sends the request, once.
    fn send(&mut self, way: Way) -> Result<Sent> {
        let (running, of) = self.from.take()?;
        let terms = match &self.request {
            Request::Acquire { terms, .. }
            | Request::AcquireAll(AcquireAll { terms, .. })
            | Request::Adopt { terms, .. } => Some(*terms),
            _ => None,
        };
        let promise = Arc::new(Promise {
            running,
            slot: Slot::default(),
            name: self.request.name(),
            thing: self.request.thing(),
            terms,
            of,
        });
        let (running, sink) = (&promise.running, promise.clone());
        let request = mem::replace(&mut self.request, Request::Connect);
        let (id, own) = running
            .request(request, sink, way)
            .map_err(|error| match &promise.of {
                Some(cell) => cell.explain(error),
                None => error,
            })?;
        Ok(Sent {
            promise,
            id,
            own,
            later: WakeList::default(),
        })
    }
}

impl Sink for Promise {
    fn answer(&self, result: Result<Done>) {
        let result = result.map_err(|error| {
            let error = match &self.of {
                Some(cell) => cell.explain(error),
                None => error.of(self.thing),
            };
            error.during(self.name)
        });
        self.slot.answer(
            self.running.outcome(result, self.terms.as_ref()),
            self.running.tasks(),
        );
    }
}

impl Promise {
    /// Cancels the request unless it is answered. Returns true if it was cancelled.
    fn cancel(&self, id: RequestId) -> bool {
        // In a forked child the slot may be locked for ever, and the request belongs to the parent.
        if self.running.is_forked() {
            return false;
        }
        let cancelled = self.slot.give_up();
        if cancelled {
            self.running.tell(Input::Cancel { id });
        }
        cancelled
    }
}

impl<T> Operation<T> {
    fn with(
        stage: Stage,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Operation {
            stage,
            finish: Some(Box::new(finish)),
            span: Span::none(),
        }
    }

    pub(crate) fn new(
        client: &Arc<ClientInner>,
        request: Request,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self::with(
            Stage::Unsent(Unsent {
                request,
                from: Origin::Client(client.clone()),
            }),
            finish,
        )
    }

    /// An operation on a hold, made by a guard of it.
    pub(crate) fn on_hold(
        running: &Arc<Running>,
        request: Request,
        hold: &Arc<HoldCell>,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        let from = Origin::Hold(running.clone(), hold.clone());
        Self::with(Stage::Unsent(Unsent { request, from }), finish)
    }

    /// An operation that releases the level of `guard`.
    pub(crate) fn releasing(
        request: Request,
        guard: Guard,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self::with(
            Stage::Unsent(Unsent {
                request,
                from: Origin::Released(guard),
            }),
            finish,
        )
    }

    /// An operation that gives these permits back.
    pub(crate) fn giving_back(
        request: Request,
        permit: PlainPermit,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        let from = Origin::GivenBack(permit);
        Self::with(Stage::Unsent(Unsent { request, from }), finish)
    }

    /// An operation whose outcome is known without a request.
    pub(crate) fn known(
        outcome: Outcome,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self::with(Stage::Known(outcome), finish)
    }

    /// The same operation with another result.
    pub(crate) fn finished_by<U>(
        mut self,
        finish: impl FnOnce(Outcome) -> Result<U> + Send + Sync + 'static,
    ) -> Operation<U> {
        let stage = mem::replace(&mut self.stage, Stage::Done);
        let mut other = Operation::with(stage, finish);
        other.span = self.span.clone();
        other
    }

    /// The operation of a request. One that was refused fails, and nothing is sent.
    pub(crate) fn of(
        client: &Arc<ClientInner>,
        request: Result<Request>,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        match request {
            Ok(request) => Self::new(client, request, finish),
            Err(error) => Self::failed(error),
        }
    }

    pub(crate) fn failed(error: Error) -> Self {
        Self::known(Outcome::Failed(error), |outcome| match outcome {
            Outcome::Failed(error) => Err(error),
            other => Err(crate::guard::unexpected(&other)),
        })
    }

    /// The same operation, polled inside this span, which is told what came of it.
    pub(crate) fn in_span(mut self, span: Span) -> Self
    where
        T: 'static,
    {
        if let Some(began) = log::began(&span)
            && let Some(finish) = self.finish.take()
        {
            let of = span.clone();
            self.finish = Some(Box::new(move |outcome| {
                let failed = match &outcome {
                    Outcome::Failed(error) => Some(error.kind()),
                    _ => None,
                };
                log::ended(&of, began, failed);
                finish(outcome)
            }));
        }
        self.span = span;
        self
    }

    /// Sends the request if that has not happened yet.
    fn start(&mut self, way: Way) {
        let Stage::Unsent(unsent) = &mut self.stage else {
            return;
        };
        let closing = matches!(unsent.request, Request::Close { .. });
        let releasing = matches!(unsent.request, Request::Release(_))
            || matches!(unsent.from, Origin::GivenBack(_));
        let name = unsent.request.name();
        self.stage = match unsent.send(way) {
            // A guard that a forked child has inherited belongs to the parent: there is nothing to
            // do or to report.
            Err(error) if releasing && error.kind() == ErrorKind::Forked => {
                Stage::Known(Outcome::Released)
            }
            Ok(sent) => Stage::Sent(sent),
            // Closing twice is no error, also when the outcome goes to a queue.
            Err(error) if closing && error.kind() == ErrorKind::Closed => {
                Stage::Known(Outcome::Closed(Vec::new()))
            }
            // A request that could not be sent is still there.
            Err(error) => Stage::Known(Outcome::Failed(unsent.request.named(error).during(name))),
        };
    }

    fn poll_result(&mut self, cx: &Context<'_>) -> Poll<Result<T>> {
        let _entered = self.span.clone().entered();
        if self.start_polled() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Stage::Sent(sent) = &self.stage {
            match sent.promise.slot.poll(cx) {
                Poll::Ready(outcome) => self.stage = Stage::Known(outcome),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(self.end())
    }

    /// The result, if the answer is there.
    pub(crate) fn result(&mut self) -> Option<Result<T>> {
        match &self.stage {
            Stage::Sent(sent) => self.stage = Stage::Known(sent.promise.slot.take()?),
            Stage::Known(_) => {}
            Stage::Unsent(_) | Stage::Done => return None,
        }
        let _entered = self.span.clone().entered();
        Some(self.end())
    }

    /// Turns the known outcome into the result.
    fn end(&mut self) -> Result<T> {
        match (
            mem::replace(&mut self.stage, Stage::Done),
            self.finish.take(),
        ) {
            (Stage::Known(outcome), Some(finish)) => finish(outcome),
            _ => Err(gone()),
        }
    }

    /// See [`OperationExt::deliver_to`](crate::embed::OperationExt::deliver_to).
    pub(crate) fn send_to<W: Send + 'static>(
        mut self,
        queue: &Arc<CompletionQueue<W>>,
        tag: W,
    ) -> u64 {
        self.start(Way::IoThread);
        self.forward(queue, |_| tag)
    }

    /// See [`OperationExt::deliver_soon`](crate::embed::OperationExt::deliver_soon).
    pub(crate) fn answer_or_send_to<W: Send + 'static>(
        mut self,
        queue: &Arc<CompletionQueue<W>>,
        caller: Caller,
        tag: impl FnOnce(u64) -> W,
    ) -> Submitted {
        match self.start_soon(queue.series(), caller.patience) {
            Some(outcome) => Submitted::Ready(outcome),
            None => Submitted::Queued(self.forward(queue, tag)),
        }
    }

    /// Has the answer, now or when it comes, put into the queue.
    fn forward<W: Send + 'static>(
        mut self,
        queue: &Arc<CompletionQueue<W>>,
        tag: impl FnOnce(u64) -> W,
    ) -> u64 {
        let ticket = queue.next_ticket();
        match mem::replace(&mut self.stage, Stage::Done) {
            Stage::Sent(sent) => {
                let pending = Pending(sent.promise.clone(), sent.id);
                // Noted first: the answer may be there.
                queue.expect(ticket, tag(ticket), pending);
                sent.promise.slot.forward(queue.clone(), ticket);
            }
            Stage::Known(outcome) => queue.push(ticket, tag(ticket), outcome),
            Stage::Unsent(_) | Stage::Done => {}
        }
        ticket
    }

    /// Sends the request if that has not happened yet. While nobody else uses the client, the call
    /// may be made inline. Returns true if the answer is there but other tasks have to get their
    /// turn first.
    fn start_polled(&mut self) -> bool {
        if !matches!(self.stage, Stage::Unsent(_)) {
            return false;
        }
        match SERIES.try_with(|series| self.start_soon(series, Caller::EVENT_LOOP.patience)) {
            Ok(Some(outcome)) => self.stage = Stage::Known(outcome),
            Ok(None) => {}
            // The thread is ending and has no budget any more.
            Err(_) => self.start(Way::IoThread),
        }
        matches!(&self.stage, Stage::Sent(sent) if !sent.promise.slot.is_open())
    }

    /// Sends the request. While nobody else uses the client and the server has lately answered
    /// within `patience`, makes the call inline and waits for the answer. Returns the answer,
    /// unless it is late or the budget of inline answers is spent.
    fn start_soon(&mut self, series: &YieldBudget, patience: Duration) -> Option<Outcome> {
        let at_once = series.has_remaining();
        self.start(Way::Alone);
        let Stage::Sent(sent) = &mut self.stage else {
            return None;
        };
        if let Some(mut call) = sent.own.take() {
            call.wait_for(patience);
            call.leave();
            if let Some(outcome) = at_once.then(|| sent.promise.slot.take()).flatten() {
                return Some(outcome);
            }
        }
        series.end();
        None
    }

    /// Sends the request if that has not happened yet, and makes the inline calls of a blocked
    /// caller. Signals do not interrupt it.
    pub(crate) fn do_own_deaf(&mut self) {
        self.start_blocking();
        let Stage::Sent(Sent {
            own: Some(call),
            promise,
            ..
        }) = &mut self.stage
        else {
            return;
        };
        let Ok(()) = call.wait(false, None, || Ok::<_, Infallible>(promise.slot.is_open()));
    }

    /// Like [`do_own_deaf`](Operation::do_own_deaf), until `canceller` is cancelled. Calls `check`
    /// after every signal, and with `looks` a few times a second. An error of `check` ends it.
    pub(crate) fn do_own<E>(
        &mut self,
        canceller: Option<&Canceller>,
        looks: bool,
        mut check: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.start_blocking();
        let Stage::Sent(Sent {
            own: Some(call),
            promise,
            ..
        }) = &mut self.stage
        else {
            return Ok(());
        };
        let goes_on = || !canceller.is_some_and(Canceller::is_cancelled) && promise.slot.is_open();
        call.wait(looks, canceller.map(Canceller::flag), || {
            check().map(|()| goes_on())
        })
    }

    /// Asks the engine to answer at once: with `cancelled`, unless it has answered before.
    pub(crate) fn ask_to_cancel(&self) {
        if let Stage::Sent(sent) = &self.stage {
            sent.promise.running.tell(Input::Cancel { id: sent.id });
        }
    }

    /// Whether nothing was sent.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self.stage, Stage::Unsent(_))
    }

    /// Like [`do_own_deaf`](Operation::do_own_deaf), but only while each answer can be expected
    /// within `patience`. Returns true if the answer is there.
    pub(crate) fn do_own_briefly(&mut self, patience: Duration) -> bool {
        self.start_blocking();
        let Stage::Sent(Sent { own, promise, .. }) = &mut self.stage else {
            return true;
        };
        if own
            .as_mut()
            .is_some_and(|call| !call.wait_briefly(patience))
        {
            return false;
        }
        let Some(outcome) = promise.slot.take() else {
            return false;
        };
        self.stage = Stage::Known(outcome);
        true
    }

    fn start_blocking(&mut self) {
        let _entered = self.span.clone().entered();
        self.refuse_fork();
        if !matches!(self.stage, Stage::Unsent(_)) {
            return;
        }
        let ((), later) = WakeList::of(|| self.start(Way::Blocking));
        if let Stage::Sent(sent) = &mut self.stage
            && sent.own.is_none()
        {
            sent.later = later;
        }
    }

    /// Makes the deferred wake-ups. To be called before the thread goes to sleep.
    pub(crate) fn wake_others(&mut self) {
        if let Stage::Sent(sent) = &mut self.stage {
            sent.later.wake();
        }
    }

    /// Fails a request that was sent before a fork: in the child it never gets an answer.
    pub(crate) fn refuse_fork(&mut self) {
        if let Stage::Sent(sent) = &self.stage
            && let Err(error) = sent.promise.running.refuse_fork()
        {
            self.stage = Stage::Known(Outcome::Failed(error));
        }
    }

    /// The parking group in which to sleep for an answer that is not there yet. Its members are
    /// likely to be answered at the same time.
    pub(crate) fn gate(&self) -> Option<Arc<ParkingGroup>> {
        match &self.stage {
            Stage::Sent(sent) if sent.promise.slot.is_open() => Some(sent.promise.running.gate()),
            _ => None,
        }
    }

    /// Polls for the blocking functions.
    pub(crate) fn poll_with(&mut self, waker: &Waker) -> Poll<Result<T>> {
        self.poll_result(&Context::from_waker(waker))
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        // A fork may have copied the task into a child.
        this.refuse_fork();
        if let Stage::Sent(sent) = &this.stage {
            sent.promise.running.tasks().wake_others();
        }
        this.poll_result(cx)
    }
}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        if let Stage::Sent(sent) = &self.stage {
            sent.promise.cancel(sent.id);
        }
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.stage {
            Stage::Known(_) => "known",
            Stage::Unsent(_) => "not sent",
            Stage::Sent(_) => "sent",
            Stage::Done => "done",
        };
        write!(f, "Operation({state})")
    }
}

/// How long a calling thread may wait inline for an answer, instead of leaving the call to the I/O
/// thread. It waits only if the server has lately answered within that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub(crate) patience: Duration,
}

impl Caller {
    /// The thread of an event loop, or of an executor: other tasks wait meanwhile.
    ///
    /// 100 us is the upper end of what executors tolerate between two awaits, and about what other
    /// libraries compute for a call. It is short compared with the context switches that it saves.
    pub const EVENT_LOOP: Caller = Caller::with_patience(Duration::from_micros(100));

    /// A thread that has its interpreter's lock: all other threads wait meanwhile.
    ///
    /// A thread that gives that lock away gets it back after a switch interval (5 ms in Python)
    /// while another one computes. 250 us is a twentieth of that.
    pub const INTERPRETER: Caller = Caller::with_patience(Duration::from_micros(250));

    /// A caller that may wait this long.
    pub const fn with_patience(patience: Duration) -> Caller {
        Caller { patience }
    }
}

/// Where the answer of [`deliver_soon`](crate::embed::OperationExt::deliver_soon) is.
#[derive(Debug)]
pub enum Submitted {
    /// The answer. No entry comes into the queue.
    Ready(Outcome),
    /// The answer comes through the queue. This is the ticket of the operation.
    Queued(u64),
}

/// Whether a cancellation came in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It did. No entry for this operation comes into the queue, and what it may have acquired is
    /// released.
    Yes,
    /// It did not: the operation was answered or cancelled before. The entry of an answer is in the
    /// queue, or has been drained.
    No,
}

/// An operation that a queue waits for. Dropping it changes nothing.
pub(crate) struct Pending(Arc<Promise>, RequestId);

impl Pending {
    /// Cancels the operation unless it is answered already. Never blocks.
    pub(crate) fn cancel(&self) {
        self.0.cancel(self.1);
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion_queue::Completion;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn answer(slot: &Slot) {
        slot.answer(Outcome::Released, &DeferredWakers::default());
    }

    #[test]
    fn an_answer_that_nobody_wants_is_dropped() {
        let slot = Slot::default();
        assert!(slot.give_up());
        answer(&slot);
        assert!(slot.give_up());
        let answered = Slot::default();
        answer(&answered);
        assert!(!answered.give_up());
    }

    /// A tag that says when it is dropped while a slot is locked.
    struct Watchful(Arc<Slot>, Arc<AtomicU32>);

    impl Drop for Watchful {
        fn drop(&mut self) {
            if self.0.0.try_lock().is_err() {
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    #[test]
    fn the_last_answer_drops_its_queue_outside_the_lock() {
        let (slot, locked) = (Arc::new(Slot::default()), Arc::new(AtomicU32::new(0)));
        let queue = CompletionQueue::with_notify(|| {});
        queue.push(1, Watchful(slot.clone(), locked.clone()), Outcome::Released);
        slot.forward(queue, 2);
        answer(&slot);
        assert_eq!(
            (Arc::strong_count(&locked), locked.load(Ordering::SeqCst)),
            (1, 0)
        );
    }

    #[test]
    fn a_known_outcome_is_delivered_to_a_queue() {
        let queue = CompletionQueue::with_notify(|| {});
        let operation = Operation::<()>::failed(Error::invalid("of the test"));
        let ticket = operation.send_to(&queue, 9);
        assert_eq!(queue.cancel(ticket), Cancelled::No);
        assert!(matches!(
            queue.drain()[..],
            [Completion {
                tag: 9,
                outcome: Outcome::Failed(_)
            }]
        ));
    }
}

#[cfg(test)]
mod explored {
    use super::*;
    use crate::completion_queue::{Completion, Entered};
    use crate::sync::{explore, thread, unpark};

    fn answer(slot: &Slot) {
        slot.answer(Outcome::Released, &DeferredWakers::default());
    }

    /// Answers the slot on another thread while `waiting` does something with it.
    fn race(waiting: impl Fn(Arc<Slot>) + Send + Sync + 'static) {
        explore(move || {
            let slot = Arc::new(Slot::default());
            let answered = slot.clone();
            let answering = thread::spawn(move || answer(&answered));
            waiting(slot);
            answering.join().expect("no panic");
        });
    }

    #[test]
    fn a_poll_has_the_answer_or_is_woken() {
        race(|slot| {
            let waker = unpark();
            let polled = loop {
                match slot.poll(&Context::from_waker(&waker)) {
                    Poll::Ready(outcome) => break outcome,
                    Poll::Pending => thread::park(),
                }
            };
            assert!(matches!(polled, Outcome::Released));
        });
    }

    #[test]
    fn many_cancels_agree() {
        race(|slot| {
            let cancel = |_| {
                let slot = slot.clone();
                thread::spawn(move || slot.give_up())
            };
            let cancels: Vec<_> = (0..3).map(cancel).collect();
            let verdict = |cancel: thread::JoinHandle<bool>| cancel.join().expect("no panic");
            let verdicts: Vec<bool> = cancels.into_iter().map(verdict).collect();
            assert!(
                verdicts.iter().all(|verdict| *verdict == verdicts[0]),
                "{verdicts:?}"
            );
        });
    }

    #[test]
    fn an_answer_is_taken_or_forwarded_once() {
        race(|slot| {
            let me = thread::current();
            let queue = CompletionQueue::<u64>::with_notify(move || me.unpark());
            if let Some(outcome) = slot.take() {
                assert!(matches!(outcome, Outcome::Released));
                assert!(slot.take().is_none());
                return;
            }
            slot.forward(Arc::new(Entering(queue.clone())), 1);
            let mut entries = queue.drain();
            while entries.is_empty() {
                thread::park();
                entries = queue.drain();
            }
            assert!(matches!(entries[..], [Completion { tag: 1, .. }]));
        });
    }

    /// A queue in which nobody cancels anything.
    struct Entering(Arc<CompletionQueue>);

    impl Answers for Entering {
        fn answered(self: Arc<Self>, ticket: u64, outcome: Outcome) -> Entered {
            self.0.push(ticket, ticket, outcome);
            Entered::default()
        }

        fn notify(&self) {}
    }
}
