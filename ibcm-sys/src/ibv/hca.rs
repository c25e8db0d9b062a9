//! An open device with what belongs to all its objects: the completion channel, events, tables, the pool for slow calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ibdev::{AddressVector, DeviceAttr, DeviceError, DeviceEvent, GidEntry, LinkLayer, PortAttr, PortState};
use ibwire::{Gid, Qpn};
use rdma_sys::ibv_ah_attr;
use tokio::task::AbortHandle;

use super::channel::{Bells, Channel};
use super::event::{self, Raised};
use super::qp::{Qp, Shared};
use super::{Context, attr, removal};
use crate::LinuxError;
use crate::counters::{Counters, count};
use crate::events::Events;
use crate::fd::readable;
use crate::pool::Pool;

/// How long a GID table that lacks a GID is trusted.
const STALE_AFTER: Duration = Duration::from_millis(100);

/// An open device. Everything made on it keeps it; with the last of them it is closed.
#[derive(Debug)]
pub(crate) struct Hca {
    attr: DeviceAttr,
    max_sge_rd: u32,
    events: Arc<Events>,
    bells: Arc<Bells>,
    queue_pairs: Mutex<HashMap<u32, QueuePair>>,
    gids: Mutex<HashMap<u8, GidTable>>,
    next_srq: AtomicU32,
    pool: Pool,
    counters: Arc<Counters>,
    tasks: Mutex<Vec<AbortHandle>>,
    channel: Arc<Channel>,
    context: Arc<Context>,
}

/// A queue pair, for what happens to it from outside.
#[derive(Debug)]
struct QueuePair {
    shared: Arc<Shared>,
    raw: Weak<Qp>,
}

#[derive(Debug)]
struct GidTable {
    entries: Vec<GidEntry>,
    read: Instant,
}

impl Hca {
    /// Opens the device with this name, served in the runtime of the caller.
    pub(crate) async fn open(name: String) -> Result<Arc<Self>, DeviceError> {
        let pool = Pool::new()?;
        let open = move || {
            // First, so that no removal goes unnoticed.
            let announcements = removal::listen()?;
            let context = Arc::new(Context::open(&name)?);
            let (attr, max_sge_rd) = context.attr(&name)?;
            let channel = Arc::new(Channel::new(context.clone())?);
            crate::fd::set_nonblocking(context.async_fd())?;
            Ok((announcements, context, channel, attr, max_sge_rd))
        };
        let (announcements, context, channel, attr, max_sge_rd) =
            pool.run("open an RDMA device", open).await?;
        let hca = Arc::new(Self {
            attr,
            max_sge_rd,
            events: Arc::default(),
            bells: Arc::default(),
            queue_pairs: Mutex::default(),
            gids: Mutex::default(),
            next_srq: AtomicU32::new(1),
            pool,
            counters: Arc::default(),
            tasks: Mutex::default(),
            channel,
            context,
        });
        // SAFETY: an `Arc` of the channel keeps its descriptor.
        let channel = unsafe { readable(hca.channel.clone()) }?;
        // SAFETY: the source keeps the context, and that its descriptor.
        let source = unsafe { readable(event::Source(hca.context.clone())) }?;
        // SAFETY: the socket is its descriptor.
        let announcements = unsafe { readable(announcements) }?;
        let (file_name, weak) = (hca.context.file_name(), Arc::downgrade(&hca));
        let removed = async move {
            removal::of(file_name, announcements).await;
            if let Some(hca) = weak.upgrade() {
                hca.raised(Raised::Event(DeviceEvent::Gone));
            }
        };
        let runtime = hca.pool.runtime();
        let tasks = [
            runtime.spawn(Channel::serve(channel, hca.bells.clone())).abort_handle(),
            runtime.spawn(event::serve(source, Arc::downgrade(&hca))).abort_handle(),
            runtime.spawn(removed).abort_handle(),
        ];
        hca.tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks);
        Ok(hca)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(super) fn bells(&self) -> &Bells {
        &self.bells
    }

