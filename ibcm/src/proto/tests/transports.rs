//! UC, XRC and RD: the fields, what queue pairs are programmed with, and who refuses what (spec/cm.md 2.13, 5.1).

use ibwire::{PrivateData, QKey, Qpn, RejReason, TimeCode};

use super::pair::*;
use crate::proto::message::{Attribute as Id, Eecn, RetryCount, TransportService};
use crate::proto::{
    Accept, CommandError, ConnHandle, Connect, Event, Listen, RdEnd, Role, State, Transport, Transports,
};

const ALL: [Transport; 4] = [Transport::Rc, Transport::Uc, Transport::Rd, Transport::Xrc];

/// Two hosts, of which P takes every transport.
fn pair() -> Net {
    let mut net = Net::pair();
    let rc_only = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(rc_only);
    net.listen(P, Listen { transports: Transports::from(ALL), ..Listen::new(SERVICE) });
    net
}

fn rd(eecn: u32, qkey: u32) -> RdEnd {
    RdEnd { eecn: Eecn::truncate(eecn), qkey: QKey(qkey) }
}

fn request(net: &mut Net, transport: Transport) -> Connect {
    let mut connect = net.connect_to(A, P);
    connect.transport = transport;
    connect.rd = (transport == Transport::Rd).then(|| rd(0x777, 0xc0c1_c2c3));
    connect
}

/// Established; nothing is on the wire.
fn established(net: &mut Net, connect: Connect, accept: Accept) -> (ConnHandle, ConnHandle, Flight, Flight) {
    let a = net.connect_with(A, connect);
    let req = net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept_with(P, p, accept);
    let rep = net.pass(Id::REP);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.pass(Id::RTU);
    let Event::Established { .. } = net.event(P) else { panic!() };
    (a, p, req, rep)
}

/// The DREQ names the other end, and that closes it.
fn close(net: &mut Net, from: (usize, ConnHandle), to: (usize, ConnHandle)) {
    let names = net.ep(to.0).info(to.1).unwrap().local_qpn;
    net.disconnect(from.0, from.1);
    assert_eq!(net.pass(Id::DREQ).dreq().remote_qpn, names);
    net.pass(Id::DREP);
    net.assert_state(from.0, from.1, State::TimeWait);
    net.assert_state(to.0, to.1, State::TimeWait);
    net.settle();
}

#[test]
fn uc_repeats_nothing_and_reads_nothing() {
    let mut net = pair();
    let connect = request(&mut net, Transport::Uc);
    let qpn = connect.qpn;
    let accept = Accept::new(Qpn::truncate(0x333));
    let (a, p, req, rep) = established(&mut net, connect, accept);
    let req = req.req();
    assert_eq!((req.transport, req.local_qpn), (TransportService::UC, qpn));
    assert_eq!((req.responder_resources, req.initiator_depth), (0, 0));
    assert_eq!((req.retry_count.get(), req.rnr_retry_count.get()), (0, 0));
    let rep = rep.rep();
    assert_eq!((rep.local_qpn, rep.responder_resources, rep.initiator_depth), (Qpn::truncate(0x333), 0, 0));
    for (host, conn, peer) in [(A, a, Qpn::truncate(0x333)), (P, p, qpn)] {
        assert_eq!(net.ep(host).info(conn).unwrap().transport, Transport::Uc);
        let attrs = net.ep(host).attrs(conn).unwrap();
        assert_eq!((attrs.rtr.dest_qpn, attrs.rtr.max_dest_rd_atomic, attrs.rts.max_rd_atomic), (peer, 0, 0));
        assert_eq!((attrs.rts.timeout, attrs.rts.retry_count), (TimeCode::truncate(0), 0));
        assert_eq!(attrs.init.access, ibdev::Access::REMOTE_WRITE);
    }
    close(&mut net, (P, p), (A, a));
}

