//! Notices: what happened in the subnet.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Gid, Guid, Lid, PKey, QKey, Qpn, ServiceLevel};

use super::bits::{be16, be32, be64, byte, bytes};
use super::code::{NoticeType, PortCapabilities, PortCapabilities2};
use super::layout::{Layout, Record, layout};
use super::value::Value;

layout! {
    /// Notice (IBTA vol. 1, 13.4.8.2; spec/sa.md 3.19). [`details`](Self::details) reads what it is about.
    pub struct Notice, "Notice", 80 bytes {
        /// Whether IBTA defines it; else a vendor does.
        is_generic: bool = byte(0).bits(7, 7) => unmasked;
        /// How grave it is, 7 bits.
        notice_type: NoticeType = byte(0).bits(6, 0) => unmasked;
        /// Kind of node that it is about: 1 CA, 2 switch, 3 router, 4 the class manager. Of a vendor's: the vendor. 24 bits.
        producer_or_vendor: u32 = bytes(1, 3) => unmasked;
        /// Which trap; of a vendor's: which device.
        trap_or_device: u16 = be16(4) => unmasked;
        /// LID of who said it.
        issuer_lid: Lid = be16(6) => unmasked;
        /// Changes when the notice is a new one.
        toggle: bool = be16(8).bits(15, 15) => unmasked;
        /// How many were missed, 15 bits.
        count: u16 = be16(8).bits(14, 0) => unmasked;
        /// What it is about, of a form that the trap decides. Some SAs leave old memory in what is not used.
        data: [u8; 54] = bytes(10, 54) => unmasked;
        /// GID of who said it.
        issuer_gid: Gid = bytes(64, 16) => unmasked;
    }
}

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoticeDetails {
    /// Trap 64: a port came into service.
    GidIn(Gid),
    /// Trap 65: a port went out of service.
    GidOut(Gid),
    /// Trap 66: a multicast group was created.
    GroupCreated(Gid),
    /// Trap 67: a multicast group was deleted.
    GroupDeleted(Gid),
    /// Trap 128: the link of a port of this switch changed its state.
    LinkStateChanged(Lid),
    /// Traps 129 to 131: the integrity of the link, its buffers or its flow control fail.
    LinkTrouble {
        /// 129 integrity, 130 overrun, 131 flow control.
        trap: u16,
        /// LID of the port.
        lid: Lid,
        /// Number of the port.
        port: u8,
    },
    /// Trap 144: what a port can do, or what its node is called, has changed.
    CapabilitiesChanged {
        /// LID of the port.
        lid: Lid,
        /// What it can do now.
        capabilities: PortCapabilities,
        /// What else it can do now.
        capabilities2: PortCapabilities2,
        /// Which other things have changed, if `other` says that some have.
        changes: u16,
        /// Whether `changes` counts.
        other: bool,
    },
    /// Trap 145: the GUID of a system has changed.
    SystemImageGuidChanged {
        /// LID of the port.
        lid: Lid,
        /// The new GUID.
        guid: Guid,
    },
    /// Trap 256: a MAD with a wrong M_Key.
    BadMKey {
        /// LID of who sent it.
        lid: Lid,
        /// LID where its directed route began.
        dr_slid: Lid,
        /// Its method.
        method: u8,
        /// Its attribute.
        attribute: u16,
        /// Its attribute modifier.
        attribute_modifier: u32,
        /// The key.
        m_key: u64,
    },
    /// Trap 257: a packet with a wrong P_Key.
    BadPKey(PKey, Offender),
    /// Trap 258: a packet with a wrong Q_Key.
    BadQKey(QKey, Offender),
    /// Trap 259: a packet with a wrong P_Key at an external port of a switch.
    BadPKeyAtSwitch {
        /// The key.
        p_key: PKey,
        /// The packet. Which of its fields are known `valid` tells.
        offender: Offender,
        /// Which fields are known.
        valid: u16,
        /// LID of the switch.
        switch: Lid,
        /// Its port.
        port: u8,
    },
    /// Another trap, or a vendor's.
    Other,
}

