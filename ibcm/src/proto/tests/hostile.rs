//! Peers that lie, and peers that send too much (spec/cm.md 4.2; the bounds of `Config`).

use std::time::Duration;

use ibwire::{CommId, Gid, PrivateData, Qpn, RejReason, TimeCode};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};

use super::pair::*;
use crate::proto::message::{Attribute as Id, Dreq, MessageId, Rej, RejectInfo};
use crate::proto::{Config, Event, Listen, Reject, State};

/// C knows the IDs of A's and P's connection. Whatever it does with them, the connection is untouched.
#[test]
fn foreign_source_with_the_right_ids() {
    let mut net = Net::roce(3);
    let Established { a, p, rtu, .. } = net.established();
    let ids = rtu.rtu();
    let dreq = Dreq {
        local_comm_id: ids.local_comm_id,
        remote_comm_id: ids.remote_comm_id,
        remote_qpn: net.ep(P).info(p).unwrap().local_qpn,
        private_data: PrivateData::EMPTY,
    };
    let foreign = rtu.with(dreq).as_from(&net, C);
    net.deliver(&foreign);
    // Answered as a DREQ for a connection that does not exist.
    let drep = net.take_only(Id::DREP);
    assert_eq!(drep.to, Some(C));
    net.no_event(P);

    for message in [MessageId::REQ, MessageId::REP, MessageId::OTHER] {
        for reason in [RejReason::TIMEOUT, RejReason::CONSUMER] {
            let rej = Rej {
                local_comm_id: ids.local_comm_id,
                remote_comm_id: ids.remote_comm_id,
                message,
                reason,
                ari: RejectInfo::CaGuid(net.hosts[A].address.guid).encode(),
                private_data: PrivateData::EMPTY,
            };
            let foreign = rtu.with(rej).as_from(&net, C);
            net.deliver(&foreign);
        }
    }
    net.assert_silent();
    net.no_event(P);
    net.assert_state(A, a, State::Established);
    net.assert_state(P, p, State::Established);
    assert_eq!(net.ep(P).stats().foreign_source, 7);
}

/// A REJ 4 names A's GUID and ID, but comes from C: A's request stays.
#[test]
fn foreign_source_withdraws_nothing() {
    let mut net = Net::roce(3);
    let Handshake { p, req, .. } = net.requested();
    let rej = Rej {
        local_comm_id: req.req().local_comm_id,
        remote_comm_id: CommId::NONE,
        message: MessageId::OTHER,
        reason: RejReason::TIMEOUT,
        ari: RejectInfo::CaGuid(net.hosts[A].address.guid).encode(),
        private_data: PrivateData::EMPTY,
    };
    let foreign = req.with(rej).as_from(&net, C);
    net.deliver(&foreign);
    net.assert_silent();
    net.no_event(P);
    net.assert_state(P, p, State::ReqRcvd);
}

/// C's REQ claims A's GUID and queue pair, or GUID and ID: it is another host's request, nothing more.
#[test]
fn foreign_source_is_no_restarted_peer() {
    for same_id in [false, true] {
        let mut net = Net::roce(3);
        let Established { a, p, req: old, .. } = net.established();
        let connect = net.connect_to(C, P);
        net.connect_with(C, connect);
        let flight = net.take_only(Id::REQ);
        let mut req = flight.req().clone();
        req.local_ca_guid = old.req().local_ca_guid;
        if same_id {
            req.local_comm_id = old.req().local_comm_id;
        } else {
            req.local_qpn = old.req().local_qpn;
        }
        net.deliver(&flight.with(req));
        net.assert_silent();
        net.request(P);
        net.assert_state(A, a, State::Established);
        net.assert_state(P, p, State::Established);
        assert_eq!(net.ep(P).stats().stale, 0);
    }
}

/// The same for a REP.
#[test]
fn foreign_reply_is_not_stale() {
    let mut net = Net::roce(3);
    let Established { a: old, rep: old_rep, .. } = net.established();
    net.listen(C, Listen::new(SERVICE));
    let connect = net.connect_to(A, C);
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (c, _) = net.request(C);
    net.accept(C, c);
    let flight = net.take_only(Id::REP);
    let mut rep = flight.rep().clone();
    rep.local_ca_guid = old_rep.rep().local_ca_guid;
    rep.local_qpn = old_rep.rep().local_qpn;
    net.deliver(&flight.with(rep));
    net.assert_silent();
    net.reply(A, a);
    net.assert_state(A, old, State::Established);
    assert_eq!(net.ep(A).stats().stale, 0);
}

