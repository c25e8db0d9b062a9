//! What a device reports on its own. Access and request errors: see `refused`; SqDrained: see `states`.

use std::task::{Context, Poll};
use std::time::Duration;

use ibdev::qp::Transition;
use ibdev::{DeviceError, DeviceEvent, PortState, PostError, RecvWr, SendOp, SendWr, Status};

use super::bench::{Bench, REPORTED, event, events_now};
use super::case::cases;
use super::end::{End, Options, pair};
use super::waiting::{bell, wait};

cases! {
    comm_established_comes_once [QpEvents];
    comm_established_needs_no_receive [QpEvents];
    qp_error_comes_once;
    error_by_choice_is_no_event;
    port_goes_down_and_comes_back [PortControl];
    port_that_flaps_ends_in_its_last_state [PortControl];
    port_that_is_down_lets_nothing_through [PortControl];
    removed_device_flushes_and_is_gone [Removal];
    removed_device_wakes_who_waits [Removal];
    closed_device_flushes_and_is_gone [Close];
}

const SEND: SendOp = SendOp::Send { imm: None };

/// Upon the first message to a QP in RTR; it is delivered, too.
async fn comm_established_comes_once(bench: Bench) {
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    b.ready_to_receive(&a).await;
    b.receives(0, 2, 8).await;
    a.ready(&b).await;
    let established = DeviceEvent::CommEstablished(b.qp.qpn());
    assert!(!events_now(&b.device).contains(&established));
    for id in 0..2 {
        assert!(a.carry_out(SEND, b"ready").await.status.is_ok(), "{id}");
    }
    event(&b.device, established).await;
    assert!(!events_now(&b.device).contains(&established));
    assert_eq!(b.completions(2).await.len(), 2);
    b.modify(Transition::Rts(b.rts())).await;
    assert!(a.completed().is_empty());
}

async fn comm_established_needs_no_receive(bench: Bench) {
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    b.ready_to_receive(&a).await;
    a.ready(&b).await;
    a.send(0, b"early").await;
    event(&b.device, DeviceEvent::CommEstablished(b.qp.qpn())).await;
    b.receives(0, 1, 8).await;
    assert!(a.completion().await.status.is_ok());
}

async fn qp_error_comes_once(bench: Bench) {
    let (a, _b) = pair(&bench, Options { rnr_retry: 0, ..Options::default() }).await;
    for id in 0..3 {
        a.send(id, b"not ready").await;
    }
    let error = DeviceEvent::QpError(a.qp.qpn());
    // A device may learn of it from the completions, as the program does.
    a.completions(3).await;
    event(&a.device, error).await;
    a.send(3, b"too late").await;
    a.completion().await;
    assert!(!events_now(&a.device).contains(&error));
}

async fn error_by_choice_is_no_event(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    a.modify(Transition::Error).await;
    a.send(0, b"flushed").await;
    a.completion().await;
    assert!(!events_now(&a.device).contains(&DeviceEvent::QpError(a.qp.qpn())));
}

async fn port_goes_down_and_comes_back(bench: Bench) {
    bench.hands.set_ports_of_b(false);
    event(&bench.b, DeviceEvent::PortDown(1)).await;
    assert_eq!(bench.b.port(1).unwrap().state, PortState::Down);
    bench.hands.set_ports_of_b(true);
    event(&bench.b, DeviceEvent::PortUp(1)).await;
    assert_eq!(bench.b.port(1).unwrap().state, PortState::Active);
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 1, 8).await;
    assert!(a.carry_out(SEND, b"back").await.status.is_ok());
}

/// Events of a slow reader are merged, and the last state is read last.
async fn port_that_flaps_ends_in_its_last_state(bench: Bench) {
    for _ in 0..20 {
        bench.hands.set_ports_of_b(false);
        bench.hands.set_ports_of_b(true);
    }
    bench.hands.set_ports_of_b(false);
    tokio::time::sleep(REPORTED).await;
    let of_port_1 = |event: &DeviceEvent| matches!(event, DeviceEvent::PortDown(1) | DeviceEvent::PortUp(1));
    let events: Vec<_> = events_now(&bench.b).into_iter().filter(of_port_1).collect();
    assert!(events.len() <= 2 && events.last() == Some(&DeviceEvent::PortDown(1)), "{events:?}");
}

