//! What a class tells about itself at a port.

use std::fmt;

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{codec, u24, u24_bytes};
use crate::{DecodeError, FlowLabel, Gid, Lid, PKey, QKey, Qpn, ServiceLevel, TimeCode};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RedirectLayout {
    gid: [u8; 16],
    class_sl_flow: U32,
    lid: U16,
    pkey: U16,
    /// Reserved in the redirection, hop limit in the trap address.
    hop_limit: u8,
    qpn: [u8; 3],
    qkey: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ClassPortInfoLayout {
    base_version: u8,
    class_version: u8,
    capability_mask: U16,
    capability_mask2_resp_time: U32,
    redirect: RedirectLayout,
    trap: RedirectLayout,
}

/// Where a class is served, or where traps shall go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Redirect {
    /// GID of the port.
    pub gid: Gid,
    /// Traffic class of packets there.
    pub traffic_class: u8,
    /// Service level of packets there.
    pub sl: ServiceLevel,
    /// Flow label of packets there.
    pub flow_label: FlowLabel,
    /// LID of the port; [`Lid::NONE`]: use the GID.
    pub lid: Lid,
    /// Partition.
    pub pkey: PKey,
    /// Queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: QKey,
}

impl Redirect {
    /// Whether neither LID nor GID is given: there is no redirection.
    pub const fn is_none(&self) -> bool {
        self.lid.0 == 0 && self.gid.is_unspecified()
    }

    fn decode(l: &RedirectLayout) -> Self {
        let first = l.class_sl_flow.get();
        Self {
            gid: Gid(l.gid),
            traffic_class: (first >> 24) as u8,
            sl: ServiceLevel::truncate((first >> 20) as u8),
            flow_label: FlowLabel::truncate(first),
            lid: Lid(l.lid.get()),
            pkey: PKey(l.pkey.get()),
            qpn: Qpn::truncate(u24(l.qpn)),
            qkey: QKey(l.qkey.get()),
        }
    }

    fn encode(&self, hop_limit: u8) -> RedirectLayout {
        let first =
            u32::from(self.traffic_class) << 24 | u32::from(self.sl.get()) << 20 | self.flow_label.get();
        RedirectLayout {
            gid: self.gid.0,
            class_sl_flow: U32::new(first),
            lid: U16::new(self.lid.0),
            pkey: U16::new(self.pkey.0),
            hop_limit,
            qpn: u24_bytes(self.qpn.get()),
            qkey: U32::new(self.qkey.0),
        }
    }
}

/// ClassPortInfo (IBTA vol. 1, 13.4.8.1; spec/cm.md 1.6). The reserved byte is ignored and written as 0.
///
/// It is also the additional information of a CM message that redirects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClassPortInfo {
    /// Version of the MAD format, 1.
    pub base_version: u8,
    /// Version of the class.
    pub class_version: u8,
    /// What the class can do; from bit 8 on each class has its own meanings.
    pub capability_mask: u16,
    /// What else the class can do, 27 bits; the upper five are not written.
    pub capability_mask2: u32,
    /// How long an answer takes at most.
    pub resp_time: TimeCode,
    /// Where the class is served.
    pub redirect: Redirect,
    /// Where traps shall go.
    pub trap: Redirect,
    /// Hop limit of packets with traps.
    pub trap_hop_limit: u8,
}

codec!(ClassPortInfo, ClassPortInfoLayout, 72, "ClassPortInfo");

impl ClassPortInfo {
    fn decode(l: &ClassPortInfoLayout) -> Result<Self, DecodeError> {
        let second = l.capability_mask2_resp_time.get();
        Ok(Self {
            base_version: l.base_version,
            class_version: l.class_version,
            capability_mask: l.capability_mask.get(),
            capability_mask2: second >> 5,
            resp_time: TimeCode::truncate(second as u8),
            redirect: Redirect::decode(&l.redirect),
            trap: Redirect::decode(&l.trap),
            trap_hop_limit: l.trap.hop_limit,
        })
    }

    fn encode(&self) -> ClassPortInfoLayout {
        ClassPortInfoLayout {
            base_version: self.base_version,
            class_version: self.class_version,
            capability_mask: U16::new(self.capability_mask),
            capability_mask2_resp_time: U32::new(
                self.capability_mask2 << 5 | u32::from(self.resp_time.get()),
            ),
            redirect: self.redirect.encode(0),
            trap: self.trap.encode(self.trap_hop_limit),
        }
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return write!(f, "QP {}, Q_Key {}", self.qpn, self.qkey);
        }
        write!(
            f,
            "LID {}, GID {}, QP {}, Q_Key {}, P_Key {}, SL {}",
            self.lid.0, self.gid, self.qpn, self.qkey, self.pkey, self.sl
        )
    }
}

impl fmt::Display for ClassPortInfo {
    /// One line; with `{:#}` a line for each field.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            writeln!(f, "ClassPortInfo:")?;
            writeln!(f, "  base_version....... {}", self.base_version)?;
            writeln!(f, "  class_version...... {}", self.class_version)?;
            writeln!(f, "  capability_mask.... {:#06x}", self.capability_mask)?;
            writeln!(f, "  capability_mask2... {:#09x}", self.capability_mask2)?;
            writeln!(f, "  resp_time.......... {}", self.resp_time)?;
            writeln!(f, "  redirect........... {}", self.redirect)?;
            writeln!(f, "  trap............... {}", self.trap)?;
            return write!(f, "  trap_hop_limit..... {}", self.trap_hop_limit);
        }
        write!(
            f,
            "class version {}, capabilities {:#06x} {:#09x}, answers within {}",
            self.class_version, self.capability_mask, self.capability_mask2, self.resp_time
        )?;
        if !self.redirect.is_none() {
            write!(f, ", served at {}", self.redirect)?;
        }
        Ok(())
    }
}
