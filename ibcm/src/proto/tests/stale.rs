//! Stale connections, IDs and their reuse (spec/cm.md 4.8, 8.2).

use ibwire::{CommId, Guid, Qpn, RejReason};

use super::pair::*;
use crate::proto::message::{Attribute as Id, MessageId};
use crate::proto::{Config, ConnectError, DisconnectCause, Event, Listen, State};

fn count(events: &[Event], wanted: impl Fn(&Event) -> bool) -> usize {
    events.iter().filter(|event| wanted(event)).count()
}

fn stale(event: &Event) -> bool {
    matches!(event, Event::Disconnected { cause: DisconnectCause::Stale, .. })
}

#[test]
fn cm_t23_restarted_peer_reuses_its_queue_pair() {
    let mut net = Net::pair();
    let Established { a: old_a, p: old_p, req: old_req, rep: old_rep, .. } = net.established();
    let old_qpn = net.ep(A).info(old_a).unwrap().local_qpn;
    net.restart(A);

    let mut connect = net.connect_to(A, P);
    connect.qpn = old_qpn;
    let a = net.connect_with(A, connect.clone());
    let req = net.pass(Id::REQ);
    assert_ne!(req.req().local_comm_id, old_req.req().local_comm_id);
    net.collect();
    let (first, second) = (net.wire.pop_front().unwrap(), net.wire.pop_front().unwrap());
    net.assert_silent();
    let (rej_flight, dreq_flight) =
        if first.message.attribute() == Id::REJ { (first, second) } else { (second, first) };

    let rej = rej_flight.rej();
    assert_eq!((rej.reason, rej.message), (RejReason::STALE_CONNECTION, MessageId::REQ));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId::NONE, req.req().local_comm_id));
    assert_eq!(rej_flight.header.tid, req.header.tid);
    let dreq = dreq_flight.dreq();
    assert_eq!(dreq.local_comm_id, old_rep.rep().local_comm_id);
    assert_eq!(dreq.remote_comm_id, old_req.req().local_comm_id);
    assert_eq!(dreq.remote_qpn, old_qpn);
    net.assert_state(P, old_p, State::DreqSent);
    assert_eq!(net.ep(P).stats().stale, 1);

    net.deliver(&rej_flight);
    let Event::Rejected { conn, rejection, .. } = net.event(A) else { panic!() };
    assert_eq!((conn, rejection.reason), (a, RejReason::STALE_CONNECTION));
    net.assert_state(A, a, State::TimeWait);
    net.deliver(&dreq_flight);
    let drep = net.pass(Id::DREP);
    assert_eq!(drep.drep().local_comm_id, dreq.remote_comm_id);
    net.assert_state(P, old_p, State::TimeWait);

    // While its QP cools down the restarted side cannot use it; afterwards both sides have forgotten.
    net.settle();
    let events = net.events(P);
    assert_eq!(count(&events, stale), 1, "{events:?}");
    assert_eq!(count(&events, |event| matches!(event, Event::Request { .. })), 0);
    net.events(A);
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.run();
    net.assert_state(P, p, State::Established);
}

#[test]
fn cm_t24_restarted_peer_reuses_its_id() {
    let mut net = Net::pair();
    let Established { p: old_p, req: old_req, .. } = net.established();
    net.restart(A);
    let a = net.connect();
    let req = net.take_only(Id::REQ);
    let mut same_id = req.req().clone();
    same_id.local_comm_id = old_req.req().local_comm_id;
    assert_ne!(same_id.local_qpn, old_req.req().local_qpn);
    net.deliver(&req.with(same_id.clone()));

    let flights: Vec<_> = net.wire.drain(..).collect();
    let rej = flights.iter().find(|f| f.message.attribute() == Id::REJ).expect("a REJ").rej();
    assert_eq!((rej.reason, rej.message), (RejReason::DUPLICATE_COMM_ID, MessageId::REQ));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId::NONE, same_id.local_comm_id));
    let dreq = flights.iter().find(|f| f.message.attribute() == Id::DREQ).expect("a DREQ");
    net.deliver(dreq);
    net.pass(Id::DREP);
    net.assert_state(P, old_p, State::TimeWait);
    net.abort(A, a);
    net.settle();
    let events = net.events(P);
    assert_eq!(count(&events, stale), 1, "{events:?}");
}

