//! GetMulti: a query that is itself a transfer, answered by one (spec/sa.md 2.5 and 3.15).

use std::time::Instant;

use ibsa::mad::{RmppHeader, RmppType, SaHeader};
use ibsa::proto::rmpp::{Received, Receiver};
use ibsa::record::{Layout, MultiPathRecord, PathRecord, Record};
use ibwire::Gid;
use ibwire::mad::MadStatus;

use super::answer::Rows;
use super::paths::Wanted;
use super::request::{Request, status};
use super::transfers::Key;
use super::{Sa, SaMad};

/// The longest query: 255 GIDs of each end.
const LONGEST: usize = MultiPathRecord::LEN + 2 * 255 * 16;
/// Counts of GIDs.
const COUNTS: u64 = 0b11 << 19;
const NUM_PATHS: u32 = 6;

/// A query on its way in.
#[derive(Debug)]
pub(super) struct Incoming {
    pub receiver: Receiver,
    pub header: SaHeader,
}

impl Sa {
    /// A segment of a GetMulti.
    pub(super) fn handle_multi(&mut self, now: Instant, request: &Request<'_>) {
        let key = (request.from, request.header.mad.tid);
        if !self.make_room(now, key) {
            self.counters.busy += 1;
            self.refuse(request, MadStatus::BUSY);
            return;
        }
        let Ok(segment) = request.data.try_into() else { return };
        let (rmpp, header) = (&self.config.rmpp, request.header);
        let incoming = self.incoming.entry(key).or_insert_with(|| {
            let mut rmpp = rmpp.clone();
            rmpp.max_len = rmpp.max_len.min(LONGEST);
            Incoming { receiver: Receiver::new(now, &rmpp), header }
        });
        match incoming.receiver.handle(now, &request.header, segment) {
            Received::Going(mad) => mad.into_iter().for_each(|mad| self.send(now, request.from, mad)),
            Received::Failed(_, mad) => {
                self.incoming.remove(&key);
                self.counters.transfers_failed += 1;
                mad.into_iter().for_each(|mad| self.send(now, request.from, mad));
            }
            Received::Done(query, ack) => {
                self.send(now, request.from, ack);
                let mut header = request.header;
                header.mad.attribute = PathRecord::ATTRIBUTE;
                let request = Request { header, data: &query, ..*request };
                match self.multi_paths(&request) {
                    Ok(rows) => {
                        let answer = SaHeader {
                            mad: header.mad.response(MadStatus::OK),
                            rmpp: RmppHeader::default(),
                            sm_key: 0,
                            attribute_offset: rows.offset,
                            component_mask: header.component_mask,
                        };
                        self.begin_transfer(&request, answer, rows.data);
                    }
                    Err(status) => self.refuse(&request, status),
                }
            }
        }
    }

    /// Whether there is room for one more query on its way in; those that are finished make it.
    fn make_room(&mut self, now: Instant, key: Key) -> bool {
        if self.incoming.contains_key(&key) {
            return true;
        }
        let limits = &self.config.limits;
        let is_under_way = |it: &Incoming| !it.receiver.is_finished() && it.receiver.poll_timeout() > now;
        let of_requester = self.incoming.iter().filter(|((peer, _), it)| *peer == key.0 && is_under_way(it));
        if of_requester.count() >= limits.transfers_each {
            return false;
        }
        if self.incoming.len() >= limits.transfers {
            self.incoming.retain(|_, it| is_under_way(it));
        }
        self.incoming.len() < limits.transfers
    }

    /// Whether a STOP or ABORT breaks a query off that is on its way in.
    pub(super) fn end_incoming(&mut self, key: &Key, header: &SaHeader) -> bool {
        let ends = matches!(header.rmpp.kind, RmppType::STOP | RmppType::ABORT);
        let is_under_way = self.incoming.get(key).is_some_and(|it| !it.receiver.is_finished());
        if !ends || !is_under_way {
            return false;
        }
        self.incoming.remove(key);
        self.counters.transfers_failed += 1;
        true
    }

    pub(super) fn expire_incoming(&mut self, now: Instant) {
        let (out, counters) = (&mut self.out, &mut self.counters);
        self.incoming.retain(|(peer, _), it| {
            let is_over = it.receiver.poll_timeout() <= now;
            if is_over && !it.receiver.is_finished() {
                counters.transfers_failed += 1;
                out.push_back(SaMad { peer: *peer, mad: it.receiver.time_out(&it.header).1 });
            }
            !is_over
        });
    }

    fn multi_paths(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        if !request.has_all(COUNTS) {
            return Err(status::INSUFFICIENT);
        }
        let query: MultiPathRecord = request.record()?;
        let gids = request.data[MultiPathRecord::LEN..].chunks_exact(16);
        let gids: Vec<Gid> = gids.map(|gid| <[u8; 16]>::try_from(gid).map(Gid).unwrap_or_default()).collect();
        let (sources, destinations) = (usize::from(query.sgid_count), usize::from(query.dgid_count));
        if sources == 0 || destinations == 0 || gids.len() < sources + destinations {
            return Err(status::INVALID);
        }
        let ends = |gids: &[Gid]| {
            let end = |gid: &Gid| self.end(self.topology.at_gid(*gid)?, Some(*gid), None);
            gids.iter().map(end).collect::<Option<Vec<_>>>().ok_or(status::INVALID_GID)
        };
        let (sources, rest) = gids.split_at(sources);
        let (sources, destinations) = (ends(sources)?, ends(&rest[..destinations])?);
        let wanted = Wanted {
            p_key: request.has(7).then_some(query.p_key),
            sl: request.has(9).then_some(query.sl),
            mtu: request.has_all(0b11 << 10).then_some((query.mtu_selector, query.mtu)),
            rate: request.has_all(0b11 << 12).then_some((query.rate_selector, query.rate)),
            life_time: request
                .has_all(0b11 << 14)
                .then_some((query.packet_life_time_selector, query.packet_life_time)),
            raw: request.has(0) && query.raw_traffic,
            most: if request.has(NUM_PATHS) { query.num_paths.into() } else { 127 },
        };
        let wanted = wanted.checked()?;
        let mut rows = Rows::new(&self.config.limits);
        for source in &sources {
            for destination in &destinations {
                for path in self.paths(request, source, destination, &wanted) {
                    rows.push(&path)?;
                }
            }
        }
        Ok(rows)
    }
}
