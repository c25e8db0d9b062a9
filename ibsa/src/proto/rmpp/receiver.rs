//! A message on its way in, segment by segment.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use super::{HEADER_IN_PAYLOAD, Mad, RmppConfig, RmppError, abort, control, ends};
use crate::mad::{RmppHeader, RmppStatus, RmppType, SaHeader};
use crate::proto::after;

/// Bytes of data in a segment.
type Segment = [u8; SaHeader::DATA_LEN];

/// Receives one message and acknowledges it at the edges of its window (spec/sa.md 2.3).
pub struct Receiver {
    window: u32,
    max_len: usize,
    deadline: Instant,
    linger: std::time::Duration,
    /// What is there without a gap.
    data: Vec<u8>,
    /// The last segment of that.
    in_order: u32,
    /// What is there behind the gap: the first is segment `in_order + 1`. At most a window long.
    ahead: VecDeque<Option<Segment>>,
    /// The last segment that the peer may send.
    window_end: u32,
    /// Our last ACK, and the segment that it acknowledged.
    acknowledged: Option<(u32, Mad)>,
    /// Number of the last segment, and the payload length that it gave.
    last: Option<(u32, usize)>,
    finished: bool,
    dropped: u64,
}

/// What a segment did.
#[derive(Clone, PartialEq, Eq)]
pub enum Received {
    /// More has to come; the MAD, if there is one, goes back.
    Going(Option<Mad>),
    /// The message is whole; the MAD goes back.
    Done(Vec<u8>, Mad),
    /// The transfer is over; the MAD, if there is one, tells the peer.
    Failed(RmppError, Option<Mad>),
}

// What is transferred may hold keys.

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Receiver");
        shown.field("bytes", &self.data.len()).field("in_order", &self.in_order);
        shown.field("ahead", &self.ahead.len()).field("window_end", &self.window_end);
        shown.field("last", &self.last).field("finished", &self.finished).finish_non_exhaustive()
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Going(answer) => write!(f, "Going(answered: {})", answer.is_some()),
            Self::Done(message, _) => write!(f, "Done({} bytes)", message.len()),
            Self::Failed(error, answer) => write!(f, "Failed({error:?}, answered: {})", answer.is_some()),
        }
    }
}

impl Receiver {
    /// Waits for segment 1.
    pub fn new(now: Instant, config: &RmppConfig) -> Self {
        Self {
            window: config.window.max(1),
            max_len: config.max_len,
            deadline: after(now, config.total),
            linger: config.linger,
            data: Vec::new(),
            in_order: 0,
            ahead: VecDeque::new(),
            window_end: 1,
            acknowledged: None,
            last: None,
            finished: false,
            dropped: 0,
        }
    }

    /// When the transfer has taken too long, or, once it is finished, when it may be forgotten.
    pub const fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// How many segments there are without a gap.
    pub const fn segments(&self) -> u32 {
        self.in_order
    }

    /// How many segments were dropped: they are there already, or the window does not let them through.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes of memory that it holds.
    pub fn held(&self) -> usize {
        self.data.capacity() + self.ahead.capacity() * size_of::<Option<Segment>>()
    }

    /// Whether the message was delivered. Repeated segments still get their ACK.
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Ends a transfer whose time is over: the error, and the ABORT that answers the segment `about`.
    pub fn time_out(&self, about: &SaHeader) -> (RmppError, Mad) {
        (RmppError::TimedOut { segments: self.in_order }, abort(about, RmppStatus::TIME_TOO_LONG))
    }

