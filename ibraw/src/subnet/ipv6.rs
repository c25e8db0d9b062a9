//! IPv6 packets on an in-process subnet.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Poll;

use bytes::Bytes;
use ibcm_sys::packet::RecvBatch;
use ibdev::qp::QpType;
use ibdev::{Device, RawFilter, RawTypes, RawView, SendOp};
use ibwire::raw::{Ipv6Header, NextHeader, size};
use ibwire::{FlowLabel, Gid};

use super::group::{self, Joined};
use super::queue::{Queue, dest, work};
use super::{SubnetPort, refused};
use crate::backend::{Backend, Ipv6, NotSent, Wait};
use crate::batch::{Data, Taken};
use crate::ipv6::Options;
use crate::meta::Ipv6Meta;
use crate::stats::{Counters, add, count};
use crate::{Batch, Group, Ipv6Dest, RawError};

/// Hop limit of what is sent to one address, and to groups, unless the socket has another one.
const HOPS: (u8, u8) = (64, 1);

/// A raw IPv6 queue pair.
#[derive(Debug)]
pub(crate) struct Ipv6Queue {
    port: Arc<SubnetPort>,
    queue: Queue,
    next: Vec<NextHeader>,
    joined: Joined,
    /// Packets of groups that share their address in the subnet with one that was joined.
    strangers: AtomicU64,
    /// Losses that one of those told of: the next packet passes them on.
    untold: AtomicU32,
    options: Options,
    counters: Arc<Counters>,
}

impl Ipv6Queue {
    pub(crate) fn bind(
        port: &Arc<SubnetPort>,
        next: &[NextHeader],
        options: &Options,
    ) -> Result<Self, RawError> {
        if next.is_empty() {
            return Err(RawError::NoFilter);
        }
        if options.checksum_at.is_some() {
            return Err(RawError::Unsupported("a checksum by the link"));
        }
        let filter = RawFilter {
            view: if options.hears_port { RawView::Port } else { RawView::Joined },
            exclusive: options.is_exclusive,
            loopback: options.loops,
            ..RawFilter::new(RawTypes::Only(next.iter().map(|next| next.0.into()).collect()))
        };
        let longest = longest(port)?;
        let queue = Queue::open(port, QpType::RawIpv6, filter, longest, options.recv_buffer)?;
        let (port, next, strangers) = (port.clone(), next.to_vec(), AtomicU64::new(0));
        let (joined, untold, counters) = (Joined::default(), AtomicU32::new(0), Arc::default());
        Ok(Self { port, queue, next, joined, strangers, untold, options: *options, counters })
    }