/// Nothing repeats: the connection manager cannot know. Both stay; the application needs its keep-alive.
#[test]
fn cm_t25_restarted_peer_reuses_nothing() {
    let mut net = Net::pair();
    let Established { p: old_p, .. } = net.established();
    net.restart(A);
    let Established { p, .. } = net.established();
    net.assert_state(P, old_p, State::Established);
    net.assert_state(P, p, State::Established);
    assert_eq!(net.ep(P).stats().stale, 0);
}

#[test]
fn cm_t26_reply_that_names_a_connected_queue_pair() {
    let mut net = Net::pair();
    let Established { a: old_a, rep: old_rep, .. } = net.established();
    net.restart(P);
    let a = net.connect();
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept(P, p);
    let good = net.take_only(Id::REP);
    let timer = net.ep(A).poll_timeout();
    let mut bad = good.rep().clone();
    bad.local_qpn = old_rep.rep().local_qpn;
    net.deliver(&good.with(bad.clone()));

    let flights: Vec<_> = net.wire.drain(..).collect();
    let rej = flights.iter().find(|f| f.message.attribute() == Id::REJ).expect("a REJ").rej();
    assert_eq!((rej.reason, rej.message), (RejReason::STALE_CONNECTION, MessageId::REP));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (bad.remote_comm_id, bad.local_comm_id));
    let dreq = flights.iter().find(|f| f.message.attribute() == Id::DREQ).expect("a DREQ").dreq();
    assert_eq!(dreq.remote_comm_id, old_rep.rep().local_comm_id);
    assert_eq!(dreq.remote_qpn, old_rep.rep().local_qpn);
    net.assert_state(A, old_a, State::DreqSent);
    net.assert_state(A, a, State::ReqSent);
    assert_eq!(net.ep(A).poll_timeout(), timer, "the REQ's timer runs on");

    // The REQ is still pending: it is repeated, and a good reply connects.
    let sent = net.advance_lossy(req_timer());
    assert_eq!(count_of(&sent, Id::REQ), 1);
    let mut another = good.rep().clone();
    another.local_comm_id.0 ^= 0x5555;
    another.local_qpn = Qpn::truncate(0x777);
    net.deliver(&good.with(another));
    assert!(stale(&net.event(A)));
    net.reply(A, a);
    net.ready(A, a, b"");
    net.assert_state(A, a, State::Established);
}

fn count_of(flights: &[Flight], attribute: Id) -> usize {
    flights.iter().filter(|flight| flight.message.attribute() == attribute).count()
}

#[test]
fn cm_t27_rejected_as_stale_the_queue_pair_must_rest() {
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.requested();
    let qpn = net.ep(A).info(a).unwrap().local_qpn;
    net.reject(P, p, RejReason::STALE_CONNECTION);
    net.pass(Id::REJ);
    let Event::Rejected { rejection, .. } = net.event(A) else { panic!() };
    assert_eq!(rejection.reason, RejReason::STALE_CONNECTION);
    net.assert_state(A, a, State::TimeWait);
    net.no_event(A);

    let mut again = net.connect_to(A, P);
    again.qpn = qpn;
    let now = net.now;
    assert_eq!(net.ep(A).connect(now, again.clone()), Err(ConnectError::QpInUse(qpn)));
    net.settle();
    net.assert_released(A, a);
    net.connect_with(A, again);
    net.take_only(Id::REQ);
}

#[test]
fn cm_t28_handle_dropped_in_time_wait() {
    for abort in [false, true] {
        let mut net = Net::pair();
        let Disconnected { a, p, dreq, .. } = net.disconnected();
        if abort {
            net.abort(P, p);
        } else {
            net.detach(P, p);
        }
        net.assert_silent();
        // What is left answers until the timer ends it.
        net.deliver(&dreq);
        net.take_only(Id::DREP);
        net.settle();
        assert_eq!(net.events(P), if abort { vec![Event::Released { conn: p }] } else { vec![] });
        assert_eq!(net.ep(P).state(p), None);
        net.assert_released(A, a);
    }
}

/// A handle of an earlier connection never means a later one, and commands on it say so.
#[test]
fn cm_t28_dead_handles_stay_dead() {
    let mut net = Net::pair();
    let Disconnected { a: dead, .. } = net.disconnected();
    net.settle();
    net.events(A);
    net.events(P);
    let Established { a, .. } = net.established();
    assert_ne!(a, dead);
    assert_eq!(net.ep(A).state(dead), None);
    assert_eq!(net.ep(A).info(dead), None);
    let now = net.now;
    assert!(net.ep(A).disconnect(now, dead, Default::default()).is_err());
    net.abort(A, dead);
    net.detach(A, dead);
    net.assert_silent();
    net.assert_state(A, a, State::Established);
}

