//! What all public types are: Send, Sync, Debug; what their futures are: Send, also while they are awaited.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::hash::Hash;

use futures::Stream;
use ibcm::{handshake, sa, sidr, sim, ud, verbs};

fn thing<T: Send + Sync + Debug + 'static>() {}
fn handle<T: Clone + Send + Sync + Debug + 'static>() {}
fn key<T: Eq + Hash>() {}
fn text<T: Display>() {}
fn error<T: Error + Send + Sync + 'static>()
where
    ibcm::Error: From<T>,
    std::io::Error: From<T>,
{
}
fn stream<T: Stream<Item: Send> + Send + Unpin + Debug>() {}
fn builder<T: Future<Output: Send> + Send + Debug>() {}

macro_rules! all {
    ($check:ident: $($of:ty),+ $(,)?) => { $($check::<$of>();)+ };
}

/// Each line fails to compile if a type is not what it should be.
#[test]
fn public_types_are_what_programs_want_of_them() {
    all!(handle: ibcm::Hca, ibcm::Port, ibcm::Path, ibcm::ServicePath, ibcm::BufPool, ibcm::Domain);
    all!(handle: ibcm::SharedRecv, ibcm::SendHalf, ibcm::Retry, ibcm::Recv, ibcm::DeviceSpec, ibcm::Reject);
    all!(handle: ud::Peer, sa::Client, sim::Subnet, sidr::Reply, sidr::Answer, ibcm::Config);
    all!(thing: ibcm::Listener, ibcm::IncomingRequest, ibcm::Connection, ibcm::RecvHalf, ibcm::ByteStream);
    all!(thing: ibcm::Message, ibcm::Buf, ibcm::Posted<ibcm::Buf>, ibcm::HcaEvents, ibcm::ConnectionEvents);
    all!(thing: ibcm::Region, ibcm::Attempt, ibcm::Rejection, ibcm::Stats, ibcm::Closed, verbs::RcQp);
    all!(thing: ud::Socket, ud::Datagram, sidr::Published, sidr::Responder, sidr::Request);
    all!(thing: handshake::Offer, handshake::Reply, handshake::Session, handshake::LocalQp);
    all!(thing: sa::Membership, sa::Registration, sa::Notices, sim::Faults);
    all!(key: ibcm::Gid, ibcm::Guid, ibcm::Lid, ibcm::ServiceId, ibcm::Qpn, ibcm::QKey, ibcm::PKey, ibcm::CommId);
    all!(key: ibcm::Peer, ud::Peer, ibcm::RemoteRegion, ibcm::RejReason, ibcm::Transport, ibcm::Status);
    all!(text: ibcm::Gid, ibcm::Lid, ibcm::ServiceId, ibcm::Path, ibcm::ServicePath, ibcm::Peer, ud::Peer);
    all!(text: ibcm::Closed, ibcm::How, ibcm::Rejection, ibcm::RejReason, ibcm::Status, ibcm::Progress);
    all!(error: ibcm::OpenError, ibcm::ListenError, ibcm::AcceptError, ibcm::ConnectError, ibcm::QueryError);
    all!(error: ibcm::PathError, ibcm::RecvError, ibcm::OpError, ibcm::Invalid, ibcm::RangeError, ibcm::DeviceError);
    all!(error: sidr::QueryError, sa::SaError);
    all!(stream: ibcm::ConnectAll, ibcm::HcaEvents, ibcm::ConnectionEvents, sa::Notices);
    all!(builder: ibcm::Open, ibcm::Bind, ibcm::Accept, ibcm::Connect<92>, ibcm::Disconnect<'_>, ibcm::PathBuilder);
    all!(builder: ibcm::SendOp<'_, ibcm::Buf>, ibcm::WriteOp<'_>, ibcm::ReadOp<'_>, ibcm::AtomicOp<'_>);
    all!(builder: ibcm::Post<'_, ()>, ud::Open, ud::Send<'_, ()>, sidr::Query<216>, sa::PathQuery);
}
