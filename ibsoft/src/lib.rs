//! A software HCA: InfiniBand's transport layer in user space, without RDMA hardware or privileges.
//!
//! [`SoftDevice`] implements the device contract ([`ibdev::Device`]): MAD agents, and RC, UC and UD queue pairs with all
//! that they can do. It exists over two links:
//!
//! - **RoCEv2 over UDP**, [`SoftDevice::bind`]: real packets on UDP port 4791, understood by Linux's rdma_rxe and by
//!   NICs. Its addresses are its GIDs; without any it takes a free one of loopback.
//! - **An in-process subnet**, [`sim::Subnet`]: InfiniBand packets from the LRH to the VCRC between HCAs of one process, over
//!   switches if it has some, with faults from a seed, and in virtual time under tokio's paused clock. It has raw IPv6 and
//!   raw EtherType queue pairs, too. Made for tests, also for those of programs that are built on this SDK.
//!
//! Both are thin shells around [`engine`], a state machine without sockets, clock or runtime.
//!
//! ```
//! use ibdev::Device;
//! use ibsoft::{SoftDevice, UdpConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let here = SoftDevice::bind(UdpConfig::default())?; // a free 127.0.0.N
//! let gid = here.gids(1)?[0].gid;
//! println!("{} listens at {gid}, MTU {}", here.attr().name, here.port(1)?.active_mtu);
//! let path = here.resolve(1, gid).ok_or("no way to itself")?;
//! assert_eq!((path.sgid, path.dgid), (gid, gid));
//! # Ok(())
//! # }
//! ```
//!
//! # What is not here
//! Memory windows. Over UDP: DSCP and hop limit of an address vector are not sent, and
//! those of received packets not known. RoCE has no protection against whoever can send packets with a chosen source
//! address; the checks that there are (addresses, P_Key, Q_Key, random QP numbers and PSNs) make it harder, not
//! impossible.
//!
//! # Features
//! - `runtime` (default): devices and links. Without it only [`engine`] is built.
//! - `ibsim`: `IbsimDevice`, an HCA of a running ibsim, for management datagrams; on Linux.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(feature = "runtime")]
mod device;
pub mod engine;
#[cfg(feature = "runtime")]
mod foreign;
#[cfg(all(feature = "ibsim", target_os = "linux"))]
mod ibsim;
pub mod manager;
#[cfg(feature = "runtime")]
pub mod sim;
#[cfg(feature = "runtime")]
mod udp;

#[cfg(feature = "runtime")]
pub use device::{Followed, FollowedEvents, SoftDevice};
#[cfg(all(feature = "ibsim", target_os = "linux"))]
pub use ibsim::IbsimDevice;
#[cfg(feature = "runtime")]
pub use udp::UdpConfig;
