//! Packets between the engine and the transmitter.

use std::collections::VecDeque;

use crate::engine::Egress;

/// Packets one behind the other, to be taken in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Packets {
    bytes: Vec<u8>,
    /// Each packet with its end in `bytes`.
    egress: VecDeque<(Egress, usize)>,
    /// Where the first packet begins.
    start: usize,
}

impl Packets {
    pub(super) fn is_empty(&self) -> bool {
        self.egress.is_empty()
    }

    /// How many packets there are.
    pub(super) fn count(&self) -> usize {
        self.egress.len()
    }

    /// Bytes, those of packets that were taken included.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds what `write` appends. Whether that was a packet.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Egress>) -> bool {
        let egress = write(&mut self.bytes);
        self.egress.extend(egress.map(|egress| (egress, self.bytes.len())));
        egress.is_some()
    }

    /// Appends the oldest packet to `buffer`.
    pub(super) fn pop(&mut self, buffer: &mut Vec<u8>) -> Option<Egress> {
        let (egress, end) = self.egress.pop_front()?;
        buffer.extend_from_slice(&self.bytes[self.start..end]);
        self.start = end;
        Some(egress)
    }

    /// Takes all of `other`. Nothing may be left here.
    pub(super) fn swap(&mut self, other: &mut Self) {
        debug_assert!(self.is_empty());
        self.bytes.clear();
        self.start = 0;
        std::mem::swap(self, other);
    }
}

#[cfg(test)]
mod tests {
    use ibwire::{Lid, Qpn, ServiceLevel};

    use super::*;
    use crate::engine::NetHeader;

    #[test]
    fn packets_come_out_as_they_went_in() {
        let net = NetHeader { slid: Lid::NONE, dlid: Lid::NONE, sl: ServiceLevel::truncate(0), route: None };
        let egress = |len| Egress { port: 1, net, qpn: Qpn::truncate(len as u32), len };
        let mut inside = Packets::default();
        for len in [4, 8, 12] {
            assert!(inside.push(|bytes| {
                bytes.extend(std::iter::repeat_n(len as u8, len));
                Some(egress(len))
            }));
        }
        assert!(!inside.push(|_| None));
        assert_eq!((inside.count(), inside.len()), (3, 24));
        let (mut outside, mut buffer) = (Packets::default(), Vec::new());
        outside.swap(&mut inside);
        assert_eq!((inside.is_empty(), inside.len()), (true, 0));
        for len in [4, 8, 12] {
            buffer.clear();
            assert_eq!(outside.pop(&mut buffer), Some(egress(len)));
            assert_eq!(buffer, vec![len as u8; len]);
        }
        assert_eq!(outside.pop(&mut buffer), None);
        outside.swap(&mut inside);
        assert_eq!(outside.pop(&mut buffer), None);
    }
}
