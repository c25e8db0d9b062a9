//! The end of a connection from every state: the device goes, the handle is dropped, the peer is dead (spec/cm.md 8.5).

use std::time::Duration;

use ibwire::PrivateData;

use super::pair::*;
use crate::proto::message::Attribute as Id;
use crate::proto::{ConnHandle, ConnectError, Event, Listen, ListenError, State};

const STATES: [State; 11] = [
    State::ReqSent,
    State::ReqMraRcvd,
    State::RepRcvd,
    State::RepMraSent,
    State::ReqRcvd,
    State::ReqMraSent,
    State::RepSent,
    State::RepMraRcvd,
    State::Established,
    State::DreqSent,
    State::TimeWait,
];

/// A host with one connection, which is in this state. Nothing is on the wire, no event waits.
fn in_state(state: State) -> (Net, usize, ConnHandle) {
    let mut net = Net::pair();
    let (host, conn) = match state {
        State::ReqSent => (A, net.requested().a),
        State::ReqMraRcvd => {
            let Handshake { a, .. } = net.requested();
            net.advance(answer_time() / 2);
            net.pass(Id::MRA);
            (A, a)
        }
        State::RepRcvd => (A, net.replied().0.a),
        State::RepMraSent => {
            let (Handshake { a, .. }, _) = net.replied();
            net.advance(answer_time() / 2);
            (A, a)
        }
        State::ReqRcvd => (P, net.requested().p),
        State::ReqMraSent => {
            let Handshake { p, .. } = net.requested();
            net.advance(answer_time() / 2);
            (P, p)
        }
        State::RepSent => (P, net.accepted().p),
        State::RepMraRcvd => {
            let (Handshake { p, .. }, _) = net.replied();
            net.advance(answer_time() / 2);
            net.pass(Id::MRA);
            (P, p)
        }
        State::Established => (A, net.established().a),
        State::DreqSent => {
            let Established { a, .. } = net.established();
            net.disconnect(A, a);
            (A, a)
        }
        State::TimeWait => (P, net.disconnected().p),
    };
    net.collect();
    net.wire.clear();
    net.events(A);
    net.events(P);
    net.assert_state(host, conn, state);
    (net, host, conn)
}

#[test]
fn cm_t85_device_removed() {
    for state in STATES {
        let (mut net, host, conn) = in_state(state);
        // With something in every queue.
        net.ep(host).device_removed();
        let events = net.events(host);
        match state {
            State::TimeWait => assert_eq!(events, [Event::Released { conn }]),
            _ => assert_eq!(events, [Event::DeviceRemoved { conn }, Event::Released { conn }], "{state}"),
        }
        assert_eq!(net.ep(host).poll_timeout(), None, "{state}");
        assert_eq!(net.ep(host).connections(), 0);
        assert_eq!(net.ep(host).state(conn), None);
        if let Some(listener) = net.hosts[host].listener {
            assert_eq!(net.ep(host).pending_requests(listener), Some(0));
        }
        net.assert_silent();

        // Nothing is answered, nothing begins.
        let other = 1 - host;
        net.listen(other, Listen::new(ibwire::ServiceId(9)));
        let connect = net.connect_to(host, other);
        let now = net.now;
        assert_eq!(net.ep(host).connect(now, connect), Err(ConnectError::DeviceRemoved));
        assert_eq!(net.ep(host).listen(Listen::new(ibwire::ServiceId(10))), Err(ListenError::DeviceRemoved));
        let connect = net.connect_to(other, host);
        net.connect_with(other, connect);
        net.wire.retain(|flight| flight.message.attribute() == Id::REQ);
        net.run();
        assert!(net.wire.iter().all(|flight| flight.from == other));
        net.no_event(host);
    }
}

