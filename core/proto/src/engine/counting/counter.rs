//! The state of a counter, and its next command.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::context::CounterKey;
use crate::engine::interface::RequestId;
use crate::error::Error;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Change, Counter, Op, OwnerId};

/// How long after its first copy without an answer a command is repeated. The marker outlives the
/// last copy by more than the clocks can differ.
const REPEATED: Duration = tuning::MARKER_LIFE.saturating_sub(Duration::from_secs(10));

/// A caller without an answer.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) key: CounterKey,
    pub(super) want: Want,
    /// Its time is over, and the answer to a command for it may still come.
    pub(super) late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// The caller wants this number of permits. `None` waits for ever, zero tries once.
    Permits(u32, Option<Duration>),
    /// The caller wants the latch to be open.
    Open(Option<Duration>),
    /// A change. `kept`: it goes on when its caller leaves, because it gives permits back.
    Change { kept: bool },
}

impl Want {
    pub(super) fn waits(self) -> bool {
        !matches!(self, Want::Change { .. })
    }

    /// Whether it tries once and does not wait.
    pub(super) fn once(self) -> bool {
        matches!(self, Want::Permits(_, wait) | Want::Open(wait) if wait == Some(Duration::ZERO))
    }

    pub(super) fn wait(self) -> Option<Duration> {
        match self {
            Want::Permits(_, wait) | Want::Open(wait) => wait,
            Want::Change { .. } => None,
        }
    }
}

/// The wishes of this client's callers for a counter.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Changes that were not sent yet, in their order.
    pub(super) wishes: VecDeque<Wish>,
    /// The callers that wait for permits or for an open latch, in their order.
    pub(super) waiters: VecDeque<RequestId>,
    pub(super) command: Option<Command>,
    /// The head of the waiters was refused, and nothing has happened since.
    pub(super) asleep: bool,
    /// The waiters that try once. Some of these may have left the queue.
    pub(super) tries: Vec<RequestId>,
    /// The error with which the server last refused a command, until it does one.
    pub(super) refused: Option<Error>,
    /// Waiters that got permits of callers of this client since others could last take some.
    pub(super) streak: usize,
    /// When the head tries again by itself.
    pub(super) retry: Option<Moment>,
    /// Nothing new is sent before, because the server refused the last command.
    pub(super) rest: Option<Moment>,
    /// Transient errors in a row.
    pub(super) failures: u32,
    /// Whether the last copy arrived after its not-after by the server's clock.
    pub(super) stale: bool,
    /// When an invalidation last had the head look.
    pub(super) hinted: Option<Moment>,
    /// The channel, if it is to be subscribed.
    pub(super) channel: Option<Channel>,
    /// When the counter needs attention.
    pub(super) alarm: Option<Moment>,
}

#[derive(Debug, Default)]
pub(super) struct Channel {
    /// When it is given up, unless somebody waits again.
    pub(super) idle_until: Option<Moment>,
}

/// A change that somebody wants.
#[derive(Debug)]
pub(super) struct Wish {
    /// `None`: nobody waits for the answer.
    pub(super) request: Option<RequestId>,
    pub(super) change: Change,
}

impl Wish {
    /// Whether it is done although its caller has left.
    pub(super) fn is_kept(&self) -> bool {
        self.change.is_kept()
    }

    fn given(&self) -> Option<u32> {
        match &self.change {
            Change::Trade { given, .. } => Some(*given),
            _ => None,
        }
    }
}

/// The command of a counter: in flight, or to be repeated.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) op: Arc<Op>,
    pub(super) wishes: Vec<Wish>,
    /// The waiters that it may serve. They stay in the queue until they are served.
    pub(super) waiters: Vec<(RequestId, u32)>,
    pub(super) in_flight: bool,
    /// Whether a wake-up came since it was sent.
    pub(super) again: bool,
    /// When the first copy without an answer was sent.
    pub(super) unsettled: Option<Moment>,
    /// When the next copy is sent. `None`: as soon as the server can be reached.
    pub(super) retry: Option<Moment>,
}

impl Command {
    pub(super) fn reads(&self) -> bool {
        matches!(*self.op, Op::Read { .. })
    }

    pub(super) fn callers(&self) -> impl Iterator<Item = RequestId> {
        let wishes = self.wishes.iter().filter_map(|wish| wish.request);
        wishes.chain(self.waiters.iter().map(|(id, _)| *id))
    }

    /// Until when it can be repeated.
    pub(super) fn ends(&self) -> Option<Moment> {
        self.unsettled.map(|first| first.after(REPEATED))
    }
}

impl State {
    /// Whether nobody waits and nothing is left to be done.
    pub(super) fn is_settled(&self) -> bool {
        let reads = self.command.as_ref().is_none_or(Command::reads);
        reads && self.wishes.is_empty() && self.waiters.is_empty()
    }

    pub(super) fn is_unused(&self) -> bool {
        self.is_settled() && self.command.is_none() && self.channel.is_none()
    }

    /// Whether a copy of its command got no answer.
    pub(super) fn is_unsettled(&self) -> bool {
        let command = self.command.as_ref();
        command.is_some_and(|command| command.unsettled.is_some())
    }

