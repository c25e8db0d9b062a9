//! Packets of an EtherType over packet(7).

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::UNIX_EPOCH;

use ibcm_sys::packet::{
    self, Address, Head, Instruction, Kind, LinkAddress, Outgoing, Received, RecvBatch, Source,
};
use ibwire::raw::{EtherType, Ipv6Header};
use socket2::{Domain, Socket, Type};

use super::claims::{self, Claims};
use super::filter;
use super::frame;
use super::queue::{self, Queue};
use super::ring::Ring;
use super::watch::Watch;
use crate::backend::{Backend, Ether, NotSent, Wait};
use crate::batch::{Data, Taken};
use crate::bind::Plan;
use crate::ether::VlanPolicy;
use crate::link::{Interface, LinkKind};
use crate::meta::{EtherMeta, FrameKind, Vlan};
use crate::stats::{Counters, add, count};
use crate::{Batch, EtherDest, Group, RawError};

/// A packet socket.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    queue: Queue,
    /// Where frames come instead, if it has one.
    ring: Option<Ring>,
    watch: Watch,
    link: Arc<Interface>,
    plan: Plan<Ether>,
    /// Of each group on the link the IPv6 groups that were joined, `None` for the group itself.
    joined: RwLock<HashMap<LinkAddress, Vec<Option<Ipv6Addr>>>>,
    /// Joins the groups of IPv6 in the kernel, which then announces that (MLD).
    announcer: Option<Socket>,
    counters: Arc<Counters>,
    _claims: Claims,
}

/// No EtherType.
const RECEIVES_NOTHING: u16 = 0;

/// All EtherTypes, `ETH_P_ALL`.
const ALL: u16 = 3;

impl PacketSocket {
    pub(crate) fn bind(link: &Arc<Interface>, plan: &Plan<Ether>) -> Result<Self, RawError> {
        let (types, options) = (&plan.filter[..], &plan.own);
        types.iter().try_for_each(|ether_type| check_type(link.kind, *ether_type))?;
        let claims =
            types.iter().map(|ether_type| (link.id(), claims::Kind::EtherType, ether_type.0)).collect();
        let claims = Claims::new(claims, plan.is_exclusive)?;
        let counters: Arc<Counters> = Arc::default();
        let socket = packet::packet_socket().map_err(|error| RawError::io("make a packet socket", error))?;
        let fd = socket.as_fd();
        let set = |error| RawError::io("set up a packet socket", error);
        if let Some(bytes) = plan.recv_buffer {
            queue::set_recv_buffer(&socket, bytes).map_err(set)?;
        }
        let ring = options.ring.map(|ring| {
            let spec = ring.spec()?;
            let blocks = packet::Ring::new(fd, spec).map_err(|error| RawError::io("make a ring", error))?;
            Ok(Ring::new(blocks, spec))
        });
        let ring = ring.transpose()?;
        packet::report_drops(fd).map_err(set)?;
        if plan.is_timed {
            packet::deliver_times(fd).map_err(set)?;
        }
        let protocol = match types {
            [one] if !listens_to_all(plan) => one.0,
            _ => ALL,
        };
        if listens_to_all(plan) {
            packet::deliver_auxdata(fd).map_err(set)?;
            if !options.sees_outgoing {
                packet::hear_no_outgoing(fd).map_err(set)?;
            }
        }
        let sorted = sorted_out(plan);
        if !sorted.is_empty() || !plan.program.is_empty() {
            filter::attach(fd, &filter::program(sorted, &plan.program)?)?;
        }
        let watch = Watch::new(link.clone(), counters.clone())?;
        let bound = |error: std::io::Error| match error.raw_os_error() {
            Some(19) => RawError::LinkGone,
            _ => set(error),
        };
        packet::bind(fd, link.index, protocol).map_err(bound)?;
        // Who sees what other sockets send would see that of another one of its own, too.
        let sender = match options.sees_outgoing {
            true => None,
            false => {
                let sender = packet::packet_socket().map_err(set)?;
                packet::bind(sender.as_fd(), link.index, RECEIVES_NOTHING).map_err(bound)?;
                Some(sender)
            }
        };
        if options.is_promiscuous {
            packet::membership(fd, link.index, Kind::Promiscuous, true).map_err(set)?;
        }
        if let Some((id, mode)) = options.fanout {
            packet::fanout(fd, id, mode).map_err(set)?;
        }
        Ok(Self {
            queue: Queue::new(socket, sender),
            ring,
            watch,
            link: link.clone(),
            plan: plan.clone(),
            joined: RwLock::default(),
            // Without IPv6 on this machine nobody listens to announcements.
            announcer: Socket::new(Domain::IPV6, Type::DGRAM, None).ok(),
            counters,
            _claims: claims,
        })
    }

