//! Questions and their answers.

use super::*;

#[test]
fn what_is_published_is_answered_without_an_event() {
    for mut net in [Net::pair(), Net::infiniband()] {
        publish(&mut net, P, answer());
        let query = ask(&mut net);
        let asked = net.pass(Attribute::SIDR_REQ);
        assert_eq!(sidr_req(&asked.message).private_data.trimmed(), b"who?");
        no_event(&mut net, P);
        net.now += Duration::from_millis(7);
        let replied = net.pass(Attribute::SIDR_REP);
        assert_eq!(replied.header.tid, asked.header.tid);
        let SidrEvent::Resolved { query: resolved, rep, path, effort } = event(&mut net, A) else { panic!() };
        assert_eq!((resolved, rep.qpn, rep.qkey), (query, QPN, QKEY));
        assert_eq!((rep.status, rep.private_data.trimmed()), (SidrStatus::VALID, &b"v1"[..]));
        assert_eq!(*path, query_from(&net, A, P).path);
        assert_eq!(effort, Effort { sent: 1, waited: Duration::from_millis(7), busy: false });
        assert_idle(&mut net);
        assert_eq!((stats(&mut net, P).sidr_published, stats(&mut net, A).sidr_queries), (1, 1));
    }
}

#[test]
fn a_service_for_connections_is_another_one() {
    let mut net = Net::pair(); // P listens on the same service ID
    ask(&mut net);
    net.run();
    assert_eq!(refused(&mut net).status, SidrStatus::UNSUPPORTED_SERVICE);
    publish(&mut net, P, answer());
    net.established();
}

#[test]
fn cm_t68_one_event_for_a_repeated_request_and_the_same_answer() {
    let mut net = Net::pair();
    let service = serve(&mut net, P, SidrHandling::Report { backlog: 4 });
    ask(&mut net);
    let asked = net.pass(Attribute::SIDR_REQ);
    let (handle, asked_for) = request(&mut net);
    assert_eq!((asked_for.req.service_id, asked_for.ip), (SERVICE, None));
    for _ in 0..3 {
        net.deliver(&asked);
    }
    no_event(&mut net, P);
    net.assert_silent();
    assert_eq!(stats(&mut net, P).dropped_duplicate, 3);
    assert_eq!(net.ep(P).sidr_pending_requests(service), Some(1));

    let now = net.now;
    net.ep(P).sidr_answer(now, handle, &answer()).unwrap();
    assert_eq!(net.ep(P).sidr_answer(now, handle, &answer()), Err(CommandError::Gone));
    assert_eq!(net.ep(P).sidr_pending_requests(service), Some(0));
    let first = net.take_only(Attribute::SIDR_REP);
    net.now += Duration::from_millis(1999);
    net.deliver(&asked);
    let second = net.take_only(Attribute::SIDR_REP);
    assert_eq!(first.bytes(), second.bytes());
    no_event(&mut net, P);
    assert_eq!(stats(&mut net, P).repeated_answers, 1);

    net.now += Duration::from_millis(1);
    net.deliver(&asked);
    request(&mut net);
    // The late answer and the one to the repetition end one query.
    net.deliver(&first);
    net.deliver(&second);
    let SidrEvent::Resolved { .. } = event(&mut net, A) else { panic!() };
    no_event(&mut net, A);
    assert_eq!(stats(&mut net, A).dropped_unknown_id, 1);
}

#[test]
fn cm_t69_two_hosts_with_the_same_request_id() {
    let mut net = Net::roce(3);
    serve(&mut net, P, SidrHandling::Report { backlog: 4 });
    ask(&mut net);
    let asked = net.pass(Attribute::SIDR_REQ);
    net.deliver(&asked.as_from(&net, C));
    for host in [A, C] {
        let (handle, of) = request(&mut net);
        assert_eq!(of.from.grh.unwrap().dgid, net.hosts[host].address.gid);
        let now = net.now;
        net.ep(P).sidr_answer(now, handle, &answer()).unwrap();
        assert_eq!(net.take_only(Attribute::SIDR_REP).to, Some(host));
    }
    // By LID where there is no GID.
    let mut net = Net::infiniband();
    serve(&mut net, P, SidrHandling::Report { backlog: 4 });
    ask(&mut net);
    let mut asked = net.pass(Attribute::SIDR_REQ);
    assert_eq!(asked.source.grh, None);
    net.deliver(&asked);
    asked.source.slid = Lid(99);
    net.deliver(&asked);
    request(&mut net);
    request(&mut net);
    no_event(&mut net, P);
}

