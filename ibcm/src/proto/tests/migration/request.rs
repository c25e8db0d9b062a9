//! Alternate paths in the REQ.

use super::*;

#[test]
fn an_alternate_path_in_the_req_is_loaded_on_both_sides() {
    for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let mut net = Net::on(link, [true, true]);
        let a = net.connect(Some(2));
        let req = net.pass(Id::REQ);
        let Message::Req(req) = req.message else { panic!() };
        let block = req.alternate_path().unwrap();
        assert_eq!((block.local_gid, block.remote_gid), (gid(A, 2), gid(P, 2)));
        let Event::Request { conn: p, request, .. } = net.event(P) else { panic!() };
        let turned = request.alternate.unwrap();
        assert_eq!((turned.port, turned.record.sgid, turned.record.dgid), (2, gid(P, 2), gid(A, 2)));
        let accept = Accept::new(net.qpn());
        let told = net.hosts[P].accept_attrs(p, &accept).unwrap().rts.alternate.unwrap();
        assert_eq!(told.av.port, 2);
        assert_eq!(told.timeout, block.local_ack_timeout);
        net.hosts[P].accept(net.now, p, accept).unwrap();
        net.pass(Id::REP);
        assert_eq!(net.hosts[P].attrs(p).unwrap().rts.alternate, Some(told));
        let ours = net.hosts[A].attrs(a).unwrap().rts.alternate.unwrap();
        assert_eq!(
            (ours.av.port, ours.av.dlid),
            (2, if link == LinkLayer::InfiniBand { lid(P, 2) } else { Lid::NONE })
        );
        assert_eq!(ours.timeout, timeout_of_a());
        for (host, conn) in [(A, a), (P, p)] {
            assert_eq!(net.hosts[host].failover(conn), Some(FailoverAccepted::ACCEPTED));
        }
    }
}

#[test]
fn cm_t52_the_failover_code_says_what_became_of_the_path() {
    let answer = |migrates, takes, change: fn(&mut PathBlock)| {
        let mut net = Net::on(LinkLayer::Ethernet, [true, migrates]);
        let a = net.connect(Some(2));
        let flight = net.take(Id::REQ);
        let Message::Req(mut req) = flight.message.clone() else { panic!() };
        change(&mut req.alternate);
        net.deliver(&flight.with(req, flight.tid));
        let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
        let mut accept = Accept::new(net.qpn());
        accept.failover = takes;
        let loads = net.hosts[P].accept_attrs(p, &accept).unwrap().rts.alternate.is_some();
        net.hosts[P].accept(net.now, p, accept).unwrap();
        net.pass(Id::REP);
        let Event::Reply { rep, .. } = net.event(A) else { panic!() };
        assert_eq!(loads, rep.failover_accepted == FailoverAccepted::ACCEPTED);
        assert_eq!(net.hosts[A].attrs(a).unwrap().rts.alternate.is_some(), loads);
        rep.failover_accepted
    };
    let as_it_is = |_: &mut PathBlock| {};
    assert_eq!(answer(true, true, as_it_is), FailoverAccepted::ACCEPTED);
    assert_eq!(answer(true, false, as_it_is), FailoverAccepted::REJECTED);
    assert_eq!(answer(false, true, as_it_is), FailoverAccepted::UNSUPPORTED);
    assert_eq!(answer(true, true, |block| block.remote_gid = gid(P, 9)), FailoverAccepted::REJECTED);
    let primary = |block: &mut PathBlock| (block.local_gid, block.remote_gid) = (gid(A, 1), gid(P, 1));
    assert_eq!(answer(true, true, primary), FailoverAccepted::REJECTED);
}

