//! Subscriptions: InformInfo and InformInfoRecord.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Gid, Lid, Qpn, TimeCode};

use super::bits::{be16, be32, byte, bytes};
use super::code::NoticeType;
use super::layout::{Masked, Record, layout};

layout! {
    /// InformInfo (IBTA vol. 1, 13.4.8.3; spec/sa.md 3.18): which notices are wanted.
    pub struct InformInfo, "InformInfo", 36 bytes {
        /// Only notices of this port; unspecified: of all.
        gid: Gid = bytes(0, 16) => mask(0);
        /// First LID of those whose notices are wanted; 0xFFFF: all.
        lid_range_begin: Lid = be16(16) => mask(1);
        /// Last LID of them.
        lid_range_end: Lid = be16(18) => mask(2);
        /// 1 for notices that IBTA defines, 0 for a vendor's.
        is_generic: u8 = byte(22) => mask(4);
        /// 1 subscribes, 0 ends the subscription.
        subscribe: u8 = byte(23) => mask(5);
        /// Only notices of this type; [`InformInfo::ANY`]: all.
        notice_type: u16 = be16(24) => mask(6);
        /// Only this trap (of a vendor: this device); [`InformInfo::ANY`]: all.
        trap_or_device: u16 = be16(26) => mask(7);
        /// The queue pair that hears them. To end a subscription the one that it was made with.
        qpn: Qpn = be32(28).bits(31, 8) => mask(8);
        /// How long the subscriber takes to answer a report at most.
        resp_time: TimeCode = be32(28).bits(4, 0) => mask(10);
        /// Only notices of this kind of node (of a vendor: this vendor), 24 bits; [`InformInfo::ANY_PRODUCER`]: all.
        producer_or_vendor: u32 = bytes(33, 3) => mask(12);
    }
}

impl InformInfo {
    /// Every notice type, every trap.
    pub const ANY: u16 = 0xffff;
    /// Every kind of node.
    pub const ANY_PRODUCER: u32 = 0xff_ffff;
    /// Every LID, in `lid_range_begin`.
    pub const ANY_LID: Lid = Lid(0xffff);

    /// A subscription to a trap that IBTA defines, wherever it comes from.
    pub fn trap(number: u16) -> Self {
        Self {
            lid_range_begin: Self::ANY_LID,
            is_generic: 1,
            subscribe: 1,
            notice_type: Self::ANY,
            trap_or_device: number,
            producer_or_vendor: Self::ANY_PRODUCER,
            ..Self::default()
        }
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.subscribe == 1 { "subscribe to " } else { "unsubscribe from " })?;
        match (self.is_generic != 0, self.trap_or_device) {
            (true, Self::ANY) => f.write_str("all traps")?,
            (true, trap) => write!(f, "trap {trap}")?,
            (false, device) => write!(f, "device {device} of vendor {:#08x}", self.producer_or_vendor)?,
        }
        if self.notice_type != Self::ANY {
            match u8::try_from(self.notice_type) {
                Ok(kind) => write!(f, ", {} only", NoticeType(kind))?,
                Err(_) => write!(f, ", type {} only", self.notice_type)?,
            }
        }
        if !self.gid.is_unspecified() {
            write!(f, ", of {}", self.gid)?;
        }
        write!(f, ", QP {}", self.qpn)
    }
}

impl Record for InformInfo {
    const ATTRIBUTE: AttributeId = AttributeId::INFORM_INFO;
}

layout! {
    /// InformInfoRecord (spec/sa.md 3.18.2): a subscription that the SA holds.
    pub struct InformInfoRecord, "InformInfoRecord", 60 bytes {
        /// Who subscribed.
        subscriber_gid: Gid = bytes(0, 16) => mask(0);
        /// Number of the subscription at that port.
        enumeration: u16 = be16(16) => mask(1);
        /// The subscription.
        inform_info: InformInfo = bytes(24, 36) => inner(3);
    }
}

impl InformInfoRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}: {}", self.subscriber_gid, self.enumeration, self.inform_info)
    }
}

impl Record for InformInfoRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x00f3);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & 0b11)
    }
}
