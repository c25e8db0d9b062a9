//! Asynchronous events.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

use ibdev::DeviceEvent;
use ibwire::Qpn;
use rdma_sys::ibv_async_event;
use tokio::io::unix::AsyncFd;

use super::{Context, Hca};
use crate::fd::READABLE_OR_BROKEN;

// rdma-sys writes it by hand: it has to be what libibverbs writes.
const _: () = assert!(size_of::<ibv_async_event>() == 16);

/// The numbers of `ibv_event_type` in infiniband/verbs.h. rdma-sys has them as a Rust enum, in which a number of a newer
/// kernel would be undefined behaviour, so the number is read as what it is in memory, an `unsigned int`.
mod number {
    pub(super) const CQ_ERR: u32 = 0;
    pub(super) const QP_FATAL: u32 = 1;
    pub(super) const QP_REQ_ERR: u32 = 2;
    pub(super) const QP_ACCESS_ERR: u32 = 3;
    pub(super) const COMM_EST: u32 = 4;
    pub(super) const SQ_DRAINED: u32 = 5;
    pub(super) const PATH_MIG: u32 = 6;
    pub(super) const PATH_MIG_ERR: u32 = 7;
    pub(super) const DEVICE_FATAL: u32 = 8;
    pub(super) const PORT_ACTIVE: u32 = 9;
    pub(super) const PORT_ERR: u32 = 10;
    pub(super) const LID_CHANGE: u32 = 11;
    pub(super) const PKEY_CHANGE: u32 = 12;
    pub(super) const SM_CHANGE: u32 = 13;
    pub(super) const SRQ_ERR: u32 = 14;
    pub(super) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(super) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(super) const CLIENT_REREGISTER: u32 = 17;
    pub(super) const GID_CHANGE: u32 = 18;
}

/// What the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raised {
    Event(DeviceEvent),
    /// A queue that takes completions or receives has failed; its queue pairs report errors of their own.
    QueueFailed,
    /// A number that this code does not know.
    Unknown,
}

/// What a number means: `qpn`, `srq` and `port` give what it is about, and are asked for the numbers that have it.
fn meaning(number: u32, qpn: impl Fn() -> Qpn, srq: impl Fn() -> u32, port: impl Fn() -> u8) -> Raised {
    Raised::Event(match number {
        number::QP_FATAL => DeviceEvent::QpError(qpn()),
        number::QP_REQ_ERR => DeviceEvent::QpRequestError(qpn()),
        number::QP_ACCESS_ERR => DeviceEvent::QpAccessError(qpn()),
        number::COMM_EST => DeviceEvent::CommEstablished(qpn()),
        number::SQ_DRAINED => DeviceEvent::SqDrained(qpn()),
        number::PATH_MIG => DeviceEvent::PathMigrated(qpn()),
        number::PATH_MIG_ERR => DeviceEvent::PathMigrationFailed(qpn()),
        number::QP_LAST_WQE_REACHED => DeviceEvent::LastWqeReached(qpn()),
        number::SRQ_LIMIT_REACHED => DeviceEvent::SrqLimit(srq()),
        number::DEVICE_FATAL => DeviceEvent::Gone,
        number::PORT_ACTIVE => DeviceEvent::PortUp(port()),
        number::PORT_ERR => DeviceEvent::PortDown(port()),
        number::GID_CHANGE => DeviceEvent::GidChange(port()),
        number::LID_CHANGE => DeviceEvent::LidChange(port()),
        number::PKEY_CHANGE => DeviceEvent::PkeyChange(port()),
        number::SM_CHANGE => DeviceEvent::SmChange(port()),
        number::CLIENT_REREGISTER => DeviceEvent::ClientReregister(port()),
        number::CQ_ERR | number::SRQ_ERR => return Raised::QueueFailed,
        _ => return Raised::Unknown,
    })
}

/// Where the events of an open device are announced.
#[derive(Debug)]
pub(super) struct Source(pub(super) Arc<Context>);

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.0.async_fd().as_raw_fd()
    }
}

/// Hands events to the HCA as they come. Ends when the device or the HCA is gone.
pub(super) async fn serve(source: AsyncFd<Source>, hca: Weak<Hca>) {
    while let Ok(mut guard) = source.ready(READABLE_OR_BROKEN).await {
        let event = match next(&guard.get_inner().0) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !guard.ready().is_error() => {
                guard.clear_ready();
                continue;
            }
            Err(_) => Raised::Event(DeviceEvent::Gone),
            Ok(event) => event,
        };
        let Some(hca) = hca.upgrade() else { return };
        hca.raised(event);
        if event == Raised::Event(DeviceEvent::Gone) {
            return;
        }
    }
}

/// Takes one event. It is acknowledged here, because destroying what it is about waits for that.
fn next(context: &Context) -> io::Result<Raised> {
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
    let srq = || {
        // SAFETY: for this number the element is a shared receive queue, which `ibv_destroy_srq` does not free before the
        // event is acknowledged. Its context is the number that it was made with.
        unsafe { (*(*raw).element.srq).srq_context as usize as u32 }
    };
    let port = || {
        // SAFETY: for these numbers the element is a port number.
        u8::try_from(unsafe { (*raw).element.port_num }).unwrap_or(0)
    };
    let raised = meaning(number, qpn, srq, port);
    // SAFETY: the event that the call above gave, acknowledged once. libibverbs looks at numbers that it knows only.
    unsafe { rdma_sys::ibv_ack_async_event(raw) };
    Ok(raised)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of infiniband/verbs.h, and some of nobody's.
    #[test]
    fn every_number_means_something() {
        let of = |number| meaning(number, || Qpn::truncate(5), || 6, || 7);
        let qp = Qpn::truncate(5);
        for number in [19, 20, 1 << 20, u32::MAX] {
            assert_eq!(of(number), Raised::Unknown, "{number}");
        }
        for number in [0, 14] {
            assert_eq!(of(number), Raised::QueueFailed);
        }
        for (number, event) in [
            (1, DeviceEvent::QpError(qp)),
            (2, DeviceEvent::QpRequestError(qp)),
            (3, DeviceEvent::QpAccessError(qp)),
            (4, DeviceEvent::CommEstablished(qp)),
            (5, DeviceEvent::SqDrained(qp)),
            (6, DeviceEvent::PathMigrated(qp)),
            (7, DeviceEvent::PathMigrationFailed(qp)),
            (8, DeviceEvent::Gone),
            (9, DeviceEvent::PortUp(7)),
            (10, DeviceEvent::PortDown(7)),
            (11, DeviceEvent::LidChange(7)),
            (12, DeviceEvent::PkeyChange(7)),
            (13, DeviceEvent::SmChange(7)),
            (15, DeviceEvent::SrqLimit(6)),
            (16, DeviceEvent::LastWqeReached(qp)),
            (17, DeviceEvent::ClientReregister(7)),
            (18, DeviceEvent::GidChange(7)),
        ] {
            assert_eq!(of(number), Raised::Event(event), "{number}");
        }
    }
}
