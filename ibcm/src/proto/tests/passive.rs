//! The checks of an arriving REQ and the rows of the passive side's table (spec/cm.md 4.3, 4.5) that no scenario covers.

use std::time::Duration;

use ibwire::{CommId, Gid, Lid, Mtu, PKey, PrivateData, Qpn, RejReason, ServiceId};

use super::pair::*;
use crate::proto::message::{
    Attribute as Id, Dreq, FailoverAccepted, MessageId, PathBlock, Rej, RejectInfo, Req, TransportService,
};
use crate::proto::{Accept, CommandError, DisconnectCause, Event, Listen, ListenError, State};

const NANO: Duration = Duration::from_nanos(1);

/// A REQ of A's that has been tampered with meets this REJ, which A takes for the answer to its own.
#[track_caller]
fn refused(net: &mut Net, change: impl FnOnce(&mut Req)) -> Rej {
    net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    change(&mut req);
    net.deliver(&flight.with(req.clone()));
    net.no_event(P);
    assert_eq!(net.ep(P).connections(), 0);
    let answer = net.take_only(Id::REJ);
    assert_eq!(answer.header.tid, flight.header.tid);
    assert_eq!(answer.to, Some(A));
    let rej = answer.rej().clone();
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId::NONE, req.local_comm_id));
    assert_eq!(rej.message, MessageId::REQ);
    net.deliver(&answer);
    let Event::Rejected { rejection, .. } = net.event(A) else { panic!() };
    assert_eq!(rejection.reason, rej.reason);
    let Event::Released { .. } = net.event(A) else { panic!() };
    rej
}

fn info(rej: &Rej) -> RejectInfo {
    RejectInfo::decode(rej.reason, &rej.ari)
}

#[test]
fn another_class_version() {
    for version in [1, 3] {
        let mut net = Net::pair();
        net.connect();
        let flight = net.take_only(Id::REQ);
        net.deliver(&flight.patched(|mad| mad[2] = version));
        net.no_event(P);
        let answer = net.take_only(Id::REJ);
        let rej = answer.rej();
        assert_eq!(answer.header.tid, flight.header.tid);
        assert_eq!(answer.header.status.0, 0);
        assert_eq!((rej.reason, rej.message), (RejReason::UNSUPPORTED_CLASS_VERSION, MessageId::REQ));
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId::NONE, flight.req().local_comm_id));
        assert_eq!((rej.ari.as_bytes(), info(rej)), (&[2][..], RejectInfo::ClassVersion(2)));
        assert_eq!(net.ep(P).stats().dropped_class_version, 1);
    }
}

#[test]
fn no_queue_pair_or_another_transport() {
    let mut net = Net::pair();
    let rej = refused(&mut net, |req| req.local_qpn = Qpn::truncate(0));
    assert_eq!(rej.reason, RejReason::INVALID_TRANSPORT);
    for transport in [
        TransportService::UC,
        TransportService::RD,
        TransportService::XRC,
        TransportService::new(3, 0).unwrap(),
    ] {
        let rej = refused(&mut net, |req| req.transport = transport);
        assert_eq!(rej.reason, RejReason::INVALID_TRANSPORT, "{transport}");
    }
}

/// Linux can produce it once in 2^32 times.
#[test]
fn comm_id_zero_is_legal() {
    let mut net = Net::pair();
    net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.local_comm_id = CommId::NONE;
    net.deliver(&flight.with(req));
    let (p, _) = net.request(P);
    net.accept(P, p);
    let rep = net.take_only(Id::REP);
    assert_eq!(rep.rep().remote_comm_id, CommId::NONE);
    net.assert_state(P, p, State::RepSent);

    // A REJ without any ID is still nobody's.
    let rej = Rej {
        local_comm_id: CommId::NONE,
        remote_comm_id: CommId::NONE,
        message: MessageId::OTHER,
        reason: RejReason::TIMEOUT,
        ari: RejectInfo::CaGuid(net.hosts[A].address.guid).encode(),
        private_data: PrivateData::EMPTY,
    };
    net.deliver(&flight.with(rej));
    net.assert_state(P, p, State::RepSent);
    net.no_event(P);
}

