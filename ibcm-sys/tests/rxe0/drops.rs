//! What is left when things are dropped.

use std::sync::{Mutex, Weak};

use ibdev::BufHome;

use super::*;

#[derive(Debug, Default)]
struct Shelf(Mutex<Vec<Buf>>);

impl BufHome for Shelf {
    fn give_back(&self, buf: Buf) {
        self.0.lock().unwrap().push(buf);
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    within(what, async {
        while !condition() {
            ticks.tick().await;
        }
    })
    .await;
}

/// In the worst order: the device first, then queues, then the queue pair with receives posted, then a buffer.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn nothing_is_left_in_the_kernel_and_posted_buffers_come_home() {
    let before = resources();
    let device = rxe0().await;
    let cq = device.create_cq(8).await.unwrap();
    let spec = QpSpec::new(QpType::Rc, &cq, 4, 4);
    let qp = device.domain().create_qp(spec).await.unwrap();
    let init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKey(0) };
    qp.modify(Transition::Init(init)).await.unwrap();
    let shelf = Arc::new(Shelf::default());
    let home: Weak<dyn BufHome> = Arc::downgrade(&(shelf.clone() as Arc<dyn BufHome>));
    let mut buffers = device.domain().alloc(4, 64).await.unwrap();
    let kept = buffers.pop();
    let mut work: VecDeque<_> =
        (0..).zip(buffers).map(|(id, buf)| RecvWr::new(id, buf.with_home(home.clone()))).collect();
    qp.post_recv(&mut work).unwrap();
    assert_ne!(resources(), before);
    drop(device);
    drop(cq);
    assert_eq!(shelf.0.lock().unwrap().len(), 0);
    drop(qp);
    until("buffers", || shelf.0.lock().unwrap().len() == 3).await;
    assert_ne!(resources(), before, "buffers hold the registration, that the device");
    shelf.0.lock().unwrap().clear();
    drop(kept);
    until("empty kernel", || resources() == before).await;
}

/// A slow call that nobody waits for any more cleans up after itself.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_dropped_slow_call_leaves_nothing() {
    let before = resources();
    let device = rxe0().await;
    for _ in 0..20 {
        let mut create = Box::pin(device.create_cq(64));
        poll_fn(|cx| Poll::Ready(create.as_mut().poll(cx).is_ready())).await;
    }
    let mut open = Box::pin(LinuxDevice::open("rxe0"));
    poll_fn(|cx| Poll::Ready(open.as_mut().poll(cx).is_ready())).await;
    drop((open, device));
    until("empty kernel", || resources() == before).await;
}
