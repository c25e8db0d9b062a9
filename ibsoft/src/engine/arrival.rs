//! Packets that arrive: whom they are for. Those from the middle of one message are handled together.

use std::time::Instant;

use ibwire::packet::{Bth, PacketError, Transport, TransportPacket};
use ibwire::{Psn, Qpn};

use super::Engine;
use super::net::{Ingress, NetHeader};
use super::port::Port;

/// What came together with a packet, behind it: packets of its length from the same place, not looked at yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Behind<'a> {
    bytes: &'a [u8],
    /// From one packet to the next.
    stride: usize,
}

/// Packets from the middle of a message that lie behind another one of it: their headers differ in the PSN, one more each
/// time, and in whether an acknowledgement is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Middles<'a> {
    behind: Behind<'a>,
    /// Of each from the BTH to the end of the payload.
    len: usize,
    count: u32,
    asks: bool,
}

impl<'a> Middles<'a> {
    pub(super) const NONE: Self =
        Self { behind: Behind { bytes: &[], stride: 1 }, len: Bth::LEN, count: 0, asks: false };

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether one of them asks for an acknowledgement.
    pub(super) fn ask(&self) -> bool {
        self.asks
    }

    pub(super) fn payloads(&self) -> impl Iterator<Item = &'a [u8]> {
        let (Behind { bytes, stride }, payload) = (self.behind, Bth::LEN..self.len);
        bytes.chunks(stride).take(self.count as usize).map(move |packet| &packet[payload.clone()])
    }
}

impl<'a> Ingress<'a> {
    /// The packets behind this one that go on where it ends, `most` at most. None if it is not from the middle of a message
    /// itself.
    pub(super) fn middles(&self, most: u32) -> Middles<'a> {
        let first = self.packet.bth();
        let mut found = Middles { behind: self.behind, len: self.len, ..Middles::NONE };
        if !first.opcode.is_middle() {
            return found;
        }
        let Behind { bytes, stride } = self.behind;
        let whole = bytes.chunks(stride).take_while(|bytes| bytes.len() >= self.len);
        for bytes in whole.take(most as usize) {
            let expected = Bth { psn: first.psn.offset(found.count + 1), ..*first };
            match Bth::parse(bytes) {
                Ok(header) if header == Bth { ack_req: header.ack_req, ..expected } => {
                    found.asks |= header.ack_req;
                }
                _ => break,
            }
            found.count += 1;
        }
        found
    }

    /// The PSN behind this one.
    pub(super) fn next_psn(&self) -> Psn {
        self.packet.bth().psn.offset(1)
    }

    /// How long the payload is of packets from the middle of a message, which have no padding.
    pub(super) fn middle_len(&self) -> usize {
        self.len - Bth::LEN
    }
}

impl Engine {
    /// Handles a packet that arrived on `port`: `bytes` from the BTH through the padding, without the ICRC, which
    /// the link has checked. What is wrong with it is counted, see [`Counters`](super::Counters).
    pub fn handle_packet(&mut self, now: Instant, port: u8, net: &NetHeader, bytes: &[u8]) {
        self.arrived(now, port, net, bytes, Middles::NONE.behind);
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
            let bytes = rest.get(stride..).unwrap_or_default();
            let taken = self.arrived(now, port, net, &rest[..len.min(rest.len())], Behind { bytes, stride });
            rest = bytes.get(taken as usize * stride..).unwrap_or_default();
        }
    }

    /// Handles a packet, and some of those `behind` it with it. How many those were.
    fn arrived(&mut self, now: Instant, port: u8, net: &NetHeader, bytes: &[u8], behind: Behind<'_>) -> u32 {
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
    fn route(&mut self, now: Instant, port: u8, net: &NetHeader, bytes: &[u8], behind: Behind<'_>) -> u32 {
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