#[test]
fn a_path_that_the_device_cannot_have_is_refused_before_anything_is_sent() {
    let mut net = Net::on(LinkLayer::Ethernet, [false, true]);
    let mut connect = Connect::new(net.path(1), SERVICE, net.qpn());
    connect.alternate = Some(net.path(2));
    let refused = net.hosts[A].connect(net.now, connect.clone()).unwrap_err();
    assert!(refused.to_string().contains("the device cannot migrate paths"), "{refused}");

    let mut net = Net::new();
    let good = net.path(2);
    let bad = [
        Path { port: 9, ..good },
        Path { record: PathRecord { sgid: gid(A, 9), ..good.record }, ..good },
        Path { record: PathRecord { pkey: PKey(0x8001), ..good.record }, ..good },
        Path { record: PathRecord { mtu: Mtu::B512, ..good.record }, ..good },
        net.path(1),
    ];
    for alternate in bad {
        connect.alternate = Some(alternate);
        let refused = net.hosts[A].connect(net.now, connect.clone()).unwrap_err();
        assert!(
            matches!(refused, ConnectError::Invalid(invalid) if invalid.field == "alternate path"),
            "{refused}"
        );
        net.silent();
    }
    (connect.alternate, connect.transport) = (Some(good), Transport::Uc);
    let refused = net.hosts[A].connect(net.now, connect).unwrap_err();
    assert!(refused.to_string().contains("only reliable connections migrate"), "{refused}");
}

/// A peer whose REP says that it cannot migrate is asked for no path.
#[test]
fn a_peer_that_cannot_migrate_is_not_asked_again() {
    let mut net = Net::on(LinkLayer::Ethernet, [true, false]);
    let pair = net.established(Some(2));
    assert_eq!(net.hosts[A].failover(pair.a), Some(FailoverAccepted::UNSUPPORTED));
    assert_eq!(net.refused(pair.a, 3), PathError::PeerUnable);
    net.silent();
}

/// Both ask. What the side proposed that becomes the passive one is forgotten with its request.
#[test]
fn the_proposal_of_who_turns_passive_is_forgotten() {
    let mut net = Net::new();
    let mut ours = Connect::new(net.path(1), SERVICE, net.qpn());
    ours.alternate = Some(net.path(2));
    let a = net.hosts[A].connect_peer(net.now, ours).unwrap();
    net.take(Id::REQ);
    let mut back = net.path(1);
    (back.record.sgid, back.record.dgid) = (gid(P, 1), gid(A, 1));
    let theirs = Connect::new(back, SERVICE, net.qpn());
    net.hosts[P].connect_peer(net.now, theirs).unwrap();
    net.pass(Id::REQ);
    let Event::PeerRequest { conn, .. } = net.event(A) else { panic!() };
    assert_eq!((conn, net.hosts[A].failover(a)), (a, None));
    let accept = Accept::new(net.hosts[A].info(a).unwrap().local_qpn);
    assert_eq!(net.hosts[A].accept_attrs(a, &accept).unwrap().rts.alternate, None);
    net.hosts[A].accept(net.now, a, accept).unwrap();
    net.pass(Id::REP);
    let Event::Reply { rep, .. } = net.event(P) else { panic!() };
    assert_eq!(rep.failover_accepted, FailoverAccepted::ACCEPTED, "it means nothing without a proposal");
    assert_eq!((net.hosts[A].failover(a), net.hosts[A].attrs(a).unwrap().rts.alternate), (None, None));
}

/// The device cannot do it for other transports: the REQ's path is declined.
#[test]
fn an_unreliable_connection_has_no_alternate_path() {
    let mut net = Net::new();
    let mut listen = Listen::new(SERVICE);
    listen.transports = Transport::Uc.into();
    net.hosts[P] = {
        let attr = net.hosts[P].local_ca().clone();
        Endpoint::new(Config::default(), attr, [9; 32])
    };
    net.hosts[P].listen(listen).unwrap();
    net.connect(Some(2));
    let flight = net.take(Id::REQ);
    let Message::Req(mut req) = flight.message.clone() else { panic!() };
    req.transport = TransportService::UC;
    net.deliver(&flight.with(req, flight.tid));
    let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
    let accept = Accept::new(net.qpn());
    assert_eq!(net.hosts[P].accept_attrs(p, &accept).unwrap().rts.alternate, None);
    net.hosts[P].accept(net.now, p, accept).unwrap();
    let Message::Rep(rep) = net.take(Id::REP).message else { panic!() };
    assert_eq!(rep.failover_accepted, FailoverAccepted::UNSUPPORTED);
}
