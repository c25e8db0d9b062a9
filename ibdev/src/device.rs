//! The traits that a device implements.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use async_trait::async_trait;
use ibwire::{Gid, Lid, PKey, Qpn};

use crate::qp::{OwnCqSpec, QpSpec, Transition};
use crate::{
    Access, AddressVector, AgentSpec, Buf, Completion, DeviceAttr, DeviceError, DeviceEvent, GidEntry,
    MadAgent, PortAttr, PortTables, PostError, RawCounters, RawFilter, RecvWr, Region, SendWr, SharedMemory,
};

/// An open HCA. It may belong to the async runtime in which it was opened: what waits is woken only while that runs.
///
/// Slow calls may take milliseconds of firmware time. Dropping the future of a slow call leaves nothing behind:
/// what it created is destroyed.
#[async_trait]
pub trait Device: fmt::Debug + Send + Sync {
    /// What the device is and can do.
    fn attr(&self) -> &DeviceAttr;

    /// The port's attributes at this moment. Ports are numbered from 1. This and the tables may come from the firmware
    /// or the system: keep the answers, and ask again upon the port's events.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] for a port that the device does not have; what the system says.
    fn port(&self, port: u8) -> Result<PortAttr, DeviceError>;

    /// The port's GID table; unused entries are left out.
    ///
    /// # Errors
    /// As [`port`](Self::port).
    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, DeviceError>;

    /// The port's P_Key table; the position is the index.
    ///
    /// # Errors
    /// As [`port`](Self::port).
    fn pkeys(&self, port: u8) -> Result<Vec<PKey>, DeviceError>;

    /// [`port`](Self::port), [`gids`](Self::gids) and [`pkeys`](Self::pkeys) in one. Slow.
    ///
    /// # Errors
    /// As [`port`](Self::port).
    async fn read_port(&self, port: u8) -> Result<PortTables, DeviceError> {
        Ok(PortTables { attr: self.port(port)?, gids: self.gids(port)?, pkeys: self.pkeys(port)? })
    }

    /// Registers for MADs of one class on one port.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] names who holds the class already.
    fn open_agent(&self, spec: AgentSpec) -> Result<Box<dyn MadAgent>, DeviceError>;

    /// The next asynchronous event. Events of a slow reader are merged by kind, port and QP, never lost. Wakes the
    /// last task that asked.
    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent>;

