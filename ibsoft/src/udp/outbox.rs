//! Packets between the engine and the sockets.

use std::ops::Range;

use crate::engine::NetHeader;

/// Packets one behind the other, each with its ICRC or room for it, to be taken in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Packets {
    bytes: Vec<u8>,
    /// Where packets go, and how many rows were there when the first of those came; rows behind each other go the same way.
    ways: Vec<(NetHeader, usize)>,
    rows: Vec<Row>,
    /// The way of the oldest that was not taken.
    way: usize,
    /// How many rows were taken, and how many packets of the next one.
    taken: (usize, usize),
    /// Where the first of the others begins.
    start: usize,
    /// How many others there are.
    count: usize,
}

/// Packets of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// With the ICRC.
    pub len: usize,
    pub packets: usize,
}

impl Packets {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many packets there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Bytes, those of packets that were taken included.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Where the bytes of the next packets are to be appended.
    pub(super) fn next(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// They were: so many go there, each of this length with the ICRC.
    pub(super) fn push(&mut self, net: &NetHeader, len: usize, packets: usize) {
        if self.ways.last().is_none_or(|(last, _)| last != net) {
            self.ways.push((*net, self.rows.len()));
        }
        self.rows.push(Row { len, packets });
        self.count += packets;
    }

    /// Where the oldest packet goes.
    pub(super) fn way(&self) -> Option<&NetHeader> {
        self.first()?;
        self.ways.get(self.way).map(|(net, _)| net)
    }

    /// The oldest packet and those behind it in its row: where they begin.
    pub(super) fn first(&self) -> Option<(usize, Row)> {
        let (rows, packets) = self.taken;
        let row = self.rows.get(rows)?;
        Some((self.start, Row { packets: row.packets - packets, ..*row }))
    }

    /// Takes so many packets of the oldest row; whether the next one goes the same way. Their bytes stay until
    /// [`swap`](Self::swap).
    pub(super) fn take(&mut self, packets: usize) -> bool {
        let Some((_, row)) = self.first() else { return false };
        let packets = packets.min(row.packets);
        self.start += packets * row.len;
        self.count -= packets;
        self.taken.1 += packets;
        if packets < row.packets {
            return true;
        }
        self.taken = (self.taken.0 + 1, 0);
        let turns = self.ways.get(self.way + 1).is_some_and(|(_, first)| *first == self.taken.0);
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
        self.rows.clear();
        (self.taken, self.start, self.way) = ((0, 0), 0, 0);
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
        let rows = [(4, 2, 1), (8, 1, 1), (12, 3, 2), (16, 1, 1)];
        for (len, packets, sl) in rows {
            inside.next().extend(std::iter::repeat_n(len as u8, len * packets));
            inside.push(&net(sl), len, packets);
        }
        assert_eq!((inside.count(), inside.len()), (7, 68));
        let mut outside = Packets::default();
        outside.swap(&mut inside);
        assert_eq!((inside.is_empty(), inside.len()), (true, 0));
        let (mut start, mut left) = (0, 7);
        for (n, (len, packets, sl)) in rows.into_iter().enumerate() {
            for rest in (1..=packets).rev() {
                assert_eq!(outside.way(), Some(&net(sl)));
                assert_eq!(outside.first(), Some((start, Row { len, packets: rest })));
                assert_eq!(outside.bytes(start..start + len), vec![len as u8; len]);
                outside.bytes_mut(start..start + len).fill(0xee);
                let goes_on = rest > 1 || [true, false, false, true][n];
                assert_eq!(outside.take(1), goes_on, "row {n}");
                (start, left) = (start + len, left - 1);
                assert_eq!(outside.count(), left);
            }
        }
        assert_eq!((outside.way(), outside.first(), outside.count(), outside.len()), (None, None, 0, 68));
        outside.take(1);
        outside.swap(&mut inside);
        assert_eq!((outside.way(), outside.first(), outside.len()), (None, None, 0));
    }

    #[test]
    fn a_row_is_taken_in_parts() {
        let mut packets = Packets::default();
        packets.next().resize(40, 0);
        packets.push(&NetHeader::roce(ROUTE), 4, 10);
        assert!(packets.take(3));
        assert_eq!((packets.first(), packets.count()), (Some((12, Row { len: 4, packets: 7 })), 7));
        assert!(packets.take(9), "no more than there are");
        assert!(packets.first().is_none() && packets.is_empty());
    }
}
