//! Asynchronous events.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use ibdev::{DeviceError, DeviceEvent};
use ibwire::Qpn;
use rdma_sys::ibv_async_event;
use tokio::io::unix::AsyncFd;

use super::Context;
use crate::counters::{Counters, count};
use crate::fd::{readable, set_nonblocking};

// rdma-sys writes it by hand: it has to be what libibverbs writes.
const _: () = assert!(size_of::<ibv_async_event>() == 16);

/// The numbers of `ibv_event_type` in infiniband/verbs.h. rdma-sys has them as a Rust enum, in which a number of a newer
/// kernel would be undefined behaviour, so the number is read as what it is in memory, an `unsigned int`.
mod number {
    pub(super) const QP_FATAL: u32 = 1;
    pub(super) const QP_REQ_ERR: u32 = 2;
    pub(super) const QP_ACCESS_ERR: u32 = 3;
    pub(super) const COMM_EST: u32 = 4;
    pub(super) const DEVICE_FATAL: u32 = 8;
    pub(super) const PORT_ACTIVE: u32 = 9;
    pub(super) const PORT_ERR: u32 = 10;
    pub(super) const GID_CHANGE: u32 = 18;
}

/// The device's asynchronous events.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    fd: AsyncFd<Source>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Source(Arc<Context>);

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.0.async_fd().as_raw_fd()
    }
}

impl AsyncEvents {
    /// Events of `context`, waited for in the runtime of the caller.
    pub(crate) fn new(context: Arc<Context>, counters: Arc<Counters>) -> Result<Self, DeviceError> {
        set_nonblocking(context.async_fd())?;
        // SAFETY: the source keeps the context, and that its descriptor.
        Ok(Self { fd: unsafe { readable(Source(context)) }?, counters })
    }

    pub(crate) fn poll_next(&self, cx: &mut TaskContext<'_>) -> Poll<DeviceEvent> {
        loop {
            let mut guard = match self.fd.poll_read_ready(cx) {
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(_)) => return Poll::Ready(DeviceEvent::Gone), // the runtime is ending
                Poll::Pending => return Poll::Pending,
            };
            match guard.try_io(|fd| next(&fd.get_ref().0)) {
                Ok(Ok(Some(event))) => return Poll::Ready(event),
                Ok(Ok(None)) => count(&self.counters.events_ignored),
                Ok(Err(_)) => return Poll::Ready(DeviceEvent::Gone),
                Err(_would_block) => {}
            }
        }
    }
}

/// Takes one event. It is acknowledged here, because destroying what it is about waits for that.
fn next(context: &Context) -> io::Result<Option<DeviceEvent>> {
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: the context is open during the borrow; the call writes at most one event.
    if unsafe { rdma_sys::ibv_get_async_event(context.raw(), event.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let raw = event.as_mut_ptr();
    // SAFETY: zeroed, then written by the call. Read as an integer, no value of which is invalid.
    let number = unsafe { (&raw const (*raw).event_type).cast::<u32>().read() };
    let qpn = || {
        // SAFETY: for these numbers the element is a queue pair, which `ibv_destroy_qp` does not free before the event is
        // acknowledged, below.
        Qpn::truncate(unsafe { (*(*raw).element.qp).qp_num })
    };
    let port = || {
        // SAFETY: for these numbers the element is a port number.
        u8::try_from(unsafe { (*raw).element.port_num }).unwrap_or(0)
    };
    let known = match number {
        number::QP_FATAL | number::QP_REQ_ERR | number::QP_ACCESS_ERR => Some(DeviceEvent::QpError(qpn())),
        number::COMM_EST => Some(DeviceEvent::CommEstablished(qpn())),
        number::DEVICE_FATAL => Some(DeviceEvent::Gone),
        number::PORT_ACTIVE => Some(DeviceEvent::PortUp(port())),
        number::PORT_ERR => Some(DeviceEvent::PortDown(port())),
        number::GID_CHANGE => Some(DeviceEvent::GidChange(port())),
        _ => None,
    };
    // SAFETY: the event that the call above gave, acknowledged once. libibverbs looks at numbers that it knows only.
    unsafe { rdma_sys::ibv_ack_async_event(raw) };
    Ok(known)
}
