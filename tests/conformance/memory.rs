//! Writes, reads and atomics: what they do to the peer's memory, and how they complete.

use ibdev::{Access, Buf, Completion, CompletionOp, SendFlags, SendOp, SendWr, SgList, Status};
use ibwire::RKey;

use super::bench::Bench;
use super::case::cases;
use super::end::{End, Options, bytes, message, pair, remote, write};

cases! {
    write_of_every_length [Regions];
    write_leaves_the_rest_alone [Regions];
    write_of_nothing [Regions];
    write_takes_no_receive [Regions];
    write_gathers [Regions, ScatterGather];
    write_inline [Regions, Inline];
    write_unsignaled [Regions];
    write_with_immediate [Regions];
    write_with_immediate_waits_for_a_receive [Regions];
    write_with_immediate_solicited [Regions];
    read_of_every_length [Regions];
    read_of_nothing [Regions];
    read_scatters [Regions, ScatterGather];
    read_unsignaled [Regions];
    reads_beyond_the_initiator_depth_wait [Regions];
    read_sees_the_write_before_it [Regions];
    fetch_add_gives_the_value_before [Regions, Atomics];
    fetch_add_wraps_around [Regions, Atomics];
    compare_swap_takes_place_on_equality [Regions, Atomics];
    atomics_of_two_peers_add_up [Regions, Atomics];
    atomics_and_the_owner_share_words [Regions, Atomics];
    fenced_send_follows_its_read [Regions];
    fenced_write_does_not_change_what_is_read_before_it [Regions];
    region_is_read_and_written_by_its_owner [Regions];
    regions_overlap_by_sharing_memory [Regions];
    second_port_reaches_memory [Regions, TwoPorts];
}

/// One behind each other limit of a packet or a word.
const LENGTHS: [usize; 11] = [1, 7, 8, 9, 255, 1023, 1024, 1025, 2048, 4099, 70_001];

pub fn read(from: ibdev::RemoteAddr) -> SendOp {
    SendOp::Read { from }
}

pub fn ok(done: &Completion, op: CompletionOp) {
    assert_eq!((done.status, done.op), (Status::SUCCESS, op));
}

/// The number in the buffer of an atomic.
pub fn value(done: &Completion) -> u64 {
    u64::from_ne_bytes(*done.sg[0].first_chunk().expect("8 bytes"))
}

async fn write_of_every_length(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(80_000, Access::REMOTE_WRITE).await;
    for (n, len) in (0..).zip(LENGTHS) {
        for at in [0, 1, 4096 + 5] {
            let data = message(n, len);
            let done = a.carry_out(write(remote(&region, at)), &data).await;
            ok(&done, CompletionOp::Write);
            assert!(bytes(&region)[at..at + len] == data, "{len} bytes at {at}");
        }
    }
}

async fn write_leaves_the_rest_alone(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(3000, Access::REMOTE_WRITE).await;
    let mut expected = message(9, 3000);
    region.copy_from(0, &expected).unwrap();
    for (at, len) in [(3, 2), (1021, 1030), (2999, 1), (0, 1)] {
        a.carry_out(write(remote(&region, at)), &vec![0xee; len]).await;
        expected[at..at + len].fill(0xee);
        assert!(bytes(&region) == expected, "{len} bytes at {at}");
    }
}

/// Needs no key (spec/softhca.md 2.5): a sign of life that any peer answers.
async fn write_of_nothing(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let to = ibdev::RemoteAddr { addr: 0, rkey: RKey(0) };
    ok(&a.carry_out(write(to), b"").await, CompletionOp::Write);
    a.post(SendWr { id: 1, op: write(to), sg: SgList::new(), flags: SendFlags::SIGNALED }).unwrap();
    ok(&a.completion().await, CompletionOp::Write);
    assert!(b.completed().is_empty());
}

async fn write_takes_no_receive(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_WRITE).await;
    b.receives(0, 1, 8).await;
    ok(&a.carry_out(write(remote(&region, 0)), b"written!").await, CompletionOp::Write);
    assert!(b.completed().is_empty());
    a.send(0, b"sent").await;
    let got = b.completion().await;
    assert_eq!((got.id, got.op, &got.sg[0][..]), (0, CompletionOp::Recv, &b"sent"[..]));
}

