//! What the packets of a message look like: opcode, extended headers, part of the payload (spec/softhca.md 2.2). The
//! same for RC and UC, which has sends and writes only.

use std::ops::Range;

use ibdev::{Buf, CompletionOp, RemoteAddr, SendOp};
use ibwire::packet::{AtomicEth, Bth, ImmDt, Opcode, Operation, Reth, Transport};

use super::net::write_packet;
use super::sg;

/// What a message of a connected QP asks of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Send { imm: Option<u32> },
    Write { to: RemoteAddr, imm: Option<u32> },
    Read { from: RemoteAddr },
    FetchAdd { at: RemoteAddr, add: u64 },
    CompareSwap { at: RemoteAddr, compare: u64, swap: u64 },
}

impl Request {
    /// The request of an operation, `None` if connected QPs do not have it.
    pub(super) fn of(op: &SendOp) -> Option<Self> {
        Some(match *op {
            SendOp::Send { imm } => Self::Send { imm },
            SendOp::Write { to, imm } => Self::Write { to, imm },
            SendOp::Read { from } => Self::Read { from },
            SendOp::FetchAdd { at, add } => Self::FetchAdd { at, add },
            SendOp::CompareSwap { at, compare, swap } => Self::CompareSwap { at, compare, swap },
            _ => return None,
        })
    }

    /// How it completes.
    pub(super) const fn op(&self) -> CompletionOp {
        match self {
            Self::Send { .. } => CompletionOp::Send,
            Self::Write { .. } => CompletionOp::Write,
            Self::Read { .. } => CompletionOp::Read,
            Self::FetchAdd { .. } => CompletionOp::FetchAdd,
            Self::CompareSwap { .. } => CompletionOp::CompareSwap,
        }
    }

    /// Whether a response of its own brings a result: a read or an atomic. Others are acknowledged.
    pub(super) const fn has_result(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }

    pub(super) const fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    pub(super) const fn is_atomic(&self) -> bool {
        matches!(self, Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }

    const fn imm(&self) -> Option<u32> {
        match self {
            Self::Send { imm } | Self::Write { imm, .. } => *imm,
            _ => None,
        }
    }
}

/// A message and how many PSNs it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) request: Request,
    /// Bytes that are sent or read; 8 of an atomic.
    pub(super) len: usize,
    /// PSNs: packets of a send or write, response packets of a read.
    pub(super) packets: u32,
}

/// How a QP cuts its messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segmentation {
    transport: Transport,
    mtu: usize,
    /// Response packets that one read request asks for at most. A longer read is asked for in parts that start at its
    /// multiples, so parts of what is asked for again end where the first ones did.
    read_part: u32,
}

/// One packet of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) opcode: Opcode,
    headers: Headers,
    /// Which bytes of the message it carries.
    pub(super) payload: Range<usize>,
    /// How many PSNs it takes: as many as the responses to it, if it is a read request.
    pub(super) psns: u32,
    /// Whether nothing of the message follows.
    pub(super) last: bool,
    /// Whether it completes a receive of the peer, so that the solicited bit means something.
    pub(super) completes: bool,
}

impl Segmentation {
    pub(super) const fn new(transport: Transport, mtu: usize, read_part: u32) -> Self {
        Self { transport, mtu, read_part }
    }

    /// The path MTU in bytes.
    pub(super) const fn mtu(&self) -> usize {
        self.mtu
    }

    /// A message of `len` bytes.
    pub(super) fn message(&self, request: Request, len: usize) -> Message {
        let (len, packets) = match request.is_atomic() {
            true => (size_of::<u64>(), 1),
            false => (len, len.div_ceil(self.mtu).max(1) as u32),
        };
        Message { request, len, packets }
    }

    /// The bytes of a message that packet `index` carries; of a read, the packet of its response.
    pub(super) fn range(&self, message: &Message, index: u32) -> Range<usize> {
        let start = index as usize * self.mtu;
        start..message.len.min(start + self.mtu)
    }

    /// One past the last packet that the request for packet `index` of a read asks for.
    pub(super) fn read_end(&self, message: &Message, index: u32) -> u32 {
        ((index / self.read_part + 1) * self.read_part).min(message.packets)
    }

