//! Writes, reads and atomics on exposed memory.

use std::sync::atomic::Ordering;

use super::*;

async fn expose(device: &LinuxDevice, len: usize, access: Access) -> Region {
    device.domain().register(SharedMemory::zeroed(len), access).await.unwrap()
}

fn at(region: &Region, at: usize) -> RemoteAddr {
    let remote = region.remote();
    RemoteAddr { addr: remote.addr() + at as u64, rkey: remote.rkey() }
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.copy_to(0, &mut bytes).unwrap();
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + 1) as u8).collect()
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn writes_and_reads_of_every_length() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 8).await;
    let region = expose(&device, 80_000, Access::REMOTE_WRITE | Access::REMOTE_READ).await;
    for len in [0, 1, 7, 8, 1023, 1024, 1025, 70_001] {
        let data = pattern(len);
        let done =
            a.carry_out(SendOp::Write { to: at(&region, 3), imm: None }, filled(&device, &data).await).await;
        assert_eq!((done.status, done.op), (Status::SUCCESS, CompletionOp::Write), "{len}");
        assert!(bytes(&region)[3..3 + len] == data, "{len}");
        let mut room = buf(&device, len.max(1)).await;
        room.resize(len, 0);
        let done = a.carry_out(SendOp::Read { from: at(&region, 3) }, room).await;
        assert_eq!((done.status, done.op, done.len as usize), (Status::SUCCESS, CompletionOp::Read, len));
        assert!(done.sg[0][..] == data, "{len}");
    }
    assert!(b.completed().is_empty());
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_write_with_immediate_takes_a_receive_and_leaves_it_empty() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    let region = expose(&device, 3000, Access::REMOTE_WRITE).await;
    for (len, imm) in [(0, 0), (2500, 0x0102_0304)] {
        b.recv(9, buf(&device, 8).await).unwrap();
        let data = pattern(len);
        let op = SendOp::Write { to: at(&region, 0), imm: Some(imm) };
        assert!(a.carry_out(op, filled(&device, &data).await).await.status.is_ok());
        let got = b.complete(1).await.remove(0);
        assert_eq!((got.id, got.op, got.imm), (9, CompletionOp::RecvWrite, Some(imm)));
        assert_eq!((got.len as usize, got.sg[0].len()), (len, 0));
        assert!(bytes(&region)[..len] == data);
    }
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn atomics_give_the_value_before() {
    let device = rxe0().await;
    let (a, _b) = pair(&device, 4).await;
    let region = expose(&device, 32, Access::REMOTE_ATOMIC).await;
    let word = region.atomic(16).unwrap();
    word.store(5, Ordering::Relaxed);
    let before = |done: &Completion| u64::from_ne_bytes(*done.sg[0].first_chunk().unwrap());
    for (op, kind, old, new) in [
        (SendOp::FetchAdd { at: at(&region, 16), add: 10 }, CompletionOp::FetchAdd, 5, 15),
        (SendOp::FetchAdd { at: at(&region, 16), add: u64::MAX }, CompletionOp::FetchAdd, 15, 14),
        (SendOp::CompareSwap { at: at(&region, 16), compare: 1, swap: 2 }, CompletionOp::CompareSwap, 14, 14),
        (SendOp::CompareSwap { at: at(&region, 16), compare: 14, swap: 2 }, CompletionOp::CompareSwap, 14, 2),
    ] {
        let done = a.carry_out(op, buf(&device, 8).await).await;
        assert_eq!((done.status, done.op, done.len, before(&done)), (Status::SUCCESS, kind, 8, old));
        assert_eq!(word.load(Ordering::Relaxed), new);
    }
    assert_eq!(region.atomic(8).unwrap().load(Ordering::Relaxed), 0);
    let small = a.post(SendWr::new(0, SendOp::FetchAdd { at: at(&region, 16), add: 1 }, {
        let mut small = buf(&device, 8).await;
        small.resize(7, 0);
        small
    }));
    assert!(matches!(small, Err(PostError::Limit { value: 7, limit: 8, .. })), "{small:?}");
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn lists_of_buffers_are_gathered_and_scattered() {
    let device = rxe0().await;
    let (a, b) = pair_of(&device, QpType::Rc, 8, 4).await;
    let region = expose(&device, 4000, Access::all()).await;
    let data = pattern(3001);
    let mut sg = SgList::new();
    for part in [&data[..1], &data[1..1], &data[1..1500], &data[1500..]] {
        sg.push(filled(&device, part).await);
    }
    let op = SendOp::Write { to: at(&region, 9), imm: None };
    a.post(SendWr { id: 0, op, sg, flags: SendFlags::SIGNALED }).unwrap();
    assert!(a.complete(1).await[0].status.is_ok());
    assert!(bytes(&region)[9..3010] == data);

    let mut sg = SgList::new();
    for len in [5, 1022, 2000] {
        sg.push(buf(&device, len).await);
    }
    a.post(SendWr { id: 0, op: SendOp::Read { from: at(&region, 9) }, sg, flags: SendFlags::SIGNALED })
        .unwrap();
    let done = a.complete(1).await.remove(0);
    assert!(done.sg.iter().flat_map(|buf| buf.iter().copied()).eq(data.iter().copied().chain([0; 26])));

    let mut sg = SgList::new();
    for len in [8, 1000, 2000] {
        sg.push(buf(&device, len).await);
    }
    b.qp.post_recv(&mut VecDeque::from([RecvWr { id: 0, sg }])).unwrap();
    assert!(
        a.carry_out(SendOp::Send { imm: None }, filled(&device, &data[..1500]).await).await.status.is_ok()
    );
    let got = b.complete(1).await.remove(0);
    assert!(got.sg.iter().map(|buf| buf.len()).eq([8, 1000, 492]));
    assert!(got.sg.iter().flat_map(|buf| buf.iter().copied()).eq(data[..1500].iter().copied()));

    let five = (0..5).map(|_| Buf::unregistered(1)).collect();
    let refused =
        a.post(SendWr { id: 0, op: SendOp::Send { imm: None }, sg: five, flags: SendFlags::SIGNALED });
    assert!(matches!(refused, Err(PostError::Limit { value: 5, limit: 4, .. })), "{refused:?}");
}

/// A message that is copied when it is posted needs no registered memory.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn inline_messages_come_from_any_memory() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    let most = device.attr().max_inline_data as usize;
    assert!(most >= 64, "{most}");
    let region = expose(&device, 512, Access::REMOTE_WRITE).await;
    b.recv(0, buf(&device, 512).await).unwrap();
    let ops = [SendOp::Send { imm: None }, SendOp::Write { to: at(&region, 0), imm: None }];
    for op in ops {
        let mut message = Buf::unregistered(most);
        message.copy_from_slice(&pattern(most));
        let (sg, flags) = ([message].into_iter().collect(), SendFlags::INLINE | SendFlags::SIGNALED);
        a.post(SendWr { id: 0, op, sg, flags }).unwrap();
        assert!(a.complete(1).await[0].status.is_ok());
    }
    assert!(b.complete(1).await[0].sg[0][..] == pattern(most));
    assert!(bytes(&region)[..most] == pattern(most));
    let sg = [Buf::unregistered(most + 1)].into_iter().collect();
    let refused = a.post(SendWr { id: 0, op: SendOp::Send { imm: None }, sg, flags: SendFlags::INLINE });
    assert_eq!(refused, Err(PostError::TooLong { len: most + 1, limit: most }));
}

