//! Whether what came of it can be: the invariant of design.md section 8, seen by the programs.

use std::collections::BTreeMap;
use std::fmt;

use ibcm::proto::message::MessageId;
use ibcm::{
    AcceptError, ConnectError, DeviceError, How, OpCause, QueryError, RecvError, RejReason, Rejection, Role,
};

use super::content;
use super::plan::{Call, Decision, Incident};
use super::records::{Answer, Attempted, Fate, Left, Records, Side};
use super::world::{Error, World};

/// Fails unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)*) => {
        if !$holds {
            return Err(format!($($words)*).into());
        }
    };
}

type Verdict = Result<(), Error>;

/// How often what came out, to see that the simulation gets everywhere.
#[derive(Debug, Default, Clone)]
pub struct Outcomes(BTreeMap<String, u64>);

impl Outcomes {
    fn count(&mut self, what: impl Into<String>) {
        self.add(what, 1);
    }

    fn add(&mut self, what: impl Into<String>, n: u64) {
        *self.0.entry(what.into()).or_default() += n;
    }

    pub fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|(what, n)| self.add(what, n));
    }

    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, n)| writeln!(f, "{n:>8} {what}"))
    }
}

/// Looks at everything that was recorded.
pub fn judge(world: &World) -> Result<Outcomes, Error> {
    let records = &*world.records();
    let mut outcomes = Outcomes::default();
    let judge = Judge { world, records };
    judge.attempts(&mut outcomes)?;
    judge.answers(&mut outcomes)?;
    for side in &records.sides {
        judge.side(side, &mut outcomes)?;
    }
    for side in &records.sides {
        match side.role {
            Role::Active => judge.pair(side, &mut outcomes)?,
            Role::Passive => judge.has_a_caller(side)?,
        }
    }
    judge.accounts(&mut outcomes)?;
    judge.undisturbed()?;
    Ok(outcomes)
}

struct Judge<'a> {
    world: &'a World,
    records: &'a Records,
}

