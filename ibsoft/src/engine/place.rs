//! Where the packets of SEND and WRITE go: into receives and into exposed memory (spec/softhca.md 2.2, 2.5).
//!
//! The same for both connected transports. What follows from a packet that is refused differs: see [`Refusal`].

use ibdev::{Access, CompletionOp, RecvWr, Status};
use ibwire::packet::{Opcode, Operation, Reth, TransportPacket};

use super::arrival::Middles;
use super::counters::Counters;
use super::memory::{Rights, Unreachable};
use super::net::Ingress;
use super::receives::Receives;
use super::sg;
use super::shared::{Arrival, Shared, Side};

/// Why a request is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// This opcode cannot come now.
    Sequence,
    /// The QP does not allow it.
    NotAllowed,
    /// Packet, path MTU and message do not fit.
    Length,
    /// More READs and atomics at once than agreed.
    Resources,
    /// No receive is posted. Nothing has happened: the same packet may come again.
    NoReceive,
    /// The memory is not the peer's.
    Memory(Unreachable),
    /// An atomic that is not on a multiple of 8.
    Unaligned,
    /// The message is longer than the receive that it is placed into.
    TooLong,
    /// The key that the message wants invalidated cannot be: this device has none that can.
    Invalidate,
}

impl From<Unreachable> for Refusal {
    fn from(cause: Unreachable) -> Self {
        Self::Memory(cause)
    }
}

impl Refusal {
    /// Counts the packet as dropped for this reason.
    pub(super) fn count(self, counters: &mut Counters) {
        *match self {
            Self::Sequence => &mut counters.drop_opcode_sequence,
            Self::NotAllowed => &mut counters.drop_not_allowed,
            Self::Length => &mut counters.drop_length,
            Self::Resources => &mut counters.drop_resources,
            Self::NoReceive => &mut counters.drop_rnr,
            Self::Memory(cause) => return cause.count(counters),
            Self::Unaligned => &mut counters.drop_unaligned,
            Self::TooLong => &mut counters.drop_too_long,
            Self::Invalidate => &mut counters.drop_invalidate,
        } += 1;
    }
}

/// A message of several packets, between them.
#[derive(Debug, Clone, Copy)]
enum Message {
    Send { placed: usize },
    Write { reth: Reth, placed: u32 },
}

/// The SENDs and WRITEs of a connection's peer, one after the other.
#[derive(Debug, Default)]
pub(super) struct Placement {
    message: Option<Message>,
    /// The path MTU in bytes.
    mtu: usize,
}

impl Placement {
    pub(super) fn new(mtu: usize) -> Self {
        Self { message: None, mtu }
    }

    pub(super) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Whether no message is half in.
    pub(super) fn is_idle(&self) -> bool {
        self.message.is_none()
    }

    /// Forgets a message that is half in. The receive of a SEND stays held for the next message; what was written stays
    /// written.
    pub(super) fn abandon(&mut self) {
        self.message = None;
    }

