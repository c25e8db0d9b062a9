//! Peer to peer: both sides ask, one REQ counts (spec/cm.md 4.7).

use std::time::Duration;

use ibwire::{Guid, PrivateData, Qpn, RejReason};

use super::pair::*;
use crate::proto::message::{Ari, Attribute as Id, MessageId, Rej, RejectInfo};
use crate::proto::{
    Accept, CommandError, Config, ConnHandle, Connect, DisconnectCause, Event, Listen, Request, Role, State,
};

/// Two hosts that listen for nothing. P has the larger GUID.
fn peers() -> Net {
    let mut net = Net::pair();
    silence(&mut net, P);
    net
}

fn silence(net: &mut Net, host: usize) {
    let listener = net.hosts[host].listener.take().unwrap();
    net.ep(host).unlisten(listener);
}

fn ask_with(net: &mut Net, host: usize, connect: Connect) -> ConnHandle {
    let now = net.now;
    let conn = net.ep(host).connect_peer(now, connect).unwrap();
    net.collect();
    conn
}

/// `host` asks for `peer`; its REQ is on the wire.
fn ask(net: &mut Net, host: usize, peer: usize) -> ConnHandle {
    let connect = net.connect_to(host, peer);
    ask_with(net, host, connect)
}

#[track_caller]
fn peer_request(net: &mut Net, host: usize, conn: ConnHandle) -> Box<Request> {
    match net.event(host) {
        Event::PeerRequest { conn: asked, request, .. } if asked == conn => request,
        other => panic!("{other:?}"),
    }
}

/// `host` has become the passive side and accepts; the REP is on the wire.
#[track_caller]
fn accept(net: &mut Net, host: usize, conn: ConnHandle) {
    let accept = Accept::new(net.ep(host).info(conn).unwrap().local_qpn);
    net.accept_with(host, conn, accept);
}

/// From the larger side's REQ at the smaller one to both sides established.
#[track_caller]
fn finish(net: &mut Net, (larger, a): (usize, ConnHandle), (smaller, p): (usize, ConnHandle)) {
    peer_request(net, smaller, p);
    accept(net, smaller, p);
    net.pass(Id::REP);
    net.reply(larger, a);
    net.ready(larger, a, b"");
    net.run();
    let Event::Established { .. } = net.event(smaller) else { panic!() };
    assert_pair(net, (larger, a), (smaller, p));
}

/// The two are one connection, and either side has the role that it ought to have.
#[track_caller]
fn assert_pair(net: &mut Net, (larger, a): (usize, ConnHandle), (smaller, p): (usize, ConnHandle)) {
    let (active, passive) = (net.ep(larger).info(a).unwrap(), net.ep(smaller).info(p).unwrap());
    assert_eq!((active.state, passive.state), (State::Established, State::Established));
    assert_eq!((active.role, passive.role), (Role::Active, Role::Passive));
    assert_eq!(
        (active.local_comm_id, active.remote_comm_id),
        (passive.remote_comm_id, passive.local_comm_id)
    );
    assert_eq!((active.local_qpn, active.remote_qpn), (passive.remote_qpn, passive.local_qpn));
    let (a, p) = (net.ep(larger).attrs(a).unwrap(), net.ep(smaller).attrs(p).unwrap());
    assert_eq!((a.rts.sq_psn, a.rtr.rq_psn), (p.rtr.rq_psn, p.rts.sq_psn));
    assert_eq!(a.rts.max_rd_atomic, p.rtr.max_dest_rd_atomic);
    net.assert_silent();
}

