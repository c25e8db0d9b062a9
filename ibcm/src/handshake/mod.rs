//! The handshake alone, step by step, for programs with a queue pair of their own.
//!
//! The queue pair may come from anywhere: rust-ibverbs, sideway, rdma-sys, [`verbs`](crate::verbs). Its program gets the
//! attributes of each state change as plain data ([`Attrs`](crate::qp::Attrs)), makes the change, and says when it is done;
//! `ibcm_sys::ibv::attr` makes an `ibv_qp_attr` and its mask of them. The SDK never touches the queue pair. It has to be one
//! of the device, and of the port, whose HCA speaks for it.
//!
//! | side | step | the program's queue pair |
//! |---|---|---|
//! | active | | INIT by [`Path::qp_init`](crate::Path::qp_init), receives posted |
//! | | [`connect`]: REQ out, REP in | RTR and RTS by [`Reply::attrs`] |
//! | | [`Reply::ready`]: RTU out | may send |
//! | passive | [`IncomingRequest::prepare`](crate::IncomingRequest::prepare) | INIT and RTR by [`Offer::attrs`], receives posted |
//! | | [`Offer::reply`]: REP out, RTU in | RTS, may send |
//! | both | [`Session::closed`], [`Session::disconnect`] | to the error state |
//! | | [`Session::finish`]: TimeWait is over | its number may be used again |
//!
//! Each step may take its time: MRAs keep the peer patient meanwhile. A step that is dropped rejects or disconnects.
//!
//! If the RTU is lost, the peer's first data stands for it: [`Hca::comm_established`](crate::Hca::comm_established).
//!
//! A [`Connection`](crate::Connection) goes through the same steps: it is a [`Session`] with a queue pair of its own.
//!
//! ```
//! use ibcm::{Hca, Listener, ServiceId, handshake};
//! # const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
//!
//! async fn passive(hca: Hca, listener: Listener) -> Result<(), ibcm::Error> {
//!     let qp = hca.verbs().create_rc_qp().await?; // stands for your own ibv_qp
//!     let offer = listener.accept().await?.prepare(handshake::LocalQp::rc(qp.qpn()))?;
//!     let attrs = offer.attrs();
//!     qp.modify(attrs.init).await?;
//!     qp.modify(attrs.rtr).await?;
//!     qp.post_recv(hca.alloc(4096).await?)?; // receives first, then the REP
//!     let session = offer.reply().await?; // REP out, RTU in
//!     qp.modify(attrs.rts).await?;
//!     println!("{} bytes, then {}", qp.completion().await.len, session.closed().await);
//!     session.finish().await; // from here on the QP number may be used again
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (here, there) = (Hca::open("soft").await?, Hca::open("soft").await?);
//! let path = here.path_to(there.gid()).service_id(SID).await?;
//! let peer = tokio::spawn(passive(there.clone(), Listener::bind(SID).device(&there).await?));
//! let qp = here.verbs().create_rc_qp().await?;
//! qp.modify(path.qp_init()?).await?;
//! let reply = handshake::connect(path, handshake::LocalQp::rc(qp.qpn())).private_data(b"hi").await?; // REQ out, REP in
//! qp.modify(reply.attrs().rtr).await?;
//! qp.modify(reply.attrs().rts).await?;
//! let session = reply.ready().await?; // RTU out
//! qp.post_send(here.alloc(64).await?)?;
//! assert!(qp.completion().await.status.is_ok());
//! session.finish().await; // DREQ, DREP, TimeWait
//! # Ok(peer.await??)
//! # }
//! ```

mod active;
mod connect;
mod guard;
mod local_qp;
mod passive;
mod session;
mod wait;

pub use crate::migration::PathRequest;
pub use active::Reply;
pub use connect::{Connect, connect};
pub use local_qp::LocalQp;
pub use passive::Offer;
pub use session::Session;

pub(crate) use active::{Answered, Asked, Left, Terms, Whom};
pub(crate) use session::{OnDrop, closed};
pub(crate) use wait::{before, poll_slot, until, wait};