async fn write_gathers(bench: Bench) {
    let (a, b) = pair(&bench, Options { sge: 3, ..Options::default() }).await;
    let region = b.expose(4000, Access::REMOTE_WRITE).await;
    let data = message(3, 3001);
    let mut sg = SgList::new();
    for part in [&data[..1], &data[1..1500], &data[1500..]] {
        sg.push(a.buf(part).await);
    }
    let op = write(remote(&region, 9));
    a.post(SendWr { id: 0, op, sg, flags: SendFlags::SIGNALED }).unwrap();
    ok(&a.completion().await, CompletionOp::Write);
    assert!(bytes(&region)[9..3010] == data);
}

async fn write_inline(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_WRITE).await;
    let mut buf = Buf::unregistered(8);
    buf.copy_from_slice(b"12345678");
    let (sg, flags) = ([buf].into_iter().collect(), SendFlags::INLINE | SendFlags::SIGNALED);
    a.post(SendWr { id: 0, op: write(remote(&region, 0)), sg, flags }).unwrap();
    ok(&a.completion().await, CompletionOp::Write);
    assert_eq!(bytes(&region), b"12345678");
}

async fn write_unsignaled(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(16, Access::REMOTE_WRITE).await;
    a.start_with(0, write(remote(&region, 0)), b"12345678", SendFlags::empty()).await;
    a.start(1, write(remote(&region, 8)), b"abcdefgh").await;
    assert_eq!(a.completion().await.id, 1);
    assert!(a.completed().is_empty());
    assert_eq!(bytes(&region), b"12345678abcdefgh");
}

/// The receive that it takes stays empty, however long it is; the length is that of the write.
async fn write_with_immediate(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(3000, Access::REMOTE_WRITE).await;
    for (len, imm) in [(0, 0), (1, 1), (1024, 0x0102_0304), (2500, u32::MAX)] {
        b.receives(9, 1, 8).await;
        let data = message(5, len);
        let op = SendOp::Write { to: remote(&region, 100), imm: Some(imm) };
        ok(&a.carry_out(op, &data).await, CompletionOp::Write);
        let got = b.completion().await;
        ok(&got, CompletionOp::RecvWrite);
        assert_eq!((got.id, got.len as usize, got.imm), (9, len, Some(imm)));
        assert_eq!((got.sg.len(), got.sg[0].len()), (1, 0));
        assert!(bytes(&region)[100..100 + len] == data);
    }
}

async fn write_with_immediate_waits_for_a_receive(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(3000, Access::REMOTE_WRITE).await;
    let op = SendOp::Write { to: remote(&region, 0), imm: Some(1) };
    a.start(0, op, &message(1, 3000)).await;
    let receive = async {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        b.receives(0, 1, 8).await;
        b.completion().await
    };
    let (done, got) = tokio::join!(a.completion(), receive);
    ok(&done, CompletionOp::Write);
    ok(&got, CompletionOp::RecvWrite);
    assert!(bytes(&region) == message(1, 3000));
}

async fn write_with_immediate_solicited(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_WRITE).await;
    b.receives(0, 1, 8).await;
    let op = SendOp::Write { to: remote(&region, 0), imm: Some(1) };
    a.start_with(0, op, b"knock", SendFlags::SIGNALED | SendFlags::SOLICITED).await;
    ok(&b.completion().await, CompletionOp::RecvWrite);
    ok(&a.completion().await, CompletionOp::Write);
}

async fn read_of_every_length(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(80_000, Access::REMOTE_READ).await;
    let all = message(2, 80_000);
    region.copy_from(0, &all).unwrap();
    for len in LENGTHS {
        for at in [0, 3, 4096 + 5] {
            a.post(SendWr::new(0, read(remote(&region, at)), a.room(len).await)).unwrap();
            let done = a.completion().await;
            ok(&done, CompletionOp::Read);
            assert_eq!(done.len as usize, len);
            assert!(done.sg[0][..] == all[at..at + len], "{len} bytes at {at}");
        }
    }
    assert!(b.completed().is_empty());
}

async fn read_of_nothing(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    let from = ibdev::RemoteAddr { addr: 0, rkey: RKey(0) };
    let done = a.carry_out(read(from), b"").await;
    ok(&done, CompletionOp::Read);
    assert_eq!(done.len, 0);
}

