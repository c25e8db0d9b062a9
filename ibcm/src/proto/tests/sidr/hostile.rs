//! Forged, flooding and impossible input, and ends.

use super::*;

#[test]
fn another_class_version_is_status_5() {
    let mut net = Net::pair();
    publish(&mut net, P, answer());
    ask(&mut net);
    let asked = net.take_only(Attribute::SIDR_REQ);
    net.deliver(&asked.patched(|mad| mad[2] = 1));
    net.pass(Attribute::SIDR_REP);
    let rep = refused(&mut net);
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED_VERSION);
    assert_eq!(SidrInfo::decode(rep.status, &rep.info), SidrInfo::ClassVersion(2));
}

/// A reply is believed only from where the question went, for the service that was asked for, with a queue pair.
#[test]
fn forged_replies_are_ignored() {
    for mut net in [Net::roce(3), Net::new((0..3).map(|n| (Address::infiniband(n), Config::default())))] {
        publish(&mut net, P, answer());
        let query = query_from(&net, A, P);
        let now = net.now;
        let handle = net.ep(A).sidr_query(now, &query).unwrap();
        net.pass(Attribute::SIDR_REQ);
        let good = net.take_only(Attribute::SIDR_REP);
        let rep = sidr_rep(&good.message).clone();
        let forged = [
            good.as_from(&net, C),
            good.with(SidrRep { request_id: CommId(rep.request_id.0 ^ 1), ..rep.clone() }),
            good.with(SidrRep { service_id: ServiceId(7), ..rep.clone() }),
            good.with(SidrRep { qpn: Qpn::truncate(0), ..rep.clone() }),
            good.with(SidrRep { qpn: Qpn::MULTICAST, ..rep.clone() }),
        ];
        for flight in &forged {
            net.deliver(flight);
        }
        no_event(&mut net, A);
        let stats = stats(&mut net, A);
        assert_eq!((stats.foreign_source, stats.dropped_unknown_id, stats.dropped_malformed), (1, 3, 2));
        net.deliver(&good);
        let SidrEvent::Resolved { query, .. } = event(&mut net, A) else { panic!() };
        assert_eq!(query, handle);
    }
}

/// An ID that is guessed before the message has left ends nothing.
#[test]
fn a_reply_before_the_question_is_ignored() {
    let mut net = Net::pair();
    publish(&mut net, P, answer());
    let first = ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    let rep = net.take_only(Attribute::SIDR_REP);
    net.ep(A).sidr_cancel(first);
    // The same engine anew draws the same ID.
    net.reseed(A, 1);
    let query = query_from(&net, A, P);
    let now = net.now;
    net.ep(A).sidr_query(now, &query).unwrap();
    net.ep(A).handle_mad(now, &rep.source, rep.bytes());
    assert_eq!(net.ep(A).poll_sidr_event(), None);
    assert_eq!(net.ep(A).stats().dropped_unknown_id, 1);
    net.run();
    let SidrEvent::Resolved { .. } = event(&mut net, A) else { panic!() };
}

/// However many ask, and under whatever names, what is held is bounded.
#[test]
fn floods_of_requests_are_bounded() {
    let config = Config { max_sidr_answers: 16, max_queued_answers: 32, ..Config::default() };
    let mut net = Net::new([(Address::roce(0), Config::default()), (Address::roce(1), config)]);
    let service = serve(&mut net, P, SidrHandling::Report { backlog: 8 });
    let mut published = SidrServe::answering(ServiceId(2), answer());
    published.by_ip = false;
    net.ep(P).sidr_serve(published).unwrap();
    ask(&mut net);
    let asked = net.take_only(Attribute::SIDR_REQ);
    let template = sidr_req(&asked.message).clone();
    let now = net.now;
    for n in 0..100_000u32 {
        let service_id = [SERVICE, ServiceId(2), ServiceId(3)][n as usize % 3];
        let flight = asked.with(SidrReq { request_id: CommId(n), service_id, ..template.clone() });
        let mut source = flight.source;
        source.grh.as_mut().unwrap().dgid.0[15] = (n >> 8) as u8;
        net.ep(P).handle_mad(now, &source, flight.bytes());
        // Some are answered.
        if n % 7 == 0
            && let Some(SidrEvent::Request { handle, .. }) = net.ep(P).poll_sidr_event()
        {
            net.ep(P).sidr_answer(now, handle, &answer()).unwrap();
        }
        let [pending, answers, places] = net.ep(P).sidr_held();
        assert!(pending <= 8 && answers <= 16 && places <= pending + answers);
    }
    assert_eq!(net.ep(P).sidr_pending_requests(service), Some(8));
    let mut queued = 0;
    while net.ep(P).poll_transmit(now, 1).is_some() {
        queued += 1;
    }
    assert!(queued <= 2 * 32, "{queued}");
    assert!(stats(&mut net, P).dropped_answer_queue > 0);
}

/// As many repetitions as can be, each after the longest wait.
#[test]
fn the_most_patient_query() {
    let mut net = Net::pair();
    let query = SidrQuery {
        response_timeout: time(31),
        jitter: time(31),
        max_retries: 254,
        ..query_from(&net, A, P)
    };
    ask_with(&mut net, A, &query);
    let longest = 2 * (time(31) + time(16));
    assert_eq!(net.advance_lossy(255 * longest).len(), 255);
    let SidrEvent::Timeout { effort, .. } = event(&mut net, A) else { panic!() };
    assert_eq!(effort.sent, 255);
    assert_idle(&mut net);
}

