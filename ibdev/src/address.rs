//! Where a packet goes: the address vector of a QP or a datagram.

use ibwire::{FlowLabel, Gid, Lid, Rate, ServiceLevel};

/// The address of a remote port as a QP or a datagram needs it (IBTA vol. 1, 11.2.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The local port to send from, 1-based.
    pub port: u8,
    /// Destination LID; [`Lid::NONE`] on RoCE.
    pub dlid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the source LID, below the port's LMC.
    pub path_bits: u8,
    /// Static rate limit.
    pub rate: Rate,
    /// The global route; always there on RoCE.
    pub grh: Option<GlobalRoute>,
}

/// The part of an address vector that goes into the GRH (on RoCEv2: into the IP header).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: u16,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}
