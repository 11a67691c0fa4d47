//! Random programs that use locks.

use std::sync::Arc;
use std::time::Duration;

use super::permits::LIMIT;
use crate::engine::{AcquireAll, Input, Lease, LevelId, Part, Request, RequestId, Target, Terms};
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::support::random::Random;
use crate::wire::{Fencing, Form, Inspection, Kind, Name, OwnerId, Special};

/// A thread or task of a program.
#[derive(Debug)]
pub(super) struct Caller {
    key: OwnerKey,
    /// It holds locks only for a moment, all on the same terms.
    quick: bool,
    /// The levels that it believes to have. After a release by key these may differ from its real
    /// levels.
    levels: Vec<(Arc<HoldCell>, LevelId)>,
    /// All levels that it was ever granted, to check that nothing is left at the end.
    pub(super) granted: Vec<(OwnerId, LevelId)>,
    /// Requests without an answer.
    pub(super) asked: Vec<RequestId>,
    /// The token of its last acquisition with one. It uses some tokens several times.
    token: Option<Arc<str>>,
}

/// The next action of a caller.
#[derive(Debug)]
pub(super) enum Deed {
    Ask(Request),
    Tell(Input),
    Nothing,
}

/// The terms of quick callers, which hold a lock only for a moment.
const QUICK: Terms = Terms {
    permits: 0,
    special: Special::NONE,
    kind: Kind::Reentrant,
    reentrant: true,
    lease: Lease::Watchdog(Duration::from_secs(1)),
    fencing: Fencing::Off,
    max_hold: None,
    replicas: 0,
    linger: false,
    tied: false,
};

/// The kind of a name. Each name has one, and a read-write lock two.
pub(super) fn kind_of(name: &Name) -> Kind {
    match &**name {
        name if name.starts_with("simple") => Kind::Simple,
        "adaptive" => Kind::Adaptive,
        name if name.starts_with("rw") => Kind::Write,
        name if name.trim_start_matches('{').starts_with("semaphore") => Kind::Semaphore,
        name if name.trim_start_matches('{').starts_with("fair") => Kind::Fair,
        name if name.starts_with("turns") => Kind::FairSemaphore,
        _ => Kind::Reentrant,
    }
}

/// The kind for a request: of a read-write lock, mostly the read side. Some callers of a fair semaphore
/// do not queue up.
fn side_of(random: &mut Random, name: &Name) -> Kind {
    match kind_of(name) {
        Kind::Write if random.chance(650) => Kind::Read,
        Kind::FairSemaphore if random.chance(150) => Kind::Semaphore,
        kind => kind,
    }
}

/// A caller that knows a token, of any client, uses it.
fn use_token(random: &mut Random, token: Option<(Name, Arc<str>)>) -> Deed {
    let Some((name, token)) = token else {
        return Deed::Nothing;
    };
    let form = Form {
        kind: kind_of(&name),
        token: Some(token),
        ..Form::default()
    };
    if random.chance(300) {
        return Deed::Ask(Request::ReleaseToken { name, form });
    }
    if let Some(token) = form.token.clone().filter(|_| random.chance(500)) {
        let lease = Duration::from_millis(random.between(100, 3000));
        let terms = Terms {
            lease: if random.chance(500) {
                Lease::Watchdog(lease)
            } else {
                Lease::Fixed(lease)
            },
            reentrant: false,
            kind: form.kind,
            ..QUICK
        };
        return Deed::Ask(Request::Adopt {
            name,
            key: OwnerKey::Once,
            terms,
            token,
        });
    }
    let lease = Duration::from_millis(random.between(100, 3000));
    Deed::Ask(Request::ExtendToken { name, form, lease })
}

impl Caller {
    pub(super) fn new(key: u64, quick: bool) -> Caller {
        Caller {
            key: OwnerKey::Thread(key),
            quick,
            levels: Vec::new(),
            granted: Vec::new(),
            asked: Vec::new(),
            token: None,
        }
    }

    pub(super) fn granted(&mut self, cell: Arc<HoldCell>, level: LevelId) {
        self.granted.push((cell.owner, level));
        self.levels.push((cell, level));
    }

    /// The holds of several locks as one that it has.
    pub(super) fn wholes(&self) -> impl Iterator<Item = &Arc<HoldCell>> {
        let cells = self.levels.iter().map(|(cell, _)| cell);
        cells.filter(|cell| cell.kind.is_several() && cell.count() > 0)
    }

