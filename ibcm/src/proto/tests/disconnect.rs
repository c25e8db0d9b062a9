//! Disconnecting and TimeWait (spec/cm.md 4.6, 8.1).

use std::time::Duration;

use ibwire::{PrivateData, Qpn, RejReason};

use super::pair::*;
use crate::proto::message::{Attribute as Id, Drep, Message, MessageId, Mra, Rej};
use crate::proto::{Config, ConnectError, Disconnect, DisconnectCause, Event, State};

fn peer_closed(event: &Event) -> bool {
    matches!(event, Event::Disconnected { cause: DisconnectCause::Peer { .. }, .. })
}

#[test]
fn private_data_passes_both_ways() {
    let mut net = Net::pair();
    let Established { a, p, req, .. } = net.established();
    net.ep(P).set_disconnect_data(p, PrivateData::from(b"drep data")).unwrap();
    let now = net.now;
    let disconnect = Disconnect { private_data: PrivateData::from(b"dreq data"), ..Disconnect::default() };
    net.ep(A).disconnect(now, a, disconnect).unwrap();

    let dreq = net.pass(Id::DREQ);
    assert_ne!(dreq.header.tid, req.header.tid, "a DREQ is a transaction of its own");
    assert_eq!(dreq.dreq().remote_qpn, net.ep(P).info(p).unwrap().local_qpn);
    let drep = net.pass(Id::DREP);
    assert_eq!(drep.header.tid, dreq.header.tid);
    assert_eq!((drep.drep().local_comm_id, drep.drep().remote_comm_id), {
        let dreq = dreq.dreq();
        (dreq.remote_comm_id, dreq.local_comm_id)
    });

    let cause = DisconnectCause::Peer { private_data: PrivateData::from(b"dreq data") };
    assert_eq!(net.event(P), Event::Disconnected { conn: p, cause });
    let cause = DisconnectCause::Local { private_data: PrivateData::from(b"drep data") };
    assert_eq!(net.event(A), Event::Disconnected { conn: a, cause });
    net.assert_state(A, a, State::TimeWait);
    net.assert_state(P, p, State::TimeWait);
    net.settle();
    net.assert_released(A, a);
    net.assert_released(P, p);
}

/// 2 T(packet lifetime) + T(ack delay of the peer); the passive side has only the REQ's ack timeout to go by.
#[test]
fn time_wait_lasts_as_long_as_packets_may_live() {
    let mut net = Net::pair();
    let Disconnected { a, p, req, .. } = net.disconnected();
    let active = 2 * LIFE_TIME.duration() + ACK_DELAY.duration();
    let passive = req.req().primary.local_ack_timeout.duration();
    assert!(passive < active);
    net.advance(passive - Duration::from_nanos(1));
    net.assert_state(P, p, State::TimeWait);
    net.advance(Duration::from_nanos(1));
    net.assert_released(P, p);
    net.advance(active - passive - Duration::from_nanos(1));
    net.assert_state(A, a, State::TimeWait);
    net.advance(Duration::from_nanos(1));
    net.assert_released(A, a);
    assert_eq!(net.next_timeout(), None);
}

#[test]
fn cm_t12_dreq_repeated_in_time_wait() {
    let mut net = Net::pair();
    let Established { a, p, .. } = net.established();
    net.ep(P).set_disconnect_data(p, PrivateData::from(b"drep data")).unwrap();
    net.disconnect(A, a);
    let dreq = net.pass(Id::DREQ);
    let drep = net.lose(Id::DREP);
    assert!(peer_closed(&net.event(P)));

    net.deliver(&dreq);
    let again = net.take_only(Id::DREP);
    assert_eq!(again.bytes(), drep.bytes());
    net.no_event(P);
    net.assert_state(P, p, State::TimeWait);
    net.deliver(&again);
    net.assert_state(A, a, State::TimeWait);
}

