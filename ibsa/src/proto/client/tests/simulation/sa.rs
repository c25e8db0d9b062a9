//! The modelled SA: it answers what belongs to the number that a request begins with, or does not.

use ibwire::mad::{ClassPortInfo, Redirect};

use super::super::*;
use super::plan::Plan;
use crate::mad::RmppStatus;
use crate::proto::rmpp::RmppConfig;

/// Bytes from record to record of its tables, in units of 8.
const STRIDE: u16 = 14;

/// What belongs to a request.
pub(super) fn content(number: u16, table: bool) -> Vec<u8> {
    let records = match number.wrapping_mul(40_503) % 8 {
        0 => 0,
        1..=5 => usize::from(number % 5),
        _ => usize::from(number.wrapping_mul(7919) % 40),
    };
    let len = if table { usize::from(STRIDE) * 8 * records } else { 108 };
    let start = number.to_be_bytes().into_iter();
    start.chain((0..).map(|at: u32| (at.wrapping_mul(31) ^ u32::from(number)) as u8)).take(len).collect()
}

/// A transfer with a client.
enum Transfer {
    /// A request comes in several segments.
    Hears(Box<(SaHeader, Receiver)>),
    /// It is there whole, and the client has to turn the direction; the SA does not wait for it for ever.
    Turns(SaHeader, Vec<u8>, Instant),
    /// A table goes out.
    Tells(Box<Sender>),
}

/// The SA at all of its LIDs.
pub(super) struct Sa {
    transfers: Vec<((Lid, TransactionId), Transfer)>,
    /// What it is going to send: when, and from which LID.
    pub(super) outbox: Vec<(Instant, Lid, Mad)>,
}

impl Sa {
    pub(super) fn new() -> Self {
        Self { transfers: Vec::new(), outbox: Vec::new() }
    }

    pub(super) fn hear(&mut self, now: Instant, at: Lid, mad: &Mad, plan: &Plan, rng: &mut ChaCha8Rng) {
        let header = SaHeader::parse(mad).unwrap();
        let data = mad.last_chunk::<{ SaHeader::DATA_LEN }>().unwrap();
        let key = (at, header.mad.tid);
        if header.rmpp.is_active() {
            return self.segment(now, key, &header, data, plan, rng);
        }
        if self.transfers.iter().any(|(other, _)| *other == key) {
            return; // the request again
        }
        self.answer(now, at, &header, data, plan, rng);
    }

    /// A segment of a request, or a word about one of a table.
    fn segment(
        &mut self,
        now: Instant,
        key: (Lid, TransactionId),
        header: &SaHeader,
        data: &[u8; SaHeader::DATA_LEN],
        plan: &Plan,
        rng: &mut ChaCha8Rng,
    ) {
        let found = self.transfers.iter().position(|(other, _)| *other == key);
        let found = match found {
            None if header.rmpp.kind == RmppType::DATA => {
                if rng.random_range(0..100) < plan.silent {
                    return;
                }
                let receiver = Receiver::new(now, &RmppConfig::default());
                self.transfers.push((key, Transfer::Hears(Box::new((*header, receiver)))));
                self.transfers.len() - 1
            }
            None => return,
            Some(found) => found,
        };
        match &mut self.transfers[found].1 {
            Transfer::Hears(hears) => match hears.1.handle(now, header, data) {
                Received::Going(ack) => self.outbox.extend(ack.map(|ack| (now, key.0, ack))),
                Received::Done(data, ack) => {
                    self.outbox.push((now, key.0, ack));
                    self.transfers[found].1 = Transfer::Turns(*header, data, now + 500 * MS);
                }
                Received::Failed(..) => _ = self.transfers.swap_remove(found),
            },
            Transfer::Turns(request, data, _) if header.rmpp.kind == RmppType::ACK => {
                let (request, data) = (*request, std::mem::take(data));
                self.transfers.swap_remove(found);
                self.answer(now, key.0, &request, &data, plan, rng);
            }
            Transfer::Tells(sender) if header.rmpp.kind != RmppType::DATA => match sender.handle(now, header)
            {
                Sent::Going => self.flush(now, found, plan, rng),
                Sent::Done | Sent::Failed(..) => _ = self.transfers.swap_remove(found),
            },
            Transfer::Turns(..) | Transfer::Tells(_) => {}
        }
    }

