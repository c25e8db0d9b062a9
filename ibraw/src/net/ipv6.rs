//! IPv6 packets over raw(7).

use std::collections::HashSet;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::UNIX_EPOCH;

use futures_core::future::BoxFuture;
use ibcm_sys::packet::{self, Address, Head, Instruction, Outgoing, Received, RecvBatch, Source};
use ibwire::raw::{Ipv6Header, NextHeader};
use rustix::io::Errno;
use socket2::{Domain, Protocol as Number, Socket, Type};

use super::claims::{self, Claims};
use super::filter;
use super::queue::{self, Queue};
use super::watch::Watch;
use crate::backend::{Backend, Ipv6, NotSent, Wait};
use crate::batch::{Data, Taken};
use crate::bind::Plan;
use crate::link::Interface;
use crate::meta::Ipv6Meta;
use crate::stats::{Counters, add, count};
use crate::{Batch, Group, Ipv6Dest, RawError};

/// Raw sockets, one for each next header: the kernel has no more for one (spec/raw.md 6.5).
#[derive(Debug)]
pub(crate) struct RawSockets {
    lanes: Vec<Lane>,
    /// The lane that is asked first, modulo their number.
    turn: AtomicUsize,
    watch: Watch,
    link: Arc<Interface>,
    plan: Plan<Ipv6>,
    joined: RwLock<HashSet<Ipv6Addr>>,
    counters: Arc<Counters>,
    _claims: Claims,
}

#[derive(Debug)]
struct Lane {
    next_header: NextHeader,
    queue: Queue,
}

impl RawSockets {
    pub(crate) fn bind(link: &Arc<Interface>, plan: &Plan<Ipv6>) -> Result<Self, RawError> {
        let next = &plan.filter;
        if next.contains(&NextHeader::HOP_BY_HOP) || next.contains(&NextHeader(255)) {
            return Err(RawError::Unsupported("next header 0 or 255"));
        }
        let claims = next.iter().map(|next| (link.id(), claims::Kind::NextHeader, next.0.into())).collect();
        let claims = Claims::new(claims, plan.is_exclusive)?;
        let counters: Arc<Counters> = Arc::default();
        let watch = Watch::new(link.clone(), counters.clone())?;
        let lane = |next_header: &NextHeader| {
            let socket = open(link, *next_header, plan)?;
            Ok(Lane { next_header: *next_header, queue: Queue::new(socket, None) })
        };
        let lanes = next.iter().map(lane).collect::<Result<_, RawError>>()?;
        let (link, plan, joined) = (link.clone(), plan.clone(), RwLock::default());
        Ok(Self { lanes, turn: AtomicUsize::new(0), watch, link, plan, joined, counters, _claims: claims })
    }

    fn meta(&self, lane: &Lane, received: &Received<'_>, joined: &HashSet<Ipv6Addr>) -> Option<Ipv6Meta> {
        let (Source::Ipv6 { address: src, .. }, Some((dst, by))) = (received.from, received.to) else {
            count(&self.counters.rx_malformed);
            return None;
        };
        if by != self.link.index {
            count(&self.counters.rx_other_host);
            return None;
        }
        // What any socket of this machine has joined comes here (spec/raw.md 6.5).
        if dst.is_multicast() && !self.plan.hears_port && !joined.contains(&dst) {
            count(&self.counters.rx_not_member);
            return None;
        }
        Some(Ipv6Meta {
            next_header: lane.next_header,
            src,
            dst,
            hop_limit: received.hop_limit.unwrap_or(0),
            traffic_class: received.traffic_class.unwrap_or(0),
            wire_len: received.wire_len,
            truncated: received.wire_len > received.data.len(),
            drops_before: lane.queue.drops_before(received.drops),
            time: received.time.filter(|_| self.plan.is_timed).and_then(|time| UNIX_EPOCH.checked_add(time)),
            subnet: None,
        })
    }

    /// The lane of a next header.
    fn lane(&self, next_header: NextHeader) -> Result<&Lane, RawError> {
        let of_it = |lane: &&Lane| lane.next_header == next_header;
        self.lanes
            .iter()
            .find(of_it)
            .ok_or(RawError::InvalidDest("the socket is bound to other next headers"))
    }
}