/// Both ask before they hear of each other. Whichever REQ comes first, the smaller side answers by the ID and with the
/// queue pair of its own REQ.
#[test]
fn cm_t79_crossing_requests() {
    for first in [A, P] {
        let mut net = peers();
        let (a, p) = (ask(&mut net, A, P), ask(&mut net, P, A));
        let (of_a, of_p) = (net.lose(Id::REQ), net.lose(Id::REQ));
        if first == A {
            // P stays active and says so at once.
            net.deliver(&of_a);
            let again = net.take_only(Id::REQ);
            assert_eq!(again.bytes(), of_p.bytes());
            net.assert_state(P, p, State::ReqSent);
            net.deliver(&again);
            // The first one comes, too: it is a duplicate.
            net.deliver(&of_p);
        } else {
            net.deliver(&of_p);
            net.deliver(&of_a);
            // Its REQ comes once more; it has been answered meanwhile.
            net.pass(Id::REQ);
        }
        net.no_event(P);
        net.assert_state(A, a, State::ReqRcvd);
        let request = peer_request(&mut net, A, a);
        assert_eq!(request.req, *of_p.req());
        accept(&mut net, A, a);
        let rep = net.pass(Id::REP);
        assert_eq!(rep.rep().local_comm_id, of_a.req().local_comm_id);
        assert_eq!(rep.rep().local_qpn, of_a.req().local_qpn);
        assert_eq!(rep.rep().starting_psn, of_a.req().starting_psn);
        assert_eq!(rep.header.tid, of_p.header.tid);
        net.reply(P, p);
        net.ready(P, p, b"");
        net.pass(Id::RTU);
        let Event::Established { .. } = net.event(A) else { panic!() };
        assert_pair(&mut net, (P, p), (A, a));
        // A's REQ, late: P has got its answer.
        net.deliver(&of_a);
        net.assert_silent();
        for host in [A, P] {
            assert_eq!((net.ep(host).connections(), net.ep(host).stats().crossing_requests), (1, 1));
        }
        net.disconnect(A, a);
        net.settle();
    }
}

/// The GUIDs decide, not who asks first: here the smaller one asks alone, and then the larger one.
#[test]
fn cm_t80_the_late_side_is_asked_until_it_asks_itself() {
    for (early, late) in [(A, P), (P, A)] {
        let mut net = peers();
        let first = ask(&mut net, early, late);
        let req = net.pass(Id::REQ);
        // Nobody has asked there: reason 8, which does not count.
        assert_eq!(net.pass(Id::REJ).rej().reason, RejReason::INVALID_SERVICE_ID);
        net.no_event(early);
        net.assert_state(early, first, State::ReqSent);
        assert_eq!(net.ep(early).stats().absent_peers, 1);
        net.advance(req_timer());
        assert_eq!(net.pass(Id::REQ).bytes(), req.bytes());
        net.pass(Id::REJ);
        let second = ask(&mut net, late, early);
        net.pass(Id::REQ);
        if early == P {
            // The larger side was first: it asks again at once.
            assert_eq!(net.pass(Id::REQ).bytes(), req.bytes());
            finish(&mut net, (P, first), (A, second));
        } else {
            finish(&mut net, (P, second), (A, first));
        }
    }
}

/// The REJ that says that the peer has not asked yet comes when it has. It ends nothing, in whatever state.
#[test]
fn a_late_rejection() {
    for (early, late) in [(A, P), (P, A)] {
        for step in 0..5 {
            let mut net = peers();
            let (a, mut p) = (ask(&mut net, early, late), None);
            net.pass(Id::REQ);
            let rej = net.take_only(Id::REJ);
            for n in 0..step {
                let (active, passive) = if early == A { (p, Some(a)) } else { (Some(a), p) };
                match n {
                    0 => {
                        p = Some(ask(&mut net, late, early));
                        net.pass(Id::REQ);
                        if early == P {
                            net.pass(Id::REQ);
                        }
                    }
                    1 => accept(&mut net, A, passive.unwrap()),
                    2 => {
                        net.pass(Id::REP);
                    }
                    _ => {
                        net.ready(P, active.unwrap(), b"");
                        net.pass(Id::RTU);
                    }
                }
            }
            let before = net.ep(early).state(a).unwrap();
            net.deliver(&rej);
            net.assert_state(early, a, before);
            assert_eq!(net.ep(early).stats().absent_peers, 1);
        }
    }
}

