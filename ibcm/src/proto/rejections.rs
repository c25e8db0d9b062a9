//! Rejections sent, remembered for a while: a repeated REQ or REP meets the same REJ (spec/cm.md 4.1, RejSent).

use std::collections::VecDeque;
use std::time::Instant;

use hashbrown::{HashMap, HashTable};
use ibdev::MAD_LEN;
use ibwire::{CommId, Guid, Qpn};

use super::ids::{Keyed, RemoteKey, Source};

/// Whose request or connection was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) key: RemoteKey,
    pub(super) source: Source,
    pub(super) guid: Guid,
    pub(super) id: CommId,
    pub(super) qpn: Qpn,
}

#[derive(Debug)]
struct Record {
    local_id: CommId,
    peer: Option<Rejected>,
    mad: Box<[u8; MAD_LEN]>,
    until: Instant,
}

/// A bounded number of records; the oldest make room. They have numbers in the order of their making.
#[derive(Debug)]
pub(super) struct Rejections {
    capacity: usize,
    records: VecDeque<Record>,
    first: u64,
    by_local_id: HashMap<CommId, u64, Keyed>,
    by_remote: HashTable<(RemoteKey, u64)>,
}

impl Rejections {
    pub(super) fn new(capacity: usize, keyed: Keyed) -> Self {
        Self {
            capacity,
            records: VecDeque::new(),
            first: 0,
            by_local_id: HashMap::with_hasher(keyed),
            by_remote: HashTable::new(),
        }
    }

    /// Remembers `mad`, the REJ by which the connection with our `local_id` was rejected. `peer` is who, if known.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        until: Instant,
        local_id: CommId,
        peer: Option<Rejected>,
        mad: &[u8; MAD_LEN],
    ) {
        while self.records.len() >= self.capacity
            || self.records.front().is_some_and(|oldest| oldest.until <= now)
        {
            if !self.forget_oldest() {
                return;
            }
        }
        let number = self.first + self.records.len() as u64;
        self.by_local_id.insert(local_id, number);
        if let Some(peer) = &peer {
            self.by_remote.insert_unique(peer.key.hash(), (peer.key, number), |entry| entry.0.hash());
        }
        self.records.push_back(Record { local_id, peer, mad: Box::new(*mad), until });
    }

    /// The REJ for a REP that names our `local_id`.
    pub(super) fn of_reply(&self, now: Instant, local_id: CommId) -> Option<&[u8; MAD_LEN]> {
        self.by_local_id.get(&local_id).and_then(|&number| self.get(now, number)).map(|record| &*record.mad)
    }

    /// The REJ for a REQ that came from `peer`.
    pub(super) fn of_request(&self, now: Instant, peer: &Rejected) -> Option<&[u8; MAD_LEN]> {
        self.by_remote
            .iter_hash(peer.key.hash())
            .filter_map(|&(_, number)| self.get(now, number))
            .find(|record| record.peer.as_ref() == Some(peer))
            .map(|record| &*record.mad)
    }

    /// Whether our ID is still named by a record.
    pub(super) fn holds_id(&self, local_id: CommId) -> bool {
        self.by_local_id.contains_key(&local_id)
    }

    fn get(&self, now: Instant, number: u64) -> Option<&Record> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.records.get(index).filter(|record| record.until > now)
    }

    fn forget_oldest(&mut self) -> bool {
        let Some(record) = self.records.pop_front() else { return false };
        let number = self.first;
        self.first += 1;
        self.by_local_id.remove(&record.local_id);
        if let Some(peer) = record.peer
            && let Ok(entry) =
                self.by_remote.find_entry(peer.key.hash(), |entry| *entry == (peer.key, number))
        {
            entry.remove();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ibwire::Gid;
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::super::ids::Ids;
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn peer(ids: &Ids, n: u32) -> Rejected {
        let (source, guid, id) = (Source::Gid(Gid([n as u8; 16])), Guid(7), CommId(n));
        let key = ids.host(guid, source).id(id);
        Rejected { key, source, guid, id, qpn: Qpn::truncate(n) }
    }

    #[test]
    fn the_oldest_make_room_and_the_late_are_forgotten() {
        let keyed = Keyed::new(&mut ChaCha8Rng::from_seed([1; 32]));
        let (ids, mut rejections) = (Ids::new(keyed), Rejections::new(3, keyed));
        let start = Instant::now();
        for n in 1..=5u32 {
            rejections.insert(
                start,
                start + MINUTE,
                CommId(100 + n),
                Some(peer(&ids, n)),
                &[n as u8; MAD_LEN],
            );
        }
        assert_eq!(rejections.records.len(), 3);
        for n in 1..=5u32 {
            let kept = n > 2;
            assert_eq!(rejections.of_request(start, &peer(&ids, n)).is_some(), kept);
            assert_eq!(
                rejections.of_reply(start, CommId(100 + n)).map(|mad| mad[0]),
                kept.then_some(n as u8)
            );
            assert_eq!(rejections.holds_id(CommId(100 + n)), kept);
        }
        assert_eq!(rejections.of_request(start, &Rejected { qpn: Qpn::truncate(9), ..peer(&ids, 4) }), None);
        assert_eq!(rejections.of_request(start + MINUTE, &peer(&ids, 4)), None);
        let later = start + MINUTE;
        rejections.insert(later, later + MINUTE, CommId(200), None, &[0; MAD_LEN]);
        assert_eq!(
            (rejections.records.len(), rejections.by_remote.len(), rejections.by_local_id.len()),
            (1, 0, 1)
        );
    }

    #[test]
    fn no_room_at_all() {
        let keyed = Keyed::new(&mut ChaCha8Rng::from_seed([1; 32]));
        let (start, mut rejections) = (Instant::now(), Rejections::new(0, keyed));
        rejections.insert(start, start + MINUTE, CommId(1), None, &[0; MAD_LEN]);
        assert!(!rejections.holds_id(CommId(1)));
    }
}
