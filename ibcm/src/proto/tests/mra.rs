//! MRA received: who asks for patience gets it, within bounds (spec/cm.md 3.3).

use std::time::Duration;

use ibwire::{CommId, PrivateData, RejReason, TimeCode};

use super::pair::*;
use crate::proto::message::{Attribute as Id, MessageId, Mra};
use crate::proto::{Config, Event, Listen, Overflow, State};

const NANO: Duration = Duration::from_nanos(1);

/// An MRA that answers `flight`.
fn mra_to(
    net: &Net,
    flight: &Flight,
    local: CommId,
    remote: CommId,
    message: MessageId,
    service: u8,
) -> Flight {
    let mra = Mra {
        local_comm_id: local,
        remote_comm_id: remote,
        message,
        service_timeout: TimeCode::new(service).unwrap(),
        private_data: PrivateData::from(b"busy"),
    };
    let (from, to) = (flight.to.unwrap(), flight.from);
    let mut answer = flight.with(mra).as_from(net, from);
    answer.to = Some(to);
    answer
}

#[test]
fn of_the_request() {
    let mut net = Net::pair();
    let Handshake { a, req, .. } = net.requested();
    let id = req.req().local_comm_id;
    let mra = mra_to(&net, &req, CommId(0x77), id, MessageId::REQ, 20);
    net.deliver(&mra);
    net.assert_state(A, a, State::ReqMraRcvd);
    let Event::Busy { conn, mra: told, until } = net.event(A) else { panic!() };
    assert_eq!((conn, told.private_data.trimmed()), (a, &b"busy"[..]));
    assert_eq!(until, net.now + time(20) + time(16));
    // The ID in it is not the peer's yet: REP and REJ are authoritative.
    assert_eq!(net.ep(A).info(a).unwrap().remote_comm_id, CommId::NONE);

    // A second one starts the period anew, and is not told again.
    net.advance(Duration::from_secs(3));
    net.wire.clear(); // P's own
    net.deliver(&mra);
    net.no_event(A);
    let period = time(20) + time(16);
    net.advance(period - NANO);
    net.assert_silent();
    net.assert_state(A, a, State::ReqMraRcvd);
    net.advance(NANO);
    let again = net.take_only(Id::REQ);
    assert_eq!(again.bytes(), req.bytes());
    net.assert_state(A, a, State::ReqSent);

    // One period only: then the REQ's own timeout holds again.
    net.advance(req_timer() - NANO);
    net.assert_silent();
    net.advance(NANO);
    net.take_only(Id::REQ);
}

#[test]
fn of_the_reply() {
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.accepted();
    let rep = net.lose(Id::REP);
    let ids = rep.rep();
    let mra = mra_to(&net, &rep, ids.remote_comm_id, ids.local_comm_id, MessageId::REP, 21);
    net.deliver(&mra);
    net.assert_state(P, p, State::RepMraRcvd);
    let Event::Busy { conn, .. } = net.event(P) else { panic!() };
    assert_eq!(conn, p);
    // The passive side knows the lifetime only from the ack timeout that the REQ brought, code 17.
    net.hosts[A].ep.abort(net.now, a);
    let period = time(21) + time(16);
    net.collect();
    net.wire.clear();
    net.advance(period - NANO);
    net.assert_silent();
    net.advance(NANO);
    assert_eq!(net.take_only(Id::REP).bytes(), rep.bytes());
    net.assert_state(P, p, State::RepSent);
    net.advance(rep_timer());
    net.take_only(Id::REP);
}

