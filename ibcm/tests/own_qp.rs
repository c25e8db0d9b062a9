//! Queue pairs of the program's own: the handshake step by step, and what each step leaves behind.

mod common;

use std::time::Duration;

use common::own_qp::{accept, ask, connect, offer};
use common::{Net, Result, SID, drop_after};
use ibcm::handshake::{self, LocalQp};
use ibcm::qp::Transition;
use ibcm::verbs::RcQp;
use ibcm::{
    AcceptError, ConnectError, Connection, DeviceError, Hca, How, QpStep, Qpn, RejReason, Reject, Role,
    ServicePath, Status,
};
use tokio::time::{Instant, timeout};

const SECOND: Duration = Duration::from_secs(1);
/// More polls than any of the futures here takes.
const POLLS: usize = 60;
/// Of no queue pair that there is: the handshake needs none.
const MADE_UP: Qpn = Qpn::truncate(0x12_3456);

async fn path(net: &Net) -> Result<ServicePath> {
    Ok(net.client.path_to(net.server.gid()).service_id(SID).await?)
}

/// Sends a message and waits until both sides have seen it.
async fn message(hca: &Hca, from: &RcQp, to: &RcQp, len: usize) -> Result {
    from.post_send(hca.alloc(len).await?)?;
    let (sent, received) = tokio::join!(from.completion(), to.completion());
    assert_eq!((sent.status, received.status), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(received.len as usize, len);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn both_sides_have_queue_pairs_of_their_own() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let ((client_qp, client), (server_qp, server)) =
        tokio::try_join!(connect(&net.client, &path), accept(&net.server, &listener))?;
    assert_eq!((&client.private_data()[..8], client.private_data().len()), (&b"welcome\0"[..], 196));
    assert_eq!((&server.private_data()[..6], server.private_data().len()), (&b"hello\0"[..], 92));
    assert_eq!((client.peer().gid, client.peer().qpn), (net.server.gid(), server_qp.qpn()));
    assert_eq!((server.peer().gid, server.peer().qpn), (net.client.gid(), client_qp.qpn()));
    assert_eq!((client.role(), server.role()), (Role::Active, Role::Passive));
    assert_eq!((client.service_id(), server.service_id()), (SID, SID));
    message(&net.client, &client_qp, &server_qp, 1000).await?;
    message(&net.server, &server_qp, &client_qp, 0).await?;

    let disconnected = client.disconnect().private_data(b"done");
    let (here, there) = tokio::join!(disconnected, server.closed());
    assert_eq!((here.how, there.how), (How::Confirmed, How::ByPeer));
    assert_eq!(&there.private_data()[..5], b"done\0");
    // The SDK has not touched the queue pairs: what is posted is still there.
    for (hca, qp) in [(&net.client, &client_qp), (&net.server, &server_qp)] {
        qp.post_recv(hca.alloc(8).await?)?;
        qp.modify(Transition::Error).await?;
        assert_eq!(qp.completion().await.status, Status::WR_FLUSH_ERR);
    }
    assert_eq!(client.finish().await.how, How::Confirmed);
    assert_eq!(server.finish().await.how, How::ByPeer);
    drop((client_qp, server_qp, listener, path));
    net.quiet().await
}

/// A connection is the same on the wire, whoever has its queue pair.
#[tokio::test(start_paused = true)]
async fn the_other_side_is_a_connection() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let connecting = async { Ok(Connection::connect(path.clone()).private_data(b"hello").await?) };
    let (conn, (qp, session)) = tokio::try_join!(connecting, accept(&net.server, &listener))?;
    conn.send_copy(b"to a queue pair").await?;
    assert_eq!(qp.completion().await.len, 15);
    conn.disconnect().await;
    session.finish().await;
    drop(qp);

    let accepting = async { Ok(listener.accept().await?.accept().await?) };
    let ((qp, session), conn) = tokio::try_join!(connect(&net.client, &path), accepting)?;
    qp.post_send(net.client.alloc(7).await?)?;
    assert_eq!(conn.recv().await?.ok_or("closed")?.len(), 7);
    session.disconnect().await;
    assert!(conn.recv().await?.is_none());
    drop((conn, session, qp, listener, path));
    net.quiet().await
}