#[test]
fn cm_t70_an_unknown_service_and_a_silent_peer() {
    let mut net = Net::pair();
    let query = ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    let rep = net.pass(Attribute::SIDR_REP);
    assert_eq!(sidr_rep(&rep.message).status, SidrStatus::UNSUPPORTED_SERVICE);
    let SidrEvent::Refused { query: refused, rep, effort } = event(&mut net, A) else { panic!() };
    assert_eq!((refused, rep.status, effort.sent), (query, SidrStatus::UNSUPPORTED_SERVICE, 1));
    assert_idle(&mut net);

    let query = ask(&mut net);
    let period = time(20) + 2 * time(16);
    let sent = net.advance_lossy(16 * period - Duration::from_nanos(1));
    assert_eq!(sent.len(), 16);
    assert!(sent.iter().all(|flight| flight.bytes() == sent[0].bytes()), "the same bytes each time");
    no_event(&mut net, A);
    net.advance(Duration::from_nanos(1));
    let effort = Effort { sent: 16, waited: 16 * period, busy: false };
    assert_eq!(event(&mut net, A), SidrEvent::Timeout { query, effort });
    assert_idle(&mut net);
    assert_eq!((stats(&mut net, A).sidr_timeouts, stats(&mut net, A).resent), (1, 15));
}

#[test]
fn cm_t71_three_redirections_are_followed() {
    for mut net in [Net::roce(3), Net::new((0..3).map(|n| (Address::infiniband(n), Config::default())))] {
        let (to_c, to_p) = (redirect_to(&net, C), redirect_to(&net, P));
        let served = publish(&mut net, P, to_c);
        publish(&mut net, C, to_p);
        ask(&mut net);
        let mut seen = Vec::new();
        for to in [P, C, P, C] {
            let asked = net.pass(Attribute::SIDR_REQ);
            assert_eq!(asked.to, Some(to));
            let id = sidr_req(&asked.message).request_id;
            assert!(!seen.contains(&(id, asked.header.tid)), "a fresh ID each time");
            seen.push((id, asked.header.tid));
            net.pass(Attribute::SIDR_REP);
        }
        let SidrEvent::Refused { rep, effort, .. } = event(&mut net, A) else { panic!() };
        assert_eq!((rep.status, effort.sent), (SidrStatus::REDIRECT, 4));
        assert_idle(&mut net);
        assert_eq!(stats(&mut net, A).sidr_redirects, 3);

        // One that ends somewhere: the path is that to there.
        net.ep(P).sidr_unserve(served);
        publish(&mut net, P, answer());
        let query = query_from(&net, A, C);
        ask_with(&mut net, A, &query);
        net.run();
        let SidrEvent::Resolved { path, .. } = event(&mut net, A) else { panic!() };
        assert_eq!(path.record.dgid, net.hosts[P].address.gid);
        assert_eq!(path.record.dlid, net.hosts[P].address.lid);
    }
}

/// To another queue pair, with all that the redirection says.
#[test]
fn a_redirection_names_the_queue_pair_of_the_cm() {
    let mut net = Net::roce(3);
    let redirect = Redirect {
        gid: net.hosts[C].address.gid,
        traffic_class: 7,
        flow_label: ibwire::FlowLabel::truncate(0x12345),
        qpn: Qpn::truncate(0x77),
        qkey: QKey(0x99),
        ..Redirect::default()
    };
    publish(&mut net, P, SidrAnswer::redirect(ClassPortInfo { redirect, ..ClassPortInfo::default() }));
    ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    net.pass(Attribute::SIDR_REP);
    let asked = net.take_only(Attribute::SIDR_REQ);
    assert_eq!((asked.sent.to.qpn, asked.sent.to.qkey), (redirect.qpn, redirect.qkey));
    let grh = asked.sent.to.av.grh.unwrap();
    assert_eq!((grh.dgid, grh.traffic_class, grh.flow_label), (redirect.gid, 7, redirect.flow_label));
}

