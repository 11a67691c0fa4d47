//! The state of a counter, and its next command.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::context::{Context, CounterKey};
use crate::engine::crowd::Crowd;
use crate::engine::interface::RequestId;
use crate::engine::turn::Run;
use crate::error::Error;
use crate::maps::{SortedMap, SortedSet};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Change, Counter, Op, OwnerId, Topic};

/// How long after its first copy without an answer a command is repeated. The marker outlives the
/// last copy by more than the clocks can differ.
const REPEATED: Duration = tuning::MARKER_LIFE.saturating_sub(Duration::from_secs(10));

/// A caller without an answer.
#[derive(Debug)]
pub(super) struct CounterCaller {
    pub(super) key: CounterKey,
    pub(super) want: Want,
    /// Its time is over, and the answer to a command for it may still come.
    pub(super) late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
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
pub(super) struct CounterState {
    /// Changes that were not sent yet, in their order.
    pub(super) wishes: VecDeque<Wish>,
    /// The callers that wait for permits or for an open latch, in their order.
    pub(super) waiters: VecDeque<RequestId>,
    pub(super) command: Option<CounterCommand>,
    /// The head of the waiters was refused, and nothing has happened since.
    pub(super) asleep: bool,
    /// The waiters that do not wait any longer than for the answer to the next command. The list may
    /// still have callers that were answered.
    pub(super) tries: Vec<RequestId>,
    /// The waiters that came after the command was made. Its answer says nothing to them.
    pub(super) joined: SortedSet<RequestId>,
    /// The last passing error of the server. A successful command clears it.
    pub(super) refused: Option<Error>,
    /// The waiters served by permits of this client since a permit was last free for other clients.
    pub(super) streak: Run,
    /// When the streak is forgotten, if nobody waits here until then.
    pub(super) forgotten: Option<Moment>,
    /// Until when the last number that was told counts as not below 0.
    pub(super) not_below_until: Moment,
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
    pub(super) channel: Option<CounterChannel>,
    /// The crowd in which this client waits for permits.
    pub(super) crowd: Crowd,
    /// How many messages its waiters have heard since one of them was served.
    pub(super) heard: u32,
    /// Whether the head tries by itself, because no message came.
    pub(super) unheard: bool,
    /// Whether the server has what the head wants, and left it to the first place in the crowd.
    pub(super) left: bool,
    /// When the counter needs attention.
    pub(super) alarm: Option<Moment>,
}

#[derive(Debug)]
pub(super) struct CounterChannel {
    /// Which of the channels of its name it is.
    pub(super) topic: Topic,
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

    /// Whether its caller is one of these.
    pub(super) fn is_of(&self, callers: &SortedSet<RequestId>) -> bool {
        self.request.is_some_and(|id| callers.contains_key(&id))
    }

    pub(super) fn without_caller(self) -> Self {
        Wish {
            request: None,
            ..self
        }
    }

    pub(super) fn given(&self) -> Option<u32> {
        match self.change {
            Change::Trade { given, .. } => Some(given),
            _ => None,
        }
    }

    fn counted_down(&self) -> Option<u32> {
        match self.change {
            Change::CountDown(by) => Some(by),
            _ => None,
        }
    }
}

/// The command of a counter: in flight, or to be repeated.
#[derive(Debug)]
pub(super) struct CounterCommand {
    pub(super) op: Arc<Op>,
    pub(super) wishes: Vec<Wish>,
    /// The waiters for permits that it may serve. They stay in the queue until they are served.
    pub(super) waiters: Vec<(RequestId, u32)>,
    pub(super) in_flight: bool,
    /// Whether a wake-up came since it was sent.
    pub(super) again: bool,
    /// When the first copy without an answer was sent.
    pub(super) unsettled: Option<Moment>,
    /// When the next copy is sent. `None`: as soon as the server can be reached.
    pub(super) retry: Option<Moment>,
}

impl CounterCommand {
    pub(super) fn reads(&self) -> bool {
        matches!(*self.op, Op::Read { .. })
    }

