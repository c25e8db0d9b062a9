//! What a hostile peer may say again, guess, or say too often (design.md section 5: everything it supplies is bounded).

use std::time::Duration;

use ibwire::{CommId, Gid, Guid, PrivateData, Qpn, RejReason, TimeCode};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};

use super::pair::*;
use crate::proto::message::{Attribute as Id, Dreq, MessageId, Mra, Rej, RejectInfo, Rtu};
use crate::proto::{Config, ConnHandle, DisconnectCause, Event, Listen, State};

/// Every message of a connection comes again when its TimeWait is over. What asks for an answer gets the one for unknown
/// IDs; the REQ is a new one for the program, and comes to nothing when that accepts it: nobody knows the REP.
#[test]
fn cm_t08_replays_after_time_wait() {
    let mut net = Net::pair();
    let Disconnected { req, rep, rtu, dreq, drep, .. } = net.disconnected();
    net.settle();
    net.events(A);
    net.events(P);
    net.deliver(&rep);
    let rej = net.take_only(Id::REJ);
    assert_eq!((rej.from, rej.rej().reason), (A, RejReason::INVALID_COMM_ID));
    net.deliver(&rej);
    net.deliver(&rtu);
    net.deliver(&drep);
    net.assert_silent();
    net.deliver(&dreq);
    net.take_only(Id::DREP);
    for host in [A, P] {
        assert_eq!(net.ep(host).connections(), 0);
        net.no_event(host);
    }

    net.deliver(&req);
    let (p, _) = net.request(P);
    net.accept(P, p);
    net.pass(Id::REP);
    assert_eq!(net.pass(Id::REJ).rej().reason, RejReason::INVALID_COMM_ID);
    let Event::Rejected { rejection, .. } = net.event(P) else { panic!() };
    assert_eq!(rejection.reason, RejReason::INVALID_COMM_ID);
    assert_eq!(net.ep(A).connections(), 0);
    net.settle();
}

/// REQ and REP with the longest of all times: nothing of ours lasts longer than our own bounds.
#[test]
fn timeouts_of_31() {
    let most = Config::default();
    let mut net = Net::pair();
    net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.remote_cm_response_timeout = TimeCode::MAX;
    req.local_cm_response_timeout = TimeCode::MAX;
    req.primary.local_ack_timeout = TimeCode::MAX;
    net.deliver(&flight.with(req));
    let (p, _) = net.request(P);
    net.accept(P, p);
    let rep = net.take_only(Id::REP);
    assert_eq!(net.ep(P).attrs(p).unwrap().rts.timeout, most.max_ack_timeout);
    // Nobody answers, and an MRA asks for hours besides.
    let mut mra = Mra {
        local_comm_id: rep.rep().remote_comm_id,
        remote_comm_id: rep.rep().local_comm_id,
        message: MessageId::REP,
        service_timeout: TimeCode::MAX,
        private_data: PrivateData::EMPTY,
    };
    net.deliver(&flight.with(mra.clone()));
    let start = net.now;
    net.advance(16 * most.max_response_timeout.max(most.max_mra_wait));
    let ended = net.events(P).into_iter().any(|event| matches!(event, Event::Timeout { .. }));
    assert!(ended, "still {:?} after {:?}", net.ep(P).state(p), net.now - start);
    net.advance(most.max_time_wait);
    assert_eq!(net.ep(P).state(p), None);

    // The active side: MRA and REP.
    let mut net = Net::pair();
    let Handshake { a, p, .. } = net.accepted();
    let flight = net.take_only(Id::REP);
    mra.message = MessageId::REQ;
    (mra.local_comm_id, mra.remote_comm_id) = (flight.rep().local_comm_id, flight.rep().remote_comm_id);
    net.deliver(&flight.with(mra));
    let Event::Busy { until, .. } = net.event(A) else { panic!() };
    assert_eq!(until - net.now, most.max_mra_wait);
    let mut rep = flight.rep().clone();
    rep.target_ack_delay = TimeCode::MAX;
    net.deliver(&flight.with(rep));
    net.reply(A, a);
    assert_eq!(net.ep(A).attrs(a).unwrap().rts.timeout, most.max_ack_timeout);
    net.ready(A, a, b"");
    net.run();
    net.disconnect(A, a);
    net.run();
    net.assert_state(A, a, State::TimeWait);
    net.advance(most.max_time_wait);
    assert_eq!((net.ep(A).state(a), net.ep(P).state(p)), (None, None));
}

/// One who sees nothing guesses IDs, from the peer's own address: both of them, or ours alone with everything else known.
/// None of tens of thousands hits, and what is answered is bounded.
#[test]
fn guessed_ids() {
    let mut net = Net::pair();
    let Established { a, p, rtu, .. } = net.established();
    let remote_qpn = net.ep(P).info(p).unwrap().local_qpn;
    let theirs = rtu.rtu().local_comm_id;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for n in 0..20_000u32 {
        let (local, guess) = (if n % 2 == 0 { theirs } else { CommId(rng.random()) }, CommId(rng.random()));
        let data = PrivateData::EMPTY;
        let dreq = Dreq { local_comm_id: local, remote_comm_id: guess, remote_qpn, private_data: data };
        let rej = Rej {
            local_comm_id: local,
            remote_comm_id: guess,
            message: MessageId::OTHER,
            reason: RejReason::CONSUMER,
            ari: RejectInfo::None.encode(),
            private_data: PrivateData::EMPTY,
        };
        net.hosts[P].ep.handle_mad(net.now, &rtu.source, rtu.with(dreq).bytes());
        net.hosts[P].ep.handle_mad(net.now, &rtu.source, rtu.with(rej).bytes());
    }
    net.assert_state(P, p, State::Established);
    net.assert_state(A, a, State::Established);
    net.no_event(P);
    // All answers to one source in a second.
    net.collect();
    assert_eq!(net.wire.len(), Config::default().answers_per_second as usize);
    assert_eq!(net.ep(P).stats().dropped_unknown_id, 40_000);
}

