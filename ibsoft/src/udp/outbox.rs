//! Packets between the engine and the sockets.

use std::ops::Range;

use ibwire::icrc::Icrc;

use crate::engine::NetHeader;

/// Packets one behind the other, each with room for its ICRC, to be taken in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Packets {
    bytes: Vec<u8>,
    /// Where packets go, and how many were there when the first of those came; packets in a row go the same way.
    ways: Vec<(NetHeader, usize)>,
    /// Where each ends in `bytes`.
    ends: Vec<usize>,
    /// The way of the oldest that was not taken.
    way: usize,
    /// How many were taken.
    taken: usize,
    /// Where the first of the others begins.
    start: usize,
}

impl Packets {
    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many packets there are.
    pub(super) fn count(&self) -> usize {
        self.ends.len() - self.taken
    }

    /// Bytes, those of packets that were taken included.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Where the bytes of the next packet are to be appended.
    pub(super) fn next(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// They were: it goes there.
    pub(super) fn push(&mut self, net: &NetHeader) {
        self.bytes.extend_from_slice(&[0; Icrc::LEN]);
        if self.ways.last().is_none_or(|(last, _)| last != net) {
            self.ways.push((*net, self.ends.len()));
        }
        self.ends.push(self.bytes.len());
    }

    /// Where the oldest packet goes.
    pub(super) fn way(&self) -> Option<&NetHeader> {
        self.first()?;
        self.ways.get(self.way).map(|(net, _)| net)
    }

    /// The oldest packet: where it is, with the room for its ICRC.
    pub(super) fn first(&self) -> Option<Range<usize>> {
        Some(self.start..*self.ends.get(self.taken)?)
    }

    /// Takes the oldest packet; whether the next one goes the same way. Its bytes stay until [`swap`](Self::swap).
    pub(super) fn take_first(&mut self) -> bool {
        let Some(end) = self.ends.get(self.taken) else { return false };
        self.start = *end;
        self.taken += 1;
        let turns = self.ways.get(self.way + 1).is_some_and(|(_, first)| *first == self.taken);
        self.way += usize::from(turns);
        !turns
    }

    pub(super) fn bytes(&self, at: Range<usize>) -> &[u8] {
        &self.bytes[at]
    }

    pub(super) fn bytes_mut(&mut self, at: Range<usize>) -> &mut [u8] {
        &mut self.bytes[at]
    }

    /// Takes all of `other`. Nothing may be left here.
    pub(super) fn swap(&mut self, other: &mut Self) {
        debug_assert!(self.is_empty());
        self.bytes.clear();
        self.ways.clear();
        self.ends.clear();
        (self.taken, self.start, self.way) = (0, 0, 0);
        std::mem::swap(self, other);
    }
}

#[cfg(test)]
mod tests {
    use ibwire::{FlowLabel, Gid, ServiceLevel};

    use super::*;
    use crate::engine::NetRoute;

    const ROUTE: NetRoute = NetRoute {
        sgid: Gid([1; 16]),
        dgid: Gid([2; 16]),
        flow_label: FlowLabel::truncate(0),
        traffic_class: 0,
        hop_limit: 64,
        ip_id: 0,
    };

    #[test]
    fn packets_come_out_as_they_went_in() {
        let net = |sl| NetHeader { sl: ServiceLevel::truncate(sl), ..NetHeader::roce(ROUTE) };
        let mut inside = Packets::default();
        let packets = [(4, 1), (8, 1), (12, 2), (16, 1)];
        for (len, sl) in packets {
            inside.next().extend(std::iter::repeat_n(len as u8, len));
            inside.push(&net(sl));
        }
        assert_eq!((inside.count(), inside.len()), (4, 56));
        let mut outside = Packets::default();
        outside.swap(&mut inside);
        assert_eq!((inside.is_empty(), inside.len()), (true, 0));
        let mut start = 0;
        for (n, (len, sl)) in packets.into_iter().enumerate() {
            let end = start + len + Icrc::LEN;
            assert_eq!((outside.way(), outside.first()), (Some(&net(sl)), Some(start..end)));
            assert_eq!(outside.bytes(start..start + len), vec![len as u8; len]);
            outside.bytes_mut(start + len..end).fill(0xee);
            assert_eq!(outside.take_first(), [true, false, false, true][n], "packet {n}");
            start = end;
        }
        assert_eq!((outside.way(), outside.first(), outside.count(), outside.len()), (None, None, 0, 56));
        outside.take_first();
        outside.swap(&mut inside);
        assert_eq!((outside.way(), outside.first(), outside.len()), (None, None, 0));
    }
}
