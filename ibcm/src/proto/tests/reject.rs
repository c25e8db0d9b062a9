//! Rejections, sent and received (spec/cm.md 4.10, 8.3).

use std::time::Duration;

use ibwire::{CommId, Guid, PrivateData, RejReason};

use super::pair::*;
use crate::proto::message::{Ari, Attribute as Id, MessageId, Rej, RejectInfo};
use crate::proto::{Accept, CommandError, DisconnectCause, Event, Reject, Rejection, State};

/// A REJ to the sender of `flight`, as its receiver would send it.
fn rej_to(net: &Net, flight: &Flight, rej: Rej) -> Flight {
    let (from, to) = (flight.to.unwrap(), flight.from);
    let mut answer = flight.with(rej).as_from(net, from);
    answer.to = Some(to);
    answer
}

fn rej(local: CommId, remote: CommId, message: MessageId, reason: u16, ari: Ari) -> Rej {
    Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        message,
        reason: RejReason(reason),
        ari,
        private_data: PrivateData::EMPTY,
    }
}

#[track_caller]
fn rejected(net: &mut Net, host: usize) -> Rejection {
    match net.event(host) {
        Event::Rejected { rejection, .. } => *rejection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn cm_t33_cancelled_before_the_reply() {
    let mut net = Net::pair();
    let Handshake { a, p, req } = net.requested();
    net.abort(A, a);
    let rej = net.take_only(Id::REJ);
    assert_eq!(rej.header.tid, req.header.tid);
    let sent = rej.rej();
    assert_eq!((sent.local_comm_id, sent.remote_comm_id), (req.req().local_comm_id, CommId::NONE));
    assert_eq!((sent.reason, sent.message), (RejReason::TIMEOUT, MessageId::OTHER));
    let guid = net.hosts[A].address.guid;
    assert_eq!(RejectInfo::decode(sent.reason, &sent.ari), RejectInfo::CaGuid(guid));
    net.assert_released(A, a);

    net.deliver(&rej);
    let Event::Withdrawn { conn, rejection: Some(rejection) } = net.event(P) else { panic!() };
    assert_eq!((conn, rejection.reason), (p, RejReason::TIMEOUT));
    net.assert_released(P, p);
    let (now, qpn) = (net.now, net.hosts[P].qpn());
    assert_eq!(net.ep(P).accept(now, p, Accept::new(qpn)), Err(CommandError::Gone));
    net.assert_silent();
    assert_eq!(net.next_timeout().filter(|_| net.hosts[P].ep.connections() > 0), None);
}

/// The same once an MRA has told A our ID, which REJ 4 does not use.
#[test]
fn cm_t33_cancelled_after_an_mra() {
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.requested();
    net.advance(answer_time() / 2);
    net.pass(Id::MRA);
    let Event::Busy { .. } = net.event(A) else { panic!() };
    net.assert_state(A, a, State::ReqMraRcvd);
    net.detach(A, a);
    let rej = net.pass(Id::REJ);
    assert_eq!(rej.rej().remote_comm_id, CommId::NONE);
    let Event::Withdrawn { conn, .. } = net.event(P) else { panic!() };
    assert_eq!(conn, p);
    net.no_event(A);
}

/// Intel's form: no GUID, or too little of it, but our ID.
#[test]
fn cm_t34_timeout_without_a_guid() {
    for len in [0, 1, 7] {
        let ari = Ari::new(&[0xff; 72][..len]).unwrap();
        let mut net = Net::pair();
        let Handshake { p, req, .. } = net.accepted();
        let rep = net.lose(Id::REP);
        let (local, remote) = (rep.rep().remote_comm_id, rep.rep().local_comm_id);
        let rej_flight = req.with(rej(local, remote, MessageId::REP, 4, ari));
        net.deliver(&rej_flight);
        assert_eq!(rejected(&mut net, P).reason, RejReason::TIMEOUT);
        net.assert_state(P, p, State::TimeWait);

        // Towards the active side, whose peer ID is not known yet.
        let Handshake { a, req, .. } = net.requested();
        let rej_flight =
            rej_to(&net, &req, rej(CommId(9), req.req().local_comm_id, MessageId::OTHER, 4, ari));
        net.deliver(&rej_flight);
        assert_eq!(rejected(&mut net, A).reason, RejReason::TIMEOUT);
        net.assert_released(A, a);

        // Neither an ID nor a GUID: it finds nothing, whatever stands behind the valid bytes.
        let Handshake { p, req, .. } = net.requested();
        let cut = req.with(rej(req.req().local_comm_id, CommId::NONE, MessageId::OTHER, 4, ari));
        let guid = net.hosts[A].address.guid.0.to_be_bytes();
        let cut = cut.patched(|mad| mad[24 + 12..24 + 20].copy_from_slice(&guid));
        net.deliver(&cut);
        net.assert_state(P, p, State::ReqRcvd);
        net.no_event(P);
        net.assert_silent();
    }
}

/// The reason, not the message field, leads the way: reason 4 comes with every value of it.
#[test]
fn timeout_with_any_message_field() {
    for message in [MessageId::REQ, MessageId::REP, MessageId::OTHER, MessageId::RESERVED] {
        let mut net = Net::pair();
        let Handshake { req, .. } = net.requested();
        let ari = RejectInfo::CaGuid(net.hosts[A].address.guid).encode();
        net.deliver(&req.with(rej(req.req().local_comm_id, CommId::NONE, message, 4, ari)));
        let Event::Withdrawn { .. } = net.event(P) else { panic!() };
    }
}

/// Another node's GUID does not find A's request.
#[test]
fn timeout_of_another_node() {
    let mut net = Net::pair();
    let Handshake { p, req, .. } = net.requested();
    let ari = RejectInfo::CaGuid(Guid(0x7777)).encode();
    net.deliver(&req.with(rej(req.req().local_comm_id, CommId::NONE, MessageId::OTHER, 4, ari)));
    net.assert_state(P, p, State::ReqRcvd);
    net.no_event(P);
    net.assert_silent();
}

#[test]
fn cm_t35_information_of_127_bytes() {
    let mut net = Net::pair();
    let Handshake { req, .. } = net.requested();
    let ari = Ari::new(&[0xab; 72]).unwrap();
    let flight = rej_to(&net, &req, rej(CommId::NONE, req.req().local_comm_id, MessageId::REQ, 28, ari));
    net.deliver(&flight.patched(|mad| mad[24 + 9] = 127 << 1));
    assert_eq!(rejected(&mut net, A).info, RejectInfo::Bytes(ari));
}

/// Linux echoes bytes 4..7 of the REQ, which may be a vendor ID, as its own ID.
#[test]
fn cm_t36_foreign_local_id_in_a_rejection_of_the_request() {
    for mra in [false, true] {
        let mut net = Net::pair();
        let Handshake { a, req, .. } = net.requested();
        if mra {
            net.advance(answer_time() / 2);
            net.pass(Id::MRA);
            net.events(A);
        }
        let odd = rej(CommId(0x0d0e0f), req.req().local_comm_id, MessageId::REQ, 8, Ari::EMPTY);
        let flight = rej_to(&net, &req, odd);
        net.deliver(&flight);
        assert_eq!(rejected(&mut net, A).reason, RejReason::INVALID_SERVICE_ID);
        net.assert_released(A, a);
    }
}

/// The same, late: A knows P's ID already. A REJ of the REQ need not name it.
#[test]
fn rejection_of_the_request_after_the_reply() {
    let mut net = Net::pair();
    let (Handshake { a, req, .. }, _) = net.replied();
    let late = rej(CommId::NONE, req.req().local_comm_id, MessageId::REQ, 3, Ari::EMPTY);
    let flight = rej_to(&net, &req, late);
    net.deliver(&flight);
    assert_eq!(rejected(&mut net, A).reason, RejReason::NO_RESOURCES);
    net.assert_state(A, a, State::TimeWait);
    // One of another message has to, and so has a timeout, whatever it says it rejects.
    let (Handshake { a, req, .. }, _) = net.replied();
    for (message, reason) in [(MessageId::OTHER, 3), (MessageId::REQ, 4)] {
        let foreign = rej(CommId::NONE, req.req().local_comm_id, message, reason, Ari::EMPTY);
        let flight = rej_to(&net, &req, foreign);
        net.deliver(&flight);
        net.assert_state(A, a, State::RepRcvd);
        net.no_event(A);
    }
}

#[test]
fn cm_t37_intels_consumer_reject() {
    let mut net = Net::pair();
    let Handshake { req, .. } = net.requested();
    let flight =
        rej_to(&net, &req, rej(CommId::NONE, req.req().local_comm_id, MessageId::REQ, 27, Ari::EMPTY));
    net.deliver(&flight);
    let rejection = rejected(&mut net, A);
    assert_eq!(rejection.reason, RejReason(27));
    assert!(rejection.is_consumer());
}

#[test]
fn cm_t38_unknown_reasons() {
    for reason in [0, 34, 36, 65535] {
        let mut net = Net::pair();
        let Handshake { a, req, .. } = net.requested();
        let flight = rej_to(
            &net,
            &req,
            rej(CommId::NONE, req.req().local_comm_id, MessageId::REQ, reason, Ari::EMPTY),
        );
        net.deliver(&flight);
        let rejection = rejected(&mut net, A);
        assert_eq!((rejection.reason, rejection.is_consumer()), (RejReason(reason), false));
        net.assert_released(A, a);
    }
}

#[test]
fn cm_t39_rejections_of_nothing() {
    let mut net = Net::pair();
    let Established { a, p, req, .. } = net.established();
    let before = net.ep(P).stats();
    for (local, remote) in [(CommId::NONE, CommId::NONE), (CommId(1), CommId(2)), (CommId::NONE, CommId(3))] {
        for message in [MessageId::REQ, MessageId::REP, MessageId::OTHER, MessageId::RESERVED] {
            for reason in [4, 6, 8, 10, 28] {
                for ari in [Ari::EMPTY, RejectInfo::CaGuid(net.hosts[A].address.guid).encode()] {
                    net.deliver(&req.with(rej(local, remote, message, reason, ari)));
                }
            }
        }
    }
    net.assert_silent();
    net.no_event(P);
    net.assert_state(A, a, State::Established);
    net.assert_state(P, p, State::Established);
    let after = net.ep(P).stats();
    assert_eq!(after.dropped_unknown_id - before.dropped_unknown_id, 3 * 4 * 5 * 2);
}

/// P could not move its QP and says so, when A believes itself established already.
#[test]
fn cm_t40_rejected_while_established() {
    let mut net = Net::pair();
    let (Handshake { a, p, .. }, rep) = net.readied();
    net.lose(Id::RTU);
    net.abort(P, p);
    let flight = net.take_only(Id::REJ);
    let sent = flight.rej();
    assert_eq!((sent.reason, sent.message), (RejReason::CONSUMER, MessageId::OTHER));
    assert_eq!((sent.local_comm_id, sent.remote_comm_id), {
        let rep = rep.rep();
        (rep.local_comm_id, rep.remote_comm_id)
    });
    net.assert_state(P, p, State::TimeWait);
    net.deliver(&flight);
    let Event::Disconnected { conn, cause: DisconnectCause::Rejected(rejection) } = net.event(A) else {
        panic!()
    };
    assert_eq!((conn, rejection.reason), (a, RejReason::CONSUMER));
    net.assert_state(A, a, State::TimeWait);
    net.settle();
    net.assert_released(A, a);
    net.assert_released(P, p);
}

#[test]
fn cm_t44_rejected_after_an_mra() {
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.requested();
    net.advance(answer_time() / 2);
    net.pass(Id::MRA);
    let Event::Busy { .. } = net.event(A) else { panic!() };
    net.reject(P, p, RejReason::NO_RESOURCES);
    let flight = net.pass(Id::REJ);
    let sent = flight.rej();
    assert!(!sent.local_comm_id.is_none(), "after an MRA our ID is known");
    assert_eq!(sent.message, MessageId::REQ);
    assert_eq!(rejected(&mut net, A).reason, RejReason::NO_RESOURCES);
    net.assert_released(A, a);
    net.advance(Duration::from_secs(1000));
    net.assert_silent();
}

#[test]
fn cm_t46_rejecting_what_has_been_withdrawn() {
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.requested();
    net.abort(A, a);
    net.pass(Id::REJ);
    let now = net.now;
    let refused = net.ep(P).reject(now, p, Reject::new(RejReason::CONSUMER));
    assert_eq!(refused, Err(CommandError::Gone));
    net.assert_silent();
}

#[test]
fn cm_t47_private_data_of_a_rejection() {
    let data: [u8; 148] = std::array::from_fn(|i| 0xff - i as u8);
    let mut net = Net::pair();
    let Handshake { p, req, .. } = net.requested();
    let mut reject = Reject::new(RejReason::CONSUMER);
    reject.private_data = PrivateData::from(&data);
    reject.info = RejectInfo::Bytes(Ari::new(b"own").unwrap());
    let now = net.now;
    net.ep(P).reject(now, p, reject).unwrap();
    let flight = net.pass(Id::REJ);
    let sent = flight.rej();
    assert_eq!((sent.message, sent.remote_comm_id), (MessageId::REQ, req.req().local_comm_id));
    let rejection = rejected(&mut net, A);
    assert_eq!(rejection.private_data.len(), 148);
    assert_eq!(rejection.private_data.as_bytes(), &data);
    assert_eq!(rejection.info, RejectInfo::Bytes(Ari::new(b"own").unwrap()));
}

#[test]
fn reply_rejected_by_the_user() {
    let mut net = Net::pair();
    for mra in [false, true] {
        let (Handshake { a, p, req }, rep) = net.replied();
        if mra {
            net.advance(time(20) / 2);
            net.pass(Id::MRA);
            net.event(P);
            net.assert_state(A, a, State::RepMraSent);
        }
        net.reject(A, a, RejReason::CONSUMER);
        let flight = net.take_only(Id::REJ);
        let sent = flight.rej();
        assert_eq!((sent.reason, sent.message), (RejReason::CONSUMER, MessageId::REP));
        assert_eq!((sent.local_comm_id, sent.remote_comm_id), {
            let rep = rep.rep();
            (rep.remote_comm_id, rep.local_comm_id)
        });
        assert_eq!(flight.header.tid, req.header.tid);
        // The REJ was lost; the REP comes again and meets the same REJ.
        net.deliver(&rep);
        let again = net.take_only(Id::REJ);
        assert_eq!(again.bytes(), flight.bytes());
        net.deliver(&again);
        assert_eq!(rejected(&mut net, P).reason, RejReason::CONSUMER);
        net.assert_state(P, p, State::TimeWait);
        net.settle();
        net.assert_released(A, a);
        net.assert_released(P, p);
    }
}

#[test]
fn rejected_between_reply_and_rtu() {
    for mra in [false, true] {
        for reason in [4, 28] {
            let mut net = Net::pair();
            let (Handshake { a, .. }, rep) = net.replied();
            if mra {
                net.advance(time(20) / 2);
                net.lose(Id::MRA);
            }
            let ids = rep.rep();
            let ari = RejectInfo::CaGuid(net.hosts[P].address.guid).encode();
            let rej = rej(ids.local_comm_id, ids.remote_comm_id, MessageId::OTHER, reason, ari);
            net.deliver(&rep.with(rej));
            assert_eq!(rejected(&mut net, A).reason, RejReason(reason));
            net.assert_state(A, a, State::TimeWait);
            let now = net.now;
            assert!(net.ep(A).ready(now, a, PrivateData::EMPTY).is_err());
            net.assert_silent();
        }
    }
}

#[test]
fn rejected_while_the_rep_is_out() {
    for (reason, mra) in [(10, false), (28, false), (10, true), (28, true)] {
        let mut net = Net::pair();
        let (Handshake { p, req, .. }, rep) = net.replied();
        if mra {
            net.advance(answer_time() / 2);
            net.pass(Id::MRA);
            net.event(P);
            net.assert_state(P, p, State::RepMraRcvd);
        }
        let ids = rep.rep();
        let rej = rej(ids.remote_comm_id, ids.local_comm_id, MessageId::REP, reason, Ari::EMPTY);
        net.deliver(&req.with(rej));
        assert_eq!(rejected(&mut net, P).reason, RejReason(reason));
        net.assert_state(P, p, State::TimeWait);
        net.wire.clear();
        net.advance(Duration::from_secs(300));
        assert_eq!(net.wire.iter().filter(|flight| flight.from == P).count(), 0);
        net.assert_released(P, p);
    }
}

/// ReqRcvd: any REJ of the peer withdraws. No QP of ours has to rest; after REJ 10 that of the other side has, and a
/// late REQ of it is stale.
#[test]
fn withdrawn_by_any_rejection() {
    for reason in [4, 10, 28] {
        let mut net = Net::pair();
        let Handshake { p, req, .. } = net.requested();
        net.advance(answer_time() / 2);
        let mra = net.lose(Id::MRA);
        let ids = mra.mra();
        let rej = rej(ids.remote_comm_id, ids.local_comm_id, MessageId::OTHER, reason, Ari::EMPTY);
        net.deliver(&req.with(rej));
        let Event::Withdrawn { rejection: Some(rejection), .. } = net.event(P) else { panic!() };
        assert_eq!(rejection.reason, RejReason(reason));
        let listener = net.hosts[P].listener.unwrap();
        assert_eq!(net.ep(P).pending_requests(listener), Some(0));
        net.assert_released(P, p);
        net.deliver(&req);
        if reason == 10 {
            let rej = net.take_only(Id::REJ);
            assert_eq!(rej.rej().reason, RejReason::STALE_CONNECTION);
            assert_eq!(rej.rej().remote_comm_id, req.req().local_comm_id);
            net.no_event(P);
        } else {
            net.request(P);
        }
    }
}

/// Before an MRA the peer does not know our ID; the REJ may carry it or not, what it names must match.
#[test]
fn rejection_from_req_rcvd() {
    let mut net = Net::pair();
    let Handshake { p, req, .. } = net.requested();
    net.reject(P, p, RejReason::NO_QP);
    let flight = net.take_only(Id::REJ);
    let sent = flight.rej();
    assert_eq!((sent.message, sent.remote_comm_id), (MessageId::REQ, req.req().local_comm_id));
    assert_eq!(flight.header.tid, req.header.tid);
    net.assert_released(P, p);
}
