//! Messages that belong to no connection, and MADs that are no message (spec/cm.md 1.5, 4.9).

use std::time::Duration;

use ibwire::mad::{AttributeId, ClassPortInfo, MadHeader, MadStatus, Method};
use ibwire::{CommId, PrivateData, Qpn, RejReason, TimeCode};

use super::pair::*;
use crate::proto::message::{Attribute as Id, Drep, Dreq, Message, MessageId, Mra, Rtu};
use crate::proto::{Config, State, Stats};

const LOCAL: CommId = CommId(0x1111);
const REMOTE: CommId = CommId(0x2222);

/// Any MAD from A to P.
fn a_mad(net: &mut Net) -> Flight {
    net.connect();
    net.take_only(Id::REQ)
}

fn send(net: &mut Net, message: impl Into<Message>) -> Flight {
    let flight = a_mad(net).with(message);
    net.deliver(&flight);
    flight
}

fn dreq() -> Dreq {
    Dreq {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        remote_qpn: Qpn::truncate(0x123),
        private_data: PrivateData::from(b"bye"),
    }
}

#[test]
fn reply() {
    let mut net = Net::pair();
    net.accepted();
    let rep = net.take_only(Id::REP);
    net.restart(A);
    net.deliver(&rep);
    let answer = net.take_only(Id::REJ);
    let rej = answer.rej();
    assert_eq!((rej.reason, rej.message), (RejReason::INVALID_COMM_ID, MessageId::REP));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (rep.rep().remote_comm_id, rep.rep().local_comm_id));
    assert_eq!(answer.header.tid, rep.header.tid);
    assert_eq!((answer.from, answer.to), (A, Some(P)));
}

#[test]
fn dreq_is_answered() {
    let mut net = Net::pair();
    let asked = send(&mut net, dreq());
    let answer = net.take_only(Id::DREP);
    let drep = answer.drep();
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (REMOTE, LOCAL));
    assert_eq!(drep.private_data, PrivateData::EMPTY);
    assert_eq!((answer.header.tid, answer.to), (asked.header.tid, Some(A)));
}

/// 0 is an ID of peers, too, but not that of one who is not known yet.
#[test]
fn a_connection_without_its_peer_is_not_found_by_an_id_of_zero() {
    let mut net = Net::pair();
    let a = net.connect();
    let req = net.take_only(Id::REQ);
    let dreq = Dreq { local_comm_id: CommId::NONE, remote_comm_id: req.req().local_comm_id, ..dreq() };
    let mut flight = req.with(dreq).as_from(&net, P);
    flight.to = Some(A);
    net.deliver(&flight);
    assert_eq!(net.ep(A).stats().dropped_state, 0);
    net.take_only(Id::DREP);
    net.assert_state(A, a, State::ReqSent);
}

#[test]
fn the_others_are_not() {
    let mut net = Net::pair();
    let (local_comm_id, remote_comm_id, private_data) = (LOCAL, REMOTE, PrivateData::EMPTY);
    send(&mut net, Rtu { local_comm_id, remote_comm_id, private_data });
    send(&mut net, Drep { local_comm_id, remote_comm_id, private_data });
    for message in [MessageId::REQ, MessageId::REP, MessageId::LAP, MessageId::RESERVED] {
        let service_timeout = TimeCode::truncate(20);
        let private_data = PrivateData::EMPTY;
        send(&mut net, Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data });
    }
    net.assert_silent();
    net.no_event(P);
    let stats = net.ep(P).stats();
    assert_eq!((stats.dropped_unknown_id, stats.dropped_malformed), (5, 1));
}

#[test]
fn answers_are_rate_limited_by_source() {
    let mut net = Net::roce(3);
    let limit = Config::default().answers_per_second as usize;
    let flight = a_mad(&mut net).with(dreq());
    for _ in 0..limit + 50 {
        net.deliver(&flight);
    }
    assert_eq!(net.wire.drain(..).count(), limit);
    assert_eq!(net.ep(P).stats().dropped_answer_rate, 50);
    // Another source is not affected, and time heals.
    let other = flight.as_from(&net, C);
    net.deliver(&other);
    assert_eq!(net.take_only(Id::DREP).to, Some(C));
    net.now += Duration::from_secs(2);
    net.deliver(&flight);
    net.take_only(Id::DREP);
}

