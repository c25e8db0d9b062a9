//! A message on its way out, segment by segment.

use std::fmt;
use std::time::Instant;

use super::{HEADER_IN_PAYLOAD, Mad, RmppConfig, RmppError, abort, ends, whole};
use crate::mad::{RmppHeader, RmppStatus, RmppType, SaHeader};
use crate::proto::after;

/// Sends one message: segment 1 first, then what the peer's window lets through, again from the first that is not
/// acknowledged when nothing moves (spec/sa.md 2.4).
pub struct Sender {
    header: SaHeader,
    data: Vec<u8>,
    resend: std::time::Duration,
    retries: u32,
    total: u32,
    /// The last segment that the peer has acknowledged.
    acknowledged: u32,
    /// The last that it lets us send.
    window_end: u32,
    /// The next to be sent.
    next: u32,
    /// The highest that was sent.
    sent: u32,
    /// Sends of the same position without progress.
    tries: u32,
    timer: Option<Instant>,
}

/// What an answer of the peer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum Sent {
    /// There is more to send, or to wait for.
    Going,
    /// All was acknowledged.
    Done,
    /// The transfer is over; the MAD, if there is one, tells the peer.
    Failed(RmppError, Option<Mad>),
}

/// Without the message, which may hold keys.
impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Sender");
        shown.field("header", &self.header).field("bytes", &self.data.len()).field("total", &self.total);
        shown.field("acknowledged", &self.acknowledged).field("window_end", &self.window_end);
        shown.field("next", &self.next).field("tries", &self.tries).finish_non_exhaustive()
    }
}

impl Sender {
    /// A transfer of `data` under these headers, whose RMPP part is not looked at.
    ///
    /// # Errors
    /// [`RmppError::TooLong`] for more than [`RmppConfig::max_len`] bytes.
    pub fn new(header: SaHeader, data: Vec<u8>, config: &RmppConfig) -> Result<Self, RmppError> {
        if data.len() > config.max_len || data.len() / SaHeader::DATA_LEN >= u32::MAX as usize {
            return Err(RmppError::TooLong { limit: config.max_len });
        }
        let total = data.len().div_ceil(SaHeader::DATA_LEN).max(1) as u32;
        let (resend, retries) = (config.resend.max(RmppConfig::SHORTEST_RESEND), config.retries);
        Ok(Self {
            header,
            data,
            resend,
            retries,
            total,
            acknowledged: 0,
            window_end: 1,
            next: 1,
            sent: 0,
            tries: 0,
            timer: None,
        })
    }

    /// The same transfer once more: the peer may have all of an earlier copy, and acknowledge that at once.
    #[must_use]
    pub const fn again(mut self) -> Self {
        self.sent = self.total;
        self
    }

    /// Whether the transfer has this transaction ID.
    pub fn is_of(&self, tid: ibwire::TransactionId) -> bool {
        self.header.mad.tid == tid
    }

    /// How many segments the message has.
    pub const fn segments(&self) -> u32 {
        self.total
    }

    /// Bytes of the message, which it holds until the end.
    pub const fn message_len(&self) -> usize {
        self.data.len()
    }

    /// The next segment, if the peer has room for one.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Mad> {
        if self.next > self.window_end.min(self.total) {
            return None;
        }
        let segment = self.next;
        self.next += 1;
        self.sent = self.sent.max(segment);
        self.timer = Some(after(now, self.resend));
        Some(self.segment(segment))
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.timer
    }

    /// Sends again from the first segment that is not acknowledged, if it is time.
    pub fn handle_timeout(&mut self, now: Instant) -> Sent {
        if self.timer.is_none_or(|at| now < at) {
            return Sent::Going;
        }
        // A window that the peer has closed lets nothing through: that counts as a try, too.
        self.timer = Some(after(now, self.resend));
        if self.tries == self.retries {
            let error = RmppError::Unacknowledged { segment: self.acknowledged + 1 };
            return Sent::Failed(error, Some(self.broken(RmppStatus::TOO_MANY_RETRIES)));
        }
        self.tries += 1;
        self.next = self.acknowledged + 1;
        Sent::Going
    }

    /// An ACK, STOP or ABORT of the peer.
    pub fn handle(&mut self, now: Instant, answer: &SaHeader) -> Sent {
        let rmpp = &answer.rmpp;
        if rmpp.version != RmppHeader::VERSION {
            return fail(answer, RmppStatus::UNSUPPORTED_VERSION);
        }
        match rmpp.kind {
            RmppType::ACK if rmpp.status != RmppStatus::OK => fail(answer, RmppStatus::ILLEGAL_STATUS),
            RmppType::ACK => self.acknowledge(now, answer),
            RmppType::STOP if rmpp.status == RmppStatus::RESOURCES_EXHAUSTED => {
                Sent::Failed(RmppError::Stopped, None)
            }
            RmppType::ABORT if ends(rmpp.status) => Sent::Failed(RmppError::Aborted(rmpp.status), None),
            RmppType::STOP | RmppType::ABORT => fail(answer, RmppStatus::ILLEGAL_STATUS),
            _ => fail(answer, RmppStatus::BAD_TYPE),
        }
    }

    fn acknowledge(&mut self, now: Instant, answer: &SaHeader) -> Sent {
        let (segment, window_end) = (answer.rmpp.segment, answer.rmpp.length_or_window);
        if window_end < segment {
            return fail(answer, RmppStatus::WINDOW_TOO_SMALL);
        }
        if segment > self.sent {
            return fail(answer, RmppStatus::SEGMENT_TOO_BIG);
        }
        if segment < self.acknowledged || window_end < self.window_end {
            return Sent::Going; // an old one
        }
        if segment > self.acknowledged {
            self.acknowledged = segment;
            self.tries = 0;
            self.next = self.next.max(segment + 1);
            self.timer = Some(after(now, self.resend));
        }
        self.window_end = window_end;
        match self.acknowledged == self.total {
            true => Sent::Done,
            false => Sent::Going,
        }
    }

    /// An ABORT in the direction of the data.
    fn broken(&self, status: RmppStatus) -> Mad {
        let mut header = self.header;
        header.rmpp = RmppHeader {
            version: RmppHeader::VERSION,
            kind: RmppType::ABORT,
            flags: RmppHeader::ACTIVE,
            status,
            ..RmppHeader::default()
        };
        whole(&header, &[])
    }

    fn segment(&self, number: u32) -> Mad {
        let (first, last) = (number == 1, number == self.total);
        let from = (number as usize - 1) * SaHeader::DATA_LEN;
        let part = &self.data[from..self.data.len().min(from + SaHeader::DATA_LEN)];
        let length = match (first, last) {
            (_, true) => HEADER_IN_PAYLOAD + part.len(),
            // More than the field holds is 0, "unknown".
            (true, false) => {
                let whole = self.data.len() + HEADER_IN_PAYLOAD * self.total as usize;
                if whole > u32::MAX as usize { 0 } else { whole }
            }
            (false, false) => 0,
        };
        let mut header = self.header;
        header.rmpp = RmppHeader {
            version: RmppHeader::VERSION,
            kind: RmppType::DATA,
            resp_time: 0,
            flags: RmppHeader::ACTIVE
                | if first { RmppHeader::FIRST } else { 0 }
                | if last { RmppHeader::LAST } else { 0 },
            status: RmppStatus::OK,
            segment: number,
            length_or_window: length as u32,
        };
        whole(&header, part)
    }
}

/// The peer has broken a rule and is told.
fn fail(about: &SaHeader, status: RmppStatus) -> Sent {
    Sent::Failed(RmppError::Broken(status), Some(abort(about, status)))
}