    /// Creates a completion queue for up to `capacity` completions. Slow.
    ///
    /// Room is reserved when a QP is created, so it never overflows: for all its sends, and for all its receives or those
    /// of its shared receive queue ([`QpSpec::srq`]).
    async fn create_cq(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, DeviceError>;

    /// The domain in which everything is made that needs no other.
    fn domain(&self) -> Arc<dyn ProtectionDomain>;

    /// Creates a protection domain. Slow.
    async fn create_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError>;

    /// Closes the device for all its handles: posted work is flushed, calls answer [`DeviceError::Gone`]. What was sent
    /// before still goes out, if it can within a bound that the device names. When this returns, the device holds
    /// nothing of the machine any more, such as a UDP port, so that the same device can be opened again at once.
    ///
    /// Without it a device closes with its last handle, in the background. Does nothing, and waits for nothing, where
    /// the device is not its handles' own: one of the kernel, one of a simulated subnet. May be repeated.
    ///
    /// # Cancel safety
    /// Once polled, it goes on in the background.
    async fn close(&self) {}

    /// Counters by name, for people and exporters.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Downcast for calls that only one kind of device has.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A protection domain: queue pairs reach memory of their own domain only (IBTA vol. 1, 10.2.3). What is made in it keeps
/// it alive.
#[async_trait]
pub trait ProtectionDomain: fmt::Debug + Send + Sync {
    /// Creates a queue pair in RESET. Slow. Dropping it destroys the QP: posted work never completes, its buffers
    /// return to their homes. Destroying may be slow too, so the device may do it a little later and elsewhere.
    async fn create_qp(&self, spec: QpSpec) -> Result<Arc<dyn QueuePair>, DeviceError>;

    /// Creates a completion queue for all completions of a queue pair, and the queue pair, in RESET. Slow. For devices that take
    /// less time for both at once. `device` is the one of this domain.
    ///
    /// # Errors
    /// As [`Device::create_cq`] and [`create_qp`](Self::create_qp). Nothing is left behind.
    async fn create_qp_with_cq(
        &self,
        device: &dyn Device,
        spec: OwnCqSpec,
    ) -> Result<(Arc<dyn QueuePair>, Arc<dyn CompletionQueue>), DeviceError> {
        let cq = device.create_cq(spec.capacity()).await?;
        Ok((self.create_qp(spec.on(&cq)).await?, cq))
    }

    /// Creates a shared receive queue for up to `max_wr` receives of up to `max_sge` buffers each. Slow.
    async fn create_srq(&self, max_wr: u32, max_sge: u32)
    -> Result<Arc<dyn SharedReceiveQueue>, DeviceError>;

    /// Makes a handle for datagrams to a remote port. Slow.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for an address that the port cannot reach.
    async fn create_ah(&self, av: AddressVector) -> Result<Arc<dyn AddressHandle>, DeviceError>;

    /// Allocates `count` buffers of `len` bytes that queue pairs of this domain can send from and receive into. Slow.
    async fn alloc(&self, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError>;

    /// Exposes memory to the peers of this domain's connected queue pairs. Slow.
    async fn register(&self, memory: SharedMemory, access: Access) -> Result<Region, DeviceError>;

    /// Downcast for the device that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Receives that many queue pairs take from (IBTA vol. 1, 10.2.9). With the handle and the last queue pair it is destroyed,
/// and its buffers go home.
pub trait SharedReceiveQueue: fmt::Debug + Send + Sync {
    /// Its number on this device.
    fn number(&self) -> u32;

    /// Posts from the front of `work` in order; what remains after an error was not posted. Never blocks.
    ///
    /// # Errors
    /// [`PostError::Full`]: a place may be taken until the completion of its receive has been polled.
    fn post_recv(&self, work: &mut std::collections::VecDeque<RecvWr>) -> Result<(), PostError>;

    /// Asks for one [`DeviceEvent::SrqLimit`] when fewer than `limit` receives are left, which may be at once; 0 asks for
    /// none.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] for more than the queue holds.
    fn set_limit(&self, limit: u32) -> Result<(), DeviceError>;

    /// Downcast for the device that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// The way to a remote port, for datagrams.
pub trait AddressHandle: fmt::Debug + Send + Sync {
    /// What it was made from.
    fn av(&self) -> &AddressVector;

    /// Downcast for the device that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A completion queue.
pub trait CompletionQueue: fmt::Debug + Send + Sync {
    /// Appends at most `max` completions to `out` and returns how many.
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize;

    /// For programs that look again and again instead of sleeping: whether completions may be waiting. A software device
    /// first receives in the caller's thread what has arrived, which otherwise a task of its own does; that wakes whom it
    /// concerns, so it is not to be called under a lock which another's waker may want.
    fn look(&self) -> bool {
        true
    }

    /// Ready when completions may be waiting. Wakes the last task that asked, once; poll again after it is ready: a
    /// device that has to be armed first is ready at once, because completions may have come before it was.
    fn poll_notified(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Downcast for the device that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A queue pair.
#[async_trait]
pub trait QueuePair: fmt::Debug + Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// Changes the state. Slow. Dropped, the change may or may not have happened.
    ///
    /// # Errors
    /// [`DeviceError::State`] for a transition that the state table does not have, [`DeviceError::Limit`] for an
    /// attribute out of range.
    async fn modify(&self, transition: Transition) -> Result<(), DeviceError>;

    /// Changes the state several times, in this order, up to the first change that fails: its place among them comes with the
    /// error. Slow, and dropped, any of them may have happened. For devices that take less time for all at once.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    async fn modify_all(&self, transitions: &[Transition]) -> Result<(), (usize, DeviceError)> {
        for (place, transition) in transitions.iter().enumerate() {
            self.modify(*transition).await.map_err(|error| (place, error))?;
        }
        Ok(())
    }

    /// Attaches a datagram QP, in INIT or later, to a multicast group of its port: from now on it receives what is sent there,
    /// if Q_Key and P_Key fit (IBTA vol. 1, 10.5). `mlid` is the group's LID; [`Lid::NONE`] on RoCE, where joining, by IGMP or
    /// MLD, is the device's affair. Slow. Twice is once; destroying the QP detaches it.
    ///
    /// A raw QP takes what is sent to `mlid`; a raw IPv6 QP only if `mgid`, which is the address of an IPv6 group then, is the
    /// packet's destination, because several groups may share a LID.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no multicast, for another transport or an address that is none of a
    /// group; [`DeviceError::Limit`] for too many groups.
    async fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        let (_, _) = (mgid, mlid);
        Err(DeviceError::Unsupported { what: "multicast" })
    }

    /// Detaches it. Nothing happens if it is not attached. Slow.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no multicast.
    async fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        let (_, _) = (mgid, mlid);
        Err(DeviceError::Unsupported { what: "multicast" })
    }

    /// Says which packets a raw QP takes, before RTR. Without it takes all of its type. Slow.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no raw QPs, or for another transport; [`DeviceError::State`] in
    /// RESET and from RTR on; [`DeviceError::InUse`] if another QP of the port has claimed one of the types, or has one of
    /// those that are claimed.
    async fn set_raw_filter(&self, filter: RawFilter) -> Result<(), DeviceError> {
        let _ = filter;
        Err(DeviceError::Unsupported { what: "a raw queue pair" })
    }

    /// What has become of packets for a raw QP. Never blocks.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no raw QPs, or for another transport.
    fn raw_counters(&self) -> Result<RawCounters, DeviceError> {
        Err(DeviceError::Unsupported { what: "a raw queue pair" })
    }

    /// Posts from the front of `work` in order; what remains after an error was not posted. Never blocks.
    ///
    /// # Errors
    /// [`PostError`], of the first request in what remains.
    fn post_send(&self, work: &mut std::collections::VecDeque<SendWr>) -> Result<(), PostError>;

    /// Posts from the front of `work` in order; what remains after an error was not posted. Never blocks.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    fn post_recv(&self, work: &mut std::collections::VecDeque<RecvWr>) -> Result<(), PostError>;

    /// When the last packet of the connected peer came, if one has: a request, an acknowledgement or a NAK, be it that
    /// the receiver is not ready. By the clock of the runtime that the device was opened in. Never blocks.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where that is not to be known; then only completions tell.
    fn last_heard(&self) -> Result<Option<Instant>, DeviceError> {
        Err(DeviceError::Unsupported { what: "when a queue pair has heard its peer" })
    }
}