/// C asks P for a connection, claiming A's GUID, this queue pair of A's and A's address as the end of the path.
fn claim(net: &mut Net, qpn: Qpn) {
    let connect = net.connect_to(C, P);
    net.connect_with(C, connect);
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    let a = net.hosts[A].address;
    (req.local_ca_guid, req.local_qpn, req.primary.local_gid) = (a.guid, qpn, a.gid);
    net.deliver(&flight.with(req));
    net.request(P);
    net.assert_silent();
}

/// Where the path ends is only what the REQ says. A's own requests and replies do not make such a connection stale, and
/// are not stale for it.
#[test]
fn claimed_address_is_no_source() {
    let mut net = Net::roce(3);
    let connect = net.connect_to(A, P);
    claim(&mut net, connect.qpn);
    net.connect_with(A, connect);
    net.pass(Id::REQ);
    net.request(P);
    net.assert_silent();

    net.listen(A, Listen::new(SERVICE));
    let connect = net.connect_to(P, A);
    let conn = net.connect_with(P, connect);
    net.pass(Id::REQ);
    let (a, _) = net.request(A);
    net.accept(A, a);
    let rep = net.take_only(Id::REP);
    claim(&mut net, rep.rep().local_qpn);
    net.deliver(&rep);
    net.reply(P, conn);
    net.assert_silent();
    assert_eq!(net.ep(P).stats().stale, 0);
}

/// Requests without end: the backlog bounds what is kept.
#[test]
fn flood_of_requests() {
    let mut net = Net::pair();
    net.connect();
    let flight = net.take_only(Id::REQ);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..1000 {
        let mut req = flight.req().clone();
        req.local_comm_id = CommId(rng.random());
        req.local_qpn = Qpn::truncate(rng.random());
        net.deliver(&flight.with(req));
    }
    net.assert_silent();
    assert_eq!(net.events(P).len(), 128);
    assert_eq!(net.ep(P).connections(), 128);
    assert_eq!(net.ep(P).stats().dropped_backlog, 872);
}

/// Two requests from one queue pair: the first is stale before anybody has decided on it. Nothing of it stays but a
/// record in bounded memory, though the peer asked for the longest TimeWait.
#[test]
fn flood_of_stale_requests() {
    let mut net = Net::pair();
    net.connect();
    let flight = net.take_only(Id::REQ);
    for n in 0..1000 {
        let mut req = flight.req().clone();
        req.primary.local_ack_timeout = TimeCode::MAX;
        req.local_qpn = Qpn::truncate(0x1000 + n);
        req.local_comm_id = CommId(2 * n + 1);
        let first = flight.with(req.clone());
        net.deliver(&first);
        net.assert_silent();
        req.local_comm_id = CommId(2 * n + 2);
        net.deliver(&flight.with(req));
        net.take_only(Id::REJ);
        assert_eq!(net.ep(P).connections(), 0);

        // The first one, late, is still no new request.
        net.deliver(&first);
        assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::STALE_CONNECTION);
    }
    let requests = net.events(P).iter().filter(|event| matches!(event, Event::Request { .. })).count();
    assert_eq!(requests, 1000);
}

/// Rejected requests leave a bounded memory behind, and no connection.
#[test]
fn flood_of_requests_for_nothing() {
    let config = Config { max_rejections: 10, ..Config::default() };
    let mut net = Net::new([(Address::roce(A), Config::default()), (Address::roce(P), config)]);
    let listener = net.hosts[P].listener.unwrap();
    let mut rejected = Vec::new();
    for _ in 0..20 {
        let Handshake { p, req, .. } = net.requested();
        net.reject(P, p, RejReason::CONSUMER);
        rejected.push((req, net.take_only(Id::REJ)));
        net.events(P);
    }
    assert_eq!(net.ep(P).connections(), 0);
    assert_eq!(net.ep(P).pending_requests(listener), Some(0));
    // The last ten meet the same REJ again; the first are new requests.
    for (req, rej) in &rejected[10..] {
        net.deliver(req);
        assert_eq!(net.take_only(Id::REJ).bytes(), rej.bytes());
    }
    net.no_event(P);
    for (req, _) in &rejected[..10] {
        net.deliver(req);
        net.request(P);
    }
}

/// A rejection is not remembered for ever either: after its linger the ID may be used anew.
#[test]
fn rejections_are_forgotten() {
    let mut net = Net::pair();
    let Handshake { p, req, .. } = net.requested();
    net.reject(P, p, RejReason::CONSUMER);
    net.lose(Id::REJ);
    net.events(P);
    net.now += Config::default().max_rejection_linger + Duration::from_millis(1);
    net.deliver(&req);
    net.request(P);
}

