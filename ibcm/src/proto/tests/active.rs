//! Rows of the active side's table (spec/cm.md 4.4) that no scenario covers.

use std::time::Duration;

use ibwire::{CommId, Gid, PKey, PrivateData, Qpn, RejReason};

use super::pair::*;
use crate::proto::message::{Attribute as Id, Drep, Dreq, MessageId, RejectInfo, Rtu};
use crate::proto::{Connect, ConnectError, Event, State};

const NANO: Duration = Duration::from_nanos(1);

#[test]
fn request_is_repeated_then_given_up() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.max_cm_retries = 2;
    let start = net.now;
    let a = net.connect_with(A, connect);
    let req = net.lose(Id::REQ);
    for _ in 0..2 {
        net.advance(req_timer() - NANO);
        net.assert_silent();
        net.advance(NANO);
        assert_eq!(net.take_only(Id::REQ).bytes(), req.bytes());
    }
    net.advance(req_timer() - NANO);
    net.assert_state(A, a, State::ReqSent);
    net.no_event(A);
    net.advance(NANO);
    let Event::Timeout { conn, effort } = net.event(A) else { panic!() };
    assert_eq!((conn, effort.sent, effort.busy), (a, 3, false));
    assert_eq!(effort.waited, 3 * req_timer());
    assert_eq!(net.now - start, effort.waited);
    net.assert_released(A, a);

    // The peer is told, in case it did hear us.
    let rej = net.take_only(Id::REJ);
    assert_eq!(rej.header.tid, req.header.tid);
    let sent = rej.rej();
    assert_eq!((sent.local_comm_id, sent.remote_comm_id), (req.req().local_comm_id, CommId::NONE));
    assert_eq!((sent.reason, sent.message), (RejReason::TIMEOUT, MessageId::OTHER));
    let guid = net.hosts[A].address.guid;
    assert_eq!(RejectInfo::decode(sent.reason, &sent.ari), RejectInfo::CaGuid(guid));
    net.advance(Duration::from_secs(600));
    net.assert_silent();
}

#[test]
fn no_retries() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.max_cm_retries = 0;
    net.connect_with(A, connect);
    net.lose(Id::REQ);
    net.advance(req_timer());
    let Event::Timeout { effort, .. } = net.event(A) else { panic!() };
    assert_eq!(effort.sent, 1);
}

#[test]
fn deadline_comes_before_the_last_retry() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.deadline = Some(net.now + Duration::from_secs(12));
    let a = net.connect_with(A, connect);
    let sent = net.advance_lossy(Duration::from_secs(12) - NANO);
    assert_eq!(sent.len(), 3);
    net.assert_state(A, a, State::ReqSent);
    net.advance(NANO);
    let Event::Timeout { effort, .. } = net.event(A) else { panic!() };
    assert_eq!((effort.sent, effort.waited), (3, Duration::from_secs(12)));
}

/// Another connection with that peer has the ID that the REP names.
#[test]
fn reply_with_an_id_that_is_taken() {
    let mut net = Net::pair();
    let Established { rep: old, .. } = net.established();
    let Handshake { a, .. } = net.accepted();
    let rep = net.take_only(Id::REP);
    let mut taken = rep.rep().clone();
    taken.local_comm_id = old.rep().local_comm_id;
    net.deliver(&rep.with(taken));
    net.assert_silent();
    net.no_event(A);
    net.assert_state(A, a, State::ReqSent);
    assert_eq!(net.ep(A).stats().dropped_id_taken, 1);
    net.deliver(&rep);
    net.reply(A, a);
}

/// In ReqSent no message but MRA, REP and REJ can know the connection.
#[test]
fn messages_that_know_too_much() {
    let mut net = Net::pair();
    let Handshake { a, req, .. } = net.requested();
    let (local_comm_id, remote_comm_id) = (CommId(0x1234), req.req().local_comm_id);
    let to_a = |net: &Net, message: crate::proto::message::Message| {
        let mut flight = req.with(message).as_from(net, P);
        flight.to = Some(A);
        flight
    };
    let private_data = PrivateData::EMPTY;
    let rtu = to_a(&net, Rtu { local_comm_id, remote_comm_id, private_data }.into());
    let drep = to_a(&net, Drep { local_comm_id, remote_comm_id, private_data }.into());
    net.deliver(&rtu);
    net.deliver(&drep);
    net.assert_silent();
    let remote_qpn = net.ep(A).info(a).unwrap().local_qpn;
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data: PrivateData::EMPTY };
    let dreq = to_a(&net, dreq.into());
    net.deliver(&dreq);
    // As for a connection that does not exist.
    let answer = net.take_only(Id::DREP);
    assert_eq!(answer.drep().remote_comm_id, local_comm_id);
    net.no_event(A);
    net.assert_state(A, a, State::ReqSent);
}

/// The server gave up after its REP.
#[test]
fn dreq_instead_of_our_rtu() {
    for mra in [false, true] {
        let mut net = Net::pair();
        let (Handshake { a, p, .. }, _) = net.replied();
        if mra {
            net.advance(time(20) / 2);
            net.pass(Id::MRA);
            net.assert_state(A, a, State::RepMraSent);
            net.event(P);
        }
        net.disconnect(P, p);
        net.assert_state(P, p, State::DreqSent);
        let dreq = net.pass(Id::DREQ);
        let drep = net.take_only(Id::DREP);
        assert_eq!(drep.header.tid, dreq.header.tid);
        net.assert_state(A, a, State::TimeWait);
        let events = net.events(A);
        assert!(events.len() == 1 && events[0].is_final(), "{events:?}");
        let now = net.now;
        assert!(net.ep(A).ready(now, a, PrivateData::EMPTY).is_err());
        net.deliver(&drep);
        let [Event::Disconnected { .. }] = net.events(P)[..] else { panic!() };
        net.settle();
    }
}

