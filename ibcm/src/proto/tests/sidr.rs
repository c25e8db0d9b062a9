//! Service ID resolution (spec/cm.md 4.13).

use std::time::Duration;

use ibwire::mad::{ClassPortInfo, Redirect};
use ibwire::{CommId, Gid, Lid, PrivateData, QKey, Qpn, ServiceId};

use super::pair::*;
use crate::proto::message::{Attribute, IpHeader, Message, SidrInfo, SidrRep, SidrReq, SidrStatus};
use crate::proto::{
    CommandError, Config, ConnectError, Effort, ListenError, SidrAnswer, SidrEvent, SidrHandling, SidrQuery,
    SidrQueryHandle, SidrRequest, SidrRequestHandle, SidrServe, SidrServiceId, Stats,
};

const QPN: Qpn = Qpn::truncate(0x123);
const QKEY: QKey = QKey(0x0123_4567);

fn answer() -> SidrAnswer {
    SidrAnswer { private_data: PrivateData::from(b"v1"), ..SidrAnswer::resolved(QPN, QKEY) }
}

fn query_from(net: &Net, from: usize, to: usize) -> SidrQuery {
    let path = net.hosts[from].address.path_to(&net.hosts[to].address);
    SidrQuery { private_data: PrivateData::from(b"who?"), ..SidrQuery::new(path, SERVICE) }
}

/// A asks P; the SIDR_REQ is on the wire.
fn ask(net: &mut Net) -> SidrQueryHandle {
    let query = query_from(net, A, P);
    ask_with(net, A, &query)
}

fn ask_with(net: &mut Net, host: usize, query: &SidrQuery) -> SidrQueryHandle {
    let now = net.now;
    net.ep(host).sidr_query(now, query).unwrap()
}

fn serve(net: &mut Net, host: usize, handling: SidrHandling) -> SidrServiceId {
    let serve = SidrServe { handling, ..SidrServe::reporting(SERVICE) };
    net.ep(host).sidr_serve(serve).unwrap()
}

fn publish(net: &mut Net, host: usize, answer: SidrAnswer) -> SidrServiceId {
    serve(net, host, SidrHandling::Answer(Box::new(answer)))
}

fn redirect_to(net: &Net, host: usize) -> SidrAnswer {
    let address = &net.hosts[host].address;
    SidrAnswer::redirect(ClassPortInfo {
        redirect: Redirect { gid: address.gid, lid: address.lid, ..Redirect::default() },
        ..ClassPortInfo::default()
    })
}

#[track_caller]
fn event(net: &mut Net, host: usize) -> SidrEvent {
    net.collect();
    net.ep(host).poll_sidr_event().expect("no event")
}

#[track_caller]
fn no_event(net: &mut Net, host: usize) {
    net.collect();
    assert_eq!(net.ep(host).poll_sidr_event(), None);
}

#[track_caller]
fn request(net: &mut Net) -> (SidrRequestHandle, Box<SidrRequest>) {
    match event(net, P) {
        SidrEvent::Request { handle, request, .. } => (handle, request),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(net: &mut Net) -> Box<SidrRep> {
    match event(net, A) {
        SidrEvent::Refused { rep, .. } => rep,
        other => panic!("{other:?}"),
    }
}

fn stats(net: &mut Net, host: usize) -> Stats {
    net.ep(host).stats()
}

fn sidr_req(message: &Message) -> &SidrReq {
    let Message::SidrReq(req) = message else { panic!("{message:?}") };
    req
}

fn sidr_rep(message: &Message) -> &SidrRep {
    let Message::SidrRep(rep) = message else { panic!("{message:?}") };
    rep
}

/// Nothing of SIDR is left at A.
#[track_caller]
fn assert_idle(net: &mut Net) {
    no_event(net, A);
    net.assert_silent();
    assert_eq!(net.ep(A).sidr_queries(), 0);
    assert_eq!(net.ep(A).poll_timeout(), None);
}

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