#[test]
fn cm_t13_dreq_repeated_after_time_wait() {
    let mut net = Net::pair();
    let Established { a, p, .. } = net.established();
    net.disconnect(A, a);
    net.pass(Id::DREQ);
    net.lose(Id::DREP);
    // A's timer is longer than P's TimeWait.
    net.advance(req_timer());
    assert_eq!(net.ep(P).state(p), None);
    net.events(P);

    let dreq = net.pass(Id::DREQ);
    let drep = net.take_only(Id::DREP);
    let (asked, answer) = (dreq.dreq(), drep.drep());
    assert_eq!(answer.local_comm_id, asked.remote_comm_id);
    assert_eq!(answer.remote_comm_id, asked.local_comm_id);
    assert_eq!(drep.header.tid, dreq.header.tid);
    assert_eq!(drep.to, Some(A));
    net.no_event(P);
    net.deliver(&drep);
    let [Event::Disconnected { cause: DisconnectCause::Local { .. }, .. }] = net.events(A)[..] else {
        panic!()
    };
    net.settle();
}

#[test]
fn cm_t14_both_sides_disconnect() {
    let mut net = Net::pair();
    let Established { a, p, .. } = net.established();
    net.disconnect(A, a);
    net.disconnect(P, p);
    let (from_a, from_p) = (net.take(Id::DREQ), net.take_only(Id::DREQ));
    net.deliver(&from_a);
    net.deliver(&from_p);
    let (drep_p, drep_a) = (net.take(Id::DREP), net.take_only(Id::DREP));
    assert_eq!((drep_p.from, drep_a.from), (P, A));
    for (host, conn) in [(A, a), (P, p)] {
        net.assert_state(host, conn, State::TimeWait);
        let [Event::Disconnected { .. }] = net.events(host)[..] else { panic!("not one Disconnected") };
    }
    net.deliver(&drep_p);
    net.deliver(&drep_a);
    net.assert_silent();
    net.settle();
    net.assert_released(A, a);
    net.assert_released(P, p);
    assert_eq!(net.next_timeout(), None);
}

#[test]
fn cm_t15_dreq_after_an_mra_of_the_reply() {
    dreq_instead_of_the_rtu(true);
}

#[test]
fn cm_t16_dreq_after_a_lost_rtu() {
    dreq_instead_of_the_rtu(false);
}

/// In RepMraRcvd or RepSent: a clean end, and the REP's timer has ended too.
fn dreq_instead_of_the_rtu(mra: bool) {
    let mut net = Net::pair();
    let (Handshake { a, p, .. }, _) = net.replied();
    if mra {
        net.advance(time(20) / 2);
        net.pass(Id::MRA);
        net.assert_state(P, p, State::RepMraRcvd);
        let Event::Busy { .. } = net.event(P) else { panic!() };
    } else {
        net.assert_state(P, p, State::RepSent);
    }
    net.ready(A, a, b"");
    let rtu = net.lose(Id::RTU);
    net.disconnect(A, a);
    net.pass(Id::DREQ);
    net.pass(Id::DREP);
    let events = net.events(P);
    let [Event::Established { rtu_data: None, .. }, closed] = &events[..] else { panic!("{events:?}") };
    assert!(peer_closed(closed));
    net.assert_state(P, p, State::TimeWait);
    let [Event::Disconnected { .. }] = net.events(A)[..] else { panic!() };

    // T22: the RTU comes after the DREQ.
    net.deliver(&rtu);
    net.assert_state(P, p, State::TimeWait);
    net.no_event(P);

    net.advance(100 * rep_timer());
    net.assert_silent();
    net.assert_released(P, p);
    net.assert_released(A, a);
    assert_eq!(net.next_timeout(), None);
}

#[test]
fn cm_t17_dreq_for_another_qp() {
    let mut net = Net::pair();
    let Established { a, p, .. } = net.established();
    net.disconnect(A, a);
    let dreq = net.take_only(Id::DREQ);
    let mut wrong = dreq.dreq().clone();
    wrong.remote_qpn = Qpn::truncate(wrong.remote_qpn.get() ^ 1);
    net.deliver(&dreq.with(wrong));
    net.assert_silent();
    net.no_event(P);
    net.assert_state(P, p, State::Established);
    assert_eq!(net.ep(P).stats().dropped_wrong_qpn, 1);
}

