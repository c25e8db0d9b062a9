//! One multicast group of a port, for all who are in it: what the SA has, what is wanted, what to do next.

use std::time::Instant;

use ibwire::Gid;
use rand::rngs::ChaCha8Rng;
use tokio::sync::oneshot;

use super::Group;
use crate::client::keep::{Backoff, Kept, Reply, Step, spread};
use crate::proto::client::{QueryError, SaStatus};
use crate::record::{JoinState, McMemberRecord};

/// How often a send-only join waits for the group's first full member (spec/sa.md T65).
const PATIENCE: u32 = 2;

/// The ways to be in a group, each joined and left on its own: some SAs lose a group that was joined in two ways at once and
/// left in one (spec/sa.md T61).
pub(super) const KINDS: [JoinState; 4] = [
    JoinState::FULL_MEMBER,
    JoinState::SEND_ONLY_FULL_MEMBER,
    JoinState::NON_MEMBER,
    JoinState::SEND_ONLY_NON_MEMBER,
];

/// A group that somebody is in, joins or leaves.
#[derive(Debug)]
pub(in crate::client) struct PortGroup {
    /// Unspecified until the SA has chosen one.
    pub(super) mgid: Gid,
    /// The SA chose it.
    assigned: bool,
    /// How to make the group.
    pub(super) create: Option<Group>,
    /// Memberships, by [`KINDS`].
    members: [u32; 4],
    pub(super) joining: Vec<Joiner>,
    leaving: Vec<(JoinState, Reply)>,
    /// What the SA has confirmed.
    held: JoinState,
    /// What it may have, too.
    unsure: JoinState,
    /// Counts changes of the SM: an answer from before one is not believed.
    era: u64,
    /// The memberships are being joined again.
    renewing: bool,
    /// Nothing is joined before.
    rest_until: Option<Instant>,
    backoff: Backoff,
}

/// Who waits to be in the group.
#[derive(Debug)]
pub(in crate::client) struct Joiner {
    pub(super) kind: JoinState,
    pub(super) deadline: Instant,
    pub(super) tries: u32,
    pub(super) joined: oneshot::Sender<Result<Kept<PortGroup>, QueryError>>,
}

/// What is to be done for a group.
#[derive(Debug)]
pub(in crate::client) enum Work {
    /// Tell those who are in it without the SA's being asked.
    Tell(Outcome),
    /// Ask the SA to join.
    Join(Attempt),
    /// Ask the SA to leave.
    Leave(Gid, JoinState),
}

/// How to join.
#[derive(Debug, Clone)]
pub(in crate::client) struct Attempt {
    pub(super) mgid: Gid,
    pub(super) kind: JoinState,
    /// How to make the group if there is none.
    pub(super) create: Option<Group>,
    /// The latest of those who wait.
    pub(super) deadline: Option<Instant>,
    era: u64,
}

/// What came of an attempt.
#[derive(Debug, Default)]
pub(in crate::client) struct Outcome {
    /// Who is in the group now; each is counted as a member.
    pub(super) joined: Vec<Joiner>,
    /// Who has left, which is no affair of the SA's.
    pub(super) left: Vec<Reply>,
    /// Who is not in it.
    pub(super) failed: Vec<(Joiner, QueryError)>,
    /// What members hear.
    pub(super) news: Option<Result<McMemberRecord, QueryError>>,
    /// Whether it is a change that they wait for.
    pub(super) loud: bool,
}

impl PortGroup {
    pub(super) fn new(mgid: Gid) -> Self {
        Self {
            mgid,
            assigned: mgid.is_unspecified(),
            create: None,
            members: [0; 4],
            joining: Vec::new(),
            leaving: Vec::new(),
            held: JoinState::empty(),
            unsure: JoinState::empty(),
            era: 0,
            renewing: false,
            rest_until: None,
            backoff: Backoff::default(),
        }
    }

    /// Somebody wants to be in it.
    pub(super) fn join(&mut self, joiner: Joiner, create: Option<Group>) {
        self.joining.push(joiner);
        self.create = self.create.take().or(create);
        if !self.renewing {
            self.rest_until = None;
        }
    }

    /// A member goes. Whoever is given hears when the SA has confirmed it; given back, others are still in it that way.
    pub(super) fn leave(&mut self, kind: JoinState, left: Option<Reply>) -> Option<Reply> {
        let members = &mut self.members[place(kind)];
        *members = members.saturating_sub(1);
        if self.wanted().contains(kind) || !(self.held | self.unsure).contains(kind) {
            return left;
        }
        self.leaving.extend(left.map(|left| (kind, left)));
        None
    }

    /// Nobody is in it any more; those who waited to be.
    pub(super) fn expel(&mut self) -> Vec<Joiner> {
        self.members = [0; 4];
        std::mem::take(&mut self.joining)
    }

    /// How the port shall be in the group.
    pub(super) fn wanted(&self) -> JoinState {
        let members = KINDS.into_iter().zip(self.members).filter(|(_, members)| *members > 0);
        let joining = self.joining.iter().filter(|joiner| !joiner.joined.is_closed());
        members.map(|(kind, _)| kind).chain(joining.map(|joiner| joiner.kind)).collect()
    }

    /// The SM has changed: what it knew of us may be gone.
    pub(super) fn join_again(&mut self, now: Instant, rng: &mut ChaCha8Rng) {
        self.unsure |= self.held;
        self.held = JoinState::empty();
        self.era += 1;
        self.renewing = self.members.iter().any(|members| *members > 0);
        self.backoff.reset();
        self.rest_until = Some(now + spread(rng));
    }

