//! The sending half of a reliable connection: segmentation, window, acknowledgements, retries
//! (spec/softhca.md 2.7 to 2.9).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::qp::Rts;
use ibdev::{SendFlags, Status};
use ibwire::packet::{Bth, NakCode, Syndrome, SyndromeKind, Transport};
use ibwire::{Psn, RnrTimer};

use super::post::Work;
use super::rc::Peer;
use super::segment::{Message, Request, Segmentation};
use super::shared::{Shared, Side};

/// The receiver-not-ready retry count that stands for "for ever".
const RNR_FOR_EVER: u8 = 7;

/// What the requester waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Nothing that has a deadline.
    Nothing,
    /// An acknowledgement. The timeout is the attribute each time, it does not back off: the time after which a
    /// dead peer is noticed stays what the two attributes say.
    Ack(Instant),
    /// The time that a receiver-not-ready NAK asked for; nothing is sent meanwhile.
    Rnr(Instant),
}

/// PSNs stand in this order: `una`, `next`, `sent`, all modulo 2^24 and within a window.
#[derive(Debug)]
pub(super) struct Requester {
    /// Posted and not complete, oldest first. `una` is in the first.
    messages: VecDeque<(Work, Message)>,
    /// How many packets of the first message are acknowledged: `una` is the one behind them.
    acked: u32,
    /// Where `next` is: a message, and a packet in it.
    at: (usize, u32),
    /// The oldest packet that is not acknowledged.
    una: Psn,
    /// The packet to send next; behind `sent` while packets are sent again.
    next: Psn,
    /// One past the last packet ever sent.
    sent: Psn,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
    wait: Wait,
    /// Whether a sequence NAK for `una` was acted on. The responder sends one; copies of it change nothing.
    nak_seen: bool,
    retries: u8,
    rnr_retries: u8,
    timeout: Option<Duration>,
    retry_count: u8,
    rnr_retry: u8,
    cut: Segmentation,
    window: u32,
}

impl Requester {
    pub(super) fn new() -> Self {
        let psn = Psn::default();
        Self {
            messages: VecDeque::new(),
            acked: 0,
            at: (0, 0),
            una: psn,
            next: psn,
            sent: psn,
            unasked: 0,
            wait: Wait::Nothing,
            nak_seen: false,
            retries: 0,
            rnr_retries: 0,
            timeout: None,
            retry_count: 0,
            rnr_retry: 0,
            cut: Segmentation::new(Transport::RC, 1, 1),
            window: 0,
        }
    }

    pub(super) fn start(&mut self, rts: &Rts, mtu: usize, window: u16) {
        *self = Self {
            una: rts.sq_psn,
            next: rts.sq_psn,
            sent: rts.sq_psn,
            retries: rts.retry_count,
            rnr_retries: rts.rnr_retry,
            timeout: rts.timeout.ack_timeout(),
            retry_count: rts.retry_count,
            rnr_retry: rts.rnr_retry,
            cut: Segmentation::new(Transport::RC, mtu, window.max(1).into()),
            window: u32::from(window.max(1)),
            ..Self::new()
        };
    }

    pub(super) fn post(&mut self, work: Work, request: Request) {
        let message = self.cut.message(request, work.message_len());
        self.messages.push_back((work, message));
    }

