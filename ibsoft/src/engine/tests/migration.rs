//! Automatic path migration (spec/softhca.md 2.12).

use std::time::Duration;

use ibdev::DeviceError;
use ibdev::qp::{AlternatePath, QpType};

use super::super::{EngineEvent, QpCreate};
use super::script::{D, D2, Dut, P, P_QPN, alternate};
use super::*;

/// In RTS, with an alternate path that came with it; so many receives of 64 bytes.
fn armed(receives: u64) -> Dut {
    let mut dut = Dut::with(|_, rts| (rts.alternate, rts.retry_count) = (Some(alternate()), 1));
    dut = dut.receives(receives, 64);
    dut.run(
        "P > SEND_ONLY 1000 M=0
         D > ACK 1000 MSN=1 M=0
         D : recv 0 SUCCESS len=16",
    );
    dut
}

#[test]
fn hca_t50_path_migration() {
    let mut dut = Dut::new().receives(4, 64);
    dut.run(
        "modify alternate
         P > SEND_ONLY 1000 M=0
         D > ACK 1000 MSN=1 M=0
         D : recv 0 SUCCESS len=16
         send 7
         D > SEND_ONLY 5000 A=1 len=16 M=0
         P > ACK 5000 M=0
         D : send 7 SUCCESS
         modify migrate
         D ! PathMigrated
         send 8
         D > SEND_ONLY 5001 A=1 len=16 via=2
         P > ACK 5001 via=2
         D : send 8 SUCCESS
         P > SEND_ONLY 1001 via=2
         D > ACK 1001 MSN=2 via=2
         D : recv 1 SUCCESS len=16
         count path_migrations 1",
    );
    // The peer: it is asked to migrate by the first packet that comes by its alternate path with M.
    armed(2).run(
        "P > SEND_ONLY 1001 via=2
         D > ACK 1001 MSN=2 via=2
         D : recv 1 SUCCESS len=16
         D ! PathMigrated
         send 7
         D > SEND_ONLY 5000 A=1 len=16 via=2
         P > ACK 5000 via=2
         D : send 7 SUCCESS
         P > SEND_ONLY 1002 M=0
         count drop_address 1",
    );
}

/// The peer has no alternate path yet: M tells nothing, and M = 1 is no wish to migrate.
#[test]
fn hca_t50_rearm_waits_for_the_peer() {
    let mut dut = Dut::new().receives(4, 64);
    dut.run(
        "modify alternate
         P > SEND_ONLY 1000
         D > ACK 1000 MSN=1 M=0
         D : recv 0 SUCCESS len=16
         P > SEND_ONLY 1001
         D > ACK 1001 MSN=2 M=0
         D : recv 1 SUCCESS len=16",
    );
    let refused = dut.engine.modify(dut.qpn, Transition::Migrate).unwrap_err();
    assert!(matches!(refused, DeviceError::State { .. }), "{refused}");
    // Until it is armed the path can be replaced.
    dut.run(
        "modify alternate
         P > SEND_ONLY 1002 M=0
         D > ACK 1002 MSN=3 M=0
         D : recv 2 SUCCESS len=16",
    );
    let refused = dut.engine.modify(dut.qpn, Transition::LoadPath(alternate())).unwrap_err();
    assert!(matches!(refused, DeviceError::State { .. }), "{refused}");
    dut.run("modify migrate\nD ! PathMigrated");
}

/// The retries are used up: everything goes on by the alternate path, with its timeout (134 ms) and all retries anew.
#[test]
fn hca_t50_a_path_that_times_out_migrates() {
    armed(1).run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16 M=0
         send 2
         D > SEND_ONLY 5001 A=1 len=16 M=0
         wait 68ms
         D > SEND_ONLY 5000 A=1 len=16 M=0
         D > SEND_ONLY 5001 A=1 len=16 M=0
         wait 68ms
         D ! PathMigrated
         D > SEND_ONLY 5000 A=1 len=16 via=2
         D > SEND_ONLY 5001 A=1 len=16 via=2
         P > ACK 5000 via=2
         D : send 1 SUCCESS
         wait 133ms
         wait 2ms
         D > SEND_ONLY 5001 A=1 len=16 via=2
         wait 135ms
         D : send 2 RETRY_EXC_ERR
         D ! QpError
         count path_migrations 1",
    );
}

/// Only a path is given up: neither a receiver that is not ready, nor a peer that has refused.
#[test]
fn hca_t50_only_silence_migrates() {
    armed(1).run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16 M=0
         P > NAK 0x61 5000 M=0
         D : send 1 REM_INV_REQ_ERR
         D ! QpError
         count path_migrations 0",
    );
    let mut dut = Dut::with(|_, rts| (rts.alternate, rts.rnr_retry) = (Some(alternate()), 0));
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16 M=0
         P > RNR 1 5000 M=0
         D : send 1 RNR_RETRY_EXC_ERR
         D ! QpError",
    );
}

/// Without a packet of a peer that is ready, too, there is nowhere to go.
#[test]
fn hca_t50_a_path_that_is_not_armed_fails() {
    let mut dut = Dut::with(|_, rts| (rts.alternate, rts.retry_count) = (Some(alternate()), 0));
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16 M=0
         wait 68ms
         D : send 1 RETRY_EXC_ERR
         D ! QpError",
    );
}

