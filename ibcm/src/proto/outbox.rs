//! MADs that wait to be sent, a queue for each port: a port whose send window is full holds up no other.
//!
//! Messages that connections owe by their state are in it by name only: the REQ, REP or DREQ whose answer is awaited, and
//! the RTU. Of each a live connection has one at most; names of connections that have ended are swept out before they
//! outnumber those. All other MADs are answers, in bounded number.

use std::collections::VecDeque;

use ibdev::OutgoingMad;

use super::endpoint::ConnHandle;

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