    /// Takes the oldest message that is not complete.
    pub(super) fn pop(&mut self) -> Option<Work> {
        self.wait = Wait::Nothing;
        self.messages.pop_front().map(|(work, _)| work)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::Nothing => None,
            Wait::Ack(at) | Wait::Rnr(at) => Some(at),
        }
    }

    /// Whether a packet may go out now.
    pub(super) fn can_send(&self) -> bool {
        self.at.0 < self.messages.len()
            && !matches!(self.wait, Wait::Rnr(_))
            && self.next.distance(self.una) < self.window as i32
    }

    /// Appends the next packet to `out`, if one may go out, and returns its length.
    pub(super) fn next_packet(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        peer: &Peer,
        shared: &mut Shared,
    ) -> Option<usize> {
        if !self.can_send() {
            return None;
        }
        let (work, message) = self.messages.get(self.at.0)?;
        let index = self.at.1;
        let segment = self.cut.segment(message, index);
        let last = segment.last;
        self.unasked += 1;
        let ack_req = last || 2 * self.unasked >= self.window;
        if ack_req {
            self.unasked = 0;
        }
        let bth = Bth {
            solicited: segment.completes && work.flags.contains(SendFlags::SOLICITED),
            ack_req,
            ..peer.bth(segment.opcode, self.next)
        };
        let len = segment.write(out, bth, &work.sg);

        self.at = if last { (self.at.0 + 1, 0) } else { (self.at.0, index + 1) };
        self.next = self.next.offset(1);
        if self.next.distance(self.sent) > 0 {
            self.sent = self.next;
        } else {
            shared.counters.retransmitted += 1;
        }
        if self.wait == Wait::Nothing {
            self.restart_timer(now);
        }
        Some(len)
    }

    fn restart_timer(&mut self, now: Instant) {
        self.wait = self.timeout.map_or(Wait::Nothing, |timeout| Wait::Ack(now + timeout));
    }

    /// Handles an acknowledgement or a NAK.
    ///
    /// # Errors
    /// The status with which the oldest message fails, and the QP with it.
    pub(super) fn handle_aeth(
        &mut self,
        now: Instant,
        psn: Psn,
        syndrome: Syndrome,
        side: &mut Side,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        if !self.is_outstanding(psn, shared) {
            return Ok(());
        }
        match syndrome.kind() {
            SyndromeKind::Ack(_) => self.advance(now, psn.offset(1), side, shared),
            SyndromeKind::Rnr(timer) => {
                self.advance(now, psn, side, shared);
                return self.handle_rnr(now, timer, shared);
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                self.advance(now, psn, side, shared);
                if self.nak_seen || matches!(self.wait, Wait::Rnr(_)) {
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
                self.advance(now, psn, side, shared);
                return Err(status);
            }
            SyndromeKind::Reserved => shared.counters.drop_syndrome += 1,
        }
        Ok(())
    }

    /// A response that no request of ours asks for, such as data when nothing was read.
    ///
    /// # Errors
    /// The status with which the oldest message fails, if it is the one that is answered.
    pub(super) fn handle_other(&mut self, psn: Psn, shared: &mut Shared) -> Result<(), Status> {
        if !self.is_outstanding(psn, shared) {
            return Ok(());
        }
        shared.counters.drop_bad_response += 1;
        Err(Status::BAD_RESP_ERR)
    }

    /// Whether `psn` was sent and is not acknowledged; there is a first message then.
    fn is_outstanding(&self, psn: Psn, shared: &mut Shared) -> bool {
        if psn.distance(self.sent) >= 0 {
            shared.counters.drop_future_response += 1;
            return false;
        }
        if psn.distance(self.una) < 0 {
            shared.counters.drop_stale_response += 1;
            return false;
        }
        true
    }

    fn handle_rnr(&mut self, now: Instant, timer: RnrTimer, shared: &mut Shared) -> Result<(), Status> {
        if matches!(self.wait, Wait::Rnr(_)) {
            shared.counters.drop_repeated_nak += 1;
            return Ok(());
        }
        shared.counters.rnr_naks_received += 1;
        if self.rnr_retry != RNR_FOR_EVER {
            self.rnr_retries = self.rnr_retries.checked_sub(1).ok_or(Status::RNR_RETRY_EXC_ERR)?;
        }
        self.rewind();
        self.wait = Wait::Rnr(now + timer.duration());
        Ok(())
    }

    /// Takes everything before `to` as acknowledged.
    fn advance(&mut self, now: Instant, to: Psn, side: &mut Side, shared: &mut Shared) {
        let packets = to.distance(self.una);
        if packets <= 0 {
            return;
        }
        self.una = to;
        self.acked += packets as u32;
        self.retries = self.retry_count;
        self.rnr_retries = self.rnr_retry;
        self.nak_seen = false;
        while self.messages.front().is_some_and(|(_, message)| message.packets <= self.acked) {
            let Some((work, message)) = self.messages.pop_front() else { break };
            self.acked -= message.packets;
            self.at.0 = self.at.0.saturating_sub(1);
            work.succeed(0, side, shared);
        }
        if self.next.distance(to) < 0 {
            self.rewind();
        }
        if self.next == to {
            self.wait = Wait::Nothing;
        } else {
            self.restart_timer(now);
        }
    }

    /// Goes back to the oldest packet that is not acknowledged.
    fn rewind(&mut self) {
        self.next = self.una;
        self.at = (0, self.acked);
        self.unasked = 0;
        self.wait = Wait::Nothing;
    }

    /// Sends everything again that is not acknowledged, while retries are left.
    fn retry(&mut self) -> Result<(), Status> {
        self.retries = self.retries.checked_sub(1).ok_or(Status::RETRY_EXC_ERR)?;
        self.rewind();
        Ok(())
    }

    /// To be called at [`deadline`](Self::deadline) or later.
    ///
    /// # Errors
    /// The status with which the oldest message fails, and the QP with it.
    pub(super) fn handle_timeout(&mut self, now: Instant, shared: &mut Shared) -> Result<(), Status> {
        match self.wait {
            Wait::Ack(at) if at <= now => {
                shared.counters.timeouts += 1;
                self.retry()
            }
            Wait::Rnr(at) if at <= now => {
                self.wait = Wait::Nothing;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