/// Patience pays: what was asked for comes in the end, and no timer of the wait is left.
#[test]
fn both_ways_then_established() {
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.requested();
    net.advance(answer_time() / 2);
    let mra = net.pass(Id::MRA);
    assert_eq!((mra.mra().message, mra.mra().service_timeout), (MessageId::REQ, TimeCode::truncate(20)));
    net.assert_state(P, p, State::ReqMraSent);
    net.assert_state(A, a, State::ReqMraRcvd);
    net.accept(P, p);
    net.pass(Id::REP);
    net.assert_state(A, a, State::RepRcvd);
    net.advance(answer_time() / 2);
    let mra = net.pass(Id::MRA);
    assert_eq!((mra.mra().message, mra.mra().local_comm_id), (MessageId::REP, net.local_id(A, a)));
    net.assert_state(A, a, State::RepMraSent);
    net.assert_state(P, p, State::RepMraRcvd);
    net.ready(A, a, b"");
    net.pass(Id::RTU);
    net.assert_state(P, p, State::Established);
    assert_eq!(net.next_timeout(), None);
    let [Event::Busy { .. }, Event::Reply { .. }] = net.events(A)[..] else { panic!() };
    let [Event::Busy { .. }, Event::Established { .. }] = net.events(P)[..] else { panic!() };
}

#[test]
fn cm_t41_for_a_message_that_is_not_out() {
    let mut net = Net::pair();
    let Handshake { a, p, req } = net.requested();
    let id = req.req().local_comm_id;
    let timer = net.ep(A).poll_timeout();
    for message in [MessageId::REP, MessageId::LAP, MessageId::RESERVED] {
        let mra = mra_to(&net, &req, net.local_id(P, p), id, message, 25);
        net.deliver(&mra);
    }
    net.assert_state(A, a, State::ReqSent);
    assert_eq!(net.ep(A).poll_timeout(), timer);
    net.no_event(A);

    net.accept(P, p);
    let rep = net.take_only(Id::REP);
    let ids = rep.rep();
    let timer = net.ep(P).poll_timeout();
    for message in [MessageId::REQ, MessageId::LAP, MessageId::RESERVED] {
        let mra = mra_to(&net, &rep, ids.remote_comm_id, ids.local_comm_id, message, 25);
        net.deliver(&mra);
    }
    // Right message, wrong ID.
    let mra = mra_to(&net, &rep, CommId(1), ids.local_comm_id, MessageId::REP, 25);
    net.deliver(&mra);
    net.assert_state(P, p, State::RepSent);
    assert_eq!(net.ep(P).poll_timeout(), timer);
    net.no_event(P);

    // In RepRcvd the REQ is answered.
    net.deliver(&rep);
    net.reply(A, a);
    let timer = net.ep(A).poll_timeout();
    let mra = mra_to(&net, &req, ids.local_comm_id, id, MessageId::REQ, 25);
    net.deliver(&mra);
    net.assert_state(A, a, State::RepRcvd);
    assert_eq!(net.ep(A).poll_timeout(), timer);
    net.no_event(A);
    net.assert_silent();
}

#[test]
fn cm_t42_hours_of_patience_are_capped() {
    for service in [24, 31] {
        let mut net = Net::pair();
        let Handshake { a, req, .. } = net.requested();
        let start = net.now;
        let mra = mra_to(&net, &req, CommId(7), req.req().local_comm_id, MessageId::REQ, service);
        net.deliver(&mra);
        let Event::Busy { .. } = net.event(A) else { panic!() };
        // From here the peer is dead.
        net.restart(P);
        let cap = Config::default().max_mra_wait;
        net.advance(cap - NANO);
        net.assert_silent();
        net.advance(NANO);
        assert_eq!(net.wire.len(), 1);
        let sent = net.advance_lossy(15 * req_timer() - NANO);
        assert_eq!(sent.iter().filter(|flight| flight.message.attribute() == Id::REQ).count(), 15);
        net.assert_state(A, a, State::ReqSent);
        net.advance(NANO);
        let Event::Timeout { effort, .. } = net.event(A) else { panic!() };
        assert_eq!((effort.sent, effort.busy), (16, true));
        assert_eq!(effort.waited, cap + 15 * req_timer());
        assert_eq!(net.now - start, effort.waited);
    }
}