/// Our ID alone does not find a connection: the peer's must be right too.
#[test]
fn cm_t29_right_local_id_wrong_peer_id() {
    let mut net = Net::pair();
    let Established { a, p, rep, rtu, .. } = net.established();

    let mut dreq = crate::proto::message::Dreq {
        local_comm_id: rtu.rtu().local_comm_id,
        remote_comm_id: rtu.rtu().remote_comm_id,
        remote_qpn: net.ep(P).info(p).unwrap().local_qpn,
        private_data: Default::default(),
    };
    dreq.local_comm_id.0 ^= 1;
    net.deliver(&rtu.with(dreq.clone()));
    // An unknown connection's DREQ: answered, and nothing else.
    let drep = net.take_only(Id::DREP);
    assert_eq!(drep.drep().remote_comm_id, dreq.local_comm_id);

    let mut other_rep = rep.rep().clone();
    other_rep.local_comm_id.0 ^= 1;
    net.deliver(&rep.with(other_rep.clone()));
    let rej = net.take_only(Id::REJ);
    assert_eq!(rej.rej().reason, RejReason::INVALID_COMM_ID);
    assert_eq!(rej.rej().remote_comm_id, other_rep.local_comm_id);

    net.no_event(A);
    net.no_event(P);
    net.assert_state(A, a, State::Established);
    net.assert_state(P, p, State::Established);

    // In RepSent an RTU of another ID establishes nothing.
    let (Handshake { p, .. }, _) = net.readied();
    let rtu = net.take_only(Id::RTU);
    let mut other = rtu.rtu().clone();
    other.local_comm_id.0 ^= 1;
    net.deliver(&rtu.with(other));
    net.assert_state(P, p, State::RepSent);
    net.no_event(P);
}

/// Each attempt has an ID of its own, also on the same queue pair, and an ID in TimeWait is not given out again.
#[test]
fn cm_t29_ids_are_fresh() {
    let mut net = Net::pair();
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let Disconnected { req, rep, .. } = net.disconnected();
        assert!(ids.insert(req.req().local_comm_id), "repeated");
        assert!(ids.insert(rep.rep().local_comm_id), "repeated");
        assert!(!req.req().local_comm_id.is_none() && !rep.rep().local_comm_id.is_none());
    }
}

/// C's REQ, made to look like one of A's connection but for the node GUID.
fn same_id_and_qpn(net: &mut Net) -> (Flight, CommId) {
    let like = net.connect();
    let id = net.local_id(A, like);
    let qpn = net.ep(A).info(like).unwrap().local_qpn;
    net.pass(Id::REQ);
    let connect = net.connect_to(C, P);
    net.connect_with(C, connect);
    let req = net.take_only(Id::REQ);
    let mut twin = req.req().clone();
    (twin.local_comm_id, twin.local_qpn) = (id, qpn);
    (req.with(twin), id)
}

#[test]
fn cm_t30_two_hosts_with_the_same_id_and_queue_pair() {
    let mut net = Net::roce(3);
    let (twin, id) = same_id_and_qpn(&mut net);
    net.deliver(&twin);
    let ((p1, first), (p2, second)) = (net.request(P), net.request(P));
    assert_eq!(first.req.local_comm_id, second.req.local_comm_id);
    assert_ne!(first.req.local_ca_guid, second.req.local_ca_guid);
    net.accept(P, p1);
    net.accept(P, p2);
    let (rep1, rep2) = (net.take(Id::REP), net.take_only(Id::REP));
    assert_eq!((rep1.to, rep2.to), (Some(A), Some(C)));

    // Each RTU finds its own.
    for (host, p, rep) in [(C, p2, &rep2), (A, p1, &rep1)] {
        let rtu = crate::proto::message::Rtu {
            local_comm_id: id,
            remote_comm_id: rep.rep().local_comm_id,
            private_data: Default::default(),
        };
        net.deliver(&twin.with(rtu).as_from(&net, host));
        let Event::Established { conn, .. } = net.event(P) else { panic!() };
        assert_eq!(conn, p);
    }
    assert_eq!(net.ep(P).stats().stale, 0);
}