    /// Whether this packet may come now, the QP allows it, and its length is right. Nothing is changed.
    pub(super) fn check(
        &self,
        packet: &TransportPacket<'_>,
        access: Access,
        max_message: u32,
    ) -> Result<(), Refusal> {
        let opcode = packet.bth().opcode;
        let len = packet.payload().len();
        let mtu = self.mtu;
        let starts = opcode.is_first() || opcode.is_only();
        let writes = is_write(opcode);
        match self.message {
            None if starts => {}
            Some(Message::Send { .. }) if !starts && !writes => {}
            Some(Message::Write { .. }) if !starts && writes => {}
            _ => return Err(Refusal::Sequence),
        }
        if writes && !access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::NotAllowed);
        }
        let fits_mtu = if opcode.is_first() || opcode.is_middle() {
            len == mtu
        } else if opcode.is_last() {
            (1..=mtu).contains(&len)
        } else {
            len <= mtu
        };
        let (left, placed) = match self.message {
            Some(Message::Write { reth, placed }) => (Some((reth.len - placed) as usize), placed as usize),
            Some(Message::Send { placed }) => (None, placed),
            None => (packet.reth().map(|reth| reth.len as usize), 0),
        };
        let fits_message = placed + left.unwrap_or(len) <= max_message as usize
            && match left {
                Some(left) if opcode.is_first() || opcode.is_middle() => mtu < left,
                Some(left) => len == left,
                None => true,
            };
        if fits_mtu && fits_message { Ok(()) } else { Err(Refusal::Length) }
    }

    /// Places a packet that [`check`](Self::check) has let in. With the last one of a message its receive completes, and
    /// true is returned. Refused, nothing was placed, and a receive that was in use is still held.
    pub(super) fn place(
        &mut self,
        packet: &TransportPacket<'_>,
        rights: Rights,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
    ) -> Result<bool, Refusal> {
        let opcode = packet.bth().opcode;
        if is_write(opcode) {
            self.write(packet, rights, receives, side, shared)?;
        } else {
            self.send(packet, receives, side, shared)?;
        }
        Ok(opcode.is_last() || opcode.is_only())
    }

    /// Places packets from the middle of the message that is half in, which came behind one that was placed: as many of the
    /// first ones as [`check`](Self::check) would let in and as have room.
    pub(super) fn place_middles<'a>(
        &mut self,
        ingress: &Ingress<'a>,
        rights: Rights,
        receives: &mut Receives,
        shared: &mut Shared,
    ) -> Middles<'a> {
        let mtu = self.mtu;
        if ingress.middle_len() != mtu || is_write(ingress.packet.bth().opcode) != self.is_writing() {
            return Middles::NONE;
        }
        let fitting = |bytes: usize| ingress.middles((bytes / mtu) as u32);
        match self.message {
            Some(Message::Write { reth, placed }) => {
                // The last packet of the message has at least a byte.
                let middles = fitting((reth.len - placed).saturating_sub(1) as usize);
                if middles.count() == 0 {
                    return Middles::NONE;
                }
                let Rights { domain, .. } = rights;
                let reached =
                    shared.memory.reach(domain, reth.rkey, Access::REMOTE_WRITE, reth.va, reth.len as usize);
                let Ok((memory, at)) = reached else { return Middles::NONE };
                for (payload, k) in middles.payloads().zip(0..) {
                    // Inside, because the whole message is.
                    _ = memory.copy_from(at + placed as usize + k * mtu, payload);
                }
                self.message = Some(Message::Write { reth, placed: placed + middles.count() * mtu as u32 });
                middles
            }
            Some(Message::Send { placed }) => {
                let longest = shared.device.max_message as usize;
                let Some(receive) = receives.hold(shared) else { return Middles::NONE };
                let middles = fitting(longest.min(sg::capacity(&receive.sg)).saturating_sub(placed));
                for (payload, k) in middles.payloads().zip(0..) {
                    sg::scatter(&mut receive.sg, placed + k * mtu, payload);
                }
                self.message = Some(Message::Send { placed: placed + middles.count() as usize * mtu });
                middles
            }
            None => Middles::NONE,
        }
    }

    /// Whether a WRITE is half in.
    fn is_writing(&self) -> bool {
        matches!(self.message, Some(Message::Write { .. }))
    }

    fn send(
        &mut self,
        packet: &TransportPacket<'_>,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
    ) -> Result<(), Refusal> {
        let opcode = packet.bth().opcode;
        let start = match self.message {
            Some(Message::Send { placed }) => placed,
            _ => 0,
        };
        let receive = receives.hold(shared).ok_or(Refusal::NoReceive)?;
        if !sg::scatter(&mut receive.sg, start, packet.payload()) {
            return Err(Refusal::TooLong);
        }
        if opcode.has_ieth() {
            return Err(Refusal::Invalidate);
        }
        let end = start + packet.payload().len();
        if opcode.is_first() || opcode.is_middle() {
            self.message = Some(Message::Send { placed: end });
            return Ok(());
        }
        self.message = None;
        complete(CompletionOp::Recv, end, end, packet, receives, side, shared);
        Ok(())
    }

    fn write(
        &mut self,
        packet: &TransportPacket<'_>,
        rights: Rights,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
    ) -> Result<(), Refusal> {
        let opcode = packet.bth().opcode;
        let (reth, placed) = match (self.message, packet.reth()) {
            (Some(Message::Write { reth, placed }), _) => (reth, placed),
            (_, Some(reth)) => (reth, 0),
            _ => return Err(Refusal::Sequence),
        };
        if opcode.has_immdt() && receives.peek(shared).is_none() {
            return Err(Refusal::NoReceive);
        }
        // A message without bytes needs no memory, whatever its key is.
        if reth.len > 0 {
            let (memory, at) = shared.memory.reach(
                rights.domain,
                reth.rkey,
                Access::REMOTE_WRITE,
                reth.va,
                reth.len as usize,
            )?;
            memory
                .copy_from(at + placed as usize, packet.payload())
                .map_err(|_| Refusal::Memory(Unreachable::Range))?;
        }
        if opcode.is_first() || opcode.is_middle() {
            let placed = placed + packet.payload().len() as u32;
            self.message = Some(Message::Write { reth, placed });
            return Ok(());
        }
        self.message = None;
        if opcode.has_immdt() {
            let len = reth.len as usize;
            complete(CompletionOp::RecvWrite, len, 0, packet, receives, side, shared);
        }
        Ok(())
    }
}

/// Completes the receive of a message of `len` bytes, of which `filled` are in the receive.
fn complete(
    op: CompletionOp,
    len: usize,
    filled: usize,
    packet: &TransportPacket<'_>,
    receives: &mut Receives,
    side: &Side,
    shared: &mut Shared,
) {
    let Some(RecvWr { id, mut sg }) = receives.take(shared) else { return };
    sg::set_filled(&mut sg, filled);
    let imm = packet.immdt().map(|imm| imm.to_u32());
    side.complete(
        shared,
        id,
        sg,
        Status::SUCCESS,
        Arrival { op, len: len as u32, imm, from: None, raw: None },
    );
}

fn is_write(opcode: Opcode) -> bool {
    (Operation::RDMA_WRITE_FIRST..=Operation::RDMA_WRITE_ONLY_WITH_IMM).contains(&opcode.operation())
}
