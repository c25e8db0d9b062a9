//! What a device does not have it refuses: one case for each feature that is listed as lacking.

use std::collections::VecDeque;

use futures::future::LocalBoxFuture;
use ibdev::qp::{QpSpec, QpType, Transition};
use ibdev::{
    Access, Buf, DeviceError, DeviceEvent, PostError, RemoteAddr, SendFlags, SendOp, SendWr, SharedMemory,
    Status,
};
use ibwire::RKey;

use super::bench::{Bench, Feature, REPORTED, events_now};
use super::case::Case;
use super::end::{End, Options, pair, remote, write};

/// `None` for what is not the device's to refuse.
pub fn case(feature: Feature) -> Option<Case> {
    let (name, run): (_, fn(Bench) -> LocalBoxFuture<'static, ()>) = match feature {
        Feature::Uc => ("lacks_uc", |bench| Box::pin(qp(bench, QpType::Uc))),
        Feature::Ud => ("lacks_ud", |bench| Box::pin(qp(bench, QpType::Ud))),
        Feature::ScatterGather => ("lacks_scatter_gather", |bench| Box::pin(scatter_gather(bench))),
        Feature::Inline => ("lacks_inline", |bench| Box::pin(inline(bench))),
        Feature::Regions => ("lacks_regions", |bench| Box::pin(regions(bench))),
        Feature::Atomics => ("lacks_atomics", |bench| Box::pin(atomics(bench))),
        Feature::Srq => ("lacks_srq", |bench| Box::pin(srq(bench))),
        Feature::Sqd => ("lacks_sqd", |bench| Box::pin(sqd(bench))),
        Feature::Raw => ("lacks_raw", |bench| Box::pin(raw(bench))),
        Feature::PathMigration => ("lacks_path_migration", |bench| Box::pin(path_migration(bench))),
        Feature::TwoPorts => ("lacks_two_ports", |bench| Box::pin(two_ports(bench))),
        Feature::QpEvents => ("lacks_qp_events", |bench| Box::pin(qp_events(bench))),
        Feature::Close | Feature::TwoDevices | Feature::PortControl | Feature::Removal => return None,
    };
    Some(Case { group: module_path!(), name, needs: &[], run })
}

async fn qp(bench: Bench, kind: QpType) {
    no_qp(&bench, kind).await;
}

async fn no_qp(bench: &Bench, kind: QpType) {
    let cq = bench.a.create_cq(2).await.unwrap();
    let created = bench.a.domain().create_qp(QpSpec::new(kind, &cq, 1, 1)).await;
    assert!(matches!(created, Err(DeviceError::Unsupported { .. })), "{created:?}");
}

async fn raw(bench: Bench) {
    let attr = bench.a.attr();
    assert_eq!((attr.max_raw_ipv6_qp, attr.max_raw_ethertype_qp, attr.raw_multicast), (0, 0, false));
    no_qp(&bench, QpType::RawIpv6).await;
    no_qp(&bench, QpType::RawEtherType).await;
}

async fn scatter_gather(bench: Bench) {
    assert_eq!(bench.a.attr().max_sge, 1);
    let cq = bench.a.create_cq(2).await.unwrap();
    let spec = QpSpec { max_sge: 2, ..QpSpec::new(QpType::Rc, &cq, 1, 1) };
    let created = bench.a.domain().create_qp(spec).await;
    assert!(matches!(created, Err(DeviceError::Limit { value: 2, limit: 1, .. })), "{created:?}");
}

async fn inline(bench: Bench) {
    assert_eq!(bench.a.attr().max_inline_data, 0);
    let (a, _b) = pair(&bench, Options::default()).await;
    let sg = std::iter::once(Buf::unregistered(1)).collect();
    let wr = SendWr { id: 0, op: SendOp::Send { imm: None }, sg, flags: SendFlags::INLINE };
    assert_eq!(a.post(wr), Err(PostError::TooLong { len: 1, limit: 0 }));
}