#[test]
fn cm_t31_one_endpoint_at_both_ends() {
    for disconnect_active in [true, false] {
        let mut net = Net::pair();
        net.listen(A, Listen::new(SERVICE));
        let connect = net.connect_to(A, A);
        let a = net.connect_with(A, connect);
        net.pass(Id::REQ);
        let (p, _) = net.request(A);
        assert_ne!(a, p);
        net.accept(A, p);
        net.pass(Id::REP);
        net.reply(A, a);
        net.ready(A, a, b"");
        net.pass(Id::RTU);
        let Event::Established { conn, .. } = net.event(A) else { panic!() };
        assert_eq!(conn, p);
        let (active, passive) = (net.ep(A).info(a).unwrap(), net.ep(A).info(p).unwrap());
        assert_eq!(active.local_comm_id, passive.remote_comm_id);
        assert_eq!(active.remote_comm_id, passive.local_comm_id);
        assert_ne!(active.local_comm_id, passive.local_comm_id);
        assert_eq!((active.local_qpn, active.remote_qpn), (passive.remote_qpn, passive.local_qpn));

        net.disconnect(A, if disconnect_active { a } else { p });
        net.pass(Id::DREQ);
        net.pass(Id::DREP);
        net.assert_silent();
        net.settle();
        let events = net.events(A);
        assert_eq!(count(&events, |event| matches!(event, Event::Disconnected { .. })), 2);
        assert_eq!(count(&events, |event| matches!(event, Event::Released { .. })), 2);
        assert_eq!(net.ep(A).stats().stale, 0);
    }
}

/// A node GUID of 0 does not tell nodes apart; then the address does.
#[test]
fn cm_t32_node_guid_zero() {
    let mut net = Net::new((0..3).map(|n| {
        let mut address = Address::roce(n);
        if n != P {
            address.guid = Guid(0);
        }
        (address, Config::default())
    }));
    let (twin, _) = same_id_and_qpn(&mut net);
    net.deliver(&twin);
    net.assert_silent();
    let ((_, first), (_, second)) = (net.request(P), net.request(P));
    assert_eq!((first.req.local_ca_guid, second.req.local_ca_guid), (Guid(0), Guid(0)));
    assert_eq!(net.ep(P).stats().stale, 0);
    assert_eq!(net.ep(P).connections(), 2);
}

/// The old connection is still in its handshake: it ends without a word to the IDs that are in use again.
#[test]
fn stale_while_undecided_or_unconfirmed() {
    for accepted in [false, true] {
        let mut net = Net::pair();
        let Handshake { a, p: old_p, req: old_req } = net.requested();
        let qpn = net.ep(A).info(a).unwrap().local_qpn;
        if accepted {
            net.accept(P, old_p);
            net.lose(Id::REP);
        }
        net.restart(A);
        let mut connect = net.connect_to(A, P);
        connect.qpn = qpn;
        net.connect_with(A, connect);
        net.pass(Id::REQ);
        let rej = net.take_only(Id::REJ);
        assert_eq!(rej.rej().reason, RejReason::STALE_CONNECTION);
        if accepted {
            net.assert_state(P, old_p, State::TimeWait);
        }
        let listener = net.hosts[P].listener.unwrap();
        assert_eq!(net.ep(P).pending_requests(listener), Some(0));
        let events = net.events(P);
        assert!(events[0].is_final(), "{events:?}");
        // Where no QP of ours has a part in it, nothing has to rest.
        let at_once = [Event::Released { conn: old_p }];
        assert_eq!(events[1..], at_once[usize::from(accepted)..]);
        let now = net.now;
        let accept = crate::proto::Accept::new(Qpn::truncate(0x999));
        assert!(net.ep(P).accept(now, old_p, accept).is_err());
        // For a while the old REQ is known.
        net.deliver(&old_req);
        assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::STALE_CONNECTION);
        net.no_event(P);
        let late = net.advance_lossy(100 * rep_timer());
        assert!(late.iter().all(|flight| flight.from == A), "{late:?}");
        if accepted {
            net.assert_released(P, old_p);
        }
        net.no_event(P);
    }
}

/// DreqSent is left alone; the new request meets REJ 10.
#[test]
fn stale_while_disconnecting() {
    let mut net = Net::pair();
    let Established { a, p, .. } = net.established();
    let qpn = net.ep(A).info(a).unwrap().local_qpn;
    net.disconnect(P, p);
    net.lose(Id::DREQ);
    net.restart(A);
    let mut connect = net.connect_to(A, P);
    connect.qpn = qpn;
    net.connect_with(A, connect);
    net.pass(Id::REQ);
    assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::STALE_CONNECTION);
    net.assert_state(P, p, State::DreqSent);
    net.no_event(P);
}