    /// Until when it can be repeated.
    pub(super) fn ends(&self) -> Option<Moment> {
        self.unsettled.map(|first| first.after(REPEATED))
    }
}

impl CounterState {
    /// Whether nobody waits and nothing is left to be done.
    pub(super) fn is_settled(&self) -> bool {
        let reads = self.command.as_ref().is_none_or(CounterCommand::reads);
        reads && self.wishes.is_empty() && self.waiters.is_empty()
    }

    /// A permit that was passed on may come back: its streak goes on then.
    pub(super) fn is_unused(&self) -> bool {
        let is_idle = self.command.is_none() && self.channel.is_none();
        self.is_settled() && is_idle && !self.streak.has_handed_over()
    }

    /// Whether a copy of its command got no answer.
    pub(super) fn is_unsettled(&self) -> bool {
        let command = self.command.as_ref();
        command.is_some_and(|command| command.unsettled.is_some())
    }

    /// The callers that this command serves. All who wait for a latch share a look.
    pub(super) fn callers_of(&self, command: &CounterCommand) -> impl Iterator<Item = RequestId> {
        let wishes = command.wishes.iter().filter_map(|wish| wish.request);
        let takers = command.waiters.iter().map(|(id, _)| *id);
        let lookers = command
            .reads()
            .then_some(&self.waiters)
            .into_iter()
            .flatten();
        let lookers = lookers.filter(|id| !self.joined.contains_key(id)).copied();
        wishes.chain(takers).chain(lookers)
    }

    /// Whether a command was sent for this caller.
    pub(super) fn is_sent(&self, id: RequestId, want: Want) -> bool {
        let command = self.command.as_ref();
        command.is_some_and(|command| match want {
            Want::Open(_) => command.in_flight && command.reads() && !self.joined.contains_key(&id),
            _ => self.callers_of(command).any(|caller| caller == id),
        })
    }

    /// When the server is asked again after another refusal.
    pub(super) fn back_off(&mut self, cx: &mut Context) -> Moment {
        self.failures += 1;
        cx.now.after(cx.jitter.backoff(self.failures))
    }

    /// Takes a waiter out of its queue. It is usually the first one.
    pub(super) fn take_out(&mut self, id: RequestId) {
        if self.waiters.front() == Some(&id) {
            self.waiters.pop_front();
        } else {
            self.waiters.retain(|waiter| *waiter != id);
        }
    }

    /// Gives a command its place in the crowd, if it asks for one. Returns whether its client leaves the
    /// crowd.
    pub(super) fn line_up(
        &mut self,
        callers: &SortedMap<RequestId, CounterCaller>,
        cx: &mut Context,
    ) -> bool {
        let Some(command) = self.command.as_mut().filter(|one| !one.waiters.is_empty()) else {
            return false;
        };
        // A wish for several permits would keep those behind it, and a try does not wait.
        let crowds = |(id, permits): &(RequestId, u32)| {
            let once = callers.get(id).is_none_or(|caller| caller.want.once());
            *permits == 1 && !once
        };
        let due = std::mem::take(&mut self.unheard);
        if !command.waiters.iter().all(crowds) {
            return self.crowd.is_left_behind();
        }
        if let Some(Op::Change { place, .. }) = Arc::get_mut(&mut command.op) {
            // A client that takes a permit again as soon as it has given one back never waits, and would
            // keep the crowd out.
            let asks = self.heard > 1 || cx.jitter.one_in(tuning::CROWD_ASKED);
            let joins = self.crowd.joins(asks).then(|| cx.next_owner());
            *place = self.crowd.next(due, false, joins);
            self.crowd.is_told |= place.is_some();
        }
        false
    }

    /// The answer to a command that may have asked for a place. Returns a place that is to be given up once
    /// more: its client has left the crowd since, and the command may have got there after that.
    pub(super) fn placed(
        &mut self,
        command: &CounterCommand,
        done: i64,
        left: i64,
        ahead: Option<u32>,
    ) -> Option<OwnerId> {
        let Op::Change {
            place: Some(place), ..
        } = *command.op
        else {
            return None;
        };
        let served = usize::try_from(done) == Ok(command.waiters.len());
        self.left = left > 0 && !served;
        let has_left = !self.crowd.is_told;
        match served {
            true => self.crowd.won(self.crowd.place.is_some()),
            false if !has_left => self.crowd.lost(place.owner, ahead),
            false => return ahead.map(|_| place.owner),
        }
        None
    }