    /// Packet `index` of a message, 0..[`packets`](Message::packets); the request for packet `index` and some behind
    /// it if it is a read.
    pub(super) fn segment(&self, message: &Message, index: u32) -> Segment {
        let (first, last) = (index == 0, index + 1 == message.packets);
        let mut headers = Headers::default();
        let operation = match message.request {
            Request::Read { from } => return self.read(message, from, index),
            Request::FetchAdd { at, add } => {
                headers.push(&atomic(at, add, 0).to_bytes());
                Operation::FETCH_ADD
            }
            Request::CompareSwap { at, compare, swap } => {
                headers.push(&atomic(at, swap, compare).to_bytes());
                Operation::COMPARE_SWAP
            }
            Request::Send { imm } => match (first, last, imm) {
                (true, true, None) => Operation::SEND_ONLY,
                (true, true, Some(_)) => Operation::SEND_ONLY_WITH_IMM,
                (true, false, _) => Operation::SEND_FIRST,
                (false, false, _) => Operation::SEND_MIDDLE,
                (false, true, None) => Operation::SEND_LAST,
                (false, true, Some(_)) => Operation::SEND_LAST_WITH_IMM,
            },
            Request::Write { to, imm } => {
                if first {
                    headers.push(&Reth { va: to.addr, rkey: to.rkey, len: message.len as u32 }.to_bytes());
                }
                match (first, last, imm) {
                    (true, true, None) => Operation::RDMA_WRITE_ONLY,
                    (true, true, Some(_)) => Operation::RDMA_WRITE_ONLY_WITH_IMM,
                    (true, false, _) => Operation::RDMA_WRITE_FIRST,
                    (false, false, _) => Operation::RDMA_WRITE_MIDDLE,
                    (false, true, None) => Operation::RDMA_WRITE_LAST,
                    (false, true, Some(_)) => Operation::RDMA_WRITE_LAST_WITH_IMM,
                }
            }
        };
        let imm = message.request.imm().filter(|_| last);
        if let Some(imm) = imm {
            headers.push(&ImmDt::from_u32(imm).to_bytes());
        }
        Segment {
            opcode: Opcode::new(self.transport, operation),
            headers,
            payload: if message.request.is_atomic() { 0..0 } else { self.range(message, index) },
            psns: 1,
            last,
            completes: last && (imm.is_some() || matches!(message.request, Request::Send { .. })),
        }
    }

    fn read(&self, message: &Message, from: RemoteAddr, index: u32) -> Segment {
        let end = self.read_end(message, index);
        let start = index as usize * self.mtu;
        let len = message.len.min(end as usize * self.mtu) - start;
        let mut headers = Headers::default();
        let va = from.addr.wrapping_add(start as u64);
        headers.push(&Reth { va, rkey: from.rkey, len: len as u32 }.to_bytes());
        Segment {
            opcode: Opcode::new(self.transport, Operation::RDMA_READ_REQUEST),
            headers,
            payload: 0..0,
            psns: end - index,
            last: end == message.packets,
            completes: false,
        }
    }
}

const fn atomic(at: RemoteAddr, swap_or_add: u64, compare: u64) -> AtomicEth {
    AtomicEth { va: at.addr, rkey: at.rkey, swap_or_add, compare }
}

impl Segment {
    /// Appends the packet to `out` and returns its length. `bth` has what the segment does not say; `bufs` hold the
    /// message.
    pub(super) fn write(&self, out: &mut Vec<u8>, bth: Bth, bufs: &[Buf]) -> usize {
        let payload = self.payload.clone();
        let bth = Bth { opcode: self.opcode, ..bth };
        write_packet(out, bth, &[self.headers.as_bytes()], payload.len(), |out| {
            sg::gather(bufs, payload, out);
        })
    }
}

/// The extended headers of a request: an AtomicETH is the longest of what there can be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Headers {
    bytes: [u8; AtomicEth::LEN],
    len: u8,
}

impl Headers {
    fn push(&mut self, header: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + header.len()].copy_from_slice(header);
        self.len += header.len() as u8;
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use ibwire::packet::TransportPacket;
    use ibwire::{Psn, Qpn, RKey};
    use proptest::prelude::*;

    use super::*;

    const AT: RemoteAddr = RemoteAddr { addr: 0xffff_ffff_ffff_f000, rkey: RKey(7) };