/// A peer that offers reads on an unreliable connection: they count for nothing.
#[test]
fn reads_over_uc_do_not_exist() {
    let mut net = pair();
    let mut connect = request(&mut net, Transport::Uc);
    connect.initiator_depth = Some(1);
    let (now, ep) = (net.now, &mut net.hosts[A].ep);
    let error = ep.connect(now, connect.clone()).unwrap_err();
    assert_eq!(error.to_string(), "initiator depth is 1, at most 0 is allowed");
    connect.initiator_depth = None;
    net.connect_with(A, connect);
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    (req.responder_resources, req.initiator_depth) = (9, 9);
    net.deliver(&flight.with(req));
    let (_, request) = net.request(P);
    assert_eq!((request.responder_resources, request.initiator_depth), (0, 0));
}

/// The target's number stands in the REP where EE contexts have theirs.
#[test]
fn cm_t54_xrc_from_an_initiator_to_a_target() {
    let mut net = pair();
    let connect = request(&mut net, Transport::Xrc);
    let initiator = connect.qpn;
    let accept = Accept::new(Qpn::truncate(0x333));
    let (a, p, req, rep) = established(&mut net, connect, accept);
    let req = req.req();
    assert_eq!((req.transport.service_type(), req.transport.extension()), (3, 1));
    assert_eq!((req.local_qpn, req.responder_resources, req.srq), (initiator, 0, false));
    assert_eq!((req.retry_count, req.rnr_retry_count), (RetryCount::truncate(0), RetryCount::truncate(0)));
    assert!(req.initiator_depth > 0);
    let rep = rep.rep();
    assert_eq!((rep.local_qpn.get(), rep.local_eecn.get(), rep.srq), (0, 0x333, true));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (req.initiator_depth, 0));
    let (ours, theirs) = (net.ep(A).attrs(a).unwrap(), net.ep(P).attrs(p).unwrap());
    assert_eq!((ours.rtr.dest_qpn, theirs.rtr.dest_qpn), (Qpn::truncate(0x333), initiator));
    assert_eq!((ours.rtr.max_dest_rd_atomic, theirs.rts.max_rd_atomic), (0, 0));
    assert_eq!(ours.rts.max_rd_atomic, theirs.rtr.max_dest_rd_atomic);
    // What the initiator repeats is its own affair.
    assert_eq!((ours.rts.retry_count, ours.rts.rnr_retry), (7, 7));
    assert_eq!(net.ep(A).info(a).unwrap().remote_qpn, Qpn::truncate(0x333));
    // The target is in use, whoever asks.
    let now = net.now;
    let (second, _) = {
        net.connect();
        net.pass(Id::REQ);
        net.request(P)
    };
    let used = net.ep(P).accept(now, second, Accept::new(Qpn::truncate(0x333)));
    assert_eq!(used, Err(CommandError::QpInUse(Qpn::truncate(0x333))));
    net.reject(P, second, RejReason::CONSUMER);
    net.run();
    net.events(A);
    net.events(P);
    close(&mut net, (A, a), (P, p));
}

#[test]
fn cm_t54_reserved_extensions_are_refused() {
    for extension in [0, 2, 3, 4, 5, 6, 7] {
        let mut net = pair();
        net.connect();
        let flight = net.take_only(Id::REQ);
        let mut req = flight.req().clone();
        req.transport = TransportService::new(3, extension).unwrap();
        net.deliver(&flight.with(req));
        net.no_event(P);
        assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::INVALID_TRANSPORT);
    }
}

/// A REP of XRC without a target, one of RC that has its number in the wrong place.
#[test]
fn cm_t54_a_reply_without_its_end() {
    for transport in [Transport::Xrc, Transport::Rc] {
        let mut net = pair();
        let connect = request(&mut net, transport);
        let a = net.connect_with(A, connect);
        net.pass(Id::REQ);
        let (p, _) = net.request(P);
        net.accept(P, p);
        let flight = net.take_only(Id::REP);
        let mut rep = flight.rep().clone();
        (rep.local_qpn, rep.local_eecn) =
            (Qpn::truncate(rep.local_eecn.get()), Eecn::truncate(rep.local_qpn.get()));
        net.deliver(&flight.with(rep));
        net.assert_silent();
        net.assert_state(A, a, State::ReqSent);
        assert_eq!(net.ep(A).stats().dropped_malformed, 1);
        net.deliver(&flight);
        net.reply(A, a);
    }
}