/// The addresses of a packet that was not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Offender {
    /// LID of its source.
    pub slid: Lid,
    /// LID of its destination.
    pub dlid: Lid,
    /// Its service level.
    pub sl: ServiceLevel,
    /// Its source QP.
    pub source_qp: Qpn,
    /// Its destination QP.
    pub destination_qp: Qpn,
    /// GID of its source.
    pub sgid: Gid,
    /// GID of its destination.
    pub dgid: Gid,
}

impl Notice {
    /// What it is about.
    pub fn details(&self) -> NoticeDetails {
        let mut raw = [0; Self::LEN];
        self.write_to(&mut raw);
        let raw = &raw[..];
        let (gid, lid) = (|| Gid::read(raw, bytes(16, 16)), |at| Lid::read(raw, be16(at)));
        match (self.is_generic, self.trap_or_device) {
            (true, 64) => NoticeDetails::GidIn(gid()),
            (true, 65) => NoticeDetails::GidOut(gid()),
            (true, 66) => NoticeDetails::GroupCreated(gid()),
            (true, 67) => NoticeDetails::GroupDeleted(gid()),
            (true, 128) => NoticeDetails::LinkStateChanged(lid(10)),
            (true, trap @ 129..=131) => NoticeDetails::LinkTrouble { trap, lid: lid(12), port: raw[14] },
            (true, 144) => NoticeDetails::CapabilitiesChanged {
                lid: lid(12),
                capabilities: Value::read(raw, be32(16)),
                capabilities2: Value::read(raw, be16(22)),
                changes: Value::read(raw, be16(20)),
                other: raw[15] & 1 != 0,
            },
            (true, 145) => {
                NoticeDetails::SystemImageGuidChanged { lid: lid(12), guid: Value::read(raw, be64(16)) }
            }
            (true, 256) => NoticeDetails::BadMKey {
                lid: lid(12),
                dr_slid: lid(14),
                method: raw[16],
                attribute: Value::read(raw, be16(18)),
                attribute_modifier: Value::read(raw, be32(20)),
                m_key: Value::read(raw, be64(24)),
            },
            (true, 257) => NoticeDetails::BadPKey(PKey(be32(16).get(raw) as u16), offender(raw, 12, 20, 28)),
            (true, 258) => NoticeDetails::BadQKey(Value::read(raw, be32(16)), offender(raw, 12, 20, 28)),
            (true, 259) => NoticeDetails::BadPKeyAtSwitch {
                p_key: Value::read(raw, be16(16)),
                offender: offender(raw, 12, 18, 26),
                valid: Value::read(raw, be16(10)),
                switch: lid(58),
                port: raw[60],
            },
            _ => NoticeDetails::Other,
        }
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.details() {
            NoticeDetails::GidIn(gid) => write!(f, "{gid} is in service"),
            NoticeDetails::GidOut(gid) => write!(f, "{gid} is out of service"),
            NoticeDetails::GroupCreated(gid) => write!(f, "group {gid} created"),
            NoticeDetails::GroupDeleted(gid) => write!(f, "group {gid} deleted"),
            NoticeDetails::LinkStateChanged(lid) => write!(f, "a link of switch LID {} changed", lid.0),
            NoticeDetails::Other if !self.is_generic => {
                write!(f, "notice {} of vendor {:#08x}", self.trap_or_device, self.producer_or_vendor)
            }
            details => write!(f, "trap {} ({}): {details:?}", self.trap_or_device, self.notice_type),
        }
    }
}

/// The addresses of a packet: LIDs, SL and QPs, and GIDs begin at these bytes.
fn offender(raw: &[u8], lids: usize, qps: usize, gids: usize) -> Offender {
    Offender {
        slid: Value::read(raw, be16(lids)),
        dlid: Value::read(raw, be16(lids + 2)),
        sl: Value::read(raw, be32(qps).bits(31, 28)),
        source_qp: Value::read(raw, be32(qps).bits(23, 0)),
        destination_qp: Value::read(raw, be32(qps + 4).bits(23, 0)),
        sgid: Value::read(raw, bytes(gids, 16)),
        dgid: Value::read(raw, bytes(gids + 16, 16)),
    }
}

impl Record for Notice {
    const ATTRIBUTE: AttributeId = AttributeId::NOTICE;
}
