//! The device contract: what the connection manager asks of an HCA, be it software, simulated or Linux's own.
//!
//! Traits and plain data, no I/O and no runtime. Waiting is by `poll_…(cx)`. Calls that may block in firmware for
//! milliseconds are async and marked as slow; they never run in a connection manager's driver task. Posting and
//! polling are synchronous, batched and never block.
//!
//! The traits are unstable until several implementations stand on them; the plain data ([`Buf`], [`qp`], events) is
//! re-exported by `ibcm`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod address;
mod attr;
mod buf;
mod device;
mod error;
mod event;
mod mad;
pub mod qp;
mod raw;
mod region;
mod work;

pub use address::{AddressVector, GlobalRoute};
pub use attr::{DeviceAttr, GidEntry, GidKind, LinkLayer, PortAttr, PortState, PortTables};
pub use buf::{Buf, BufHome, MemoryKey};
pub use device::{AddressHandle, CompletionQueue, Device, ProtectionDomain, QueuePair, SharedReceiveQueue};
pub use error::{DeviceError, PostError};
pub use event::DeviceEvent;
pub use mad::{AgentSpec, MAD_LEN, MadAddr, MadAgent, MadSource, OutgoingMad, ReceivedMad};
pub use raw::{RawCounters, RawDest, RawFilter, RawSource, RawTypes, RawView};
pub use region::{Access, RangeError, Region, RegionKey, RemoteRegion, SharedMemory};
pub use work::{
    Completion, CompletionOp, DatagramDest, DatagramSource, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    SgList, Status,
};