/// MADs that were waiting to be sent are gone with the device.
#[test]
fn cm_t85_nothing_is_sent_afterwards() {
    let mut net = Net::pair();
    let Established { p, .. } = net.established();
    let rep = {
        net.accepted();
        net.take_only(Id::REP)
    };
    let connect = net.connect_to(A, P);
    let now = net.now;
    net.ep(A).connect(now, connect).unwrap();
    net.disconnect(P, p);
    let dreq = net.wire.iter().find(|flight| flight.from == P).unwrap().clone();
    net.wire.clear();
    let connect = net.connect_to(A, P);
    let ep = &mut net.hosts[A].ep;
    ep.handle_mad(now, &dreq.source, dreq.bytes()); // a DREP
    ep.handle_mad(now, &rep.source, rep.bytes());
    ep.connect(now, connect).unwrap(); // a REQ
    ep.device_removed();
    assert!(ep.poll_transmit(now, 1).is_none());
}

/// Nobody answers any more. Whatever was going on ends by itself.
#[test]
fn cm_t86_teardown_never_waits_for_the_peer() {
    // 16 transmissions of a DREQ, then TimeWait.
    let bound = 16 * req_timer() + Duration::from_secs(2);
    for state in STATES {
        for detach in [false, true] {
            let (mut net, host, conn) = in_state(state);
            net.hosts[1 - host].ep.device_removed();
            net.events(1 - host);
            if detach {
                net.detach(host, conn);
            } else {
                net.abort(host, conn);
            }
            let sent = net.advance_lossy(bound);
            assert_eq!(net.ep(host).connections(), 0, "{state}, detach {detach}");
            assert_eq!(net.ep(host).poll_timeout(), None, "{state}, detach {detach}");
            let expected = if detach { vec![] } else { vec![Event::Released { conn }] };
            assert_eq!(net.events(host), expected, "{state}, detach {detach}");
            let kinds: Vec<Id> = sent.iter().map(|flight| flight.message.attribute()).collect();
            match state {
                State::Established => assert_eq!(kinds, [Id::DREQ; 16]),
                State::DreqSent => assert_eq!(kinds, [Id::DREQ; 15]),
                State::TimeWait => assert_eq!(kinds, []),
                _ => assert_eq!(kinds, [Id::REJ], "{state}"),
            }
        }
    }
}

/// A REQ that has not left needs no REJ.
#[test]
fn given_up_before_anything_was_sent() {
    let mut net = Net::pair();
    let (now, connect) = (net.now, net.connect_to(A, P));
    let a = net.ep(A).connect(now, connect).unwrap();
    net.ep(A).abort(now, a);
    net.assert_silent();
    net.assert_released(A, a);
}

/// Who never calls `disconnect` still learns of the end, and of the end of TimeWait.
#[test]
fn cm_t87_passive_close() {
    let mut net = Net::pair();
    let Established { a, p, .. } = net.established();
    net.disconnect(A, a);
    net.settle();
    let events = net.events(P);
    let [Event::Disconnected { conn, .. }, Event::Released { conn: released }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((conn, released), (p, p));
}

/// The other way round: disconnect called when the peer has long done so.
#[test]
fn cm_t87_disconnect_after_the_peer_did() {
    let mut net = Net::pair();
    let Disconnected { p, .. } = net.disconnected();
    net.disconnect(P, p);
    net.assert_silent();
    net.settle();
    net.assert_released(P, p);
    // And after that it is an error, not a wait.
    let now = net.now;
    assert!(net.ep(P).disconnect(now, p, Default::default()).is_err());
    assert!(net.ep(P).ready(now, p, PrivateData::EMPTY).is_err());
}

/// The queue pair of an attempt that failed before its REP needs no rest; one that got further does.
#[test]
fn when_the_queue_pair_may_be_used_again() {
    for state in STATES {
        let (mut net, host, conn) = in_state(state);
        let qpn = net.ep(host).info(conn).unwrap().local_qpn;
        net.hosts[1 - host].ep.device_removed();
        net.abort(host, conn);
        net.advance_lossy(16 * req_timer() + Duration::from_secs(2));
        let events = net.events(host);
        assert_eq!(events.last(), Some(&Event::Released { conn }));
        if qpn.get() != 0 {
            let mut connect = net.connect_to(host, 1 - host);
            connect.qpn = qpn;
            net.connect_with(host, connect);
            net.take(Id::REQ);
        }
    }
}
