//! Work requests that must not be carried out: who refuses them, with what, and what is left untouched.

use ibdev::qp::{QpType, Transition};
use ibdev::{
    Access, CompletionOp, DeviceEvent, PostError, Region, RemoteAddr, SendFlags, SendOp, SendWr, SgList,
    Status,
};

use super::bench::{Bench, event};
use super::case::cases;
use super::differs::Difference;
use super::end::{End, Options, bytes, connect, message, no_rkey, pair, remote, write};
use super::memory::read;

cases! {
    rkey_that_nobody_gave [Regions];
    rkey_of_another_domain [Regions];
    rkey_of_a_region_that_was_dropped [Regions];
    bounds_of_a_region [Regions];
    rights_of_a_region [Regions];
    rights_of_a_qp [Regions];
    atomics_refused_like_writes [Regions, Atomics];
    atomic_out_of_alignment [Regions, Atomics];
    read_where_none_may_be_outstanding [Regions];
    access_error_is_an_event [Regions, QpEvents];
    request_error_is_an_event [Regions, QpEvents];
    what_came_before_is_done_what_follows_is_flushed [Regions];
    region_dropped_while_it_is_written [Regions];
    message_longer_than_its_receive;
    message_longer_than_its_receives_parts [ScatterGather];
    read_into_nothing_of_the_peer_touches_no_buffer [Regions];
    operations_of_other_transports;
    atomic_with_too_small_a_buffer [Regions, Atomics];
    inline_read_and_atomic [Regions, Inline];
    more_buffers_than_the_qp_takes;
    refused_work_comes_back;
}

/// Carries out `op` on a new connection, which it ends with `status` and without a change to the region.
async fn ends(
    bench: &Bench,
    what: &str,
    options: [Options; 2],
    op: impl FnOnce(&Region, &End) -> SendOp,
    rights: Access,
    status: Status,
) {
    let (a, b) = (End::new(&bench.a, options[0]).await, End::new(&bench.b, options[1]).await);
    connect(&a, &b).await;
    let region = b.expose(4096, rights).await;
    region.copy_from(0, &message(7, 4096)).unwrap();
    b.receives(50, 2, 64).await;
    let op = op(&region, &b);
    let has_imm = matches!(op, SendOp::Write { imm: Some(_), .. });
    let done = a.carry_out(op, &[0xaa; 8]).await;
    assert_eq!(done.status, status, "{what}");
    assert!(bytes(&region) == message(7, 4096), "{what}: the memory");
    let takes_receive = has_imm && bench.differs(Difference::RefusedImmediateTakesItsReceive);
    let first = if takes_receive { status } else { Status::WR_FLUSH_ERR };
    let receives: Vec<_> = b.completions(2).await.iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(receives, [(50, first), (51, Status::WR_FLUSH_ERR)], "{what}");
    event(&a.device, DeviceEvent::QpError(a.qp.qpn())).await;
    a.start(1, SendOp::Send { imm: None }, b"late").await;
    assert_eq!(a.completion().await.status, Status::WR_FLUSH_ERR, "{what}");
}

async fn access_refused(bench: &Bench, what: &str, op: impl FnOnce(&Region, &End) -> SendOp, rights: Access) {
    ends(bench, what, [Options::default(); 2], op, rights, Status::REM_ACCESS_ERR).await;
}

async fn rkey_that_nobody_gave(bench: Bench) {
    let no_key = |region: &Region| RemoteAddr { rkey: no_rkey(region), ..remote(region, 0) };
    access_refused(&bench, "write", |region, _| write(no_key(region)), Access::all()).await;
    access_refused(&bench, "read", |region, _| read(no_key(region)), Access::all()).await;
    let zero = |region: &Region| RemoteAddr { rkey: ibwire::RKey(0), ..remote(region, 0) };
    access_refused(&bench, "key 0", |region, _| write(zero(region)), Access::all()).await;
}

async fn rkey_of_another_domain(bench: Bench) {
    for op in [write, read] {
        let (a, b) = pair(&bench, Options::default()).await;
        let other = bench.b.create_domain().await.unwrap();
        let region = other.register(ibdev::SharedMemory::zeroed(8), Access::all()).await.unwrap();
        assert_eq!(a.carry_out(op(remote(&region, 0)), b"foreign!").await.status, Status::REM_ACCESS_ERR);
        assert_eq!(bytes(&region), [0; 8]);
        drop(b);
    }
}

