//! Paths that are loaded later: LAP, APR, what is refused and what comes again.

use super::*;

#[test]
fn lap_and_apr_load_a_path() {
    for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let mut net = Net::on(link, [true, true]);
        let pair = net.established(None);
        assert_eq!(net.hosts[A].failover(pair.a), None);
        let mut load = LoadPath::new(net.path(2));
        load.private_data = PrivateData::from(b"spare");
        net.hosts[A].load_path(net.now, pair.a, &load).unwrap();
        let lap = net.pass(Id::LAP);
        let request = net.asked(pair.p);
        assert_eq!((request.path.port, request.path.record.dgid), (2, gid(A, 2)));
        assert_eq!(request.lap.private_data.trimmed(), b"spare");
        assert_eq!((request.attr.av.port, request.attr.timeout), (2, lap.lap().alternate.local_ack_timeout));
        net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY).unwrap();
        let apr = net.pass(Id::APR);
        assert_eq!((apr.apr().status, apr.tid), (ApStatus::LOADED, lap.tid));
        let Event::AlternateLoaded { path, .. } = net.event(A) else { panic!() };
        assert_eq!((path.av.port, path.timeout), (2, timeout_of_a()));
        assert_eq!(net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY), Err(PathError::NotAsked));
        assert_eq!(net.refused(pair.a, 3), PathError::Loaded);
        net.established_still(pair);
        // The queue pair did not take it after all.
        net.hosts[A].unload_path(pair.a);
        net.load(pair.a, 2);
        net.pass(Id::LAP);
        net.no_event(P);
        assert_eq!(net.pass(Id::APR).apr().status, ApStatus::LOADED);
        let Event::AlternateLoaded { .. } = net.event(A) else { panic!() };
    }
}

#[test]
fn only_the_active_side_of_an_established_connection_loads_paths() {
    let mut net = Net::new();
    let a = net.connect(None);
    assert_eq!(net.refused(a, 2), PathError::State(State::ReqSent));
    net.wire.clear();
    let mut net = Net::new();
    let pair = net.established(None);
    let load = LoadPath::new(net.path(2));
    assert_eq!(net.hosts[P].load_path(net.now, pair.p, &load), Err(PathError::PassiveSide));
    assert!(matches!(net.refused(pair.a, 1), PathError::Invalid(_)), "the primary path");
    net.load(pair.a, 2);
    assert_eq!(net.refused(pair.a, 3), PathError::Busy);
}

/// A LAP that was long under way and that has been answered, granted or not, asks for nothing any more.
#[test]
fn a_lap_of_before_is_no_request() {
    let mut net = Net::new();
    let pair = net.established(None);
    let first = net.load_on(pair, 2);
    for (host, conn) in [(A, pair.a), (P, pair.p)] {
        net.hosts[host].migrated(net.now, conn).unwrap();
        let Event::Migrated { .. } = net.event(host) else { panic!() };
    }
    // By the path that both have gone over to, so it is refused, for now.
    let second = first.with(first.lap(), TransactionId(2));
    net.deliver(&second);
    assert_eq!(net.take(Id::APR).apr().status, ApStatus::CURRENT_PATH);
    net.load_on(pair, 3);
    for (host, conn) in [(A, pair.a), (P, pair.p)] {
        net.hosts[host].migrated(net.now, conn).unwrap();
        let Event::Migrated { .. } = net.event(host) else { panic!() };
    }
    let before = net.hosts[P].stats().dropped_duplicate;
    for late in [first, second] {
        net.deliver(&late);
        net.silent();
        net.no_event(P);
    }
    assert_eq!(net.hosts[P].stats().dropped_duplicate, before + 2);
}