/// An answer that is remembered for ever makes room like any other.
#[test]
fn an_answer_without_an_end() {
    let config = Config { max_sidr_answers: 1, sidr_answer_linger: Duration::MAX, ..Config::default() };
    let mut net = Net::new([(Address::roce(0), Config::default()), (Address::roce(1), config)]);
    serve(&mut net, P, SidrHandling::Report { backlog: 4 });
    let mut asked = Vec::new();
    for _ in 0..2 {
        ask(&mut net);
        asked.push(net.pass(Attribute::SIDR_REQ));
        let (handle, _) = request(&mut net);
        let now = net.now;
        net.ep(P).sidr_answer(now, handle, &answer()).unwrap();
        net.pass(Attribute::SIDR_REP);
    }
    net.now += Duration::from_secs(1_000_000);
    net.deliver(&asked[1]);
    no_event(&mut net, P);
    net.take_only(Attribute::SIDR_REP);
    net.deliver(&asked[0]);
    request(&mut net);
}

#[test]
fn all_that_is_undecided_is_refused_at_once() {
    let mut net = Net::pair();
    let service = serve(&mut net, P, SidrHandling::Report { backlog: 8 });
    for _ in 0..3 {
        ask(&mut net);
    }
    net.run();
    net.ep(P).sidr_unserve(service);
    let (handle, _) = request(&mut net);
    assert_eq!(net.ep(P).sidr_requests(), 3);
    let now = net.now;
    net.ep(P).sidr_refuse_all(now);
    assert_eq!(net.ep(P).sidr_requests(), 0);
    assert_eq!(net.ep(P).sidr_answer(now, handle, &answer()), Err(CommandError::Gone));
    net.run();
    for _ in 0..3 {
        assert_eq!(refused(&mut net).status, SidrStatus::REJECTED);
    }
}

#[test]
fn the_device_is_removed() {
    let mut net = Net::pair();
    serve(&mut net, P, SidrHandling::Report { backlog: 8 });
    let query = ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    let (handle, _) = request(&mut net);
    net.ep(A).device_removed();
    assert_eq!(event(&mut net, A), SidrEvent::DeviceRemoved { query });
    assert_idle(&mut net);
    let now = net.now;
    let again = query_from(&net, A, P);
    assert_eq!(net.ep(A).sidr_query(now, &again), Err(ConnectError::DeviceRemoved));
    net.ep(P).device_removed();
    assert_eq!(net.ep(P).sidr_answer(now, handle, &answer()), Err(CommandError::Gone));
    assert_eq!(net.ep(P).sidr_serve(SidrServe::reporting(ServiceId(9))), Err(ListenError::DeviceRemoved));
    assert_eq!(net.ep(P).sidr_held(), [0; 3]);
}

#[test]
fn what_cannot_be_is_refused_where_it_is_given() {
    let mut net = Net::pair();
    let now = net.now;
    let text = |query: &SidrQuery, net: &mut Net| net.ep(A).sidr_query(now, query).unwrap_err().to_string();
    let mut query = query_from(&net, A, P);
    query.path.record.sgid = Gid([9; 16]);
    assert!(text(&query, &mut net).contains("SGID"));
    let mut query = query_from(&net, A, P);
    query.path.record.pkey = ibwire::PKey(0x8123);
    assert!(text(&query, &mut net).contains("P_Key"));
    query.path.port = 9;
    assert!(text(&query, &mut net).contains("port"));
    let mut query = query_from(&net, A, P);
    query.response_timeout = Duration::MAX;
    assert!(text(&query, &mut net).starts_with("response timeout is"));
    (query.response_timeout, query.jitter) = (time(31), Duration::from_secs(9000));
    assert_eq!(text(&query, &mut net), "jitter is 9000s, at most 8796.093022208s is allowed");
    (query.jitter, query.max_retries) = (time(31), 255);
    assert_eq!(text(&query, &mut net), "retries is 255, at most 254 is allowed");
    let query = query_from(&net, A, P);
    let mut port = net.hosts[A].address.port();
    port.active = false;
    net.ep(A).update_port(port);
    assert_eq!(text(&query, &mut net), "port 1 is down");

    for qpn in [0, 1, 0xff_ffff] {
        let serve = SidrServe::answering(SERVICE, SidrAnswer::resolved(Qpn::truncate(qpn), QKEY));
        assert!(matches!(net.ep(P).sidr_serve(serve), Err(ListenError::Invalid(_))));
    }
    let mut nowhere = SidrServe::reporting(SERVICE);
    nowhere.port = Some(2);
    match net.ep(P).sidr_serve(nowhere) {
        Err(ListenError::Invalid(no)) => {
            assert_eq!(no.to_string(), "port is 2, it must be a port of the device");
        }
        other => panic!("{other:?}"),
    }
    let mut nothing = SidrServe::reporting(SERVICE);
    nothing.handling = SidrHandling::Report { backlog: 0 };
    assert!(matches!(net.ep(P).sidr_serve(nothing), Err(ListenError::Invalid(_))));
}

/// The reply leaves by the GID that the request came to, wherever that is in the table by then.
#[test]
fn a_reply_finds_its_way_when_the_table_has_changed() {
    let mut net = Net::pair();
    serve(&mut net, P, SidrHandling::Report { backlog: 8 });
    ask(&mut net);
    net.pass(Attribute::SIDR_REQ);
    let (handle, _) = request(&mut net);
    let mut port = net.hosts[P].address.port();
    port.gids.iter_mut().for_each(|entry| entry.index += 20);
    net.ep(P).update_port(port);
    let now = net.now;
    net.ep(P).sidr_answer(now, handle, &answer()).unwrap();
    let mad = net.ep(P).poll_transmit(now, 1).unwrap();
    assert_eq!(mad.to.av.grh.unwrap().sgid_index, Address::GID_INDEX + 20);
}
