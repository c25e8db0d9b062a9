//! Finding datagram services, over UDP and in a subnet.

mod common;

use std::time::Duration;

use common::{Net, Result, SID, drop_after};
use ibcm::sidr::{self, Answer, QueryError, Responder, Status};
use ibcm::{Hca, ListenError, ServiceId, ud};
use ibdev::{AgentSpec, Device, DeviceError};
use ibwire::mad::{Method, MgmtClass};

/// Program 6 of the README's guide: a service found by one message each way, a datagram there and back.
#[tokio::test]
async fn discovery_over_datagrams() -> Result {
    let (here, there) = (Hca::open("soft").await?, Hca::open("soft").await?);
    let (served, socket) = (ud::Socket::open(&there).await?, ud::Socket::open(&here).await?);
    let _published = sidr::publish(SID, &served).private_data(b"v1").await?;
    tokio::spawn(async move {
        while let Ok(datagram) = served.recv().await {
            served.send_copy(&datagram.from(), &datagram).await.ok();
        }
    });
    let path = here.path_to(there.gid()).service_id(SID).await?;
    let query = sidr::query(path).private_data(b"who?").deadline(Duration::from_secs(2));
    let reply = query.await?;
    assert_eq!(reply.private_data().trimmed(), b"v1");
    let peer = reply.peer();
    for _ in 0..3 {
        socket.send_copy(&peer, b"tick").await?;
        let Ok(tick) = tokio::time::timeout(Duration::from_secs(1), socket.recv()).await else { continue };
        assert_eq!(&tick?[..], b"tick");
        return Ok(());
    }
    Err("three datagrams without an answer".into())
}