/// What the REQ and the REP say of a queue pair is what its program said.
#[tokio::test(start_paused = true)]
async fn the_peer_is_told_of_the_queue_pair() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let qp = LocalQp::rc(MADE_UP)
        .srq(true)
        .end_to_end_flow_control(true)
        .responder_resources(Some(3))
        .initiator_depth(Some(2));
    let asking = handshake::connect(path, qp)
        .retry_count(5)
        .rnr_retry_count(4)
        .max_cm_retries(6)
        .response_timeout(Duration::from_millis(100));
    let answering = async {
        let offer = listener.accept().await?.prepare(qp.responder_resources(Some(1)))?;
        let (req, attrs) = (offer.req(), offer.attrs());
        assert_eq!((req.local_qpn, req.srq, req.end_to_end_flow_control), (MADE_UP, true, true));
        assert_eq!((req.responder_resources, req.initiator_depth), (3, 2));
        assert_eq!((req.retry_count.get(), req.rnr_retry_count.get(), req.max_cm_retries.get()), (5, 4, 6));
        assert_eq!(req.remote_cm_response_timeout.get(), 15); // 134 ms
        assert_eq!((attrs.rtr.max_dest_rd_atomic, attrs.rts.max_rd_atomic), (1, 2));
        assert_eq!((attrs.rts.retry_count, attrs.rts.rnr_retry), (5, 4));
        assert_eq!(attrs.rtr.dest_qpn, MADE_UP);
        Ok::<_, ibcm::Error>(offer.rnr_retry_count(1).reply().await?)
    };
    let confirming = async {
        let reply = asking.await?;
        let (rep, attrs) = (reply.rep(), reply.attrs());
        assert_eq!((rep.srq, rep.end_to_end_flow_control, rep.rnr_retry_count.get()), (true, true, 1));
        assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 2));
        assert_eq!((attrs.rtr.max_dest_rd_atomic, attrs.rts.max_rd_atomic, attrs.rts.rnr_retry), (2, 1, 1));
        Ok(reply.ready().await?)
    };
    drop(tokio::try_join!(confirming, answering)?);
    drop(listener);
    net.quiet().await
}

/// The RTU is lost: the first data stands for it, and the device tells of it.
#[tokio::test(start_paused = true)]
async fn data_before_a_lost_rtu() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let accepting = accept(&net.server, &listener);
    let connecting = async {
        let (qp, reply) = ask(&net.client, &path).await?;
        net.net.faults().loss(1.0);
        let session = reply.ready().await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        net.net.faults().clear();
        let at = Instant::now();
        qp.post_send(net.client.alloc(64).await?)?;
        Ok((qp, session, at))
    };
    let ((client_qp, client, at), (server_qp, server)) = tokio::try_join!(connecting, accepting)?;
    assert!(at.elapsed() < Duration::from_millis(50), "{:?}", at.elapsed());
    assert_eq!(server_qp.completion().await.len, 64);
    drop((client, server, client_qp, server_qp, listener, path));
    net.quiet().await
}