#[test]
fn answers_wait_in_a_bounded_queue() {
    let config = Config { max_queued_answers: 50, ..Config::default() };
    let mut net = Net::new([(Address::roce(A), Config::default()), (Address::roce(P), config)]);
    net.connect();
    let flight = net.take_only(Id::REQ);
    let now = net.now;
    let dreq = Dreq {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        remote_qpn: Qpn::truncate(3),
        private_data: PrivateData::EMPTY,
    };
    let flight = flight.with(dreq);
    for n in 0..200u8 {
        let mut source = flight.source;
        source.grh.as_mut().unwrap().dgid = Gid::from_ip([10, 9, 0, n].into());
        net.ep(P).handle_mad(now, &source, flight.bytes());
    }
    let sent = std::iter::from_fn(|| net.ep(P).poll_transmit(now, 1)).count();
    assert_eq!(sent, 50);
    assert_eq!(net.ep(P).stats().dropped_answer_queue, 150);
}

/// So do the REJs of a program that rejects faster than the port sends. What is dropped is not forgotten: the REQ comes
/// again and meets it.
#[test]
fn rejections_wait_in_a_bounded_queue() {
    let config = Config { max_queued_answers: 50, ..Config::default() };
    let mut net = Net::new([(Address::roce(A), Config::default()), (Address::roce(P), config)]);
    net.connect();
    let flight = net.take_only(Id::REQ);
    let now = net.now;
    let mut requests = Vec::new();
    for n in 1..=200 {
        let mut req = flight.req().clone();
        (req.local_comm_id, req.local_qpn) = (CommId(n), Qpn::truncate(0x1000 + n));
        requests.push(flight.with(req));
        net.ep(P).handle_mad(now, &flight.source, requests.last().unwrap().bytes());
        let Some(Event::Request { conn, .. }) = net.ep(P).poll_event() else { panic!() };
        net.ep(P).reject(now, conn, Reject::new(RejReason::CONSUMER)).unwrap();
        assert_eq!(net.ep(P).poll_event(), Some(Event::Released { conn }));
    }
    let sent = std::iter::from_fn(|| net.ep(P).poll_transmit(now, 1)).count();
    assert_eq!(sent, 50);
    assert_eq!(net.ep(P).stats().dropped_answer_queue, 150);
    net.deliver(&requests[199]);
    assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::CONSUMER);
    net.no_event(P);
}

/// A REQ may say that its answers take hours: our REP does not wait that long between two transmissions.
#[test]
fn response_times_are_capped() {
    let mut net = Net::pair();
    net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.local_cm_response_timeout = TimeCode::MAX;
    req.remote_cm_response_timeout = TimeCode::truncate(0);
    net.deliver(&flight.with(req));
    let (p, _) = net.request(P);
    net.collect();
    net.wire.clear();
    net.accept(P, p);
    net.lose(Id::REP);
    let cap = Config::default().max_response_timeout;
    net.advance(cap - Duration::from_nanos(1));
    net.wire.retain(|flight| flight.from == P);
    net.assert_silent();
    net.advance(Duration::from_nanos(1));
    net.wire.retain(|flight| flight.from == P);
    net.take_only(Id::REP);
}

/// Any bytes, in any state: no panic, no connection out of nothing, and a timer that moves on.
#[test]
fn noise() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut net = Net::pair();
    for _ in 0..20 {
        net.established();
        net.requested();
        net.readied();
        net.take_only(Id::RTU);
    }
    net.events(A);
    net.events(P);
    net.connect();
    let template = net.take_only(Id::REQ);
    let ids: Vec<CommId> = (0..2).flat_map(|host| net.all_local_ids(host)).collect();
    for round in 0..20_000 {
        let flight = template.patched(|mad| {
            mad[16..18].copy_from_slice(&rng.random_range(0x10..0x1eu16).to_be_bytes());
            rng.fill(&mut mad[24..]);
            // Often with IDs that exist.
            if round % 4 != 0 {
                for at in [24, 28] {
                    let id = ids[rng.random_range(0..ids.len())];
                    mad[at..at + 4].copy_from_slice(&id.0.to_be_bytes());
                }
            }
            if round % 16 == 0 {
                let at = rng.random_range(0..24);
                mad[at] = rng.random();
            }
        });
        net.deliver(&flight);
        net.wire.clear();
        net.class_answers.clear();
        net.events(A);
        net.events(P);
        if round % 1000 == 0 {
            net.advance(Duration::from_secs(1));
            net.wire.clear();
        }
    }
    for _ in 0..100 {
        net.advance_lossy(Duration::from_secs(100));
        net.class_answers.clear();
    }
    // What is left was never told to end.
    for host in [A, P] {
        let left = net.ep(host).connections();
        assert_eq!(left, net.ep(host).count(State::Established) + undecided(&mut net, host));
    }
}