/// What a Get or Set is answered with: status, and the attribute if there is one.
fn class_query(method: Method, attribute: u16) -> Option<(MadStatus, ClassPortInfo)> {
    let mut net = Net::pair();
    let flight = a_mad(&mut net).patched(|mad| {
        mad[3] = method.0;
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    });
    net.deliver(&flight);
    net.assert_silent();
    net.no_event(P);
    let answer = net.class_answers.pop_front()?;
    assert!(net.class_answers.is_empty());
    assert_eq!(answer.to.av.grh.unwrap().dgid, net.hosts[A].address.gid);
    let header = MadHeader::parse(&answer.mad).unwrap();
    assert_eq!((header.method, header.attribute), (Method::GET_RESP, AttributeId(attribute)));
    assert_eq!((header.tid, header.class_version), (flight.header.tid, 2));
    Some((header.status, ClassPortInfo::parse(&answer.mad[24..]).unwrap()))
}

#[test]
fn class_port_info() {
    let (status, info) = class_query(Method::GET, 1).unwrap();
    assert_eq!(status, MadStatus::OK);
    assert_eq!((info.base_version, info.class_version), (1, 2));
    // RC and SIDR; UC not yet.
    assert_eq!((info.capability_mask, info.capability_mask2), (0x2200, 0));
    assert_eq!(info.resp_time, TimeCode::truncate(18));
    assert!(info.redirect.is_none() && info.trap.is_none());

    assert_eq!(class_query(Method::SET, 1).unwrap().0, MadStatus::BAD_METHOD);
    assert_eq!(class_query(Method::GET, 0x10).unwrap().0, MadStatus::BAD_METHOD_ATTRIBUTE);
    assert_eq!(class_query(Method::SET, 0x10).unwrap().0, MadStatus::BAD_METHOD_ATTRIBUTE);
    for method in [Method::GET_RESP, Method(0x83), Method::REPORT, Method(0x00)] {
        assert_eq!(class_query(method, 1), None, "{method}");
    }
}

/// Each MAD that is dropped counts for its cause, and for nothing else.
#[test]
fn each_cause_has_its_counter() {
    type Patch = fn(&mut [u8; 256]);
    type Counter = fn(&Stats) -> u64;
    let causes: [(Patch, Counter); 11] = [
        (|mad| mad[0] = 2, |stats| stats.dropped_base_version),
        (|mad| mad[1] = 3, |stats| stats.dropped_class),
        (|mad| (mad[2], mad[17]) = (1, 0x14), |stats| stats.dropped_class_version),
        (|mad| (mad[2], mad[3]) = (1, 1), |stats| stats.dropped_class_version),
        (|mad| mad[3] = 0x81, |stats| stats.dropped_method),
        (|mad| mad[17] = 0x18, |stats| stats.dropped_unknown_id),
        (|mad| mad[17] = 0x1a, |stats| stats.dropped_unknown_id),
        (|mad| mad[17] = 0x1b, |stats| stats.dropped_unsupported),
        (|mad| mad[17] = 0x1c, |stats| stats.dropped_unsupported),
        (|mad| mad[17] = 0x1d, |stats| stats.dropped_unknown_attribute),
        (|mad| mad[16] = 0x01, |stats| stats.dropped_unknown_attribute),
    ];
    for (number, (patch, counter)) in causes.into_iter().enumerate() {
        let mut net = Net::pair();
        let flight = a_mad(&mut net).patched(patch);
        net.deliver(&flight);
        net.assert_silent();
        assert!(net.class_answers.is_empty());
        net.no_event(P);
        let stats = net.ep(P).stats();
        assert_eq!(counter(&stats), 1, "case {number}");
        let dropped: u64 =
            stats.named().filter(|(name, _)| name.starts_with("dropped_")).map(|(_, count)| count).sum();
        assert_eq!(dropped, 1, "case {number}: {stats:?}");
        assert_eq!(stats.mads_received, 1);
    }
}
