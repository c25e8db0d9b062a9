//! A subnet in this process: HCAs, the wires between them, and what goes wrong on those.
//!
//! A [`Subnet`] lives on the tokio runtime that it is built on, without threads, sockets or globals, so that tests
//! run in parallel. Each of its devices is a [`SoftDevice`](crate::SoftDevice) with the same engine as over UDP; its
//! packets are built and checked down to both CRCs. LIDs, routes and partitions are a subnet manager's work. Unless a subnet
//! is built with one ([`BuildSubnet::managed`]), that is done unseen and at once, whenever something changes; with one there
//! are its packets and its subnet administration, too, and it can be killed, started anew and doubled ([`Subnet::sm`]).
//!
//! Under a paused clock (`#[tokio::test(start_paused = true)]`) its time is virtual: minutes of timeouts take
//! milliseconds. The seed decides every fault, QP number and PSN; on a runtime with one thread the same seed and
//! program give the same packets at the same times. Devices over UDP refuse a paused clock, so the two do not mix.
//!
//! ```
//! use ibdev::Device;
//! use ibsoft::sim::Subnet;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let net = Subnet::star(["client", "server"]).seed(42).await?;
//! net.faults().loss(0.05).reorder(0.1).delay(Duration::from_micros(2)..=Duration::from_millis(3));
//! let (client, server) = (net.device("client"), net.device("server"));
//! let path = client.resolve(1, server.gids(1)?[0].gid).ok_or("not in this subnet")?;
//! assert_eq!(path.dlid, server.port(1)?.lid);
//!
//! net.partition(&["client"], &["server"]); // nothing passes
//! net.heal();
//! net.quiet().await?; // every QP, connection and timer is gone
//! # Ok(())
//! # }
//! ```

mod at_once;
mod builder;
mod counters;
mod delivery;
mod driver;
mod fabric;
mod faults;
mod frame;
mod groups;
mod link;
mod management;
mod manager;
mod managers;
mod mishaps;
mod node;
mod paths;
mod probe;
mod quiet;
mod removal;
mod subnet;
mod trace;
mod way;

pub use crate::manager::Qos;
pub use builder::BuildSubnet;
pub use managers::{NotSettled, SaBehaviour, Sm};
pub use mishaps::Mishap;
pub use probe::{Held, Probe};
pub use quiet::NotQuiet;
pub use subnet::{Faults, Subnet};
