//! The state table of queue pairs, and what becomes of posted work on the way to ERR and RESET.

use ibdev::qp::{Init, QpType, Rtr, Rts, Transition};
use ibdev::{
    AddressVector, CompletionOp, DeviceError, DeviceEvent, GlobalRoute, PostError, RecvWr, SendFlags, SendOp,
    SendWr, Status,
};
use ibwire::{Mtu, Psn};

use super::bench::{Bench, event};
use super::case::cases;
use super::differs::Difference;
use super::drops::Shelf;
use super::end::{End, Options, connect, pair};

cases! {
    state_table_of_rc;
    state_table_with_sqd [Sqd];
    state_table_with_sqd_of_ud [Sqd, Ud];
    state_table_of_uc [Uc];
    state_table_of_ud [Ud];
    attributes_of_another_transport_are_refused;
    init_may_be_repeated;
    changes_in_a_row_end_with_the_first_that_fails;
    posting_depends_on_the_state;
    receives_posted_before_rtr_are_kept;
    error_flushes_everything_in_order;
    posted_in_error_is_flushed;
    error_twice_is_no_error;
    reset_drops_everything_without_completions;
    reset_takes_completions_with_it;
    reset_qp_connects_again;
    limits_of_init;
    limits_of_rtr;
    limits_of_rts;
    drained_queue_holds_what_is_posted [Sqd];
    draining_finishes_what_was_started [Sqd];
    drained_queue_still_receives [Sqd];
    draining_queue_does_not_resume [Sqd];
}

const SEND: SendOp = SendOp::Send { imm: None };

const RESET: &str = "RESET";
const INIT: &str = "INIT";
const RTR: &str = "RTR";
const RTS: &str = "RTS";
const SQD: &str = "SQD";
const ERR: &str = "ERR";

async fn changes_in_a_row_end_with_the_first_that_fails(bench: Bench) {
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    let [init, rtr, rts] = [Transition::Init(a.init()), Transition::Rtr(a.rtr(&b)), Transition::Rts(a.rts())];
    match a.qp.modify_all(&[init, rts, rtr]).await {
        Err((1, DeviceError::State { state })) => assert_eq!(state, INIT),
        other => panic!("{other:?}"),
    }
    a.qp.modify_all(&[]).await.unwrap();
    a.qp.modify_all(&[rtr, rts]).await.unwrap();
    b.ready(&a).await;
    b.receives(0, 1, 8).await;
    assert!(a.carry_out(SEND, b"arrives").await.status.is_ok());
    assert_eq!(&b.completion().await.sg[0][..], b"arrives");
}

/// Goes through all states and all transitions of one kind of QP (spec/softhca.md 2.11).
async fn state_table(bench: &Bench, options: Options, forward: impl Fn(&End, &End) -> [Transition; 3]) {
    let peer = End::new(&bench.b, options).await;
    for (state, allowed) in
        [(RESET, &[INIT][..]), (INIT, &[INIT, RTR, ERR]), (RTR, &[RTS, ERR]), (RTS, &[ERR]), (ERR, &[ERR])]
    {
        for target in [INIT, RTR, RTS, ERR, RESET] {
            let end = End::new(&bench.a, options).await;
            let [init, rtr, rts] = forward(&end, &peer);
            let way: &[_] = match state {
                RESET => &[],
                INIT => &[init],
                RTR => &[init, rtr],
                RTS => &[init, rtr, rts],
                _ => &[init, Transition::Error],
            };
            for transition in way {
                end.modify(*transition).await;
            }
            let to = match target {
                INIT => init,
                RTR => rtr,
                RTS => rts,
                ERR => Transition::Error,
                _ => Transition::Reset,
            };
            let result = end.qp.modify(to).await;
            if target == RESET || allowed.contains(&target) {
                result.unwrap_or_else(|error| panic!("{state} to {target}: {error}"));
                continue;
            }
            match result {
                Err(DeviceError::State { state: named }) => assert_eq!(named, state, "{state} to {target}"),
                other => panic!("{state} to {target}: {other:?}"),
            }
            // It stays where it was.
            for transition in &[init, rtr, rts][way.len().min(3)..] {
                if state != ERR {
                    end.modify(*transition).await;
                }
            }
        }
    }
}