/// A peer that has migrated elsewhere is not followed; that is reported once. Packets without M that come by the
/// alternate path are nobody's.
#[test]
fn hca_t50_migration_to_another_path_is_refused() {
    armed(2).run(
        "P > SEND_ONLY 1001
         D ! PathMigrationFailed
         P > SEND_ONLY 1001
         P > SEND_ONLY 1001 from=10.79.0.1
         P > SEND_ONLY 1001 M=0 via=2
         P > SEND_ONLY 1001 via=2 pkey=0x8001
         count drop_migration 2
         count drop_address 3
         P > SEND_ONLY 1001 M=0
         D > ACK 1001 MSN=2 M=0
         D : recv 1 SUCCESS len=16",
    );
}

/// The packet that would have armed this side is lost, the one that tells of the migration is not.
#[test]
fn hca_t50_a_peer_that_migrated_is_followed_from_rearm() {
    let mut dut = Dut::with(|_, rts| rts.alternate = Some(alternate())).receives(1, 64);
    dut.run(
        "P > SEND_ONLY 1000 via=2
         D > ACK 1000 MSN=1 via=2
         D : recv 0 SUCCESS len=16
         D ! PathMigrated",
    );
}

/// What is under way by the old path when the peer migrates is sent again by the new one.
#[test]
fn hca_t50_reads_go_on_by_the_new_path() {
    armed(1).run(
        "get 1 len=3000
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=3000 M=0
         P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=0 M=0
         P > RDMA_READ_RESPONSE_MIDDLE 5001 len=1024 at=1024 via=2
         D ! PathMigrated
         D > RDMA_READ_REQUEST 5002 A=1 len=0 va=2048 dma=952 via=2
         P > RDMA_READ_RESPONSE_ONLY 5002 len=952 at=2048 via=2
         D : read 1 SUCCESS len=3000",
    );
}

/// A second path after the first migration, back to where it began.
#[test]
fn hca_t50_the_old_path_is_loaded_again() {
    let mut dut = armed(4);
    dut.run(
        "modify migrate
         D ! PathMigrated",
    );
    let back = AlternatePath { av: roce_av(P), ..alternate() };
    dut.engine.modify(dut.qpn, Transition::LoadPath(back)).unwrap();
    dut.run(
        "P > SEND_ONLY 1001 M=0 via=2
         D > ACK 1001 MSN=2 M=0 via=2
         D : recv 1 SUCCESS len=16
         P > SEND_ONLY 1002
         D > ACK 1002 MSN=3
         D : recv 2 SUCCESS len=16
         D ! PathMigrated
         count path_migrations 2",
    );
}

#[test]
fn paths_that_the_device_cannot_load() {
    let mut dut = Dut::new();
    let mut refused = |path| dut.engine.modify(dut.qpn, Transition::LoadPath(path)).unwrap_err();
    let good = alternate();
    for (path, what) in [
        (AlternatePath { av: AddressVector { port: 3, ..good.av }, ..good }, "port of the alternate path"),
        (AlternatePath { pkey_index: 1, ..good }, "P_Key index"),
    ] {
        let error = refused(path);
        assert!(matches!(error, DeviceError::Limit { what: named, .. } if named == what), "{error}");
    }
    let unreachable = AlternatePath { av: AddressVector { port: 2, ..roce_av("fd00::1") }, ..good };
    assert!(matches!(refused(unreachable), DeviceError::Unsupported { .. }));

    let small =
        PortConfig { attr: PortAttr { active_mtu: Mtu::B512, ..roce_port(D2).attr }, ..roce_port(D2) };
    let ports = vec![roce_port(D), small];
    let mut engine = Engine::new(Config::new(device_attr("soft", Guid(1), 2), ports, [1; 32]));
    let cq = engine.create_cq(64).unwrap();
    let [rc, uc] = [QpType::Rc, QpType::Uc].map(|kind| {
        let qpn = engine.create_qp(&QpCreate::new(kind, cq, 4, 4)).unwrap();
        for step in [Transition::Init(INIT), Transition::Rtr(rtr(roce_av(P), P_QPN, 1000))] {
            engine.modify(qpn, step).unwrap();
        }
        qpn
    });
    let with_path = Transition::Rts(Rts { alternate: Some(good), ..rts(1) });
    let state = |error| matches!(error, DeviceError::State { state: "RTR" });
    assert!(state(engine.modify(rc, Transition::LoadPath(good)).unwrap_err()));
    let error = engine.modify(rc, with_path).unwrap_err();
    assert!(matches!(error, DeviceError::Limit { what: "bytes of path MTU", .. }), "{error}");
    let error = engine.modify(uc, with_path).unwrap_err();
    assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
    // Nothing has changed by the refusal.
    for qpn in [rc, uc] {
        engine.modify(qpn, Transition::Rts(rts(1))).unwrap();
        assert!(matches!(engine.modify(qpn, Transition::Migrate), Err(DeviceError::State { .. })));
    }
    let later = std::time::Instant::now() + Duration::from_secs(10);
    engine.handle_timeout(later);
    assert!(!std::iter::from_fn(|| engine.poll_event()).any(|event| matches!(event, EngineEvent::Device(_))));
}