async fn regions(bench: Bench) {
    let registered = bench.a.domain().register(SharedMemory::zeroed(8), Access::all()).await;
    assert!(matches!(registered, Err(DeviceError::Unsupported { .. })), "{registered:?}");
    let (a, _b) = pair(&bench, Options::default()).await;
    let from = RemoteAddr { addr: 0, rkey: RKey(1) };
    for op in [SendOp::Write { to: from, imm: None }, SendOp::Read { from }] {
        let refused = a.post(SendWr::new(0, op, a.buf(b"12345678").await));
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
}

async fn atomics(bench: Bench) {
    assert!(!bench.a.attr().atomics);
    let (a, _b) = pair(&bench, Options::default()).await;
    let at = RemoteAddr { addr: 0, rkey: RKey(1) };
    for op in [SendOp::FetchAdd { at, add: 1 }, SendOp::CompareSwap { at, compare: 1, swap: 2 }] {
        let mut work = VecDeque::from([SendWr::new(0, op, a.buf(b"12345678").await)]);
        let refused = a.qp.post_send(&mut work);
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
        assert_eq!(work.len(), 1, "it comes back");
    }
}

async fn srq(bench: Bench) {
    assert_eq!(bench.a.attr().max_srq_wr, 0);
    let created = bench.a.domain().create_srq(1, 1).await;
    assert!(matches!(created, Err(DeviceError::Unsupported { .. })), "{created:?}");
}

async fn sqd(bench: Bench) {
    let (a, _b): (End, _) = pair(&bench, Options::default()).await;
    let drained = a.qp.modify(Transition::SqDrain).await;
    assert!(matches!(drained, Err(DeviceError::Unsupported { .. })), "{drained:?}");
}

/// What raises them elsewhere is done, and none of them follows.
async fn qp_events(bench: Bench) {
    let send = || SendOp::Send { imm: None };
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    b.ready_to_receive(&a).await;
    b.receives(0, 1, 8).await;
    a.ready(&b).await;
    assert!(a.carry_out(send(), b"early").await.status.is_ok());
    for (access, status) in
        [(Access::empty(), Status::REM_INV_REQ_ERR), (Access::all(), Status::REM_ACCESS_ERR)]
    {
        let (a, b) = pair(&bench, Options { access, ..Options::default() }).await;
        let region = b.expose(8, Access::REMOTE_READ).await;
        b.receives(0, 1, 8).await;
        assert_eq!(a.carry_out(write(remote(&region, 0)), b"refused!").await.status, status);
        assert_eq!(b.completion().await.status, Status::WR_FLUSH_ERR);
    }
    let srq = b.domain.create_srq(4, 1).await.unwrap();
    let last = End::in_domain(&bench.b, b.domain.clone(), Options::default(), Some(srq)).await;
    last.ready(&a).await;
    last.modify(Transition::Error).await;
    tokio::time::sleep(REPORTED).await;
    let is_lacking = |event: &DeviceEvent| {
        matches!(
            event,
            DeviceEvent::CommEstablished(_)
                | DeviceEvent::QpAccessError(_)
                | DeviceEvent::QpRequestError(_)
                | DeviceEvent::LastWqeReached(_)
        )
    };
    let events = events_now(&bench.b);
    assert!(!events.iter().any(is_lacking), "{events:?}");
}

async fn path_migration(bench: Bench) {
    assert!(!bench.a.attr().path_migration);
    let (a, b): (End, End) = pair(&bench, Options::default()).await;
    for transition in [Transition::LoadPath(a.alternate(&b, 1)), Transition::Migrate] {
        let refused = a.qp.modify(transition).await;
        assert!(matches!(refused, Err(DeviceError::Unsupported { .. })), "{refused:?}");
    }
}

async fn two_ports(bench: Bench) {
    assert_eq!(bench.a.attr().ports, 1);
    let second = bench.a.port(2);
    assert!(matches!(second, Err(DeviceError::Limit { value: 2, limit: 1, .. })), "{second:?}");
}
