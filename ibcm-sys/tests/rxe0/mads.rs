//! Management datagrams.

use super::*;

/// A CM message without meaning (attribute RTU) with this transaction ID.
fn mad(device: &LinuxDevice, to: &str, tid: u64) -> OutgoingMad {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[8..16].copy_from_slice(&tid.to_be_bytes());
    mad[17] = 0x14;
    let to = MadAddr { av: av(device, to), qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 };
    OutgoingMad { to, mad }
}

async fn receive(agent: &dyn MadAgent, count: usize) -> Vec<ReceivedMad> {
    let mut mads = Vec::new();
    while mads.len() < count {
        let got = poll_fn(|cx| agent.poll_recv(cx, &mut mads, 16));
        within("MAD", got).await.unwrap();
    }
    mads
}

fn low_tid(mad: &ReceivedMad) -> u32 {
    u32::from_be_bytes(mad.mad[12..16].try_into().unwrap())
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn the_cm_class_has_one_holder_and_is_free_again() {
    let device = rxe0().await;
    let agent = device.open_agent(CM).unwrap();
    match device.open_agent(CM) {
        Err(DeviceError::InUse { what, holder }) => {
            assert!(what.contains('7') && holder.contains("ib_cm"));
        }
        other => panic!("{other:?}"),
    }
    drop(agent);
    device.open_agent(CM).unwrap();
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_mad_to_ourselves_arrives_with_its_sender_and_a_changed_transaction_id() {
    let device = rxe0().await;
    let agent = device.open_agent(CM).unwrap();
    let sent = mad(&device, HERE, 0xaabb_ccdd_1122_3344);
    let mut batch = VecDeque::from([sent.clone()]);
    agent.send(&mut batch).unwrap();
    assert!(batch.is_empty());
    let received = receive(&*agent, 1).await.remove(0);
    assert_eq!(received.from.reply().av.grh, sent.to.av.grh);
    assert_eq!((received.from.qpn, received.from.pkey_index), (Qpn::GSI, 0));
    assert_eq!(low_tid(&received), 0x1122_3344);
    assert_ne!(received.mad[8..12], sent.mad[8..12], "umad puts its own upper half in");
    assert_eq!((&received.mad[..8], &received.mad[16..]), (&sent.mad[..8], &sent.mad[16..]));
}

/// The kernel takes MADs with one transaction ID for one operation while the first is on its way.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn mads_with_one_transaction_id_all_arrive() {
    let device = rxe0().await;
    let agent = device.open_agent(CM).unwrap();
    let mut batch: VecDeque<_> = (0..8).map(|_| mad(&device, HERE, 7)).collect();
    agent.send(&mut batch).unwrap();
    assert_eq!(receive(&*agent, 8).await.len(), 8);
    assert_eq!(counter(&device, "mads_refused"), 0);
    println!("written again {} times", counter(&device, "mads_repeated"));
}

/// The kernel waits a second for the neighbour inside write(2), and locks the open file meanwhile.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_dead_neighbour_holds_up_neither_the_caller_nor_what_arrives() {
    let device = rxe0().await;
    let agent = device.open_agent(CM).unwrap();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let mut held_up = 0;
    // A machine that is busy with something else may need that second, too, but not each time.
    for hosts in [[99, 98], [97, 96], [95, 94]] {
        let refused = counter(&device, "mads_refused");
        let dead = |host| mad(&device, &format!("10.77.0.{host}"), host);
        agent.send(&mut hosts.map(dead).into()).unwrap();
        agent.send(&mut VecDeque::from([mad(&device, HERE, 1)])).unwrap();
        assert_eq!(low_tid(&receive(&*agent, 1).await[0]), 1);
        let still_waits = counter(&device, "mads_refused") == refused;
        within("refusal", async {
            while counter(&device, "mads_refused") < refused + 2 {
                ticks.tick().await;
            }
        })
        .await;
        if still_waits {
            return;
        }
        held_up += 1;
    }
    panic!("held up {held_up} times until a neighbour was given up");
}

/// More than the window, whose lanes may or may not keep up: nothing is lost, and the order stays.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn more_than_the_window_arrives_in_order() {
    let device = rxe0().await;
    let agent = device.open_agent(CM).unwrap();
    let mut batch: VecDeque<_> = (0..400).map(|tid| mad(&device, HERE, tid)).collect();
    let send = async {
        loop {
            agent.send(&mut batch).unwrap();
            if batch.is_empty() {
                return;
            }
            poll_fn(|cx| agent.poll_ready(cx)).await.unwrap();
        }
    };
    let ((), mads) = tokio::join!(within("room", send), receive(&*agent, 400));
    assert_eq!(mads.iter().map(low_tid).collect::<Vec<_>>(), (0..400).collect::<Vec<_>>());
}

const SA: AgentSpec = AgentSpec { port: 1, class: MgmtClass::SA, class_version: 2, methods: &[] };

/// A Get of ClassPortInfo over IPv6, where rxe's responses find their requests (spec/sa.md 2.8).
fn get(device: &LinuxDevice, to: &str, tid: u64) -> OutgoingMad {
    let mut get = mad(device, HERE, tid);
    get.mad[..4].copy_from_slice(&[1, 3, 2, 1]);
    get.mad[16..18].copy_from_slice(&[0, 1]);
    get.to.av = av_from(device, "fd77::1", to);
    get
}

/// Here nobody serves the class, and the kernel says so itself: Get responses with status 0x000C.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_response_comes_to_who_has_asked() {
    let device = rxe0().await;
    let (agent, cm) = (device.open_agent(SA).unwrap(), device.open_agent(CM).unwrap());
    let mut batch: VecDeque<_> = (1..=3).map(|tid| get(&device, "fd77::1", tid)).collect();
    agent.send(&mut batch).unwrap();
    let mut responses = receive(&*agent, 3).await;
    responses.sort_by_key(low_tid);
    for (response, tid) in responses.iter().zip(1..) {
        assert_eq!((response.mad[3], &response.mad[4..6], low_tid(response)), (0x81, &[0, 0x0c][..], tid));
    }
    let mut none = Vec::new();
    let nothing = poll_fn(|cx| Poll::Ready(cm.poll_recv(cx, &mut none, 1).is_pending()));
    assert!(nothing.await);
    // Who asks once more with the same transaction ID asks again: the first time is over.
    agent.send(&mut VecDeque::from([get(&device, "fd77::1", 3)])).unwrap();
    assert_eq!(low_tid(&receive(&*agent, 1).await[0]), 3);
}

/// The kernel asks five times within five seconds, and then gives the request back.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_request_without_response_is_counted() {
    let device = rxe0().await;
    let agent = device.open_agent(SA).unwrap();
    agent.send(&mut VecDeque::from([get(&device, "fd77::2", 9)])).unwrap();
    // One that is sent again meanwhile is no second one.
    agent.send(&mut VecDeque::from([get(&device, "fd77::2", 9)])).unwrap();
    let mut none = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    within("end of the request", async {
        while counter(&device, "mads_unanswered") == 0 {
            let read = poll_fn(|cx| Poll::Ready(agent.poll_recv(cx, &mut none, 4).is_pending()));
            assert!(read.await);
            ticks.tick().await;
        }
    })
    .await;
    assert_eq!((counter(&device, "mads_sent"), counter(&device, "mads_malformed")), (2, 0));
}