async fn rkey_of_a_region_that_was_dropped(bench: Bench) {
    for op in [write, read] {
        let (a, b) = pair(&bench, Options::default()).await;
        let memory = ibdev::SharedMemory::zeroed(8);
        let region = b.domain.register(memory.clone(), Access::all()).await.unwrap();
        let to = remote(&region, 0);
        assert!(a.carry_out(op(to), &[0; 8]).await.status.is_ok());
        drop(region);
        assert_eq!(a.carry_out(op(to), b"too late").await.status, Status::REM_ACCESS_ERR);
        let mut there = [1; 8];
        memory.copy_to(0, &mut there).unwrap();
        assert_eq!(there, [0; 8]);
        drop(b);
    }
}

async fn bounds_of_a_region(bench: Bench) {
    for (what, at) in [("behind", 4096), ("over the end", 4089), ("before", -1), ("far away", 1 << 40)] {
        for op in [write, read] {
            let place = |region: &Region, _: &End| {
                let start = remote(region, 0);
                op(RemoteAddr { addr: start.addr.wrapping_add_signed(at), ..start })
            };
            access_refused(&bench, what, place, Access::all()).await;
        }
    }
    for op in [write, read] {
        let wraps = |region: &Region, _: &End| op(RemoteAddr { addr: u64::MAX - 3, ..remote(region, 0) });
        access_refused(&bench, "around the end of all addresses", wraps, Access::all()).await;
    }
}

async fn rights_of_a_region(bench: Bench) {
    let others = |right| Access::all() - right;
    let op = |region: &Region, _: &End| write(remote(region, 0));
    access_refused(&bench, "write", op, others(Access::REMOTE_WRITE)).await;
    let op = |region: &Region, _: &End| read(remote(region, 0));
    access_refused(&bench, "read", op, others(Access::REMOTE_READ)).await;
    let op = |region: &Region, _: &End| SendOp::Write { to: remote(region, 0), imm: Some(1) };
    access_refused(&bench, "write with immediate", op, others(Access::REMOTE_WRITE)).await;
}

/// The QP's right is looked at before the region's: an invalid request rather than an access error.
async fn rights_of_a_qp(bench: Bench) {
    let lacks =
        |access| [Options::default(), Options { access: Access::all() - access, ..Options::default() }];
    let op = |region: &Region, _: &End| write(remote(region, 0));
    ends(&bench, "write", lacks(Access::REMOTE_WRITE), op, Access::all(), Status::REM_INV_REQ_ERR).await;
    let op = |region: &Region, _: &End| read(remote(region, 0));
    ends(&bench, "read", lacks(Access::REMOTE_READ), op, Access::all(), Status::REM_INV_REQ_ERR).await;
}

async fn atomics_refused_like_writes(bench: Bench) {
    let add = |at| SendOp::FetchAdd { at, add: 1 };
    let swap = |at| SendOp::CompareSwap { at, compare: 0, swap: 1 };
    for (what, op) in [("add", &add as &dyn Fn(RemoteAddr) -> SendOp), ("swap", &swap)] {
        let place = |region: &Region, _: &End| op(RemoteAddr { rkey: no_rkey(region), ..remote(region, 0) });
        access_refused(&bench, what, place, Access::all()).await;
        let place = |region: &Region, _: &End| op(remote(region, 4096));
        access_refused(&bench, what, place, Access::all()).await;
        let place = |region: &Region, _: &End| op(remote(region, 0));
        access_refused(&bench, what, place, Access::all() - Access::REMOTE_ATOMIC).await;
        let no_atomics = Options { access: Access::all() - Access::REMOTE_ATOMIC, ..Options::default() };
        let options = [Options::default(), no_atomics];
        ends(&bench, what, options, place, Access::all(), Status::REM_INV_REQ_ERR).await;
    }
}

async fn atomic_out_of_alignment(bench: Bench) {
    for at in [1, 4] {
        if bench.differs(Difference::UnalignedAtomicIsNotPosted) {
            let (a, b) = pair(&bench, Options::default()).await;
            let region = b.expose(16, Access::all()).await;
            let op = SendOp::FetchAdd { at: remote(&region, at), add: 1 };
            let refused = a.post(SendWr::new(0, op, a.buf(&[0; 8]).await));
            assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
            assert_eq!(bytes(&region), [0; 16]);
            continue;
        }
        let op = |region: &Region, _: &End| SendOp::FetchAdd { at: remote(region, at), add: 1 };
        let options = [Options::default(); 2];
        ends(&bench, "unaligned", options, op, Access::all(), Status::REM_INV_REQ_ERR).await;
    }
}

