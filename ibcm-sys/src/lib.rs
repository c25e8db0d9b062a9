//! Linux system layer of the SDK, and what no safe crate does with sockets. All `unsafe` of the project is here.
//!
//! # Features
//! None is on by default.
//! - `verbs`: `LinuxDevice`, an RDMA device of this machine behind the device contract, driven through libibverbs and umad. Needs
//!   libibverbs-dev, librdmacm-dev and libclang-dev to build.
//! - `packet`: packet sockets, raw IPv6 sockets and batches. Needs nothing to build.
//! - `watch`: descriptors that a tokio runtime watches for one thing only.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]

#[cfg(feature = "verbs")]
mod counters;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod error;
#[cfg(feature = "verbs")]
mod events;
#[cfg(feature = "verbs")]
mod fd;
#[cfg(feature = "verbs")]
pub mod ibv;
#[cfg(all(target_os = "linux", feature = "packet"))]
pub mod packet;
#[cfg(feature = "verbs")]
mod pool;
#[cfg(unix)]
pub mod socket;
#[cfg(feature = "verbs")]
mod umad;
#[cfg(all(unix, feature = "watch"))]
mod watch;

#[cfg(feature = "verbs")]
pub use device::LinuxDevice;
#[cfg(feature = "verbs")]
pub use error::LinuxError;
#[cfg(feature = "verbs")]
pub use rdma_sys;
#[cfg(all(unix, feature = "watch"))]
pub use watch::Watch;