/// The same where the queue pair's events come to the program alone.
#[tokio::test(start_paused = true)]
async fn comm_established_stands_for_a_lost_rtu() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let asking = handshake::connect(path, LocalQp::rc(MADE_UP));
    let client = async {
        let reply = asking.await?;
        net.net.faults().loss(1.0);
        let session = reply.ready().await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Result::Ok(session)
    };
    let server = async {
        let mut reply = Box::pin(listener.accept().await?.prepare(LocalQp::rc(MADE_UP))?.reply());
        assert!(timeout(SECOND / 10, reply.as_mut()).await.is_err());
        net.server.comm_established(Qpn::truncate(0x65_4321));
        assert!(timeout(SECOND / 10, reply.as_mut()).await.is_err(), "another queue pair");
        net.server.comm_established(MADE_UP);
        Ok(timeout(SECOND / 10, reply).await??)
    };
    let (client, server) = tokio::try_join!(client, server)?;
    net.server.comm_established(MADE_UP); // once more does nothing
    net.net.faults().clear();
    assert_eq!(client.disconnect().await.how, How::Confirmed);
    drop((client, server, listener));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn each_side_rejects_at_each_step() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let no = || Reject::new(RejReason::NO_RESOURCES).private_data(b"none left");
    for drops in [false, true] {
        let expected = if drops { RejReason::CONSUMER } else { RejReason::NO_RESOURCES };
        // The passive side, with a queue pair prepared.
        let asking = tokio::spawn(handshake::connect(path.clone(), LocalQp::rc(MADE_UP)));
        let (qp, offer) = offer(&net.server, &listener).await?;
        match drops {
            true => drop(offer),
            false => offer.reject(no()),
        }
        match asking.await? {
            Err(ConnectError::Rejected(rej)) => {
                assert_eq!((rej.reason, rej.private_data.trimmed().is_empty()), (expected, drops));
            }
            other => return Err(format!("{other:?}").into()),
        }
        drop(qp);
        // The active side, with the REP in its hands.
        let (client, server) = (ask(&net.client, &path), accept(&net.server, &listener));
        let rejecting = async {
            let (_qp, reply) = client.await?;
            match drops {
                true => drop(reply),
                false => reply.reject(no()),
            }
            Ok(())
        };
        let refused = async { Result::Ok(server.await.err()) };
        let ((), refused) = tokio::try_join!(rejecting, refused)?;
        let refused = refused.ok_or("not refused")?;
        match refused.downcast_ref::<AcceptError>() {
            Some(AcceptError::Rejected(rej)) => assert_eq!(rej.reason, expected),
            other => return Err(format!("{other:?}").into()),
        }
    }
    drop((listener, path));
    net.quiet().await
}