/// The passive side's REQ does not count any more, so no rejection of it does. But a peer that has given up is gone, whatever
/// message it names.
#[test]
fn cm_t80_rejections_of_the_request_of_the_passive_side() {
    for accepted in [false, true] {
        for reason in 0..=33 {
            let mut net = peers();
            let (a, _) = (ask(&mut net, A, P), ask(&mut net, P, A));
            net.lose(Id::REQ);
            let req = net.pass(Id::REQ);
            peer_request(&mut net, A, a);
            if accepted {
                accept(&mut net, A, a);
                net.lose(Id::REP);
            }
            let (before, reason) = (net.ep(A).state(a), RejReason(reason));
            net.deliver(&req.with(Rej {
                local_comm_id: req.req().local_comm_id,
                remote_comm_id: net.local_id(A, a),
                message: MessageId::REQ,
                reason,
                ari: Ari::EMPTY,
                private_data: PrivateData::EMPTY,
            }));
            if reason != RejReason::TIMEOUT {
                net.no_event(A);
                assert_eq!((net.ep(A).state(a), net.ep(A).stats().absent_peers), (before, 1), "{reason}");
                continue;
            }
            let Event::Rejected { rejection, .. } = net.event(A) else { panic!() };
            assert_eq!((rejection.reason, net.ep(A).stats().absent_peers), (reason, 0));
            match accepted {
                true => net.assert_state(A, a, State::TimeWait),
                false => net.assert_released(A, a),
            }
        }
    }
}

/// Both on one HCA: the queue pair numbers decide.
#[test]
fn cm_t79_both_on_one_hca() {
    for lost in 0..3 {
        let mut net = Net::pair();
        let small = ask(&mut net, A, A);
        let alone = net.lose(Id::REQ);
        net.deliver(&alone);
        // Its own: nothing happens, no REJ.
        net.assert_silent();
        assert_eq!(net.ep(A).stats().dropped_reflected, 1);
        let large = ask(&mut net, A, A);
        let req = net.take_only(Id::REQ);
        if lost == 0 {
            net.deliver(&req);
        } else {
            // The smaller one's comes first, and makes the larger one ask again.
            net.deliver(&alone);
            assert_eq!(net.pass(Id::REQ).bytes(), req.bytes());
        }
        if lost == 2 {
            net.deliver(&alone);
        }
        finish(&mut net, (A, large), (A, small));
        net.deliver(&alone);
        net.deliver(&req);
        net.assert_silent();
        net.abort(A, large);
        net.settle();
    }
}

