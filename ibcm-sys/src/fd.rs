//! Descriptors that a kernel interface makes readable.

use std::os::fd::{AsRawFd, BorrowedFd};

use ibdev::DeviceError;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What a descriptor is waited for. RDMA's files tell by an error alone that their device is gone.
pub(crate) const READABLE_OR_BROKEN: Interest = Interest::READABLE.add(Interest::ERROR);

/// Makes reads of a descriptor return instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), DeviceError> {
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|error| DeviceError::os("make a descriptor non-blocking", error.into()))
}

/// Waits for `source` to become readable or broken, in the runtime of the caller.
///
/// # Safety
/// While it lives, `source` keeps its descriptor open and always names the same one.
pub(crate) unsafe fn readable<T: AsRawFd>(source: T) -> Result<AsyncFd<T>, DeviceError> {
    // SAFETY: the caller's promise is what tokio asks for.
    unsafe { AsyncFd::register_with_interest(source, READABLE_OR_BROKEN) }
        .map_err(|error| DeviceError::os("wait for a descriptor", error.into()))
}
