//! The receiving half of a reliable connection: order, execution, answers (spec/softhca.md 2.4 to 2.6).
//!
//! Where the sheet leaves a choice:
//! - A READ that is asked for again from its middle is answered like a READ of that rest: FIRST, MIDDLE, LAST.
//! - A READ beyond the resources that were agreed is an invalid request. Those that were answered once count no more,
//!   whether the peer has the answer or asks again.
//! - SEND with invalidate: this device has no keys that can be invalidated. The receive completes in error, the QP
//!   fails, and no NAK says so.
//! - A READ that was answered once and whose memory is gone when the peer asks again is met with silence, because its
//!   peer may have the answer; before that it is refused.
//! - An ACK that waits when a READ or an atomic is executed never leaves: the response acknowledges all before it.

use std::sync::atomic::Ordering;

use ibdev::qp::Rtr;
use ibdev::{Access, Status};
use ibwire::packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, NakCode, Opcode, Operation, Reth, Syndrome, SyndromeKind, Transport,
    TransportPacket,
};
use ibwire::{Msn, Psn, RnrTimer};

use super::memory::{Rights, Unreachable};
use super::net::{Ingress, Run, write_header, write_packet};
use super::peer::Peer;
use super::place::{Placement, Refusal};
use super::qp::{Blame, Failure};
use super::receives::Receives;
use super::responses::{Asked, Response, Responses};
use super::shared::{Shared, Side};

/// Why packets ahead of the expected one are met with silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// They are not: the first gets a sequence NAK.
    Nothing,
    /// A sequence NAK went out.
    Gap,
    /// An RNR NAK went out.
    NotReady,
}

/// A NAK that waits for its packet.
#[derive(Debug, Clone, Copy)]
struct Nak {
    psn: Psn,
    aeth: Aeth,
}