#[test]
fn cm_t43_endless_patience_ends_at_the_deadline() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    let deadline = net.now + Duration::from_secs(40);
    connect.deadline = Some(deadline);
    let a = net.connect_with(A, connect);
    let req = net.pass(Id::REQ);
    let mra = mra_to(&net, &req, CommId(7), req.req().local_comm_id, MessageId::REQ, 23);
    for _ in 0..39 {
        net.deliver(&mra);
        net.advance_lossy(Duration::from_secs(1));
        net.assert_state(A, a, State::ReqMraRcvd);
    }
    net.deliver(&mra);
    net.advance(Duration::from_secs(1));
    let events = net.events(A);
    let [Event::Busy { .. }, Event::Timeout { effort, .. }, Event::Released { .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((effort.sent, effort.waited, effort.busy), (1, Duration::from_secs(40), true));
    assert_eq!(net.ep(A).connections(), 0);
}

/// The same for a reply: a peer that answers every REP with an MRA.
#[test]
fn cm_t43_passive_side() {
    let mut net = Net::pair();
    let Handshake { p, .. } = net.requested();
    let mut accept = crate::proto::Accept::new(net.hosts[P].qpn());
    accept.deadline = Some(net.now + Duration::from_secs(40));
    net.accept_with(P, p, accept);
    let rep = net.lose(Id::REP);
    let ids = rep.rep();
    let mra = mra_to(&net, &rep, ids.remote_comm_id, ids.local_comm_id, MessageId::REP, 23);
    for _ in 0..40 {
        net.deliver(&mra);
        net.assert_state(P, p, State::RepMraRcvd);
        net.advance_lossy(Duration::from_secs(1));
    }
    net.assert_state(P, p, State::TimeWait);
    let events = net.events(P);
    let [Event::Busy { .. }, Event::Timeout { effort, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((effort.sent, effort.busy), (1, true));
}

#[test]
fn cm_t45_full_backlog() {
    let mut net = Net::roce(3);
    let listener = net.hosts[P].listener.take().unwrap();
    net.ep(P).unlisten(listener);
    let mut listen = Listen::new(SERVICE);
    listen.backlog = 1;
    net.listen(P, listen);

    let Handshake { p: first, .. } = net.requested();
    let connect = net.connect_to(C, P);
    net.connect_with(C, connect);
    net.pass(Id::REQ);
    net.assert_silent();
    net.no_event(P);
    assert_eq!(net.ep(P).connections(), 1);
    assert_eq!(net.ep(P).stats().dropped_backlog, 1);

    // No MRA either: none but the first request's.
    net.advance(answer_time());
    assert_eq!(net.take_only(Id::MRA).to, Some(A));
    net.reject(P, first, RejReason::CONSUMER);
    net.lose(Id::REJ);
    net.advance(req_timer() - answer_time());
    let mut repeated: Vec<_> = net.wire.drain(..).collect();
    repeated.retain(|flight| flight.from == C);
    let [req] = &repeated[..] else { panic!("{repeated:?}") };
    net.deliver(req);
    let Event::Released { .. } = net.event(P) else { panic!() };
    let (second, request) = net.request(P);
    assert_eq!(request.req.local_ca_guid, net.hosts[C].address.guid);
    net.accept(P, second);
    net.take(Id::REP);
}

#[test]
fn cm_t45_a_full_backlog_that_rejects() {
    let mut net = Net::roce(3);
    let listener = net.hosts[P].listener.take().unwrap();
    net.ep(P).unlisten(listener);
    let mut listen = Listen::new(SERVICE);
    (listen.backlog, listen.overflow) = (1, Overflow::Reject(RejReason::NO_RESOURCES));
    net.listen(P, listen);
    let listener = net.hosts[P].listener.unwrap();

    net.requested();
    let connect = net.connect_to(C, P);
    net.connect_with(C, connect);
    net.pass(Id::REQ);
    net.no_event(P);
    net.pass(Id::REJ);
    let Event::Rejected { rejection, effort, .. } = net.event(C) else { panic!() };
    assert_eq!((rejection.reason, rejection.message), (RejReason::NO_RESOURCES, MessageId::REQ));
    assert_eq!(effort.unwrap().sent, 1);
    assert_eq!(net.ep(P).connections(), 1);
    assert_eq!(net.ep(P).overflowed_requests(listener), Some(1));
    let stats = net.ep(P).stats();
    assert_eq!((stats.refused_requests, stats.dropped_backlog), (1, 0));
}