    /// A segment, or the peer's STOP or ABORT.
    pub fn handle(&mut self, now: Instant, header: &SaHeader, data: &Segment) -> Received {
        let rmpp = &header.rmpp;
        if rmpp.version != RmppHeader::VERSION {
            return fail(header, RmppStatus::UNSUPPORTED_VERSION);
        }
        match rmpp.kind {
            RmppType::DATA if self.finished => {
                self.dropped += 1;
                Received::Going(self.acknowledged.map(|(_, mad)| mad))
            }
            RmppType::DATA if rmpp.status != RmppStatus::OK => fail(header, RmppStatus::ILLEGAL_STATUS),
            RmppType::DATA => self.segment(now, header, data),
            RmppType::STOP if rmpp.status == RmppStatus::RESOURCES_EXHAUSTED => {
                Received::Failed(RmppError::Stopped, None)
            }
            RmppType::ABORT if ends(rmpp.status) => Received::Failed(RmppError::Aborted(rmpp.status), None),
            RmppType::STOP | RmppType::ABORT => fail(header, RmppStatus::ILLEGAL_STATUS),
            _ => fail(header, RmppStatus::BAD_TYPE),
        }
    }

    fn segment(&mut self, now: Instant, header: &SaHeader, data: &Segment) -> Received {
        let number = header.rmpp.segment;
        if (number == 1) != (header.rmpp.flags & RmppHeader::FIRST != 0) {
            return fail(header, RmppStatus::INCONSISTENT_SEGMENT);
        }
        if let Some((acknowledged, mad)) = self.acknowledged
            && number <= acknowledged
        {
            self.dropped += 1;
            return Received::Going(Some(mad));
        }
        let beyond_end = self.last.is_some_and(|(last, _)| number > last);
        if number <= self.in_order || number > self.window_end || beyond_end {
            self.dropped += 1;
            return Received::Going(None);
        }
        if number as usize > self.max_len.div_ceil(SaHeader::DATA_LEN) {
            let error = RmppError::TooLong { limit: self.max_len };
            return Received::Failed(error, Some(abort(header, RmppStatus::UNSPECIFIED)));
        }
        if header.rmpp.flags & RmppHeader::LAST != 0 {
            let length = header.rmpp.length_or_window as usize;
            let room = HEADER_IN_PAYLOAD..=HEADER_IN_PAYLOAD + SaHeader::DATA_LEN;
            let behind = (number - self.in_order - 1) as usize;
            if !room.contains(&length) || self.ahead.iter().skip(behind + 1).any(Option::is_some) {
                return fail(header, RmppStatus::INCONSISTENT_LENGTH);
            }
            self.last = Some((number, length));
        }
        self.store(number, data);
        self.progress(now, header)
    }

    /// Keeps a segment within the window.
    fn store(&mut self, number: u32, data: &Segment) {
        let at = (number - self.in_order - 1) as usize;
        if self.ahead.len() <= at {
            self.ahead.resize(at + 1, None);
        }
        match &mut self.ahead[at] {
            Some(_) => self.dropped += 1,
            empty => *empty = Some(*data),
        }
        while let Some(Some(_)) = self.ahead.front() {
            if let Some(Some(segment)) = self.ahead.pop_front() {
                self.data.extend_from_slice(&segment);
                self.in_order += 1;
            }
        }
    }

    /// Acknowledges where the window or the message ends, and the first segment.
    fn progress(&mut self, now: Instant, header: &SaHeader) -> Received {
        let at_edge = self.in_order == self.window_end;
        let done = self.last.filter(|(last, _)| self.in_order == *last);
        if at_edge && (done.is_none() || self.in_order > 1) {
            self.window_end = self.in_order.saturating_add(self.window);
        }
        if let Some((last, length)) = done {
            self.data.truncate(SaHeader::DATA_LEN * (last as usize - 1) + length - HEADER_IN_PAYLOAD);
            self.finished = true;
            self.deadline = after(now, self.linger);
            self.ahead = VecDeque::new();
            let ack = self.acknowledge(header);
            return Received::Done(std::mem::take(&mut self.data), ack);
        }
        if at_edge {
            return Received::Going(Some(self.acknowledge(header)));
        }
        Received::Going(None)
    }

    fn acknowledge(&mut self, header: &SaHeader) -> Mad {
        let mad = control(header, RmppType::ACK, RmppStatus::OK, self.in_order, self.window_end);
        self.acknowledged = Some((self.in_order, mad));
        mad
    }
}

fn fail(about: &SaHeader, status: RmppStatus) -> Received {
    Received::Failed(RmppError::Broken(status), Some(abort(about, status)))
}