async fn state_table_of_rc(bench: Bench) {
    let forward = |end: &End, peer: &End| {
        [Transition::Init(end.init()), Transition::Rtr(end.rtr(peer)), Transition::Rts(end.rts())]
    };
    state_table(&bench, Options::default(), forward).await;
}

async fn state_table_of_uc(bench: Bench) {
    let forward = |end: &End, peer: &End| {
        [Transition::Init(end.init()), Transition::Rtr(end.rtr(peer)), Transition::Rts(end.rts())]
    };
    state_table(&bench, Options { kind: QpType::Uc, ..Options::default() }, forward).await;
}

async fn state_table_of_ud(bench: Bench) {
    let forward = |end: &End, _: &End| {
        let sq_psn = Psn::truncate(7);
        [Transition::Init(end.init()), Transition::DatagramRtr, Transition::DatagramRts { sq_psn }]
    };
    state_table(&bench, Options { kind: QpType::Ud, ..Options::default() }, forward).await;
}

/// SQD is entered from RTS alone, and left to RTS, ERR and RESET.
async fn sqd(end: &End, way: &[Transition]) {
    for (reached, transition) in way.iter().enumerate() {
        let drain = end.qp.modify(Transition::SqDrain).await;
        assert!(matches!(drain, Err(DeviceError::State { .. })), "after {reached} steps: {drain:?}");
        end.modify(*transition).await;
    }
    assert!(matches!(end.qp.modify(Transition::SqResume).await, Err(DeviceError::State { state: RTS })));
    for _ in 0..2 {
        end.modify(Transition::SqDrain).await;
        event(&end.device, DeviceEvent::SqDrained(end.qp.qpn())).await;
        let again = end.qp.modify(Transition::SqDrain).await;
        assert!(matches!(again, Err(DeviceError::State { state: SQD })), "{again:?}");
        for other in way {
            let refused = end.qp.modify(*other).await;
            assert!(matches!(refused, Err(DeviceError::State { state: SQD })), "{refused:?}");
        }
        end.modify(Transition::SqResume).await;
    }
    end.modify(Transition::SqDrain).await;
    end.modify(Transition::Error).await;
    let resume = end.qp.modify(Transition::SqResume).await;
    assert!(matches!(resume, Err(DeviceError::State { state: ERR })), "{resume:?}");
    end.modify(Transition::Reset).await;
    for transition in way {
        end.modify(*transition).await;
    }
    end.modify(Transition::SqDrain).await;
    end.modify(Transition::Reset).await;
    end.modify(way[0]).await;
}

async fn state_table_with_sqd(bench: Bench) {
    let peer = End::new(&bench.b, Options::default()).await;
    let end = End::new(&bench.a, Options::default()).await;
    let way = [Transition::Init(end.init()), Transition::Rtr(end.rtr(&peer)), Transition::Rts(end.rts())];
    sqd(&end, &way).await;
}

async fn state_table_with_sqd_of_ud(bench: Bench) {
    let end = End::new(&bench.a, Options { kind: QpType::Ud, ..Options::default() }).await;
    let sq_psn = Psn::truncate(7);
    let way = [Transition::Init(end.init()), Transition::DatagramRtr, Transition::DatagramRts { sq_psn }];
    sqd(&end, &way).await;
}

async fn attributes_of_another_transport_are_refused(bench: Bench) {
    let end = End::new(&bench.a, Options::default()).await;
    let peer = End::new(&bench.b, Options::default()).await;
    end.modify(Transition::Init(end.init())).await;
    assert!(end.qp.modify(Transition::DatagramRtr).await.is_err());
    end.modify(Transition::Rtr(end.rtr(&peer))).await;
    assert!(end.qp.modify(Transition::DatagramRts { sq_psn: Psn::default() }).await.is_err());
    end.modify(Transition::Rts(end.rts())).await;
}