    /// `next`: a number not used before. `token`: a token with which a caller holds one of the
    /// names now.
    pub(super) fn deed(
        &mut self,
        random: &mut Random,
        names: &[Name],
        next: u64,
        token: Option<(Name, Arc<str>)>,
    ) -> Deed {
        let name = names[random.index(names.len())].clone();
        match random.below(100) {
            0..6 if self.levels.len() < 4 && self.asked.len() < 3 && names.len() > 1 => {
                self.acquire_all(random, names)
            }
            0..35 if self.levels.len() < 4 && self.asked.len() < 3 => {
                self.acquire(random, name, next)
            }
            35..65 => self.give_back(random),
            65..73 => self.drop_one(random),
            73..85 => self.cancel(random),
            85..89 => self.extend(random),
            89..90 => Deed::Ask(Request::Force {
                kind: side_of(random, &name),
                name,
            }),
            90..92 if kind_of(&name).takes_permits() && random.chance(500) => {
                let limit = random.chance(500).then_some(LIMIT);
                Deed::Ask(Request::Count { name, limit })
            }
            90..92 => Deed::Ask(Request::Inspect {
                what: match side_of(random, &name) {
                    Kind::Fair | Kind::FairSemaphore if random.chance(300) => Inspection::Waiters,
                    _ if random.chance(500) => Inspection::Holders,
                    _ => Inspection::Owners,
                },
                kind: side_of(random, &name),
                name,
            }),
            92..94 => self.abandon(random),
            94..95 => self.end_key(next),
            95..97 => use_token(random, token),
            _ => Deed::Nothing,
        }
    }

