//! Handles are dropped in any order; what was lent comes home.

use std::sync::{Arc, Mutex, Weak};

use ibdev::qp::{QpSpec, Transition};
use ibdev::{Access, Buf, BufHome, RecvWr, SendOp, SendWr, SharedMemory};

use super::bench::Bench;
use super::case::cases;
use super::end::{End, Options, message, pair, remote, way, write};

cases! {
    handles_are_dropped_in_every_order;
    handles_of_memory_are_dropped_in_every_order [Regions, Srq, Ud];
    destroyed_qp_gives_buffers_back;
    completion_outlives_its_queues;
    buffers_outlive_their_device;
    connection_outlives_its_device_handle;
    peer_does_not_notice_its_handles_going [Regions];
    nothing_is_left;
}

/// Where buffers come home.
#[derive(Debug)]
pub struct Shelf(Arc<Kept>);

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Buf>>);

impl BufHome for Kept {
    fn give_back(&self, buf: Buf) {
        self.0.lock().unwrap().push(buf);
    }
}

impl Shelf {
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Makes this the buffer's home.
    pub fn label(&self, buf: Buf) -> Buf {
        let home: Weak<dyn BufHome> = Arc::downgrade(&(self.0.clone() as Arc<dyn BufHome>));
        buf.with_home(home)
    }

    pub fn count(&self) -> usize {
        self.0.0.lock().unwrap().len()
    }

    /// Waits for exactly so many: a device may give buffers back a little later.
    pub async fn holds(&self, count: usize) {
        while self.count() < count {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(self.count(), count);
    }
}

/// Calls `with` with each order of `0..n` (Heap's algorithm).
fn orders(n: usize) -> Vec<Vec<usize>> {
    fn permute(k: usize, order: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
        if k <= 1 {
            return out.push(order.clone());
        }
        for i in 0..k {
            permute(k - 1, order, out);
            order.swap(if k.is_multiple_of(2) { i } else { 0 }, k - 1);
        }
    }
    let mut out = Vec::new();
    permute(n, &mut (0..n).collect(), &mut out);
    out
}

/// With work posted on both queues, completions that nobody polled, and an agent.
async fn handles_are_dropped_in_every_order(bench: Bench) {
    let options = Options { depth: 8, ..Options::default() };
    for order in orders(5) {
        let shelf = Shelf::new();
        let (a, b) = pair(&bench, options).await;
        for end in [&a, &b] {
            let mut work = std::collections::VecDeque::new();
            for id in 0..2 {
                work.push_back(RecvWr::new(id, shelf.label(end.room(8).await)));
            }
            end.qp.post_recv(&mut work).unwrap();
        }
        for id in 0..3 {
            let wr = SendWr::new(id, SendOp::Send { imm: None }, shelf.label(a.buf(b"x").await));
            a.post(wr).unwrap();
        }
        let spec = ibdev::AgentSpec {
            port: 1,
            class: ibwire::mad::MgmtClass::CM,
            class_version: 2,
            methods: &[ibwire::mad::Method::SEND],
        };
        let agent = a.device.open_agent(spec).unwrap();
        let End { device, domain, cq, qp, .. } = a;
        let mut handles: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(device)),
            Some(Box::new(domain)),
            Some(Box::new(cq)),
            Some(Box::new(qp)),
            Some(Box::new(agent)),
        ];
        for handle in order {
            handles[handle] = None;
        }
        drop(b);
        shelf.holds(7).await;
    }
    bench.nothing_left().await;
}

