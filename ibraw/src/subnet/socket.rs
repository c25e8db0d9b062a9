//! A socket on an in-process subnet: what packets of both kinds have in common there.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Poll;

use bytes::Bytes;
use ibcm_sys::packet::RecvBatch;
use ibdev::qp::QpType;
use ibdev::{PortAttr, RawFilter, RawSource, RawTypes, RawView, SendWr};
use ibwire::Gid;

use super::SubnetPort;
use super::groups::Groups;
use super::queue::Queue;
use super::watch::Watch;
use crate::backend::{Backend, NotSent, Protocol, Wait};
use crate::batch::{Data, Taken};
use crate::bind::Plan;
use crate::meta::SubnetMeta;
use crate::stats::{Counters, add, count};
use crate::{Batch, Group, RawError};

/// What they differ in.
pub(crate) trait OnSubnet: Protocol {
    const QP: QpType;

    /// What the queue pair takes. What the socket is to be and cannot is an error.
    fn types(port: &SubnetPort, plan: &Plan<Self>) -> Result<RawTypes, RawError>;

    /// Whether other sockets of the port hear what this one sends to groups.
    fn loops(plan: &Plan<Self>) -> bool;

    /// The longest message of a port, and the longest one within its MTU.
    fn longest(port: &PortAttr) -> (usize, usize);

    /// What is known of a packet, and its payload; `None` if it is not for this socket.
    fn read<'a>(socket: &SubnetSocket<Self>, packet: &'a [u8], from: From) -> Option<(Self::Meta, &'a [u8])>;

    /// What is wrong with a datagram. Else the length of its payload on the wire.
    fn check(socket: &SubnetSocket<Self>, data: &[u8], to: &Self::Dest) -> Result<usize, RawError>;

    /// What is posted.
    fn work(socket: &SubnetSocket<Self>, data: &[u8], to: &Self::Dest) -> Result<SendWr, NotSent>;

    /// The group that is sent to.
    fn group_of(to: &Self::Dest) -> Option<Group>;

    /// The address that is sent to, if it is one port's.
    fn port_of(to: &Self::Dest) -> Option<Gid>;

    /// A group as it is joined.
    fn joins(group: &Group) -> Result<Group, RawError>;
}

/// Where a packet comes from, and what was lost before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct From {
    pub(super) source: RawSource,
    pub(super) drops_before: u32,
    pub(super) subnet: SubnetMeta,
}

/// A raw queue pair.
pub(crate) struct SubnetSocket<P: OnSubnet> {
    pub(super) port: Arc<SubnetPort>,
    pub(super) plan: Plan<P>,
    pub(super) groups: Arc<Groups>,
    pub(super) queue: Arc<Queue>,
    watch: Watch,
    /// Packets of groups that share their address in the subnet with one that was joined.
    strangers: AtomicU64,
    /// Losses that a packet told of which was not handed out: the next one passes them on.
    pub(super) untold: AtomicU32,
    counters: Arc<Counters>,
}

impl<P: OnSubnet> SubnetSocket<P> {
    pub(crate) fn bind(port: &Arc<SubnetPort>, plan: &Plan<P>) -> Result<Self, RawError> {
        if plan.is_timed {
            return Err(RawError::Unsupported("a time of arrival"));
        }
        if !plan.program.is_empty() {
            return Err(RawError::Unsupported("a filter program"));
        }
        let filter = RawFilter {
            view: if plan.hears_port { RawView::Port } else { RawView::Joined },
            exclusive: plan.is_exclusive,
            loopback: P::loops(plan),
            ..RawFilter::new(P::types(port, plan)?)
        };
        let (longest, _) = P::longest(&port.attr()?);
        let queue = Arc::new(Queue::open(port, P::QP, filter, longest, plan.recv_buffer)?);
        let counters: Arc<Counters> = Arc::default();
        Ok(Self {
            port: port.clone(),
            plan: plan.clone(),
            groups: Groups::new(port, &queue),
            queue,
            watch: Watch::new(port.clone(), counters.clone()),
            strangers: AtomicU64::new(0),
            untold: AtomicU32::new(0),
            counters,
        })
    }

    /// The most bytes of a message.
    pub(super) fn most(&self) -> Result<usize, RawError> {
        let (longest, within_mtu) = P::longest(&self.port.attr()?);
        Ok(if self.plan.is_strict { within_mtu } else { longest })
    }

