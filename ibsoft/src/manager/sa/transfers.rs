//! Transfers of more than one MAD, both ways (spec/sa.md section 2).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ibsa::mad::SaHeader;
use ibsa::proto::rmpp::{RmppConfig, Sender, Sent};
use ibwire::TransactionId;
use ibwire::mad::MadStatus;

use super::request::{Request, status};
use super::{Peer, Sa, SaConfig, SaCounters, SaMad};

/// Whose transfer it is.
pub(super) type Key = (Peer, TransactionId);

/// Answers on their way.
#[derive(Debug)]
pub(super) struct Transfers {
    senders: BTreeMap<Key, Sender>,
    /// When the timer of each comes up.
    due: BTreeSet<(Instant, Key)>,
    /// What all of them send.
    bytes: usize,
    /// Those that may have something to send.
    ready: VecDeque<Key>,
    rmpp: RmppConfig,
}

impl Transfers {
    pub(super) fn new(config: &SaConfig) -> Self {
        let (senders, due, ready) = (BTreeMap::new(), BTreeSet::new(), VecDeque::new());
        Self { senders, due, bytes: 0, ready, rmpp: config.rmpp.clone() }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Lets a sender do something, and sees to its timer. Nothing if there is no such transfer.
    fn with<R>(&mut self, key: Key, call: impl FnOnce(&mut Sender) -> R) -> Option<R> {
        let sender = self.senders.get_mut(&key)?;
        let before = sender.poll_timeout();
        let result = call(sender);
        let after = sender.poll_timeout();
        if before != after {
            before.map(|due| self.due.remove(&(due, key)));
            self.due.extend(after.map(|due| (due, key)));
        }
        Some(result)
    }

    fn remove(&mut self, key: Key) {
        if let Some(sender) = self.senders.remove(&key) {
            self.bytes -= sender.message_len();
            sender.poll_timeout().map(|due| self.due.remove(&(due, key)));
        }
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<SaMad> {
        while let Some(key) = self.ready.front().copied() {
            if let Some(mad) = self.with(key, |sender| sender.poll_transmit(now)).flatten() {
                return Some(SaMad { peer: key.0, mad });
            }
            self.ready.pop_front();
        }
        None
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        out: &mut VecDeque<SaMad>,
        counters: &mut SaCounters,
    ) {
        while let Some((_, key)) = self.due.first().filter(|(due, _)| *due <= now).copied() {
            match self.with(key, |sender| sender.handle_timeout(now)) {
                Some(Sent::Failed(_, mad)) => {
                    counters.transfers_failed += 1;
                    out.extend(mad.map(|mad| SaMad { peer: key.0, mad }));
                    self.remove(key);
                }
                Some(Sent::Going | Sent::Done) => self.ready.push_back(key),
                None => {}
            }
        }
    }
}

impl Sa {
    /// Begins to send a table. A request that comes again while its answer is on its way changes nothing.
    pub(super) fn begin_transfer(&mut self, request: &Request<'_>, header: SaHeader, data: Vec<u8>) {
        let key = (request.from, header.mad.tid);
        if self.transfers.senders.contains_key(&key) {
            return;
        }
        let limits = &self.config.limits;
        let all = (request.from, TransactionId(0))..=(request.from, TransactionId(u64::MAX));
        let (of_requester, bytes) = (self.transfers.senders.range(all).count(), self.transfers.bytes);
        if data.len() > limits.bytes {
            self.counters.no_resources += 1;
            self.refuse(request, status::NO_RESOURCES);
            return;
        }
        if self.transfers.senders.len() >= limits.transfers
            || of_requester >= limits.transfers_each
            || bytes + data.len() > limits.bytes
        {
            self.counters.busy += 1;
            self.refuse(request, MadStatus::BUSY);
            return;
        }
        match Sender::new(header, data, &self.transfers.rmpp) {
            Ok(sender) => {
                self.counters.transfers += 1;
                self.transfers.bytes += sender.message_len();
                self.transfers.due.extend(sender.poll_timeout().map(|due| (due, key)));
                self.transfers.senders.insert(key, sender);
                self.transfers.ready.push_back(key);
            }
            Err(_) => {
                self.counters.no_resources += 1;
                self.refuse(request, status::NO_RESOURCES);
            }
        }
    }

    /// An ACK, STOP or ABORT of a requester.
    pub(super) fn handle_control(&mut self, now: Instant, from: Peer, header: &SaHeader) {
        let key = (from, header.mad.tid);
        if self.end_incoming(&key, header) {
            return;
        }
        match self.transfers.with(key, |sender| sender.handle(now, header)) {
            None => self.counters.drop_unknown_transfer += 1,
            Some(Sent::Going) => self.transfers.ready.push_back(key),
            Some(Sent::Done) => self.transfers.remove(key),
            Some(Sent::Failed(_, mad)) => {
                self.transfers.remove(key);
                self.counters.transfers_failed += 1;
                self.out.extend(mad.map(|mad| SaMad { peer: from, mad }));
            }
        }
    }
}