    pub(crate) fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// Most buffers of a read.
    pub(super) fn max_sge_rd(&self) -> u32 {
        self.max_sge_rd
    }

    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.events.is_gone()
    }

    /// # Errors
    /// [`DeviceError::Gone`].
    pub(crate) fn check_there(&self) -> Result<(), DeviceError> {
        if self.is_gone() { Err(DeviceError::Gone) } else { Ok(()) }
    }

    /// # Errors
    /// [`DeviceError::Limit`].
    pub(crate) fn check_port(&self, port: u8) -> Result<(), DeviceError> {
        if (1..=self.attr.ports).contains(&port) {
            return Ok(());
        }
        Err(DeviceError::Limit { what: "port", value: port.into(), limit: self.attr.ports.into() })
    }

    /// Makes a slow call.
    pub(crate) async fn slow<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        self.check_there()?;
        self.pool.run(what, call).await
    }

    pub(crate) fn port(&self, number: u8) -> Result<PortAttr, DeviceError> {
        self.check_port(number)?;
        self.check_there()?;
        self.context.port(number)
    }

    pub(crate) fn gids(&self, port: u8) -> Result<Vec<GidEntry>, DeviceError> {
        self.check_port(port)?;
        self.check_there()?;
        self.context.gids(port)
    }

    pub(crate) fn pkeys(&self, port: u8) -> Result<Vec<ibwire::PKey>, DeviceError> {
        self.check_port(port)?;
        self.check_there()?;
        self.context.pkeys(port)
    }

    /// The address for libibverbs, if the port can use it, and how that is. Slow.
    pub(super) fn address_attr(&self, av: &AddressVector) -> Result<(ibv_ah_attr, PortAttr), DeviceError> {
        const WHAT: &str = "use an address";
        self.check_port(av.port)?;
        let address = attr::address_vector(av)?;
        let port = self.context.port(av.port)?;
        if port.state == PortState::Down {
            return Err(LinuxError::PortDown { device: self.attr.name.clone(), port: av.port }.met(WHAT));
        }
        let is_ethernet = port.link_layer == LinkLayer::Ethernet;
        let Some(route) = &av.grh else {
            if is_ethernet {
                return Err(DeviceError::Unsupported { what: "a RoCE address without a global route" });
            }
            return Ok((address, port));
        };
        let Some(source) = self.context.gid(av.port, route.sgid_index)? else {
            let (device, port, index) = (self.attr.name.clone(), av.port, route.sgid_index);
            return Err(LinuxError::NoGid { device, port, index }.met(WHAT));
        };
        if is_ethernet && source.to_ip().is_ipv4() != route.dgid.to_ip().is_ipv4() {
            return Err(DeviceError::Unsupported { what: "IPv4 and IPv6 in one RoCE address" });
        }
        Ok((address, port))
    }

    /// Index of a GID of this port, for answers to what was sent to it. One of the same family for a group, from which
    /// nothing can be sent.
    pub(super) fn gid_index(&self, port: u8, gid: Gid) -> Option<u16> {
        let mut tables = self.gids.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |table: &GidTable| {
            let is_group = gid.is_multicast();
            let same_family = |entry: &&GidEntry| entry.gid.to_ip().is_ipv4() == gid.to_ip().is_ipv4();
            let is_it = |entry: &&GidEntry| entry.gid == gid || (is_group && same_family(entry));
            table.entries.iter().find(is_it).map(|entry| entry.index)
        };
        if let Some(table) = tables.get(&port) {
            let found = find(table);
            if found.is_some() || table.read.elapsed() < STALE_AFTER {
                return found;
            }
        }
        let entries = self.context.gids(port).ok()?;
        tables.insert(port, GidTable { entries, read: Instant::now() });
        tables.get(&port).and_then(find)
    }

    /// A number that no other shared receive queue of this device has.
    pub(super) fn new_srq_number(&self) -> u32 {
        self.next_srq.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn add_qp(&self, qp: &Arc<Qp>) {
        let entry = QueuePair { shared: qp.shared().clone(), raw: Arc::downgrade(qp) };
        self.queue_pairs().insert(qp.shared().qpn.get(), entry);
    }

    /// It was destroyed. Its number may be another's already.
    pub(super) fn remove_qp(&self, qp: &Arc<Shared>) {
        let mut queue_pairs = self.queue_pairs();
        let number = qp.qpn.get();
        if queue_pairs.get(&number).is_some_and(|entry| Arc::ptr_eq(&entry.shared, qp)) {
            queue_pairs.remove(&number);
            self.events.forget(qp.qpn);
        }
    }

    /// The kernel has reported something.
    pub(super) fn raised(self: &Arc<Self>, raised: Raised) {
        match raised {
            Raised::Event(DeviceEvent::Gone) => self.gone(),
            Raised::Event(event) => {
                if self.is_news(event) {
                    self.events.push(event);
                }
            }
            Raised::QueueFailed => count(&self.counters.queue_failures),
            Raised::Unknown => count(&self.counters.events_ignored),
        }
    }

    /// Notes an event; false if a completion has told all of it before.
    fn is_news(&self, event: DeviceEvent) -> bool {
        match event {
            DeviceEvent::GidChange(port) => {
                self.gids.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
                true
            }
            DeviceEvent::QpError(qpn) => self.queue_pair(qpn).is_some_and(|qp| !qp.note_failed()),
            // They say more than a completion does.
            DeviceEvent::QpRequestError(qpn) | DeviceEvent::QpAccessError(qpn) => {
                if let Some(qp) = self.queue_pair(qpn) {
                    qp.note_failed();
                }
                true
            }
            DeviceEvent::SqDrained(qpn) => {
                if let Some(qp) = self.queue_pair(qpn) {
                    qp.drained();
                }
                true
            }
            _ => true,
        }
    }

    fn queue_pair(&self, qpn: Qpn) -> Option<Arc<Shared>> {
        self.queue_pairs().get(&qpn.get()).map(|qp| qp.shared.clone())
    }

    /// The device is being removed. What is posted is flushed, by the driver as long as that still works.
    fn gone(self: &Arc<Self>) {
        if !self.events.set_gone() {
            return;
        }
        tracing::info!(device = self.attr.name, "the device is gone");
        self.bells.ring_all();
        let hca = self.clone();
        self.pool.runtime().spawn(async move {
            let flush = {
                let hca = hca.clone();
                move || {
                    let qps: Vec<_> = hca.queue_pairs().values().filter_map(|qp| qp.raw.upgrade()).collect();
                    for qp in qps {
                        qp.flush_of_removed();
                    }
                    Ok(())
                }
            };
            if let Err(error) = hca.pool.run("flush a removed device", flush).await {
                tracing::warn!(device = hca.attr.name, %error, "not flushed");
            }
        });
    }

    fn queue_pairs(&self) -> MutexGuard<'_, HashMap<u32, QueuePair>> {
        self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hca {
    fn drop(&mut self) {
        // What they hold of channel and context goes with them.
        for task in self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}
