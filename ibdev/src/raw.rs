//! What raw queue pairs have of their own: addresses, which packets they take, what becomes of those (spec/raw.md 3, 4).

use ibwire::raw::EtherType;
use ibwire::{Lid, Rate, ServiceLevel};

/// Where a raw packet goes: there is no destination QP, no P_Key and no Q_Key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawDest {
    /// Destination LID: of a port, or of a multicast group. Neither [`Lid::NONE`] nor the permissive LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the source LID, below the port's LMC.
    pub path_bits: u8,
    /// Static rate limit.
    pub rate: Rate,
}

/// Where a received raw packet came from, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawSource {
    /// Source LID.
    pub slid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the LID that it was sent to; `None` for multicast.
    pub path_bits: Option<u8>,
    /// The LID that it was sent to, if that is a group's.
    pub group: Option<Lid>,
    /// Its protocol; raw EtherType only.
    pub ether_type: Option<EtherType>,
    /// Packets for this QP that were lost before it and after the one received last, for want of a receive or of room in one.
    /// 0 on devices that do not know.
    pub lost_before: u32,
}

/// Which packets a raw QP takes. IBTA leaves open which one of several raw QPs of a port gets a packet; here each one gets a
/// copy whose filter lets it in (spec/raw.md 4.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawFilter {
    /// By protocol.
    pub types: RawTypes,
    /// By destination.
    pub view: RawView,
    /// No other QP of the port may take one of `types`.
    pub exclusive: bool,
    /// Other QPs of the port receive the multicast that this one sends. It never receives its own.
    pub loopback: bool,
    /// An IPv6 packet that is followed by more than its padding is let in, cut to its own length, and counted.
    pub lenient: bool,
}

impl RawFilter {
    /// Takes these protocols, unicast and the groups that the QP is attached to; not exclusive, no loopback, strict.
    pub const fn new(types: RawTypes) -> Self {
        Self { types, view: RawView::Joined, exclusive: false, loopback: false, lenient: false }
    }
}

impl Default for RawFilter {
    /// As IBTA has it: everything of the QP's type that the port receives.
    fn default() -> Self {
        Self { view: RawView::Port, ..Self::new(RawTypes::Any) }
    }
}

/// Protocols that a raw QP takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawTypes {
    /// All.
    Any,
    /// These: EtherTypes, or the next header fields of IPv6 headers.
    Only(Vec<u16>),
}

impl RawTypes {
    /// Whether a packet of that protocol is let in.
    pub fn contains(&self, value: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Only(values) => values.contains(&value),
        }
    }

    /// Whether one protocol at least is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Any, Self::Only(values)) | (Self::Only(values), Self::Any) => !values.is_empty(),
            (Self::Only(values), other) => values.iter().any(|value| other.contains(*value)),
        }
    }
}

/// Destinations that a raw QP takes packets for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawView {
    /// The port's LIDs, and the groups that the QP is attached to.
    Joined,
    /// Everything that the port receives, as IBTA has it.
    Port,
}

/// What has become of packets for a raw QP since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RawCounters {
    /// Packets received.
    pub received: u64,
    /// Packets lost because no receive was posted.
    pub no_receive: u64,
    /// Packets lost because they were longer than the receive that they would have taken; it stays.
    pub too_long: u64,
    /// Packets of a group that the QP is not attached to.
    pub not_member: u64,
    /// IPv6 packets of which more was there than their own length and padding.
    pub excess: u64,
    /// Packets sent.
    pub sent: u64,
}
