//! The sending half of a reliable connection: windows, acknowledgements, responses, retries (spec/softhca.md 2.7 to
//! 2.9).

mod responses;
mod send;
mod window;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::Status;
use ibdev::qp::Rts;
use ibwire::packet::Transport;
use ibwire::{Psn, RnrTimer};

use super::post::Work;
use super::segment::{Message, Request, Segmentation};
use super::shared::{Shared, Side};
use window::Window;

/// Response packets that one read request asks for at most: a responder sends them in one go.
const READ_PART: u32 = 64;

/// The receiver-not-ready retry count that stands for "for ever".
const RNR_FOR_EVER: u8 = 7;

/// What the requester waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Nothing that has a deadline.
    Nothing,
    /// An acknowledgement or a response. The timeout is the attribute each time, it does not back off: the time after
    /// which a dead peer is noticed stays what the two attributes say.
    Ack(Instant),
    /// The time that a receiver-not-ready NAK for this PSN asked for; nothing is sent meanwhile.
    Rnr(Instant, Psn),
}

/// PSNs stand in this order: `una`, `next`, `sent`, all modulo 2^24 and within the windows.
#[derive(Debug)]
pub(super) struct Requester {
    /// Posted and not complete, oldest first. `una` is in the first.
    messages: VecDeque<(Work, Message)>,
    /// How many packets of the first message are done: acknowledged, or responses of a read that are in place. `una` is
    /// the one behind them.
    done: u32,
    /// Where `next` is: a message, and a packet in it.
    at: (usize, u32),
    /// The oldest packet that is not acknowledged, or the oldest response that is missing.
    una: Psn,
    /// The PSN to send next; behind `sent` while packets are sent again.
    next: Psn,
    /// One past the last PSN ever sent or asked for.
    sent: Psn,
    /// Read requests and atomics between `una` and `next`: sent, and not answered in full.
    asked: u32,
    /// How many PSNs between `una` and `next` are of read responses.
    reading: u32,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
    wait: Wait,
    /// Whether a sequence NAK for `una` was acted on. The responder sends one; copies of it change nothing.
    nak_seen: bool,
    /// How often the peer had no receive for `una`, up to two: from then on one packet asks whether it has one now, because
    /// a reader that is slow for long is not to be sent everything again and again.
    not_ready: u8,
    /// What `una` has to reach before it is acted on that a response is missing. Without reordering the first response
    /// behind a gap shows it at once, but with it everything looks like a gap: so at least half of what is asked for again
    /// has to arrive, or a timeout to pass, before the next time.
    restart_from: Psn,
    /// The peer has refused the message with this PSN, which fails with this status when all before it is complete: the
    /// responses to earlier reads may be on their way, for as long as one timeout. The peer answers nothing any more.
    refused: Option<(Psn, Status)>,
    retries: u8,
    rnr_retries: u8,
    timeout: Option<Duration>,
    retry_count: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    cut: Segmentation,
    window: Window,
}

impl Requester {
    pub(super) fn new() -> Self {
        let psn = Psn::default();
        Self {
            messages: VecDeque::new(),
            done: 0,
            at: (0, 0),
            una: psn,
            next: psn,
            sent: psn,
            asked: 0,
            reading: 0,
            unasked: 0,
            wait: Wait::Nothing,
            nak_seen: false,
            not_ready: 0,
            restart_from: psn,
            refused: None,
            retries: 0,
            rnr_retries: 0,
            timeout: None,
            retry_count: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            cut: Segmentation::new(Transport::RC, 1, 1),
            window: Window::new(0),
        }
    }

    pub(super) fn start(&mut self, rts: &Rts, mtu: usize, window: u16) {
        let window = u32::from(window.max(1));
        *self = Self {
            una: rts.sq_psn,
            next: rts.sq_psn,
            sent: rts.sq_psn,
            restart_from: rts.sq_psn,
            retries: rts.retry_count,
            rnr_retries: rts.rnr_retry,
            timeout: rts.timeout.ack_timeout(),
            retry_count: rts.retry_count,
            rnr_retry: rts.rnr_retry,
            max_rd_atomic: rts.max_rd_atomic,
            cut: Segmentation::new(Transport::RC, mtu, window.min(READ_PART)),
            window: Window::new(window),
            ..Self::new()
        };
    }

    /// How many reads and atomics may be outstanding.
    pub(super) fn max_rd_atomic(&self) -> u8 {
        self.max_rd_atomic
    }

    pub(super) fn post(&mut self, work: Work, request: Request) {
        let message = self.cut.message(request, work.message_len());
        self.messages.push_back((work, message));
    }

