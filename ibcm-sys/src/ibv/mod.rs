//! libibverbs, through rdma-sys.
//!
//! [`attr`] is public: QP attributes of the contract as `ibv_qp_attr`, for programs with a queue pair of their own.
//! The rest are owners, one a libibverbs object. Each keeps what its object stands on alive (queue pair, completion
//! queues, protection domain, context), so no order of drops can free one under another.

pub mod attr;
mod context;
mod cq;
mod event;
mod memory;
mod port;
mod qp;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::raw::c_int;
use std::ptr::NonNull;

use ibdev::DeviceError;
use tokio::runtime::Handle;

pub(crate) use context::{Context, ProtectionDomain, names};
pub(crate) use cq::VerbsCq;
pub(crate) use event::AsyncEvents;
pub(crate) use memory::alloc;
pub(crate) use qp::VerbsQp;

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
    match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::NODEV | rustix::io::Errno::IO) => DeviceError::Gone,
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            DeviceError::Permission { need: "read and write access to /dev/infiniband/uverbs*" }
        }
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

/// Runs a call that may wait for firmware on the runtime's blocking pool. Dropping the future does not stop the call; what
/// it creates is dropped when it ends.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
) -> Result<T, DeviceError> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(DeviceError::Gone), // the runtime is ending
        },
    }
}

/// Something whose destructor may wait for firmware. Dropped, it is handed to the blocking pool of the runtime, if there is
/// one.
#[derive(Debug)]
struct Deferred<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Deferred<T> {
    fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send + 'static> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only drop takes it")
    }
}

impl<T: Send + 'static> Drop for Deferred<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(value))),
            Err(_) => drop(value),
        }
    }
}