#[tokio::test(start_paused = true)]
async fn lost_requests_and_replies_are_repeated() -> Result {
    for seed in 0..20 {
        let net = Net::new(seed).await?;
        let (served, path) = {
            let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
            (ud::Socket::open(&net.server).await?, path)
        };
        let published = sidr::publish(SID, &served).await?;
        net.net.faults().loss(0.3).duplicate(0.2).reorder(0.2);
        let reply = sidr::query(path).deadline(Duration::from_secs(60)).await?;
        assert_eq!((reply.qpn(), reply.qkey()), (served.qpn(), ud::DEFAULT_QKEY));
        drop((published, served));
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    net.net.partition(&["client"], &["server"]);
    let started = tokio::time::Instant::now();
    let asked = sidr::query(path.clone()).deadline(Duration::from_secs(5)).await;
    let Err(QueryError::Unreachable { sent, waited }) = asked else { panic!("{asked:?}") };
    assert!(sent > 3, "{sent}");
    assert_eq!(waited.as_secs(), 5);
    assert_eq!(started.elapsed().as_secs(), 5);
    let error = sidr::query(path).deadline(Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, QueryError::Invalid(_)) && error.is_local() && !error.is_retryable());
    net.net.heal();
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_program_answers() -> Result {
    let net = Net::new(2).await?;
    let socket = ud::Socket::open(&net.server).qkey(ibcm::QKey(0x77)).await?;
    let responder = Responder::bind(SID).device(&net.server).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let ask = |data: &'static [u8; 2]| tokio::spawn(sidr::query(path.clone()).private_data(data));
    let refusal = |result| match result {
        Err(QueryError::Refused { status, private_data, .. }) => (status, private_data.trimmed().to_vec()),
        other => panic!("{other:?}"),
    };

    let asking = ask(b"v1");
    let request = responder.accept().await?;
    assert_eq!((request.private_data().len(), request.service_id()), (216, SID));
    assert!(request.private_data().starts_with(b"v1"));
    request.answer(Answer::socket(&socket).private_data(b"welcome"))?;
    let reply = asking.await??;
    assert_eq!((reply.qpn(), reply.qkey().0), (socket.qpn(), 0x77));
    assert_eq!(reply.private_data().trimmed(), b"welcome");

    let asking = ask(b"v2");
    responder.accept().await?.refuse(Status::NO_QP);
    assert_eq!(refusal(asking.await?), (Status::NO_QP, Vec::new()));

    let asking = ask(b"v3");
    responder.accept().await?.answer(Answer::refusal(Status::VALID).private_data(b"why"))?;
    assert_eq!(refusal(asking.await?), (Status::REJECTED, b"why".to_vec()));

    // Dropped, or of another HCA.
    let asking = ask(b"v4");
    drop(responder.accept().await?);
    assert_eq!(refusal(asking.await?).0, Status::REJECTED);
    let asking = ask(b"v5");
    let elsewhere = ud::Socket::open(&net.client).await?;
    let error = responder.accept().await?.answer(&elsewhere).unwrap_err();
    assert!(error.to_string().contains("the port of the socket"), "{error}");
    assert_eq!(refusal(asking.await?).0, Status::NO_QP);

    // Those that wait when the responder goes; afterwards nobody serves it.
    let asking = ask(b"v6");
    let waiting = async {
        while net.server.stats().get("sidr_requests") < Some(6) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    waiting.await;
    drop(responder);
    assert_eq!(refusal(asking.await?).0, Status::REJECTED);
    assert_eq!(refusal(ask(b"v7").await?).0, Status::UNSUPPORTED_SERVICE);
    drop((socket, elsewhere));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_full_backlog() -> Result {
    let net = Net::new(3).await?;
    let responder = Responder::bind(SID).device(&net.server).backlog(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let first = tokio::spawn(sidr::query(path.clone()));
    let held = responder.accept().await?;
    let refused = sidr::query(path.clone()).await;
    assert!(matches!(refused, Err(QueryError::Refused { status: Status::REJECTED, .. })), "{refused:?}");
    assert_eq!(responder.overflowed(), 1);
    held.refuse(Status::NO_QP);
    first.await?.unwrap_err();
    let error = Responder::bind(SID).device(&net.server).await.unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }));
    drop(responder);
    Responder::bind(SID).device(&net.server).await?;
    let error = Responder::bind(SID).device(&net.server).backlog(0).await.unwrap_err();
    assert!(matches!(error, ListenError::Invalid(_)));
    net.quiet().await
}

/// From one HCA to the next, and in a circle.
#[tokio::test]
async fn redirections() -> Result {
    let (a, b, c) = (Hca::open("soft").await?, Hca::open("soft").await?, Hca::open("soft").await?);
    let socket = ud::Socket::open(&c).await?;
    let published = sidr::publish(SID, &socket).await?;
    let responder = Responder::bind(SID).device(&b).await?;
    let gid = c.gid();
    let redirecting = tokio::spawn(async move {
        while let Ok(request) = responder.accept().await {
            request.redirect(gid);
        }
    });
    let reply = sidr::query(a.path_to(b.gid()).service_id(SID).await?).await?;
    assert_eq!((reply.path().record().dgid, reply.qpn()), (c.gid(), socket.qpn()));
    let asking = ud::Socket::open(&a).await?;
    asking.send_copy(&reply.peer(), b"found").await?;
    assert_eq!(&socket.recv().await?[..], b"found");

    drop(published);
    let back = Responder::bind(SID).device(&c).await?;
    let gid = b.gid();
    let circling = tokio::spawn(async move {
        while let Ok(request) = back.accept().await {
            request.redirect(gid);
        }
    });
    let circle = sidr::query(a.path_to(b.gid()).service_id(SID).await?).await;
    assert!(matches!(circle, Err(QueryError::Refused { status: Status::REDIRECT, .. })), "{circle:?}");
    assert_eq!(a.stats().get("sidr_redirects"), Some(4));
    redirecting.abort();
    circling.abort();
    Ok(())
}

#[tokio::test]
async fn by_ip() -> Result {
    let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
    let address = (server.gid().to_ip(), 7176);
    let responder = Responder::bind_ip(address).device(&server).await?;
    assert_eq!(responder.service_id(), ServiceId::udp_port(7176));
    let socket = ud::Socket::open(&server).await?;
    let asking = tokio::spawn(sidr::query_ip(address).device(&client).private_data(&[9; 180]));
    let request = responder.accept().await?;
    assert_eq!(request.private_data(), [9; 180]);
    let ip = *request.ip().ok_or("no header")?;
    assert_eq!((ip.source().ip(), ip.destination()), (client.gid().to_ip(), server.gid().to_ip()));
    assert_eq!(request.gid(), Some(client.gid()));
    request.answer(&socket)?;
    assert_eq!(asking.await??.qpn(), socket.qpn());

    // One without the header is refused unseen.
    let path = client.path_to(server.gid()).service_id(ServiceId::udp_port(7176)).await?;
    let bare = sidr::query(path).private_data(&[0x10]).await;
    assert!(matches!(bare, Err(QueryError::Refused { status: Status::REJECTED, .. })), "{bare:?}");
    for (address, what) in [(([192, 0, 2, 1], 7), "192.0.2.1 is not"), (([0, 0, 0, 0], 0), "IP port")] {
        let error = sidr::publish_ip(address, &socket).await.unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    Ok(())
}

/// A query that is dropped at any of its polls leaves nothing; the service answers the next one.
#[tokio::test(start_paused = true)]
async fn cm_t72_queries_dropped_anywhere() -> Result {
    let mut finished = 0;
    for polls in 0..12 {
        let net = Net::new(polls as u64).await?;
        let served = ud::Socket::open(&net.server).await?;
        let published = sidr::publish(SID, &served).await?;
        let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
        finished += usize::from(drop_after(polls, sidr::query(path.clone())).await.is_some());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(sidr::query(path).await?.qpn(), served.qpn());
        drop((published, served));
        net.quiet().await?;
    }
    assert!(finished > 0 && finished < 12, "{finished}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn closing_ends_queries_and_responders() -> Result {
    let net = Net::new(4).await?;
    let responder = Responder::bind(SID).device(&net.server).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    net.net.partition(&["client"], &["server"]);
    let asking = tokio::spawn(sidr::query(path.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    net.client.close().await;
    assert!(matches!(asking.await?, Err(QueryError::Closed)));
    assert!(matches!(sidr::query(path).await, Err(QueryError::Path(_) | QueryError::Closed)));
    net.server.close().await;
    assert!(matches!(responder.accept().await, Err(ListenError::Closed)));
    assert!(matches!(Responder::bind(SID).device(&net.server).await, Err(ListenError::Closed)));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cm_t85_a_removed_device_ends_queries_and_sockets() -> Result {
    let net = Net::new(5).await?;
    let responder = Responder::bind(SID).device(&net.server).await?;
    let socket = ud::Socket::open(&net.client).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let asking = tokio::spawn(sidr::query(path));
    let request = responder.accept().await?;
    net.net.remove("client");
    assert!(matches!(asking.await?, Err(QueryError::Device(_))));
    assert_eq!(socket.recv().await.unwrap_err(), ibcm::RecvError::Gone);
    net.net.remove("server");
    request.refuse(Status::NO_QP); // to nobody
    assert!(matches!(responder.accept().await, Err(ListenError::Device(_))));
    Ok(())
}

/// The last handles of the HCA are gone, but not the request: it can be answered, and then the HCA ends.
#[tokio::test(start_paused = true)]
async fn a_request_outlives_its_responder_and_hca() -> Result {
    let Net { net, client, server } = Net::new(6).await?;
    let responder = Responder::bind(SID).device(&server).await?;
    let asking = tokio::spawn(sidr::query(client.path_to(server.gid()).service_id(SID).await?));
    let request = responder.accept().await?;
    drop((responder, server));
    tokio::time::sleep(Duration::from_secs(1)).await;
    request.refuse(Status::NO_QP);
    let refused = asking.await?;
    assert!(matches!(refused, Err(QueryError::Refused { status: Status::NO_QP, .. })), "{refused:?}");
    net.quiet().await?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    Hca::open(net.device("server")).await?;
    Ok(())
}

/// Who closes the HCA with requests in hand has refused them.
#[tokio::test(start_paused = true)]
async fn closing_refuses_requests_in_hand() -> Result {
    let net = Net::new(7).await?;
    let responder = Responder::bind(SID).device(&net.server).await?;
    let asking = tokio::spawn(sidr::query(net.client.path_to(net.server.gid()).service_id(SID).await?));
    let request = responder.accept().await?;
    net.server.close().await;
    let refused = asking.await?;
    assert!(matches!(refused, Err(QueryError::Refused { status: Status::REJECTED, .. })), "{refused:?}");
    request.refuse(Status::NO_QP); // to nobody
    net.quiet().await
}

/// Someone else has the class of MADs: what needs it says so, instead of waiting for answers that nobody hears.
#[tokio::test(start_paused = true)]
async fn without_a_connection_manager() -> Result {
    let net = ibcm::sim::Subnet::star(["here", "there"]).await?;
    let methods = &[Method::GET, Method::SET, Method::SEND];
    let spec = AgentSpec { port: 1, class: MgmtClass::CM, class_version: 2, methods };
    let other = net.device("here").open_agent(spec)?;
    let (here, there) = (Hca::open(net.device("here")).await?, Hca::open(net.device("there")).await?);
    let socket = ud::Socket::open(&here).await?;
    for error in [sidr::publish(SID, &socket).await.err(), Responder::bind(SID).device(&here).await.err()] {
        assert!(matches!(error, Some(ListenError::Device(DeviceError::InUse { .. }))), "{error:?}");
    }
    let asked = sidr::query(here.path_to(there.gid()).service_id(SID).await?).await;
    assert!(matches!(asked, Err(QueryError::Device(DeviceError::InUse { .. }))), "{asked:?}");
    drop(other);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_response_timeout_without_an_end() -> Result {
    let net = Net::new(8).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let error = sidr::query(path.clone()).response_timeout(Duration::MAX).await.unwrap_err();
    assert!(matches!(error, QueryError::Invalid(_)), "{error}");
    let refused = sidr::query(path).await;
    assert!(matches!(refused, Err(QueryError::Refused { .. })), "{refused:?}");
    net.quiet().await
}