#[test]
fn cm_t18_dreq_to_a_dead_peer() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.max_cm_retries = 3;
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.run();
    net.events(P);

    net.disconnect(A, a);
    let first = net.lose(Id::DREQ);
    for _ in 0..3 {
        net.advance(req_timer());
        assert_eq!(net.take_only(Id::DREQ).bytes(), first.bytes());
        net.no_event(A);
    }
    net.advance(req_timer() - Duration::from_nanos(1));
    net.assert_state(A, a, State::DreqSent);
    net.no_event(A);
    net.advance(Duration::from_nanos(1));
    net.assert_state(A, a, State::TimeWait);
    let Event::Disconnected { conn, cause: DisconnectCause::Timeout(effort) } = net.event(A) else {
        panic!()
    };
    assert_eq!((conn, effort.sent, effort.waited), (a, 4, 4 * req_timer()));
    net.assert_silent();

    // The passive side's DREQ has the timeout that the REQ set for its answers.
    net.disconnect(P, p);
    let first = net.lose(Id::DREQ);
    for _ in 0..3 {
        net.advance(rep_timer());
        assert_eq!(net.take_only(Id::DREQ).bytes(), first.bytes());
    }
    net.advance(rep_timer());
    let Event::Disconnected { cause: DisconnectCause::Timeout(effort), .. } = net.event(P) else { panic!() };
    assert_eq!((effort.sent, effort.waited), (4, 4 * rep_timer()));
    net.advance(Duration::from_secs(60));
    net.assert_released(A, a);
    net.assert_released(P, p);
}

/// With Linux's parameters a dead peer costs 77 s; the caller may want it shorter.
#[test]
fn cm_t18_shorter_bound() {
    let mut net = Net::pair();
    let Established { a, .. } = net.established();
    let deadline = Some(net.now + Duration::from_secs(6));
    let disconnect = Disconnect { deadline, ..Disconnect::default() };
    let now = net.now;
    net.ep(A).disconnect(now, a, disconnect).unwrap();
    let sent = net.advance_lossy(Duration::from_secs(6));
    assert_eq!(sent.len(), 2);
    let Event::Disconnected { cause: DisconnectCause::Timeout(effort), .. } = net.event(A) else { panic!() };
    assert_eq!((effort.sent, effort.waited), (2, Duration::from_secs(6)));
    net.assert_state(A, a, State::TimeWait);
    net.advance(Duration::from_secs(1));
    net.assert_released(A, a);
}

/// The REQ chose how long and how often the passive side tries its DREQ: 16 times a minute. It is not held to that.
#[test]
fn cm_t18_bound_of_our_own() {
    for (configured, bound, sent) in [(None, 90, 2), (Some(30), 30, 1), (Some(100_000), 16 * 60, 16)] {
        let mut config = Config::default();
        if let Some(seconds) = configured {
            config.max_disconnect_time = Duration::from_secs(seconds);
        }
        let mut net = Net::new([(Address::roce(A), Config::default()), (Address::roce(P), config)]);
        let mut connect = net.connect_to(A, P);
        connect.local_response_timeout = time_code(31);
        let a = net.connect_with(A, connect);
        net.pass(Id::REQ);
        let (p, _) = net.request(P);
        net.accept(P, p);
        net.pass(Id::REP);
        net.reply(A, a);
        net.ready(A, a, b"");
        net.run();
        net.events(P);

        // Dropped, and the peer is dead. That somebody would wait longer does not matter.
        net.abort(P, p);
        let longer = Disconnect { deadline: Some(net.now + time(31)), ..Disconnect::default() };
        let now = net.now;
        net.ep(P).disconnect(now, p, longer).unwrap();
        let bound = Duration::from_secs(bound);
        let dreqs = net.advance_lossy(bound - Duration::from_nanos(1));
        assert_eq!(dreqs.len(), sent);
        net.assert_state(P, p, State::DreqSent);
        net.advance(Duration::from_nanos(1));
        net.assert_state(P, p, State::TimeWait);
        assert_eq!(net.ep(P).stats().disconnect_timeouts, 1);
        net.advance(Duration::from_secs(1));
        net.assert_released(P, p);
    }
}

