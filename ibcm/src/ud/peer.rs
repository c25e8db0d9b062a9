//! Where datagrams go.

use std::fmt;
use std::sync::{Arc, Weak};

use ibdev::AddressVector;
use ibwire::{Gid, Lid, PKey, QKey, Qpn};

use crate::path::Path;
use crate::shared::Shared;

/// Where a datagram goes, or came from: the way to a port, the queue pair there and its Q_Key. A cheap handle; it does not
/// keep the HCA open. Two are equal if they are the same queue pair of the same port, as seen from the same port of ours,
/// whatever else the ways there have in common.
#[derive(Clone)]
pub struct Peer(Arc<Inner>);

struct Inner {
    shared: Weak<Shared>,
    /// Our GID on the way there, if its index is to be looked up.
    sgid: Option<Gid>,
    av: AddressVector,
    qpn: Qpn,
    qkey: QKey,
    /// That of the path, if it was made of one.
    pkey: Option<PKey>,
}

/// What tells address handles apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Way {
    pub(super) sgid: Option<Gid>,
    pub(super) av: AddressVector,
}

impl Peer {
    /// The queue pair with this number at the end of a path. With bit 31 of the Q_Key set, that of the sending socket goes
    /// out instead. The path's P_Key has to be of the partition of the socket that sends.
    pub fn new(path: &Path, qpn: Qpn, qkey: QKey) -> Self {
        let shared = path.port().hca().shared();
        let (inner, sgid) = (path.inner(), path.record().sgid);
        // The index of our GID is looked up when it is used: until then the table may change.
        let av = shared.engine().endpoint.address_vector(&inner);
        // Of a port that the HCA does not have: no socket takes such a peer.
        let av = av.unwrap_or(AddressVector {
            port: inner.port,
            dlid: inner.record.dlid,
            sl: inner.record.sl,
            path_bits: 0,
            rate: inner.record.rate,
            grh: None,
        });
        let (shared, pkey) = (Arc::downgrade(shared), Some(path.record().pkey));
        Self(Arc::new(Inner { shared, sgid: Some(sgid), av, qpn, qkey, pkey }))
    }

    pub(super) fn at(
        shared: &Arc<Shared>,
        sgid: Option<Gid>,
        av: AddressVector,
        qpn: Qpn,
        qkey: QKey,
    ) -> Self {
        Self(Arc::new(Inner { shared: Arc::downgrade(shared), sgid, av, qpn, qkey, pkey: None }))
    }

    /// The GID of its port, or of the group; on RoCE its IP address. `None` where packets carry none.
    pub fn gid(&self) -> Option<Gid> {
        self.0.av.grh.map(|grh| grh.dgid)
    }

    /// Its LID; [`Lid::NONE`] on RoCE.
    pub fn lid(&self) -> Lid {
        self.0.av.dlid
    }

    /// Its queue pair; [`Qpn::MULTICAST`] is a group.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// The Q_Key that it wants to see.
    pub fn qkey(&self) -> QKey {
        self.0.qkey
    }

    pub(super) fn pkey(&self) -> Option<PKey> {
        self.0.pkey
    }

    pub(super) fn way(&self) -> Way {
        Way { sgid: self.0.sgid, av: self.0.av }
    }

    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Weak::ptr_eq(&self.0.shared, &Arc::downgrade(shared))
    }
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        let key = |peer: &Self| (peer.0.av.port, peer.gid(), peer.lid(), peer.0.qpn);
        Weak::ptr_eq(&self.0.shared, &other.0.shared) && key(self) == key(other)
    }
}

impl Eq for Peer {}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gid() {
            Some(gid) => write!(f, "QP {} at {gid}", self.qpn()),
            None => write!(f, "QP {} at LID {}", self.qpn(), self.lid().0),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({self}, Q_Key {})", self.qkey())
    }
}
