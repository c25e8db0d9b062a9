//! Async connection management for InfiniBand and RoCE.
//!
//! It speaks the IBTA Communication Management protocol in user space instead of asking the kernel's rdma_cm:
//! 64-bit service IDs, private data in every message, timeouts and rejections that a program sees and sets. It
//! needs no RDMA hardware: the software HCA (`Hca::open("soft")`) speaks RoCEv2 over UDP, so it talks to
//! Linux's rdma_rxe and to real NICs.
//!
//! ```
//! use ibcm::{Connection, Hca, Listener, ServiceId};
//!
//! const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?); // two free addresses 127.0.0.N
//!     let listener = Listener::bind(SID).device(&server).await?;
//!     let echo = tokio::spawn(async move {
//!         let conn = listener.accept().await?.accept().await?; // a REQ comes; REP goes, RTU comes
//!         while let Some(message) = conn.recv().await? {
//!             conn.send(message.into_buf()).await?;
//!         }
//!         Ok::<_, ibcm::Error>(())
//!     });
//!     let path = client.path_to(server.gid()).service_id(SID).await?;
//!     let conn = Connection::connect(path).await?;
//!     conn.send_copy(b"hello").await?;
//!     let reply = conn.recv().await?.ok_or("closed before the echo")?;
//!     assert_eq!(&reply[..], b"hello");
//!     conn.disconnect().await;
//!     Ok(echo.await??)
//! }
//! ```
//!
//! - [`Hca`]: a device with its connection manager; [`Hca::path_to`] finds the way to a peer.
//! - [`Listener`] takes requests, [`IncomingRequest`] is answered by moving it, [`Connection::connect`] asks.
//! - [`Connection`] sends and receives messages, reads and writes the peer's memory, and disconnects.
//! - [`Hca::alloc`] and [`Hca::pool`] give buffers, [`Hca::expose`] memory for peers, [`Hca::domain`] keeps
//!   tenants apart, [`Hca::shared_recv`] spares memory when there are many connections.
//! - [`sidr`] finds datagram services by their service IDs, [`ud`] sends and receives datagrams.
//! - [`handshake`] is the connection management alone, for programs with a queue pair of their own.
//! - [`proto`] is the engine underneath, sans-IO, for another runtime.
//! - [`sim`] is a subnet within the process, for tests of your own programs.
//!
//! Every future is cancel-safe or says that it is not.
//!
//! # Features
//!
//! | feature | what |
//! |---|---|
//! | `runtime` (default) | [`Hca`], [`Listener`], [`Connection`] and all else on tokio; without it there is [`proto`] alone |
//! | `soft` (default) | the software HCA, `Hca::open("soft")`, and [`sim`] |
//! | `verbs` | Linux's own RDMA devices, `Hca::open("mlx5_0")`; links libibverbs, the only feature that links anything of C |
//! | `ibsim` | HCAs of a running ibsim, `Hca::open("ibsim:Hca1")`, for management datagrams alone |
//!
//! # Seeing what happens
//! - **Counters**: [`Hca::stats`], [`Listener::stats`], [`Connection::stats`]; `named()` of each feeds an exporter.
//! - **Events**: [`Hca::events`] and [`Port::events`] tell of ports and GIDs, [`Connection::events`] of a peer that is busy.
//!   They are streams, bounded, and say how much a slow reader missed.
//! - **Log**: each connection has a [`tracing`] span `conn` at level DEBUG, with its IDs (`local`, `remote`), its `service` and
//!   its `peer`; in it events tell how it was established and how it ended. Each CM message is an event of the target
//!   [`MAD_TARGET`] at level TRACE. With `tracing_subscriber`'s `EnvFilter`, `ibcm=debug` shows connections without their
//!   messages, `ibcm::mad=trace` nothing but messages, `[conn{service=0x1000000000000001}]=debug` the connections of one
//!   service. The example `observe` shows all of it.
//! - **Packets**: [`Open::pcap`] writes a file for Wireshark.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod proto;