async fn read_scatters(bench: Bench) {
    let (a, b) = pair(&bench, Options { sge: 4, ..Options::default() }).await;
    let region = b.expose(4000, Access::REMOTE_READ).await;
    region.copy_from(0, &message(6, 4000)).unwrap();
    let parts = [5, 0, 1022, 2000];
    let mut sg = SgList::new();
    for len in parts {
        sg.push(a.room(len).await);
    }
    a.post(SendWr { id: 0, op: read(remote(&region, 11)), sg, flags: SendFlags::SIGNALED }).unwrap();
    let done = a.completion().await;
    ok(&done, CompletionOp::Read);
    assert!(done.sg.iter().map(|buf| buf.len()).eq(parts));
    assert!(
        done.sg.iter().flat_map(|buf| buf.iter().copied()).eq(message(6, 4000)[11..3038].iter().copied())
    );
}

async fn read_unsignaled(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_READ).await;
    a.start_with(0, read(remote(&region, 0)), &[0; 8], SendFlags::empty()).await;
    a.start(1, read(remote(&region, 0)), &[0; 8]).await;
    assert_eq!(a.completion().await.id, 1);
    assert!(a.completed().is_empty());
}

/// And everything behind them.
async fn reads_beyond_the_initiator_depth_wait(bench: Bench) {
    let options = Options { initiator_depth: 1, responder_resources: 1, ..Options::default() };
    let (a, b) = pair(&bench, options).await;
    let region = b.expose(40_000, Access::all()).await;
    region.copy_from(0, &message(8, 40_000)).unwrap();
    for id in 0..8 {
        a.post(SendWr::new(id, read(remote(&region, id as usize * 5000)), a.room(5000).await)).unwrap();
    }
    a.start(8, write(remote(&region, 0)), b"behind").await;
    let done = a.completions(9).await;
    assert!(done.iter().map(|done| done.id).eq(0..9));
    for (n, done) in done[..8].iter().enumerate() {
        ok(done, CompletionOp::Read);
        assert!(done.sg[0][..] == message(8, 40_000)[n * 5000..][..5000], "read {n}");
    }
    ok(&done[8], CompletionOp::Write);
}

async fn read_sees_the_write_before_it(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(5000, Access::all()).await;
    for round in 0..5 {
        let data = message(round, 5000);
        a.start(0, write(remote(&region, 0)), &data).await;
        a.post(SendWr::new(1, read(remote(&region, 0)), a.room(5000).await)).unwrap();
        let done = a.completions(2).await;
        ok(&done[0], CompletionOp::Write);
        ok(&done[1], CompletionOp::Read);
        assert!(done[1].sg[0][..] == data);
    }
}

async fn fetch_add_gives_the_value_before(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(32, Access::REMOTE_ATOMIC).await;
    let word = region.atomic(16).unwrap();
    word.store(0x1000, std::sync::atomic::Ordering::Relaxed);
    for (add, before) in [(5, 0x1000), (0, 0x1005), (1 << 40, 0x1005)] {
        let done = a.carry_out(SendOp::FetchAdd { at: remote(&region, 16), add }, &[0; 8]).await;
        ok(&done, CompletionOp::FetchAdd);
        assert_eq!((value(&done), done.len), (before, 8));
    }
    assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 0x1005 + (1 << 40));
    assert_eq!(region.atomic(8).unwrap().load(std::sync::atomic::Ordering::Relaxed), 0);
    assert!(b.completed().is_empty());
}

async fn fetch_add_wraps_around(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_ATOMIC).await;
    for before in [0, u64::MAX] {
        let at = remote(&region, 0);
        assert_eq!(value(&a.carry_out(SendOp::FetchAdd { at, add: u64::MAX }, &[0; 8]).await), before);
    }
    assert_eq!(region.atomic(0).unwrap().load(std::sync::atomic::Ordering::Relaxed), u64::MAX - 1);
}

async fn compare_swap_takes_place_on_equality(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(16, Access::REMOTE_ATOMIC).await;
    for (compare, swap, before) in
        [(0, 7, 0), (0, 9, 7), (7, 0x0102_0304_0506_0708, 7), (1, 1, 0x0102_0304_0506_0708)]
    {
        let at = remote(&region, 8);
        let done = a.carry_out(SendOp::CompareSwap { at, compare, swap }, &[0; 8]).await;
        ok(&done, CompletionOp::CompareSwap);
        assert_eq!(value(&done), before);
    }
    let word = region.atomic(8).unwrap().load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(word, 0x0102_0304_0506_0708);
}