    /// What is known of a packet, and its payload; `None` if it is not for this socket.
    fn read<'a>(&self, packet: &'a [u8], lost_before: u32) -> Option<(Ipv6Meta, &'a [u8])> {
        let header = Ipv6Header::parse(packet).ok()?;
        let payload = &packet[Ipv6Header::LEN..];
        let is_group = header.dst.is_multicast();
        if is_group && !self.options.hears_port && !self.joined.has(&Group::Ipv6(header.dst)) {
            self.strangers.fetch_add(1, Ordering::Relaxed);
            self.untold.fetch_add(lost_before, Ordering::Relaxed);
            return None;
        }
        let buffer = self.options.buffer.unwrap_or(usize::MAX);
        let meta = Ipv6Meta {
            next_header: header.next_header,
            src: header.src,
            dst: header.dst,
            hop_limit: header.hop_limit,
            traffic_class: header.traffic_class,
            wire_len: payload.len(),
            truncated: payload.len() > buffer,
            drops_before: self.untold.swap(0, Ordering::Relaxed).saturating_add(lost_before),
        };
        Some((meta, &payload[..payload.len().min(buffer)]))
    }

    fn path(&self, to: Ipv6Addr) -> Result<ibwire::PathRecord, RawError> {
        let gid = if to.is_multicast() { group::mgid(&Group::Ipv6(to))? } else { Gid(to.octets()) };
        self.port.path(gid)
    }

    /// The header of a packet with a payload of `len` bytes.
    fn header(&self, len: usize, to: &Ipv6Dest) -> Result<Ipv6Header, RawError> {
        let gids = self.port.device.gids(self.port.port).map_err(refused)?;
        let own = gids.first().ok_or(RawError::Unsupported("a port without a GID"))?;
        let hop_limit = if to.addr.is_multicast() {
            self.options.multicast_hops.unwrap_or(HOPS.1)
        } else {
            self.options.hop_limit.unwrap_or(HOPS.0)
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
}

/// The longest packet, header included.
pub(crate) fn longest(port: &SubnetPort) -> Result<usize, RawError> {
    Ok(size::max_ipv6_payload(port.attr()?.active_mtu).map_or(0, |len| len + Ipv6Header::LEN))
}

impl Backend<Ipv6> for Ipv6Queue {
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn recv(&self, batch: &mut Batch<Ipv6>, most: usize) -> Result<Poll<()>, RawError> {
        let mut bytes = 0;
        let any = self.queue.recv(&self.port, most, |packet, source| {
            let Some((meta, data)) = self.read(packet, source.lost_before) else { return };
            bytes += meta.wire_len;
            if meta.truncated {
                count(&self.counters.rx_truncated);
            }
            batch.taken.push(Taken { data: Data::Shared(Bytes::copy_from_slice(data)), meta });
        })?;
        add(&self.counters.rx_packets, batch.taken.len());
        add(&self.counters.rx_bytes, bytes);
        Ok(if any { Poll::Ready(()) } else { Poll::Pending })
    }

    fn readable(&self) -> Wait<'_> {
        Box::pin(self.queue.readable())
    }

    fn send(&self, datagrams: &[(&[u8], &Ipv6Dest)]) -> Result<usize, NotSent> {
        let work = datagrams.iter().map(|(data, to)| {
            let op = SendOp::RawIpv6 { to: dest(&self.path(to.addr)?) };
            if self.options.caller_header {
                return Ok(work(op, &[data]));
            }
            Ok(work(op, &[&self.header(data.len(), to)?.to_bytes(), data]))
        });
        let sent = self.queue.send(work.collect::<Result<_, RawError>>()?, &self.counters)?;
        add(&self.counters.tx_packets, sent);
        add(&self.counters.tx_bytes, datagrams[..sent].iter().map(|(data, _)| data.len()).sum());
        Ok(sent)
    }

    fn writable(&self) -> Wait<'_> {
        // The queue pair has room again as soon as its link has had its turn.
        Box::pin(async {
            tokio::task::yield_now().await;
            Ok(())
        })
    }

    fn check(&self, data: &[u8], to: &Ipv6Dest) -> Result<usize, RawError> {
        if !self.next.contains(&to.next_header) {
            return Err(RawError::InvalidDest("the socket is bound to other next headers"));
        }
        self.path(to.addr)?;
        let header = if self.options.caller_header { 0 } else { Ipv6Header::LEN };
        let max = longest(&self.port)? - header;
        if data.len() > max {
            return Err(RawError::TooLarge { len: data.len(), max });
        }
        if self.options.caller_header {
            to.check_header(data)?;
        }
        Ok(data.len())
    }

    fn join<'a>(&'a self, group: &'a Group) -> Wait<'a> {
        let joined = match group {
            Group::Ipv6(_) => self.joined.join(&self.port, &self.queue, group),
            Group::Link(_) => Err(RawError::Unsupported("a group without an IPv6 address")),
        };
        Box::pin(std::future::ready(joined))
    }

    fn leave(&self, group: &Group) -> Result<(), RawError> {
        self.joined.leave(&self.port, &self.queue, group)
    }

    fn note_drops(&self) {
        self.queue.note_drops(&self.counters);
        let not_member = self.queue.not_member() + self.strangers.load(Ordering::Relaxed);
        self.counters.rx_not_member.store(not_member, Ordering::Relaxed);
    }

    fn room(&self, _most: usize) -> Batch<Ipv6> {
        Batch::new(RecvBatch::new(1, 0))
    }
}