async fn init_may_be_repeated(bench: Bench) {
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    for access in [ibdev::Access::empty(), ibdev::Access::all()] {
        a.modify(Transition::Init(Init { access, ..a.init() })).await;
    }
    a.receives(0, 1, 8).await;
    a.modify(Transition::Rtr(a.rtr(&b))).await;
    a.modify(Transition::Rts(a.rts())).await;
    b.ready(&a).await;
    b.send(0, b"hello").await;
    assert!(a.completion().await.status.is_ok());
}

async fn posting_depends_on_the_state(bench: Bench) {
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    let receive = || async { a.qp.post_recv(&mut [RecvWr::new(0, a.room(8).await)].into()) };
    let send = || async { a.post(SendWr::new(0, SEND, a.buf(b"x").await)) };
    assert_eq!(receive().await, Err(PostError::State { state: RESET }));
    assert_eq!(send().await, Err(PostError::State { state: RESET }));
    a.modify(Transition::Init(a.init())).await;
    assert_eq!((receive().await, send().await), (Ok(()), Err(PostError::State { state: INIT })));
    a.modify(Transition::Rtr(a.rtr(&b))).await;
    assert_eq!((receive().await, send().await), (Ok(()), Err(PostError::State { state: RTR })));
    a.modify(Transition::Rts(a.rts())).await;
    assert_eq!((receive().await, send().await), (Ok(()), Ok(())));
    a.modify(Transition::Error).await;
    assert_eq!((receive().await, send().await), (Ok(()), Ok(())));
}

async fn receives_posted_before_rtr_are_kept(bench: Bench) {
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    b.modify(Transition::Init(b.init())).await;
    b.receives(0, 1, 8).await;
    b.modify(Transition::Rtr(b.rtr(&a))).await;
    b.receives(1, 1, 8).await;
    b.modify(Transition::Rts(b.rts())).await;
    a.ready(&b).await;
    for id in 0..2 {
        a.send(id, b"kept").await;
    }
    assert!(b.completions(2).await.iter().map(|got| got.id).eq(0..2));
}

/// Signaled or not, and on each queue in the order of posting.
async fn error_flushes_everything_in_order(bench: Bench) {
    let (a, b) = pair(&bench, Options { rnr_retry: 7, min_rnr_timer: 0, ..Options::default() }).await;
    a.receives(100, 4, 8).await;
    for id in 0..4 {
        let flags = if id % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        a.start_with(id, SEND, b"stays", flags).await;
    }
    a.modify(Transition::Error).await;
    let done = a.completions(8).await;
    assert!(done.iter().all(|done| done.status == Status::WR_FLUSH_ERR && done.qpn == a.qp.qpn()));
    let ids = |recv: bool| done.iter().filter(move |done| done.op.is_recv() == recv).map(|done| done.id);
    assert!(ids(false).eq(0..4) && ids(true).eq(100..104));
    assert!(done.iter().filter(|done| !done.op.is_recv()).all(|done| done.sg[0][..] == *b"stays"));
    drop(b);
}

async fn posted_in_error_is_flushed(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    a.modify(Transition::Error).await;
    a.receives(0, 1, 8).await;
    a.start_with(1, SEND, b"x", SendFlags::empty()).await;
    a.send(2, b"x").await;
    let mut done: Vec<_> = a.completions(3).await.iter().map(|done| (done.id, done.status)).collect();
    done.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(done, [0, 1, 2].map(|id| (id, Status::WR_FLUSH_ERR)));
}

async fn error_twice_is_no_error(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    a.receives(0, 1, 8).await;
    a.modify(Transition::Error).await;
    a.modify(Transition::Error).await;
    assert_eq!(a.completions(1).await.len(), 1);
    assert!(a.completed().is_empty());
}

async fn reset_drops_everything_without_completions(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    let shelf = Shelf::new();
    let receive = RecvWr::new(0, shelf.label(a.room(8).await));
    a.qp.post_recv(&mut [receive].into()).unwrap();
    a.post(SendWr::new(1, SEND, shelf.label(a.buf(b"x").await))).unwrap();
    a.modify(Transition::Reset).await;
    shelf.holds(2).await;
    assert!(a.completed().is_empty());
}

