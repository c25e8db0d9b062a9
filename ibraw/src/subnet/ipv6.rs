//! IPv6 packets on an in-process subnet.

use std::net::Ipv6Addr;

use ibdev::qp::QpType;
use ibdev::{Device, PortAttr, RawTypes, SendOp, SendWr};
use ibwire::raw::{Ipv6Header, NextHeader, size};
use ibwire::{FlowLabel, Gid};

use super::queue::work;
use super::socket::{From, OnSubnet, SubnetSocket};
use super::{SubnetPort, refused};
use crate::backend::{Ipv6, NotSent};
use crate::bind::Plan;
use crate::meta::Ipv6Meta;
use crate::{Group, Ipv6Dest, RawError};

/// Hop limit of what is sent to one address, and to groups, unless the socket has another one.
const HOPS: (u8, u8) = (64, 1);

/// The header of a packet with a payload of `len` bytes.
fn header(socket: &SubnetSocket<Ipv6>, len: usize, to: &Ipv6Dest) -> Result<Ipv6Header, RawError> {
    let options = &socket.plan.own;
    let src = source(&socket.port, options.address)?;
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
        src,
        dst: to.addr,
    })
}

/// Where what is sent comes from: the address that the socket is bound to, which the port must have, or its first one.
fn source(port: &SubnetPort, bound: Option<Ipv6Addr>) -> Result<Ipv6Addr, RawError> {
    let gids = port.device.gids(port.port).map_err(refused)?;
    let mut own = gids.iter().map(|entry| Ipv6Addr::from(entry.gid.0));
    match bound {
        Some(address) if own.any(|own| own == address) => Ok(address),
        Some(address) => Err(RawError::NotOwnAddress(address)),
        None => own.next().ok_or(RawError::Unsupported("a port without a GID")),
    }
}

fn gid(to: &Ipv6Dest) -> Gid {
    Gid(to.addr.octets())
}

impl OnSubnet for Ipv6 {
    const QP: QpType = QpType::RawIpv6;

    fn types(port: &SubnetPort, plan: &Plan<Self>) -> Result<RawTypes, RawError> {
        if plan.own.address.is_some() {
            source(port, plan.own.address)?;
        }
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
            socket.leave_out(|counters| &counters.rx_malformed, &from);
            return None;
        };
        let is_heard = socket.plan.hears_port || socket.groups.has(&Group::Ipv6(header.dst));
        if header.dst.is_multicast() && !is_heard {
            socket.turn_away(&from);
            return None;
        }
        let options = &socket.plan.own;
        if !header.dst.is_multicast() && options.address.is_some_and(|own| own != header.dst) {
            socket.leave_out(|counters| &counters.rx_other_host, &from);
            return None;
        }
        let payload = &packet[Ipv6Header::LEN..];
        let of_icmp = options.icmp_types.filter(|_| header.next_header == NextHeader::ICMPV6);
        // Its header is 4 bytes, without which the kernel takes none, either.
        let kind = payload.first_chunk::<4>().map(|[kind, ..]| *kind);
        if of_icmp.is_some_and(|types| !kind.is_some_and(|kind| types.has(kind))) {
            socket.leave_out(|counters| &counters.rx_filtered, &from);
            return None;
        }
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
            time: None,
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