    /// A packet has come that is none, or not for this socket.
    pub(super) fn leave_out(&self, cause: fn(&Counters) -> &AtomicU64, from: &From) {
        count(cause(&self.counters));
        self.untold.fetch_add(from.drops_before, Ordering::Relaxed);
    }

    /// A packet of a group that was not joined has come.
    pub(super) fn turn_away(&self, from: &From) {
        self.strangers.fetch_add(1, Ordering::Relaxed);
        self.untold.fetch_add(from.drops_before, Ordering::Relaxed);
    }

    /// The part of a payload that there is room for, and whether that is not all.
    pub(super) fn cut<'a>(&self, payload: &'a [u8]) -> (&'a [u8], bool) {
        let kept = &payload[..payload.len().min(self.plan.buffer.unwrap_or(usize::MAX))];
        (kept, kept.len() < payload.len())
    }
}

impl<P: OnSubnet> Backend<P> for SubnetSocket<P> {
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn recv(&self, batch: &mut Batch<P>, most: usize) -> Result<Poll<()>, RawError> {
        let mut bytes = 0;
        let any = self.queue.recv(&self.port, most, |packet, source| {
            let from = From {
                drops_before: source.lost_before.saturating_add(self.untold.swap(0, Ordering::Relaxed)),
                subnet: SubnetMeta { slid: source.slid, sl: source.sl, path_bits: source.path_bits },
                source,
            };
            let Some((meta, data)) = P::read(self, packet, from) else { return };
            bytes += P::cut(&meta).unwrap_or(data.len());
            if P::cut(&meta).is_some() {
                count(&self.counters.rx_truncated);
            }
            batch.taken.push(Taken { data: Data::Shared(Bytes::copy_from_slice(data)), meta });
        })?;
        add(&self.counters.rx_packets, batch.taken.len());
        add(&self.counters.rx_bytes, bytes);
        Ok(if any { Poll::Ready(()) } else { Poll::Pending })
    }

    fn readable(&self) -> Wait<'_> {
        Box::pin(async {
            tokio::select! {
                ready = self.queue.readable() => ready,
                down = self.watch.down() => Err(down),
                lost = self.groups.loss() => Err(lost),
            }
        })
    }

    fn send(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, NotSent> {
        if !self.port.is_up()? {
            return Err(RawError::LinkDown.into());
        }
        let mut work = std::collections::VecDeque::with_capacity(datagrams.len());
        for (data, to) in datagrams {
            match P::work(self, data, to) {
                Ok(one) => work.push_back(one),
                Err(error) if work.is_empty() => return Err(error),
                Err(_) => break, // said when it is the first
            }
        }
        let sent = self.queue.send(work, &self.counters)?;
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

    fn find_way<'a>(&'a self, dest: &'a P::Dest) -> Wait<'a> {
        Box::pin(async {
            match (P::group_of(dest), P::port_of(dest)) {
                (Some(group), _) => self.groups.find(&group).await,
                (_, Some(gid)) => self.port.find(gid).await,
                (None, None) => Ok(()),
            }
        })
    }

    fn check(&self, data: &[u8], to: &P::Dest) -> Result<usize, RawError> {
        P::check(self, data, to)
    }

    fn join<'a>(&'a self, group: &'a Group) -> Wait<'a> {
        Box::pin(async { self.groups.join(&P::joins(group)?).await })
    }

    fn leave(&self, group: &Group) -> Result<(), RawError> {
        self.groups.leave(&P::joins(group)?)
    }

    fn recv_buffer(&self) -> usize {
        self.queue.room()
    }

    fn note_drops(&self) {
        self.queue.note_drops(&self.counters);
        let not_member = self.queue.not_member() + self.strangers.load(Ordering::Relaxed);
        self.counters.rx_not_member.fetch_max(not_member, Ordering::Relaxed); // a device that is gone says 0
    }

    fn room(&self, _most: usize) -> Batch<P> {
        Batch::new(RecvBatch::new(1, 0))
    }
}

impl<P: OnSubnet> fmt::Debug for SubnetSocket<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubnetSocket").field("queue", &self.queue).finish_non_exhaustive()
    }
}