async fn read_where_none_may_be_outstanding(bench: Bench) {
    let none = Options { responder_resources: 0, ..Options::default() };
    let op = |region: &Region, _: &End| read(remote(region, 0));
    ends(&bench, "read", [Options::default(), none], op, Access::all(), Status::REM_INV_REQ_ERR).await;
}

async fn access_error_is_an_event(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_READ).await;
    a.start(0, write(remote(&region, 0)), b"refused!").await;
    event(&b.device, DeviceEvent::QpAccessError(b.qp.qpn())).await;
    event(&a.device, DeviceEvent::QpError(a.qp.qpn())).await;
}

async fn request_error_is_an_event(bench: Bench) {
    let (a, b) = pair(&bench, Options { access: Access::empty(), ..Options::default() }).await;
    let region = b.expose(8, Access::all()).await;
    a.start(0, write(remote(&region, 0)), b"refused!").await;
    event(&b.device, DeviceEvent::QpRequestError(b.qp.qpn())).await;
    event(&a.device, DeviceEvent::QpError(a.qp.qpn())).await;
}

async fn what_came_before_is_done_what_follows_is_flushed(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(64, Access::all()).await;
    b.receives(0, 1, 8).await;
    a.start(0, write(remote(&region, 0)), b"first").await;
    a.start_with(1, SendOp::Send { imm: None }, b"second", SendFlags::empty()).await;
    a.start(2, write(RemoteAddr { rkey: no_rkey(&region), ..remote(&region, 8) }), b"third").await;
    a.start_with(3, write(remote(&region, 16)), b"fourth", SendFlags::empty()).await;
    a.start(4, read(remote(&region, 0)), b"fifth").await;
    let done: Vec<_> = a.completions(4).await.iter().map(|done| (done.id, done.status)).collect();
    let flushed = Status::WR_FLUSH_ERR;
    assert_eq!(done, [(0, Status::SUCCESS), (2, Status::REM_ACCESS_ERR), (3, flushed), (4, flushed)]);
    assert_eq!(&b.completion().await.sg[0][..], b"second");
    assert_eq!(bytes(&region)[..5], *b"first");
    assert_eq!(bytes(&region)[5..], [0; 59]);
}

/// However far the write has come, the end is one of two, and the owner's memory lives as long as he holds it.
async fn region_dropped_while_it_is_written(bench: Bench) {
    for _ in 0..5 {
        let (a, b) = pair(&bench, Options::default()).await;
        let memory = ibdev::SharedMemory::zeroed(200_000);
        let region = b.domain.register(memory.clone(), Access::REMOTE_WRITE).await.unwrap();
        a.start(0, write(remote(&region, 0)), &vec![0xee; 200_000]).await;
        tokio::task::yield_now().await;
        drop(region);
        let status = a.completion().await.status;
        assert!([Status::SUCCESS, Status::REM_ACCESS_ERR].contains(&status), "{status}");
        memory.copy_from(0, &[0; 64]).unwrap();
        drop(b);
    }
}

/// How a message ends that is longer than its receive, and the receive.
fn too_long(bench: &Bench) -> (Status, Status) {
    match bench.differs(Difference::TooLongIsOperationalError) {
        true => (Status::REM_OP_ERR, Status::LOC_QP_OP_ERR),
        false => (Status::REM_INV_REQ_ERR, Status::LOC_LEN_ERR),
    }
}

async fn message_longer_than_its_receive(bench: Bench) {
    let (send_status, recv_status) = too_long(&bench);
    for (room, len) in [(8, 9), (1024, 1025), (2000, 5000)] {
        let (a, b) = pair(&bench, Options::default()).await;
        b.receives(0, 2, room).await;
        let done = a.carry_out(SendOp::Send { imm: None }, &message(1, len)).await;
        assert_eq!(done.status, send_status, "{len} bytes into {room}");
        let got: Vec<_> = b.completions(2).await.iter().map(|c| (c.id, c.op, c.status)).collect();
        let recv = CompletionOp::Recv;
        assert_eq!(got, [(0, recv, recv_status), (1, recv, Status::WR_FLUSH_ERR)]);
    }
}