/// Whoever wants a running exchange to end sooner is heard, whoever wants it to last longer is not.
#[test]
fn cm_t18_shorter_bound_for_a_running_exchange() {
    let mut net = Net::pair();
    let Established { a, .. } = net.established();
    net.disconnect(A, a);
    net.advance_lossy(Duration::from_secs(1));
    let start = net.now;
    for seconds in [60, 6, 30] {
        let deadline = Some(start + Duration::from_secs(seconds));
        net.ep(A).disconnect(start, a, Disconnect { deadline, ..Disconnect::default() }).unwrap();
    }
    net.advance_lossy(Duration::from_secs(6) - Duration::from_nanos(1));
    net.assert_state(A, a, State::DreqSent);
    net.advance_lossy(Duration::from_nanos(1));
    let Event::Disconnected { cause: DisconnectCause::Timeout(effort), .. } = net.event(A) else { panic!() };
    assert_eq!(effort.waited, Duration::from_secs(7));
    net.assert_state(A, a, State::TimeWait);
}

#[test]
fn cm_t19_handle_dropped_while_established() {
    let mut net = Net::pair();
    let Established { a, p, .. } = net.established();
    net.detach(A, a);
    let first = net.lose(Id::DREQ);
    for _ in 0..3 {
        net.advance(req_timer());
        assert_eq!(net.lose(Id::DREQ).bytes(), first.bytes());
    }
    net.advance(req_timer());
    net.pass(Id::DREQ);
    assert!(peer_closed(&net.event(P)));
    net.pass(Id::DREP);
    assert_eq!(net.ep(A).count(State::TimeWait), 1);

    // P's own DREQ, as if it had not seen ours, is answered.
    let mut crossing = first.dreq().clone();
    std::mem::swap(&mut crossing.local_comm_id, &mut crossing.remote_comm_id);
    crossing.remote_qpn = Qpn::truncate(0x101); // A's first
    let mut flight = first.with(crossing).as_from(&net, P);
    flight.to = Some(A);
    net.deliver(&flight);
    let drep = net.take_only(Id::DREP);
    assert_eq!((drep.from, drep.to), (A, Some(P)));
    net.settle();
    net.no_event(A);
    assert_released_only(&net.events(P), p);
}

fn assert_released_only(events: &[Event], conn: crate::proto::ConnHandle) {
    assert_eq!(events, [Event::Released { conn }]);
}

#[test]
fn cm_t22_dreq_before_the_rtu_in_one_poll() {
    let mut net = Net::pair();
    let (Handshake { a, p, .. }, _) = net.readied();
    net.disconnect(A, a);
    let (rtu, dreq) = (net.take(Id::RTU), net.take_only(Id::DREQ));
    net.deliver(&dreq);
    net.deliver(&rtu);
    net.take_only(Id::DREP);
    let events = net.events(P);
    let [Event::Established { .. }, closed] = &events[..] else { panic!("{events:?}") };
    assert!(peer_closed(closed));
    net.assert_state(P, p, State::TimeWait);
}

#[test]
fn rej_in_dreq_sent_ends_it() {
    let mut net = Net::pair();
    let Established { a, rtu, .. } = net.established();
    net.disconnect(A, a);
    net.lose(Id::DREQ);
    let ids = rtu.rtu();
    let rej = Rej {
        local_comm_id: ids.remote_comm_id,
        remote_comm_id: ids.local_comm_id,
        message: MessageId::OTHER,
        reason: RejReason::INVALID_COMM_ID,
        ari: Default::default(),
        private_data: PrivateData::EMPTY,
    };
    let mut flight = rtu.with(rej).as_from(&net, P);
    flight.to = Some(A);
    net.deliver(&flight);
    let [Event::Disconnected { .. }] = net.events(A)[..] else { panic!("not one Disconnected") };
    net.assert_state(A, a, State::TimeWait);
    net.assert_silent();
}

#[test]
fn handle_dropped_in_dreq_sent() {
    let mut net = Net::pair();
    let Established { a, .. } = net.established();
    net.disconnect(A, a);
    let dreq = net.lose(Id::DREQ);
    net.detach(A, a);
    net.assert_silent();
    net.advance(req_timer());
    assert_eq!(net.take_only(Id::DREQ).bytes(), dreq.bytes());
    net.deliver(&dreq);
    net.settle();
    net.no_event(A);
}

