//! Loss, duplication and reordering in the handshake (spec/cm.md 8.1).

use ibwire::{CommId, PrivateData, RejReason, TimeCode};

use super::pair::*;
use crate::proto::message::{Attribute as Id, MessageId};
use crate::proto::{Event, State};

#[test]
fn cm_t01_lost_rtu() {
    let mut net = Net::pair();
    let (Handshake { a, p, .. }, rep) = net.replied();
    net.ready(A, a, b"rtu data");
    let rtu = net.lose(Id::RTU);

    net.advance(rep_timer());
    let again = net.take_only(Id::REP);
    assert_eq!(again.bytes(), rep.bytes());
    net.deliver(&again);
    let rtu_again = net.take_only(Id::RTU);
    assert_eq!(rtu_again.bytes(), rtu.bytes());
    net.deliver(&rtu_again);
    net.deliver(&rtu_again);

    let rtu_data = Some(PrivateData::from(b"rtu data"));
    assert_eq!(net.events(P), [Event::Established { conn: p, rtu_data }]);
    net.no_event(A);
    net.assert_state(A, a, State::Established);
    net.advance(100 * rep_timer());
    net.assert_silent();
}

#[test]
fn cm_t02_other_private_data_does_not_get_into_a_repeated_rtu() {
    let mut net = Net::pair();
    let (Handshake { a, .. }, rep) = net.replied();
    net.advance(rep_timer());
    net.lose(Id::MRA); // A's own, it had private data of its own
    net.lose(Id::REP);
    net.ready(A, a, b"rtu data");
    let rtu = net.lose(Id::RTU);
    net.ep(A).set_disconnect_data(a, PrivateData::from(b"drep data")).unwrap();
    for _ in 0..2 {
        net.deliver(&rep);
        assert_eq!(net.take_only(Id::RTU).bytes(), rtu.bytes());
    }
    assert_eq!(rtu.rtu().private_data.trimmed(), b"rtu data");
    net.no_event(A);
}

#[test]
fn cm_t03_data_before_the_rtu() {
    let mut net = Net::pair();
    let (Handshake { p, .. }, _) = net.readied();
    let rtu = net.take_only(Id::RTU); // late
    let qpn = net.ep(P).info(p).unwrap().local_qpn;
    let now = net.now;
    net.ep(P).comm_established(now, qpn);
    assert_eq!(net.events(P), [Event::Established { conn: p, rtu_data: None }]);
    net.advance(20 * rep_timer());
    net.assert_silent();
    net.deliver(&rtu);
    net.assert_silent();
    net.no_event(P);
    net.assert_state(P, p, State::Established);
    assert_eq!(net.ep(P).stats().established, 1);
}

#[test]
fn cm_t04_data_and_rtu_in_either_order_establish_once() {
    for rtu_first in [false, true] {
        let mut net = Net::pair();
        let (Handshake { p, .. }, _) = net.readied();
        let rtu = net.take_only(Id::RTU);
        let qpn = net.ep(P).info(p).unwrap().local_qpn;
        // Without a poll in between.
        let (now, ep) = (net.now, &mut net.hosts[P].ep);
        if rtu_first {
            ep.handle_mad(now, &rtu.source, rtu.bytes());
        }
        ep.comm_established(now, qpn);
        if !rtu_first {
            ep.handle_mad(now, &rtu.source, rtu.bytes());
        }
        let [Event::Established { conn, rtu_data }] = &net.events(P)[..] else {
            panic!("not one Established")
        };
        assert_eq!((*conn, rtu_data.is_some()), (p, rtu_first));
        net.assert_silent();
    }
}

#[test]
fn cm_t05_data_after_the_end_does_not_resurrect() {
    let mut net = Net::pair();
    let Disconnected { a, p, .. } = net.disconnected();
    for (host, conn) in [(A, a), (P, p)] {
        let qpn = net.ep(host).info(conn).unwrap().local_qpn;
        let now = net.now;
        net.ep(host).comm_established(now, qpn);
        net.assert_state(host, conn, State::TimeWait);
        net.no_event(host);
    }
    // In DreqSent neither.
    let Established { p, .. } = net.established();
    let qpn = net.ep(P).info(p).unwrap().local_qpn;
    net.disconnect(P, p);
    let now = net.now;
    net.ep(P).comm_established(now, qpn);
    net.assert_state(P, p, State::DreqSent);
    net.settle();
    let released_qpn = qpn;
    let now = net.now;
    net.ep(P).comm_established(now, released_qpn);
    net.events(P);
    assert_eq!(net.ep(P).connections(), 0);
}