    /// Whether a command was sent for this caller.
    pub(super) fn is_sent(&self, id: RequestId, want: Want) -> bool {
        let command = self.command.as_ref();
        command.is_some_and(|command| match want {
            // All who wait for a latch share a look.
            Want::Open(_) => command.in_flight && command.reads(),
            _ => command.callers().any(|caller| caller == id),
        })
    }

    /// Takes a waiter out of its queue. It is usually the first one.
    pub(super) fn take_out(&mut self, id: RequestId) {
        if self.waiters.front() == Some(&id) {
            self.waiters.pop_front();
        } else {
            self.waiters.retain(|waiter| *waiter != id);
        }
    }

    /// Something may have changed: the head tries.
    pub(super) fn wake(&mut self) {
        self.asleep = false;
        if let Some(command) = &mut self.command {
            command.again = true;
        }
    }

    /// The server can be reached again.
    pub(super) fn resume(&mut self) {
        self.wake();
        self.rest = None;
        if let Some(command) = &mut self.command {
            command.retry = None;
        }
    }

    /// Takes a caller out. A command that was sent for it goes on.
    pub(super) fn leave(&mut self, id: RequestId, want: Want) {
        if want.waits() {
            // The one behind may want less.
            if self.waiters.front() == Some(&id) {
                self.wake();
            }
            self.take_out(id);
            return;
        }
        let own = |wish: &Wish| wish.request == Some(id);
        self.wishes.retain(|wish| !own(wish) || wish.is_kept());
        self.wishes
            .iter_mut()
            .filter(|wish| own(wish))
            .for_each(|wish| wish.request = None);
    }

    /// When it needs attention.
    pub(super) fn due(&self) -> Option<Moment> {
        let waiting = self.command.as_ref().filter(|command| !command.in_flight);
        let command =
            waiting.and_then(|command| command.retry.into_iter().chain(command.ends()).min());
        let idle = self.channel.as_ref().and_then(|channel| channel.idle_until);
        let all = [self.retry, self.rest, command, idle];
        all.into_iter().flatten().min()
    }

    /// The next command, if there is something to do.
    pub(super) fn next_command(
        &mut self,
        key: &CounterKey,
        callers: &BTreeMap<RequestId, Caller>,
        writer: OwnerId,
        sequence: &mut u64,
    ) -> Option<Command> {
        let (counter, name) = key;
        let (mut wishes, mut waiters) = (Vec::new(), Vec::new());
        let may_try = !self.asleep && !self.waiters.is_empty();
        let op = if self.wishes.is_empty() && *counter == Counter::Latch {
            waiters.extend(self.waiters.iter().filter(|_| may_try).map(|id| (*id, 0)));
            let (name, counter) = (name.clone(), *counter);
            may_try.then_some(Op::Read { name, counter })?
        } else {
            let change = match self.wishes.front().map(|wish| &wish.change) {
                Some(Change::CountDown(_)) => self.count_downs(&mut wishes),
                None | Some(Change::Trade { .. }) => {
                    let given = self.gifts(&mut wishes);
                    if wishes.is_empty() && !may_try {
                        return None;
                    }
                    // Permits that never leave this client would starve the waiters of others.
                    if given == 0 || self.streak < tuning::TRADES {
                        waiters.extend(self.wanted(callers));
                    }
                    let wanted = waiters.iter().map(|(_, permits)| *permits).collect();
                    Change::Trade { given, wanted }
                }
                Some(_) => {
                    let wish = self.wishes.pop_front()?;
                    let change = wish.change.clone();
                    wishes.push(wish);
                    change
                }
            };
            *sequence += 1;
            Op::Change {
                name: name.clone(),
                writer,
                sequence: *sequence,
                change,
            }
        };
        Some(Command {
            op: Arc::new(op),
            wishes,
            waiters,
            in_flight: false,
            again: false,
            unsettled: None,
            retry: None,
        })
    }

    /// The permits that the first waiters want.
    fn wanted(
        &self,
        callers: &BTreeMap<RequestId, Caller>,
    ) -> impl Iterator<Item = (RequestId, u32)> {
        let permits = |id: &RequestId| match callers.get(id)?.want {
            Want::Permits(permits, _) => Some((*id, permits)),
            _ => None,
        };
        self.waiters.iter().take(tuning::TAKES).filter_map(permits)
    }

    /// Takes out the first wishes as long as they give permits back, and returns how many.
    fn gifts(&mut self, wishes: &mut Vec<Wish>) -> u32 {
        let mut sum = 0_u32;
        while let Some(more) = self.wishes.front().and_then(Wish::given)
            && let Some(all) = sum.checked_add(more)
        {
            sum = all;
            wishes.extend(self.wishes.pop_front());
        }
        sum
    }

    /// Takes out the first wishes as long as they count down.
    fn count_downs(&mut self, wishes: &mut Vec<Wish>) -> Change {
        let mut sum = 0_u32;
        while let Some(Change::CountDown(more)) = self.wishes.front().map(|wish| &wish.change)
            && let Some(all) = sum.checked_add(*more)
        {
            sum = all;
            wishes.extend(self.wishes.pop_front());
        }
        Change::CountDown(sum)
    }
}