#[test]
fn a_redirection_to_nowhere_is_a_refusal() {
    let at_c = |net: &Net| Redirect { gid: net.hosts[C].address.gid, ..Redirect::default() };
    type Change = fn(&mut Redirect);
    let changes: [(bool, Change); 6] = [
        (true, |redirect| redirect.gid = Gid::UNSPECIFIED),
        (true, |redirect| redirect.gid = Gid::from_ip("fd00::1".parse().unwrap())),
        (true, |redirect| redirect.gid = Gid::from_ip("239.0.0.1".parse().unwrap())),
        (true, |redirect| redirect.pkey = ibwire::PKey(0x8123)),
        (false, |redirect| redirect.gid = Gid([7; 16])),
        (false, |redirect| redirect.lid = Lid(0xc001)),
    ];
    for (number, (is_roce, change)) in changes.into_iter().enumerate() {
        let address = if is_roce { Address::roce } else { Address::infiniband };
        let mut net = Net::new((0..3).map(|n| (address(n), Config::default())));
        let mut redirect = at_c(&net);
        change(&mut redirect);
        publish(&mut net, P, SidrAnswer::redirect(ClassPortInfo { redirect, ..ClassPortInfo::default() }));
        ask(&mut net);
        net.run();
        let rep = refused(&mut net);
        assert_eq!(rep.status, SidrStatus::REDIRECT, "case {number}");
        assert!(matches!(SidrInfo::decode(rep.status, &rep.info), SidrInfo::Redirect(_)));
        assert_idle(&mut net);
    }
}

#[test]
fn cm_t72_a_reply_after_the_end_is_ignored() {
    let mut net = Net::pair();
    publish(&mut net, P, answer());
    let query = ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    let late = net.take_only(Attribute::SIDR_REP);
    net.ep(A).sidr_cancel(query);
    net.ep(A).sidr_cancel(query);
    assert_idle(&mut net);
    net.deliver(&late);
    assert_idle(&mut net);

    ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    let late = net.take_only(Attribute::SIDR_REP);
    net.advance_lossy(Duration::from_secs(100));
    let SidrEvent::Timeout { .. } = event(&mut net, A) else { panic!() };
    net.deliver(&late);
    assert_idle(&mut net);
    assert_eq!(stats(&mut net, A).dropped_unknown_id, 2);
}

/// One that is cancelled before its message has left sends none.
#[test]
fn a_cancelled_query_sends_nothing() {
    let mut net = Net::pair();
    let query = query_from(&net, A, P);
    let now = net.now;
    let handle = net.ep(A).sidr_query(now, &query).unwrap();
    net.ep(A).sidr_cancel(handle);
    assert_idle(&mut net);
}

#[test]
fn a_deadline_bounds_a_query_whatever_happens() {
    let mut net = Net::pair();
    let deadline = net.now + Duration::from_secs(7);
    let query = SidrQuery { deadline: Some(deadline), ..query_from(&net, A, P) };
    ask_with(&mut net, A, &query);
    assert_eq!(net.advance_lossy(Duration::from_secs(7)).len(), 2);
    let SidrEvent::Timeout { effort, .. } = event(&mut net, A) else { panic!() };
    assert_eq!((effort.sent, effort.waited), (2, Duration::from_secs(7)));

    // Also while nothing can be sent.
    let deadline = net.now + Duration::from_secs(7);
    let query = SidrQuery { deadline: Some(deadline), ..query_from(&net, A, P) };
    let now = net.now;
    net.ep(A).sidr_query(now, &query).unwrap();
    assert_eq!(net.ep(A).poll_timeout(), Some(deadline));
    net.ep(A).handle_timeout(deadline);
    let SidrEvent::Timeout { effort, .. } = event(&mut net, A) else { panic!() };
    assert_eq!(effort, Effort::default());
    assert_idle(&mut net);
}

#[test]
fn a_redirection_does_not_prolong_the_deadline() {
    let mut net = Net::roce(3);
    let to_c = redirect_to(&net, C);
    publish(&mut net, P, to_c);
    let query = SidrQuery { deadline: Some(net.now + Duration::from_secs(3)), ..query_from(&net, A, P) };
    ask_with(&mut net, A, &query);
    net.pass(Attribute::SIDR_REQ);
    net.now += Duration::from_secs(2);
    net.pass(Attribute::SIDR_REP);
    net.lose(Attribute::SIDR_REQ);
    net.advance_lossy(Duration::from_secs(1));
    let SidrEvent::Timeout { effort, .. } = event(&mut net, A) else { panic!() };
    assert_eq!((effort.sent, effort.waited), (2, Duration::from_secs(3)));
}
