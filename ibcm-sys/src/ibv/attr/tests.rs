use ibdev::GlobalRoute;
use ibwire::{FlowLabel, Gid, Lid, Mtu, Psn, QKey, Qpn, Rate, RnrTimer, ServiceLevel, TimeCode};

use super::*;

const ROUTE: GlobalRoute = GlobalRoute {
    dgid: Gid([0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
    sgid_index: 255,
    flow_label: FlowLabel::truncate(0x5_4321),
    hop_limit: 64,
    traffic_class: 0x20,
};

fn av() -> AddressVector {
    AddressVector {
        port: 2,
        dlid: Lid(0x1234),
        sl: ServiceLevel::truncate(3),
        path_bits: 5,
        rate: Rate::GBPS_100,
        grh: Some(ROUTE),
    }
}

fn rtr_attributes() -> Rtr {
    Rtr {
        av: av(),
        path_mtu: Mtu::B1024,
        dest_qpn: Qpn::truncate(0xab_cdef),
        rq_psn: Psn::truncate(0x12_3456),
        max_dest_rd_atomic: 16,
        min_rnr_timer: RnrTimer::truncate(12),
    }
}

fn rts_attributes() -> Rts {
    Rts {
        sq_psn: Psn::truncate(0x65_4321),
        timeout: TimeCode::truncate(19),
        retry_count: 7,
        rnr_retry: 6,
        max_rd_atomic: 4,
        alternate: None,
    }
}

fn init_attributes() -> Init {
    Init { port: 1, pkey_index: 9, access: Access::empty(), qkey: QKey(0x8765_4321) }
}

#[track_caller]
fn assert_limit<T>(result: Result<T, DeviceError>, what: &str, value: u64, limit: u64) {
    match result.map(|_| "a value").unwrap_err() {
        DeviceError::Limit { what: w, value: v, limit: l } => assert_eq!((w, v, l), (what, value, limit)),
        other => panic!("{other}"),
    }
}

/// The masks are compared with the numbers of infiniband/verbs.h, which rdma-sys does not choose.
#[test]
fn init_of_a_connection_has_port_pkey_and_access() {
    let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let (attr, mask) = init(QpType::Rc, &Init { access, ..init_attributes() }).unwrap();
    assert_eq!(mask.0, 1 | 1 << 3 | 1 << 4 | 1 << 5);
    assert_eq!((attr.qp_state, attr.port_num, attr.pkey_index, attr.qkey), (1, 1, 9, 0));
    assert_eq!(attr.qp_access_flags, 1 | 2 | 8);
    let (attr, _) = init(QpType::Rc, &Init { access: Access::all(), ..init_attributes() }).unwrap();
    assert_eq!(attr.qp_access_flags, 1 | 2 | 4 | 8);
    let (attr, _) = init(QpType::Rc, &init_attributes()).unwrap();
    assert_eq!(attr.qp_access_flags, 1);
}

#[test]
fn init_of_a_datagram_qp_has_a_qkey_instead_of_access() {
    let (attr, mask) = init(QpType::Ud, &init_attributes()).unwrap();
    assert_eq!(mask.0, 1 | 1 << 4 | 1 << 5 | 1 << 6);
    assert_eq!((attr.qkey, attr.qp_access_flags), (0x8765_4321, 0));
}

#[test]
fn rtr_has_the_peer_and_what_it_may_do() {
    let (attr, mask) = rtr(QpType::Rc, &rtr_attributes()).unwrap();
    assert_eq!(mask.0, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20);
    assert_eq!((attr.qp_state, attr.path_mtu), (2, 3));
    assert_eq!((attr.dest_qp_num, attr.rq_psn), (0xab_cdef, 0x12_3456));
    assert_eq!((attr.max_dest_rd_atomic, attr.min_rnr_timer), (16, 12));
    assert_eq!((attr.ah_attr.port_num, attr.ah_attr.is_global), (2, 1));
}

#[test]
fn rts_has_psn_timeout_and_retries() {
    let (attr, mask) = rts(QpType::Rc, &rts_attributes()).unwrap();
    assert_eq!(mask.0, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);
    assert_eq!((attr.qp_state, attr.sq_psn), (3, 0x65_4321));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic), (19, 7, 6, 4));
}

#[test]
fn an_alternate_path_goes_with_rearm() {
    let path = AlternatePath { av: av(), pkey_index: 3, timeout: TimeCode::truncate(18) };
    let required = rts(QpType::Rc, &rts_attributes()).unwrap().1.0;
    let with_rts = rts(QpType::Rc, &Rts { alternate: Some(path), ..rts_attributes() }).unwrap();
    assert_eq!(with_rts.1.0, required | 1 << 14 | 1 << 18);
    let alone = load_path(&path).unwrap();
    assert_eq!(alone.1.0, 1 | 1 << 14 | 1 << 18);
    for (attr, _) in [with_rts, alone] {
        assert_eq!((attr.qp_state, attr.path_mig_state), (3, 1));
        assert_eq!((attr.alt_port_num, attr.alt_pkey_index, attr.alt_timeout), (2, 3, 18));
        // SAFETY: every union field is plain bytes.
        assert_eq!(unsafe { attr.alt_ah_attr.grh.dgid.raw }, ROUTE.dgid.0);
    }
    let (attr, mask) = migrate();
    assert_eq!((attr.qp_state, attr.path_mig_state, mask.0), (3, 0, 1 | 1 << 18));
}

