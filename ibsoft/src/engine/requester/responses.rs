//! What the peer answers: acknowledgements, NAKs, the results of reads and atomics (spec/softhca.md 2.8).

use std::time::Instant;

use ibdev::Status;
use ibwire::Psn;
use ibwire::packet::{AtomicAckEth, NakCode, Opcode, Syndrome, SyndromeKind, TransportPacket};

use super::{Requester, Wait};
use crate::engine::net::Ingress;
use crate::engine::sg;
use crate::engine::shared::{Shared, Side};

impl Requester {
    /// Handles a response.
    ///
    /// One to a PSN that was not sent is dropped, whatever it is: also a NAK for the PSN that is sent next, because a
    /// responder refuses only what it has received.
    ///
    /// # Errors
    /// The status with which the oldest message fails, and the QP with it.
    pub(in crate::engine) fn handle(
        &mut self,
        now: Instant,
        packet: &TransportPacket<'_>,
        side: &mut Side,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        let (psn, opcode) = (packet.bth().psn, packet.bth().opcode);
        if psn.distance(self.sent) >= 0 {
            shared.counters.drop_future_response += 1;
            return Ok(());
        }
        if psn.distance(self.una) < 0 {
            shared.counters.drop_stale_response += 1;
            return Ok(());
        }
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        match syndrome {
            Some(syndrome) if opcode == Opcode::RC_ACKNOWLEDGE => {
                self.handle_acknowledge(now, psn, syndrome, side, shared)?;
            }
            Some(syndrome) if !matches!(syndrome.kind(), SyndromeKind::Ack(_)) => {
                shared.counters.drop_syndrome += 1;
            }
            _ => self.handle_result(now, packet, side, shared)?,
        }
        self.fail_if_refused(now, side, shared)
    }

    /// Takes packets from the middle of the response to the read at `una`, which came behind one of it, if they are the next
    /// ones. How many.
    pub(in crate::engine) fn take_middles(
        &mut self,
        now: Instant,
        ingress: &Ingress<'_>,
        side: &mut Side,
        shared: &mut Shared,
    ) -> u32 {
        if ingress.next_psn() != self.una {
            return 0;
        }
        let index = self.done;
        let Some((work, message)) =
            self.messages.front_mut().filter(|(_, message)| message.request.is_read())
        else {
            return 0;
        };
        let start = self.cut.range(message, index).start;
        // The last packet of a response is another kind of packet. All before it were asked for together.
        let before_last = self.cut.read_end(message, index) - 1 - index;
        if ingress.middle_len() != self.cut.mtu() {
            return 0;
        }
        let middles = ingress.middles(before_last);
        let places = (start..).step_by(self.cut.mtu());
        let filled = places.zip(middles.payloads());
        let taken = filled.take_while(|(at, payload)| sg::fill(&mut work.sg, *at, payload)).count() as u32;
        if taken == 0 {
            return 0;
        }
        if self.next != self.una {
            self.reading -= taken;
        }
        self.pass(taken, side, shared);
        self.progress(now, taken);
        taken
    }

    /// Handles the response to a read or an atomic.
    fn handle_result(
        &mut self,
        now: Instant,
        packet: &TransportPacket<'_>,
        side: &mut Side,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        let (psn, opcode) = (packet.bth().psn, packet.bth().opcode);
        self.acknowledge(now, psn, side, shared);
        if self.una != psn {
            shared.counters.drop_behind_gap += 1;
            self.restart_at_gap(shared);
            return Ok(());
        }
        match packet.atomic_ack() {
            Some(result) => self.handle_atomic(now, result, side, shared),
            None => self.handle_read(now, opcode, packet.payload(), side, shared),
        }
    }

    /// Fails the message that the peer has refused, once all before it is complete.
    fn fail_if_refused(&mut self, now: Instant, side: &mut Side, shared: &mut Shared) -> Result<(), Status> {
        let Some((psn, status)) = self.refused else { return Ok(()) };
        self.acknowledge(now, psn, side, shared);
        let left = self.messages.front().map_or(0, |(_, message)| message.packets - self.done);
        if psn.distance(self.una) < left as i32 {
            return Err(status);
        }
        // What nothing bounds is not waited for.
        if self.timeout.is_some() { Ok(()) } else { Err(Status::RETRY_EXC_ERR) }
    }