/// Drops either side's whole program at each of its polls, the other one going on to its end.
#[tokio::test(start_paused = true)]
async fn a_drop_at_each_step_leaves_nothing() -> Result {
    for (loss, active) in [(0.0, true), (0.0, false), (0.2, true), (0.2, false)] {
        let mut finished = 0;
        for polls in 0..POLLS {
            let net = Net::new(polls as u64).await?;
            net.net.faults().loss(loss).reorder(loss);
            let (listener, path) = (net.listen().await?, path(&net).await?);
            let (client, server) = (net.client.clone(), net.server.clone());
            let calling = async move {
                let (qp, session) = connect(&client, &path).await?;
                session.finish().await;
                drop(qp);
                Result::Ok(())
            };
            let serving = async move {
                let (qp, session) = accept(&server, &listener).await?;
                // All DREQs of the other side may be lost.
                _ = timeout(20 * SECOND, session.closed()).await;
                session.finish().await;
                drop(qp);
                Result::Ok(())
            };
            let done = if active {
                let other = tokio::spawn(serving);
                let done = drop_after(polls, calling).await.is_some();
                let settled = timeout(200 * SECOND, net.client.wait_idle()).await;
                assert!(settled.is_ok(), "{polls}");
                other.abort();
                _ = other.await;
                done
            } else {
                let other = tokio::spawn(calling);
                let done = drop_after(polls, serving).await.is_some();
                _ = other.await?;
                done
            };
            finished += usize::from(done);
            net.quiet().await?;
        }
        assert!(finished > 0 && finished < POLLS, "{finished} of {POLLS} were not dropped");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn deadlines_of_both_sides() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    net.net.partition(&["client"], &["server"]);
    let at = Instant::now();
    match handshake::connect(path.clone(), LocalQp::rc(MADE_UP)).deadline(2 * SECOND).await {
        Err(ConnectError::Unreachable { attempts: 1, sent, busy: false, .. }) => assert!(sent > 1, "{sent}"),
        other => return Err(format!("{other:?}").into()),
    }
    assert_eq!(at.elapsed().as_secs(), 2);
    net.net.heal();

    let asking = tokio::spawn(handshake::connect(path.clone(), LocalQp::rc(MADE_UP)).deadline(60 * SECOND));
    let offer = listener.accept().await?.prepare(LocalQp::rc(MADE_UP))?;
    let at = Instant::now();
    let unconfirmed = offer.deadline(3 * SECOND).reply();
    let (reply, unconfirmed) = tokio::join!(asking, unconfirmed);
    assert!(matches!(unconfirmed, Err(AcceptError::Unconfirmed { .. })), "{unconfirmed:?}");
    assert_eq!(at.elapsed().as_secs(), 3);
    // By now the peer has said so.
    tokio::time::sleep(SECOND).await;
    assert!(
        matches!(reply??.ready().await, Err(ConnectError::Rejected(no)) if no.reason == RejReason::TIMEOUT)
    );

    for result in [
        handshake::connect(path.clone(), LocalQp::rc(MADE_UP)).deadline(Duration::ZERO).await,
        handshake::connect(path.clone(), LocalQp::rc(Qpn::GSI)).await,
        handshake::connect(path.clone(), LocalQp::rc(MADE_UP).responder_resources(Some(255))).await,
        handshake::connect(path.clone(), LocalQp::rc(MADE_UP)).max_cm_retries(16).await,
    ] {
        assert!(matches!(result, Err(ConnectError::Invalid(_))), "{result:?}");
    }
    drop((listener, path));
    net.quiet().await
}

/// A slow program: MRAs keep the peer patient at each step.
#[tokio::test(start_paused = true)]
async fn steps_may_take_their_time() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let accepting = async {
        let (qp, offer) = offer(&net.server, &listener).await?;
        tokio::time::sleep(20 * SECOND).await;
        let session = offer.deadline(60 * SECOND).reply().await?;
        Result::Ok((qp, session))
    };
    let connecting = async {
        let (qp, reply) = ask(&net.client, &path).await?;
        tokio::time::sleep(20 * SECOND).await;
        Ok((qp, reply.ready().await?))
    };
    let (client, server) = tokio::try_join!(connecting, accepting)?;
    drop((client, server, listener, path));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_number_is_in_use_until_the_session_is_finished() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let ((client_qp, client), (server_qp, server)) =
        tokio::try_join!(connect(&net.client, &path), accept(&net.server, &listener))?;
    let in_use = |source: &DeviceError| matches!(source, DeviceError::InUse { .. });
    let again = || handshake::connect(path.clone(), LocalQp::rc(client_qp.qpn()));
    for established in [true, false] {
        let refused = again().await;
        let Err(ConnectError::Qp { step: QpStep::Create, source }) = refused else {
            return Err(format!("{refused:?}").into());
        };
        assert!(in_use(&source), "{source}");
        if established {
            client.disconnect().await;
        }
    }
    // The passive side's, too: it is in TimeWait, and its program is told before it has moved a queue pair.
    let asking = tokio::spawn(handshake::connect(path.clone(), LocalQp::rc(MADE_UP)));
    match listener.accept().await?.prepare(LocalQp::rc(server_qp.qpn())) {
        Err(AcceptError::Qp { step: QpStep::Create, source }) => assert!(in_use(&source), "{source}"),
        other => return Err(format!("{other:?}").into()),
    }
    assert!(matches!(asking.await?, Err(ConnectError::Rejected(no)) if no.reason == RejReason::CONSUMER));

    client.finish().await;
    server.finish().await;
    let dropping = async { again().await.map(drop) };
    let (dropped, offered) = tokio::join!(dropping, async {
        let offer = listener.accept().await?.prepare(LocalQp::rc(server_qp.qpn()))?;
        Ok::<_, ibcm::Error>(offer.reply().await)
    });
    dropped?;
    assert!(matches!(offered?, Err(AcceptError::Rejected(_))));
    drop((client_qp, server_qp, listener, path));
    net.quiet().await
}

/// Dropped, a session disconnects, although DREQs are lost.
#[tokio::test(start_paused = true)]
async fn a_dropped_session_disconnects() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let ((client_qp, client), (server_qp, server)) =
        tokio::try_join!(connect(&net.client, &path), accept(&net.server, &listener))?;
    net.net.faults().loss(0.7);
    drop(client);
    assert_eq!(server.closed().await.how, How::ByPeer);
    drop((server, client_qp, server_qp, listener, path));
    net.quiet().await
}