async fn message_longer_than_its_receives_parts(bench: Bench) {
    let (a, b) = pair(&bench, Options { sge: 2, ..Options::default() }).await;
    let sg = [b.room(8).await, b.room(16).await].into_iter().collect();
    b.qp.post_recv(&mut [ibdev::RecvWr { id: 0, sg }].into()).unwrap();
    let done = a.carry_out(SendOp::Send { imm: None }, &message(1, 25)).await;
    let (send_status, recv_status) = too_long(&bench);
    assert_eq!(done.status, send_status);
    let got = b.completion().await;
    assert_eq!((got.status, got.sg.len()), (recv_status, 2));
}

async fn read_into_nothing_of_the_peer_touches_no_buffer(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_READ).await;
    region.copy_from(0, b"a secret").unwrap();
    let done = a.carry_out(read(remote(&region, 1)), b"untouche").await;
    assert_eq!((done.status, &done.sg[0][..]), (Status::REM_ACCESS_ERR, &b"untouche"[..]));
}

async fn operations_of_other_transports(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    let ah = a.domain.create_ah(super::end::way(&bench.a, &bench.b, 1, true)).await;
    if let Ok(ah) = ah {
        let to = ibdev::DatagramDest { ah, qpn: ibwire::Qpn::truncate(2), qkey: ibwire::QKey(1) };
        let refused = a.post(SendWr::new(0, SendOp::Datagram { to, imm: None }, a.buf(b"x").await));
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
    a.start(1, SendOp::Send { imm: None }, b"goes on").await;
}

async fn atomic_with_too_small_a_buffer(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::all()).await;
    let at = remote(&region, 0);
    for op in [SendOp::FetchAdd { at, add: 1 }, SendOp::CompareSwap { at, compare: 0, swap: 1 }] {
        let refused = a.post(SendWr::new(0, op.clone(), a.buf(b"1234567").await));
        assert!(matches!(refused, Err(PostError::Limit { value: 7, limit: 8, .. })), "{refused:?}");
        let refused = a.post(SendWr { id: 0, op, sg: SgList::new(), flags: SendFlags::SIGNALED });
        assert!(matches!(refused, Err(PostError::Limit { value: 0, limit: 8, .. })), "{refused:?}");
    }
    assert_eq!(bytes(&region), [0; 8]);
}

async fn inline_read_and_atomic(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::all()).await;
    let mut operations = vec![read(remote(&region, 0))];
    if a.device.attr().atomics {
        operations.push(SendOp::FetchAdd { at: remote(&region, 0), add: 1 });
    }
    for op in operations {
        let sg = [a.buf(b"12345678").await].into_iter().collect();
        let refused = a.post(SendWr { id: 0, op, sg, flags: SendFlags::INLINE });
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
}

async fn more_buffers_than_the_qp_takes(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    let two = || async { [a.buf(b"one").await, a.buf(b"two").await].into_iter().collect() };
    let op = SendOp::Send { imm: None };
    let refused = a.post(SendWr { id: 0, op, sg: two().await, flags: SendFlags::SIGNALED });
    assert!(matches!(refused, Err(PostError::Limit { value: 2, limit: 1, .. })), "{refused:?}");
    let refused = a.qp.post_recv(&mut [ibdev::RecvWr { id: 0, sg: two().await }].into());
    assert!(matches!(refused, Err(PostError::Limit { value: 2, limit: 1, .. })), "{refused:?}");
}

/// What stands before the refused one is posted, the rest stays with the caller.
async fn refused_work_comes_back(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 4, 8).await;
    let op = SendOp::Send { imm: None };
    let two = [a.buf(b"one").await, a.buf(b"two").await].into_iter().collect();
    let mut work = std::collections::VecDeque::from([
        SendWr::new(0, op.clone(), a.buf(b"good").await),
        SendWr { id: 1, op: op.clone(), sg: two, flags: SendFlags::SIGNALED },
        SendWr::new(2, op, a.buf(b"good too").await),
    ]);
    assert!(matches!(a.qp.post_send(&mut work), Err(PostError::Limit { value: 2, limit: 1, .. })));
    assert!(work.iter().map(|wr| wr.id).eq([1, 2]));
    work.pop_front();
    a.qp.post_send(&mut work).unwrap();
    assert!(a.completions(2).await.iter().map(|done| done.id).eq([0, 2]));
    let reset = b.qp.modify(Transition::Reset).await;
    assert!(reset.is_ok() && b.options.kind == QpType::Rc);
}