/// A client's QP, or its ID, may have rested long enough for the client and not yet for us. The old connection is over, so
/// a REQ with it is good. What comes late of the old one still does no harm, and the names are the new one's from now on.
#[test]
fn a_request_may_use_a_name_in_time_wait() {
    for same_id in [false, true] {
        let mut net = Net::pair();
        let Disconnected { a: old_a, p: old_p, req: old_req, dreq: old_dreq, .. } = net.disconnected();
        let old_info = net.ep(A).info(old_a).unwrap();
        net.restart(A);
        let connect = net.connect_to(A, P);
        net.connect_with(A, connect);
        let flight = net.take_only(Id::REQ);
        let mut req = flight.req().clone();
        if same_id {
            req.local_comm_id = old_info.local_comm_id;
        } else {
            req.local_qpn = old_info.local_qpn;
        }
        let flight = flight.with(req);
        net.advance(time(12));
        net.deliver(&flight);
        let (p, request) = net.request(P);
        assert_eq!(Some(&request.req), Some(flight.req()));
        net.accept(P, p);
        net.take_only(Id::REP);
        net.assert_state(P, old_p, State::TimeWait);

        // Repetitions are told apart.
        net.deliver(&flight);
        net.take_only(Id::REP);
        net.deliver(&old_req);
        assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::STALE_CONNECTION);
        net.deliver(&old_dreq);
        net.take_only(Id::DREP);
        net.assert_state(P, p, State::RepSent);
        net.no_event(P);
        assert_eq!(net.ep(P).stats().stale, 0);

        // The end of the old one's rest changes nothing.
        let rest = net.ep(P).poll_timeout().unwrap() - net.now;
        net.advance(rest);
        net.assert_released(P, old_p);
        net.assert_state(P, p, State::RepSent);
        let mut again = flight.req().clone();
        if same_id {
            again.local_qpn = Qpn::truncate(0x777);
        } else {
            again.local_comm_id = CommId(0x777);
        }
        net.deliver(&flight.with(again));
        let reason = if same_id { RejReason::DUPLICATE_COMM_ID } else { RejReason::STALE_CONNECTION };
        assert_eq!(net.take_only(Id::REJ).rej().reason, reason);
        net.assert_state(P, p, State::TimeWait);
    }
}

/// The same for an ID in a REP.
#[test]
fn a_reply_may_use_an_id_in_time_wait() {
    let mut net = Net::pair();
    let Disconnected { a: old, rep: old_rep, .. } = net.disconnected();
    let Handshake { a, .. } = net.accepted();
    let flight = net.take_only(Id::REP);
    let mut rep = flight.rep().clone();
    rep.local_comm_id = old_rep.rep().local_comm_id;
    net.deliver(&flight.with(rep));
    net.reply(A, a);
    net.ready(A, a, b"");
    assert_eq!(net.take_only(Id::RTU).rtu().remote_comm_id, old_rep.rep().local_comm_id);
    net.assert_state(A, old, State::TimeWait);
    let stats = net.ep(A).stats();
    assert_eq!((stats.stale, stats.dropped_id_taken), (0, 0));
}

/// A server's QP may have rested long enough for the server and not yet for us. It is not connected any more, so a REP
/// with it is good; and of the two connections with that QP the live one is meant.
#[test]
fn a_reply_may_name_a_queue_pair_in_time_wait() {
    let mut net = Net::pair();
    let Disconnected { a: old, p, .. } = net.disconnected();
    let qpn = net.ep(P).info(p).unwrap().local_qpn;
    let rest = net.ep(P).poll_timeout().unwrap() - net.now;
    net.advance(rest);
    net.assert_released(P, p);
    net.assert_state(A, old, State::TimeWait);

    let Handshake { a, p, .. } = net.requested();
    net.accept_with(P, p, crate::proto::Accept::new(qpn));
    net.pass(Id::REP);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.pass(Id::RTU);
    net.assert_state(P, p, State::Established);
    assert_eq!(net.ep(A).stats().stale, 0);

    // The server restarts and uses it once more.
    net.restart(P);
    net.listen(A, Listen::new(SERVICE));
    let mut connect = net.connect_to(P, A);
    connect.qpn = qpn;
    net.connect_with(P, connect);
    net.pass(Id::REQ);
    net.assert_state(A, old, State::TimeWait);
    net.assert_state(A, a, State::DreqSent);
    assert_eq!(net.ep(A).stats().stale, 1);
}