    pub(super) fn next_step(&mut self, now: Instant) -> Step<Work> {
        self.joining.retain(|joiner| !joiner.joined.is_closed());
        let (held, wanted) = (self.held, self.wanted());
        // Somebody else wants to be in it that way by now, or the SA has said that nobody is.
        let at_sa = held | self.unsure;
        let is_over = |kind| wanted.contains(kind) || !at_sa.contains(kind);
        let left = self.leaving.extract_if(.., |(kind, _)| is_over(*kind));
        let left: Vec<_> = left.map(|(_, left)| left).collect();
        if !left.is_empty() || self.joining.iter().any(|joiner| held.contains(joiner.kind)) {
            return Step::Do(Work::Tell(Outcome { joined: self.admit(held), left, ..Outcome::default() }));
        }
        let of = |set: JoinState| KINDS.into_iter().find(|kind| set.contains(*kind));
        // One that the SA may not have would spoil one that it has, so that each goes alone.
        if let Some(kind) = of(self.held - wanted).or(of(self.unsure - wanted)) {
            return Step::Do(Work::Leave(self.mgid, kind));
        }
        let Some(kind) = of(wanted - self.held) else {
            return if wanted.is_empty() { Step::End } else { Step::Rest(None) };
        };
        if let Some(until) = self.rest_until.filter(|until| now < *until) {
            return Step::Rest(Some(until));
        }
        self.rest_until = None;
        self.unsure |= kind;
        let makes = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
        let mine = self.joining.iter().filter(|joiner| joiner.kind == kind);
        Step::Do(Work::Join(Attempt {
            mgid: self.mgid,
            kind,
            create: self.create.clone().filter(|_| makes.contains(kind)),
            deadline: mine.map(|joiner| joiner.deadline).max(),
            era: self.era,
        }))
    }

    /// What the SA said; `None` if nobody waited for it to the end.
    pub(super) fn joined(
        &mut self,
        now: Instant,
        attempt: &Attempt,
        result: Option<Result<McMemberRecord, QueryError>>,
        rng: &mut ChaCha8Rng,
    ) -> Outcome {
        match result {
            _ if self.era != attempt.era => Outcome::default(),
            None => Outcome::default(),
            Some(Ok(record)) => self.confirmed(attempt.kind, record),
            Some(Err(error)) => self.refused(now, attempt, error, rng),
        }
    }

    fn confirmed(&mut self, kind: JoinState, record: McMemberRecord) -> Outcome {
        self.held |= kind;
        self.unsure -= kind;
        self.mgid = record.mgid;
        let joined = self.admit(kind);
        let loud = self.renewing && self.held.contains(self.wanted());
        if loud {
            self.renewing = false;
            self.backoff.reset();
        }
        Outcome { joined, news: Some(Ok(record)), loud, ..Outcome::default() }
    }

    /// Whoever wants to be in it in one of these ways is a member.
    fn admit(&mut self, kinds: JoinState) -> Vec<Joiner> {
        let (joined, others) = self.joining.drain(..).partition(|joiner| kinds.contains(joiner.kind));
        self.joining = others;
        let joined: Vec<Joiner> = joined;
        joined.iter().for_each(|joiner| self.members[place(joiner.kind)] += 1);
        joined
    }

    fn refused(
        &mut self,
        now: Instant,
        attempt: &Attempt,
        error: QueryError,
        rng: &mut ChaCha8Rng,
    ) -> Outcome {
        let kind = attempt.kind;
        let status = match &error {
            QueryError::Status(status) => Some(*status),
            _ => None,
        };
        if status.is_some() {
            self.unsure -= kind;
        }
        let absent = status.is_some_and(is_absent);
        if absent && self.assigned && self.create.is_some() && !attempt.mgid.is_unspecified() {
            // An MGID that the SA itself chose cannot always be asked for (spec/sa.md T60).
            self.mgid = Gid::UNSPECIFIED;
            return Outcome::default();
        }
        let waits = absent && kind == JoinState::SEND_ONLY_NON_MEMBER;
        let (mut failed, mut others) = (Vec::new(), Vec::new());
        for mut joiner in self.joining.drain(..) {
            match joiner.kind == kind {
                true if waits && joiner.tries < PATIENCE => {
                    joiner.tries += 1;
                    others.push(joiner);
                }
                true => failed.push((joiner, error.clone())),
                false => others.push(joiner),
            }
        }
        self.joining = others;
        if self.wanted().contains(kind) {
            self.rest_until = Some(now + self.backoff.next(rng));
        }
        let loud = self.members[place(kind)] > 0;
        Outcome { failed, news: loud.then_some(Err(error)), loud, ..Outcome::default() }
    }

    /// The SA has confirmed that we left, or does not answer: those who wait for that.
    pub(super) fn left(&mut self, kind: JoinState) -> Vec<Reply> {
        self.held -= kind;
        self.unsure -= kind;
        let (gone, others) = self.leaving.drain(..).partition(|(left, _)| *left == kind);
        self.leaving = others;
        let gone: Vec<_> = gone;
        gone.into_iter().map(|(_, left)| left).collect()
    }
}

/// Where a kind is counted.
fn place(kind: JoinState) -> usize {
    KINDS.iter().position(|one| *one == kind).expect("one of them: builders make no others")
}

/// Whether a group is absent, or so the SA may mean: it says the same of one that does not fit.
pub(super) fn is_absent(status: SaStatus) -> bool {
    matches!(status, SaStatus::REQUEST_INVALID | SaStatus::NO_RECORDS | SaStatus::INSUFFICIENT_COMPONENTS)
}
