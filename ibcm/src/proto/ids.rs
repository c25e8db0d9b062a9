//! By what a message finds its connection: our IDs and QP numbers, the peer's IDs and QP numbers.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU32;

use ibdev::{AddressVector, MadSource};
use ibwire::{CommId, Gid, Guid, Lid, Qpn};
use rand::Rng;
use siphasher::sip::SipHasher13;

use super::slot_table::{ROW, SlotTable};
use super::transport::Transport;

/// Makes hashers with a secret key: peers choose many of the keys in our maps.
#[derive(Clone, Copy)]
pub(super) struct Keyed(u64, u64);

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyed(..)")
    }
}

impl Keyed {
    pub(super) fn new(rng: &mut impl Rng) -> Self {
        Self(rng.next_u64(), rng.next_u64())
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

/// A host as its address tells it: the GID, or the LID where packets carry no GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Gid(Gid),
    Lid(Lid),
}

impl Source {
    /// The host at the other end of `av`.
    pub(super) fn at(av: &AddressVector) -> Self {
        av.grh.map_or(Self::Lid(av.dlid), |grh| Self::Gid(grh.dgid))
    }

    /// The host that a MAD came from.
    pub(super) fn of(from: &MadSource) -> Self {
        from.grh.map_or(Self::Lid(from.slid), |grh| Self::Gid(grh.dgid))
    }
}

/// What a peer names a connection by, as a hash. The connections that have it are still to be compared: neither is it
/// free of collisions, nor do two hosts have to choose different IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteKey(NonZeroU32);

impl RemoteKey {
    fn new(hash: u32) -> Self {
        Self(NonZeroU32::new(hash).unwrap_or(NonZeroU32::MIN))
    }

    /// With all 64 bits in use, as hash tables want it.
    pub(super) const fn hash(self) -> u64 {
        (self.0.get() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Makes the keys of one host.
#[derive(Debug)]
pub(super) struct HostKeys(SipHasher13);

impl HostKeys {
    /// The peer's communication ID.
    pub(super) fn id(&self, id: CommId) -> RemoteKey {
        self.name(u64::from(id.0))
    }

    /// The peer's queue pair. Numbers in a row have keys in a row.
    pub(super) fn qpn(&self, qpn: Qpn) -> RemoteKey {
        let row = self.name(1 << 32 | u64::from(qpn.get() / ROW)).0.get();
        RemoteKey::new(row / ROW * ROW + qpn.get() % ROW)
    }

    /// The peer's EE context. Connections may share one, each is found by its communication ID.
    pub(super) fn ee_context(&self, id: CommId) -> RemoteKey {
        self.name(2 << 32 | u64::from(id.0))
    }

    fn name(&self, name: u64) -> RemoteKey {
        let mut hasher = self.0;
        hasher.write_u64(name);
        RemoteKey::new(hasher.finish() as u32)
    }
}

/// What a peer calls itself in its REQ or REP, and by which keys that is found.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteNames {
    pub(super) guid: Guid,
    pub(super) id: CommId,
    pub(super) qpn: Qpn,
    pub(super) keys: RemoteKeys,
}

/// The keys of a peer's ID and queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteKeys {
    pub(super) id: RemoteKey,
    pub(super) qpn: RemoteKey,
}

/// The maps of all connections, each to its slot.
#[derive(Debug)]
pub(super) struct Ids {
    keyed: Keyed,
    by_local_id: SlotTable,
    by_local_qpn: SlotTable,
    by_remote: SlotTable,
}

impl Ids {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self {
            keyed,
            by_local_id: SlotTable::default(),
            by_local_qpn: SlotTable::default(),
            by_remote: SlotTable::default(),
        }
    }

    /// For other maps with keys that peers choose.
    pub(super) fn keyed(&self) -> Keyed {
        self.keyed
    }

    /// The keys of what a CA at `source` calls itself. The source is part of them, so that nobody can crowd the keys of
    /// another host, or of a CA without a GUID (spec/cm.md 8, T32). A host whose MADs come now with a GRH, now without is
    /// two for this.
    pub(super) fn host(&self, guid: Guid, source: Source) -> HostKeys {
        let mut hasher = self.keyed.build_hasher();
        match source {
            Source::Gid(gid) => {
                let gid = u128::from_ne_bytes(gid.0);
                hasher.write_u64(gid as u64);
                hasher.write_u64((gid >> 64) as u64);
            }
            Source::Lid(lid) => hasher.write_u64(lid.0.into()),
        }
        hasher.write_u64(guid.0);
        HostKeys(hasher)
    }

    /// What the CA at `source` calls itself, and its end of a connection of this transport.
    pub(super) fn names(
        &self,
        transport: Transport,
        source: Source,
        guid: Guid,
        id: CommId,
        end: Qpn,
    ) -> RemoteNames {
        let host = self.host(guid, source);
        let qpn_key = match transport {
            Transport::Rd => host.ee_context(id),
            Transport::Rc | Transport::Uc | Transport::Xrc => host.qpn(end),
        };
        RemoteNames { guid, id, qpn: end, keys: RemoteKeys { id: host.id(id), qpn: qpn_key } }
    }

    /// A number that stands for `source` and that nobody outside can foresee.
    pub(super) fn source_hash(&self, source: Source) -> u64 {
        self.keyed.hash_one(source)
    }

