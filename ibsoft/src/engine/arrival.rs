//! Packets that arrive: whom they are for. Those from the middle of one message are handled together.

use std::time::Instant;

use ibwire::packet::{Bth, Opcode, PacketError, Transport, TransportPacket};
use ibwire::{Psn, Qpn};

use super::Engine;
use super::net::{Ingress, NetHeader};
use super::port::Port;

/// Packets from the middle of a message that lie behind another one of it: their headers differ in the PSN, one more each
/// time, and in whether an acknowledgement is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Middles<'a> {
    bytes: &'a [u8],
    /// From the BTH to the end of the payload.
    len: usize,
    /// From one packet to the next.
    stride: usize,
    opcode: Opcode,
    psn: Psn,
    count: u32,
    /// The first that asks for an acknowledgement.
    asks: Option<u32>,
}

impl<'a> Middles<'a> {
    /// Those at the front of `bytes` that go on where a packet of `len` bytes with the header `first` ends; `stride` bytes
    /// from one to the next.
    fn find(first: &Bth, len: usize, bytes: &'a [u8], stride: usize) -> Self {
        let (opcode, psn) = (first.opcode, first.psn.offset(1));
        let mut found = Self { bytes, len, stride, opcode, psn, count: 0, asks: None };
        if !opcode.is_middle() || first.pad != 0 {
            return found;
        }
        for bytes in bytes.chunks(stride).take_while(|bytes| bytes.len() >= len) {
            let expected = Bth { psn: psn.offset(found.count), ..*first };
            match Bth::parse(bytes) {
                Ok(header) if header == Bth { ack_req: header.ack_req, ..expected } => {
                    if header.ack_req {
                        found.asks.get_or_insert(found.count);
                    }
                }
                _ => break,
            }
            found.count += 1;
        }
        found
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The PSN of the first.
    pub(super) fn psn(&self) -> Psn {
        self.psn
    }

    /// How long the payload of each is.
    pub(super) fn payload_len(&self) -> usize {
        self.len - Bth::LEN
    }

    /// The payloads of the first `count`.
    pub(super) fn payloads(&self, count: u32) -> impl Iterator<Item = &'a [u8]> {
        let payload = Bth::LEN..self.len;
        self.bytes.chunks(self.stride).take(count as usize).map(move |packet| &packet[payload.clone()])
    }

    /// Whether one of the first `count` asks for an acknowledgement.
    pub(super) fn ask(&self, count: u32) -> bool {
        self.asks.is_some_and(|asks| asks < count)
    }
}

impl Engine {
    /// Handles a packet that arrived on `port`: `bytes` from the BTH through the padding, without the ICRC, which
    /// the link has checked. What is wrong with it is counted, see [`Counters`](super::Counters).
    pub fn handle_packet(&mut self, now: Instant, port: u8, net: &NetHeader, bytes: &[u8]) {
        self.arrived(now, port, net, bytes, (&[], 1));
    }

    /// The same for packets of one length that came from the same place one after the other: each `len` bytes, and `room`
    /// bytes of the link behind.
    pub fn handle_run(
        &mut self,
        now: Instant,
        port: u8,
        net: &NetHeader,
        bytes: &[u8],
        (len, room): (usize, usize),
    ) {
        let stride = (len + room).max(1);
        let mut rest = bytes;
        while !rest.is_empty() {
            let behind = rest.get(stride..).unwrap_or_default();
            let taken = self.arrived(now, port, net, &rest[..len.min(rest.len())], (behind, stride));
            rest = behind.get(taken as usize * stride..).unwrap_or_default();
        }
    }

    /// Handles a packet, and some of those `behind` it with it. How many those were.
    fn arrived(
        &mut self,
        now: Instant,
        port: u8,
        net: &NetHeader,
        bytes: &[u8],
        behind: (&[u8], usize),
    ) -> u32 {
        let before = tracing::enabled!(tracing::Level::TRACE).then_some(self.shared.counters);
        let taken = self.route(now, port, net, bytes, behind);
        let (packets, len) = (1 + u64::from(taken), bytes.len() as u64);
        self.shared.counters.rx_packets += packets;
        self.shared.counters.rx_bytes += packets * len;
        if let Some(cause) = before.and_then(|before| self.shared.counters.drop_since(&before)) {
            tracing::trace!(cause, port, ?net, packet = ?TransportPacket::parse(bytes), "packet dropped");
        }
        taken
    }

    /// Finds whom a packet is for. How many of those behind it are handled with it.
    fn route(
        &mut self,
        now: Instant,
        port: u8,
        net: &NetHeader,
        bytes: &[u8],
        (behind, stride): (&[u8], usize),
    ) -> u32 {
        if !self.shared.port(port).is_some_and(Port::is_up) {
            self.shared.counters.drop_port_down += 1;
            return 0;
        }
        let counters = &mut self.shared.counters;
        // Not moved: it is long for what is done once a packet.
        let parsed = TransportPacket::parse(bytes);
        let packet = match &parsed {
            Ok(packet) => packet,
            Err(error) => {
                *match error {
                    PacketError::TooShort { .. } => &mut counters.drop_malformed,
                    PacketError::UnknownOpcode(_) => &mut counters.drop_opcode,
                    PacketError::BadVersion(_) => &mut counters.drop_version,
                } += 1;
                return 0;
            }
        };
        let bth = packet.bth();
        if bth.opcode.transport() == Transport::CNP {
            counters.drop_cnp += 1;
            return 0;
        }
        let dest = bth.dest_qp;
        let behind = Middles::find(bth, bytes.len(), behind, stride);
        let ingress = Ingress { port, net, packet, len: bytes.len(), behind };
        match dest {
            Qpn::GSI => self.gsi.handle_packet(&ingress, &mut self.shared),
            Qpn::SMI => counters.drop_smi += 1,
            Qpn::MULTICAST => self.deliver_to_group(now, &ingress),
            _ => match self.qps.get_mut(dest) {
                Some(qp) => return qp.handle_packet(now, &ingress, &mut self.shared),
                None => counters.drop_unknown_qp += 1,
            },
        }
        0
    }
}