    /// The oldest PSN that is not acknowledged, or whose response is missing.
    pub(super) fn una(&self) -> Psn {
        self.una
    }

    /// Takes the oldest message that is not complete.
    pub(super) fn pop(&mut self) -> Option<Work> {
        self.wait = Wait::Nothing;
        self.messages.pop_front().map(|(work, _)| work)
    }

    /// Whether all that was started is complete.
    pub(super) fn is_drained(&self) -> bool {
        self.una == self.sent && self.done == 0
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::Nothing => None,
            Wait::Ack(at) | Wait::Rnr(at, _) => Some(at),
        }
    }

    fn restart_timer(&mut self, now: Instant) {
        self.wait = self.timeout.map_or(Wait::Nothing, |timeout| Wait::Ack(now + timeout));
    }

    /// `una` has moved by so many packets. All patience is renewed. A receiver that was not ready is waited for all the
    /// same, unless it has taken what it refused.
    fn progress(&mut self, now: Instant, packets: u32) {
        let rnr = match self.wait {
            Wait::Rnr(_, psn) if self.una.distance(psn) <= 0 => Some(self.wait),
            _ => None,
        };
        self.window.grow(packets);
        self.retries = self.retry_count;
        self.rnr_retries = self.rnr_retry;
        self.nak_seen = false;
        self.not_ready = 0;
        if self.restart_from.distance(self.una) < 0 {
            self.restart_from = self.una;
        }
        if self.next.distance(self.una) < 0 {
            self.rewind();
        }
        if let Some(rnr) = rnr {
            self.wait = rnr;
        } else if self.next == self.una && self.refused.is_none() {
            self.wait = Wait::Nothing;
        } else {
            self.restart_timer(now);
        }
    }

    /// Moves `una` by one packet or more of the first message; the last of them completes it.
    fn pass(&mut self, packets: u32, side: &mut Side, shared: &mut Shared) {
        self.una = self.una.offset(packets);
        self.done += packets;
        if self.messages.front().is_some_and(|(_, message)| message.packets <= self.done)
            && let Some((work, message)) = self.messages.pop_front()
        {
            self.done = 0;
            self.at.0 = self.at.0.saturating_sub(1);
            let len = if message.request.has_result() { message.len } else { 0 };
            work.succeed(len, side, shared);
        }
    }

    /// Goes back to the oldest packet that is not acknowledged, or the oldest response that is missing.
    fn rewind(&mut self) {
        self.next = self.una;
        self.at = (0, self.done);
        self.asked = 0;
        self.reading = 0;
        self.unasked = 0;
        self.wait = Wait::Nothing;
    }

    /// Sends everything again that is not acknowledged, while retries are left and the peer still answers.
    fn retry(&mut self) -> Result<(), Status> {
        if self.refused.is_some() {
            return Err(Status::RETRY_EXC_ERR);
        }
        self.retries = self.retries.checked_sub(1).ok_or(Status::RETRY_EXC_ERR)?;
        self.window.shrink();
        self.rewind();
        Ok(())
    }

    /// Packets go by another path from now on, where an acknowledgement takes so long: what is not acknowledged is sent
    /// again there, with all patience. What the peer has refused or is not ready for stays so.
    pub(super) fn change_path(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        self.retries = self.retry_count;
        self.nak_seen = false;
        self.restart_from = self.una;
        if self.refused.is_none() && !matches!(self.wait, Wait::Rnr(..)) {
            self.rewind();
        }
    }

    /// Whether the peer has refused a message and answers nothing any more.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The peer has no receive for the packet with this PSN. It is there, though: the retries for a peer that says nothing
    /// are renewed.
    fn handle_rnr(
        &mut self,
        now: Instant,
        psn: Psn,
        timer: RnrTimer,
        shared: &mut Shared,
    ) -> Result<(), Status> {
        if matches!(self.wait, Wait::Rnr(..)) {
            shared.counters.drop_repeated_nak += 1;
            return Ok(());
        }
        shared.counters.rnr_naks_received += 1;
        if self.rnr_retry != RNR_FOR_EVER {
            self.rnr_retries = self.rnr_retries.checked_sub(1).ok_or(Status::RNR_RETRY_EXC_ERR)?;
        }
        self.retries = self.retry_count;
        self.rewind();
        self.not_ready = (self.not_ready + 1).min(2);
        self.wait = Wait::Rnr(now + timer.duration(), psn);
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
                self.nak_seen = false;
                self.restart_from = self.una;
                self.retry()
            }
            Wait::Rnr(at, _) if at <= now => {
                self.wait = Wait::Nothing;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