#[test]
fn nobody_listens() {
    let mut net = Net::pair();
    let rej = refused(&mut net, |req| req.service_id = ServiceId(7));
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
    let listener = net.hosts[P].listener.take().unwrap();
    net.ep(P).unlisten(listener);
    let rej = refused(&mut net, |_| ());
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
}

#[test]
fn unusable_path() {
    let mut net = Net::pair();
    let ours = net.hosts[P].address.gid;
    let rej = refused(&mut net, |req| req.primary.remote_gid = Gid::from_ip([10, 0, 0, 77].into()));
    assert_eq!((rej.reason, info(&rej)), (RejReason::PRIMARY_GID, RejectInfo::Gid(ours)));

    // Nowhere, or everywhere.
    for nobody in [Gid::UNSPECIFIED, Gid::from_ip([239, 1, 1, 1].into()), "ff0e::1".parse().unwrap()] {
        let rej = refused(&mut net, |req| req.primary.local_gid = nobody);
        assert_eq!((rej.reason, info(&rej)), (RejReason::UNSUPPORTED_REQUEST, RejectInfo::None));
    }

    let rej = refused(&mut net, |req| req.pkey = PKey(0x8123));
    assert_eq!(rej.reason, RejReason::UNSUPPORTED_REQUEST);

    for reserved in [Mtu(0), Mtu(6)] {
        let rej = refused(&mut net, |req| req.path_mtu = reserved);
        assert_eq!((rej.reason, info(&rej)), (RejReason::INVALID_PATH_MTU, RejectInfo::PathMtu(Mtu::B4096)));
    }
    let mut port = net.hosts[P].address.port();
    port.mtu = Mtu::B512;
    net.ep(P).update_port(port);
    let rej = refused(&mut net, |_| ());
    assert_eq!((rej.reason, info(&rej)), (RejReason::INVALID_PATH_MTU, RejectInfo::PathMtu(Mtu::B512)));
}

#[test]
fn unusable_lid() {
    let mut net = Net::infiniband();
    let base = net.hosts[P].address.lid;
    let rej = refused(&mut net, |req| req.primary.remote_lid = Lid(0x99));
    assert_eq!((rej.reason, info(&rej)), (RejReason::PRIMARY_LID, RejectInfo::Lid(base)));
    // Any of the port's LIDs will do.
    net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.primary.remote_lid = Lid(base.0 + 1);
    net.deliver(&flight.with(req));
    net.request(P);
}

/// An alternate path is no obstacle; it is declined.
#[test]
fn alternate_path_is_declined() {
    let mut net = Net::infiniband();
    net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.alternate = PathBlock { local_lid: Lid(0x20), ..req.primary };
    net.deliver(&flight.with(req));
    let (p, _) = net.request(P);
    net.accept(P, p);
    assert_eq!(net.take_only(Id::REP).rep().failover_accepted, FailoverAccepted::UNSUPPORTED);
}

#[test]
fn reply_is_repeated_then_given_up() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.max_cm_retries = 2;
    net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.restart(A);
    net.accept(P, p);
    let rep = net.lose(Id::REP);
    for _ in 0..2 {
        net.advance(rep_timer() - NANO);
        net.assert_silent();
        net.advance(NANO);
        assert_eq!(net.take_only(Id::REP).bytes(), rep.bytes());
    }
    net.advance(rep_timer() - NANO);
    net.assert_state(P, p, State::RepSent);
    net.advance(NANO);
    let Event::Timeout { conn, effort } = net.event(P) else { panic!() };
    assert_eq!((conn, effort.sent, effort.waited), (p, 3, 3 * rep_timer()));
    let flight = net.take_only(Id::REJ);
    let rej = flight.rej();
    assert_eq!((rej.reason, rej.message), (RejReason::TIMEOUT, MessageId::OTHER));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (rep.rep().local_comm_id, rep.rep().remote_comm_id));
    assert_eq!(info(rej), RejectInfo::CaGuid(net.hosts[P].address.guid));
    net.assert_state(P, p, State::TimeWait);
    net.settle();
    net.assert_released(P, p);
}

