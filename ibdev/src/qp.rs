//! Attributes of a queue pair: plain data in IBTA's terms, codes as the QP takes them.

use std::sync::Arc;

use ibwire::{Mtu, Psn, QKey, Qpn, RnrTimer, TimeCode};

use crate::{Access, AddressVector, CompletionQueue, SharedReceiveQueue};

/// The transport of a queue pair.
///
/// There is none for reliable datagrams (RD): no device known carries their data, and this contract has no EE contexts. Nor is
/// there one for extended reliable connections (XRC). The connection manager speaks the handshakes of both all the same, for
/// programs that have the means from elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Raw IPv6: the message is an IPv6 packet, in one packet of the link with no transport header ([`RawFilter`](crate::RawFilter);
    /// spec/raw.md 3). Only where [`DeviceAttr::max_raw_ipv6_qp`](crate::DeviceAttr::max_raw_ipv6_qp) says so.
    RawIpv6,
    /// Raw EtherType: the message is what follows a raw header, which names its protocol. Only where
    /// [`DeviceAttr::max_raw_ethertype_qp`](crate::DeviceAttr::max_raw_ethertype_qp) says so.
    RawEtherType,
}

impl QpType {
    /// Whether its packets have no transport header.
    pub const fn is_raw(self) -> bool {
        matches!(self, Self::RawIpv6 | Self::RawEtherType)
    }
}

/// What a queue pair is created with.
#[derive(Debug, Clone)]
pub struct QpSpec {
    /// Transport.
    pub kind: QpType,
    /// Where sends complete.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Where receives complete; may be the same.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Most sends outstanding.
    pub max_send_wr: u32,
    /// Most receives posted. With a shared receive queue it counts for nothing.
    pub max_recv_wr: u32,
    /// Most buffers of one work request, at least 1.
    pub max_sge: u32,
    /// Where receives are taken from instead of a queue of the QP's own. It must be of the same domain, and the receive
    /// CQ must have room for all of its receives, once for all QPs that bring them to the same CQ: so many QPs can share
    /// one CQ of the queue's length, or have one each of that length.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
}

impl QpSpec {
    /// A queue pair with one completion queue for both directions, one buffer a work request and receives of its own.
    pub fn new(kind: QpType, cq: &Arc<dyn CompletionQueue>, max_send_wr: u32, max_recv_wr: u32) -> Self {
        let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
        Self { kind, send_cq, recv_cq, max_send_wr, max_recv_wr, max_sge: 1, srq: None }
    }
}

/// What a queue pair with a completion queue of its own is created with.
#[derive(Debug, Clone)]
pub struct OwnCqSpec {
    /// Transport.
    pub kind: QpType,
    /// Most sends outstanding.
    pub max_send_wr: u32,
    /// Most receives posted. With a shared receive queue its length.
    pub max_recv_wr: u32,
    /// Most buffers of one work request, at least 1.
    pub max_sge: u32,
    /// As in [`QpSpec::srq`].
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
}

impl OwnCqSpec {
    /// A queue pair with one buffer a work request and receives of its own.
    pub const fn new(kind: QpType, max_send_wr: u32, max_recv_wr: u32) -> Self {
        Self { kind, max_send_wr, max_recv_wr, max_sge: 1, srq: None }
    }

    /// How many completions the queue has to have room for.
    pub const fn capacity(&self) -> u32 {
        self.max_send_wr.saturating_add(self.max_recv_wr)
    }

    /// The queue pair on this queue.
    pub fn on(self, cq: &Arc<dyn CompletionQueue>) -> QpSpec {
        let Self { kind, max_send_wr, max_recv_wr, max_sge, srq } = self;
        QpSpec { max_sge, srq, ..QpSpec::new(kind, cq, max_send_wr, max_recv_wr) }
    }
}

/// RESET to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// Local port, from 1.
    pub port: u8,
    /// Index of the QP's P_Key in the port's table.
    pub pkey_index: u16,
    /// What the peer may do besides sending; connected transports only.
    pub access: Access,
    /// The QP's Q_Key; datagrams only.
    pub qkey: QKey,
}