#[derive(Debug)]
pub(super) struct Responder {
    /// The PSN that comes next.
    expected: Psn,
    /// How many messages were executed.
    msn: Msn,
    /// The newest PSN that is acknowledged by an ACK: of a SEND or a WRITE.
    acked: Psn,
    placement: Placement,
    responses: Responses,
    told: Told,
    /// The newest NAK that has not left. It acknowledges what lies before it.
    nak: Option<Nak>,
    /// Whether an acknowledgement waits; it leaves behind everything else. It names the newest request that was executed
    /// when it leaves, so however many requests a batch of packets brings, one answer is enough.
    ack: bool,
    rights: Rights,
    rnr_timer: RnrTimer,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            expected: Psn::default(),
            msn: Msn::default(),
            acked: Psn::default(),
            placement: Placement::default(),
            responses: Responses::default(),
            told: Told::Nothing,
            nak: None,
            ack: false,
            rights: Rights::default(),
            rnr_timer: RnrTimer::default(),
        }
    }

    pub(super) fn start(&mut self, rtr: &Rtr, rights: Rights, mtu: usize) {
        *self = Self {
            expected: rtr.rq_psn,
            acked: rtr.rq_psn.prev(),
            placement: Placement::new(mtu),
            responses: Responses::new(rtr.max_dest_rd_atomic),
            rights,
            rnr_timer: rtr.min_rnr_timer,
            ..Self::new()
        };
    }

    /// The path MTU in bytes.
    pub(super) fn mtu(&self) -> usize {
        self.placement.mtu()
    }

    /// The PSN of the next request.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Whether an answer waits.
    pub(super) fn can_send(&self) -> bool {
        self.nak.is_some() || self.ack || self.responses.head().is_some()
    }

    /// Whether nothing but an acknowledgement waits.
    pub(super) fn only_acknowledges(&self) -> bool {
        self.ack && self.nak.is_none() && self.responses.head().is_none()
    }

    /// The QP has failed, or was made to, for another reason than a request: no memory is read any more, and what would
    /// stand behind those answers is not sent.
    pub(super) fn stop(&mut self) {
        if self.responses.head().is_some() {
            (self.nak, self.ack) = (None, false);
        }
        self.responses.stop();
    }

    /// Appends the next answer to `out` and returns its length. Answers leave in the order of their PSNs.
    ///
    /// # Errors
    /// Memory that is being read is not the peer's any more; the NAK that says so waits to be sent.
    pub(super) fn next_packet(
        &mut self,
        out: &mut Vec<u8>,
        peer: &Peer,
        shared: &mut Shared,
    ) -> Result<Option<usize>, Failure> {
        while let Some(response) = self.responses.head().copied() {
            if self.nak.is_some_and(|nak| nak.psn.distance(response.psn()) <= 0) {
                break;
            }
            if let Ok(len) = respond(&response, self.rights, self.mtu(), out, peer, shared) {
                self.responses.advance(1);
                return Ok(Some(len));
            }
            shared.counters.read_faults += 1;
            if !self.responses.skip() {
                let (psn, msn) = (response.psn(), response.msn.offset(Msn::MAX.get()));
                self.stop();
                let aeth = Aeth::new(Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR), msn);
                self.nak = Some(Nak { psn, aeth });
                return Err(Failure::Request { receive: None, blame: Blame::Access });
            }
        }
        let counters = &mut shared.counters;
        let (psn, aeth) = match self.nak.take() {
            Some(Nak { psn, aeth }) => {
                *match aeth.syndrome.kind() {
                    SyndromeKind::Rnr(_) => &mut counters.rnr_naks_sent,
                    SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => &mut counters.sequence_naks_sent,
                    _ => &mut counters.fatal_naks_sent,
                } += 1;
                (psn, aeth)
            }
            None if std::mem::take(&mut self.ack) => {
                counters.acks_sent += 1;
                (self.acked, Aeth::new(Syndrome::ACK, self.msn))
            }
            None => return Ok(None),
        };
        Ok(Some(write_header(out, peer.bth(Opcode::RC_ACKNOWLEDGE, psn), &[&aeth.to_bytes()])))
    }

    /// Appends packets from the middle of the READ response of which a packet has just left, as long as that. How many.
    pub(super) fn go_on(&mut self, out: &mut Vec<u8>, run: Run, peer: &Peer, shared: &mut Shared) -> u32 {
        let mtu = self.mtu();
        let Some(response) = self.responses.head() else { return 0 };
        let (Asked::Read(reth), (false, false)) = (response.asked, response.place()) else { return 0 };
        let all = reth.len as usize;
        let Rights { domain, .. } = self.rights;
        let memory = shared.memory.reach(domain, reth.rkey, Access::REMOTE_READ, reth.va, all);
        let (Ok((memory, at)), true) = (memory, run.len == Bth::LEN + mtu) else { return 0 };
        let before_nak = self.nak.map_or(i32::MAX, |nak| nak.psn.distance(response.psn()));
        let packets = run.most.min(response.middles()).min(before_nak.max(0) as u32);
        let start = at + response.index() as usize * mtu;
        let bth = peer.bth(Opcode::new(Transport::RC, Operation::RDMA_READ_RESPONSE_MIDDLE), response.psn());
        run.write(out, bth, packets, |out, k| {
            let from = out.len();
            out.resize(from + mtu, 0);
            // Inside, because the whole message is.
            _ = memory.copy_to(start + k as usize * mtu, &mut out[from..]);
        });
        shared.counters.read_responses_sent += u64::from(packets);
        self.responses.advance(packets);
        packets
    }

    /// What is left of an answer is lost before it is made. How many packets; the peer asks again.
    pub(super) fn lose_rest(&mut self) -> u32 {
        let packets = self.responses.head().map_or(0, |response| response.middles() + 1);
        self.responses.advance(packets);
        packets
    }

    /// Handles a request. `established` is called when it is the expected one and of the right kind.
    ///
    /// # Errors
    /// The request ends the connection; the NAK that says so waits to be sent.
    pub(super) fn handle(
        &mut self,
        packet: &TransportPacket<'_>,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
        established: impl FnOnce(&mut Shared),
    ) -> Result<(), Failure> {
        let bth = packet.bth();
        if bth.opcode == Opcode::RC_ATOMIC_WRITE {
            // As what has no name here, such as FLUSH (spec/softhca.md 5.1).
            shared.counters.drop_opcode += 1;
            return Ok(());
        }
        match bth.psn.distance(self.expected) {
            0 => {}
            1.. => {
                shared.counters.drop_out_of_sequence += 1;
                if self.told == Told::Nothing {
                    self.told = Told::Gap;
                    self.refuse(Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
                }
                return Ok(());
            }
            _ => {
                self.handle_duplicate(packet, shared);
                return Ok(());
            }
        }
        match self.execute(packet, receives, side, shared, established) {
            Ok(()) => {
                self.told = Told::Nothing;
                Ok(())
            }
            Err(refusal) => {
                refusal.count(&mut shared.counters);
                self.handle_refusal(refusal)
            }
        }
    }

    /// Takes packets from the middle of the message that is coming in, which came behind one of it, if they are the expected
    /// ones. How many.
    pub(super) fn take_middles(
        &mut self,
        ingress: &Ingress<'_>,
        receives: &mut Receives,
        shared: &mut Shared,
    ) -> u32 {
        if ingress.next_psn() != self.expected {
            return 0;
        }
        let middles = self.placement.place_middles(ingress, self.rights, receives, shared);
        let taken = middles.count();
        if taken > 0 {
            self.expected = self.expected.offset(taken);
            self.acked = self.expected.prev();
            self.ack |= middles.ask();
            self.told = Told::Nothing;
        }
        taken
    }

    /// Answers again what was executed before.
    fn handle_duplicate(&mut self, packet: &TransportPacket<'_>, shared: &mut Shared) {
        let bth = packet.bth();
        let is_answered = match (packet.reth(), packet.atomic_eth()) {
            (Some(reth), _) if bth.opcode == Opcode::RC_RDMA_READ_REQUEST => {
                if let Err(cause) = self.reach(&reth, shared) {
                    cause.count(&mut shared.counters);
                    return;
                }
                self.responses.read_again(bth.psn, reth, self.mtu())
            }
            (_, Some(_)) => self.responses.atomic_again(bth.psn, bth.opcode.operation()),
            _ => {
                self.ack |= bth.ack_req;
                shared.counters.drop_duplicate += 1;
                return;
            }
        };
        let counters = &mut shared.counters;
        *if is_answered { &mut counters.replayed } else { &mut counters.drop_forgotten } += 1;
    }

    /// Carries out the expected request, after the checks of spec/softhca.md 2.5 in their order.
    fn execute(
        &mut self,
        packet: &TransportPacket<'_>,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
        established: impl FnOnce(&mut Shared),
    ) -> Result<(), Refusal> {
        let limit = shared.device.max_message;
        let Rights { access, .. } = self.rights;
        match (packet.reth(), packet.atomic_eth()) {
            (Some(reth), _) if packet.bth().opcode == Opcode::RC_RDMA_READ_REQUEST => {
                let fits = reth.len <= limit;
                self.check_single(packet, access.contains(Access::REMOTE_READ), fits)?;
                established(shared);
                self.read(reth, shared)
            }
            (_, Some(atomic)) => {
                self.check_single(packet, access.contains(Access::REMOTE_ATOMIC), true)?;
                established(shared);
                self.atomic(packet.bth().opcode.operation(), &atomic, shared)
            }
            _ => {
                self.placement.check(packet, access, limit)?;
                established(shared);
                let ends = self.placement.place(packet, self.rights, receives, side, shared)?;
                self.msn = self.msn.offset(u32::from(ends));
                self.acked = self.expected;
                self.expected = self.expected.offset(1);
                self.ack |= packet.bth().ack_req;
                Ok(())
            }
        }
    }

    /// The checks of requests that are one packet without payload.
    fn check_single(
        &self,
        packet: &TransportPacket<'_>,
        is_allowed: bool,
        fits: bool,
    ) -> Result<(), Refusal> {
        if !self.placement.is_idle() {
            return Err(Refusal::Sequence);
        }
        if !is_allowed {
            return Err(Refusal::NotAllowed);
        }
        if !fits || !packet.payload().is_empty() {
            return Err(Refusal::Length);
        }
        self.responses.room()
    }

    fn read(&mut self, reth: Reth, shared: &Shared) -> Result<(), Refusal> {
        self.reach(&reth, shared)?;
        let packets = (reth.len as usize).div_ceil(self.mtu()).max(1) as u32;
        self.executed(packets, Asked::Read(reth));
        Ok(())
    }

    /// Whether the peer may read this memory. None needs no right.
    fn reach(&self, reth: &Reth, shared: &Shared) -> Result<(), Unreachable> {
        let Reth { va, rkey, len } = *reth;
        if len > 0 {
            shared.memory.reach(self.rights.domain, rkey, Access::REMOTE_READ, va, len as usize)?;
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        operation: Operation,
        atomic: &AtomicEth,
        shared: &mut Shared,
    ) -> Result<(), Refusal> {
        let &AtomicEth { va, rkey, swap_or_add, compare } = atomic;
        let (memory, at) =
            shared.memory.reach(self.rights.domain, rkey, Access::REMOTE_ATOMIC, va, size_of::<u64>())?;
        let word = memory.atomic(at).map_err(|_| Refusal::Unaligned)?;
        let original = if operation == Operation::FETCH_ADD {
            word.fetch_add(swap_or_add, Ordering::AcqRel)
        } else {
            let swapped = word.compare_exchange(compare, swap_or_add, Ordering::AcqRel, Ordering::Acquire);
            swapped.unwrap_or_else(|found| found)
        };
        self.executed(1, Asked::Atomic { operation, original });
        Ok(())
    }

    /// A request was executed that is answered by more than an ACK.
    fn executed(&mut self, packets: u32, asked: Asked) {
        self.msn = self.msn.offset(1);
        self.responses.add(self.expected, packets, self.msn, asked);
        self.expected = self.expected.offset(packets);
        self.ack = false;
    }

    /// What follows from a request that is not carried out (spec/softhca.md 2.5, 2.10).
    fn handle_refusal(&mut self, refusal: Refusal) -> Result<(), Failure> {
        let (nak, receive, blame) = match refusal {
            Refusal::NoReceive => {
                self.told = Told::NotReady;
                self.refuse(Syndrome::rnr(self.rnr_timer));
                return Ok(());
            }
            Refusal::Memory(_) => (Some(NakCode::REMOTE_ACCESS_ERROR), None, Blame::Access),
            Refusal::TooLong => (Some(NakCode::INVALID_REQUEST), Some(Status::LOC_LEN_ERR), Blame::Request),
            Refusal::Invalidate => (None, Some(Status::REM_INV_REQ_ERR), Blame::Request),
            Refusal::Sequence
            | Refusal::NotAllowed
            | Refusal::Length
            | Refusal::Resources
            | Refusal::Unaligned => (Some(NakCode::INVALID_REQUEST), None, Blame::Request),
        };
        if let Some(code) = nak {
            self.refuse(Syndrome::nak(code));
        }
        Err(Failure::Request { receive, blame })
    }

    /// Refuses the expected packet. A NAK acknowledges all before it, so a waiting ACK has nothing to add.
    fn refuse(&mut self, syndrome: Syndrome) {
        self.ack = false;
        self.nak = Some(Nak { psn: self.expected, aeth: Aeth::new(syndrome, self.msn) });
    }
}

/// Appends a packet of a response to `out` and returns its length.
fn respond(
    response: &Response,
    rights: Rights,
    mtu: usize,
    out: &mut Vec<u8>,
    peer: &Peer,
    shared: &mut Shared,
) -> Result<usize, Unreachable> {
    let aeth = Aeth::new(Syndrome::ACK, response.msn).to_bytes();
    let bth = |operation| peer.bth(Opcode::new(Transport::RC, operation), response.psn());
    let reth = match response.asked {
        Asked::Atomic { original, .. } => {
            shared.counters.atomic_acks_sent += 1;
            let original = AtomicAckEth { original }.to_bytes();
            return Ok(write_header(out, bth(Operation::ATOMIC_ACKNOWLEDGE), &[&aeth, &original]));
        }
        Asked::Read(reth) => reth,
    };
    let (operation, headers) = match response.place() {
        (true, true) => (Operation::RDMA_READ_RESPONSE_ONLY, &[&aeth[..]][..]),
        (true, false) => (Operation::RDMA_READ_RESPONSE_FIRST, &[&aeth[..]][..]),
        (false, false) => (Operation::RDMA_READ_RESPONSE_MIDDLE, &[][..]),
        (false, true) => (Operation::RDMA_READ_RESPONSE_LAST, &[&aeth[..]][..]),
    };
    let (start, all) = (response.index() as usize * mtu, reth.len as usize);
    if all == 0 {
        shared.counters.read_responses_sent += 1;
        return Ok(write_header(out, bth(operation), headers));
    }
    let (memory, at) = shared.memory.reach(rights.domain, reth.rkey, Access::REMOTE_READ, reth.va, all)?;
    shared.counters.read_responses_sent += 1;
    let len = mtu.min(all - start);
    Ok(write_packet(out, bth(operation), headers, len, |out| {
        let from = out.len();
        out.resize(from + len, 0);
        // Inside, because the whole message is.
        _ = memory.copy_to(at + start, &mut out[from..]);
    }))
}