#[test]
fn an_unreliable_connection_has_no_retries_and_nobody_reads() {
    let (attr, mask) = init(QpType::Uc, &init_attributes()).unwrap();
    assert_eq!((mask.0, attr.qp_access_flags), (1 | 1 << 3 | 1 << 4 | 1 << 5, 1));
    let (attr, mask) = rtr(QpType::Uc, &rtr_attributes()).unwrap();
    assert_eq!(mask.0, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20);
    assert_eq!((attr.max_dest_rd_atomic, attr.min_rnr_timer), (0, 0));
    let (attr, mask) = rts(QpType::Uc, &rts_attributes()).unwrap();
    assert_eq!(mask.0, 1 | 1 << 16);
    assert_eq!((attr.sq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry), (0x65_4321, 0, 0, 0));
}

#[test]
fn a_datagram_qp_has_its_first_psn_alone() {
    let (attr, mask) = transition(QpType::Ud, &Transition::DatagramRtr).unwrap();
    assert_eq!((attr.qp_state, mask.0), (2, 1));
    let sq_psn = Psn::truncate(7);
    let (attr, mask) = transition(QpType::Ud, &Transition::DatagramRts { sq_psn }).unwrap();
    assert_eq!((attr.qp_state, attr.sq_psn, mask.0), (3, 7, 1 | 1 << 16));
}

#[test]
fn draining_asks_for_its_event() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (attr, mask) = transition(kind, &Transition::SqDrain).unwrap();
        assert_eq!((attr.qp_state, attr.en_sqd_async_notify, mask.0), (4, 1, 1 | 1 << 2));
        let (attr, mask) = transition(kind, &Transition::SqResume).unwrap();
        assert_eq!((attr.qp_state, mask.0), (3, 1));
    }
}

#[test]
fn error_and_reset_have_the_state_alone() {
    for kind in [QpType::Rc, QpType::Ud] {
        let (attr, mask) = transition(kind, &Transition::Error).unwrap();
        assert_eq!((attr.qp_state, mask.0), (6, 1));
        let (attr, mask) = transition(kind, &Transition::Reset).unwrap();
        assert_eq!((attr.qp_state, mask.0), (0, 1));
    }
}

#[test]
fn transitions_are_their_functions() {
    for (transition, state) in [
        (Transition::Init(init_attributes()), 1),
        (Transition::Rtr(rtr_attributes()), 2),
        (Transition::Rts(rts_attributes()), 3),
        (Transition::Migrate, 3),
    ] {
        assert_eq!(self::transition(QpType::Rc, &transition).unwrap().0.qp_state, state);
    }
    for (kind, transition) in [
        (QpType::Ud, Transition::Rtr(rtr_attributes())),
        (QpType::Ud, Transition::Rts(rts_attributes())),
        (QpType::Ud, Transition::Migrate),
        (QpType::Rc, Transition::DatagramRtr),
        (QpType::Rc, Transition::DatagramRts { sq_psn: Psn::default() }),
    ] {
        assert!(matches!(self::transition(kind, &transition), Err(DeviceError::Unsupported { .. })));
    }
}

#[test]
fn address_vectors_carry_the_route_only_if_there_is_one() {
    let attr = address_vector(&av()).unwrap();
    assert_eq!((attr.dlid, attr.sl, attr.src_path_bits, attr.static_rate), (0x1234, 3, 5, 16));
    // SAFETY: every union field is plain bytes.
    assert_eq!(unsafe { attr.grh.dgid.raw }, ROUTE.dgid.0);
    assert_eq!((attr.grh.flow_label, attr.grh.sgid_index), (0x5_4321, 255));
    assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class), (64, 0x20));
    let local = address_vector(&AddressVector { grh: None, ..av() }).unwrap();
    assert_eq!((local.is_global, local.port_num), (0, 2));
    // SAFETY: as above.
    assert_eq!(unsafe { local.grh.dgid.raw }, [0; 16]);
}

#[test]
fn what_libibverbs_has_no_room_for_is_refused() {
    assert_limit(init(QpType::Rc, &Init { port: 0, ..init_attributes() }), "port", 0, 255);
    assert_limit(rtr(QpType::Rc, &Rtr { path_mtu: Mtu(0), ..rtr_attributes() }), "path MTU code", 0, 5);
    assert_limit(rtr(QpType::Rc, &Rtr { path_mtu: Mtu(6), ..rtr_attributes() }), "path MTU code", 6, 5);
    assert_limit(rts(QpType::Rc, &Rts { retry_count: 8, ..rts_attributes() }), "retry count", 8, 7);
    assert_limit(rts(QpType::Rc, &Rts { rnr_retry: 8, ..rts_attributes() }), "RNR retry count", 8, 7);
    let far = GlobalRoute { sgid_index: 256, ..ROUTE };
    assert_limit(address_vector(&AddressVector { grh: Some(far), ..av() }), "GID index", 256, 255);
    assert_limit(
        rtr(QpType::Rc, &Rtr { av: AddressVector { port: 0, ..av() }, ..rtr_attributes() }),
        "port",
        0,
        255,
    );
}