impl Judge<'_> {
    fn call(&self, number: usize) -> &Call {
        &self.world.plan.calls[number]
    }

    /// The connection as its other program saw it.
    fn peers<'a>(&'a self, side: &'a Side) -> impl Iterator<Item = &'a Side> {
        self.records.sides.iter().filter(|other| {
            other.role != side.role && other.qpn == Some(side.peer_qpn) && Some(other.peer_qpn) == side.qpn
        })
    }

    fn was_removed(&self, host: usize) -> bool {
        self.records.outages.iter().any(|outage| outage.host == host && outage.removed)
    }

    fn was_closed(&self, host: usize) -> bool {
        let restarts = |(_, incident): &_| matches!(incident, Incident::Restart { host: h } if *h == host);
        self.world.plan.incidents.iter().any(restarts)
    }

    fn listener_was_gone(&self, host: usize) -> bool {
        let gone =
            |(_, incident): &_| matches!(incident, Incident::ListenerGone { host: h, .. } if *h == host);
        self.world.plan.incidents.iter().any(gone) || self.was_closed(host)
    }

    // What came of calls and requests.

    fn attempts(&self, outcomes: &mut Outcomes) -> Verdict {
        ensure!(self.records.attempts.len() == self.world.plan.calls.len(), "a call came to nothing");
        for attempt in &self.records.attempts {
            let call = self.call(attempt.call);
            match &attempt.came_to {
                Attempted::Connected => outcomes.count("call: connected"),
                Attempted::GaveUp => outcomes.count("call: given up"),
                Attempted::NoPath(QueryError::PortDown { .. }) => outcomes.count("call: no path, port down"),
                Attempted::NoPath(QueryError::NoPath { .. }) => {
                    ensure!(self.was_removed(call.to), "{attempt:?}");
                    outcomes.count("call: no path, HCA of the peer gone");
                }
                Attempted::NoPath(_) => {
                    let host = call.from;
                    ensure!(self.was_closed(host) || self.was_removed(host), "{attempt:?}");
                    outcomes.count("call: no path, HCA gone");
                }
                Attempted::Failed(error) => {
                    ensure!(self.can_fail(call, error), "{attempt:?}");
                    outcomes.count(format!("call: {}", kind(error)));
                }
            }
        }
        Ok(())
    }

    fn can_fail(&self, call: &Call, error: &ConnectError) -> bool {
        match error {
            ConnectError::Rejected(rejection) => self.can_be_rejected(call, rejection),
            ConnectError::Unreachable { sent, waited, .. } => {
                // Once more after reason 10.
                let most = 2 * (u32::from(call.max_cm_retries.unwrap_or(15)) + 1);
                (1..=most).contains(sent) && *waited <= call.deadline + super::world::SLACK
            }
            ConnectError::Disconnected | ConnectError::Closed => self.was_closed(call.from),
            ConnectError::Device(DeviceError::Gone)
            | ConnectError::Qp { source: DeviceError::Gone, .. }
            | ConnectError::Path(QueryError::Device(DeviceError::Gone)) => self.was_removed(call.from),
            ConnectError::PortDown { .. } => !self.world.plan.incidents.is_empty(),
            _ => false,
        }
    }

    fn can_be_rejected(&self, call: &Call, rejection: &Rejection) -> bool {
        let data = rejection.private_data.as_bytes();
        let refusal = content::refusal(call.number);
        let blank = data.iter().all(|&byte| byte == 0);
        let of_request = rejection.message == MessageId::REQ;
        let answer = call.answer.what;
        match rejection.reason {
            RejReason::CONSUMER if !blank => {
                matches!(answer, Decision::Reject) && of_request && data[..4] == refusal
            }
            // Dropped: the request, the future that accepts it, the listener, the HCA.
            RejReason::CONSUMER => {
                matches!(answer, Decision::Drop | Decision::Accept { gives_up: Some(_), .. })
                    || self.listener_was_gone(call.to)
            }
            RejReason::INVALID_SERVICE_ID => {
                blank && of_request && (!call.served || self.listener_was_gone(call.to))
            }
            // Its REP was not answered, or the connection has ended for it while we know nothing of it.
            RejReason::TIMEOUT => blank && matches!(answer, Decision::Accept { .. }),
            RejReason::STALE_CONNECTION => blank && matches!(answer, Decision::Accept { .. }),
            RejReason::NO_RESOURCES | RejReason::NO_QP => {
                self.was_closed(call.to) || self.was_removed(call.to)
            }
            _ => false,
        }
    }

    fn answers(&self, outcomes: &mut Outcomes) -> Verdict {
        for answered in &self.records.answers {
            let call = self.call(answered.call);
            let host = call.to;
            match &answered.came_to {
                Answer::Connected => outcomes.count("request: connected"),
                Answer::GaveUp => outcomes.count("request: given up"),
                Answer::Ignored => outcomes.count("request: ignored"),
                Answer::Rejected => outcomes.count("request: rejected"),
                Answer::Dropped => outcomes.count("request: dropped"),
                Answer::Failed(error) => {
                    let possible = match error {
                        AcceptError::Withdrawn | AcceptError::Rejected(_) => true,
                        AcceptError::Unconfirmed { sent, .. } => (1..=16).contains(sent),
                        AcceptError::Closed => self.was_closed(host),
                        AcceptError::Device(DeviceError::Gone)
                        | AcceptError::Qp { source: DeviceError::Gone, .. } => self.was_removed(host),
                        _ => false,
                    };
                    ensure!(possible, "{answered:?}");
                    let forgotten =
                        matches!(error, AcceptError::Rejected(no) if no.reason == RejReason::INVALID_COMM_ID);
                    let told = matches!(error, AcceptError::Withdrawn | AcceptError::Rejected(_));
                    let caller = self
                        .records
                        .sides
                        .iter()
                        .find(|side| side.role == Role::Active && side.qpn == Some(answered.peer_qpn));
                    // Whoever has been connected says so, or does not know it any more.
                    ensure!(
                        !told || forgotten || caller.is_none(),
                        "{answered:?}, but its caller was connected: {caller:?}"
                    );
                    let debug = format!("{error:?}");
                    let name = debug.split([' ', '(']).next().unwrap_or_default();
                    outcomes.count(format!("request: {name}"));
                }
            }
        }
        Ok(())
    }

    // What each program saw of its connection.

    fn side(&self, side: &Side, outcomes: &mut Outcomes) -> Verdict {
        match &side.closed {
            None => {
                ensure!(side.left == Left::Dropped, "{side:?} is left and not over");
                outcomes.count("end: dropped");
            }
            Some(closed) => {
                let debug = format!("{:?}", closed.how);
                let name = debug.split([' ', '(']).next().unwrap_or_default();
                outcomes.count(format!("end: {name}"));
                let possible = match closed.how {
                    How::HcaClosed => self.was_closed(side.host),
                    How::DeviceGone => self.was_removed(side.host),
                    How::Confirmed | How::Unconfirmed { .. } => {
                        // A side that is broken disconnects by itself, but reports what broke it.
                        side.left == Left::Disconnected
                    }
                    How::ByPeer | How::Rejected(_) | How::Broken(_) => true,
                    // No queue pair and no ID is used twice.
                    _ => false,
                };
                ensure!(possible, "how can {side:?} end so?");
                for outage in self.records.outages.iter().filter(|outage| outage.host == side.host) {
                    let outlives = side.since < outage.began && closed.at > outage.over + super::world::SLACK;
                    ensure!(!outlives, "{side:?} outlives its HCA: {outage:?}");
                }
            }
        }
        let Some(ended) = &side.ended else { return Ok(()) };
        let how = side.closed.as_ref().map(|closed| closed.how);
        let possible = match (ended, how) {
            (Ok(()), Some(How::ByPeer)) => true,
            (Err(RecvError::Gone), Some(How::DeviceGone)) => true,
            (Err(RecvError::Broken(status)), Some(How::Broken(of_end))) => *status == of_end,
            (
                Err(RecvError::Broken(_)),
                Some(How::Rejected(_) | How::Confirmed | How::Unconfirmed { .. }),
            ) => true,
            (Err(RecvError::Closed), Some(How::HcaClosed)) => true,
            (Err(RecvError::Closed), Some(_)) => side.left != Left::No || self.was_closed(side.host),
            (Err(RecvError::Broken(_)), None) => side.left != Left::No,
            (Err(RecvError::Closed), None) => side.left != Left::No,
            _ => false,
        };
        ensure!(possible, "receiving cannot end so: {side:?}");
        Ok(())
    }

    // What both programs saw of one connection.

    fn pair(&self, active: &Side, outcomes: &mut Outcomes) -> Verdict {
        let Some(passive) = self.peers(active).next() else {
            return self.half_open(active, outcomes);
        };
        ensure!(self.peers(active).count() == 1, "connected with several: {active:?}");
        outcomes.count("connections");
        ensure!(active.call == passive.call, "two calls in one connection: {active:?} {passive:?}");
        for (side, peer) in [(active, passive), (passive, active)] {
            self.messages(side, peer)?;
            self.parting(side, peer)?;
        }
        outcomes.add("messages", (active.received.len() + passive.received.len()) as u64);
        Ok(())
    }

    /// The passive side is established by the active side's RTU, data or DREQ.
    fn has_a_caller(&self, passive: &Side) -> Verdict {
        let known = passive.qpn.is_none() || self.peers(passive).count() == 1;
        ensure!(known, "connected with nobody: {passive:?}");
        Ok(())
    }

    /// The active side was established, the passive side was not: what it had accepted has failed.
    fn half_open(&self, active: &Side, outcomes: &mut Outcomes) -> Verdict {
        outcomes.count("connections half open");
        let answers = self.records.answers.iter().filter(|answered| Some(answered.peer_qpn) == active.qpn);
        let mut accepted =
            answers.filter(|answered| matches!(answered.came_to, Answer::Failed(_) | Answer::GaveUp));
        ensure!(accepted.next().is_some(), "connected with nobody: {active:?}");
        ensure!(active.received.is_empty(), "messages of nobody: {active:?}");
        Ok(())
    }

    fn messages(&self, sender: &Side, receiver: &Side) -> Verdict {
        let done = |number: &usize| matches!(sender.sent[*number], Fate::Done);
        let known = match receiver.ended {
            // All that has arrived was read.
            Some(_) => sender.sent.len(),
            None => receiver.received.last().map_or(0, |last| last + 1),
        };
        let lost = (0..known).filter(done).find(|number| !receiver.received.contains(number));
        ensure!(lost.is_none(), "message {} is lost: {sender:?} {receiver:?}", lost.unwrap_or_default());
        let refused = receiver.received.iter().find(|number| {
            matches!(sender.sent[**number], Fate::Failed(OpCause::Invalid(_) | OpCause::Device(_)))
        });
        ensure!(refused.is_none(), "message {refused:?} was not sent: {sender:?} {receiver:?}");
        Ok(())
    }

    /// What one is told of the other's farewell.
    fn parting(&self, side: &Side, peer: &Side) -> Verdict {
        let Some(closed) = &side.closed else { return Ok(()) };
        let data = &closed.data[..];
        let peer_failed = peer.closed.as_ref().is_some_and(|closed| matches!(closed.how, How::Broken(_)));
        match closed.how {
            How::ByPeer => {
                let gone = peer.left != Left::No || self.was_closed(peer.host) || peer_failed;
                ensure!(gone, "{side:?} says that its peer has disconnected, which did not: {peer:?}");
                let disconnected = peer.left != Left::No && data == content::parting(peer.call, peer.role);
                ensure!(data.is_empty() || disconnected, "what the DREQ said: {side:?} {peer:?}");
            }
            How::Confirmed => {
                let farewell = content::farewell(peer.call, peer.role);
                ensure!(data.is_empty() || data == farewell, "what the DREP said: {side:?}");
                let late = peer.closed.as_ref().is_some_and(|of_peer| of_peer.at > closed.at);
                ensure!(!late, "{side:?} has its confirmation before its peer knows: {peer:?}");
            }
            How::Rejected(_) => {
                let gone = peer.left == Left::Dropped || self.was_closed(peer.host) || peer.closed.is_some();
                ensure!(gone, "{side:?} is rejected by a peer that goes on: {peer:?}");
            }
            _ => {}
        }
        Ok(())
    }

    // Everything.

    /// Each message that a device has received was read or is counted as unread; nobody counts more than was sent.
    fn accounts(&self, outcomes: &mut Outcomes) -> Verdict {
        let (mut sent, mut received) = (0, 0);
        for host in 0..self.world.plan.hosts.len() {
            let hcas = self.world.hcas(host);
            let count = |name: &str| hcas.iter().map(|hca| hca.stats().get(name).unwrap_or(0)).sum::<u64>();
            let sides = self.records.sides.iter().filter(|side| side.host == host);
            let read: usize = sides.map(|side| side.received.len()).sum();
            let (arrived, unread) = (count("messages_received"), count("messages_unread"));
            let name = self.world.name(host);
            ensure!(
                arrived == read as u64 + unread,
                "{name}: {arrived} arrived, {read} read, {unread} unread"
            );
            sent += count("messages_sent");
            received += arrived;
            for counter in ["dropped_malformed", "stale", "foreign_source", "requests_malformed"] {
                ensure!(count(counter) == 0, "{name} counts {} {counter}", count(counter));
            }
            for counter in ["resent", "mras_sent", "repeated_answers"] {
                outcomes.add(format!("CM: {counter}"), count(counter));
            }
        }
        ensure!(sent <= received, "{sent} messages have arrived, {received} were received");
        Ok(())
    }

    /// Where nothing goes wrong, what was wanted has come.
    fn undisturbed(&self) -> Verdict {
        if !self.world.plan.is_undisturbed() {
            return Ok(());
        }
        for attempt in &self.records.attempts {
            let call = self.call(attempt.call);
            let listening = &self.world.plan.hosts[call.to];
            let thinking = call.answer.after + listening.pause * self.world.plan.calls.len() as u32;
            let in_time =
                thinking * 2 < call.deadline && call.max_cm_retries.is_none() && listening.backlog > 2;
            if call.gives_up.is_some() || call.answer.ignores > 0 || !in_time {
                continue;
            }
            let came = match (call.served, call.answer.what, &attempt.came_to) {
                (false, _, Attempted::Failed(ConnectError::Rejected(no))) => {
                    no.reason == RejReason::INVALID_SERVICE_ID
                }
                (true, Decision::Accept { gives_up: None, .. }, Attempted::Connected) => true,
                (true, Decision::Accept { gives_up: Some(_), .. }, _) => true,
                (true, Decision::Reject | Decision::Drop, Attempted::Failed(ConnectError::Rejected(no))) => {
                    no.reason == RejReason::CONSUMER
                }
                _ => false,
            };
            ensure!(came, "nothing went wrong, and yet {attempt:?} came of {call:?}");
        }
        Ok(())
    }
}

fn kind(error: &ConnectError) -> String {
    match error {
        ConnectError::Rejected(rejection) => format!("rejected, {}", rejection.reason),
        ConnectError::Unreachable { busy, .. } => format!("unreachable{}", if *busy { ", busy" } else { "" }),
        other => format!("{other:?}").split([' ', '(']).next().unwrap_or_default().to_owned(),
    }
}