/// All DREQs of the peer are lost, and nobody knows better: the queue pair has to ask.
#[tokio::test(start_paused = true)]
async fn an_idle_side_learns_by_asking_that_its_peer_has_ended() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let ((client_qp, client), (server_qp, server)) =
        tokio::try_join!(connect(&net.client, &path), accept(&net.server, &listener))?;
    for qp in [&client_qp, &server_qp] {
        qp.post_probe()?;
        assert_eq!(qp.completion().await.status, Status::SUCCESS);
    }
    net.net.partition(&["client"], &["server"]);
    let ended = client.disconnect().await;
    assert!(matches!(ended.how, How::Unconfirmed { .. }), "{ended}");
    client_qp.modify(Transition::Error).await?;
    net.net.heal();
    assert!(timeout(600 * SECOND, server.closed()).await.is_err());
    assert!(timeout(SECOND, client_qp.completion()).await.is_ok(), "its receive was never used");

    let at = Instant::now();
    server_qp.post_probe()?;
    assert_eq!(server_qp.completion().await.status, Status::RETRY_EXC_ERR);
    server.disconnect().deadline(5 * SECOND).await;
    assert!(at.elapsed() < 60 * SECOND, "{:?}", at.elapsed());
    drop((client, server, client_qp, server_qp, listener, path));
    net.quiet().await
}

/// Sessions end with their HCA, and their queue pairs are not touched then, either.
#[tokio::test(start_paused = true)]
async fn closing_the_hca() -> Result {
    let net = Net::new(1).await?;
    let (listener, path) = (net.listen().await?, path(&net).await?);
    let ((client_qp, client), (server_qp, server)) =
        tokio::try_join!(connect(&net.client, &path), accept(&net.server, &listener))?;
    let asking = tokio::spawn(handshake::connect(path.clone(), LocalQp::rc(MADE_UP)));
    let offer = listener.accept().await?.prepare(LocalQp::rc(MADE_UP))?;
    net.server.close().await;
    assert!(matches!(offer.reply().await, Err(AcceptError::Closed)));
    assert!(matches!(asking.await?, Err(ConnectError::Rejected(_))));
    assert_eq!(server.closed().await.how, How::HcaClosed);
    assert_eq!(server.finish().await.how, How::HcaClosed);
    assert_eq!(client.closed().await.how, How::ByPeer);
    assert!(matches!(net.server.verbs().create_rc_qp().await, Err(ibcm::Error::Closed)));
    drop((client, client_qp, server_qp, listener, path));
    net.quiet().await
}

/// What the raw queue pair refuses, it refuses as the device does.
#[tokio::test(start_paused = true)]
async fn states_of_a_raw_queue_pair() -> Result {
    let net = Net::new(1).await?;
    let path = path(&net).await?;
    let qp = net.client.verbs().create_rc_qp().await?;
    let state = |error| match error {
        Err(DeviceError::State { state }) => state,
        other => panic!("{other:?}"),
    };
    assert_eq!(state(qp.post_recv(net.client.alloc(8).await?)), "RESET");
    qp.modify(path.qp_init()?).await?;
    assert_eq!(state(qp.post_send(net.client.alloc(8).await?)), "INIT");
    // Up to the first that fails.
    let (reset, init) = (Transition::Reset, Transition::from(path.qp_init()?));
    assert_eq!(state(qp.modify_all(&[reset, init, Transition::SqDrain, reset]).await), "INIT");
    qp.modify_all(&[init, reset]).await?;
    assert_eq!(state(qp.modify(Transition::Error).await), "RESET");
    drop((qp, path));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_raw_queue_pair_has_the_depth_that_is_asked_for() -> Result {
    let net = Net::new(1).await?;
    let qp = net.client.verbs().depth(2).create_rc_qp().await?;
    qp.modify(net.client.path_to(net.server.gid()).await?.qp_init()?).await?;
    for _ in 0..2 {
        qp.post_recv(net.client.alloc(16).await?)?;
    }
    assert!(matches!(qp.post_recv(net.client.alloc(16).await?), Err(DeviceError::InUse { .. })));
    for (depth, message) in
        [(0, "depth is 0, at least 1 is needed"), (u32::MAX, "depth is 4294967295, at most")]
    {
        let error = net.client.verbs().depth(depth).create_rc_qp().await.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_says_that_completions_free_it() -> Result {
    let net = Net::new(1).await?;
    let qp = net.client.verbs().create_rc_qp().await?;
    qp.modify(net.client.path_to(net.server.gid()).await?.qp_init()?).await?;
    let mut posted = 0;
    let error = loop {
        match qp.post_recv(net.client.alloc(16).await?) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
    };
    assert!(posted > 0 && matches!(error, DeviceError::InUse { .. }), "{posted}: {error}");
    Ok(())
}