#[test]
fn given_up_between_reply_and_rtu() {
    for detach in [false, true] {
        let mut net = Net::pair();
        let (Handshake { a, p, .. }, rep) = net.replied();
        if detach {
            net.detach(A, a);
        } else {
            net.abort(A, a);
        }
        let rej = net.pass(Id::REJ);
        let sent = rej.rej();
        assert_eq!((sent.reason, sent.message), (RejReason::CONSUMER, MessageId::REP));
        assert_eq!(sent.remote_comm_id, rep.rep().local_comm_id);
        let Event::Rejected { conn, .. } = net.event(P) else { panic!() };
        assert_eq!(conn, p);
        net.settle();
        assert_eq!(net.events(A).len(), usize::from(!detach));
    }
}

#[test]
fn reply_without_a_queue_pair() {
    let mut net = Net::pair();
    let Handshake { a, .. } = net.accepted();
    let rep = net.take_only(Id::REP);
    let mut none = rep.rep().clone();
    none.local_qpn = Qpn::truncate(0);
    net.deliver(&rep.with(none));
    net.no_event(A);
    net.assert_state(A, a, State::ReqSent);
    assert_eq!(net.ep(A).stats().dropped_malformed, 1);
}

/// What is out of range is refused with the value and its limit; nothing is sent.
#[test]
fn values_out_of_range() {
    let mut net = Net::pair();
    let good = net.connect_to(A, P);
    let mut bad = Vec::new();
    let mut with = |change: &dyn Fn(&mut Connect)| {
        let mut connect = good.clone();
        change(&mut connect);
        bad.push(connect);
    };
    with(&|c| c.retry_count = 8);
    with(&|c| c.rnr_retry_count = 8);
    with(&|c| c.max_cm_retries = 16);
    with(&|c| c.responder_resources = Some(17));
    with(&|c| c.initiator_depth = Some(17));
    with(&|c| c.path.record.sgid = Gid::from_ip([10, 0, 0, 99].into()));
    with(&|c| c.path.record.pkey = PKey(0x8123));
    with(&|c| c.path.record.mtu = ibwire::Mtu(6));
    with(&|c| c.path.port = 2);
    with(&|c| c.qpn = Qpn::truncate(0));
    for connect in bad {
        let now = net.now;
        let error = net.ep(A).connect(now, connect.clone()).unwrap_err();
        assert!(matches!(error, ConnectError::Invalid(_)), "{connect:?}: {error:?}");
        assert!(net.ep(A).connect_init(&connect).is_err() || connect.qpn.get() == 0);
    }
    net.assert_silent();
    assert_eq!(net.ep(A).connections(), 0);

    let mut port = net.hosts[A].address.port();
    port.active = false;
    net.ep(A).update_port(port);
    let now = net.now;
    assert_eq!(net.ep(A).connect(now, good), Err(ConnectError::PortDown(1)));
    net.assert_silent();
}

#[test]
fn a_queue_pair_serves_one_connection() {
    let mut net = Net::pair();
    let connect = net.connect_to(A, P);
    net.connect_with(A, connect.clone());
    let now = net.now;
    assert_eq!(net.ep(A).connect(now, connect.clone()), Err(ConnectError::QpInUse(connect.qpn)));
    assert_eq!(net.ep(A).connections(), 1);
}

#[test]
fn commands_in_the_wrong_state() {
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.requested();
    let now = net.now;
    let accept = crate::proto::Accept::new(net.hosts[A].qpn());
    assert!(net.ep(A).accept(now, a, accept).is_err());
    assert!(net.ep(A).ready(now, a, PrivateData::EMPTY).is_err());
    assert!(net.ep(A).disconnect(now, a, Default::default()).is_err());
    assert!(net.ep(P).ready(now, p, PrivateData::EMPTY).is_err());
    assert!(net.ep(P).disconnect(now, p, Default::default()).is_err());
    net.assert_silent();
    net.assert_state(A, a, State::ReqSent);
    net.assert_state(P, p, State::ReqRcvd);
}

/// Those who asked at the same moment do not ask again at the same moment, and none asks before its time.
#[test]
fn a_request_with_jitter_is_repeated_at_a_time_of_chance() {
    let mut net = Net::pair();
    let (mut waits, start) = (Vec::new(), net.now);
    for _ in 0..20 {
        let connect = Connect { jitter: req_timer() / 2, ..net.connect_to(A, P) };
        net.connect_with(A, connect);
    }
    net.collect();
    net.wire.clear();
    while waits.len() < 20 {
        net.now = net.next_timeout().unwrap();
        net.fire();
        net.collect();
        let now = net.now;
        waits.extend(net.wire.drain(..).map(|_| now - start));
    }
    assert!(waits[0] >= req_timer() && waits[19] <= req_timer() * 3 / 2, "{waits:?}");
    assert!(waits[19] - waits[0] > req_timer() / 4, "{waits:?}");
    waits.dedup();
    assert_eq!(waits.len(), 20);
}
