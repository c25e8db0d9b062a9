//! What a device and its ports are and can do.

use ibwire::{Gid, Guid, Lid, Mtu, PKey, Rate, ServiceLevel, TimeCode};

/// Attributes of a device that do not change while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// The name by which the device is opened.
    pub name: String,
    /// Node GUID, stable for the same device or address.
    pub node_guid: Guid,
    /// Number of ports; they are numbered from 1.
    pub ports: u8,
    /// Most work requests in one queue.
    pub max_qp_wr: u32,
    /// Most completions in one CQ.
    pub max_cqe: u32,
    /// Longest message in bytes.
    pub max_message: u32,
    /// RDMA reads and atomics that a QP can serve at once (responder resources).
    pub max_responder_resources: u8,
    /// RDMA reads and atomics that a QP can have outstanding (initiator depth).
    pub max_initiator_depth: u8,
    /// Most buffers of one work request.
    pub max_sge: u32,
    /// Longest message that can be posted inline.
    pub max_inline_data: u32,
    /// Most receives in a shared receive queue; 0 if the device has none.
    pub max_srq_wr: u32,
    /// Whether it carries out atomics.
    pub atomics: bool,
    /// Whether reliable connections can have an alternate path and migrate to it
    /// ([`AlternatePath`](crate::qp::AlternatePath)). Default: no.
    pub path_migration: bool,
    /// Raw IPv6 queue pairs of one port at most; 0, the default, if it has none ([`QpType::RawIpv6`](crate::qp::QpType)).
    pub max_raw_ipv6_qp: u32,
    /// Raw EtherType queue pairs of one port at most; 0, the default, if it has none
    /// ([`QpType::RawEtherType`](crate::qp::QpType)).
    pub max_raw_ethertype_qp: u32,
    /// Whether raw queue pairs send and receive multicast. Default: no.
    pub raw_multicast: bool,
    /// How long the device may take to acknowledge a packet.
    pub ack_delay: TimeCode,
}

impl DeviceAttr {
    /// A device with `ports` ports and the limits of a small HCA; set what differs.
    pub fn new(name: impl Into<String>, node_guid: Guid, ports: u8) -> Self {
        Self {
            name: name.into(),
            node_guid,
            ports,
            max_qp_wr: 16_384,
            max_cqe: 65_536,
            max_message: 1 << 31,
            max_responder_resources: 16,
            max_initiator_depth: 16,
            max_sge: 1,
            max_inline_data: 0,
            max_srq_wr: 0,
            atomics: false,
            path_migration: false,
            max_raw_ipv6_qp: 0,
            max_raw_ethertype_qp: 0,
            raw_multicast: false,
            ack_delay: TimeCode::truncate(15),
        }
    }
}

/// Attributes of a port at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAttr {
    /// Port number, from 1.
    pub number: u8,
    /// Logical state.
    pub state: PortState,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// The MTU in force.
    pub active_mtu: Mtu,
    /// Base LID; [`Lid::NONE`] on RoCE.
    pub lid: Lid,
    /// LID mask control: the port answers to 2^LMC LIDs.
    pub lmc: u8,
    /// LID of the master subnet manager.
    pub sm_lid: Lid,
    /// The service level by which the subnet manager, and with it the SA, is reached.
    pub sm_sl: ServiceLevel,
    /// The port's rate.
    pub rate: Rate,
}

/// A port's attributes and tables at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortTables {
    /// Its attributes.
    pub attr: PortAttr,
    /// The GID table; unused entries are left out.
    pub gids: Vec<GidEntry>,
    /// The P_Key table; the position is the index.
    pub pkeys: Vec<PKey>,
}

/// The logical state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No link, or taken down.
    Down,
    /// A link, not yet configured or armed.
    Initializing,
    /// Carries traffic.
    Active,
}

/// The kind of link under a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// LIDs, an SM and an SA.
    InfiniBand,
    /// RoCE: IP addresses as GIDs, no SA.
    Ethernet,
}

/// One entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u16,
    /// The GID.
    pub gid: Gid,
    /// What packets that use it look like.
    pub kind: GidKind,
}

/// The type of a GID table entry. A NIC lists each address once a type: choose by type, never by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE over Ethernet frames, not routable.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
}