    pub(super) fn by_local_id(&self, id: CommId) -> Option<u32> {
        self.by_local_id.get(id.0).next()
    }

    pub(super) fn by_local_qpn(&self, qpn: Qpn) -> Option<u32> {
        self.by_local_qpn.get(qpn.get()).next()
    }

    /// The slots of all connections that a peer may mean by `key`.
    pub(super) fn by_remote(&self, key: RemoteKey) -> impl Iterator<Item = u32> {
        self.by_remote.get(key.0.get())
    }

    /// A peer's names are soon looked for ([`SlotTable::touch`]).
    pub(super) fn touch_remote(&self, keys: RemoteKeys) {
        self.by_remote.touch(keys.id.0.get());
        self.by_remote.touch(keys.qpn.0.get());
    }

    /// One of our IDs is soon looked for.
    pub(super) fn touch_local_id(&self, id: CommId) {
        self.by_local_id.touch(id.0);
    }

    /// All names of a connection are soon looked for.
    pub(super) fn touch(&self, local_id: CommId, local_qpn: Qpn, remote: Option<RemoteKeys>) {
        self.touch_local_id(local_id);
        self.by_local_qpn.touch(local_qpn.get());
        if let Some(keys) = remote {
            self.touch_remote(keys);
        }
    }

    /// The ID must be unused.
    pub(super) fn insert_local_id(&mut self, id: CommId, slot: u32) {
        self.by_local_id.insert(id.0, slot);
    }

    /// The number must be unused.
    pub(super) fn insert_local_qpn(&mut self, qpn: Qpn, slot: u32) {
        self.by_local_qpn.insert(qpn.get(), slot);
    }

    pub(super) fn insert_remote(&mut self, key: RemoteKey, slot: u32) {
        self.by_remote.insert(key.0.get(), slot);
    }

    pub(super) fn remove_local_id(&mut self, id: CommId, slot: u32) {
        self.by_local_id.remove(id.0, slot);
    }

    pub(super) fn remove_local_qpn(&mut self, qpn: Qpn, slot: u32) {
        self.by_local_qpn.remove(qpn.get(), slot);
    }

    pub(super) fn remove_remote(&mut self, key: RemoteKey, slot: u32) {
        self.by_remote.remove(key.0.get(), slot);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;

    /// Many addresses that claim one GUID, ID and queue pair do not crowd one place of the map.
    #[test]
    fn sources_have_keys_of_their_own() {
        let mut ids = Ids::new(Keyed::new(&mut ChaCha8Rng::from_seed([1; 32])));
        for guid in [0, 7].map(Guid) {
            let names = |n: u32, lid| {
                let mut gid = [0xfd; 16];
                gid[..4].copy_from_slice(&n.to_be_bytes());
                let source = if lid { Source::Lid(Lid(n as u16)) } else { Source::Gid(Gid(gid)) };
                ids.names(Transport::Rc, source, guid, CommId(1), Qpn::truncate(1))
            };
            let all: Vec<_> = (0..1000).flat_map(|n| [names(n, false), names(n, true)]).collect();
            for (slot, names) in (0..).zip(&all) {
                ids.insert_remote(names.keys.id, slot);
                ids.insert_remote(names.keys.qpn, slot);
            }
            for (slot, names) in (0..).zip(&all) {
                for key in [names.keys.id, names.keys.qpn] {
                    // Two of 4,000 hashes of 32 bits may be the same.
                    assert!(ids.by_remote(key).count() <= 2);
                    ids.remove_remote(key, slot);
                }
            }
        }
        assert!(ids.by_remote.is_empty());
    }

    /// However many connections share an EE context.
    #[test]
    fn connections_of_one_ee_context_have_keys_of_their_own() {
        let ids = Ids::new(Keyed::new(&mut ChaCha8Rng::from_seed([1; 32])));
        let names = (0..1000).map(|n| {
            let source = Source::Lid(Lid(1));
            ids.names(Transport::Rd, source, Guid(7), CommId(n), Qpn::truncate(5)).keys
        });
        let keys: std::collections::BTreeSet<_> = names.flat_map(|keys| [keys.id.0, keys.qpn.0]).collect();
        assert!(keys.len() >= 1998, "{}", keys.len());
    }

    #[test]
    fn each_part_of_a_name_counts() {
        let ids = Ids::new(Keyed::new(&mut ChaCha8Rng::from_seed([1; 32])));
        let (gid, lid) = (Source::Gid(Gid([1; 16])), Source::Lid(Lid(1)));
        let mut keys = Vec::new();
        for (source, guid) in [(gid, 1), (gid, 2), (lid, 1), (Source::Lid(Lid(2)), 1)] {
            let host = ids.host(Guid(guid), source);
            keys.extend([1, 2].map(|n| host.id(CommId(n)).0));
            keys.extend([1, 2].map(|n| host.qpn(Qpn::truncate(n)).0));
            let names = ids.names(Transport::Rc, source, Guid(guid), CommId(1), Qpn::truncate(2));
            assert_eq!((names.keys.id, names.keys.qpn), (host.id(CommId(1)), host.qpn(Qpn::truncate(2))));
        }
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }
}