#[test]
fn disconnect_before_the_rtu() {
    let mut net = Net::pair();
    let (Handshake { a, p, .. }, _) = net.readied();
    let rtu = net.take_only(Id::RTU);
    net.disconnect(P, p);
    net.assert_state(P, p, State::DreqSent);
    net.deliver(&rtu); // too late
    net.assert_state(P, p, State::DreqSent);
    net.pass(Id::DREQ);
    let [Event::Disconnected { cause: DisconnectCause::Peer { .. }, .. }] = net.events(A)[..] else {
        panic!()
    };
    net.pass(Id::DREP);
    let [Event::Disconnected { cause: DisconnectCause::Local { .. }, .. }] = net.events(P)[..] else {
        panic!()
    };
    net.settle();
    net.assert_released(A, a);
    net.assert_released(P, p);
}

#[test]
fn given_up_while_undecided() {
    for (mra, detach) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut net = Net::pair();
        let Handshake { a, p, req } = net.requested();
        if mra {
            net.advance(answer_time() / 2);
            net.pass(Id::MRA);
            net.event(A);
        }
        if detach {
            net.detach(P, p);
        } else {
            net.abort(P, p);
        }
        let flight = net.pass(Id::REJ);
        let rej = flight.rej();
        assert_eq!((rej.reason, rej.message), (RejReason::CONSUMER, MessageId::REQ));
        assert_eq!(rej.remote_comm_id, req.req().local_comm_id);
        let Event::Rejected { conn, .. } = net.event(A) else { panic!() };
        assert_eq!(conn, a);
        assert_eq!(net.events(P), if detach { vec![] } else { vec![Event::Released { conn: p }] });
        assert_eq!(net.ep(P).connections(), 0);
    }
}

/// RepMraRcvd ends as RepSent does: by RTU or by data.
#[test]
fn established_after_an_mra() {
    for data in [false, true] {
        let mut net = Net::pair();
        let (Handshake { a, p, .. }, _) = net.replied();
        net.advance(time(20) / 2);
        net.pass(Id::MRA);
        let Event::Busy { .. } = net.event(P) else { panic!() };
        net.ready(A, a, b"now");
        let rtu = net.take_only(Id::RTU);
        if data {
            let (now, qpn) = (net.now, net.ep(P).info(p).unwrap().local_qpn);
            net.ep(P).comm_established(now, qpn);
        } else {
            net.deliver(&rtu);
        }
        let rtu_data = (!data).then(|| PrivateData::from(b"now"));
        assert_eq!(net.events(P), [Event::Established { conn: p, rtu_data }]);
        net.advance(Duration::from_secs(600));
        net.assert_silent();
    }
}

/// An MRA has told the peer our ID: its DREQ cancels.
#[test]
fn dreq_while_undecided() {
    let mut net = Net::pair();
    let Handshake { p, req, .. } = net.requested();
    net.advance(answer_time() / 2);
    let mra = net.lose(Id::MRA);
    let dreq = Dreq {
        local_comm_id: mra.mra().remote_comm_id,
        remote_comm_id: mra.mra().local_comm_id,
        remote_qpn: Qpn::truncate(0),
        private_data: PrivateData::EMPTY,
    };
    net.deliver(&req.with(dreq));
    let drep = net.take_only(Id::DREP);
    assert_eq!(drep.drep().remote_comm_id, req.req().local_comm_id);
    let Event::Withdrawn { conn, rejection: None } = net.event(P) else { panic!() };
    assert_eq!(conn, p);
    net.assert_released(P, p);
}

