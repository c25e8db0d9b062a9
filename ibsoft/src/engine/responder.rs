//! The receiving half of a reliable connection: order, execution, answers (spec/softhca.md 2.4 to 2.6).
//!
//! SEND is built. WRITE, READ, atomics and invalidation are answered as by a QP that allows none of them.

use std::collections::VecDeque;

use ibdev::qp::Rtr;
use ibdev::{CompletionOp, RecvWr, Status};
use ibwire::packet::{Aeth, NakCode, Opcode, Operation, Syndrome, SyndromeKind, TransportPacket};
use ibwire::{Msn, Psn, RnrTimer};

use super::net::write_header;
use super::rc::Peer;
use super::sg;
use super::shared::{Arrival, Shared, Side};

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

/// An answer that waits for its packet.
#[derive(Debug, Clone, Copy)]
struct Answer {
    psn: Psn,
    aeth: Aeth,
}

/// The request broke the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Broken {
    /// How the receive that was in use ends, if one did.
    pub(super) receive: Option<Status>,
}

#[derive(Debug)]
pub(super) struct Responder {
    /// The PSN that comes next.
    expected: Psn,
    /// How many messages were executed.
    msn: Msn,
    /// Bytes of an unfinished message that lie in the first posted receive.
    placed: Option<usize>,
    told: Told,
    /// The newest NAK that has not left. It acknowledges what lies before it.
    nak: Option<Answer>,
    /// Whether an acknowledgement waits; it leaves behind the NAK. It names the newest request that was executed when
    /// it leaves, so however many requests a batch of packets brings, one answer is enough.
    ack: bool,
    rnr_timer: RnrTimer,
    mtu: usize,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            expected: Psn::default(),
            msn: Msn::default(),
            placed: None,
            told: Told::Nothing,
            nak: None,
            ack: false,
            rnr_timer: RnrTimer::default(),
            mtu: 0,
        }
    }

    pub(super) fn start(&mut self, rtr: &Rtr, mtu: usize) {
        *self = Self { expected: rtr.rq_psn, rnr_timer: rtr.min_rnr_timer, mtu, ..Self::new() };
    }

    /// The path MTU in bytes.
    pub(super) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Whether an answer waits.
    pub(super) fn can_send(&self) -> bool {
        self.nak.is_some() || self.ack
    }

    /// Appends the next answer to `out` and returns its length.
    pub(super) fn next_packet(
        &mut self,
        out: &mut Vec<u8>,
        peer: &Peer,
        shared: &mut Shared,
    ) -> Option<usize> {
        let Answer { psn, aeth } = match self.nak.take() {
            Some(nak) => nak,
            None if std::mem::take(&mut self.ack) => {
                Answer { psn: self.expected.prev(), aeth: Aeth::new(Syndrome::ACK, self.msn) }
            }
            None => return None,
        };
        let counters = &mut shared.counters;
        *match aeth.syndrome.kind() {
            SyndromeKind::Rnr(_) => &mut counters.rnr_naks_sent,
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => &mut counters.sequence_naks_sent,
            SyndromeKind::Nak(_) => &mut counters.fatal_naks_sent,
            _ => &mut counters.acks_sent,
        } += 1;
        Some(write_header(out, peer.bth(Opcode::RC_ACKNOWLEDGE, psn), &[&aeth.to_bytes()]))
    }

    /// Handles a request. `established` is called when it is the expected one and of the right kind.
    ///
    /// # Errors
    /// The request ends the connection; the NAK that says so waits to be sent.
    pub(super) fn handle(
        &mut self,
        packet: &TransportPacket<'_>,
        receives: &mut VecDeque<RecvWr>,
        side: &Side,
        shared: &mut Shared,
        established: impl FnOnce(&mut Shared),
    ) -> Result<(), Broken> {
        let bth = packet.bth();
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
                shared.counters.drop_duplicate += 1;
                self.ack |= bth.ack_req && is_acknowledged(bth.opcode.operation());
                return Ok(());
            }
        }

        let len = packet.payload().len();
        if !self.is_in_order(bth.opcode, len) {
            return Err(self.break_with(None, shared));
        }
        established(shared);
        let Some(receive) = receives.front_mut() else {
            shared.counters.drop_rnr += 1;
            self.told = Told::NotReady;
            self.refuse(Syndrome::rnr(self.rnr_timer));
            return Ok(());
        };
        let start = self.placed.unwrap_or(0);
        let end = start + len;
        if !sg::scatter(&mut receive.sg, start, packet.payload()) {
            return Err(self.break_with(Some(Status::LOC_LEN_ERR), shared));
        }

        if bth.opcode.is_last() || bth.opcode.is_only() {
            self.placed = None;
            self.msn = self.msn.offset(1);
            if let Some(RecvWr { id, mut sg }) = receives.pop_front() {
                sg::set_filled(&mut sg, end);
                let imm = packet.immdt().map(|imm| imm.to_u32());
                let arrival = Arrival { op: CompletionOp::Recv, len: end as u32, imm, from: None };
                side.complete(shared, id, sg, Status::SUCCESS, arrival);
            }
        } else {
            self.placed = Some(end);
        }
        self.expected = self.expected.offset(1);
        self.told = Told::Nothing;
        self.ack |= bth.ack_req;
        Ok(())
    }

    /// Whether a packet with this opcode and payload may come now.
    fn is_in_order(&self, opcode: Opcode, len: usize) -> bool {
        let starts = opcode.is_first() || opcode.is_only();
        let fits = match opcode.operation() {
            Operation::SEND_FIRST | Operation::SEND_MIDDLE => len == self.mtu,
            Operation::SEND_LAST | Operation::SEND_LAST_WITH_IMM => (1..=self.mtu).contains(&len),
            Operation::SEND_ONLY | Operation::SEND_ONLY_WITH_IMM => len <= self.mtu,
            _ => false,
        };
        fits && starts == self.placed.is_none()
    }

    /// Refuses the expected packet. A NAK acknowledges all before it, so a waiting ACK has nothing to add.
    fn refuse(&mut self, syndrome: Syndrome) {
        self.ack = false;
        self.nak = Some(Answer { psn: self.expected, aeth: Aeth::new(syndrome, self.msn) });
    }

    fn break_with(&mut self, receive: Option<Status>, shared: &mut Shared) -> Broken {
        shared.counters.drop_invalid_request += 1;
        self.refuse(Syndrome::nak(NakCode::INVALID_REQUEST));
        Broken { receive }
    }
}

/// Whether requests of this kind are answered with an acknowledgement rather than a response of their own.
fn is_acknowledged(operation: Operation) -> bool {
    operation < Operation::RDMA_READ_REQUEST
        || operation == Operation::SEND_LAST_WITH_INVALIDATE
        || operation == Operation::SEND_ONLY_WITH_INVALIDATE
}