/// C knows everything about A and P but their addresses: IDs, GUIDs, queue pairs. No connection of theirs, in whatever
/// state, takes notice of anything it sends. (In ReqSent an ID is all that a REP needs.)
#[test]
fn noise_of_a_stranger() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut net = Net::roce(3);
    let disconnected = net.disconnected();
    let dreq_sent = net.established();
    net.disconnect(A, dreq_sent.a);
    net.take_only(Id::DREQ);
    let established = net.established();
    let rep_rcvd = net.replied().0;
    let requested = net.requested();
    let (readied, _) = net.readied();
    let rtu = net.take_only(Id::RTU);
    let conns = [
        (A, disconnected.a),
        (P, disconnected.p),
        (A, dreq_sent.a),
        (P, dreq_sent.p),
        (A, established.a),
        (P, established.p),
        (A, rep_rcvd.a),
        (P, rep_rcvd.p),
        (P, requested.p),
        (A, readied.a),
        (P, readied.p),
    ];
    let seen = |net: &Net| conns.map(|(host, conn)| net.hosts[host].ep.info(conn));
    let before = seen(&net);

    let ids: Vec<CommId> = before.iter().map(|info| info.unwrap().local_comm_id).collect();
    let template = established.req.as_from(&net, C);
    for _ in 0..20_000 {
        let flight = template.patched(|mad| {
            let attribute = rng.random_range(0x10..0x17u16);
            mad[16..18].copy_from_slice(&attribute.to_be_bytes());
            let payload = &mut mad[24..];
            if attribute != Id::REQ.0 {
                rng.fill(payload);
                payload[4..8].copy_from_slice(&ids[rng.random_range(0..ids.len())].0.to_be_bytes());
            }
            payload[..4].copy_from_slice(&ids[rng.random_range(0..ids.len())].0.to_be_bytes());
            let qpn = [0, 1, rng.random_range(0..32)];
            match attribute {
                0x10 => {
                    if rng.random() {
                        rng.fill(&mut payload[..4]);
                    }
                    payload[32..35].copy_from_slice(&qpn);
                }
                0x12 => {
                    payload[10..12].copy_from_slice(&rng.random_range(1..36u16).to_be_bytes());
                    payload[12..20].copy_from_slice(&net.hosts[A].address.guid.0.to_be_bytes());
                }
                0x13 => {
                    payload[12..15].copy_from_slice(&qpn);
                    payload[28..36].copy_from_slice(&net.hosts[P].address.guid.0.to_be_bytes());
                }
                0x15 => payload[8..11].copy_from_slice(&qpn),
                _ => {}
            }
        });
        let to = [A, P][rng.random_range(0..2)];
        net.deliver(&Flight { to: Some(to), ..flight });
        assert!(net.wire.drain(..).all(|answer| answer.to == Some(C)));
        for host in [A, P] {
            for event in net.events(host) {
                assert!(!conns.contains(&(host, event.conn())), "{event:?}");
            }
        }
    }
    assert_eq!(seen(&net), before);

    // Nor is A kept from what it does next.
    net.deliver(&rtu);
    net.assert_state(P, readied.p, State::Established);
    let listener = net.hosts[P].listener.take().unwrap();
    net.ep(P).unlisten(listener);
    net.listen(P, Listen::new(SERVICE));
    net.events(P);
    let in_use: Vec<_> = before.iter().map(|info| info.unwrap().local_qpn).collect();
    net.hosts[A].next_qpn = 0x100;
    for _ in 0..31 {
        let connect = net.connect_to(A, P);
        if !in_use.contains(&connect.qpn) {
            net.connect_with(A, connect);
            net.pass(Id::REQ);
            net.request(P);
        }
    }
    net.assert_silent();
}

fn undecided(net: &mut Net, host: usize) -> usize {
    [State::ReqRcvd, State::ReqMraSent, State::RepRcvd, State::RepMraSent]
        .map(|s| net.ep(host).count(s))
        .iter()
        .sum()
}

/// A peer that sends a reply, then everything twice, in any order, gains nothing.
#[test]
fn replies_to_both_of_two_requests() {
    let mut net = Net::pair();
    let (first, rep) = net.readied();
    net.take_only(Id::RTU);
    // The first reply again, addressed to the second attempt.
    let second = net.connect();
    net.take_only(Id::REQ);
    let mut forged = rep.rep().clone();
    forged.remote_comm_id = net.local_id(A, second);
    net.deliver(&rep.with(forged));
    let events = net.events(A);
    assert!(!events.iter().any(|event| matches!(event, Event::Reply { .. })), "{events:?}");
    net.assert_state(A, second, State::ReqSent);
    assert!(net.ep(A).state(first.a).is_some());
}