#[test]
fn request_repeated_while_disconnecting_is_dropped() {
    let mut net = Net::pair();
    let Established { p, req, .. } = net.established();
    net.disconnect(P, p);
    net.lose(Id::DREQ);
    net.deliver(&req);
    net.assert_silent();
    net.no_event(P);
    net.assert_state(P, p, State::DreqSent);
}

#[test]
fn values_out_of_range() {
    let mut net = Net::pair();
    let Handshake { p, .. } = net.requested();
    let good = Accept::new(net.hosts[P].qpn());
    let mut bad = vec![good.clone(), good.clone(), good.clone(), good.clone()];
    bad[0].rnr_retry_count = 8;
    bad[1].responder_resources = Some(17);
    bad[2].initiator_depth = Some(17);
    bad[3].qpn = Qpn::truncate(0);
    for accept in bad {
        let now = net.now;
        let error = net.ep(P).accept(now, p, accept.clone()).unwrap_err();
        assert!(matches!(error, CommandError::Invalid(_)), "{accept:?}: {error:?}");
    }
    net.assert_silent();
    net.assert_state(P, p, State::ReqRcvd);
    net.accept_with(P, p, good);
    net.take_only(Id::REP);
}

#[test]
fn a_queue_pair_serves_one_connection() {
    let mut net = Net::pair();
    let Established { p: first, .. } = net.established();
    let qpn = net.ep(P).info(first).unwrap().local_qpn;
    let Handshake { p, .. } = net.requested();
    let now = net.now;
    assert_eq!(net.ep(P).accept(now, p, Accept::new(qpn)), Err(CommandError::QpInUse(qpn)));
    net.assert_silent();
    net.assert_state(P, p, State::ReqRcvd);
}

#[test]
fn listeners() {
    let mut net = Net::pair();
    assert_eq!(net.ep(P).listen(Listen::new(SERVICE)), Err(ListenError::AddrInUse));
    let mut none = Listen::new(ServiceId(1));
    none.backlog = 0;
    assert!(matches!(net.ep(P).listen(none), Err(ListenError::Invalid(_))));

    // One that names the GID is preferred to one that does not.
    let mut exact = Listen::new(SERVICE);
    exact.local_gid = Some(net.hosts[P].address.gid);
    let exact = net.ep(P).listen(exact).unwrap();
    net.connect();
    net.pass(Id::REQ);
    let Event::Request { listener, conn, .. } = net.event(P) else { panic!() };
    assert_eq!(listener, exact);
    assert_eq!(net.ep(P).pending_requests(exact), Some(1));
    // Requests that were handed out live on without their listener.
    net.ep(P).unlisten(exact);
    assert_eq!(net.ep(P).pending_requests(exact), None);
    net.accept(P, conn);
    net.take_only(Id::REP);
    net.connect();
    net.pass(Id::REQ);
    net.request(P);
}

/// Out of memory for the request: it is dropped, as if it had been lost, and comes again.
#[test]
fn cm_t48_dropped_without_an_answer() {
    for mra in [false, true] {
        let mut net = Net::pair();
        let Handshake { a, p, .. } = net.requested();
        if mra {
            net.advance(answer_time() / 2);
            net.pass(Id::MRA);
            net.event(A);
        }
        let now = net.now;
        net.ep(P).ignore(now, p).unwrap();
        net.assert_silent();
        net.assert_released(P, p);
        let listener = net.hosts[P].listener.unwrap();
        assert_eq!(net.ep(P).pending_requests(listener), Some(0));
        assert_eq!(net.ep(P).ignore(now, p), Err(CommandError::Gone));

        net.advance(req_timer());
        net.pass(Id::REQ);
        let (again, _) = net.request(P);
        assert_ne!(again, p);
        net.accept(P, again);
        net.pass(Id::REP);
        net.reply(A, a);
        net.ready(A, a, b"");
        net.run();
        net.assert_state(P, again, State::Established);
        assert!(matches!(net.ep(P).ignore(now, again), Err(CommandError::State(State::Established))));
    }
}
