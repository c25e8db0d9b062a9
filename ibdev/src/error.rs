//! Why a device refused.

use std::io;

/// Why a device could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device was removed, or its simulated subnet is gone.
    #[error("the device is gone")]
    Gone,
    /// Someone else holds what only one can hold.
    #[error("{what} is taken: {holder}")]
    InUse {
        /// What is held: a management class, a UDP port.
        what: &'static str,
        /// Who may hold it and what to do.
        holder: &'static str,
    },
    /// A value is outside what the device takes.
    #[error("{what} {value}, the device allows {limit}")]
    Limit {
        /// Which value.
        what: &'static str,
        /// The value that was given.
        value: u64,
        /// The largest value that is allowed.
        limit: u64,
    },
    /// There is no tokio runtime to run on.
    #[error("no tokio runtime here: open the device inside one, with time and I/O enabled")]
    NoRuntime,
    /// The process may not.
    #[error("permission denied: {need}")]
    Permission {
        /// The permission or capability that is missing.
        need: &'static str,
    },
    /// The QP is not in a state that allows it.
    #[error("not possible in QP state {state}")]
    State {
        /// The state that the QP is in.
        state: &'static str,
    },
    /// What was asked for does not fit what it was asked of.
    #[error("{why}")]
    Invalid {
        /// What does not fit.
        why: &'static str,
    },
    /// The device does not offer it.
    #[error("{what} is not supported by this device")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {what}")]
    Os {
        /// What was tried, as in "cannot open an RDMA device".
        what: &'static str,
        /// The operating system's answer.
        #[source]
        error: std::sync::Arc<io::Error>,
    },
}

impl DeviceError {
    /// An operating system error met while doing `what`.
    pub fn os(what: &'static str, error: io::Error) -> Self {
        Self::Os { what, error: std::sync::Arc::new(error) }
    }

    /// The kind that it has as an [`io::Error`].
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Gone => io::ErrorKind::NotConnected,
            Self::InUse { .. } => io::ErrorKind::AddrInUse,
            Self::Limit { .. } | Self::Invalid { .. } => io::ErrorKind::InvalidInput,
            Self::Permission { .. } => io::ErrorKind::PermissionDenied,
            Self::Unsupported { .. } => io::ErrorKind::Unsupported,
            Self::Os { error, .. } => error.kind(),
            Self::NoRuntime | Self::State { .. } => io::ErrorKind::Other,
        }
    }
}

impl From<DeviceError> for io::Error {
    fn from(error: DeviceError) -> Self {
        Self::new(error.io_kind(), error)
    }
}

/// Why work requests were not posted. Those before the refused one are posted; the rest stays with the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full; completions make room.
    #[error("the work queue is full")]
    Full,
    /// The QP's state does not take work: send before RTS, receive before INIT.
    #[error("posting is not possible in QP state {state}")]
    State {
        /// The state that the QP is in.
        state: &'static str,
    },
    /// The message is longer than the QP can carry.
    #[error("message of {len} bytes, the limit is {limit}")]
    TooLong {
        /// Length of the message in bytes.
        len: usize,
        /// Longest message in bytes.
        limit: usize,
    },
    /// A number in the work request is beyond a limit of the device or the QP.
    #[error("{what} {value}, the limit is {limit}")]
    Limit {
        /// Which number.
        what: &'static str,
        /// The number.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The operation does not fit the QP's type, or the buffer is not registered with this device.
    #[error("not a work request for this QP: {why}")]
    Invalid {
        /// What does not fit.
        why: &'static str,
    },
    /// The device was removed.
    #[error("the device is gone")]
    Gone,
}
