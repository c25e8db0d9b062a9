//! MAD agents.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use ibdev::{
    AddressVector, AgentSpec, Device, DeviceError, MAD_LEN, MadAddr, MadAgent, OutgoingMad, ReceivedMad,
};
use ibwire::mad::{Method, MgmtClass};
use ibwire::{QKey, Qpn};

use super::bench::Bench;
use super::case::cases;
use super::differs::Difference;
use super::end::way;

cases! {
    mads_arrive_and_are_answered;
    mad_source_is_the_way_back;
    class_has_one_holder;
    dropped_agent_frees_its_class;
    what_a_dropped_agent_received_is_gone [TwoDevices];
    what_a_dropped_agent_sent_goes_out [TwoDevices];
    methods_are_chosen [TwoDevices];
    responses_reach_who_asked [TwoDevices];
    classes_are_apart [TwoDevices];
    ports_have_agents_of_their_own [TwoDevices, TwoPorts];
    send_window_closes_and_opens;
}

const CM: AgentSpec = AgentSpec { port: 1, class: MgmtClass::CM, class_version: 2, methods: &[Method::SEND] };
/// Takes requests of another class.
const SERVES: AgentSpec =
    AgentSpec { class: MgmtClass::DEVICE, class_version: 1, methods: &[Method::GET], ..CM };
/// Takes the answers.
const ASKS: AgentSpec = AgentSpec { methods: &[], ..SERVES };

/// After this long what comes at all has come, on an emulated processor too.
const ARRIVED: Duration = Duration::from_secs(30);

/// A MAD of a class and a method, with a number in it: in the half of the transaction ID that umad leaves alone.
fn mad(spec: AgentSpec, method: Method, number: u32) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, spec.class.0, spec.class_version, method.0]);
    mad[12..16].copy_from_slice(&number.to_be_bytes());
    mad[17] = 0x10;
    mad[MAD_LEN - 4..].copy_from_slice(&number.to_be_bytes());
    mad
}

fn cm(to: MadAddr, number: u32) -> OutgoingMad {
    OutgoingMad { to, mad: mad(CM, Method::SEND, number) }
}

fn number(mad: &ReceivedMad) -> u32 {
    let [.., a, b, c, d] = mad.mad;
    u32::from_be_bytes([a, b, c, d])
}

fn to_gsi(from: &Arc<dyn Device>, to: &Arc<dyn Device>, port: u8) -> MadAddr {
    MadAddr { av: way(from, to, port, false), qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 }
}

async fn send(agent: &dyn MadAgent, mads: impl IntoIterator<Item = OutgoingMad>) {
    let mut batch: VecDeque<_> = mads.into_iter().collect();
    loop {
        agent.send(&mut batch).unwrap();
        if batch.is_empty() {
            return;
        }
        poll_fn(|cx| agent.poll_ready(cx)).await.unwrap();
    }
}

async fn receive(agent: &dyn MadAgent, count: usize) -> Vec<ReceivedMad> {
    let mut out = Vec::new();
    let all = async {
        while out.len() < count {
            let most = count - out.len();
            poll_fn(|cx| agent.poll_recv(cx, &mut out, most)).await.unwrap();
        }
    };
    let in_time = tokio::time::timeout(ARRIVED, all).await.is_ok();
    assert!(in_time, "{} of {count} came: {:?}", out.len(), out.iter().map(number).collect::<Vec<_>>());
    out
}

/// Into the order of sending, where they may have come in another one.
fn sort(bench: &Bench, received: &mut [ReceivedMad]) {
    if bench.differs(Difference::MadsOvertake) {
        received.sort_unstable_by_key(number);
    }
}

/// Who holds the CM class on each device, and the address of the second one.
fn two(bench: &Bench) -> (Arc<dyn MadAgent>, Arc<dyn MadAgent>, MadAddr) {
    let open = |device: &Arc<dyn Device>| -> Arc<dyn MadAgent> { device.open_agent(CM).unwrap().into() };
    let a = open(&bench.a);
    let b = if Arc::ptr_eq(&bench.a, &bench.b) { a.clone() } else { open(&bench.b) };
    (a, b, to_gsi(&bench.a, &bench.b, 1))
}

async fn mads_arrive_and_are_answered(bench: Bench) {
    let (a, b, to) = two(&bench);
    send(&*a, (0..100).map(|n| cm(to, n))).await;
    let mut received = receive(&*b, 100).await;
    sort(&bench, &mut received);
    assert!(received.iter().map(number).eq(0..100), "in order");
    let sent = cm(to, 7).mad;
    assert_eq!((&received[7].mad[..8], &received[7].mad[12..]), (&sent[..8], &sent[12..]));
    send(&*b, [cm(received[0].from.reply(), 1000)]).await;
    assert_eq!(number(&receive(&*a, 1).await[0]), 1000);
}

async fn mad_source_is_the_way_back(bench: Bench) {
    let (a, b, to) = two(&bench);
    send(&*a, [cm(to, 1)]).await;
    let from = receive(&*b, 1).await[0].from;
    assert_eq!((from.port, from.qpn, from.pkey_index), (1, Qpn::GSI, 0));
    assert_eq!(from.slid, bench.a.port(1).unwrap().lid);
    let back = way(&bench.b, &bench.a, 1, false);
    let route = |av: AddressVector| av.grh.map(|grh| (grh.dgid, grh.sgid_index));
    assert_eq!((from.reply().av.dlid, route(from.reply().av)), (back.dlid, route(back)));
}