    fn answer(
        &mut self,
        now: Instant,
        at: Lid,
        request: &SaHeader,
        data: &[u8],
        plan: &Plan,
        rng: &mut ChaCha8Rng,
    ) {
        let mut chance = |percent: u32| rng.random_range(0..100) < percent;
        if chance(plan.silent) {
            return;
        }
        let request = SaHeader { rmpp: RmppHeader::default(), ..*request };
        if chance(plan.busy) {
            return self.outbox.push((now, at, answer(&request, MadStatus::BUSY, &[])));
        }
        if chance(plan.refuses) {
            return self.outbox.push((now, at, answer(&request, MadStatus(0x0300), &[])));
        }
        if chance(plan.redirects) {
            let redirect = match rng.random_range(0..8) {
                0 => Redirect::default(),
                1 => Redirect { lid: Lid(2), pkey: PKey(0x7777), qpn: Qpn::GSI, ..Redirect::default() },
                lid => Redirect { lid: Lid(lid), pkey: PKey::DEFAULT, qpn: Qpn::GSI, ..Redirect::default() },
            };
            let info = ClassPortInfo { redirect, ..ClassPortInfo::default() }.to_bytes();
            return self.outbox.push((now, at, answer(&request, MadStatus::REDIRECT, &info)));
        }
        let method = request.mad.method;
        let table = [Method::GET_TABLE, Method::GET_MULTI].contains(&method);
        let content = content(u16::from_be_bytes([data[0], data[1]]), table);
        let when = now + plan.thinks.mul_f64(rng.random_range(0.0..1.0));
        if !table {
            return self.outbox.push((when, at, answer(&request, MadStatus::OK, &content)));
        }
        let attribute_offset = if content.is_empty() { 0 } else { STRIDE };
        let mut header = SaHeader { mad: request.mad.response(MadStatus::OK), attribute_offset, ..request };
        if rng.random_range(0..100) < plan.cuts {
            header.rmpp.flags = RmppHeader::ACTIVE; // with neither version nor type
            let first = &content[..content.len().min(SaHeader::DATA_LEN)];
            return self.outbox.push((when, at, whole(&header, first)));
        }
        if method == Method::GET_MULTI && rng.random_range(0..2) == 0 {
            header.mad.attribute = AttributeId(0x35);
        }
        let sender = Sender::new(header, content, &RmppConfig::default()).unwrap();
        self.transfers.push(((at, request.mad.tid), Transfer::Tells(Box::new(sender))));
        self.flush(when, self.transfers.len() - 1, plan, rng);
    }

    /// Sends the segments that the client has room for.
    fn flush(&mut self, now: Instant, at: usize, plan: &Plan, rng: &mut ChaCha8Rng) {
        let ((lid, _), Transfer::Tells(sender)) = &mut self.transfers[at] else { return };
        let lid = *lid;
        while let Some(mut mad) = sender.poll_transmit(now) {
            if rng.random_range(0..100) < plan.breaks {
                spoil(&mut mad, rng);
            }
            self.outbox.push((now, lid, mad));
        }
        if rng.random_range(0..100) < plan.dies {
            self.transfers.swap_remove(at);
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.transfers
            .iter()
            .filter_map(|(_, transfer)| match transfer {
                Transfer::Hears(hears) => Some(hears.1.poll_timeout()),
                Transfer::Turns(.., until) => Some(*until),
                Transfer::Tells(sender) => sender.poll_timeout(),
            })
            .min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, plan: &Plan, rng: &mut ChaCha8Rng) {
        for at in (0..self.transfers.len()).rev() {
            let (lid, _) = self.transfers[at].0;
            match &mut self.transfers[at].1 {
                Transfer::Hears(hears) if hears.1.poll_timeout() <= now => _ = self.transfers.swap_remove(at),
                Transfer::Turns(request, data, until) if *until <= now => {
                    let (request, data) = (*request, std::mem::take(data));
                    self.transfers.swap_remove(at);
                    self.answer(now, lid, &request, &data, plan, rng);
                }
                Transfer::Tells(sender) if sender.poll_timeout().is_some_and(|due| due <= now) => {
                    match sender.handle_timeout(now) {
                        Sent::Failed(_, abort) => {
                            self.outbox.extend(abort.map(|abort| (now, lid, abort)));
                            self.transfers.swap_remove(at);
                        }
                        Sent::Going | Sent::Done => self.flush(now, at, plan, rng),
                    }
                }
                _ => {}
            }
        }
    }
}

/// Breaks a rule of transfers, so that it shows.
fn spoil(mad: &mut Mad, rng: &mut ChaCha8Rng) {
    let mut header = SaHeader::parse(mad).unwrap();
    let rmpp = &mut header.rmpp;
    match rng.random_range(0..8) {
        0 => rmpp.version = 2,
        1 => rmpp.kind = RmppType(9),
        2 => rmpp.status = RmppStatus(rng.random_range(1..=255)),
        3 => rmpp.flags ^= RmppHeader::FIRST,
        4 => (rmpp.flags, rmpp.length_or_window) = (rmpp.flags | RmppHeader::LAST, rng.random_range(0..20)),
        5 => {
            (rmpp.flags, rmpp.length_or_window) = (rmpp.flags | RmppHeader::LAST, rng.random_range(221..999));
        }
        6 => (rmpp.kind, rmpp.status) = (RmppType::ABORT, RmppStatus(rng.random_range(118..=127))),
        _ => (rmpp.kind, rmpp.status) = (RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED),
    }
    mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
}