    fn any_request() -> impl Strategy<Value = Request> {
        let imm = any::<Option<u32>>;
        prop_oneof![
            imm().prop_map(|imm| Request::Send { imm }),
            imm().prop_map(|imm| Request::Write { to: AT, imm }),
            Just(Request::Read { from: AT }),
            any::<u64>().prop_map(|add| Request::FetchAdd { at: AT, add }),
            any::<(u64, u64)>().prop_map(|(compare, swap)| Request::CompareSwap { at: AT, compare, swap }),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_the_sum_of_its_packets(
            request in any_request(),
            mtu_code in 1u32..=5,
            len in prop_oneof![0usize..70_000, (0usize..17).prop_map(|n| n * 4096)],
            read_part in 1u32..100,
        ) {
            let mtu = 128 << mtu_code;
            let cut = Segmentation::new(Transport::RC, mtu, read_part);
            let message = cut.message(request, len);
            let mut buf = Buf::unregistered(len);
            buf.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8 ^ (i >> 8) as u8);
            let bufs = [buf];
            let (mut index, mut bytes, mut asked) = (0, Vec::new(), 0);
            while index < message.packets {
                let segment = cut.segment(&message, index);
                let mut out = Vec::new();
                segment.write(&mut out, Bth::new(Opcode(0), Qpn::GSI, Psn::default()), &bufs);
                let packet = TransportPacket::parse(&out).unwrap();
                prop_assert_eq!(packet.bth().opcode, segment.opcode);
                prop_assert!(packet.payload().len() <= mtu);
                let (first, next) = (index == 0, index + segment.psns);
                prop_assert_eq!(segment.last, next == message.packets);
                prop_assert_eq!(packet.immdt().map(ImmDt::to_u32), request.imm().filter(|_| segment.last));
                let reth = packet.reth().map(|reth| (reth.va, reth.rkey, reth.len as usize));
                match request {
                    Request::Write { .. } => {
                        prop_assert_eq!(reth, first.then_some((AT.addr, AT.rkey, len)));
                    }
                    Request::Read { .. } => {
                        let (va, _, part) = reth.unwrap();
                        prop_assert_eq!(va, AT.addr.wrapping_add(asked as u64));
                        prop_assert_eq!(part.div_ceil(mtu).max(1) as u32, segment.psns);
                        prop_assert!(segment.psns <= read_part);
                        asked += part;
                    }
                    _ => prop_assert_eq!(reth, None),
                }
                if !request.has_result() {
                    prop_assert!(segment.last || packet.payload().len() == mtu);
                    prop_assert!(!segment.last || first || !packet.payload().is_empty());
                }
                bytes.extend_from_slice(packet.payload());
                index = next;
            }
            prop_assert_eq!(index, message.packets);
            match request {
                Request::Read { .. } => prop_assert_eq!((asked, bytes.len()), (len, 0)),
                _ if request.is_atomic() => prop_assert_eq!((index, bytes.len()), (1, 0)),
                _ => prop_assert_eq!(&bytes[..], &bufs[0][..]),
            }
        }

        #[test]
        fn what_is_read_again_ends_where_it_ended(
            len in 1usize..100_000,
            from in 0u32..400,
            read_part in 1u32..100,
        ) {
            let cut = Segmentation::new(Transport::RC, 256, read_part);
            let message = cut.message(Request::Read { from: AT }, len);
            let from = from % message.packets;
            let segment = cut.segment(&message, from);
            let begin = from / read_part * read_part;
            let whole = cut.segment(&message, begin);
            prop_assert_eq!(from + segment.psns, begin + whole.psns);
        }
    }

    #[test]
    fn operands_stand_where_the_sheet_says() {
        let cut = Segmentation::new(Transport::RC, 1024, 64);
        let eth = |request| {
            let segment = cut.segment(&cut.message(request, 8), 0);
            AtomicEth::parse(segment.headers.as_bytes()).unwrap()
        };
        let add = eth(Request::FetchAdd { at: AT, add: 5 });
        assert_eq!((add.va, add.rkey, add.swap_or_add, add.compare), (AT.addr, AT.rkey, 5, 0));
        let swap = eth(Request::CompareSwap { at: AT, compare: 1, swap: 2 });
        assert_eq!((swap.swap_or_add, swap.compare), (2, 1));
    }
}