    /// What is known of a frame, and where its payload begins. `None` if it is not for this socket.
    fn meta(
        &self,
        received: &Received<'_>,
        joined: &HashMap<LinkAddress, Vec<Option<Ipv6Addr>>>,
    ) -> Option<(usize, EtherMeta)> {
        let counters = &self.counters;
        let begin = frame::header_len(self.link.kind);
        let header = frame::parse(self.link.kind, received.data);
        let (Source::Link { packet_type, address: src }, Some(header)) = (received.from, header) else {
            count(&counters.rx_malformed);
            return None;
        };
        let kind = match packet_type {
            libc_packet::HOST => FrameKind::Host,
            libc_packet::BROADCAST => FrameKind::Broadcast,
            libc_packet::MULTICAST => FrameKind::Multicast,
            libc_packet::OUTGOING => FrameKind::Outgoing,
            _ => FrameKind::OtherHost,
        };
        let vlan = received.tag.map(|tag| Vlan {
            id: tag.tci & 0xfff,
            priority: (tag.tci >> 13) as u8,
            drop_eligible: tag.tci & 0x1000 != 0,
        });
        if !self.plan.own.vlan.takes(vlan) {
            count(&counters.rx_other_vlan);
            return None;
        }
        if kind == FrameKind::OtherHost && !self.plan.own.accepts_other_host && !self.plan.own.is_promiscuous
        {
            count(&counters.rx_other_host);
            return None;
        }
        let destination = || Ipv6Header::parse(&received.data[begin..]).ok().map(|header| header.dst);
        if kind == FrameKind::Multicast && !self.plan.hears_port {
            let is_member = header.dst.is_none_or(|dst| match joined.get(&dst) {
                None => false,
                Some(groups) if header.ether_type == EtherType::IPV6 && !groups.contains(&None) => {
                    groups.contains(&destination())
                }
                Some(_) => true,
            });
            if !is_member {
                count(&counters.rx_not_member);
                return None;
            }
        }
        let meta = EtherMeta {
            ether_type: header.ether_type,
            src: header.src.or((!src.as_bytes().is_empty()).then_some(src)),
            dst: header.dst,
            kind,
            vlan,
            wire_len: received.wire_len.saturating_sub(begin),
            truncated: received.wire_len > received.data.len(),
            checksum_partial: received.is_checksum_partial,
            drops_before: self.queue.drops_before(received.drops),
            time: received.time.filter(|_| self.plan.is_timed).and_then(|time| UNIX_EPOCH.checked_add(time)),
            subnet: None,
        };
        Some((begin, meta))
    }
}

/// `PACKET_HOST` and so on (linux/if_packet.h).
mod libc_packet {
    pub(super) const HOST: u8 = 0;
    pub(super) const BROADCAST: u8 = 1;
    pub(super) const MULTICAST: u8 = 2;
    pub(super) const OUTGOING: u8 = 4;
}

/// Whether a link carries packets of a type.
pub(crate) fn check_type(kind: LinkKind, ether_type: EtherType) -> Result<(), RawError> {
    let why = match kind {
        LinkKind::Ethernet | LinkKind::Loopback if ether_type < EtherType::MIN_ETHERNET => {
            "on Ethernet less than 0x0600 is a length"
        }
        LinkKind::InfiniBand
            if ![EtherType::IPV4, EtherType::IPV6, EtherType::ARP, EtherType::RARP, EtherType::TIPC]
                .contains(&ether_type) =>
        {
            "IP over InfiniBand carries IPv4, IPv6, ARP, RARP and TIPC"
        }
        _ => return Ok(()),
    };
    Err(RawError::EtherTypeNotOnLink { ether_type, why })
}

