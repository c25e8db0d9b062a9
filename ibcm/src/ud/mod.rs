//! Unreliable datagrams: messages of one packet, to any number of peers, without connections.
//!
//! A [`Socket`] is a datagram queue pair. It sends to a [`Peer`], which says port, queue pair and Q_Key of the receiver:
//! [`sidr::query`](crate::sidr::query) finds one by a service ID, [`Datagram::from`] gives the sender of what was received,
//! [`Socket::join`] a multicast group.
//!
//! ```
//! # use ibcm::{Hca, ud};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (here, there) = (Hca::open("soft").await?, Hca::open("soft").await?);
//! let (asking, answering) = (ud::Socket::open(&here).await?, ud::Socket::open(&there).await?);
//! // Who knows where a socket is needs no service ID.
//! let peer = ud::Peer::new(&here.path_to(there.gid()).await?, answering.qpn(), answering.qkey());
//! asking.send_copy(&peer, b"hello").await?;
//! let datagram = answering.recv().await?;
//! assert_eq!(&datagram[..], b"hello");
//! answering.send_copy(&datagram.from(), &datagram).await?; // back the way it came
//! assert_eq!(&asking.recv().await?[..], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Nothing tells the sender whether a datagram arrived. Those that find no receive buffer posted, or one too short, are
//! lost at the receiver, and counted by its device.

mod datagram;
mod groups;
mod open;
mod peer;
mod queue;
mod send;
mod socket;

pub use datagram::Datagram;
pub use open::Open;
pub use peer::Peer;
pub(crate) use queue::Queue;
pub use send::Send;
pub use socket::Socket;

use ibwire::QKey;

/// The Q_Key of rdma_cm's datagram port space, which sockets have by default.
pub const DEFAULT_QKEY: QKey = QKey(0x0123_4567);