/// Those that nobody has polled yet.
async fn reset_takes_completions_with_it(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let shelf = Shelf::new();
    b.qp.post_recv(&mut [RecvWr::new(0, shelf.label(b.room(8).await))].into()).unwrap();
    assert!(a.carry_out(SEND, b"unread").await.status.is_ok());
    b.modify(Transition::Reset).await;
    assert!(b.completed().is_empty());
    shelf.holds(1).await;
}

async fn reset_qp_connects_again(bench: Bench) {
    let (a, b) = pair(&bench, Options { depth: 4, ..Options::default() }).await;
    for round in 0..4 {
        b.receives(0, 4, 8).await;
        for id in 0..3 {
            a.send(id, b"before").await;
        }
        if round % 2 == 0 {
            a.completions(3).await;
        } else {
            a.modify(Transition::Error).await;
        }
        for end in [&a, &b] {
            end.modify(Transition::Reset).await;
            assert!(end.completed().is_empty());
            end.renew();
        }
        connect(&a, &b).await;
    }
    b.receives(9, 1, 8).await;
    a.send(9, b"after").await;
    assert_eq!((a.completion().await.id, &b.completion().await.sg[0][..]), (9, &b"after"[..]));
}

/// The value and the limit are named, in the error and in its text.
async fn beyond(end: &End, transition: Transition, value: u64, limit: u64) {
    match end.qp.modify(transition).await {
        Err(error @ DeviceError::Limit { value: named, limit: most, .. }) => {
            assert_eq!((named, most), (value, limit), "{error}");
            let text = error.to_string();
            assert!(text.contains(&value.to_string()) && text.contains(&limit.to_string()), "{text}");
        }
        other => panic!("{transition:?}: {other:?}"),
    }
}

async fn limits_of_init(bench: Bench) {
    let end = End::new(&bench.a, Options::default()).await;
    let init = |port, pkey_index| Transition::Init(Init { port, pkey_index, ..end.init() });
    let (ports, pkeys) = (bench.a.attr().ports, bench.a.pkeys(1).unwrap().len() as u16);
    beyond(&end, init(ports + 1, 0), ports as u64 + 1, ports.into()).await;
    beyond(&end, init(1, pkeys), pkeys.into(), pkeys as u64 - 1).await;
    end.modify(init(1, 0)).await;
}