/// Both EE contexts go along, and the connection is known by them.
#[test]
fn rd_between_two_ee_contexts() {
    let mut net = pair();
    let connect = request(&mut net, Transport::Rd);
    let qpn = connect.qpn;
    let accept = Accept { rd: Some(rd(0x888, 0xd0d1_d2d3)), ..Accept::new(Qpn::truncate(0x333)) };
    let (a, p, req, rep) = established(&mut net, connect, accept);
    let req = req.req();
    assert_eq!((req.transport, req.local_qpn), (TransportService::RD, qpn));
    assert_eq!((req.local_eecn.get(), req.local_qkey), (0x777, QKey(0xc0c1_c2c3)));
    assert_eq!((req.rdc_exists, req.remote_eecn.get()), (false, 0));
    let rep = rep.rep();
    assert_eq!((rep.local_qpn, rep.local_eecn.get()), (Qpn::truncate(0x333), 0x888));
    assert_eq!(rep.local_qkey, QKey(0xd0d1_d2d3));
    let (ours, theirs) = (net.ep(A).attrs(a).unwrap(), net.ep(P).attrs(p).unwrap());
    assert_eq!((ours.rtr.dest_qpn.get(), theirs.rtr.dest_qpn.get()), (0x888, 0x777));
    assert_eq!(ours.rts.max_rd_atomic, theirs.rtr.max_dest_rd_atomic);

    // A second pair of queue pairs over the same channel: neither side takes that for a restart.
    let mut again = request(&mut net, Transport::Rd);
    again.rdc = Some(Eecn::truncate(0x888));
    let accept = Accept { rd: Some(rd(0x888, 5)), ..Accept::new(Qpn::truncate(0x334)) };
    let (second, passive, req, _) = established(&mut net, again, accept);
    assert_eq!((req.req().rdc_exists, req.req().remote_eecn.get()), (true, 0x888));
    for (host, conn) in [(A, a), (A, second), (P, p), (P, passive)] {
        net.assert_state(host, conn, State::Established);
    }
    assert_eq!((net.ep(A).stats().stale, net.ep(P).stats().stale), (0, 0));
    net.disconnect(A, second);
    assert_eq!(net.pass(Id::DREQ).dreq().remote_qpn.get(), 0x888);
    net.pass(Id::DREP);
    net.assert_state(P, p, State::Established);
    net.events(A);
    net.events(P);
    close(&mut net, (P, p), (A, a));
}

/// The program knows which EE contexts it has: these are its reasons.
#[test]
fn what_an_rd_program_refuses_with() {
    for reason in [RejReason::NO_EEC, RejReason::RDC_NOT_EXIST] {
        let mut net = pair();
        let mut connect = request(&mut net, Transport::Rd);
        connect.rdc = Some(Eecn::truncate(9));
        net.connect_with(A, connect);
        net.pass(Id::REQ);
        let (p, request) = net.request(P);
        assert_eq!((request.req.rdc_exists, request.req.remote_eecn), (true, Eecn::truncate(9)));
        net.reject(P, p, reason);
        net.pass(Id::REJ);
        let Event::Rejected { rejection, .. } = net.event(A) else { panic!() };
        assert_eq!(rejection.reason, reason);
        net.settle();
    }
}

/// Reason 9 unless the listener has enabled it, RD even where nobody listens.
#[test]
fn transports_are_refused_unless_they_are_enabled() {
    for transport in ALL {
        for listened in [true, false] {
            let mut net = Net::pair();
            if !listened {
                let listener = net.hosts[P].listener.unwrap();
                net.ep(P).unlisten(listener);
            }
            let connect = request(&mut net, transport);
            let a = net.connect_with(A, connect);
            net.pass(Id::REQ);
            if (transport, listened) == (Transport::Rc, true) {
                net.request(P);
                continue;
            }
            let reason = match (transport, listened) {
                (Transport::Rd, _) | (_, true) => RejReason::INVALID_TRANSPORT,
                (_, false) => RejReason::INVALID_SERVICE_ID,
            };
            assert_eq!(net.pass(Id::REJ).rej().reason, reason, "{transport}");
            assert_eq!(net.ep(A).state(a), None);
        }
    }
}