    fn acquire(&mut self, random: &mut Random, name: Name, next: u64) -> Deed {
        if self.quick && kind_of(&name) == Kind::Reentrant && random.chance(800) {
            return Deed::Ask(Request::Acquire {
                name,
                key: OwnerKey::Once,
                wait: None,
                terms: QUICK,
                token: None,
            });
        }
        let key = match (random.below(6), self.levels.last()) {
            (0, _) => OwnerKey::Once,
            (1, Some((_, level))) => OwnerKey::Hold(*level),
            _ => self.key,
        };
        let wait = match random.below(4) {
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(random.between(1, 200))),
            2 => Some(Duration::from_millis(random.between(200, 5000))),
            _ => None,
        };
        let kind = side_of(random, &name);
        let lease = match kind {
            Kind::Adaptive => Lease::Adaptive(Duration::from_secs(random.pick(&[1, 2, 8]))),
            _ => {
                let lease = Duration::from_millis(random.pick(&[150, 300, 1000, 2000]));
                if random.chance(300) {
                    Lease::Fixed(lease)
                } else {
                    Lease::Watchdog(lease)
                }
            }
        };
        let permits = if kind.takes_permits() {
            // A few want more than there are: in fair mode they hold nobody up.
            let vain = kind == Kind::FairSemaphore && wait.is_some() && random.chance(80);
            random.pick(if vain {
                &[1 + LIMIT as u16]
            } else {
                &[1, 1, 2]
            })
        } else {
            0
        };
        let is_side = matches!(kind, Kind::Read | Kind::Write);
        let preference = Duration::from_millis(random.pick(&[20, 200, 1500, 60_000]));
        let writer_preference = (is_side && random.chance(500)).then_some(preference);
        let has_token = kind == Kind::Simple && random.chance(300);
        let token = has_token.then(|| self.next_token(random, next));
        let max_hold = random
            .chance(100)
            .then(|| Duration::from_millis(random.between(100, 3000)));
        Deed::Ask(Request::Acquire {
            token,
            name,
            key,
            wait,
            terms: Terms {
                kind,
                // A key may wait for its own hold. Only a bounded wait gets it out of that.
                reentrant: !kind.takes_permits()
                    && (kind.facts().reenters || wait.is_none() || random.chance(500)),
                lease,
                fencing: if kind.is_shared() || random.chance(400) {
                    Fencing::Off
                } else {
                    Fencing::Persistent
                },
                max_hold,
                replicas: u8::from(random.chance(200)),
                linger: false,
                tied: false,
                permits,
                special: Special {
                    limit: if permits > 0 { LIMIT } else { 0 },
                    steal: kind == Kind::Write && random.chance(150),
                    writer_preference,
                },
            },
        })
    }

    /// Two or three names at once. Their order is that of names, as the caller's side has them.
    fn acquire_all(&mut self, random: &mut Random, names: &[Name]) -> Deed {
        let mut chosen: Vec<Name> = (0..random.between(2, 4))
            .map(|_| names[random.index(names.len())].clone())
            .collect();
        chosen.sort();
        chosen.dedup();
        let lease = Duration::from_millis(random.pick(&[300, 1000, 2000]));
        let reentrant = random.chance(700);
        let part = |name: Name| {
            let kind = side_of(random, &name);
            let lease = match kind {
                Kind::Adaptive => Lease::Adaptive(Duration::from_secs(1)),
                _ if random.chance(300) => Lease::Fixed(lease),
                _ => Lease::Watchdog(lease),
            };
            let is_semaphore = kind.takes_permits();
            let terms = Terms {
                kind,
                reentrant: reentrant && !is_semaphore,
                lease,
                permits: u16::from(is_semaphore),
                special: Special {
                    limit: if is_semaphore { LIMIT } else { 0 },
                    ..Special::NONE
                },
                ..QUICK
            };
            Part { name, terms }
        };
        let parts: Arc<[Part]> = chosen.into_iter().map(part).collect();
        // Names on one server or on several: what most of them are is the same.
        let (kind, needed) = match parts.len() % 2 == 1 && parts.len() > 1 && random.chance(500) {
            true => (Kind::Quorum, parts.len() / 2 + 1),
            false => (Kind::Multi, parts.len()),
        };
        let all: Vec<&str> = parts.iter().map(|part| &*part.name).collect();
        let wait = match random.below(3) {
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(random.between(1, 3000))),
            // A key may wait for its own hold. Only a bounded wait gets it out of that.
            _ => reentrant.then_some(Duration::from_secs(60)),
        };
        Deed::Ask(Request::AcquireAll(AcquireAll {
            name: all.join(", ").into(),
            key: random.pick(&[OwnerKey::Once, self.key]),
            wait: wait.or(Some(Duration::from_millis(100))),
            terms: Terms { kind, ..QUICK },
            needed,
            parts,
        }))
    }

    /// A new token, or the one that it used last.
    fn next_token(&mut self, random: &mut Random, next: u64) -> Arc<str> {
        let again = self.token.clone().filter(|_| random.chance(600));
        let token = again.unwrap_or_else(|| next.to_string().into());
        self.token = Some(token.clone());
        token
    }

    pub(super) fn give_back(&mut self, random: &mut Random) -> Deed {
        let Some((cell, level)) = self.levels.pop() else {
            return Deed::Nothing;
        };
        let target = match cell.key {
            OwnerKey::Thread(_) if random.chance(300) => Target::Key {
                name: cell.name.clone(),
                key: cell.key,
                kind: cell.kind,
            },
            _ => Target::Level {
                owner: cell.owner,
                level,
            },
        };
        // Sometimes it releases a level once more than it should.
        if random.chance(50) {
            self.levels.push((cell, level));
        }
        Deed::Ask(Request::Release(target))
    }

    fn drop_one(&mut self, random: &mut Random) -> Deed {
        if self.levels.is_empty() {
            return Deed::Nothing;
        }
        let at = usize::try_from(random.below(self.levels.len() as u64)).unwrap();
        let (cell, level) = self.levels.remove(at);
        Deed::Tell(Input::Dropped {
            owner: cell.owner,
            level,
        })
    }

    fn cancel(&mut self, random: &mut Random) -> Deed {
        if self.asked.is_empty() {
            return Deed::Nothing;
        }
        Deed::Tell(Input::Cancel {
            id: random.pick(&self.asked),
        })
    }

    fn extend(&mut self, random: &mut Random) -> Deed {
        let Some((cell, level)) = self.levels.last() else {
            return Deed::Nothing;
        };
        let lease = Duration::from_millis(random.between(100, 3000));
        Deed::Ask(Request::Extend {
            target: Target::Level {
                owner: cell.owner,
                level: *level,
            },
            lease,
        })
    }

    fn abandon(&mut self, random: &mut Random) -> Deed {
        let Some((cell, level)) = self.levels.pop() else {
            return Deed::Nothing;
        };
        let owner = cell.owner;
        if random.chance(500) {
            return Deed::Tell(Input::Abandoned { owner, level });
        }
        // The level is released later, or ends with its key.
        self.levels.push((cell, level));
        Deed::Tell(Input::Detached { owner, level })
    }

    /// The thread ends and another one begins. Its guards are dropped as its stack unwinds.
    fn end_key(&mut self, next: u64) -> Deed {
        if !self.levels.is_empty() || !self.asked.is_empty() {
            return Deed::Nothing;
        }
        Deed::Tell(Input::KeyEnded(std::mem::replace(
            &mut self.key,
            OwnerKey::Thread(next),
        )))
    }
}
