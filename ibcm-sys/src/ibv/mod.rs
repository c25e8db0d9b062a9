//! libibverbs, through rdma-sys.
//!
//! [`attr`] is public: QP attributes of the contract as `ibv_qp_attr`, for programs with a queue pair of their own.
//! The rest are owners, one a libibverbs object. Each keeps what its object stands on alive (queue pair, completion
//! queues, shared receive queue, protection domain, HCA), so no order of drops can free one under another. What is
//! posted waits in the tables of its completion queue or shared receive queue until its completion comes.

mod ah;
pub mod attr;
mod channel;
mod context;
mod cq;
mod create;
mod datagram;
mod domain;
mod event;
mod groups;
mod hca;
mod memory;
mod port;
mod qp;
mod region;
mod removal;
mod srq;
mod state;
mod table;
mod work;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::ptr::NonNull;

use ibdev::DeviceError;
use rustix::io::Errno;

use crate::LinuxError;
use crate::error::locked_memory_limit;

pub(crate) use context::{Context, names};
pub(crate) use cq::VerbsCq;
pub(crate) use domain::VerbsDomain;
pub(crate) use hca::Hca;

/// A pointer to an object of libibverbs that its holder owns.
struct Raw<T>(NonNull<T>);

// SAFETY: all objects of libibverbs are safe for access from several threads at once, unless they are made in a thread
// domain (ibv_alloc_td(3)); this crate makes none. The pointer is handed to libibverbs only, and only fields that never
// change are read through it.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// What a creating call returned: null means that it failed and set errno.
    fn new(pointer: *mut T, what: &'static str) -> Result<Self, DeviceError> {
        NonNull::new(pointer).map(Self).ok_or_else(|| refused(what, io::Error::last_os_error()))
    }

    fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> fmt::Debug for Raw<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value of a call that returns 0 or an errno value, or -1 and sets errno.
fn check(result: c_int, what: &'static str) -> Result<(), DeviceError> {
    match result {
        0 => Ok(()),
        error if error > 0 => Err(refused(what, io::Error::from_raw_os_error(error))),
        _ => Err(refused(what, io::Error::last_os_error())),
    }
}

fn refused(what: &'static str, error: io::Error) -> DeviceError {
    match Errno::from_io_error(&error) {
        Some(Errno::NODEV | Errno::IO) => DeviceError::Gone,
        Some(Errno::ACCESS | Errno::PERM) => DeviceError::Permission {
            need: "read and write access to /dev/infiniband/uverbs*: run as root, or add a udev rule for the files",
        },
        // Not only registered memory is locked: queues are, too.
        Some(Errno::NOMEM) => match locked_memory_limit() {
            Some(limit) => LinuxError::LockedMemory { limit }.met(what),
            None => DeviceError::os(what, error),
        },
        _ => DeviceError::os(what, error),
    }
}

/// A value of a plain C struct with all bytes zero, as C programs begin with `= {}`.
///
/// # Safety
/// All bytes zero must be a value of `T`.
unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// # Errors
/// [`DeviceError::Limit`].
fn at_most(what: &'static str, value: u32, limit: u32) -> Result<(), DeviceError> {
    if value <= limit {
        return Ok(());
    }
    Err(DeviceError::Limit { what, value: value.into(), limit: limit.into() })
}
