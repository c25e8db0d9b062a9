//! READs and atomics of the peer: their answers, and what is remembered to give them again (spec/softhca.md 2.4, 2.6).

use std::collections::VecDeque;

use ibwire::packet::{Operation, Reth};
use ibwire::{Msn, Psn};

use super::place::Refusal;

/// What is answered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    /// Memory, read when the answer leaves.
    Read(Reth),
    /// The value before the operation, which is carried out once.
    Atomic { operation: Operation, original: u64 },
}

/// A READ or an atomic, and how far its answer is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Response {
    pub(super) asked: Asked,
    /// The PSN of the request and of its first answer.
    first: Psn,
    /// How many PSNs it takes.
    packets: u32,
    /// How many messages were executed with it.
    pub(super) msn: Msn,
    /// The answer that was asked for begins with this packet: not 0 if the peer asked again for the rest.
    start: u32,
    /// The packet to send next.
    next: u32,
    /// Whether all was sent once.
    answered: bool,
}

impl Response {
    /// The PSN of the packet to send next.
    pub(super) fn psn(&self) -> Psn {
        self.first.offset(self.next)
    }

    /// The index of the packet to send next.
    pub(super) fn index(&self) -> u32 {
        self.next
    }

    /// How many packets are left in front of the last one, with the one to send next.
    pub(super) fn middles(&self) -> u32 {
        self.packets - 1 - self.next
    }

    /// Whether the packet to send next is the first of the answer, and whether it is the last.
    pub(super) fn place(&self) -> (bool, bool) {
        (self.next == self.start, self.next + 1 == self.packets)
    }
}

/// The newest READs and atomics, in the order of their PSNs: those that were answered, then those that were not yet.
#[derive(Debug, Default)]
pub(super) struct Responses {
    ring: VecDeque<Response>,
    /// As many as the peer may have outstanding, and as many as are remembered.
    max: usize,
    /// The first that has something to send; the length of the ring if none has.
    turn: usize,
}

impl Responses {
    pub(super) fn new(max: u8) -> Self {
        Self { ring: VecDeque::new(), max: usize::from(max), turn: 0 }
    }

    /// Whether one more may be outstanding.
    pub(super) fn room(&self) -> Result<(), Refusal> {
        // Those that were not answered stand at the end.
        let outstanding = self.ring.iter().rev().take_while(|response| !response.answered).count();
        if outstanding < self.max { Ok(()) } else { Err(Refusal::Resources) }
    }

    /// Adds the newest one. There is [`room`](Self::room). The oldest is forgotten for it: a peer that asks for one more
    /// has got that answer.
    pub(super) fn add(&mut self, first: Psn, packets: u32, msn: Msn, asked: Asked) {
        if self.ring.len() >= self.max {
            self.ring.pop_front();
            self.turn = self.turn.saturating_sub(1);
        }
        self.ring.push_back(Response { asked, first, packets, msn, start: 0, next: 0, answered: false });
        // What was forgotten may have been about to be sent again.
        self.settle();
    }

    /// The one whose turn it is to send a packet.
    pub(super) fn head(&self) -> Option<&Response> {
        self.ring.get(self.turn)
    }

    /// That packet is sent, and others behind it: so many of its answer together.
    pub(super) fn advance(&mut self, packets: u32) {
        let Some(response) = self.ring.get_mut(self.turn) else { return };
        response.next += packets;
        response.answered |= response.next == response.packets;
        self.settle();
    }

    /// The rest of an answer that was given before is not sent again. False, and nothing is changed, if it was not.
    pub(super) fn skip(&mut self) -> bool {
        let Some(response) = self.ring.get_mut(self.turn).filter(|response| response.answered) else {
            return false;
        };
        response.next = response.packets;
        self.settle();
        true
    }

    /// Goes on to what has something to send.
    fn settle(&mut self) {
        while self.ring.get(self.turn).is_some_and(|response| response.next == response.packets) {
            self.turn += 1;
        }
    }

    /// Nothing more is sent.
    pub(super) fn stop(&mut self) {
        self.ring.clear();
        self.turn = 0;
    }

    /// Answers a READ again from `psn` on. False if it is not the rest of one that is remembered.
    pub(super) fn read_again(&mut self, psn: Psn, rest: Reth, mtu: usize) -> bool {
        self.again(psn, |response, skipped| match response.asked {
            Asked::Read(reth) => {
                let bytes = u64::from(skipped) * mtu as u64;
                rest.rkey == reth.rkey
                    && rest.va == reth.va.wrapping_add(bytes)
                    && u64::from(rest.len) + bytes == u64::from(reth.len)
            }
            Asked::Atomic { .. } => false,
        })
    }

    /// Answers an atomic again. False if it is not remembered.
    pub(super) fn atomic_again(&mut self, psn: Psn, asked: Operation) -> bool {
        self.again(psn, |response, skipped| {
            skipped == 0 && matches!(response.asked, Asked::Atomic { operation, .. } if operation == asked)
        })
    }

    fn again(&mut self, psn: Psn, is_same: impl Fn(&Response, u32) -> bool) -> bool {
        let skipped = |response: &Response| u32::try_from(psn.distance(response.first)).ok();
        let found = self.ring.iter_mut().enumerate().find_map(|(at, response)| {
            let skipped = skipped(response).filter(|skipped| *skipped < response.packets)?;
            is_same(response, skipped).then_some((at, response, skipped))
        });
        let Some((at, response, skipped)) = found else { return false };
        (response.start, response.next) = (skipped, skipped);
        self.turn = self.turn.min(at);
        true
    }
}