/// The most bytes that are sent in one packet. A link may be too short for a header: nothing goes over it.
fn most(mtu: usize, is_with_header: bool) -> usize {
    if is_with_header { mtu } else { mtu.saturating_sub(Ipv6Header::LEN) }
}

/// A bound socket for one next header.
fn open(link: &Interface, next: NextHeader, plan: &Plan<Ipv6>) -> Result<OwnedFd, RawError> {
    let number = Number::from(i32::from(next.0));
    let socket = Socket::new(Domain::IPV6, Type::RAW.nonblocking().cloexec(), Some(number));
    let socket = socket.map_err(|error| RawError::io("make a raw socket", error))?;
    let (options, fd) = (&plan.own, socket.as_fd());
    let of_icmp = options.icmp_types.filter(|_| next == NextHeader::ICMPV6);
    // It has received since it was made: nothing of that which it is not to have.
    let narrows = of_icmp.is_some() || options.address.is_some() || !plan.program.is_empty();
    if narrows {
        filter::attach(fd, &filter::NOTHING)?;
    }
    let set_up = || -> std::io::Result<()> {
        socket.bind_device(Some(link.name.as_bytes()))?;
        socket.set_multicast_if_v6(link.index)?;
        socket.set_multicast_loop_v6(options.loops)?;
        if let Some(hops) = options.hop_limit {
            socket.set_unicast_hops_v6(hops.into())?;
        }
        if let Some(hops) = options.multicast_hops {
            socket.set_multicast_hops_v6(hops.into())?;
        }
        if let Some(bytes) = plan.recv_buffer {
            queue::set_recv_buffer(&socket, bytes)?;
        }
        packet::report_drops(fd)?;
        if plan.is_timed {
            packet::deliver_times(fd)?;
        }
        if let Some(types) = &of_icmp {
            packet::icmpv6_types(fd, &types.0)?;
        }
        packet::deliver_ipv6_facts(fd)?;
        if let Some(offset) = options.checksum_at {
            packet::ipv6_checksum_at(fd, offset)?;
        }
        if options.caller_header {
            packet::ipv6_header_included(fd)?;
        }
        Ok(())
    };
    set_up().map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NODEV) => RawError::LinkGone,
        _ => RawError::io("set up a raw socket", error),
    })?;
    if let Some(address) = options.address {
        let scope = if address.is_unicast_link_local() { link.index } else { 0 };
        let bound = socket.bind(&SocketAddrV6::new(address, 0, 0, scope).into());
        bound.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::ADDRNOTAVAIL) => RawError::NotOwnAddress(address),
            Some(Errno::NODEV) => RawError::LinkGone,
            _ => RawError::io("bind to an address", error),
        })?;
    }
    if narrows {
        // An error of the link comes once, and what was received is behind it.
        while !matches!(socket.recv(&mut [MaybeUninit::uninit()]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        {
        }
        filter::attach(fd, &filter::program(&[], &plan.program)?)?;
    }
    Ok(socket.into())
}

impl Backend<Ipv6> for RawSockets {
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn recv(&self, batch: &mut Batch<Ipv6>, most: usize) -> Result<Poll<()>, RawError> {
        // Each in its turn: much of one next header does not keep the others waiting.
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let (before, from) = self.lanes.split_at(first);
        for lane in from.iter().chain(before) {
            if !lane.queue.recv(&mut batch.room, most, &self.watch)? {
                continue;
            }
            let joined = self.joined.read().unwrap_or_else(PoisonError::into_inner);
            let mut bytes = 0;
            for at in 0..batch.room.len() {
                let Some(received) = batch.room.get(at) else { break };
                let Some(meta) = self.meta(lane, &received, &joined) else { continue };
                bytes += meta.wire_len;
                if meta.truncated {
                    count(&self.counters.rx_truncated);
                }
                batch.taken.push(Taken { data: Data::Room(at, 0, received.data.len()), meta });
            }
            add(&self.counters.rx_packets, batch.taken.len());
            add(&self.counters.rx_bytes, bytes);
            return Ok(Poll::Ready(()));
        }
        Ok(Poll::Pending)
    }

    fn readable(&self) -> Wait<'_> {
        Box::pin(async {
            let mut lanes: Vec<BoxFuture<'_, _>> =
                self.lanes.iter().map(|lane| Box::pin(lane.queue.readable()) as BoxFuture<'_, _>).collect();
            let any = std::future::poll_fn(move |cx| {
                let ready = lanes.iter_mut().find_map(|lane| match lane.as_mut().poll(cx) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                });
                ready.map_or(Poll::Pending, Poll::Ready)
            });
            tokio::select! {
                ready = any => ready,
                news = self.watch.news() => Err(news),
            }
        })
    }

    /// Those with the next header of the first.
    fn send(&self, datagrams: &[(&[u8], &Ipv6Dest)]) -> Result<usize, NotSent> {
        let Some((_, first)) = datagrams.first() else { return Ok(0) };
        let lane = self.lane(first.next_header)?;
        let of_lane = datagrams.iter().take_while(|(_, dest)| dest.next_header == first.next_header);
        let outgoing = of_lane.map(|(data, dest)| Outgoing {
            head: Head::NONE,
            data,
            to: Some(Address::ipv6(dest.addr, self.link.index)),
        });
        let sent = lane.queue.send(outgoing, &self.watch, &self.counters)?;
        add(&self.counters.tx_packets, sent);
        add(&self.counters.tx_bytes, datagrams[..sent].iter().map(|(data, _)| data.len()).sum());
        Ok(sent)
    }

    fn writable(&self) -> Wait<'_> {
        // They have buffers of their own; the one that is full is among them.
        Box::pin(async {
            for lane in &self.lanes {
                lane.queue.writable().await?;
            }
            Ok(())
        })
    }

    fn check(&self, data: &[u8], dest: &Ipv6Dest) -> Result<usize, RawError> {
        self.lane(dest.next_header)?;
        let max = most(self.link.mtu, self.plan.own.caller_header);
        if data.len() > max {
            return Err(RawError::TooLarge { len: data.len(), max });
        }
        if self.plan.own.caller_header {
            dest.check_header(data)?;
        }
        Ok(data.len())
    }

    fn join<'a>(&'a self, group: &'a Group) -> Wait<'a> {
        Box::pin(std::future::ready(self.join_now(group)))
    }

    fn leave(&self, group: &Group) -> Result<(), RawError> {
        let Some(address) = group.address() else { return Err(RawError::NotMember(*group)) };
        if !self.joined.write().unwrap_or_else(PoisonError::into_inner).remove(&address) {
            return Err(RawError::NotMember(*group));
        }
        // One socket of the machine as a member is enough.
        let lane = &self.lanes[0];
        let left = socket2::SockRef::from(lane.queue.fd()).leave_multicast_v6(&address, self.link.index);
        left.map_err(|error| RawError::io("leave a group", error))
    }

    fn set_filter(&self, program: &[Instruction]) -> Result<(), RawError> {
        let program = filter::program(&[], program)?;
        self.lanes.iter().try_for_each(|lane| filter::attach(lane.queue.fd().as_fd(), &program))
    }

    fn recv_buffer(&self) -> usize {
        self.lanes.iter().map(|lane| lane.queue.recv_buffer()).sum()
    }

    fn note_drops(&self) {
        for lane in &self.lanes {
            lane.queue.note_drops(&self.counters);
        }
    }

    fn room(&self, most: usize) -> Batch<Ipv6> {
        Batch::new(RecvBatch::new(most, self.plan.longest(self.link.mtu)))
    }
}

impl RawSockets {
    fn join_now(&self, group: &Group) -> Result<(), RawError> {
        let Some(address) = group.address() else {
            return Err(RawError::Unsupported("a group without an IPv6 address"));
        };
        let lane = &self.lanes[0];
        let joined = socket2::SockRef::from(lane.queue.fd()).join_multicast_v6(&address, self.link.index);
        joined.map_err(|error| RawError::io("join a group", error))?;
        self.joined.write().unwrap_or_else(PoisonError::into_inner).insert(address);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ip link set lo mtu 20` is possible.
    #[test]
    fn raw_t27_a_link_that_is_too_short_for_a_header_takes_nothing() {
        let all = [(1500, false), (1500, true), (40, false), (39, false), (20, false)];
        assert_eq!(all.map(|(mtu, is_with_header)| most(mtu, is_with_header)), [1460, 1500, 0, 0, 0]);
    }
}