    /// The channel on which its waiters hear of permits.
    pub(super) fn topic(&self, counter: Counter) -> Topic {
        self.crowd.topic().unwrap_or(counter.topic())
    }

    /// Whether what this client hears is told to its place in the crowd.
    pub(super) fn hears_place(&self) -> bool {
        let topic = self.channel.as_ref().map(|channel| channel.topic);
        topic.is_some() && topic == self.crowd.topic()
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
        (self.rest, self.refused) = (None, None);
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
        if want == (Want::Change { kept: true }) {
            return;
        }
        let own = |wish: &Wish| wish.request == Some(id);
        self.wishes.retain(|wish| !own(wish));
    }

    /// When it needs attention.
    pub(super) fn due(&self) -> Option<Moment> {
        let waiting = self.command.as_ref().filter(|command| !command.in_flight);
        let command =
            waiting.and_then(|command| command.retry.into_iter().chain(command.ends()).min());
        let idle = self.channel.as_ref().and_then(|channel| channel.idle_until);
        let all = [self.retry, self.rest, self.forgotten, command, idle];
        // Optimized, a comparison of what is there looks at what is not, of which memcheck would tell.
        let never = Moment(u64::MAX);
        let due = all.map(|at| at.unwrap_or(never)).into_iter().min();
        due.filter(|at| *at != never)
    }

    /// The next command, if there is something to do.
    pub(super) fn next_command(
        &mut self,
        key: &CounterKey,
        callers: &SortedMap<RequestId, CounterCaller>,
        cx: &Context,
        sequence: &mut u64,
    ) -> Option<CounterCommand> {
        let (counter, name) = key;
        let (mut wishes, mut waiters) = (Vec::new(), Vec::new());
        let may_try = !self.asleep && !self.waiters.is_empty();
        let op = if self.wishes.is_empty() && *counter == Counter::Latch {
            let name = name.clone();
            may_try.then_some(Op::Read { name })?
        } else {
            let change = match self.wishes.front().map(|wish| &wish.change) {
                Some(Change::CountDown(_)) => {
                    Change::CountDown(self.merge(&mut wishes, Wish::counted_down))
                }
                None | Some(Change::Trade { .. }) => {
                    let given = self.merge(&mut wishes, Wish::given);
                    if wishes.is_empty() && !may_try {
                        return None;
                    }
                    // Permits that never leave this client would starve the waiters of others.
                    if given == 0 || !self.streak.is_over(cx.now, cx.config.handovers) {
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
                writer: cx.first_owner,
                sequence: *sequence,
                change,
                place: None,
            }
        };
        self.joined.clear();
        Some(CounterCommand {
            op: Arc::new(op),
            wishes,
            waiters,
            in_flight: false,
            again: false,
            unsettled: None,
            retry: None,
        })
    }

    /// The first waiter for permits, and how many it wants.
    pub(super) fn first(
        &self,
        callers: &SortedMap<RequestId, CounterCaller>,
    ) -> Option<(RequestId, u32)> {
        self.wanted(callers).next()
    }

    /// The permits that the first waiters want.
    fn wanted(
        &self,
        callers: &SortedMap<RequestId, CounterCaller>,
    ) -> impl Iterator<Item = (RequestId, u32)> {
        let permits = |id: &RequestId| match callers.get(id)?.want {
            Want::Permits(permits, _) => Some((*id, permits)),
            _ => None,
        };
        self.waiters.iter().take(tuning::TAKES).filter_map(permits)
    }

    /// Takes out the first wishes as long as they have such a number, and returns the sum.
    fn merge(&mut self, wishes: &mut Vec<Wish>, number: fn(&Wish) -> Option<u32>) -> u32 {
        let mut sum = 0_u32;
        while let Some(more) = self.wishes.front().and_then(number)
            && let Some(all) = sum.checked_add(more)
        {
            sum = all;
            wishes.extend(self.wishes.pop_front());
        }
        sum
    }
}
