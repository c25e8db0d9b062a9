//! Finding datagram services: service ID resolution, SIDR.
//!
//! A server [publishes](publish) a [`ud::Socket`](crate::ud::Socket) under a service ID, or answers each request itself
//! ([`Responder`]). A client [asks](query) for the service ID and gets the socket as a [`ud::Peer`](crate::ud::Peer). It is one
//! message each way; there is no connection, and nothing to close.
//!
//! ```
//! # use ibcm::{Hca, ServiceId, sidr, ud};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (here, there, sid) = (Hca::open("soft").await?, Hca::open("soft").await?, ServiceId::new(7));
//! let (served, socket) = (ud::Socket::open(&there).await?, ud::Socket::open(&here).await?);
//! let _published = sidr::publish(sid, &served).private_data(b"v1").await?; // answers until it is dropped
//! let reply = sidr::query(here.path_to(there.gid()).service_id(sid).await?).await?;
//! assert_eq!(&reply.private_data()[..2], b"v1");
//! socket.send_copy(&reply.peer(), b"hello").await?;
//! assert_eq!(&served.recv().await?[..], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! The forms with `_ip` do what librdmacm does for port space UDP: the service is an IP address and a port.

mod answer;
mod backlog;
mod bind;
mod error;
mod publish;
mod query;
mod reply;
mod request;
mod responder;

pub use crate::proto::message::{SidrInfo as Info, SidrStatus as Status};
pub use answer::Answer;
pub(crate) use backlog::{Backlog, Waiting};
pub use error::QueryError;
pub use ibwire::mad::{ClassPortInfo, Redirect};
pub use publish::{Publish, Published, publish, publish_ip};
pub use query::{Query, query, query_ip};
pub use reply::Reply;
pub use request::Request;
pub use responder::{Bind, Responder};
