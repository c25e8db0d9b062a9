//! What LAPs and migrations mean to the other messages of a connection.

use super::*;

#[test]
fn cm_t75_a_lap_for_the_active_side_means_nothing() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.take(Id::LAP);
    let info = net.hosts[P].info(pair.p).unwrap();
    let mirrored = Lap {
        local_comm_id: info.local_comm_id,
        remote_comm_id: info.remote_comm_id,
        remote_qpn: info.remote_qpn,
        ..lap.lap()
    };
    let mut flight = lap.with(mirrored, lap.tid);
    flight.from = P;
    net.deliver(&flight);
    net.silent();
    net.no_event(A);
    assert_eq!(net.hosts[A].stats().dropped_state, 1);
    // Neither before the connection is established.
    let mut net = Net::new();
    net.connect(None);
    let req = net.take(Id::REQ);
    net.deliver(&req);
    let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
    let info = net.hosts[P].info(p).unwrap();
    let early = Lap { local_comm_id: info.remote_comm_id, remote_comm_id: info.local_comm_id, ..lap.lap() };
    net.deliver(&req.with(early, lap.tid));
    net.silent();
    net.no_event(P);
}

#[test]
fn cm_t76_a_disconnect_ends_a_lap() {
    for by in [A, P] {
        let mut net = Net::new();
        let pair = net.established(None);
        net.load(pair.a, 2);
        let lap = net.take(Id::LAP);
        net.hosts[by].disconnect(net.now, [pair.a, pair.p][by], Disconnect::default()).unwrap();
        net.run();
        let Event::Disconnected { .. } = net.event(A) else { panic!() };
        let sent = net.advance(20 * period());
        assert!(sent.is_empty(), "no LAP, no timeout: {sent:?}");
        let Event::Released { .. } = net.event(A) else { panic!() };
        net.deliver(&lap);
    }
    // The passive side's user answers too late.
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
    net.run();
    assert_eq!(net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY), Err(PathError::Gone));
}

#[test]
fn cm_t77_a_lap_stands_for_the_rtu() {
    let mut net = Net::new();
    let a = net.connect(None);
    net.pass(Id::REQ);
    let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
    let accept = Accept::new(net.qpn());
    net.hosts[P].accept(net.now, p, accept).unwrap();
    net.pass(Id::REP);
    net.event(A);
    net.hosts[A].ready(net.now, a, PrivateData::EMPTY).unwrap();
    net.take(Id::RTU);
    net.load(a, 2);
    net.pass(Id::LAP);
    let Event::Established { rtu_data: None, .. } = net.event(P) else { panic!() };
    net.asked(p);
}

/// Until the migration is settled no other path is loaded; then MADs go by the new one.
#[test]
fn cm_t78_after_the_migration_mads_go_by_the_new_path() {
    for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let mut net = Net::on(link, [true, true]);
        let pair = net.loaded(2);
        assert_eq!(net.refused(pair.a, 3), PathError::Loaded);
        let [qa, qp] =
            [(A, pair.a), (P, pair.p)].map(|(host, conn)| net.hosts[host].info(conn).unwrap().local_qpn);
        net.hosts[A].path_migrated(net.now, qa);
        let Event::Migrated { primary, .. } = net.event(A) else { panic!() };
        assert_eq!((primary.port, primary.record.sgid, primary.record.dgid), (2, gid(A, 2), gid(P, 2)));
        // The peer may learn of it a moment later.
        net.hosts[P].path_migrated(net.now, qp);
        let Event::Migrated { primary, .. } = net.event(P) else { panic!() };
        assert_eq!((primary.port, primary.record.dgid), (2, gid(A, 2)));
        net.hosts[P].path_migrated(net.now, qp);
        net.no_event(P);
        assert_eq!(net.hosts[P].migrated(net.now, pair.p), Err(PathError::NotLoaded));

        // The old path is loaded again.
        let lap = net.load_on(pair, 1);
        assert_eq!(lap.out.to.av.port, 2);
        net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
        let dreq = net.pass(Id::DREQ);
        assert_eq!(dreq.out.to.av.port, 2);
        assert_eq!(net.pass(Id::DREP).out.to.av.port, 2);
        let Event::Disconnected { cause: DisconnectCause::Local { .. }, .. } = net.event(A) else { panic!() };
    }
}

/// One side knows of the migration, the other does not yet: they hear each other by either path.
#[test]
fn mads_by_either_path_are_heard_while_only_one_side_knows() {
    for by in [A, P] {
        let mut net = Net::new();
        let pair = net.loaded(2);
        net.hosts[A].migrated(net.now, pair.a).unwrap();
        net.hosts[by].disconnect(net.now, [pair.a, pair.p][by], Disconnect::default()).unwrap();
        assert_eq!(net.pass(Id::DREQ).out.to.av.port, if by == A { 2 } else { 1 });
        net.pass(Id::DREP);
        assert_eq!(net.hosts[by].state([pair.a, pair.p][by]), Some(State::TimeWait));
        assert_eq!(net.hosts.iter().map(|host| host.stats().foreign_source).sum::<u64>(), 0);
    }
}

/// A DREQ that is out when the path breaks is repeated by the new one.
#[test]
fn a_dreq_changes_its_path() {
    let mut net = Net::new();
    let pair = net.loaded(2);
    net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
    assert_eq!(net.take(Id::DREQ).out.to.av.port, 1);
    net.hosts[A].migrated(net.now, pair.a).unwrap();
    let sent = net.advance(period());
    assert!(sent.len() == 1 && sent[0].out.to.av.port == 2, "{sent:?}");
}

/// A REJ behind a LAP and its APR is of the handshake, and late.
#[test]
fn cm_t40_a_rej_after_an_exchange_of_paths_is_ignored() {
    for exchanged in [false, true] {
        let mut net = Net::new();
        let pair = net.established(None);
        if exchanged {
            net.load_on(pair, 2);
        }
        net.load_or_disconnect_for_carrier(pair, exchanged);
    }
}

/// An MRA for a LAP counts only while a LAP is out.
#[test]
fn cm_t41_an_mra_without_a_lap_is_ignored() {
    let mut net = Net::new();
    let pair = net.established(None);
    let info = net.hosts[P].info(pair.p).unwrap();
    let mra = Mra {
        local_comm_id: info.local_comm_id,
        remote_comm_id: info.remote_comm_id,
        message: MessageId::LAP,
        service_timeout: TimeCode::truncate(20),
        private_data: PrivateData::EMPTY,
    };
    let mut out = OutgoingMad { mad: [0; ibdev::MAD_LEN], to: net.carrier() };
    Message::Mra(mra.clone()).encode(TransactionId(1), &mut out.mad);
    net.deliver(&Flight { from: P, out, tid: TransactionId(1), message: mra.into() });
    net.no_event(A);
    assert_eq!(net.hosts[A].stats().dropped_state, 1);
    assert_eq!(net.hosts[A].poll_timeout(), None);
}