/// A repetition while the user thinks is no second request; behind the answer it meets the same answer.
#[test]
fn a_lap_that_comes_again() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.pass(Id::LAP);
    net.asked(pair.p);
    net.deliver(&lap);
    net.no_event(P);
    net.silent();
    let other = Lap {
        alternate: PathBlock { local_gid: gid(A, 3), remote_gid: gid(P, 3), ..lap.lap().alternate },
        ..lap.lap()
    };
    net.deliver(&lap.with(other, TransactionId(1)));
    assert_eq!(net.take(Id::APR).apr().status, ApStatus::REJECTED);
    // Half of the time is over: an MRA, which meets each repetition from now on.
    let sent = net.advance(time(20) / 2);
    let [mra] = &sent[..] else { panic!("{sent:?}") };
    assert!(matches!(&mra.message, Message::Mra(mra) if mra.message == MessageId::LAP));
    assert_eq!(mra.tid, lap.tid);
    net.deliver(&lap);
    let again = net.take(Id::MRA);
    assert_eq!(again.out.mad, mra.out.mad);
    net.deliver(&again);
    let Event::Busy { .. } = net.event(A) else { panic!() };
    assert!(net.advance(time(20)).is_empty(), "patience");
    net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY).unwrap();
    let apr = net.take(Id::APR);
    net.deliver(&lap);
    assert_eq!(net.take(Id::APR).out.mad, apr.out.mad);
    net.no_event(P);
    net.deliver(&apr);
    let Event::AlternateLoaded { .. } = net.event(A) else { panic!() };
    net.deliver(&apr);
    net.no_event(A);
}

#[test]
fn what_a_lap_is_refused_for() {
    let mut net = Net::new();
    let pair = net.loaded(2);
    net.load_refused_by_hand(pair);
    for (migrates, takes) in [(false, true), (true, false)] {
        let mut net = Net::on(LinkLayer::Ethernet, [true, migrates]);
        let a = net.connect(None);
        net.pass(Id::REQ);
        let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
        let mut accept = Accept::new(net.qpn());
        accept.failover = takes;
        net.hosts[P].accept(net.now, p, accept).unwrap();
        net.pass(Id::REP);
        net.event(A);
        net.hosts[A].ready(net.now, a, PrivateData::EMPTY).unwrap();
        net.pass(Id::RTU);
        net.event(P);
        net.load(a, 2);
        net.pass(Id::LAP);
        net.no_event(P);
        net.pass(Id::APR);
        let Event::AlternateRefused { status, .. } = net.event(A) else { panic!() };
        assert_eq!(status, ApStatus::UNSUPPORTED);
        // It is not asked again.
        assert_eq!(net.refused(a, 2), PathError::PeerUnable);
    }
}

#[test]
fn the_user_refuses_and_later_agrees() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    let info = ApInfo::TrafficClass(7);
    net.hosts[P]
        .reject_path(net.now, pair.p, ApStatus::TRAFFIC_CLASS, &info, PrivateData::from(b"no"))
        .unwrap();
    net.pass(Id::APR);
    match net.event(A) {
        Event::AlternateRefused { status, info, private_data, .. } => {
            assert_eq!((status, *info), (ApStatus::TRAFFIC_CLASS, ApInfo::TrafficClass(7)));
            assert_eq!(private_data.trimmed(), b"no");
        }
        other => panic!("{other:?}"),
    }
    net.load_on(pair, 3);
    // On an InfiniBand port the LID has to be one of its own.
    let mut net = Net::on(LinkLayer::InfiniBand, [true, true]);
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.take(Id::LAP);
    let block = PathBlock { remote_lid: Lid(999), ..lap.lap().alternate };
    net.deliver(&lap.with(Lap { alternate: block, ..lap.lap() }, lap.tid));
    let apr = net.take(Id::APR).apr();
    assert_eq!(
        (apr.status, ApInfo::decode(apr.status, &apr.info)),
        (ApStatus::REMOTE_LID, ApInfo::Lid(lid(P, 2)))
    );
}

