//! What leaves, and when.

use std::time::Instant;

use ibdev::SendFlags;
use ibwire::packet::Bth;

use super::{Requester, Wait};
use crate::engine::net::Run;
use crate::engine::peer::Peer;
use crate::engine::sg;
use crate::engine::shared::Shared;

impl Requester {
    /// Whether single packets ask if the peer has a receive by now.
    const fn is_asking(&self) -> bool {
        self.not_ready > 1
    }

    /// Whether a packet may go out now: any, or with `draining` only what belongs to messages that were started.
    pub(in crate::engine) fn can_send(&self, draining: bool) -> bool {
        let (place, index) = self.at;
        let Some((work, message)) = self.messages.get(place) else { return false };
        let in_flight = self.next.distance(self.una) as u32 - self.reading;
        let most = if self.is_asking() { 1 } else { self.window.packets() };
        if matches!(self.wait, Wait::Rnr(..)) || self.refused.is_some() || in_flight >= most {
            return false;
        }
        let starts = index == 0;
        if starts && draining && self.next == self.sent {
            return false;
        }
        if starts && self.asked > 0 && work.flags.contains(SendFlags::FENCE) {
            return false;
        }
        !message.request.has_result()
            || self.asked < u32::from(self.max_rd_atomic) && self.reading < self.window.packets()
    }

    /// Appends the next packet to `out`, if one may go out, and returns its length.
    pub(in crate::engine) fn next_packet(
        &mut self,
        now: Instant,
        draining: bool,
        out: &mut Vec<u8>,
        peer: &Peer,
        shared: &mut Shared,
    ) -> Option<usize> {
        if !self.can_send(draining) {
            return None;
        }
        let (place, index) = self.at;
        let (work, message) = self.messages.get(place)?;
        let segment = self.cut.segment(message, index);
        let has_result = message.request.has_result();
        self.unasked += 1;
        let ack_req =
            segment.last || has_result || self.is_asking() || 2 * self.unasked >= self.window.packets();
        if ack_req {
            self.unasked = 0;
        }
        let bth = Bth {
            solicited: segment.completes && work.flags.contains(SendFlags::SOLICITED),
            ack_req,
            ..peer.bth(segment.opcode, self.next)
        };
        let len = segment.write(out, bth, &work.sg);

        if has_result {
            self.asked += 1;
            if message.request.is_read() {
                self.reading += segment.psns;
            }
        }
        self.at = if segment.last { (place + 1, 0) } else { (place, index + segment.psns) };
        let again = self.next.distance(self.sent) < 0;
        self.next = self.next.offset(segment.psns);
        if self.next.distance(self.sent) > 0 {
            self.sent = self.next;
        }
        if again {
            shared.counters.retransmitted += 1;
        }
        if self.wait == Wait::Nothing {
            self.restart_timer(now);
        }
        Some(len)
    }

    /// Appends packets from the middle of the message whose last packet has just left, as long as that: those that ask for
    /// nothing. How many.
    pub(in crate::engine) fn go_on(
        &mut self,
        out: &mut Vec<u8>,
        run: Run,
        peer: &Peer,
        shared: &mut Shared,
    ) -> u32 {
        let (place, index) = self.at;
        // What has begun goes on while draining, too.
        if index == 0 || self.is_asking() || !self.can_send(true) {
            return 0;
        }
        let Some((work, message)) = self.messages.get(place) else { return 0 };
        let segment = self.cut.segment(message, index);
        if message.request.has_result() || segment.last || Bth::LEN + segment.payload.len() != run.len {
            return 0;
        }
        let window = self.window.packets();
        let in_flight = self.next.distance(self.una) as u32 - self.reading;
        let silent = (window.div_ceil(2) - 1).saturating_sub(self.unasked);
        let packets = run.most.min(message.packets - 1 - index).min(window - in_flight).min(silent);

        let bth = peer.bth(segment.opcode, self.next);
        let (start, len) = (segment.payload.start, segment.payload.len());
        run.write(out, bth, packets, |out, k| {
            let start = start + k as usize * len;
            sg::gather(&work.sg, start..start + len, out);
        });

        let again = self.sent.distance(self.next).clamp(0, packets as i32) as u32;
        shared.counters.retransmitted += u64::from(again);
        self.at.1 += packets;
        self.unasked += packets;
        self.next = self.next.offset(packets);
        if self.next.distance(self.sent) > 0 {
            self.sent = self.next;
        }
        packets
    }
}
