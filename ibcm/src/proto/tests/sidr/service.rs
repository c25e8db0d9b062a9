//! Services: who is asked, and what is refused.

use super::*;

#[test]
fn statuses_reach_the_one_who_asked() {
    let mut net = Net::pair();
    serve(&mut net, P, SidrHandling::Report { backlog: 4 });
    let now = net.now;
    for status in [SidrStatus::REJECTED, SidrStatus::NO_QP, SidrStatus(77)] {
        ask(&mut net);
        net.pass(Attribute::SIDR_REQ);
        let (handle, _) = request(&mut net);
        let no = SidrAnswer { private_data: PrivateData::from(b"why"), ..SidrAnswer::refusal(status) };
        net.ep(P).sidr_answer(now, handle, &no).unwrap();
        net.pass(Attribute::SIDR_REP);
        let rep = refused(&mut net);
        assert_eq!((rep.status, rep.private_data.trimmed()), (status, &b"why"[..]));
    }
    assert_eq!(stats(&mut net, P).sidr_answers, 3);
}

#[test]
fn a_full_backlog_is_status_2() {
    let mut net = Net::pair();
    let service = serve(&mut net, P, SidrHandling::Report { backlog: 2 });
    for _ in 0..3 {
        ask(&mut net);
    }
    net.run();
    assert_eq!(refused(&mut net).status, SidrStatus::REJECTED);
    assert_eq!(net.ep(P).sidr_pending_requests(service), Some(2));
    assert_eq!(net.ep(P).sidr_overflowed_requests(service), Some(1));
    // A decision makes room.
    let (handle, _) = request(&mut net);
    let now = net.now;
    net.ep(P).sidr_answer(now, handle, &answer()).unwrap();
    ask(&mut net);
    net.run();
    assert_eq!(net.ep(P).sidr_pending_requests(service), Some(2));
    let SidrEvent::Resolved { .. } = event(&mut net, A) else { panic!() };
}

#[test]
fn deregistration() {
    let mut net = Net::pair();
    let published = publish(&mut net, P, answer());
    assert_eq!(net.ep(P).sidr_serve(SidrServe::reporting(SERVICE)), Err(ListenError::AddrInUse));
    net.ep(P).sidr_unserve(published);
    net.ep(P).sidr_unserve(published);
    ask(&mut net);
    net.run();
    assert_eq!(refused(&mut net).status, SidrStatus::UNSUPPORTED_SERVICE);

    // What was reported before can still be answered.
    let service = serve(&mut net, P, SidrHandling::Report { backlog: 2 });
    ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    let (handle, _) = request(&mut net);
    net.ep(P).sidr_unserve(service);
    assert_eq!(net.ep(P).sidr_pending_requests(service), None);
    serve(&mut net, P, SidrHandling::Report { backlog: 2 });
    let now = net.now;
    net.ep(P).sidr_answer(now, handle, &answer()).unwrap();
    net.run();
    let SidrEvent::Resolved { .. } = event(&mut net, A) else { panic!() };
}

/// The most particular service wins, as with listeners.
#[test]
fn services_by_gid_and_port() {
    let mut net = Net::pair();
    let mut qpn = 0x10;
    let mut serve_at = |net: &mut Net, gid: Option<Gid>, port: Option<u8>| {
        qpn += 1;
        let mut serve = SidrServe::answering(SERVICE, SidrAnswer::resolved(Qpn::truncate(qpn), QKEY));
        (serve.local_gid, serve.port) = (gid, port);
        net.ep(P).sidr_serve(serve).unwrap();
        Qpn::truncate(qpn)
    };
    let resolve = |net: &mut Net| {
        ask(net);
        net.run();
        match event(net, A) {
            SidrEvent::Resolved { rep, .. } => Some(rep.qpn),
            SidrEvent::Refused { .. } => None,
            other => panic!("{other:?}"),
        }
    };
    serve_at(&mut net, Some(Gid([9; 16])), None);
    assert_eq!(resolve(&mut net), None);
    let any = serve_at(&mut net, None, None);
    assert_eq!(resolve(&mut net), Some(any));
    let by_port = serve_at(&mut net, None, Some(1));
    assert_eq!(resolve(&mut net), Some(by_port));
    let gid = net.hosts[P].address.gid;
    let by_gid = serve_at(&mut net, Some(gid), None);
    assert_eq!(resolve(&mut net), Some(by_gid));
}

#[test]
fn services_addressed_by_ip_want_the_header() {
    let mut net = Net::pair();
    let mut service = SidrServe::reporting(ServiceId::udp_port(7));
    service.by_ip = true;
    net.ep(P).sidr_serve(service).unwrap();
    let header = IpHeader::new("10.0.0.1:4660".parse().unwrap(), "10.0.0.2".parse().unwrap()).unwrap();
    let good = SidrQuery {
        service_id: ServiceId::udp_port(7),
        private_data: header.private_data(&[5; 180]).unwrap(),
        ..query_from(&net, A, P)
    };
    ask_with(&mut net, A, &good);
    net.run();
    assert_eq!(request(&mut net).1.ip, Some(header));

    let mut bad = good.clone();
    bad.private_data = PrivateData::from(&[0x10]);
    ask_with(&mut net, A, &bad);
    net.run();
    assert_eq!(refused(&mut net).status, SidrStatus::REJECTED);
    no_event(&mut net, P);
    assert_eq!(stats(&mut net, P).sidr_refused, 1);
}
