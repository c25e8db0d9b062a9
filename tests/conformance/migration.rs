//! Automatic path migration: alternate paths are loaded, armed, and taken.

use ibdev::qp::{Rts, Transition};
use ibdev::{DeviceError, DeviceEvent};

use super::bench::{Bench, event, events_now};
use super::case::cases;
use super::end::{End, Options, message, pair};

cases! {
    path_migrates_on_command [PathMigration, TwoPorts];
    path_comes_with_rts [PathMigration, TwoPorts];
    path_that_times_out_migrates [PathMigration, TwoPorts, PortControl];
    path_is_armed_by_both_ends [PathMigration, TwoPorts];
    path_out_of_range [PathMigration];
}

const SECOND: u8 = 2;

/// One message, there and its acknowledgement back.
async fn exchange(from: &End, to: &End, id: u64) {
    to.receives(id, 1, 64).await;
    from.send(id, &message(id, 64)).await;
    assert!(from.completion().await.status.is_ok());
    let received = to.completion().await;
    assert!(received.status.is_ok());
    assert_eq!(received.sg[0][..], message(id, 64));
}

/// Both ends have the path from their second ports loaded and armed.
async fn armed(bench: &Bench, options: Options) -> (End, End) {
    let (a, b) = pair(bench, options).await;
    a.modify(Transition::LoadPath(a.alternate(&b, SECOND))).await;
    b.modify(Transition::LoadPath(b.alternate(&a, SECOND))).await;
    exchange(&a, &b, 1).await;
    exchange(&b, &a, 2).await;
    (a, b)
}

async fn path_migrates_on_command(bench: Bench) {
    let (a, b) = armed(&bench, Options::default()).await;
    a.modify(Transition::Migrate).await;
    exchange(&a, &b, 3).await;
    event(&a.device, DeviceEvent::PathMigrated(a.qp.qpn())).await;
    event(&b.device, DeviceEvent::PathMigrated(b.qp.qpn())).await;
    exchange(&b, &a, 4).await;
    // Back to the first path.
    a.modify(Transition::LoadPath(a.alternate(&b, 1))).await;
    b.modify(Transition::LoadPath(b.alternate(&a, 1))).await;
    exchange(&a, &b, 5).await;
    b.modify(Transition::Migrate).await;
    exchange(&b, &a, 6).await;
    event(&a.device, DeviceEvent::PathMigrated(a.qp.qpn())).await;
}

async fn path_comes_with_rts(bench: Bench) {
    let options = Options::default();
    let (a, b) = (End::new(&bench.a, options).await, End::new(&bench.b, options).await);
    for (here, there) in [(&a, &b), (&b, &a)] {
        here.modify(here.init().into()).await;
        here.modify(here.rtr(there).into()).await;
        let rts = Rts { alternate: Some(here.alternate(there, SECOND)), ..here.rts() };
        here.modify(rts.into()).await;
    }
    exchange(&a, &b, 1).await;
    a.modify(Transition::Migrate).await;
    exchange(&a, &b, 2).await;
    event(&b.device, DeviceEvent::PathMigrated(b.qp.qpn())).await;
}

async fn path_that_times_out_migrates(bench: Bench) {
    let (a, b) = armed(&bench, Options { retry_count: 2, ..Options::default() }).await;
    bench.hands.take_port_of_b_down(1);
    exchange(&a, &b, 3).await;
    exchange(&b, &a, 4).await;
    let mut before = event(&a.device, DeviceEvent::PathMigrated(a.qp.qpn())).await;
    before.extend(event(&b.device, DeviceEvent::PathMigrated(b.qp.qpn())).await);
    assert!(before.iter().all(|event| !matches!(event, DeviceEvent::QpError(_))), "{before:?}");
    // There is no third path.
    bench.hands.take_port_of_b_down(SECOND);
    a.send(5, b"lost").await;
    assert!(!a.completion().await.status.is_ok());
    event(&a.device, DeviceEvent::QpError(a.qp.qpn())).await;
}

async fn path_is_armed_by_both_ends(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let is_state = |result| matches!(result, Err(DeviceError::State { .. }));
    assert!(is_state(a.qp.modify(Transition::Migrate).await), "nothing is loaded");
    a.modify(Transition::LoadPath(a.alternate(&b, SECOND))).await;
    exchange(&a, &b, 1).await;
    exchange(&b, &a, 2).await;
    assert!(is_state(a.qp.modify(Transition::Migrate).await), "the peer has loaded nothing");
    a.modify(Transition::LoadPath(a.alternate(&b, SECOND))).await;
    b.modify(Transition::LoadPath(b.alternate(&a, SECOND))).await;
    exchange(&b, &a, 3).await;
    assert!(is_state(a.qp.modify(Transition::LoadPath(a.alternate(&b, SECOND))).await), "it is armed");
    a.modify(Transition::Migrate).await;
    assert_eq!(events_now(&a.device).last(), Some(&DeviceEvent::PathMigrated(a.qp.qpn())));
}

async fn path_out_of_range(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let mut path = a.alternate(&b, 1);
    path.av.port = bench.a.attr().ports + 1;
    let refused = a.qp.modify(Transition::LoadPath(path)).await;
    assert!(matches!(refused, Err(DeviceError::Limit { .. })), "{refused:?}");
    let mut path = a.alternate(&b, 1);
    path.pkey_index = u16::MAX;
    let refused = a.qp.modify(Transition::LoadPath(path)).await;
    assert!(matches!(refused, Err(DeviceError::Limit { .. })), "{refused:?}");
    exchange(&a, &b, 1).await;
}