    fn handle_acknowledge(
        &mut self,
        now: Instant,
        psn: Psn,
        syndrome: Syndrome,
        side: &mut Side,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        match syndrome.kind() {
            SyndromeKind::Rnr(_) | SyndromeKind::Nak(_) if self.refused.is_some() => {
                shared.counters.drop_repeated_nak += 1;
            }
            SyndromeKind::Ack(_) => {
                let to = psn.offset(1);
                self.acknowledge(now, to, side, shared);
                if self.una != to && !self.restart_at_gap(shared) {
                    shared.counters.drop_repeated_nak += 1;
                }
            }
            SyndromeKind::Rnr(timer) => {
                self.acknowledge(now, psn, side, shared);
                return self.handle_rnr(now, psn, timer, shared);
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                self.acknowledge(now, psn, side, shared);
                if self.nak_seen || matches!(self.wait, Wait::Rnr(..)) {
                    shared.counters.drop_repeated_nak += 1;
                } else {
                    shared.counters.sequence_naks_received += 1;
                    self.nak_seen = true;
                    self.retry()?;
                }
            }
            SyndromeKind::Nak(code) => {
                let status = match code {
                    NakCode::INVALID_REQUEST => Status::REM_INV_REQ_ERR,
                    NakCode::REMOTE_ACCESS_ERROR => Status::REM_ACCESS_ERR,
                    NakCode::REMOTE_OPERATIONAL_ERROR => Status::REM_OP_ERR,
                    _ => {
                        shared.counters.drop_syndrome += 1;
                        return Ok(());
                    }
                };
                shared.counters.fatal_naks_received += 1;
                self.refused = Some((psn, status));
                self.restart_timer(now);
            }
            SyndromeKind::Reserved => shared.counters.drop_syndrome += 1,
        }
        Ok(())
    }

    /// Takes the sends and writes before `to` as acknowledged, up to the first read or atomic: only its response ends
    /// that.
    fn acknowledge(&mut self, now: Instant, to: Psn, side: &mut Side, shared: &mut Shared) {
        let before = self.una;
        while let Some((_, message)) = self.messages.front() {
            let acknowledged = to.distance(self.una);
            if acknowledged <= 0 || message.request.has_result() {
                break;
            }
            self.pass((message.packets - self.done).min(acknowledged as u32), side, shared);
        }
        if self.una != before {
            self.progress(now, self.una.distance(before) as u32);
        }
    }

    /// The peer has answered more than the read or atomic at `una`, whose response is lost: that and what lies behind
    /// it is sent again. It costs no retry, because progress or a timeout has to come before the next time. False if it is
    /// about to happen anyway, or too soon.
    fn restart_at_gap(&mut self, shared: &mut Shared) -> bool {
        let waits = self.next == self.una || self.refused.is_some() || matches!(self.wait, Wait::Rnr(..));
        if waits || self.restart_from.distance(self.una) > 0 {
            return false;
        }
        shared.counters.implied_naks_received += 1;
        let again = self.sent.distance(self.una) as u32;
        self.restart_from = self.una.offset(again.div_ceil(2));
        self.window.shrink();
        self.rewind();
        true
    }

    /// Stores the result of the atomic at `una`.
    fn handle_atomic(
        &mut self,
        now: Instant,
        result: AtomicAckEth,
        side: &mut Side,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        let Some((work, _)) = self.messages.front_mut().filter(|(_, message)| message.request.is_atomic())
        else {
            shared.counters.drop_bad_response += 1;
            return Err(Status::BAD_RESP_ERR);
        };
        if !sg::fill(&mut work.sg, 0, &result.original.to_ne_bytes()) {
            return Err(Status::LOC_PROT_ERR);
        }
        if self.next != self.una {
            self.asked -= 1;
        }
        self.pass(1, side, shared);
        self.progress(now, 1);
        Ok(())
    }

    /// Places a packet of the response to the read at `una`. Where it belongs follows from its PSN. A response that was
    /// asked for again may begin with any kind of packet, it ends where the first one did.
    fn handle_read(
        &mut self,
        now: Instant,
        opcode: Opcode,
        payload: &[u8],
        side: &mut Side,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        let index = self.done;
        let Some((work, message)) =
            self.messages.front_mut().filter(|(_, message)| message.request.is_read())
        else {
            shared.counters.drop_bad_response += 1;
            return Err(Status::BAD_RESP_ERR);
        };
        let range = self.cut.range(message, index);
        let ends = index + 1 == self.cut.read_end(message, index);
        if payload.len() != range.len() || ends != (opcode.is_last() || opcode.is_only()) {
            shared.counters.drop_bad_response += 1;
            return Err(Status::LOC_LEN_ERR);
        }
        if !sg::fill(&mut work.sg, range.start, payload) {
            return Err(Status::LOC_PROT_ERR);
        }
        if self.next != self.una {
            self.reading -= 1;
            self.asked -= u32::from(ends);
        }
        self.pass(1, side, shared);
        self.progress(now, 1);
        Ok(())
    }
}