/// INIT to RTR of a connected QP. UC uses no more than address, MTU, peer and PSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rtr {
    /// The peer's port.
    pub av: AddressVector,
    /// Path MTU; both sides must use the same.
    pub path_mtu: Mtu,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// First PSN that the peer will send.
    pub rq_psn: Psn,
    /// RDMA reads and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// How long a peer waits after a receiver-not-ready NAK.
    pub min_rnr_timer: RnrTimer,
}

/// RTR to RTS of a connected QP. UC uses no more than the PSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rts {
    /// First PSN that we send.
    pub sq_psn: Psn,
    /// How long to wait for an acknowledgement; code 0 is for ever.
    pub timeout: TimeCode,
    /// Retransmissions without progress before the QP fails, 0..=7.
    pub retry_count: u8,
    /// The same for receiver-not-ready NAKs; 7 is for ever.
    pub rnr_retry: u8,
    /// RDMA reads and atomics that we may have outstanding at the peer.
    pub max_rd_atomic: u8,
    /// Loaded and rearmed with this step, as by [`Transition::LoadPath`]. Only where
    /// [`DeviceAttr::path_migration`](crate::DeviceAttr::path_migration) says so, and not with UC.
    pub alternate: Option<AlternatePath>,
}

/// Another path to the same QP of the peer, for automatic path migration (IBTA vol. 1, 17.2.8; spec/softhca.md 2.12).
///
/// Loading one takes the QP's migration state from MIGRATED to REARM. The first packet that comes of a peer in REARM or
/// ARMED takes it to ARMED: both sides are ready. From there the QP migrates by itself when its retries are used up, when
/// a packet of a peer that has migrated comes by the alternate path, or when it is told to
/// ([`Transition::Migrate`]). The alternate path then is the QP's path, the old one is forgotten, and the state is
/// MIGRATED again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlternatePath {
    /// The peer's port, and the local port, which may be another one than that of the QP's path.
    pub av: AddressVector,
    /// Index of the QP's P_Key in the table of that local port.
    pub pkey_index: u16,
    /// How long to wait for an acknowledgement on this path; code 0 is for ever.
    pub timeout: TimeCode,
}

/// A state change of a queue pair (IBTA vol. 1, 10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transition {
    /// RESET to INIT, or INIT to INIT with other attributes.
    Init(Init),
    /// INIT to RTR of a connected QP.
    Rtr(Rtr),
    /// RTR to RTS of a connected QP.
    Rts(Rts),
    /// INIT to RTR of a datagram or raw QP.
    DatagramRtr,
    /// RTR to RTS of a datagram or raw QP.
    DatagramRts {
        /// First PSN that we send; a raw QP has none.
        sq_psn: Psn,
    },
    /// RTS to SQD: what has been started is finished, then [`SqDrained`](crate::DeviceEvent::SqDrained) is reported;
    /// what is posted meanwhile waits.
    SqDrain,
    /// SQD to RTS, once it is drained, or SQE to RTS: the send queue works again after the failure of one of its work
    /// requests.
    SqResume,
    /// RTS to RTS of a connected QP: loads the alternate path and goes from MIGRATED to REARM. One that is loaded and not
    /// yet armed is replaced.
    LoadPath(AlternatePath),
    /// RTS to RTS of a connected QP whose migration state is ARMED: it migrates to the alternate path now, and
    /// [`PathMigrated`](crate::DeviceEvent::PathMigrated) is reported.
    Migrate,
    /// Any state but RESET to ERR: all posted work is flushed.
    Error,
    /// Any state to RESET: all posted work is dropped without completions, its buffers return to their homes.
    Reset,
}

impl Transition {
    /// Whether it needs a device that can migrate paths
    /// ([`DeviceAttr::path_migration`](crate::DeviceAttr::path_migration)).
    pub const fn is_path_migration(&self) -> bool {
        matches!(self, Self::LoadPath(_) | Self::Migrate | Self::Rts(Rts { alternate: Some(_), .. }))
    }
}

impl From<Init> for Transition {
    fn from(init: Init) -> Self {
        Self::Init(init)
    }
}

impl From<Rtr> for Transition {
    fn from(rtr: Rtr) -> Self {
        Self::Rtr(rtr)
    }
}

impl From<Rts> for Transition {
    fn from(rts: Rts) -> Self {
        Self::Rts(rts)
    }
}