async fn atomics_of_two_peers_add_up(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let (c, d) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_ATOMIC).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        for end in [&a, &c] {
            for id in 0..8 {
                end.start(id, SendOp::FetchAdd { at: remote(&region, 0), add: 1 }, &[0; 8]).await;
            }
        }
        for end in [&a, &c] {
            seen.extend(end.completions(8).await.iter().map(value));
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..64), "each value once");
    drop(d);
}

async fn atomics_and_the_owner_share_words(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(8, Access::REMOTE_ATOMIC).await;
    let word = region.atomic(0).unwrap();
    for n in 0..10 {
        assert_eq!(word.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 2 * n);
        let done = a.carry_out(SendOp::FetchAdd { at: remote(&region, 0), add: 1 }, &[0; 8]).await;
        assert_eq!(value(&done), 2 * n + 1);
    }
}

async fn fenced_send_follows_its_read(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(20_000, Access::all()).await;
    region.copy_from(0, &message(1, 20_000)).unwrap();
    b.receives(0, 1, 8).await;
    a.post(SendWr::new(0, read(remote(&region, 0)), a.room(20_000).await)).unwrap();
    a.start_with(1, SendOp::Send { imm: None }, b"fenced", SendFlags::SIGNALED | SendFlags::FENCE).await;
    // The message is here, so the read before it is complete there.
    assert_eq!(&b.completion().await.sg[0][..], b"fenced");
    let done = a.completions(2).await;
    ok(&done[0], CompletionOp::Read);
    assert!(done[0].sg[0][..] == message(1, 20_000));
    ok(&done[1], CompletionOp::Send);
}

async fn fenced_write_does_not_change_what_is_read_before_it(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(20_000, Access::all()).await;
    region.copy_from(0, &message(1, 20_000)).unwrap();
    for round in 1..5 {
        let next = message(round + 1, 20_000);
        a.post(SendWr::new(0, read(remote(&region, 0)), a.room(20_000).await)).unwrap();
        a.start_with(1, write(remote(&region, 0)), &next, SendFlags::SIGNALED | SendFlags::FENCE).await;
        let done = a.completions(2).await;
        assert!(done[0].sg[0][..] == message(round, 20_000), "round {round}");
        assert!(bytes(&region) == next);
    }
}

async fn region_is_read_and_written_by_its_owner(bench: Bench) {
    let end = End::new(&bench.a, Options::default()).await;
    let region = end.expose(100, Access::empty()).await;
    region.copy_from(7, b"mine").unwrap();
    let mut mine = [0; 4];
    region.copy_to(7, &mut mine).unwrap();
    assert_eq!(&mine, b"mine");
    assert!(region.copy_to(97, &mut mine).is_err() && region.copy_from(usize::MAX, b"x").is_err());
    assert!(region.atomic(4).is_err() && region.atomic(96).is_err());
}

/// One block of memory, two keys with different rights; each key ends with its own region.
async fn regions_overlap_by_sharing_memory(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let memory = ibdev::SharedMemory::zeroed(64);
    let reads = b.domain.register(memory.clone(), Access::REMOTE_READ).await.unwrap();
    let writes = b.domain.register(memory.clone(), Access::REMOTE_WRITE).await.unwrap();
    assert_ne!(reads.remote().rkey(), writes.remote().rkey());
    ok(&a.carry_out(write(remote(&writes, 8)), b"shared").await, CompletionOp::Write);
    drop(writes);
    let done = a.carry_out(read(remote(&reads, 8)), &[0; 6]).await;
    assert_eq!(&done.sg[0][..], b"shared");
}

async fn second_port_reaches_memory(bench: Bench) {
    let (a, b) = pair(&bench, Options { port: 2, ..Options::default() }).await;
    let region = b.expose(5000, Access::all()).await;
    ok(&a.carry_out(write(remote(&region, 0)), &message(1, 5000)).await, CompletionOp::Write);
    assert!(a.carry_out(read(remote(&region, 0)), &[0; 5000]).await.sg[0][..] == message(1, 5000));
}