/// Whether packet sockets join groups of a link.
fn joinable(kind: LinkKind) -> Result<(), RawError> {
    match kind {
        // The kernel's IPv6 knows the P_Key and the scope that the driver wants in their addresses (spec/raw.md 6.4).
        LinkKind::InfiniBand => Err(RawError::Unsupported(
            "a group for packets of an EtherType, other than by a `RawIpv6Socket` that joins it,",
        )),
        _ => Ok(()),
    }
}

/// Whether the kernel shows the socket frames of every EtherType.
fn listens_to_all(plan: &Plan<Ether>) -> bool {
    let options = &plan.own;
    options.is_any || options.sees_outgoing || plan.filter.len() > 1 || options.vlan != VlanPolicy::Untagged
}

/// The EtherTypes that a program tells from others, if there are such.
fn sorted_out(plan: &Plan<Ether>) -> &[EtherType] {
    // There are none to name where all are taken.
    if listens_to_all(plan) { &plan.filter } else { &[] }
}

impl Backend<Ether> for PacketSocket {
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn recv(&self, batch: &mut Batch<Ether>, most: usize) -> Result<Poll<()>, RawError> {
        let mut bytes = 0;
        let joined = || self.joined.read().unwrap_or_else(PoisonError::into_inner);
        let mut note = |meta: &EtherMeta| {
            bytes += meta.wire_len;
            if meta.truncated {
                count(&self.counters.rx_truncated);
            }
        };
        if let Some(ring) = &self.ring {
            let (joined, longest) = (joined(), self.plan.longest(self.link.mtu));
            let take = |received: &Received<'_>| {
                let (begin, mut meta) = self.meta(received, &joined)?;
                let len = (received.data.len() - begin).min(longest);
                meta.truncated = meta.wire_len > len;
                note(&meta);
                Some((begin, len, meta))
            };
            if !ring.recv(batch, most, (&self.queue, &self.watch, &self.counters), take)? {
                return Ok(Poll::Pending);
            }
        } else {
            if !self.queue.recv(&mut batch.room, most, &self.watch)? {
                return Ok(Poll::Pending);
            }
            let joined = joined();
            for at in 0..batch.room.len() {
                let Some(received) = batch.room.get(at) else { break };
                let Some((begin, meta)) = self.meta(&received, &joined) else { continue };
                note(&meta);
                batch.taken.push(Taken { data: Data::Room(at, begin, received.data.len() - begin), meta });
            }
        }
        add(&self.counters.rx_packets, batch.taken.len());
        add(&self.counters.rx_bytes, bytes);
        Ok(Poll::Ready(()))
    }

    fn readable(&self) -> Wait<'_> {
        Box::pin(async {
            tokio::select! {
                ready = self.queue.readable() => ready,
                news = self.watch.news() => Err(news),
            }
        })
    }

    fn send(&self, datagrams: &[(&[u8], &EtherDest)]) -> Result<usize, NotSent> {
        let (kind, len) = (self.link.kind, frame::header_len(self.link.kind));
        let outgoing = datagrams.iter().map(|(data, dest)| Outgoing {
            head: Head::new(frame::build(kind, dest.to, self.link.address, dest.ether_type), len),
            data,
            // Of Ethernet the kernel reads the EtherType in the header.
            to: (kind == LinkKind::InfiniBand)
                .then(|| Address::link(self.link.index, dest.ether_type.0, dest.to)),
        });
        let sent = self.queue.send(outgoing, &self.watch, &self.counters)?;
        add(&self.counters.tx_packets, sent);
        add(&self.counters.tx_bytes, datagrams[..sent].iter().map(|(data, _)| data.len()).sum());
        Ok(sent)
    }

    fn writable(&self) -> Wait<'_> {
        Box::pin(self.queue.writable())
    }

    fn check(&self, data: &[u8], dest: &EtherDest) -> Result<usize, RawError> {
        check_type(self.link.kind, dest.ether_type)?;
        let len = if self.link.kind == LinkKind::InfiniBand { 20 } else { 6 };
        if dest.to.as_bytes().len() != len {
            return Err(RawError::InvalidDest("the address is of another kind of link"));
        }
        if data.len() > self.link.mtu {
            return Err(RawError::TooLarge { len: data.len(), max: self.link.mtu });
        }
        Ok(data.len())
    }

    fn join<'a>(&'a self, group: &'a Group) -> Wait<'a> {
        Box::pin(std::future::ready(self.join_now(group)))
    }

    fn leave(&self, group: &Group) -> Result<(), RawError> {
        let address = group.on_link();
        let is_last = {
            let mut joined = self.joined.write().unwrap_or_else(PoisonError::into_inner);
            let Some(groups) = joined.get_mut(&address) else { return Err(RawError::NotMember(*group)) };
            groups.retain(|of| *of != group.address());
            let is_last = groups.is_empty();
            if is_last {
                joined.remove(&address);
            }
            is_last
        };
        if let (Some(address), Some(announcer)) = (group.address(), &self.announcer) {
            _ = announcer.leave_multicast_v6(&address, self.link.index); // a link that is gone has left all
        }
        if is_last {
            let left =
                packet::membership(self.queue.fd().as_fd(), self.link.index, Kind::Multicast(address), false);
            left.map_err(|error| RawError::io("leave a group", error))?;
        }
        Ok(())
    }

    fn set_filter(&self, program: &[Instruction]) -> Result<(), RawError> {
        filter::attach(self.queue.fd().as_fd(), &filter::program(sorted_out(&self.plan), program)?)
    }

    fn recv_buffer(&self) -> usize {
        match &self.ring {
            Some(ring) => ring.len(),
            None => self.queue.recv_buffer(),
        }
    }

    fn note_drops(&self) {
        match &self.ring {
            Some(ring) => ring.note_drops(&self.queue, &self.counters),
            None => self.queue.note_drops(&self.counters),
        }
    }

    fn room(&self, most: usize) -> Batch<Ether> {
        match self.ring {
            Some(_) => Batch::new(RecvBatch::new(1, 0)),
            None => Batch::new(RecvBatch::new(
                most,
                self.plan.longest(self.link.mtu) + frame::header_len(self.link.kind),
            )),
        }
    }
}