/// Whoever posts nothing but unsignaled work finds room again, and has nothing to poll.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn unsignaled_work_leaves_its_place_by_itself() {
    let device = rxe0().await;
    let (a, _b) = pair(&device, 4).await;
    let region = expose(&device, 8, Access::REMOTE_WRITE).await;
    for round in 0..40_u64 {
        let bytes = round.to_ne_bytes();
        let op = SendOp::Write { to: at(&region, 0), imm: None };
        let mut work = VecDeque::from([SendWr {
            id: round,
            op,
            sg: [filled(&device, &bytes).await].into_iter().collect(),
            flags: SendFlags::empty(),
        }]);
        within("room", async {
            while a.qp.post_send(&mut work) == Err(PostError::Full) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(work.is_empty());
    }
    let last =
        a.carry_out(SendOp::Write { to: at(&region, 0), imm: None }, filled(&device, b"the last").await);
    assert_eq!(last.await.id, 0);
    assert!(a.completed().is_empty());
    assert_eq!(bytes(&region), b"the last");
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_fenced_send_follows_its_read() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    let region = expose(&device, 20_000, Access::all()).await;
    region.copy_from(0, &pattern(20_000)).unwrap();
    b.recv(0, buf(&device, 8).await).unwrap();
    a.post(SendWr::new(0, SendOp::Read { from: at(&region, 0) }, buf(&device, 20_000).await)).unwrap();
    let flags = SendFlags::SIGNALED | SendFlags::FENCE | SendFlags::SOLICITED;
    let sg = [filled(&device, b"fenced").await].into_iter().collect();
    a.post(SendWr { id: 1, op: SendOp::Send { imm: None }, sg, flags }).unwrap();
    assert_eq!(&b.complete(1).await[0].sg[0][..], b"fenced");
    let done = a.complete(2).await;
    assert!(done[0].sg[0][..] == pattern(20_000) && done[1].status.is_ok());
}

/// Each ends the connection, is told once as an event, and leaves the memory alone.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn access_that_was_not_given_is_refused() {
    let device = rxe0().await;
    let (all, read_only) =
        (expose(&device, 64, Access::all()).await, expose(&device, 64, Access::REMOTE_READ).await);
    let elsewhere = device.create_domain().await.unwrap();
    let elsewhere = elsewhere.register(SharedMemory::zeroed(64), Access::all()).await.unwrap();
    let gone = expose(&device, 64, Access::all()).await;
    let (memory_of_gone, dropped) = (at(&gone, 0), gone);
    drop(dropped);
    let no_key = RemoteAddr { rkey: RKey(at(&all, 0).rkey.0 ^ 0x0101_0101), ..at(&all, 0) };
    let write = |to| SendOp::Write { to, imm: None };
    for (what, op) in [
        ("no such key", write(no_key)),
        ("over the end", write(at(&all, 60))),
        ("read only", write(at(&read_only, 0))),
        ("another domain's", write(at(&elsewhere, 0))),
        ("dropped", SendOp::Read { from: memory_of_gone }),
        ("read over the end", SendOp::Read { from: at(&all, 57) }),
    ] {
        let (a, _b) = pair(&device, 4).await;
        let done = a.carry_out(op, filled(&device, b"8 bytes!").await).await;
        assert_eq!((done.status, &done.sg[0][..]), (Status::REM_ACCESS_ERR, &b"8 bytes!"[..]), "{what}");
        event(&device, DeviceEvent::QpError(a.qp.qpn())).await;
        a.send(1, buf(&device, 8).await, None).unwrap();
        assert_eq!(a.complete(1).await[0].status, Status::WR_FLUSH_ERR);
    }
    for region in [&all, &read_only, &elsewhere] {
        assert_eq!(bytes(region), [0; 64]);
    }
}

/// What the owner does to its memory and what the peer does are the same words; of no bytes there is nothing to register.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn regions_are_the_owners_memory() {
    let device = rxe0().await;
    let (a, _b) = pair(&device, 4).await;
    let memory = SharedMemory::zeroed(16);
    let domain = device.domain();
    let (one, two) = (
        domain.register(memory.clone(), Access::all()).await.unwrap(),
        domain.register(memory.clone(), Access::REMOTE_READ).await.unwrap(),
    );
    assert!(
        a.carry_out(SendOp::Write { to: at(&one, 4), imm: None }, filled(&device, b"shared").await)
            .await
            .status
            .is_ok()
    );
    drop(one);
    let done = a.carry_out(SendOp::Read { from: at(&two, 4) }, buf(&device, 6).await).await;
    assert_eq!(&done.sg[0][..], b"shared");
    drop(two);
    let mut here = [0; 6];
    memory.copy_to(4, &mut here).unwrap();
    assert_eq!(&here, b"shared");
    let nothing = expose(&device, 0, Access::all()).await;
    assert!(nothing.is_empty());
    assert!(
        a.carry_out(SendOp::Write { to: at(&nothing, 0), imm: None }, filled(&device, b"").await)
            .await
            .status
            .is_ok()
    );
}