/// The second LAP is not completed by the APR of the first one, should that come again.
#[test]
fn cm_t73_an_apr_of_an_earlier_lap() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    net.hosts[P].reject_path(net.now, pair.p, ApStatus::REJECTED, &ApInfo::None, PrivateData::EMPTY).unwrap();
    let first = net.pass(Id::APR);
    let Event::AlternateRefused { .. } = net.event(A) else { panic!() };
    net.load(pair.a, 3);
    net.take(Id::LAP);
    net.deliver(&first.with(Apr { status: ApStatus::LOADED, ..first.apr() }, first.tid));
    net.no_event(A);
    // A peer that echoes the REQ's transaction, or any other, is understood.
    net.deliver(&first.with(Apr { status: ApStatus::LOADED, ..first.apr() }, TransactionId(5)));
    let Event::AlternateLoaded { path, .. } = net.event(A) else { panic!() };
    assert_eq!(path.av.port, 3);
}

/// A LAP and its APR go by the primary path, however fast the other one is.
#[test]
fn a_lap_waits_for_the_slower_of_both_paths() {
    let mut net = Net::new();
    let pair = net.established(None);
    let mut path = net.path(2);
    path.record.packet_life_time = TimeCode::truncate(LIFE_TIME - 4).into();
    net.hosts[A].load_path(net.now, pair.a, &LoadPath::new(path)).unwrap();
    let lap = net.take(Id::LAP);
    assert!(net.advance(period() - Duration::from_nanos(1)).is_empty());
    let sent = net.advance(Duration::from_nanos(1));
    assert!(sent.len() == 1 && sent[0].out.mad == lap.out.mad, "{sent:?}");
}

/// What answers a LAP that has not left yet was meant for another one, or is forged.
#[test]
fn answers_to_a_lap_that_has_not_left() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    net.hosts[P].reject_path(net.now, pair.p, ApStatus::REJECTED, &ApInfo::None, PrivateData::EMPTY).unwrap();
    let first = net.pass(Id::APR);
    let Event::AlternateRefused { .. } = net.event(A) else { panic!() };
    net.load(pair.a, 3);
    let (apr, before) = (first.apr(), net.hosts[A].stats().dropped_state);
    let mra = Mra {
        local_comm_id: apr.local_comm_id,
        remote_comm_id: apr.remote_comm_id,
        message: MessageId::LAP,
        service_timeout: TimeCode::truncate(20),
        private_data: PrivateData::EMPTY,
    };
    net.deliver(&first.with(mra, TransactionId(5)));
    // The LAP leaves behind the first of them, and its window is shut once more.
    net.take(Id::LAP);
    assert_eq!(net.hosts[A].stats().dropped_state, before + 1);
    net.no_event(A);
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    net.hosts[P].reject_path(net.now, pair.p, ApStatus::REJECTED, &ApInfo::None, PrivateData::EMPTY).unwrap();
    let first = net.pass(Id::APR);
    let Event::AlternateRefused { .. } = net.event(A) else { panic!() };
    net.load(pair.a, 3);
    net.deliver(&first.with(Apr { status: ApStatus::LOADED, ..first.apr() }, TransactionId(5)));
    net.take(Id::LAP);
    net.no_event(A);
}

/// As Linux does it: nobody ever answers. The connection stays, a late answer means nothing.
#[test]
fn cm_t74_a_lap_that_is_never_answered() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.take(Id::LAP);
    for _ in 0..2 {
        assert!(net.advance(period() - Duration::from_nanos(1)).is_empty());
        let sent = net.advance(Duration::from_nanos(1));
        assert!(sent.len() == 1 && sent[0].out.mad == lap.out.mad, "{sent:?}");
    }
    net.no_event(A);
    net.advance(period());
    let Event::AlternateTimeout { effort, .. } = net.event(A) else { panic!() };
    assert_eq!((effort.sent, effort.waited, effort.busy), (3, 3 * period(), false));
    assert_eq!(net.hosts[A].stats().lap_timeouts, 1);
    assert_eq!(net.refused(pair.a, 2), PathError::PeerUnable);
    net.deliver(&lap);
    net.asked(pair.p);
    net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY).unwrap();
    net.pass(Id::APR);
    net.no_event(A);
    net.established_still(pair);
    net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
    net.run();
    let Event::Disconnected { cause: DisconnectCause::Local { .. }, .. } = net.event(A) else { panic!() };
}