/// DreqSent: a REP that comes again lets the server leave RepSent.
#[test]
fn repeated_reply_in_dreq_sent_is_answered_with_the_rtu() {
    let mut net = Net::pair();
    let (Handshake { a, p, .. }, rep) = net.readied();
    let rtu = net.lose(Id::RTU);
    net.disconnect(A, a);
    net.lose(Id::DREQ);
    net.deliver(&rep);
    let again = net.take_only(Id::RTU);
    assert_eq!(again.bytes(), rtu.bytes());
    net.deliver(&again);
    net.assert_state(P, p, State::Established);
    net.assert_state(A, a, State::DreqSent);
}

#[test]
fn time_wait_ignores_the_rest() {
    let mut net = Net::pair();
    let Disconnected { a, p, rep, rtu, drep, .. } = net.disconnected();
    let ids = rtu.rtu();
    let mra = Mra {
        local_comm_id: ids.remote_comm_id,
        remote_comm_id: ids.local_comm_id,
        message: MessageId::REP,
        service_timeout: time_code(20),
        private_data: PrivateData::EMPTY,
    };
    let rej = Rej {
        local_comm_id: ids.remote_comm_id,
        remote_comm_id: ids.local_comm_id,
        message: MessageId::OTHER,
        reason: RejReason::TIMEOUT,
        ari: Default::default(),
        private_data: PrivateData::EMPTY,
    };
    let timers = [net.ep(A).poll_timeout(), net.ep(P).poll_timeout()];
    for message in [Message::from(mra), rej.into()] {
        let mut flight = drep.clone();
        flight.message = message;
        let flight = flight.with(flight.message.clone());
        net.deliver(&flight);
    }
    net.deliver(&rep);
    net.deliver(&rtu);
    net.deliver(&drep);
    net.assert_silent();
    net.no_event(A);
    net.no_event(P);
    net.assert_state(A, a, State::TimeWait);
    net.assert_state(P, p, State::TimeWait);
    assert_eq!([net.ep(A).poll_timeout(), net.ep(P).poll_timeout()], timers);
}

fn time_code(code: u8) -> ibwire::TimeCode {
    ibwire::TimeCode::new(code).unwrap()
}

#[test]
fn established_ignores_answers_that_nobody_waits_for() {
    let mut net = Net::pair();
    let Established { a, p, req, rep, rtu } = net.established();
    let ids = rep.rep();
    for message in [MessageId::REQ, MessageId::REP, MessageId::LAP] {
        let mra = Mra {
            local_comm_id: ids.local_comm_id,
            remote_comm_id: ids.remote_comm_id,
            message,
            service_timeout: time_code(20),
            private_data: PrivateData::EMPTY,
        };
        net.deliver(&rep.with(mra));
    }
    let drep = Drep {
        local_comm_id: ids.local_comm_id,
        remote_comm_id: ids.remote_comm_id,
        private_data: PrivateData::EMPTY,
    };
    net.deliver(&rep.with(drep));
    net.deliver(&rtu);
    net.deliver(&req);
    net.assert_silent();
    net.no_event(A);
    net.no_event(P);
    net.assert_state(A, a, State::Established);
    net.assert_state(P, p, State::Established);
    assert_eq!(net.next_timeout(), None);
}

/// A QP number rests until TimeWait is over, whoever disconnected.
#[test]
fn a_queue_pair_in_time_wait_is_refused() {
    let mut net = Net::pair();
    let Disconnected { a, .. } = net.disconnected();
    let mut connect = net.connect_to(A, P);
    connect.qpn = net.ep(A).info(a).unwrap().local_qpn;
    let now = net.now;
    let refused = net.ep(A).connect(now, connect.clone()).unwrap_err();
    assert_eq!(refused, ConnectError::QpInUse(connect.qpn));
    net.assert_silent();
    net.settle();
    net.events(A);
    net.connect_with(A, connect);
    net.take_only(Id::REQ);
}

#[test]
fn disconnecting_again_does_nothing() {
    let mut net = Net::pair();
    let Established { a, .. } = net.established();
    net.disconnect(A, a);
    net.disconnect(A, a);
    net.pass(Id::DREQ);
    net.disconnect(A, a);
    net.pass(Id::DREP);
    net.disconnect(A, a);
    net.assert_silent();
    let [Event::Disconnected { .. }] = net.events(A)[..] else { panic!("not one Disconnected") };
}