/// A REQ for RD without an EE context, and commands that forget it or have one too many.
#[test]
fn rd_without_an_ee_context() {
    let mut net = pair();
    let connect = request(&mut net, Transport::Rd);
    let now = net.now;
    let mut refused = |change: fn(&mut Connect)| {
        let mut connect = connect.clone();
        change(&mut connect);
        net.ep(A).connect(now, connect).unwrap_err().to_string()
    };
    assert_eq!(refused(|connect| connect.rd = None), "EE context is RD, it must be given with RD");
    assert_eq!(refused(|connect| connect.rd = Some(rd(0, 1))), "EE context is 0, at least 1 is needed");
    let rc = refused(|connect| connect.transport = Transport::Rc);
    assert_eq!(rc, "EE context is RC, it must be left out: only RD has one");
    let no_rdc = refused(|connect| {
        (connect.transport, connect.rd, connect.rdc) = (Transport::Rc, None, Some(Eecn::truncate(1)));
    });
    assert_eq!(no_rdc, "RDC is RC, it must be left out: only reliable datagrams have one");
    let srq = refused(|connect| {
        (connect.transport, connect.rd, connect.srq) = (Transport::Xrc, None, true);
    });
    assert!(srq.starts_with("shared receive queue is 1"), "{srq}");

    net.connect_with(A, connect);
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.local_eecn = Eecn::truncate(0);
    net.deliver(&flight.with(req));
    assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::INVALID_TRANSPORT);
    net.deliver(&flight);
    let (p, _) = net.request(P);
    let error = net.ep(P).accept(now, p, Accept::new(Qpn::truncate(0x333))).unwrap_err();
    assert_eq!(error.to_string(), "EE context is RD, it must be given with RD");
}

/// Between peers: RC and UC, and both the same.
#[test]
fn peers_agree_about_the_transport() {
    for transport in [Transport::Rd, Transport::Xrc] {
        let mut net = pair();
        let connect = request(&mut net, transport);
        let now = net.now;
        let error = net.ep(A).connect_peer(now, connect).unwrap_err();
        assert_eq!(error.to_string(), format!("transport is {transport}, it must be RC or UC between peers"));
    }
    let mut net = Net::pair();
    let listener = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(listener);
    let (now, uc) = (net.now, request(&mut net, Transport::Uc));
    let a = net.ep(A).connect_peer(now, uc).unwrap();
    net.lose(Id::REQ);
    let connect = net.connect_to(P, A);
    let p = net.ep(P).connect_peer(now, connect.clone()).unwrap();
    net.pass(Id::REQ);
    assert_eq!(net.take_only(Id::REJ).rej().reason, RejReason::INVALID_TRANSPORT);
    net.assert_state(A, a, State::ReqSent);
    net.abort(P, p);
    net.wire.clear();
    let p = net
        .ep(P)
        .connect_peer(now, Connect { transport: Transport::Uc, qpn: Qpn::truncate(0x999), ..connect });
    let p = p.unwrap();
    net.pass(Id::REQ);
    let Event::PeerRequest { .. } = net.event(A) else { panic!() };
    net.accept_with(A, a, Accept::new(net.hosts[A].ep.info(a).unwrap().local_qpn));
    net.pass(Id::REP);
    net.hosts[P].events.clear();
    net.ep(P).ready(now, p, PrivateData::EMPTY).unwrap();
    assert_eq!(net.ep(P).info(p).unwrap().role, Role::Active);
    assert_eq!(net.ep(P).attrs(p).unwrap().rts.retry_count, 0);
}