impl PacketSocket {
    fn join_now(&self, group: &Group) -> Result<(), RawError> {
        joinable(self.link.kind)?;
        let address = group.on_link();
        let mut joined = self.joined.write().unwrap_or_else(PoisonError::into_inner);
        let joining = |error| RawError::io("join a group", error);
        if !joined.contains_key(&address) {
            let fd = self.queue.fd().as_fd();
            packet::membership(fd, self.link.index, Kind::Multicast(address), true).map_err(joining)?;
        }
        joined.entry(address).or_default().push(group.address());
        drop(joined);
        if let (Some(address), Some(announcer)) = (group.address(), &self.announcer)
            && let Err(error) = announcer.join_multicast_v6(&address, self.link.index)
        {
            _ = self.leave(group);
            return Err(joining(error));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_t25_ip_over_infiniband_carries_five_types() {
        let refused = |kind, ether_type| match check_type(kind, ether_type) {
            Err(RawError::EtherTypeNotOnLink { ether_type: of, why }) if of == ether_type => Some(why),
            other => other.map(|()| None).expect("no other error"),
        };
        let carried = [EtherType::IPV4, EtherType::IPV6, EtherType::ARP, EtherType::RARP, EtherType::TIPC];
        for ether_type in carried {
            assert_eq!(refused(LinkKind::InfiniBand, ether_type), None, "{ether_type}");
        }
        for ether_type in [EtherType::LOCAL_1, EtherType::VLAN, EtherType(0x0400)] {
            let why = refused(LinkKind::InfiniBand, ether_type).expect("refused");
            assert!(why.contains("IP over InfiniBand"), "{why}");
        }
        assert_eq!(refused(LinkKind::Ethernet, EtherType::LOCAL_1), None);
        let why = refused(LinkKind::Ethernet, EtherType(0x05ff)).expect("refused");
        assert!(why.contains("length"), "{why}");
        // Its groups are those of IPv6, which another socket joins.
        let error = joinable(LinkKind::InfiniBand).expect_err("refused").to_string();
        assert!(error.contains("RawIpv6Socket"), "{error}");
        assert!(joinable(LinkKind::Ethernet).is_ok());
    }
}
