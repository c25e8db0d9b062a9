//! What all public types are: Send, Sync, Debug; what their futures are: Send, also while they are awaited.

mod common;

use std::error::Error;
use std::fmt::{Debug, Display};
use std::hash::Hash;

use common::{Net, SID};
use futures::Stream;
use ibcm::{Access, Connection, handshake, sa, sidr, sim, ud, verbs};

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
    all!(thing: ibcm::Listener, ibcm::IncomingRequest, Connection, ibcm::RecvHalf, ibcm::ByteStream);
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

/// What a log shows of handles is what tells them apart, and nothing of what they stand on: that is of all connections, and holds
/// the keys of the HCA's tables.
#[tokio::test(start_paused = true)]
async fn handles_are_short_in_a_log() -> common::Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let dial = || Connection::connect(path.clone()).private_data(b"a password");
    let builder = format!("{:?} {:?}", dial(), sidr::query(path.clone()).private_data(b"a password"));
    let opening = ibcm::Hca::open(net.net.device("client")).rng_seed([0x5e; 32]);
    let dialing = tokio::spawn(dial());
    let request = listener.accept().await?;
    let asked = format!("{request:?}");
    let accept = request.accept().private_data(b"a password");
    let accepting = format!("{accept:?}");
    let (server, client) = (accept.await?, dialing.await??);
    let socket = ud::Socket::open(&net.client).await?;
    let (pool, region) = (net.client.pool(1, 64).await?, net.client.expose(64, Access::REMOTE_READ).await?);
    let (domain, shared) = (net.client.domain().await?, net.client.shared_recv(1, 64).await?);
    let qp = net.client.verbs().create_rc_qp().await?;
    let posted = client.send_copy(b"hello").post().await?;
    let message = server.recv().await?;
    let things = [
        format!("{:?} {:?} {listener:?}", net.client, net.client.ports()),
        format!("{client:?}"),
        format!("{socket:?} {path:?}"),
        format!("{pool:?} {region:?} {domain:?} {shared:?} {qp:?}"),
        format!("{posted:?} {message:?} {:?}", client.events()),
        format!("{:?} {:?}", net.client.sa(), net.client.events()),
        format!("{:?}", net.net),
        format!("{builder} {opening:?}"),
        accepting,
    ];
    let (word, seed) = (format!("{:?}", b"a password"), format!("{:?}", [0x5e; 2]));
    let secrets = ["password", word.trim_matches(['[', ']']), seed.trim_matches(['[', ']'])];
    for thing in things.iter().chain([&asked]) {
        assert!(!secrets.iter().any(|secret| thing.contains(secret)), "{thing}");
    }
    for thing in &things {
        assert!(thing.len() < 2000, "{} characters: {thing}", thing.len());
    }
    assert!(asked.len() < 8000, "with the REQ: {} characters: {asked}", asked.len());
    let [_, connection, ..] = &things;
    assert!(connection.contains(&SID.to_string()) && connection.len() < 500, "{connection}");
    posted.await?;
    let (send, recv) = client.into_split();
    let halves = format!("{send:?} {recv:?}");
    assert!(halves.len() < 1000, "{halves}");
    Ok(())
}
