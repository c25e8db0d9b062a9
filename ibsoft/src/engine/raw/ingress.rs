//! Raw packets that arrive: what is wrong with them, and who takes them.

use ibdev::RawSource;
use ibwire::packet::{Lrh, NextHeader};
use ibwire::raw::{EtherType, Ipv6Header, Rwh, size};
use ibwire::{Lid, Qpn};

use super::super::port::Port;
use super::super::{Engine, LinkError};

/// What a raw packet says.
#[derive(Debug, Clone, Copy)]
struct Message<'a> {
    /// EtherType or next header.
    protocol: u16,
    /// What goes to memory: of EtherType what follows the RWH, of IPv6 the packet with its header.
    data: &'a [u8],
    ether_type: Option<EtherType>,
    /// More is there than the IPv6 packet and its padding.
    excess: bool,
}

impl<'a> Message<'a> {
    /// Reads what follows the LRH; `None` if it cannot be such a packet.
    fn parse(next: NextHeader, bytes: &'a [u8]) -> Option<Self> {
        if next == NextHeader::RawEtherType {
            let rwh = Rwh::parse(bytes).ok()?;
            let data = bytes.get(Rwh::LEN..)?;
            let ether_type = rwh.ether_type;
            return Some(Self { protocol: ether_type.0, data, ether_type: Some(ether_type), excess: false });
        }
        let header = Ipv6Header::parse(bytes).ok()?;
        let data = bytes.get(..Ipv6Header::LEN + usize::from(header.payload_len))?;
        let excess = bytes.len() - data.len() > 3;
        Some(Self { protocol: header.next_header.0.into(), data, ether_type: None, excess })
    }
}

impl Port {
    /// The fewest and the most words of a raw packet here, from the LRH on.
    fn raw_words(&self, next: NextHeader) -> (u16, u16) {
        let least = match next {
            NextHeader::RawIpv6 => size::MIN_IPV6_WORDS,
            _ => size::MIN_ETHER_WORDS,
        };
        (least, size::max_words(self.attr.active_mtu).unwrap_or(0))
    }

    /// Whether a LID is one of the port's.
    pub(super) fn has_lid(&self, lid: Lid) -> bool {
        lid.is_unicast() && (lid.0 ^ self.attr.lid.0) >> (self.attr.lmc & 7) == 0
    }
}

impl Engine {
    /// Handles a raw packet that arrived on `port`: `bytes` from the LRH through the padding, without the VCRC, which the
    /// link has checked. What is wrong with it is counted, see [`Counters`](super::super::Counters).
    pub fn handle_raw_packet(&mut self, port: u8, bytes: &[u8]) {
        let counters = &mut self.shared.counters;
        counters.rx_packets += 1;
        counters.rx_bytes += bytes.len() as u64;
        let Some(entry) = self.shared.port(port).filter(|port| port.is_up()) else {
            self.shared.counters.drop_port_down += 1;
            return;
        };
        let lrh = Lrh::parse(bytes).ok().filter(|lrh| {
            let (least, most) = entry.raw_words(lrh.next);
            let is_raw = matches!(lrh.next, NextHeader::RawIpv6 | NextHeader::RawEtherType);
            is_raw && usize::from(lrh.words) * 4 == bytes.len() && (least..=most).contains(&lrh.words)
        });
        let Some(lrh) = lrh else {
            self.shared.counters.drop_raw_malformed += 1;
            return;
        };
        if !lrh.slid.is_unicast() || !lrh.dlid.is_multicast() && !entry.has_lid(lrh.dlid) {
            self.shared.counters.drop_address += 1;
            return;
        }
        if entry.has_lid(lrh.slid) {
            // What is for others of this port has not been on the link.
            self.shared.counters.drop_raw_own += 1;
            return;
        }
        self.deliver_raw(port, &lrh, &bytes[Lrh::LEN..], None);
    }

    /// Counts a packet that the link could not hand in.
    pub fn handle_link_error(&mut self, error: LinkError) {
        let counters = &mut self.shared.counters;
        *match error {
            LinkError::Vcrc => &mut counters.drop_vcrc,
            LinkError::Icrc => &mut counters.drop_icrc,
            LinkError::Malformed => &mut counters.drop_link_malformed,
        } += 1;
    }

    /// A copy to each QP that takes the packet, but not to the one that has sent it. `bytes` follow the LRH.
    pub(super) fn deliver_raw(&mut self, port: u8, lrh: &Lrh, bytes: &[u8], sender: Option<Qpn>) {
        let Some(message) = Message::parse(lrh.next, bytes) else {
            self.shared.counters.drop_raw_malformed += 1;
            return;
        };
        let path_bits = |port: &Port| (lrh.dlid.0 ^ port.attr.lid.0) as u8;
        let is_group = lrh.dlid.is_multicast();
        let source = RawSource {
            slid: lrh.slid,
            sl: lrh.sl,
            path_bits: self.shared.port(port).filter(|_| !is_group).map(path_bits),
            group: is_group.then_some(lrh.dlid),
            ether_type: message.ether_type,
            lost_before: 0,
        };
        let (mut taken, mut refused, mut outside) = (false, false, false);
        let mut at = 0;
        while let Some(entry) = self.shared.raws.get(at) {
            at += 1;
            let qpn = entry.qpn;
            if !entry.hears(port, lrh.next)
                || !entry.filter.types.contains(message.protocol)
                || sender == Some(qpn)
            {
                continue;
            }
            let (is_member, is_refused) = (entry.views(lrh.dlid), message.excess && !entry.filter.lenient);
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            if let Some(raw) = qp.raw_mut() {
                raw.counters.excess += u64::from(message.excess);
                raw.counters.not_member += u64::from(!is_member);
            }
            if is_member && !is_refused {
                taken = true;
                qp.receive_raw(message.data, source, &mut self.shared);
            } else {
                refused |= is_refused;
                outside |= !is_member;
            }
        }
        if taken || sender.is_some() {
            return;
        }
        let counters = &mut self.shared.counters;
        *match (refused, outside) {
            (true, _) => &mut counters.drop_raw_malformed,
            (false, true) => &mut counters.drop_raw_not_member,
            (false, false) => &mut counters.drop_raw_unclaimed,
        } += 1;
    }
}
