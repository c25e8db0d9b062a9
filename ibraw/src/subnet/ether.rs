//! Packets of an EtherType on an in-process subnet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use ibcm_sys::packet::RecvBatch;
use ibdev::qp::QpType;
use ibdev::{RawDest, RawFilter, RawSource, RawTypes, RawView, SendOp};
use ibwire::raw::{EtherType, size};
use ibwire::{Lid, Rate, ServiceLevel};

use super::group::{self, Joined};
use super::queue::{Queue, dest, work};
use super::{SubnetPort, lid_address};
use crate::backend::{Backend, Ether, NotSent, Wait};
use crate::batch::{Data, Taken};
use crate::ether::{Options, VlanPolicy};
use crate::meta::{EtherMeta, FrameKind};
use crate::stats::{Counters, add, count};
use crate::{Batch, EtherDest, Group, RawError};

/// A raw EtherType queue pair.
#[derive(Debug)]
pub(crate) struct EtherQueue {
    port: Arc<SubnetPort>,
    queue: Queue,
    joined: Joined,
    buffer: Option<usize>,
    counters: Arc<Counters>,
}

impl EtherQueue {
    pub(crate) fn bind(
        port: &Arc<SubnetPort>,
        types: &[EtherType],
        options: &Options,
    ) -> Result<Self, RawError> {
        if types.is_empty() && !options.is_any {
            return Err(RawError::NoFilter);
        }
        if options.is_promiscuous || options.accepts_other_host || options.sees_outgoing {
            return Err(RawError::Unsupported("receiving what is for others"));
        }
        if options.fanout.is_some() || matches!(options.vlan, VlanPolicy::Id(_)) {
            return Err(RawError::Unsupported("fanout, and a VLAN,"));
        }
        if options.ring.is_some() {
            return Err(RawError::Unsupported("a ring"));
        }
        let values = types.iter().map(|ether_type| ether_type.0).collect();
        let filter = RawFilter {
            view: if options.hears_port { RawView::Port } else { RawView::Joined },
            exclusive: options.is_exclusive,
            ..RawFilter::new(if options.is_any { RawTypes::Any } else { RawTypes::Only(values) })
        };
        let longest = longest(port)?;
        let queue = Queue::open(port, QpType::RawEtherType, filter, longest, options.recv_buffer)?;
        let (port, buffer) = (port.clone(), options.buffer);
        Ok(Self { port, queue, joined: Joined::default(), buffer, counters: Arc::default() })
    }

    fn meta(&self, data: &[u8], source: RawSource) -> EtherMeta {
        let wire_len = data.len();
        EtherMeta {
            ether_type: source.ether_type.unwrap_or(EtherType(0)),
            src: Some(lid_address(source.slid)),
            dst: source.group.map(lid_address),
            kind: if source.group.is_some() { FrameKind::Multicast } else { FrameKind::Host },
            vlan: None,
            wire_len,
            truncated: self.buffer.is_some_and(|buffer| wire_len > buffer),
            checksum_partial: false,
            drops_before: source.lost_before,
        }
    }

    fn dest(&self, to: &EtherDest) -> Result<RawDest, RawError> {
        match to.to.as_bytes() {
            [high, low] => {
                let dlid = Lid(u16::from_be_bytes([*high, *low]));
                if !dlid.is_unicast() && !dlid.is_multicast() {
                    return Err(RawError::InvalidDest("a LID that no port and no group has"));
                }
                let sl = ServiceLevel::default();
                Ok(RawDest { dlid, sl, path_bits: 0, rate: Rate::PORT_CURRENT })
            }
            [first, ..] if first & 1 == 1 => Ok(dest(&self.port.path(group::mgid(&Group::Link(to.to))?)?)),
            _ => Err(RawError::InvalidDest("a port of a subnet has a LID, no address of Ethernet")),
        }
    }
}

/// The longest payload.
pub(crate) fn longest(port: &SubnetPort) -> Result<usize, RawError> {
    Ok(size::max_ether_payload(port.attr()?.active_mtu).unwrap_or(0))
}

impl Backend<Ether> for EtherQueue {
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn recv(&self, batch: &mut Batch<Ether>, most: usize) -> Result<Poll<()>, RawError> {
        let mut bytes = 0;
        let any = self.queue.recv(&self.port, most, |data, source| {
            let meta = self.meta(data, source);
            bytes += meta.wire_len;
            if meta.truncated {
                count(&self.counters.rx_truncated);
            }
            let kept = &data[..data.len().min(self.buffer.unwrap_or(usize::MAX))];
            batch.taken.push(Taken { data: Data::Shared(Bytes::copy_from_slice(kept)), meta });
        })?;
        add(&self.counters.rx_packets, batch.taken.len());
        add(&self.counters.rx_bytes, bytes);
        Ok(if any { Poll::Ready(()) } else { Poll::Pending })
    }

    fn readable(&self) -> Wait<'_> {
        Box::pin(self.queue.readable())
    }

    fn send(&self, datagrams: &[(&[u8], &EtherDest)]) -> Result<usize, NotSent> {
        let work = datagrams.iter().map(|(data, to)| {
            let op = SendOp::RawEtherType { to: self.dest(to)?, ether_type: to.ether_type };
            Ok(work(op, &[data]))
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

    fn check(&self, data: &[u8], to: &EtherDest) -> Result<usize, RawError> {
        self.dest(to)?;
        let max = longest(&self.port)?;
        if data.len() > max {
            return Err(RawError::TooLarge { len: data.len(), max });
        }
        Ok(data.len() + size::ether_padding(data.len()))
    }

    fn join<'a>(&'a self, group: &'a Group) -> Wait<'a> {
        let link = Group::Link(group.on_link());
        Box::pin(std::future::ready(self.joined.join(&self.port, &self.queue, &link)))
    }

    fn leave(&self, group: &Group) -> Result<(), RawError> {
        self.joined.leave(&self.port, &self.queue, &Group::Link(group.on_link()))
    }

    fn note_drops(&self) {
        self.queue.note_drops(&self.counters);
        self.counters.rx_not_member.store(self.queue.not_member(), Ordering::Relaxed);
    }

    fn room(&self, _most: usize) -> Batch<Ether> {
        Batch::new(RecvBatch::new(1, 0))
    }
}
