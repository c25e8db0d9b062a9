//! Packets between the engine and the sockets.

use std::ops::Range;

use ibwire::icrc::Icrc;

use crate::engine::NetHeader;

/// Packets one behind the other, each with room for its ICRC, to be taken in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Packets {
    bytes: Vec<u8>,
    /// Where each goes, and where it ends in `bytes`.
    ends: Vec<(NetHeader, usize)>,
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
        self.ends.push((*net, self.bytes.len()));
    }

    /// The oldest packet: where it goes, and where it is with the room for its ICRC.
    pub(super) fn first(&self) -> Option<(&NetHeader, Range<usize>)> {
        let (net, end) = self.ends.get(self.taken)?;
        Some((net, self.start..*end))
    }

    /// Takes the oldest packet. Its bytes stay until [`swap`](Self::swap).
    pub(super) fn take_first(&mut self) {
        if let Some((_, end)) = self.ends.get(self.taken) {
            self.start = *end;
            self.taken += 1;
        }
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
        self.ends.clear();
        (self.taken, self.start) = (0, 0);
        std::mem::swap(self, other);
    }
}

#[cfg(test)]
mod tests {
    use ibwire::{Lid, ServiceLevel};

    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in() {
        let net = NetHeader { slid: Lid::NONE, dlid: Lid::NONE, sl: ServiceLevel::truncate(0), route: None };
        let mut inside = Packets::default();
        for len in [4, 8, 12] {
            inside.next().extend(std::iter::repeat_n(len as u8, len));
            inside.push(&net);
        }
        assert_eq!((inside.count(), inside.len()), (3, 36));
        let mut outside = Packets::default();
        outside.swap(&mut inside);
        assert_eq!((inside.is_empty(), inside.len()), (true, 0));
        let mut start = 0;
        for len in [4, 8, 12] {
            let end = start + len + Icrc::LEN;
            assert_eq!(outside.first(), Some((&net, start..end)));
            assert_eq!(outside.bytes(start..start + len), vec![len as u8; len]);
            outside.bytes_mut(start + len..end).fill(0xee);
            outside.take_first();
            start = end;
        }
        assert_eq!((outside.first(), outside.count(), outside.len()), (None, 0, 36));
        outside.take_first();
        outside.swap(&mut inside);
        assert_eq!((outside.first(), outside.len()), (None, 0));
    }
}