/// A connection outlives that.
async fn port_that_is_down_lets_nothing_through(bench: Bench) {
    let (a, b) = pair(&bench, Options { timeout: 14, ..Options::default() }).await;
    b.receives(0, 1, 16).await;
    bench.hands.set_ports_of_b(false);
    a.send(0, b"on its way").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(a.completed().is_empty() && b.completed().is_empty());
    bench.hands.set_ports_of_b(true);
    assert!(a.completion().await.status.is_ok());
    assert_eq!(&b.completion().await.sg[0][..], b"on its way");
}

async fn removed_device_flushes_and_is_gone(bench: Bench) {
    let (a, b) = pair(&bench, Options { timeout: 8, retry_count: 1, ..Options::default() }).await;
    b.receives(0, 2, 8).await;
    bench.hands.remove_b();
    is_gone(&b).await;
    assert_eq!(a.carry_out(SEND, b"nobody there").await.status, Status::RETRY_EXC_ERR);
}

/// What was posted is flushed or, as the contract allows, does not complete; everything else is refused.
async fn is_gone(b: &End) {
    event(&b.device, DeviceEvent::Gone).await;
    assert_eq!(events_now(&b.device), [DeviceEvent::Gone], "for all who ask");
    assert!(b.completed().iter().all(|done| done.status == Status::WR_FLUSH_ERR));
    assert!(matches!(b.device.create_cq(1).await, Err(DeviceError::Gone)));
    assert!(matches!(b.device.port(1), Err(DeviceError::Gone)));
    assert!(matches!(b.domain.create_qp(super::end::spec(b.options, &b.cq)).await, Err(DeviceError::Gone)));
    assert!(matches!(b.qp.modify(Transition::Reset).await, Err(DeviceError::Gone)));
    let buf = ibdev::Buf::unregistered(8);
    assert_eq!(b.qp.post_recv(&mut [RecvWr::new(0, buf)].into()), Err(PostError::Gone));
    let buf = ibdev::Buf::unregistered(8);
    assert_eq!(b.post(SendWr::new(0, SEND, buf)), Err(PostError::Gone));
}

/// On whatever they wait.
async fn removed_device_wakes_who_waits(bench: Bench) {
    let spec = ibdev::AgentSpec {
        port: 1,
        class: ibwire::mad::MgmtClass::CM,
        class_version: 2,
        methods: &[ibwire::mad::Method::SEND],
    };
    let (cq, agent) = (bench.b.create_cq(4).await.unwrap(), bench.b.open_agent(spec).unwrap());
    let (bell, waker) = bell();
    let mut cx = Context::from_waker(&waker);
    wait(&cq, &waker);
    assert!(agent.poll_recv(&mut cx, &mut Vec::new(), 1).is_pending());
    assert!(bench.b.poll_event(&mut cx).is_pending());
    bench.hands.remove_b();
    bell.rings(3).await;
    let received = agent.poll_recv(&mut cx, &mut Vec::new(), 1);
    assert!(matches!(received, Poll::Ready(Err(DeviceError::Gone))), "{received:?}");
    assert!(matches!(agent.poll_ready(&mut cx), Poll::Ready(Err(DeviceError::Gone))));
    assert!(matches!(agent.send(&mut [].into()), Err(DeviceError::Gone)));
}

async fn closed_device_flushes_and_is_gone(bench: Bench) {
    let (a, b) = pair(&bench, Options { timeout: 8, retry_count: 1, ..Options::default() }).await;
    b.receives(0, 2, 8).await;
    b.device.close().await;
    is_gone(&b).await;
    assert_eq!(a.carry_out(SEND, b"nobody there").await.status, Status::RETRY_EXC_ERR);
}