async fn limits_of_rtr(bench: Bench) {
    let (end, peer) =
        (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    end.modify(Transition::Init(end.init())).await;
    let rtr = end.rtr(&peer);
    let most = bench.a.attr().max_responder_resources;
    if most < u8::MAX {
        let too_many = Rtr { max_dest_rd_atomic: most + 1, ..rtr };
        beyond(&end, Transition::Rtr(too_many), most as u64 + 1, most.into()).await;
    }
    let active = bench.a.port(1).unwrap().active_mtu;
    if active.0 < Mtu::B4096.0 {
        let too_long = Rtr { path_mtu: Mtu(active.0 + 1), ..rtr };
        beyond(&end, Transition::Rtr(too_long), active.0 as u64 + 1, active.0.into()).await;
    }
    let no_gid = rtr.av.grh.map(|grh| GlobalRoute { sgid_index: 9999, ..grh });
    let nowhere = Rtr { av: AddressVector { grh: no_gid, ..rtr.av }, ..rtr };
    let refused = end.qp.modify(Transition::Rtr(nowhere)).await;
    assert!(
        matches!(refused, Err(DeviceError::Limit { .. } | DeviceError::Unsupported { .. })),
        "{refused:?}"
    );
    let port = Rtr { av: AddressVector { port: 9, ..rtr.av }, ..rtr };
    assert!(matches!(end.qp.modify(Transition::Rtr(port)).await, Err(DeviceError::Limit { value: 9, .. })));
    end.modify(Transition::Rtr(rtr)).await;
}

async fn limits_of_rts(bench: Bench) {
    let (end, peer) =
        (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    end.ready_to_receive(&peer).await;
    let rts = end.rts();
    beyond(&end, Transition::Rts(Rts { retry_count: 8, ..rts }), 8, 7).await;
    beyond(&end, Transition::Rts(Rts { rnr_retry: 8, ..rts }), 8, 7).await;
    let most = bench.a.attr().max_initiator_depth;
    if most < u8::MAX {
        let too_many = Rts { max_rd_atomic: most + 1, ..rts };
        beyond(&end, Transition::Rts(too_many), most as u64 + 1, most.into()).await;
    }
    end.modify(Transition::Rts(rts)).await;
}

/// Behind SqResume: sees to it that `a` goes on, and gives how many messages that took.
async fn go_on(bench: &Bench, a: &End, b: &End) -> usize {
    if !bench.differs(Difference::ResumedQueueWaitsForAPost) {
        return 0;
    }
    b.receives(99, 1, 8).await;
    a.send(99, b"go on").await;
    1
}

async fn drained_queue_holds_what_is_posted(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 3, 8).await;
    a.modify(Transition::SqDrain).await;
    event(&a.device, DeviceEvent::SqDrained(a.qp.qpn())).await;
    for id in 0..2 {
        a.send(id, b"held").await;
    }
    // The other way round everything goes on, and nothing comes from here meanwhile.
    a.receives(10, 1, 8).await;
    assert!(b.carry_out(SEND, b"on").await.status.is_ok());
    assert_eq!(a.completion().await.op, CompletionOp::Recv);
    assert!(a.completed().is_empty() && b.completed().is_empty());
    a.modify(Transition::SqResume).await;
    let more = go_on(&bench, &a, &b).await;
    let done: Vec<_> = a.completions(2 + more).await.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(done[..2], [(0, Status::SUCCESS), (1, Status::SUCCESS)]);
    assert!(b.completions(2 + more).await.iter().all(|got| got.status.is_ok()));
}

async fn draining_finishes_what_was_started(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 4, 50_000).await;
    for id in 0..4 {
        a.send(id, &super::end::message(id, 50_000)).await;
    }
    a.modify(Transition::SqDrain).await;
    event(&a.device, DeviceEvent::SqDrained(a.qp.qpn())).await;
    let done = a.completed();
    assert!(
        done.iter().all(|done| done.status.is_ok())
            && done.iter().map(|done| done.id).eq(0..done.len() as u64)
    );
    a.modify(Transition::SqResume).await;
    let more = go_on(&bench, &a, &b).await;
    let rest = a.completions(4 - done.len() + more).await;
    assert!(rest.iter().all(|done| done.status.is_ok()));
    assert!(b.completions(4).await.iter().all(|got| got.status.is_ok() && got.len == 50_000));
}

async fn drained_queue_still_receives(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    a.modify(Transition::SqDrain).await;
    event(&a.device, DeviceEvent::SqDrained(a.qp.qpn())).await;
    a.receives(0, 1, 8).await;
    assert!(b.carry_out(SEND, b"hello").await.status.is_ok());
    assert_eq!(&a.completion().await.sg[0][..], b"hello");
    a.modify(Transition::Error).await;
}

/// Until it is drained: a peer that has no receive keeps it draining.
async fn draining_queue_does_not_resume(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    a.send(0, b"started").await;
    a.modify(Transition::SqDrain).await;
    match a.qp.modify(Transition::SqResume).await {
        // On this device the message had not been started when it was told to drain.
        Ok(()) => {}
        Err(DeviceError::State { state }) => {
            assert!(state.starts_with("SQD"), "{state}");
            b.receives(0, 1, 8).await;
            event(&a.device, DeviceEvent::SqDrained(a.qp.qpn())).await;
            a.modify(Transition::SqResume).await;
        }
        other => panic!("{other:?}"),
    }
    b.receives(1, 1, 8).await;
    go_on(&bench, &a, &b).await;
    assert!(a.completion().await.status.is_ok());
}
