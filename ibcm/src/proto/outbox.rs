//! MADs that wait to be sent, a queue for each port: a port whose send window is full holds up no other.
//!
//! Messages that connections and queries owe by their state are in it by name only: the REQ, REP, DREQ or SIDR_REQ whose
//! answer is awaited, and the RTU. Of each a live connection has one at most; names of connections that have ended are swept out before they
//! outnumber those. All other MADs are answers, in bounded number.

use std::collections::VecDeque;

use ibdev::OutgoingMad;

use super::endpoint::ConnHandle;
use super::sidr::SidrQueryHandle;

/// What a queue has next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Outgoing {
    /// This MAD.
    Mad(OutgoingMad),
    /// What the connection owes, if it still does.
    Owed(Owed),
}

/// A message that a connection owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    /// The message whose answer it awaits.
    Exchange(ConnHandle),
    /// The RTU.
    Rtu(ConnHandle),
    /// The SIDR_REQ whose answer a query awaits.
    Query(SidrQueryHandle),
}

/// The queues of all ports.
#[derive(Debug)]
pub(super) struct Outbox {
    ports: Vec<PortQueue>,
    /// How many names are in all of them.
    owed: usize,
}

#[derive(Debug)]
struct PortQueue {
    port: u8,
    /// `None` is the first of `mads` that none before stands for.
    order: VecDeque<Option<Owed>>,
    mads: VecDeque<OutgoingMad>,
}

/// So few names are not worth a sweep.
const SWEEP_FROM: usize = 64;

/// What one live connection can owe.
const OWED_BY_ONE: usize = 2;

impl Outbox {
    pub(super) fn new(ports: impl Iterator<Item = u8>) -> Self {
        let mut outbox = Self { ports: Vec::new(), owed: 0 };
        ports.for_each(|port| outbox.add_port(port));
        outbox
    }

    /// Makes a queue for the port unless it has one.
    pub(super) fn add_port(&mut self, port: u8) {
        if self.queue(port).is_none() {
            self.ports.push(PortQueue { port, order: VecDeque::new(), mads: VecDeque::new() });
        }
    }

    /// How many MADs wait at the port, those that connections owe not counted; `None` if there is no such port.
    pub(super) fn waiting(&mut self, port: u8) -> Option<usize> {
        self.queue(port).map(|queue| queue.mads.len())
    }

    /// Adds a MAD to the queue of its port, which must exist.
    pub(super) fn push(&mut self, mad: OutgoingMad) {
        if let Some(queue) = self.queue(mad.to.av.port) {
            queue.mads.push_back(mad);
            queue.order.push_back(None);
        }
    }

    /// Adds what a connection owes. Without such a port nothing is ever sent.
    pub(super) fn owe(&mut self, port: u8, owed: Owed) {
        if let Some(queue) = self.queue(port) {
            queue.order.push_back(Some(owed));
            self.owed += 1;
        }
    }

    #[inline]
    pub(super) fn pop(&mut self, port: u8) -> Option<Outgoing> {
        let queue = self.queue(port)?;
        match queue.order.pop_front()? {
            Some(owed) => {
                self.owed -= 1;
                Some(Outgoing::Owed(owed))
            }
            None => queue.mads.pop_front().map(Outgoing::Mad),
        }
    }

    /// Sweeps out the names that do not count any more, if there are many for so many live connections.
    pub(super) fn sweep(&mut self, connections: usize, counts: impl Fn(&Owed, u8) -> bool) {
        if self.owed <= 2 * OWED_BY_ONE * connections + SWEEP_FROM {
            return;
        }
        for queue in &mut self.ports {
            let before = queue.order.len();
            queue.order.retain(|entry| entry.as_ref().is_none_or(|owed| counts(owed, queue.port)));
            self.owed -= before - queue.order.len();
        }
    }

    /// Nothing is sent any more. Returns how many MADs were waiting, those that connections owed not counted.
    pub(super) fn clear(&mut self) -> usize {
        self.owed = 0;
        let waiting = self.ports.iter().map(|queue| queue.mads.len()).sum();
        for queue in &mut self.ports {
            queue.order.clear();
            queue.mads.clear();
        }
        waiting
    }

    fn queue(&mut self, port: u8) -> Option<&mut PortQueue> {
        self.ports.iter_mut().find(|queue| queue.port == port)
    }
}

#[cfg(test)]
mod tests {
    use ibdev::{AddressVector, MAD_LEN, MadAddr};
    use ibwire::{Lid, QKey, Qpn, Rate, ServiceLevel};

    use super::*;

    fn mad(port: u8, content: u8) -> OutgoingMad {
        let av = AddressVector {
            port,
            dlid: Lid(1),
            sl: ServiceLevel::truncate(0),
            path_bits: 0,
            rate: Rate::PORT_CURRENT,
            grh: None,
        };
        let to = MadAddr { av, qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 };
        OutgoingMad { to, mad: [content; MAD_LEN] }
    }

    #[test]
    fn each_port_has_its_own_order() {
        let mut outbox = Outbox::new([1, 2].into_iter());
        let [first, second] = [1, 2].map(|slot| ConnHandle::new(slot, 0));
        outbox.push(mad(1, 7));
        outbox.owe(2, Owed::Exchange(first));
        outbox.owe(1, Owed::Rtu(second));
        outbox.owe(1, Owed::Exchange(second));
        outbox.push(mad(1, 8));
        outbox.owe(3, Owed::Exchange(second));
        assert_eq!([1, 2, 3].map(|port| outbox.waiting(port)), [Some(2), Some(0), None]);

        assert!(matches!(outbox.pop(2), Some(Outgoing::Owed(owed)) if owed == Owed::Exchange(first)));
        assert!(outbox.pop(2).is_none() && outbox.pop(3).is_none());
        assert!(matches!(outbox.pop(1), Some(Outgoing::Mad(out)) if out.mad[0] == 7));
        assert!(matches!(outbox.pop(1), Some(Outgoing::Owed(owed)) if owed == Owed::Rtu(second)));
        assert_eq!((outbox.clear(), outbox.owed), (1, 0));
        assert!(outbox.pop(1).is_none());
    }

    #[test]
    fn dead_names_are_swept() {
        let mut outbox = Outbox::new([1, 2].into_iter());
        let live = ConnHandle::new(0, 0);
        outbox.owe(2, Owed::Exchange(live));
        outbox.push(mad(1, 7));
        for slot in 1..100_000 {
            outbox.owe(1, Owed::Exchange(ConnHandle::new(slot, 0)));
            outbox.sweep(1, |owed, port| (*owed, port) == (Owed::Exchange(live), 2));
            assert!(outbox.owed <= 2 * OWED_BY_ONE + SWEEP_FROM);
        }
        assert!(outbox.pop(2).is_some());
        assert!(matches!(outbox.pop(1), Some(Outgoing::Mad(_))));
    }
}
