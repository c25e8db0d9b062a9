//! Transfers of more than one MAD, both ways (spec/sa.md section 2).

use std::collections::{BTreeMap, VecDeque};
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
    /// Those that may have something to send.
    ready: VecDeque<Key>,
    rmpp: RmppConfig,
}

impl Transfers {
    pub(super) fn new(config: &SaConfig) -> Self {
        Self { senders: BTreeMap::new(), ready: VecDeque::new(), rmpp: config.rmpp.clone() }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.senders.values().filter_map(Sender::poll_timeout).min()
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<SaMad> {
        while let Some(key) = self.ready.front() {
            if let Some(mad) = self.senders.get_mut(key).and_then(|sender| sender.poll_transmit(now)) {
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
        let ready = &mut self.ready;
        self.senders.retain(|key, sender| {
            if sender.poll_timeout().is_none_or(|due| due > now) {
                return true;
            }
            match sender.handle_timeout(now) {
                Sent::Failed(_, mad) => {
                    counters.transfers_failed += 1;
                    out.extend(mad.map(|mad| SaMad { peer: key.0, mad }));
                    false
                }
                Sent::Going | Sent::Done => {
                    ready.push_back(*key);
                    true
                }
            }
        });
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
        let of_requester = self.transfers.senders.keys().filter(|(peer, _)| *peer == request.from).count();
        let bytes: usize = self.transfers.senders.values().map(Sender::message_len).sum();
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
        let Some(sender) = self.transfers.senders.get_mut(&key) else {
            self.counters.drop_unknown_transfer += 1;
            return;
        };
        match sender.handle(now, header) {
            Sent::Going => self.transfers.ready.push_back(key),
            Sent::Done => drop(self.transfers.senders.remove(&key)),
            Sent::Failed(_, mad) => {
                self.transfers.senders.remove(&key);
                self.counters.transfers_failed += 1;
                self.out.extend(mad.map(|mad| SaMad { peer: from, mad }));
            }
        }
    }
}
