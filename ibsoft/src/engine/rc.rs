//! A reliable connection: two halves and the peer they talk to.

use std::time::Instant;

use ibdev::qp::{Rtr, Rts};
use ibdev::{DeviceEvent, Status};
use ibwire::Qpn;

use super::memory::Rights;
use super::migration::Verdict;
use super::net::{Ingress, Run};
use super::peer::{Peer, PeerPath};
use super::qp::{Failure, State};
use super::receives::Receives;
use super::requester::Requester;
use super::responder::Responder;
use super::shared::{Shared, Side};

/// What makes a QP a reliable connection.
#[derive(Debug)]
pub(super) struct Rc {
    /// Known from RTR on.
    pub(super) peer: Option<Peer>,
    /// Whether COMM_EST was reported in this RTR.
    established: bool,
    /// When its last packet came.
    pub(super) heard: Option<Instant>,
    /// A request has left before the acknowledgement that waits.
    ack_stands_back: bool,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
}

impl Rc {
    pub(super) fn new() -> Self {
        Self {
            peer: None,
            established: false,
            heard: None,
            ack_stands_back: false,
            requester: Requester::new(),
            responder: Responder::new(),
        }
    }

    pub(super) fn ready_to_receive(&mut self, rtr: &Rtr, path: PeerPath, rights: Rights, mtu: usize) {
        self.peer = Some(Peer::new(rtr, path));
        self.responder.start(rtr, rights, mtu);
    }

    pub(super) fn ready_to_send(&mut self, rts: &Rts, shared: &Shared) {
        let mtu = self.responder.mtu();
        self.requester.start(rts, mtu, shared.window(mtu));
    }

    /// Whether a packet may go out now.
    pub(super) fn can_send(&self, state: State) -> bool {
        self.responder.can_send() || state.sends() && self.requester.can_send(state.drains())
    }

    /// Appends the next packet to `out` and returns its length: answers first, but an acknowledgement lets one request go before it. Shorter than
    /// that, it can leave in the same call of the link. What was asked before a request that has failed the QP is still
    /// answered, and so is that request.
    ///
    /// # Errors
    /// A request of the peer cannot be answered and fails the QP; its NAK waits to be sent.
    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        state: State,
        side: &Side,
        out: &mut Vec<u8>,
        shared: &mut Shared,
    ) -> Result<Option<usize>, Failure> {
        let Some(peer) = self.peer.as_ref() else { return Ok(None) };
        self.ack_stands_back = !self.ack_stands_back && self.responder.only_acknowledges();
        let mut len = None;
        if !self.ack_stands_back {
            len = self.responder.next_packet(out, peer, shared)?;
        }
        if len.is_none() && state.sends() {
            len = self.requester.next_packet(now, state.drains(), out, peer, shared);
            self.arm(side, shared);
        }
        if len.is_none() && self.ack_stands_back {
            self.ack_stands_back = false;
            len = self.responder.next_packet(out, peer, shared)?;
        }
        shared.destination = peer.path.destination();
        Ok(len)
    }

    /// Appends packets that follow the last one in its message and are as long. How many. What was sent last is in the middle
    /// of an answer if one waits, and of a request if none does.
    pub(super) fn go_on(&mut self, state: State, out: &mut Vec<u8>, run: Run, shared: &mut Shared) -> u32 {
        let Some(peer) = self.peer.as_ref() else { return 0 };
        if self.responder.can_send() {
            self.responder.go_on(out, run, peer, shared)
        } else if state.sends() {
            self.requester.go_on(out, run, peer, shared)
        } else {
            0
        }
    }

    /// Handles a packet for this QP. How many of those behind it were handled with it.
    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        state: State,
        ingress: &Ingress<'_>,
        receives: &mut Receives,
        (sq, rq): (&mut Side, &Side),
        shared: &mut Shared,
    ) -> Result<u32, Failure> {
        let packet = ingress.packet;
        let bth = packet.bth();
        let takes = match state {
            State::ReadyToReceive => !bth.opcode.is_response(),
            state if state.sends() => true,
            _ => false,
        };
        let Some(peer) = self.peer.as_mut().filter(|_| takes) else {
            shared.counters.drop_state += 1;
            return Ok(0);
        };
        if peer.alternate.is_some() {
            match peer.watch(ingress, rq.qpn, shared) {
                Verdict::Pass => {}
                Verdict::Migrate => self.migrate(rq.qpn, shared),
                Verdict::Drop => return Ok(0),
            }
        }
        if !self.peer.as_ref().is_some_and(|peer| peer.lets_in(ingress, shared)) {
            return Ok(0);
        }
        self.heard = Some(now);
        // With an alternate path each packet may be the one that comes by it. One that has come before says nothing of those
        // behind it: most of it is not looked at.
        let is_new = match bth.opcode.is_response() {
            true => ingress.next_psn() != self.requester.una(),
            false => ingress.next_psn() != self.responder.expected(),
        };
        let goes_on = is_new && self.peer.as_ref().is_some_and(|peer| peer.alternate.is_none());
        if bth.opcode.is_response() {
            let result = self.requester.handle(now, packet, sq, shared);
            let result = self.or_migrate(result, sq.qpn, shared);
            let behind = match goes_on && result.is_ok() {
                true => self.requester.take_middles(now, ingress, sq, shared),
                false => 0,
            };
            self.arm(sq, shared);
            return result.map(|()| behind).map_err(Failure::Send);
        }
        let first = state == State::ReadyToReceive && !self.established;
        let established = &mut self.established;
        self.responder.handle(packet, receives, rq, shared, |shared| {
            if first {
                *established = true;
                shared.device_event(DeviceEvent::CommEstablished(rq.qpn));
            }
        })?;
        Ok(if goes_on { self.responder.take_middles(ingress, receives, shared) } else { 0 })
    }

    /// Sees to it that the QP comes up when the requester wants it.
    fn arm(&self, side: &Side, shared: &mut Shared) {
        if let Some(at) = self.requester.deadline() {
            shared.timers.arm(side.slot, at);
        }
    }

    /// To be called when the QP's timer comes up, be it early.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        side: &Side,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        let result = self.requester.handle_timeout(now, shared);
        self.or_migrate(result, side.qpn, shared)?;
        self.arm(side, shared);
        Ok(())
    }

    /// Whether the migration state is ARMED.
    pub(super) fn is_armed(&self) -> bool {
        self.peer
            .as_ref()
            .and_then(|peer| peer.alternate.as_ref())
            .is_some_and(|alternate| alternate.is_armed())
    }

    /// A path on which the retries are used up is left, if there is another one.
    fn or_migrate(
        &mut self,
        result: Result<(), Status>,
        qpn: Qpn,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        match result {
            Err(Status::RETRY_EXC_ERR) if self.is_armed() && !self.requester.is_refused() => {
                self.migrate(qpn, shared);
                Ok(())
            }
            result => result,
        }
    }
}