#[test]
fn cm_t06_request_repeated_before_the_decision() {
    let mut net = Net::pair();
    let Handshake { p, req, .. } = net.requested();
    net.deliver(&req);
    net.assert_silent();
    net.no_event(P);
    net.assert_state(P, p, State::ReqRcvd);

    // By half of the time that the REQ allows, the peer is told to be patient.
    net.advance(answer_time() / 2);
    let mra = net.take_only(Id::MRA);
    assert_eq!(mra.header.tid, req.header.tid);
    net.assert_state(P, p, State::ReqMraSent);
    for _ in 0..3 {
        net.deliver(&req);
        let again = net.take_only(Id::MRA);
        assert_eq!(again.bytes(), mra.bytes());
    }
    net.no_event(P);
    assert_eq!(net.ep(P).connections(), 1);
    assert_eq!(net.ep(P).stats().requests, 1);
}

#[test]
fn cm_t07_request_repeated_after_a_lost_reply() {
    let mut net = Net::pair();
    let Handshake { a, p, req } = net.accepted();
    let rep = net.lose(Id::REP);
    let timer = net.ep(P).poll_timeout();

    net.deliver(&req);
    let again = net.take_only(Id::REP);
    assert_eq!(again.bytes(), rep.bytes());
    assert_eq!(net.ep(P).poll_timeout(), timer, "a repeated REQ does not move the REP timer");
    net.deliver(&again);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.run();
    net.assert_state(P, p, State::Established);
    let [Event::Established { .. }] = net.events(P)[..] else { panic!("not one Established") };
    net.no_event(A);
    assert_eq!(net.ep(P).stats().requests, 1);
}

#[test]
fn cm_t08_late_request_in_time_wait() {
    let mut net = Net::pair();
    let Disconnected { a, p, req, .. } = net.disconnected();
    net.deliver(&req);
    let rej = net.take_only(Id::REJ);
    assert_eq!((rej.rej().reason, rej.rej().message), (RejReason::STALE_CONNECTION, MessageId::REQ));
    let ids = (rej.rej().local_comm_id, rej.rej().remote_comm_id);
    assert_eq!(ids, (CommId::NONE, req.req().local_comm_id));
    assert_eq!(rej.header.tid, req.header.tid);
    net.no_event(P);
    assert_eq!(net.ep(P).stats().refused_requests, 1);
    assert_eq!(net.ep(P).connections(), 1);
    net.assert_state(P, p, State::TimeWait);
    // The active side, itself in TimeWait, is not impressed.
    net.deliver(&rej);
    net.assert_silent();
    net.no_event(A);
    net.assert_state(A, a, State::TimeWait);
    net.settle();
}

#[test]
fn cm_t09_rejection_lost_and_request_repeated() {
    let mut net = Net::pair();
    let Handshake { a, p, req } = net.requested();
    net.reject(P, p, RejReason::CONSUMER);
    let rej = net.lose(Id::REJ);
    assert_eq!(net.events(P), [Event::Released { conn: p }]);

    net.advance(req_timer());
    let req_again = net.take_only(Id::REQ);
    assert_eq!(req_again.bytes(), req.bytes());
    net.deliver(&req_again);
    let rej_again = net.take_only(Id::REJ);
    assert_eq!(rej_again.bytes(), rej.bytes());
    net.no_event(P);
    net.deliver(&rej_again);
    let [Event::Rejected { rejection, .. }, Event::Released { conn }] = &net.events(A)[..] else { panic!() };
    assert_eq!((rejection.reason, *conn), (RejReason::CONSUMER, a));
    net.assert_silent();
}

/// The same for each repetition that the REQ allows, the last one late, when the two sides have very different times to
/// answer.
#[test]
fn cm_t09_until_the_last_repetition() {
    let late = std::time::Duration::from_millis(100);
    let times = |request: u8, reply: u8| {
        let mut net = Net::pair();
        let mut connect = net.connect_to(A, P);
        connect.response_timeout = TimeCode::truncate(request);
        connect.local_response_timeout = TimeCode::truncate(reply);
        connect.max_cm_retries = 2;
        let a = net.connect_with(A, connect);
        let req = net.pass(Id::REQ);
        let (p, _) = net.request(P);
        (net, a, p, req)
    };

    let (mut net, _, p, _) = times(20, 14);
    net.reject(P, p, RejReason::CONSUMER);
    let rej = net.lose(Id::REJ);
    net.events(P);
    for lateness in [std::time::Duration::ZERO, late] {
        net.advance(req_timer());
        let req = net.take_only(Id::REQ);
        net.now += lateness;
        net.deliver(&req);
        assert_eq!(net.take_only(Id::REJ).bytes(), rej.bytes());
        net.no_event(P);
    }

    let (mut net, a, p, _) = times(14, 20);
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(A, a);
    net.reject(A, a, RejReason::CONSUMER);
    let rej = net.lose(Id::REJ);
    for lateness in [std::time::Duration::ZERO, late] {
        net.advance(rep_timer());
        let rep = net.take_only(Id::REP);
        net.now += lateness;
        net.deliver(&rep);
        assert_eq!(net.take_only(Id::REJ).bytes(), rej.bytes());
    }
}

