//! Where datagrams go.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use ibdev::{AddressVector, LinkLayer};
use ibwire::{Gid, Lid, PKey, QKey, Qpn};

use crate::path::Path;
use crate::proto::LocalPort;
use crate::shared::Shared;

/// Where a datagram goes, or came from: the way to a port, the queue pair there and its Q_Key. A cheap handle; it does not
/// keep the HCA open.
///
/// Two are equal if they are the same queue pair of the same port, as seen from the same port of ours, whatever the ways
/// there: who answers is equal to who was asked, also by another service level, with or without a GRH, and by another of the
/// LIDs that a port has in a subnet with an LMC. So peers are keys of maps. In our own InfiniBand subnet the LID tells ports apart, without the bits
/// that the LMC of our port leaves to paths: subnet managers give all HCAs the same LMC, and where one does not, two ports with
/// neighbouring LIDs are taken for one. Else the GID does. What our port is when a peer is made decides, so that keys stay what they are.
///
/// ```
/// # use ibcm::{Hca, sim::Subnet, ud};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::collections::HashMap;
/// # let net = Subnet::star(["here", "there"]).await?;
/// # let (here, there) = (Hca::open(net.device("here")).await?, Hca::open(net.device("there")).await?);
/// # let (asking, answering) = (ud::Socket::open(&here).await?, ud::Socket::open(&there).await?);
/// let peer = ud::Peer::new(&here.path_to(there.gid()).await?, answering.qpn(), answering.qkey());
/// let mut heard = HashMap::from([(peer.clone(), 0)]);
/// asking.send_copy(&peer, b"who is there?").await?;
/// # let question = answering.recv().await?;
/// # answering.send_copy(&question.from(), b"me").await?;
/// let answer = asking.recv().await?;
/// *heard.get_mut(&answer.from()).ok_or("a stranger")? += 1;
/// assert_eq!(heard[&peer], 1);
/// # Ok(())
/// # }
/// ```
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
    place: Place,
}

/// What tells ports apart, whatever the ways there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// A port of our subnet, by its base LID.
    Lid(Lid),
    /// One of another subnet, or on RoCE; or a group.
    Gid(Option<Gid>),
}

impl Place {
    /// `port` is the one that the way starts from.
    fn new(av: &AddressVector, port: Option<&LocalPort>) -> Self {
        let gid = av.grh.map(|grh| grh.dgid);
        let is_here =
            av.dlid.is_unicast() && gid.is_none_or(|gid| port.is_some_and(|port| is_in_subnet_of(port, gid)));
        match is_here {
            true => Self::Lid(port.map_or(av.dlid, |port| base_of(av.dlid, port.lmc))),
            false => Self::Gid(gid),
        }
    }
}

/// The base LID of a port that has this one.
fn base_of(lid: Lid, lmc: u8) -> Lid {
    Lid(lid.0 >> lmc.min(7) << lmc.min(7))
}

/// Whether the port with this GID is in the InfiniBand subnet of `port`.
fn is_in_subnet_of(port: &LocalPort, gid: Gid) -> bool {
    let ours = port.gids.iter().any(|entry| entry.gid.prefix() == gid.prefix());
    port.link_layer == LinkLayer::InfiniBand && !gid.is_multicast() && (gid.is_link_local() || ours)
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
        let engine = shared.engine();
        // The index of our GID is looked up when it is used: until then the table may change.
        let av = engine.endpoint.address_vector(&inner);
        // Of a port that the HCA does not have: no socket takes such a peer.
        let av = av.unwrap_or(AddressVector {
            port: inner.port,
            dlid: inner.record.dlid,
            sl: inner.record.sl,
            path_bits: 0,
            rate: inner.record.rate,
            grh: None,
        });
        let place = Place::new(&av, engine.endpoint.local_ca().port(av.port));
        drop(engine);
        let (shared, pkey) = (Arc::downgrade(shared), Some(path.record().pkey));
        Self(Arc::new(Inner { shared, sgid: Some(sgid), av, qpn, qkey, pkey, place }))
    }

    /// `port` is the one that the way starts from.
    pub(super) fn at(
        shared: &Arc<Shared>,
        sgid: Option<Gid>,
        av: AddressVector,
        (qpn, qkey): (Qpn, QKey),
        port: Option<&LocalPort>,
    ) -> Self {
        let (shared, place) = (Arc::downgrade(shared), Place::new(&av, port));
        Self(Arc::new(Inner { shared, sgid, av, qpn, qkey, pkey: None, place }))
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
        let key = |peer: &Self| (peer.0.qpn, peer.0.av.port, peer.0.place);
        Weak::ptr_eq(&self.0.shared, &other.0.shared) && key(self) == key(other)
    }
}

impl Eq for Peer {}

impl Hash for Peer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.qpn, self.0.av.port, self.0.place).hash(state);
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gid() {
            Some(gid) => write!(f, "QP {} at {gid}", self.qpn()),
            None => write!(f, "QP {} at LID {}", self.qpn(), self.lid()),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({self}, Q_Key {})", self.qkey())
    }
}