/// Whoever asks in whatever order, each finds one other.
#[test]
fn many_pairs_between_two_hosts_and_on_one() {
    for (n, hosts) in [(2, [A, P]), (8, [A, P]), (2, [A, A]), (8, [A, A])] {
        let mut net = peers();
        let all: Vec<_> = (0..n)
            .map(|i| {
                let (host, peer) = (hosts[i % 2], hosts[1 - i % 2]);
                (host, ask(&mut net, host, peer))
            })
            .collect();
        // The events of a host, in any order.
        for _ in 0..20 * n {
            net.run();
            for host in [A, P] {
                for event in net.events(host) {
                    match event {
                        Event::PeerRequest { conn, .. } => accept(&mut net, host, conn),
                        Event::Reply { conn, .. } => net.ready(host, conn, b""),
                        Event::Established { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        net.assert_silent();
        let infos: Vec<_> = all.iter().map(|&(host, conn)| net.ep(host).info(conn).unwrap()).collect();
        for info in &infos {
            assert_eq!(info.state, State::Established, "{n} on {hosts:?}");
            let ids = (info.remote_comm_id, info.local_comm_id);
            let peer = infos.iter().find(|peer| (peer.local_comm_id, peer.remote_comm_id) == ids).unwrap();
            assert_ne!(peer.role, info.role);
        }
        let active = infos.iter().filter(|info| info.role == Role::Active).count();
        assert_eq!(active, n / 2);
    }
}

/// An odd one out waits, and gives up when its retries are used up.
#[test]
fn a_peer_that_never_asks() {
    let mut net = peers();
    let mut connect = net.connect_to(A, P);
    connect.max_cm_retries = 2;
    let a = ask_with(&mut net, A, connect);
    for _ in 0..3 {
        net.pass(Id::REQ);
        net.pass(Id::REJ);
        net.advance(req_timer());
    }
    let rej = net.take_only(Id::REJ);
    assert_eq!(rej.rej().reason, RejReason::TIMEOUT);
    let Event::Timeout { effort, .. } = net.event(A) else { panic!() };
    assert_eq!(effort.sent, 3);
    net.assert_released(A, a);
    // It is found no more.
    net.deliver(&rej);
    ask(&mut net, P, A);
    net.pass(Id::REQ);
    assert_eq!(net.pass(Id::REJ).rej().reason, RejReason::INVALID_SERVICE_ID);
}

/// A listener takes the REQ of one who asks for a peer like any other, unless somebody asks there, too.
#[test]
fn a_plain_listener_and_a_peer() {
    let mut net = Net::pair();
    let a = ask(&mut net, A, P);
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.pass(Id::RTU);
    let Event::Established { .. } = net.event(P) else { panic!() };
    assert_pair(&mut net, (A, a), (P, p));

    // With one who asks, the listener is not told.
    let asks = ask(&mut net, P, A);
    net.lose(Id::REQ);
    let again = ask(&mut net, A, P);
    net.pass(Id::REQ);
    net.no_event(P);
    net.pass(Id::REQ);
    finish(&mut net, (P, asks), (A, again));

    // On one HCA, too.
    let mut net = Net::roce(2);
    let a = ask(&mut net, P, P);
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(P, a);
}

#[test]
fn one_side_rejects() {
    let mut net = peers();
    let (a, p) = (ask(&mut net, A, P), ask(&mut net, P, A));
    net.lose(Id::REQ);
    net.pass(Id::REQ);
    peer_request(&mut net, A, a);
    net.reject(A, a, RejReason::NO_RESOURCES);
    net.assert_released(A, a);
    assert_eq!(net.pass(Id::REJ).rej().reason, RejReason::NO_RESOURCES);
    let Event::Rejected { rejection, .. } = net.event(P) else { panic!() };
    assert_eq!(rejection.reason, RejReason::NO_RESOURCES);
    net.assert_released(P, p);
    net.settle();
}

/// The side whose REQ counts rejects the REP, or gives up before it comes.
#[test]
fn the_active_side_gives_up() {
    for replied in [false, true] {
        let mut net = peers();
        let (a, p) = (ask(&mut net, A, P), ask(&mut net, P, A));
        net.lose(Id::REQ);
        net.pass(Id::REQ);
        peer_request(&mut net, A, a);
        if replied {
            accept(&mut net, A, a);
            net.pass(Id::REP);
            net.reply(P, p);
        }
        net.abort(P, p);
        let rej = net.pass(Id::REJ);
        let Event::Rejected { rejection, .. } = net.event(A) else { panic!() };
        let reason = if replied { RejReason::CONSUMER } else { RejReason::TIMEOUT };
        assert_eq!((rejection.reason, rej.rej().reason), (reason, reason));
        net.settle();
    }
}

/// The passive side is rejected before it has decided. A peer that calls it stale holds its queue pair's number.
#[test]
fn a_queue_pair_that_is_called_stale_rests() {
    for reason in [RejReason::STALE_CONNECTION, RejReason::CONSUMER] {
        let mut net = peers();
        let (a, _) = (ask(&mut net, A, P), ask(&mut net, P, A));
        net.lose(Id::REQ);
        let req = net.pass(Id::REQ);
        peer_request(&mut net, A, a);
        net.deliver(&req.with(Rej {
            local_comm_id: req.req().local_comm_id,
            remote_comm_id: net.local_id(A, a),
            message: MessageId::OTHER,
            reason,
            ari: Ari::EMPTY,
            private_data: PrivateData::EMPTY,
        }));
        let Event::Rejected { rejection, .. } = net.event(A) else { panic!() };
        assert_eq!(rejection.reason, reason);
        match reason {
            RejReason::STALE_CONNECTION => net.assert_state(A, a, State::TimeWait),
            _ => net.assert_released(A, a),
        }
    }
}

/// Each message of the crossing is lost once, and once each is repeated: in the end there is one connection.
#[test]
fn losses_and_repetitions() {
    for lost in 0..6 {
        for repeated in 0..6 {
            let mut net = peers();
            let (a, p) = (ask(&mut net, A, P), ask(&mut net, P, A));
            let mut number = 0;
            for _ in 0..40 {
                net.collect();
                while let Some(flight) = net.wire.pop_front() {
                    if number != lost {
                        net.deliver(&flight);
                    }
                    if number == repeated {
                        net.deliver(&flight);
                    }
                    number += 1;
                }
                for host in [A, P] {
                    for event in net.events(host) {
                        match event {
                            Event::PeerRequest { conn, .. } => accept(&mut net, host, conn),
                            Event::Reply { conn, .. } => net.ready(host, conn, b""),
                            Event::Established { .. } | Event::Busy { .. } => {}
                            other => panic!("{lost} {repeated}: {other:?}"),
                        }
                    }
                }
                net.advance(Duration::from_millis(500));
            }
            net.wire.clear();
            assert_pair(&mut net, (P, p), (A, a));
            assert_eq!((net.ep(A).connections(), net.ep(P).connections()), (1, 1));
        }
    }
}

/// A REQ with the right service and path, but from another host: nobody's peer.
#[test]
fn a_forged_request_finds_no_peer() {
    let mut net = Net::roce(3);
    silence(&mut net, P);
    let a = ask(&mut net, A, P);
    net.lose(Id::REQ);
    let p = ask(&mut net, P, A);
    let flight = net.take_only(Id::REQ);
    let foreign = flight.as_from(&net, C);
    net.deliver(&foreign);
    let rej = net.take_only(Id::REJ);
    assert_eq!((rej.to, rej.rej().reason), (Some(C), RejReason::INVALID_SERVICE_ID));
    net.assert_state(A, a, State::ReqSent);
    // A path that ends at C, although the MAD is P's: not the one that was asked for.
    let mut req = flight.req().clone();
    req.primary.local_gid = net.hosts[C].address.gid;
    net.deliver(&flight.with(req));
    assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::INVALID_SERVICE_ID);
    net.assert_state(A, a, State::ReqSent);
    net.deliver(&flight);
    finish(&mut net, (P, p), (A, a));
}

/// The path of the peer's REQ is none that we have: it is told why, and ours stays out.
#[test]
fn a_path_that_does_not_fit() {
    let mut net = peers();
    let a = ask(&mut net, A, P);
    net.lose(Id::REQ);
    ask(&mut net, P, A);
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.path_mtu = ibwire::Mtu(6);
    net.deliver(&flight.with(req));
    let rej = net.take_only(Id::REJ);
    assert_eq!(rej.rej().reason, RejReason::INVALID_PATH_MTU);
    assert_eq!(RejectInfo::decode(rej.rej().reason, &rej.rej().ari), RejectInfo::PathMtu(ibwire::Mtu::B4096));
    net.no_event(A);
    net.assert_state(A, a, State::ReqSent);
}

/// Whoever is passive answers with the queue pair that asked, and with no more than it offered.
#[test]
fn what_the_passive_side_may_accept() {
    let mut net = peers();
    let mut connect = net.connect_to(A, P);
    (connect.responder_resources, connect.initiator_depth) = (Some(3), Some(5));
    let qpn = connect.qpn;
    let a = ask_with(&mut net, A, connect);
    net.lose(Id::REQ);
    let p = ask(&mut net, P, A);
    net.pass(Id::REQ);
    let request = peer_request(&mut net, A, a);
    assert_eq!((request.responder_resources, request.initiator_depth), (3, 5));
    let (now, other) = (net.now, net.hosts[A].qpn());
    let error = net.ep(A).accept(now, a, Accept::new(other)).unwrap_err();
    assert!(matches!(error, CommandError::Invalid(_)), "{error}");
    let attrs = net.ep(A).accept_attrs(a, &Accept::new(qpn)).unwrap();
    assert_eq!((attrs.rtr.max_dest_rd_atomic, attrs.rts.max_rd_atomic), (3, 5));
    // The number is taken, for all others.
    let used = Connect { qpn, ..net.connect_to(A, P) };
    assert!(net.ep(A).connect(now, used).is_err());
    accept(&mut net, A, a);
    net.pass(Id::REP);
    net.reply(P, p);
    net.ready(P, p, b"");
    net.run();
    assert_eq!(net.ep(P).attrs(p).unwrap().rts.max_rd_atomic, 3);
}

/// The program of the passive side takes its time: the peer is told.
#[test]
fn a_slow_passive_side() {
    let mut net = peers();
    let (a, p) = (ask(&mut net, A, P), ask(&mut net, P, A));
    net.lose(Id::REQ);
    net.pass(Id::REQ);
    peer_request(&mut net, A, a);
    net.advance(answer_time() / 2);
    net.pass(Id::MRA);
    net.assert_state(A, a, State::ReqMraSent);
    let Event::Busy { .. } = net.event(P) else { panic!() };
    net.assert_state(P, p, State::ReqMraRcvd);
    accept(&mut net, A, a);
    net.pass(Id::REP);
    net.reply(P, p);
}

/// The peer has been restarted: what it asked before is stale, and so is its queue pair's connection here.
#[test]
fn a_peer_that_restarts_while_we_decide() {
    let mut net = peers();
    let (a, _) = (ask(&mut net, A, P), ask(&mut net, P, A));
    net.lose(Id::REQ);
    net.pass(Id::REQ);
    peer_request(&mut net, A, a);
    let next_qpn = net.hosts[P].next_qpn - 1;
    net.restart(P);
    net.hosts[P].next_qpn = next_qpn;
    ask(&mut net, P, A);
    net.pass(Id::REQ);
    assert_eq!(net.pass(Id::REJ).rej().reason, RejReason::STALE_CONNECTION);
    let Event::Disconnected { cause: DisconnectCause::Stale, .. } = net.event(A) else { panic!() };
    net.assert_state(A, a, State::TimeWait);
}

/// Firmware without a GUID on both sides: the queue pairs decide.
#[test]
fn cm_t32_two_cas_without_a_guid() {
    let hosts = [0, 1].map(|n| (Address { guid: Guid(0), ..Address::roce(n) }, Config::default()));
    let mut net = Net::new(hosts);
    silence(&mut net, P);
    let mut connect = net.connect_to(A, P);
    connect.qpn = Qpn::truncate(0x900);
    let a = ask_with(&mut net, A, connect);
    net.lose(Id::REQ);
    let p = ask(&mut net, P, A);
    net.pass(Id::REQ);
    net.pass(Id::REQ);
    finish(&mut net, (A, a), (P, p));
}

/// The REQ and its answer, and what is left in every state when a side gives up.
#[test]
fn given_up_at_each_step() {
    for detached in [false, true] {
        for step in 0..6 {
            for who in [A, P] {
                let mut net = peers();
                net.listen(P, Listen::new(SERVICE));
                let (a, p) = (ask(&mut net, A, P), ask(&mut net, P, A));
                for n in 0..step {
                    match n {
                        0 => {
                            net.lose(Id::REQ);
                        }
                        1 => {
                            net.pass(Id::REQ);
                        }
                        2 => accept(&mut net, A, a),
                        3 => {
                            net.pass(Id::REP);
                        }
                        4 => net.ready(P, p, b""),
                        _ => {
                            net.pass(Id::RTU);
                        }
                    }
                }
                let conn = if who == A { a } else { p };
                if detached {
                    net.detach(who, conn);
                } else {
                    net.abort(who, conn);
                }
                net.run();
                let other = if who == A { (P, p) } else { (A, a) };
                net.abort(other.0, other.1);
                for host in [A, P] {
                    for event in net.events(host) {
                        // Its REQ may have come to the listener.
                        if let Event::Request { conn, .. } = event {
                            net.abort(host, conn);
                        }
                    }
                }
                net.settle();
            }
        }
    }
}