#[cfg(feature = "runtime")]
mod accept;
#[cfg(feature = "runtime")]
mod accessors;
#[cfg(feature = "runtime")]
mod backlog;
#[cfg(feature = "runtime")]
mod builder;
#[cfg(feature = "runtime")]
mod busy_poll;
#[cfg(feature = "runtime")]
mod clock;
#[cfg(feature = "runtime")]
mod closed;
#[cfg(feature = "runtime")]
mod closing;
#[cfg(feature = "runtime")]
mod connect;
#[cfg(feature = "runtime")]
mod connect_all;
#[cfg(feature = "runtime")]
mod connection;
#[cfg(feature = "runtime")]
mod data;
#[cfg(feature = "runtime")]
mod default_device;
#[cfg(feature = "runtime")]
mod device_spec;
#[cfg(feature = "runtime")]
mod devices;
#[cfg(feature = "runtime")]
mod disconnect;
#[cfg(feature = "runtime")]
mod driver;
#[cfg(feature = "runtime")]
mod error;
#[cfg(feature = "runtime")]
mod established;
#[cfg(feature = "runtime")]
mod events;
#[cfg(feature = "runtime")]
pub mod handshake;
#[cfg(feature = "runtime")]
mod hca;
#[cfg(feature = "runtime")]
mod incoming;
#[cfg(feature = "runtime")]
mod keepalive;
#[cfg(feature = "runtime")]
mod listener;
#[cfg(feature = "runtime")]
mod mad_capture;
#[cfg(feature = "runtime")]
mod mad_trace;
#[cfg(feature = "runtime")]
mod memory;
#[cfg(feature = "runtime")]
mod message;
#[cfg(feature = "runtime")]
mod migration;
#[cfg(feature = "runtime")]
mod open;
#[cfg(feature = "runtime")]
mod ops;
#[cfg(feature = "runtime")]
mod options;
#[cfg(feature = "runtime")]
mod parked;
#[cfg(feature = "runtime")]
mod path;
#[cfg(feature = "runtime")]
mod peer;
#[cfg(feature = "runtime")]
mod port;
#[cfg(feature = "runtime")]
mod port_news;
#[cfg(feature = "runtime")]
mod recv;
#[cfg(feature = "runtime")]
mod reject;
#[cfg(feature = "runtime")]
mod retry;
#[cfg(feature = "runtime")]
mod route;
#[cfg(feature = "runtime")]
pub mod sa;
#[cfg(feature = "runtime")]
mod shared;
#[cfg(feature = "runtime")]
mod shared_recv;
#[cfg(feature = "runtime")]
pub mod sidr;
#[cfg(feature = "runtime")]
mod slot;
#[cfg(feature = "runtime")]
mod split;
#[cfg(feature = "runtime")]
mod stats;
#[cfg(feature = "runtime")]
mod stream;
#[cfg(feature = "runtime")]
mod sync;
#[cfg(feature = "runtime")]
mod timing;
#[cfg(feature = "runtime")]
pub mod ud;
#[cfg(feature = "runtime")]
pub mod verbs;

/// Attributes of a queue pair: plain data in IBTA's terms, codes as the QP takes them. `ibcm_sys::ibv::attr` makes an
/// `ibv_qp_attr` of each.
pub mod qp {
    pub use crate::proto::Attrs;
    pub use ibdev::qp::*;
}

pub use ibdev::{
    Access, Buf, DeviceError, GidEntry, GidKind, LinkLayer, PortState, RangeError, Region, RemoteRegion,
    Status,
};
pub use ibwire::{
    CommId, Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, PrivateDataTooLong, QKey, Qpn, RKey, Rate,
    RejReason, ServiceId, TimeCode,
};
pub use proto::message::{ApInfo, ApStatus, FailoverAccepted};
pub use proto::{Config, Invalid, Limit, Overflow, RdEnd, Reject, Role, Transport, Transports, Value};

#[cfg(feature = "soft")]
pub use ibsoft::sim;

#[cfg(feature = "runtime")]
pub use {
    accept::Accept,
    closed::{Closed, How},
    connect::Connect,
    connect_all::{Attempt, ConnectAll, Progress},
    connection::Connection,
    device_spec::{DeviceSpec, ParseDeviceError},
    devices::{DeviceInfo, PortInfo, Unusable, UnusableDevice, devices},
    disconnect::Disconnect,
    error::{
        AcceptError, ConnectError, Error, ListenError, OpCause, OpError, OpenError, PathError, QpStep,
        QueryError, RecvError, Rejection,
    },
    events::{ConnectionEvent, ConnectionEvents, HcaEvent, HcaEvents},
    hca::Hca,
    incoming::IncomingRequest,
    listener::{Bind, Listener},
    mad_trace::MAD_TARGET,
    memory::{BufPool, Domain},
    message::Message,
    open::Open,
    ops::{AtomicOp, Post, Posted, ReadOp, SendOp, WriteOp},
    path::{Path, PathBuilder, PathSource, ServicePath},
    peer::Peer,
    port::Port,
    recv::Recv,
    retry::Retry,
    shared_recv::SharedRecv,
    split::{RecvHalf, SendHalf},
    stats::{ConnectionStats, HcaStats, ListenerStats, Stats},
    stream::ByteStream,
};