async fn class_has_one_holder(bench: Bench) {
    let _holder = bench.a.open_agent(CM).unwrap();
    match bench.a.open_agent(CM) {
        Err(DeviceError::InUse { what, holder }) => {
            assert!(what.contains("class") && !holder.is_empty(), "{what}: {holder}");
        }
        other => panic!("{other:?}"),
    }
}

async fn dropped_agent_frees_its_class(bench: Bench) {
    for _ in 0..3 {
        drop(bench.a.open_agent(CM).unwrap());
    }
}

async fn what_a_dropped_agent_received_is_gone(bench: Bench) {
    let (a, b, to) = two(&bench);
    send(&*a, [cm(to, 1), cm(to, 2)]).await;
    let read = number(&receive(&*b, 1).await[0]);
    drop(b);
    let b = bench.b.open_agent(CM).unwrap();
    send(&*a, [cm(to, 3)]).await;
    let mut next = number(&receive(&*b, 1).await[0]);
    if bench.differs(Difference::MadsOvertake) && next == 3 - read {
        next = number(&receive(&*b, 1).await[0]); // the other one was still on its way when its agent was dropped
    }
    assert_eq!(next, 3);
}

async fn what_a_dropped_agent_sent_goes_out(bench: Bench) {
    let (a, b, to) = two(&bench);
    let mut batch = (0..50).map(|n| cm(to, n)).collect();
    a.send(&mut batch).unwrap();
    let sent = 50 - batch.len();
    drop(a);
    let mut received = receive(&*b, sent).await;
    sort(&bench, &mut received);
    assert!(received.iter().map(number).eq(0..sent as u32));
}

async fn methods_are_chosen(bench: Bench) {
    let (a, b, to) = two(&bench);
    let mads = [(Method::GET, 1), (Method::SET, 2), (Method::SEND, 3)];
    send(&*a, mads.map(|(method, n)| OutgoingMad { to, mad: mad(CM, method, n) })).await;
    assert_eq!(number(&receive(&*b, 1).await[0]), 3, "it registered for no other method");
}

async fn responses_reach_who_asked(bench: Bench) {
    let (a, b) = (bench.a.open_agent(ASKS).unwrap(), bench.b.open_agent(SERVES).unwrap());
    let to = to_gsi(&bench.a, &bench.b, 1);
    send(&*a, [OutgoingMad { to, mad: mad(SERVES, Method::GET, 5) }]).await;
    let request = receive(&*b, 1).await.remove(0);
    let mut answer = mad(SERVES, Method::GET_RESP, 6);
    answer[8..16].copy_from_slice(&request.mad[8..16]);
    send(&*b, [OutgoingMad { to: request.from.reply(), mad: answer }]).await;
    if bench.differs(Difference::ResponsesMissTheirRequest) {
        assert_eq!(number(&receive(&*b, 1).await[0]), 5, "the request once more");
        let nothing = a.poll_recv(&mut Context::from_waker(Waker::noop()), &mut Vec::new(), 1);
        assert!(nothing.is_pending());
        return;
    }
    assert_eq!(number(&receive(&*a, 1).await[0]), 6);
}

async fn classes_are_apart(bench: Bench) {
    let (a, b, to) = two(&bench);
    let (asks, serves) = (bench.a.open_agent(ASKS).unwrap(), bench.b.open_agent(SERVES).unwrap());
    for n in [1, 3] {
        send(&*asks, [OutgoingMad { to, mad: mad(SERVES, Method::GET, n) }]).await;
        send(&*a, [cm(to, n + 1)]).await;
    }
    for (agent, expected) in [(&*serves, [1, 3]), (&*b, [2, 4])] {
        let mut received = receive(agent, 2).await;
        sort(&bench, &mut received);
        assert!(received.iter().map(number).eq(expected));
    }
}

async fn ports_have_agents_of_their_own(bench: Bench) {
    let (_a, first, _) = two(&bench);
    let other = AgentSpec { port: 2, ..CM };
    let (a, second) = (bench.a.open_agent(other).unwrap(), bench.b.open_agent(other).unwrap());
    send(&*a, [cm(to_gsi(&bench.a, &bench.b, 2), 2)]).await;
    let received = receive(&*second, 1).await.remove(0);
    assert_eq!((received.from.port, number(&received)), (2, 2));
    let nothing = first.poll_recv(&mut Context::from_waker(Waker::noop()), &mut Vec::new(), 1);
    assert!(nothing.is_pending());
}

/// More than any window, in order, and nothing is lost that need not be.
async fn send_window_closes_and_opens(bench: Bench) {
    let (a, b, to) = two(&bench);
    let at_once = if bench.differs(Difference::MadsAreLost) { 400 } else { 2000 };
    let mut received = Vec::new();
    for first in (0..2000).step_by(at_once) {
        let mads = (first..).take(at_once).map(|n| cm(to, n));
        let ((), some) = tokio::join!(send(&*a, mads), receive(&*b, at_once));
        received.extend(some);
    }
    sort(&bench, &mut received);
    assert!(received.iter().map(number).eq(0..2000));
}
