//! An unreliable connection: each packet is sent once, and a message that does not come in whole is lost
//! (spec/softhca.md 3.1).

use std::collections::VecDeque;

use ibdev::qp::{Rtr, Rts};
use ibdev::{DeviceEvent, SendFlags};
use ibwire::Psn;
use ibwire::packet::{Bth, Transport};

use super::memory::Rights;
use super::net::Ingress;
use super::peer::{Peer, PeerPath};
use super::place::Placement;
use super::post::Work;
use super::qp::State;
use super::receives::Receives;
use super::segment::{Message, Request, Segmentation};
use super::shared::{Shared, Side};

/// What makes a QP an unreliable connection. Known from RTR on are peer and path MTU.
#[derive(Debug, Default)]
pub(super) struct Uc {
    connected: Option<Connected>,
    /// Posted, and not all packets sent, oldest first.
    work: VecDeque<(Work, Message)>,
    /// How many packets of the first are sent.
    sent: u32,
    /// The PSN of the next packet.
    psn: Psn,
}

#[derive(Debug)]
struct Connected {
    peer: Peer,
    rights: Rights,
    segmentation: Segmentation,
    placement: Placement,
    /// The PSN that comes next if no packet is lost.
    expected: Psn,
    /// Whether COMM_EST was reported.
    established: bool,
}

impl Uc {
    pub(super) fn ready_to_receive(&mut self, rtr: &Rtr, path: PeerPath, rights: Rights, mtu: usize) {
        self.connected = Some(Connected {
            peer: Peer::new(rtr, path),
            rights,
            segmentation: Segmentation::new(Transport::UC, mtu, 1),
            placement: Placement::new(mtu),
            expected: rtr.rq_psn,
            established: false,
        });
    }

    pub(super) fn ready_to_send(&mut self, rts: &Rts) {
        self.psn = rts.sq_psn;
    }

    pub(super) fn post(&mut self, work: Work, request: Request) {
        if let Some(Connected { segmentation, .. }) = &self.connected {
            let message = segmentation.message(request, work.message_len());
            self.work.push_back((work, message));
        }
    }

    /// Takes the oldest work request that is not complete.
    pub(super) fn pop(&mut self) -> Option<Work> {
        self.sent = 0;
        self.work.pop_front().map(|(work, _)| work)
    }

    /// Whether a packet may go out now.
    pub(super) fn can_send(&self, state: State) -> bool {
        state.sends() && !self.work.is_empty() && (self.sent > 0 || !state.drains())
    }

    /// Whether no message is half out.
    pub(super) fn is_drained(&self) -> bool {
        self.sent == 0
    }

    /// Appends the next packet to `out` and returns its length. A work request is complete with its last one.
    pub(super) fn poll_transmit(
        &mut self,
        state: State,
        side: &mut Side,
        out: &mut Vec<u8>,
        shared: &mut Shared,
    ) -> Option<usize> {
        if !self.can_send(state) {
            return None;
        }
        let Connected { peer, segmentation, .. } = self.connected.as_ref()?;
        let (work, message) = self.work.front()?;
        let segment = segmentation.segment(message, self.sent);
        let bth = Bth {
            solicited: segment.completes && work.flags.contains(SendFlags::SOLICITED),
            ..peer.bth(segment.opcode, self.psn)
        };
        let len = segment.write(out, bth, &work.sg);
        shared.destination = peer.path.destination();
        self.psn = self.psn.offset(1);
        self.sent += 1;
        if segment.last
            && let Some(work) = self.pop()
        {
            work.succeed(0, side, shared);
        }
        Some(len)
    }

    /// The rest of a message that is half out is lost before it is made. How many packets; the work request is complete.
    pub(super) fn lose_rest(&mut self, side: &mut Side, shared: &mut Shared) -> u32 {
        let Some((_, message)) = self.work.front().filter(|_| self.sent > 0) else { return 0 };
        let packets = message.packets - self.sent;
        self.psn = self.psn.offset(packets);
        if let Some(work) = self.pop() {
            work.succeed(0, side, shared);
        }
        packets
    }

    /// Handles a packet for this QP. It is never answered, and fails nothing. How many of those behind it were handled with it.
    pub(super) fn handle_packet(
        &mut self,
        state: State,
        ingress: &Ingress<'_>,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
    ) -> u32 {
        let receives_now = state == State::ReadyToReceive || state.sends();
        let Some(connected) = self.connected.as_mut().filter(|_| receives_now) else {
            shared.counters.drop_state += 1;
            return 0;
        };
        if !connected.peer.lets_in(ingress, shared) {
            return 0;
        }
        connected.place(state, ingress, receives, side, shared);
        connected.place_middles(ingress, receives, shared)
    }
}

impl Connected {
    /// A packet out of sequence, or one that begins a message in the middle of another, is the end of what came before: the
    /// next packet that begins a message is where things go on.
    fn place(
        &mut self,
        state: State,
        ingress: &Ingress<'_>,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
    ) {
        let packet = ingress.packet;
        let (psn, opcode) = (packet.bth().psn, packet.bth().opcode);
        let starts = opcode.is_first() || opcode.is_only();
        let is_gap = psn != self.expected;
        self.expected = psn.offset(1);
        if is_gap || starts {
            self.abandon(shared);
        }
        if is_gap && !starts {
            shared.counters.drop_out_of_sequence += 1;
            return;
        }
        let limit = shared.device.max_message;
        let placed = match self.placement.check(packet, self.rights.access, limit) {
            Ok(()) => {
                if state == State::ReadyToReceive && !self.established {
                    self.established = true;
                    shared.device_event(DeviceEvent::CommEstablished(side.qpn));
                }
                self.placement.place(packet, self.rights, receives, side, shared).map(drop)
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = placed {
            refusal.count(&mut shared.counters);
            self.abandon(shared);
        }
    }

    /// Places packets from the middle of the message that is half in, which came behind one of it, if they are the expected
    /// ones. How many.
    fn place_middles(&mut self, ingress: &Ingress<'_>, receives: &mut Receives, shared: &mut Shared) -> u32 {
        if ingress.next_psn() != self.expected {
            return 0;
        }
        let placed = self.placement.place_middles(ingress, self.rights, receives, shared).count();
        self.expected = self.expected.offset(placed);
        placed
    }

    /// Gives up a message that is half in. The receive of a SEND waits for the next one.
    fn abandon(&mut self, shared: &mut Shared) {
        if !self.placement.is_idle() {
            shared.counters.uc_abandoned += 1;
            self.placement.abandon();
        }
    }
}
