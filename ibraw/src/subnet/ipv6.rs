//! IPv6 packets on an in-process subnet.

use std::net::Ipv6Addr;

use ibdev::qp::QpType;
use ibdev::{Device, PortAttr, RawTypes, SendOp, SendWr};
use ibwire::raw::{Ipv6Header, size};
use ibwire::{FlowLabel, Gid};

use super::queue::work;
use super::refused;
use super::socket::{From, OnSubnet, SubnetSocket};
use crate::backend::{Ipv6, NotSent};
use crate::bind::Plan;
use crate::meta::Ipv6Meta;
use crate::{Group, Ipv6Dest, RawError};

/// Hop limit of what is sent to one address, and to groups, unless the socket has another one.
const HOPS: (u8, u8) = (64, 1);

/// The header of a packet with a payload of `len` bytes.
fn header(socket: &SubnetSocket<Ipv6>, len: usize, to: &Ipv6Dest) -> Result<Ipv6Header, RawError> {
    let gids = socket.port.device.gids(socket.port.port).map_err(refused)?;
    let own = gids.first().ok_or(RawError::Unsupported("a port without a GID"))?;
    let options = &socket.plan.own;
    let hop_limit = if to.addr.is_multicast() {
        options.multicast_hops.unwrap_or(HOPS.1)
    } else {
        options.hop_limit.unwrap_or(HOPS.0)
    };
    Ok(Ipv6Header {
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        payload_len: len as u16,
        next_header: to.next_header,
        hop_limit,
        src: Ipv6Addr::from(own.gid.0),
        dst: to.addr,
    })
}

fn gid(to: &Ipv6Dest) -> Gid {
    Gid(to.addr.octets())
}

impl OnSubnet for Ipv6 {
    const QP: QpType = QpType::RawIpv6;

    fn types(plan: &Plan<Self>) -> Result<RawTypes, RawError> {
        if plan.own.checksum_at.is_some() {
            return Err(RawError::Unsupported("a checksum by the link"));
        }
        Ok(RawTypes::Only(plan.filter.iter().map(|next| next.0.into()).collect()))
    }

    fn loops(plan: &Plan<Self>) -> bool {
        plan.own.loops
    }

    fn longest(port: &PortAttr) -> (usize, usize) {
        let mtu = port.active_mtu;
        let longest = size::max_ipv6_payload(mtu).map_or(0, |len| len + Ipv6Header::LEN);
        (longest, mtu.bytes().map_or(0, |bytes| bytes as usize))
    }

    fn read<'a>(socket: &SubnetSocket<Self>, packet: &'a [u8], from: From) -> Option<(Ipv6Meta, &'a [u8])> {
        let Ok(header) = Ipv6Header::parse(packet) else {
            socket.count_malformed(&from);
            return None;
        };
        let is_heard = socket.plan.hears_port || socket.groups.has(&Group::Ipv6(header.dst));
        if header.dst.is_multicast() && !is_heard {
            socket.turn_away(&from);
            return None;
        }
        let payload = &packet[Ipv6Header::LEN..];
        let (data, truncated) = socket.cut(payload);
        let meta = Ipv6Meta {
            next_header: header.next_header,
            src: header.src,
            dst: header.dst,
            hop_limit: header.hop_limit,
            traffic_class: header.traffic_class,
            wire_len: payload.len(),
            truncated,
            drops_before: from.drops_before,
            subnet: Some(from.subnet),
        };
        Some((meta, data))
    }

    fn check(socket: &SubnetSocket<Self>, data: &[u8], to: &Ipv6Dest) -> Result<usize, RawError> {
        if !socket.plan.filter.contains(&to.next_header) {
            return Err(RawError::InvalidDest("the socket is bound to other next headers"));
        }
        match Self::group_of(to) {
            Some(group) => socket.groups.check(&group)?,
            None => socket.port.check(gid(to))?,
        }
        let header = if socket.plan.own.caller_header { 0 } else { Ipv6Header::LEN };
        let max = socket.most()?.saturating_sub(header);
        if data.len() > max {
            return Err(RawError::TooLarge { len: data.len(), max });
        }
        if socket.plan.own.caller_header {
            to.check_header(data)?;
        }
        Ok(data.len())
    }

    fn work(socket: &SubnetSocket<Self>, data: &[u8], to: &Ipv6Dest) -> Result<SendWr, NotSent> {
        let way = match Self::group_of(to) {
            Some(group) => socket.groups.way(&group)?,
            None => socket.port.way(gid(to))?,
        };
        let op = SendOp::RawIpv6 { to: way };
        if socket.plan.own.caller_header {
            return Ok(work(op, &[data]));
        }
        Ok(work(op, &[&header(socket, data.len(), to)?.to_bytes(), data]))
    }

    fn group_of(to: &Ipv6Dest) -> Option<Group> {
        to.addr.is_multicast().then_some(Group::Ipv6(to.addr))
    }

    fn port_of(to: &Ipv6Dest) -> Option<Gid> {
        (!to.addr.is_multicast()).then(|| gid(to))
    }

    fn joins(group: &Group) -> Result<Group, RawError> {
        match group {
            Group::Ipv6(_) => Ok(*group),
            Group::Link(_) => Err(RawError::Unsupported("a group without an IPv6 address")),
        }
    }
}