#[test]
fn cm_t10_reply_twice_before_the_decision() {
    let mut net = Net::pair();
    let (Handshake { a, p, .. }, rep) = net.replied();
    net.deliver(&rep);
    net.assert_silent();
    net.no_event(A);

    // Half of the REQ's local response timeout, less the flight, and the peer is told to be patient.
    net.advance((time(20) - 2 * time(16)) / 2);
    let mra = net.take_only(Id::MRA);
    net.assert_state(A, a, State::RepMraSent);
    net.deliver(&rep);
    assert_eq!(net.take_only(Id::MRA).bytes(), mra.bytes());
    net.no_event(A);

    net.ready(A, a, b"");
    net.run();
    net.assert_state(P, p, State::Established);
}

#[test]
fn cm_t11_reply_to_an_attempt_that_timed_out() {
    let mut net = Net::pair();
    let Handshake { a: first, p: first_p, .. } = net.accepted();
    let late = net.lose(Id::REP);
    // Everything is lost until A has given up. P is patient for as long; its REJ 4 is lost too.
    let lost = net.advance_lossy(17 * req_timer());
    assert_eq!(lost.iter().filter(|flight| flight.message.attribute() == Id::REQ).count(), 15);
    let [Event::Timeout { conn, .. }, Event::Released { .. }] = net.events(A)[..] else { panic!() };
    assert_eq!(conn, first);
    let [Event::Timeout { conn, .. }, Event::Released { .. }] = net.events(P)[..] else { panic!() };
    assert_eq!(conn, first_p);

    let second = net.connect();
    let req = net.take_only(Id::REQ);
    net.deliver(&late);
    net.assert_state(A, second, State::ReqSent);
    net.no_event(A);
    // Nobody, or an answer that names the old IDs and ends the old request.
    for flight in std::mem::take(&mut net.wire) {
        let rej = flight.rej();
        assert!([RejReason::TIMEOUT, RejReason::INVALID_COMM_ID].contains(&rej.reason), "{rej:?}");
        assert_eq!(rej.local_comm_id, late.rep().remote_comm_id);
    }
    net.deliver(&req);
    let (p, _) = net.request(P);
    net.accept(P, p);
    net.run();
    net.reply(A, second);
    net.ready(A, second, b"");
    net.run();
    net.assert_state(P, p, State::Established);
}

/// The answer and the timer of the question are due at the same moment.
#[test]
fn cm_t20_timer_after_the_answer() {
    let mut net = Net::pair();

    // REQ and REP.
    let Handshake { a, p, .. } = net.requested();
    net.advance(req_timer() - std::time::Duration::from_nanos(1));
    net.wire.clear(); // P's MRA
    net.accept(P, p);
    let rep = net.take_only(Id::REP);
    net.now += std::time::Duration::from_nanos(1);
    net.deliver(&rep);
    net.fire();
    net.assert_silent();
    net.reply(A, a);

    // REP and RTU.
    net.ready(A, a, b"");
    let rtu = net.take_only(Id::RTU);
    net.now += rep_timer();
    net.deliver(&rtu);
    net.fire();
    net.assert_silent();
    net.events(P);
    net.assert_state(P, p, State::Established);

    // DREQ and DREP.
    net.disconnect(A, a);
    net.pass(Id::DREQ);
    let drep = net.take_only(Id::DREP);
    let due = net.ep(A).poll_timeout().unwrap();
    net.now = due;
    net.deliver(&drep);
    net.hosts[A].ep.handle_timeout(due);
    net.assert_silent();
    let [Event::Disconnected { .. }] = net.events(A)[..] else { panic!("not one Disconnected") };
    net.settle();
}

#[test]
fn cm_t21_rtu_that_nobody_waits_for() {
    let mut net = Net::pair();
    let (_, _) = net.readied();
    let rtu = net.take_only(Id::RTU);

    // For an unknown ID.
    let mut unknown = rtu.rtu().clone();
    unknown.remote_comm_id.0 ^= 1;
    net.deliver(&rtu.with(unknown));
    net.assert_silent();
    net.no_event(P);

    // In ReqRcvd: right ID, which the peer cannot know yet.
    let a = net.connect();
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    let mut early = rtu.rtu().clone();
    (early.local_comm_id, early.remote_comm_id) = (net.local_id(A, a), net.local_id(P, p));
    net.deliver(&rtu.with(early));
    net.assert_silent();
    net.no_event(P);
    net.assert_state(P, p, State::ReqRcvd);
}