/// As much as an endpoint holds, roughly: all of it as text.
fn held(net: &Net, host: usize) -> usize {
    format!("{:?}", net.hosts[host].ep.contents()).len()
}

/// REQs, REJs, REPs, RTUs and DREQs without end, most from an address of its own: after forty thousand of them
/// the engine holds no more than after twenty thousand.
#[test]
fn floods_leave_bounded_memory() {
    let config = Config {
        max_rejections: 64,
        max_queued_answers: 64,
        max_rejection_linger: Duration::MAX,
        ..Config::default()
    };
    let mut net = Net::new([(Address::roce(A), Config::default()), (Address::roce(P), config)]);
    let listener = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(listener);
    net.listen(P, Listen { backlog: 16, ..Listen::new(SERVICE) });
    let Established { a, p, rtu, req, rep, .. } = net.established();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut undecided: Vec<ConnHandle> = Vec::new();
    let mut sizes = Vec::new();
    for n in 0..40_000u32 {
        let mut source = rtu.source;
        if n % 4 != 0
            && let Some(grh) = &mut source.grh
        {
            grh.dgid = Gid::from_ip(std::net::Ipv4Addr::from(0x0b00_0000 | n).into());
        }
        let (ours, theirs) = (CommId(rng.random()), CommId(rng.random()));
        let flight = match n % 5 {
            0 => {
                let mut req = req.req().clone();
                req.local_comm_id = theirs;
                req.local_ca_guid = Guid(rng.random());
                req.local_qpn = Qpn::truncate(rng.random());
                rtu.with(req)
            }
            1 => rtu.with(Rej {
                local_comm_id: theirs,
                remote_comm_id: if n % 2 == 0 { CommId::NONE } else { ours },
                message: MessageId::REQ,
                reason: RejReason::TIMEOUT,
                ari: RejectInfo::CaGuid(Guid(rng.random())).encode(),
                private_data: PrivateData::EMPTY,
            }),
            2 => {
                let mut rep = rep.rep().clone();
                (rep.local_comm_id, rep.remote_comm_id) = (theirs, ours);
                rtu.with(rep)
            }
            3 => rtu.with(Rtu {
                local_comm_id: theirs,
                remote_comm_id: ours,
                private_data: PrivateData::EMPTY,
            }),
            _ => rtu.with(Dreq {
                local_comm_id: theirs,
                remote_comm_id: ours,
                remote_qpn: Qpn::truncate(7),
                private_data: PrivateData::EMPTY,
            }),
        };
        net.hosts[P].ep.handle_mad(net.now, &source, flight.bytes());
        while let Some(event) = net.hosts[P].ep.poll_event() {
            net.hosts[P].monitor.check(&event);
            if let Event::Request { conn, .. } = event {
                undecided.push(conn);
            }
        }
        // A program that rejects what it gets, as fast as it comes, or half of it.
        if n % 2 == 0
            && let Some(conn) = undecided.pop()
        {
            net.hosts[P].monitor.give_up(conn, super::monitor::Ending::Released);
            let now = net.now;
            let reject = crate::proto::Reject::new(RejReason::CONSUMER);
            net.ep(P).reject(now, conn, reject).unwrap();
            while net.hosts[P].ep.poll_event().is_some() {}
        }
        // As a driver does, behind each input. It sends nothing.
        net.hosts[P].ep.poll_timeout();
        if n % 10_000 == 9_999 {
            sizes.push(held(&net, P));
        }
    }
    assert!(sizes[3] <= sizes[1] + sizes[1] / 20, "{sizes:?}");
    assert!(net.ep(P).connections() <= 17, "{}", net.ep(P).connections());
    net.assert_state(P, p, State::Established);
    net.assert_state(A, a, State::Established);
}

/// The right IDs and the right address, but of a connection that was made anew: what was said of the old one is nothing to
/// the new one.
#[test]
fn replays_of_an_older_connection() {
    let mut net = Net::pair();
    let Disconnected { rep, rtu, dreq, drep, .. } = net.disconnected();
    net.settle();
    net.events(A);
    net.events(P);
    let Established { a, p, .. } = net.established();
    for old in [&rep, &rtu, &dreq, &drep] {
        net.deliver(old);
    }
    net.run();
    net.assert_state(A, a, State::Established);
    net.assert_state(P, p, State::Established);
    let ended = |event: &Event| matches!(event, Event::Disconnected { cause: DisconnectCause::Stale, .. });
    assert!(!net.events(A).iter().chain(&net.events(P)).any(ended));
}
