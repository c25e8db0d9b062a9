//! Connections of other transports than RC.

mod common;

use std::io::ErrorKind;
use std::time::Duration;

use common::{Net, Result, SID};
use futures::future::join;
use ibcm::handshake::{self, LocalQp};
use ibcm::proto::message::{Eecn, TransportService};
use ibcm::{
    AcceptError, Access, ConnectError, Connection, Hca, IncomingRequest, Listener, OpCause, Qpn, RdEnd, Recv,
    RejReason, RemoteRegion, Transport,
};
use ibwire::QKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const ALL: [Transport; 4] = [Transport::Rc, Transport::Uc, Transport::Rd, Transport::Xrc];

/// Both ends of an unreliable connection; the passive side says what stands in `advert`.
async fn uc(server: &Hca, client: &Hca, advert: &[u8; 20]) -> Result<(Connection, Connection)> {
    let listener = Listener::bind(SID).device(server).transport([Transport::Rc, Transport::Uc]).await?;
    let path = client.path_to(server.gid()).service_id(SID).await?;
    let passive = async {
        let request = listener.accept().await?;
        assert_eq!(request.transport(), Transport::Uc);
        Ok::<_, ibcm::Error>(request.accept().private_data(advert).recv(Recv::buffers(64, 4096)).await?)
    };
    let active = async { Ok(Connection::connect(path).transport(Transport::Uc).await?) };
    Ok(tokio::try_join!(active, passive)?)
}

/// Messages with and without immediate data, writes; no reads, no atomics.
async fn data_path(server: &Hca, client: &Hca) -> Result {
    let region = server.expose(8192, Access::REMOTE_WRITE | Access::REMOTE_READ).await?;
    let (one, other) = uc(server, client, &region.remote().to_bytes()).await?;
    assert_eq!((one.transport(), other.transport()), (Transport::Uc, Transport::Uc));
    for (from, to) in [(&one, &other), (&other, &one)] {
        from.send_copy(b"hello").await?;
        from.send_copy(&[7; 4096]).imm(9).await?;
        let message = to.recv().await?.ok_or("closed")?;
        assert_eq!((&message[..], message.imm()), (&b"hello"[..], None));
        let message = to.recv().await?.ok_or("closed")?;
        assert_eq!((message.len(), message[4095], message.imm()), (4096, 7, Some(9)));
    }
    let remote = RemoteRegion::from_bytes(one.private_data())?;
    let mut buf = client.alloc(8192).await?;
    buf.fill(5);
    one.write(buf, remote).imm(1).await?;
    let mut bytes = [0; 8192];
    assert_eq!(other.recv().await?.ok_or("closed")?.imm(), Some(1));
    region.copy_to(0, &mut bytes)?;
    assert!(bytes == [5; 8192]);

    let read = one.read(client.alloc(8).await?, remote.slice(0, 8)?).await;
    let atomic = one.fetch_add(remote.slice(0, 8)?, 1).await;
    for error in [read.err(), atomic.err()] {
        assert!(matches!(error.map(|error| error.cause), Some(OpCause::Invalid(_))));
    }
    one.send_copy(b"still there").await?;
    assert_eq!(other.recv().await?.as_deref(), Some(&b"still there"[..]));
    let (closed, message) = join(one.disconnect(), other.recv()).await;
    assert_eq!(closed.to_string(), "disconnected, the peer confirmed");
    assert!(message?.is_none());
    Ok(())
}

