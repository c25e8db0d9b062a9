//! One end of a connection of rxe0 with itself.

use super::*;

/// A queue pair with a completion queue for both directions.
pub(super) struct End {
    pub(super) qp: Arc<dyn QueuePair>,
    pub(super) cq: Arc<dyn CompletionQueue>,
}

pub(super) async fn end(device: &LinuxDevice, depth: u32) -> End {
    end_of(device, QpType::Rc, depth, 1).await
}

pub(super) async fn end_of(device: &LinuxDevice, kind: QpType, depth: u32, max_sge: u32) -> End {
    let cq = device.create_cq(2 * depth).await.unwrap();
    let spec = QpSpec { max_sge, ..QpSpec::new(kind, &cq, depth, depth) };
    End { qp: device.domain().create_qp(spec).await.unwrap(), cq }
}

impl End {
    pub(super) async fn init(&self) {
        let access = Access::all();
        let init = Init { port: 1, pkey_index: 0, access, qkey: QKey(0) };
        self.qp.modify(Transition::Init(init)).await.unwrap();
    }

    pub(super) async fn connect(&self, device: &LinuxDevice, peer: Qpn, to: &str) {
        let rtr = Rtr {
            av: av(device, to),
            path_mtu: Mtu::B1024,
            dest_qpn: peer,
            rq_psn: Psn::truncate(peer.get()),
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::truncate(12),
        };
        self.qp.modify(Transition::Rtr(rtr)).await.unwrap();
        let rts = Rts {
            sq_psn: Psn::truncate(self.qp.qpn().get()),
            timeout: TimeCode::truncate(12),
            retry_count: 3,
            rnr_retry: 7,
            max_rd_atomic: 4,
            alternate: None,
        };
        self.qp.modify(Transition::Rts(rts)).await.unwrap();
    }

    pub(super) async fn complete(&self, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        while done.len() < count {
            if self.cq.poll(&mut done, count) == 0 {
                within("completion", poll_fn(|cx| self.cq.poll_notified(cx))).await;
            }
        }
        done
    }

    pub(super) fn send(&self, id: u64, buf: Buf, imm: Option<u32>) -> Result<(), PostError> {
        let wr = SendWr::new(id, SendOp::Send { imm }, buf);
        self.qp.post_send(&mut VecDeque::from([wr]))
    }

    pub(super) fn recv(&self, id: u64, buf: Buf) -> Result<(), PostError> {
        self.qp.post_recv(&mut VecDeque::from([RecvWr::new(id, buf)]))
    }
}

pub(super) async fn pair(device: &LinuxDevice, depth: u32) -> (End, End) {
    let (a, b) = (end(device, depth).await, end(device, depth).await);
    a.init().await;
    b.init().await;
    a.connect(device, b.qp.qpn(), HERE).await;
    b.connect(device, a.qp.qpn(), HERE).await;
    (a, b)
}

pub(super) async fn buf(device: &LinuxDevice, len: usize) -> Buf {
    device.domain().alloc(1, len).await.unwrap().remove(0)
}

/// Two connected ends, with `max_sge` buffers a work request.
pub(super) async fn pair_of(device: &LinuxDevice, kind: QpType, depth: u32, max_sge: u32) -> (End, End) {
    let (a, b) = (end_of(device, kind, depth, max_sge).await, end_of(device, kind, depth, max_sge).await);
    connect(device, &a, &b).await;
    (a, b)
}

pub(super) async fn connect(device: &LinuxDevice, a: &End, b: &End) {
    a.init().await;
    b.init().await;
    a.connect(device, b.qp.qpn(), HERE).await;
    b.connect(device, a.qp.qpn(), HERE).await;
}

/// A buffer with these bytes.
pub(super) async fn filled(device: &LinuxDevice, bytes: &[u8]) -> Buf {
    let mut buf = buf(device, bytes.len().max(8)).await;
    buf.clear();
    buf.put_slice(bytes);
    buf
}

impl End {
    pub(super) fn post(&self, wr: SendWr) -> Result<(), PostError> {
        self.qp.post_send(&mut VecDeque::from([wr]))
    }

    /// Posts a signaled work request and waits for it.
    pub(super) async fn carry_out(&self, op: SendOp, buf: Buf) -> Completion {
        self.post(SendWr::new(0, op, buf)).unwrap();
        self.complete(1).await.remove(0)
    }

    /// The completions that wait.
    pub(super) fn completed(&self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.cq.poll(&mut done, usize::MAX);
        done
    }
}
