//! Packets of an EtherType on an in-process subnet.

use ibdev::qp::QpType;
use ibdev::{PortAttr, RawDest, RawTypes, SendOp, SendWr};
use ibwire::raw::{EtherType, size};
use ibwire::{Gid, Lid, Rate, ServiceLevel};

use super::queue::work;
use super::socket::{From, OnSubnet, SubnetSocket};
use super::{SubnetPort, lid_address};
use crate::backend::{Ether, NotSent};
use crate::bind::Plan;
use crate::ether::VlanPolicy;
use crate::meta::{EtherMeta, FrameKind};
use crate::{EtherDest, Group, RawError};

/// What a destination is.
enum To {
    Lid(Lid),
    Group(Group),
}

fn to(dest: &EtherDest) -> Result<To, RawError> {
    match dest.to.as_bytes() {
        [high, low] => {
            let lid = Lid(u16::from_be_bytes([*high, *low]));
            if lid.is_unicast() || lid.is_multicast() {
                Ok(To::Lid(lid))
            } else {
                Err(RawError::InvalidDest("a LID that no port and no group has"))
            }
        }
        [first, ..] if first & 1 == 1 => Ok(To::Group(Group::Link(dest.to))),
        _ => Err(RawError::InvalidDest("a port of a subnet has a LID, no address of Ethernet")),
    }
}

impl OnSubnet for Ether {
    const QP: QpType = QpType::RawEtherType;

    fn types(_: &SubnetPort, plan: &Plan<Self>) -> Result<RawTypes, RawError> {
        let own = &plan.own;
        if own.is_promiscuous || own.accepts_other_host || own.sees_outgoing {
            return Err(RawError::Unsupported("receiving what is for others"));
        }
        if own.fanout.is_some() || matches!(own.vlan, VlanPolicy::Id(_)) {
            return Err(RawError::Unsupported("fanout, and a VLAN,"));
        }
        if own.ring.is_some() {
            return Err(RawError::Unsupported("a ring"));
        }
        let values = plan.filter.iter().map(|ether_type| ether_type.0).collect();
        Ok(if own.is_any { RawTypes::Any } else { RawTypes::Only(values) })
    }

    fn loops(_: &Plan<Self>) -> bool {
        false
    }

    fn longest(port: &PortAttr) -> (usize, usize) {
        let mtu = port.active_mtu;
        (size::max_ether_payload(mtu).unwrap_or(0), mtu.bytes().map_or(0, |bytes| bytes as usize))
    }

    fn read<'a>(socket: &SubnetSocket<Self>, packet: &'a [u8], from: From) -> Option<(EtherMeta, &'a [u8])> {
        let (data, truncated) = socket.cut(packet);
        let source = from.source;
        let meta = EtherMeta {
            ether_type: source.ether_type.unwrap_or(EtherType(0)),
            src: Some(lid_address(source.slid)),
            dst: source.group.map(lid_address),
            kind: if source.group.is_some() { FrameKind::Multicast } else { FrameKind::Host },
            vlan: None,
            wire_len: packet.len(),
            truncated,
            checksum_partial: false,
            drops_before: from.drops_before,
            time: None,
            subnet: Some(from.subnet),
        };
        Some((meta, data))
    }

    fn check(socket: &SubnetSocket<Self>, data: &[u8], dest: &EtherDest) -> Result<usize, RawError> {
        if let To::Group(group) = to(dest)? {
            socket.groups.check(&group)?;
        }
        let max = socket.most()?;
        if data.len() > max {
            return Err(RawError::TooLarge { len: data.len(), max });
        }
        Ok(data.len() + size::ether_padding(data.len()))
    }

    fn work(socket: &SubnetSocket<Self>, data: &[u8], dest: &EtherDest) -> Result<SendWr, NotSent> {
        let to = match to(dest)? {
            To::Lid(dlid) => {
                RawDest { dlid, sl: ServiceLevel::default(), path_bits: 0, rate: Rate::PORT_CURRENT }
            }
            To::Group(group) => socket.groups.way(&group)?,
        };
        Ok(work(SendOp::RawEtherType { to, ether_type: dest.ether_type }, &[data]))
    }

    fn group_of(dest: &EtherDest) -> Option<Group> {
        match to(dest) {
            Ok(To::Group(group)) => Some(group),
            _ => None,
        }
    }

    fn port_of(_: &EtherDest) -> Option<Gid> {
        None
    }

    fn joins(group: &Group) -> Result<Group, RawError> {
        Ok(Group::Link(group.on_link()))
    }
}