#[tokio::test]
async fn uc_over_udp() -> Result {
    let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
    data_path(&server, &client).await?;
    client.close().await;
    server.close().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn uc_in_a_subnet() -> Result {
    let net = Net::new(1).await?;
    data_path(&net.server, &net.client).await?;
    net.quiet().await
}

/// What the network loses is lost; what comes is whole and in order.
#[tokio::test(start_paused = true)]
async fn uc_loses_messages_and_goes_on() -> Result {
    let net = Net::new(1).await?;
    let (one, other) = uc(&net.server, &net.client, &[0; 20]).await?;
    net.net.faults().loss(0.2);
    let sending = async {
        for n in 0..500u32 {
            one.send_copy(&n.to_be_bytes()).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        net.net.faults().clear();
        one.disconnect().await;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    let receiving = async {
        let mut came = Vec::new();
        while let Some(message) = other.recv().await? {
            came.push(u32::from_be_bytes(message[..].try_into()?));
        }
        Ok(came)
    };
    let ((), came) = tokio::try_join!(sending, receiving)?;
    assert!(came.is_sorted() && (300..500).contains(&came.len()), "{} of 500", came.len());
    drop((one, other));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn between_peers() -> Result {
    let net = Net::new(1).await?;
    let to_server = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let to_client = net.server.path_to(net.client.gid()).service_id(SID).await?;
    let [one, other] =
        [to_server, to_client].map(|path| Connection::connect_peer(path).transport(Transport::Uc));
    let (one, other) = tokio::try_join!(one, other)?;
    one.send_copy(b"hello").await?;
    assert_eq!(other.recv().await?.as_deref(), Some(&b"hello"[..]));
    one.disconnect().await;
    net.quiet().await
}

/// A listener that has not enabled it says so: reason 9.
#[tokio::test(start_paused = true)]
async fn uc_is_not_taken_unless_it_is_enabled() -> Result {
    let net = Net::new(1).await?;
    let _listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    match Connection::connect(path).transport(Transport::Uc).await {
        Err(ConnectError::Rejected(no)) => assert_eq!(no.reason, RejReason::INVALID_TRANSPORT),
        other => return Err(format!("{other:?}").into()),
    }
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_bytes_needs_rc() -> Result {
    let net = Net::new(1).await?;
    let (one, other) = uc(&net.server, &net.client, &[0; 20]).await?;
    let mut stream = one.into_stream();
    let error = stream.write_all(b"hello").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.to_string(), "a byte stream needs a reliable connection, this one is UC");
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::Unsupported);
    drop((stream, other));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn what_a_connection_cannot_be() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    for transport in [Transport::Xrc, Transport::Rd] {
        let error = Connection::connect(path.clone()).transport(transport).await.unwrap_err();
        let words = format!("transport is {transport}, it must be RC or UC; only handshake has others");
        assert_eq!(error.to_string(), words);
    }
    let uc = Connection::connect(path.clone()).transport(Transport::Uc);
    let error = uc.keepalive(Duration::from_secs(5)).await.unwrap_err();
    assert!(error.to_string().ends_with("nothing on an unreliable connection is answered"), "{error}");
    let uc = Connection::connect(path).transport(Transport::Uc).initiator_depth(1);
    assert_eq!(uc.await.unwrap_err().to_string(), "initiator depth is 1, at most 0 is allowed");
    net.quiet().await
}

/// A request for what no device has a queue pair for, and what becomes of it.
async fn asked(net: &Net, listener: &Listener, qp: LocalQp) -> Result<(IncomingRequest, Asking)> {
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let asking = tokio::spawn(async move { handshake::connect(path, qp).await });
    Ok((listener.accept().await?, asking))
}

type Asking = tokio::task::JoinHandle<std::result::Result<handshake::Reply, ConnectError>>;

fn rd(eecn: u32) -> RdEnd {
    RdEnd { eecn: Eecn::truncate(eecn), qkey: QKey(7) }
}

/// The handshake of XRC and RD for queue pairs of the programs' own.
#[tokio::test(start_paused = true)]
async fn cm_t54_xrc_and_rd_by_handshake() -> Result {
    let net = Net::new(1).await?;
    let listener = Listener::bind(SID).device(&net.server).transport(ALL).await?;
    let numbers = (Qpn::truncate(0x700), Qpn::truncate(0x800));
    for (ours, theirs) in [
        (LocalQp::xrc(numbers.0), LocalQp::xrc(numbers.1)),
        (LocalQp::rd(numbers.0, rd(0x70)), LocalQp::rd(numbers.1, rd(0x80))),
        (LocalQp::uc(numbers.0), LocalQp::uc(numbers.1)),
    ] {
        let (request, asking) = asked(&net, &listener, ours).await?;
        assert_eq!(request.transport(), ours.transport);
        let offer = request.prepare(theirs)?;
        let ends = match ours.transport {
            Transport::Rd => (Qpn::truncate(0x70), Qpn::truncate(0x80)),
            _ => numbers,
        };
        assert_eq!(offer.attrs().rtr.dest_qpn, ends.0);
        let replying = tokio::spawn(offer.reply());
        let reply = asking.await??;
        assert_eq!((reply.attrs().rtr.dest_qpn, reply.peer().qpn), (ends.1, numbers.1));
        let session = reply.ready().await?;
        assert_eq!(session.transport(), ours.transport);
        let passive = replying.await??;
        assert_eq!(passive.peer().qpn, numbers.0);
        join(session.finish(), passive.finish()).await;
    }
    drop(listener);
    net.quiet().await
}

/// What the device cannot be asked for is refused with the reason that fits.
#[tokio::test(start_paused = true)]
async fn rd_and_xrc_are_no_connections() -> Result {
    let net = Net::new(1).await?;
    let listener = Listener::bind(SID).device(&net.server).transport(ALL).await?;
    let qpn = Qpn::truncate(0x700);
    for (qp, reason) in [
        (LocalQp::xrc(qpn), RejReason::NO_QP),
        (LocalQp::rd(qpn, rd(0x70)), RejReason::NO_EEC),
        (LocalQp::rd(qpn, rd(0x70)).rdc(Eecn::truncate(0x99)), RejReason::RDC_NOT_EXIST),
    ] {
        let (request, asking) = asked(&net, &listener, qp).await?;
        if reason == RejReason::RDC_NOT_EXIST {
            // The program knows its EE contexts.
            assert_eq!((request.req().rdc_exists, request.req().remote_eecn.get()), (true, 0x99));
            assert_eq!(request.req().transport, TransportService::RD);
            request.reject(reason);
        } else {
            let error = request.accept().await.unwrap_err();
            assert!(matches!(error, AcceptError::Invalid(_)), "{error:?}");
        }
        match asking.await? {
            Err(ConnectError::Rejected(no)) => assert_eq!(no.reason, reason),
            other => return Err(format!("{other:?}").into()),
        }
    }
    // A queue pair of another transport than the request's.
    let (request, asking) = asked(&net, &listener, LocalQp::xrc(qpn)).await?;
    let error = request.prepare(LocalQp::rc(qpn)).unwrap_err();
    let words = "transport of the queue pair is RC, it must be that of the request";
    assert_eq!(error.to_string(), words);
    assert!(matches!(asking.await?, Err(ConnectError::Rejected(_))));
    drop(listener);
    net.quiet().await
}