async fn handles_of_memory_are_dropped_in_every_order(bench: Bench) {
    let options = Options { depth: 4, ..Options::default() };
    for order in orders(6) {
        let shelf = Shelf::new();
        let domain = bench.b.create_domain().await.unwrap();
        let srq = domain.create_srq(4, 1).await.unwrap();
        let memory = SharedMemory::zeroed(64);
        let region = domain.register(memory.clone(), Access::all()).await.unwrap();
        let ah = domain.create_ah(way(&bench.b, &bench.a, 1, true)).await.unwrap();
        let cq = bench.b.create_cq(64).await.unwrap();
        let spec = QpSpec { srq: Some(srq.clone()), ..super::end::spec(options, &cq) };
        let qp = domain.create_qp(spec).await.unwrap();
        let mut work = std::collections::VecDeque::new();
        for (id, buf) in (0..).zip(domain.alloc(3, 8).await.unwrap()) {
            work.push_back(RecvWr::new(id, shelf.label(buf)));
        }
        srq.post_recv(&mut work).unwrap();
        let mut handles: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(domain)),
            Some(Box::new(srq)),
            Some(Box::new(region)),
            Some(Box::new(ah)),
            Some(Box::new(cq)),
            Some(Box::new(qp)),
        ];
        for handle in order {
            handles[handle] = None;
        }
        shelf.holds(3).await;
        memory.copy_from(0, b"still here").unwrap();
    }
    bench.nothing_left().await;
}

async fn destroyed_qp_gives_buffers_back(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let shelf = Shelf::new();
    for id in 0..4 {
        a.post(SendWr::new(id, SendOp::Send { imm: None }, shelf.label(a.buf(b"x").await))).unwrap();
        a.qp.post_recv(&mut [RecvWr::new(id, shelf.label(a.room(8).await))].into()).unwrap();
    }
    let End { cq, qp, .. } = a;
    drop(qp);
    shelf.holds(8).await;
    let mut out = Vec::new();
    assert_eq!(cq.poll(&mut out, 100), 0, "{out:?}");
    drop(b);
}

async fn completion_outlives_its_queues(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 1, 64).await;
    a.send(0, b"still readable").await;
    let got = b.completion().await;
    drop((a, b));
    assert_eq!(&got.sg[0][..], b"still readable");
    drop(got);
    bench.nothing_left().await;
}

async fn buffers_outlive_their_device(bench: Bench) {
    let mut bufs = bench.a.domain().alloc(2, 16).await.unwrap();
    drop(bench);
    bufs[0].clear();
    bufs[0].put_slice(b"mine");
    assert_eq!(&bufs[0][..], b"mine");
}

async fn connection_outlives_its_device_handle(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let (sent, offered) = (a.buf(b"still there").await, b.room(16).await);
    let (End { cq: cq_a, qp: qp_a, .. }, End { cq: cq_b, qp: qp_b, .. }) = (a, b);
    let Bench { a, b, hands, .. } = bench;
    drop((a, b));
    qp_b.post_recv(&mut [RecvWr::new(0, offered)].into()).unwrap();
    qp_a.post_send(&mut [SendWr::new(0, SendOp::Send { imm: None }, sent)].into()).unwrap();
    assert!(super::end::completions(&cq_a, 1).await[0].status.is_ok());
    let got = super::end::completions(&cq_b, 1).await.remove(0);
    assert_eq!(&got.sg[0][..], b"still there");
    drop((got, cq_a, cq_b, qp_a, qp_b));
    hands.nothing_left().await;
}

/// The region and the QP are enough.
async fn peer_does_not_notice_its_handles_going(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(3000, Access::REMOTE_WRITE).await;
    let End { device, domain, qp, .. } = b;
    drop((device, domain));
    assert!(a.carry_out(write(remote(&region, 0)), &message(1, 3000)).await.status.is_ok());
    assert!(super::end::bytes(&region) == message(1, 3000));
    drop(qp);
}

async fn nothing_is_left(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let (c, d) = pair(&bench, Options::default()).await;
    b.receives(0, 4, 8).await;
    for id in 0..2 {
        a.send(id, b"x").await;
    }
    a.completions(2).await;
    c.send(0, b"not ready").await;
    d.modify(Transition::Error).await;
    drop((a, b, c, d));
    bench.nothing_left().await;
}
