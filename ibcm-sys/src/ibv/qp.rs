//! Queue pairs.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use async_trait::async_trait;
use ibdev::qp::{QpSpec, QpType, Transition};
use ibdev::{
    Buf, CompletionOp, CompletionQueue, DeviceError, PostError, QueuePair, RecvWr, SendFlags, SendOp, SendWr,
};
use ibwire::Qpn;
use rdma_sys::{
    ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wr_opcode, rdma_t,
};
use rustix::io::Errno;

use super::cq::{Cq, VerbsCq, Work};
use super::{Deferred, ProtectionDomain, Raw, attr, blocking, check, memory, zeroed};
use crate::counters::{Counters, count};

// rdma-sys writes it by hand: it has to be what libibverbs reads.
const _: () = assert!(size_of::<ibv_send_wr>() == 128);

/// A queue pair of the contract.
#[derive(Debug)]
pub(crate) struct VerbsQp {
    inner: Deferred<Arc<Qp>>,
}

#[async_trait]
impl QueuePair for VerbsQp {
    fn qpn(&self) -> Qpn {
        self.inner.qpn
    }

    async fn modify(&self, transition: Transition) -> Result<(), DeviceError> {
        let qp = Arc::clone(&self.inner);
        blocking(move || qp.modify(&transition)).await
    }

    fn post_send(&self, work: &mut VecDeque<SendWr>) -> Result<(), PostError> {
        let qp = &*self.inner;
        let state = qp.state();
        if !matches!(*state, State::Rts | State::Error) {
            return Err(PostError::State { state: state.name() });
        }
        while !work.is_empty() {
            qp.send(work)?;
        }
        Ok(())
    }

    fn post_recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        let qp = &*self.inner;
        let state = qp.state();
        if *state == State::Reset {
            return Err(PostError::State { state: state.name() });
        }
        while !work.is_empty() {
            qp.recv(work)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Qp {
    raw: Raw<ibv_qp>,
    qpn: Qpn,
    max_message: u32,
    /// Held for reading while work is posted, so that a state that takes none begins when the last post has ended.
    state: RwLock<State>,
    /// One state change at a time.
    modifying: Mutex<()>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    domain: Arc<ProtectionDomain>,
    counters: Arc<Counters>,
}

/// The state that was asked for. The device may have gone to the error state by itself, where it takes work as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Error,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Error => "ERR",
        }
    }

    /// Where the transition leads from here, if the state table has it (spec/softhca.md 2.11).
    const fn next(self, transition: &Transition) -> Option<Self> {
        match (self, transition) {
            (_, Transition::Reset) => Some(Self::Reset),
            (Self::Reset | Self::Init, Transition::Init(_)) => Some(Self::Init),
            (Self::Init, Transition::Rtr(_)) => Some(Self::Rtr),
            (Self::Rtr, Transition::Rts(_)) => Some(Self::Rts),
            (Self::Init | Self::Rtr | Self::Rts | Self::Error, Transition::Error) => Some(Self::Error),
            _ => None,
        }
    }
}

impl VerbsQp {
    /// A reliable connection in RESET. Slow.
    pub(crate) fn new(
        domain: Arc<ProtectionDomain>,
        spec: &QpSpec,
        max_message: u32,
        counters: Arc<Counters>,
    ) -> Result<Self, DeviceError> {
        if spec.kind != QpType::Rc {
            return Err(DeviceError::Unsupported { what: "a transport other than RC" });
        }
        let (send_cq, recv_cq) = (own(&spec.send_cq, &domain)?, own(&spec.recv_cq, &domain)?);
        let cap = ibv_qp_cap {
            max_send_wr: spec.max_send_wr,
            max_recv_wr: spec.max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: std::ptr::null_mut(),
            cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: domain and completion queues outlive the queue pair, which keeps them all; nothing else is kept.
        let qp = unsafe { rdma_sys::ibv_create_qp(domain.raw(), &raw mut init) };
        let raw = Raw::new(qp, "create a queue pair")?;
        // SAFETY: the queue pair is alive, and its number never changes.
        let qpn = Qpn::truncate(unsafe { (*raw.get()).qp_num });
        let (state, modifying) = (RwLock::new(State::Reset), Mutex::new(()));
        let qp = Qp { raw, qpn, max_message, state, modifying, send_cq, recv_cq, domain, counters };
        Ok(Self { inner: Deferred::new(Arc::new(qp)) })
    }
}

/// The queue behind the trait object, if it is of this device.
fn own(cq: &Arc<dyn CompletionQueue>, domain: &ProtectionDomain) -> Result<Arc<Cq>, DeviceError> {
    match cq.as_any().downcast_ref::<VerbsCq>() {
        Some(cq) if Arc::ptr_eq(cq.inner().context(), domain.context()) => Ok(Arc::clone(cq.inner())),
        _ => Err(DeviceError::Unsupported { what: "a completion queue of another device" }),
    }
}

impl Qp {
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Slow.
    fn modify(&self, transition: &Transition) -> Result<(), DeviceError> {
        // Some drivers take an alternate path and do nothing with it (spec/softhca.md 2.12).
        if transition.is_path_migration() {
            return Err(DeviceError::Unsupported { what: "path migration" });
        }
        let _one = self.modifying.lock().unwrap_or_else(PoisonError::into_inner);
        let from = *self.state();
        let to = from.next(transition).ok_or(DeviceError::State { state: from.name() })?;
        let (mut attr, mask) = attr::transition(QpType::Rc, transition)?;
        if to == State::Reset {
            // Before the change: what is posted during it might stay in the driver's queue for the next connection.
            self.set_state(to);
        }
        // SAFETY: the queue pair lives while `self` does; the attributes are read during the call only.
        let result = unsafe { rdma_sys::ibv_modify_qp(self.raw.get(), &raw mut attr, mask.0 as i32) };
        check(result, "change the state of a queue pair")?;
        self.set_state(to);
        if to == State::Reset {
            drop(self.take_posted());
        }
        Ok(())
    }

    /// Posts the front of `work`.
    fn send(&self, work: &mut VecDeque<SendWr>) -> Result<(), PostError> {
        let Some(front) = work.front_mut() else { return Ok(()) };
        let (op, imm, to) = match front.op {
            SendOp::Send { imm } => (CompletionOp::Send, imm, None),
            SendOp::Write { to, imm: None } => (CompletionOp::Write, None, Some(to)),
            _ => {
                return Err(PostError::Invalid {
                    why: "only sends, and writes without immediate data, fit it",
                });
            }
        };
        let [buf] = &mut front.sg[..] else { return Err(ONE_BUFFER) };
        let len = buf.len();
        let mut sge = self.sge(buf, len)?;
        // SAFETY: integers, null pointers and unions of integers: all bytes zero is a value.
        let mut raw: ibv_send_wr = unsafe { zeroed() };
        raw.opcode = ibv_wr_opcode::IBV_WR_SEND;
        if let Some(imm) = imm {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
        }
        if let Some(to) = to {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            raw.wr.rdma = rdma_t { remote_addr: to.addr, rkey: to.rkey.0 };
        }
        raw.send_flags = match front.flags.contains(SendFlags::SOLICITED) {
            true => ibv_send_flags::IBV_SEND_SOLICITED.0,
            false => 0,
        };
        raw.sg_list = &raw mut sge;
        raw.num_sge = i32::from(sge.length > 0);
        let Some(SendWr { id, op: asked, sg, flags }) = work.pop_front() else { return Ok(()) };
        raw.wr_id = self.send_cq.keep(Work { id, qpn: self.qpn, op, sg });
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair lives while `self` does. The request and its list are read during the call. The memory
        // that the list names stays with the completion queue, so nobody touches it before the completion, or before
        // the queue pair is reset or destroyed.
        let result = unsafe { rdma_sys::ibv_post_send(self.raw.get(), &raw mut raw, &raw mut refused) };
        let Some(error) = refusal(result) else { return Ok(()) };
        if let Some(Work { sg, .. }) = take_back(!refused.is_null(), &self.send_cq, raw.wr_id) {
            work.push_front(SendWr { id, op: asked, sg, flags });
        }
        Err(error)
    }

    /// Posts the front of `work`.
    fn recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        let Some(front) = work.front_mut() else { return Ok(()) };
        let [buf] = &mut front.sg[..] else { return Err(ONE_BUFFER) };
        let len = buf.capacity();
        let mut sge = self.sge(buf, len)?;
        let Some(RecvWr { id, sg }) = work.pop_front() else { return Ok(()) };
        let mut raw = ibv_recv_wr {
            wr_id: self.recv_cq.keep(Work { id, qpn: self.qpn, op: CompletionOp::Recv, sg }),
            next: std::ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: i32::from(sge.length > 0),
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: as in `send`.
        let result = unsafe { rdma_sys::ibv_post_recv(self.raw.get(), &raw mut raw, &raw mut refused) };
        let Some(error) = refusal(result) else { return Ok(()) };
        if let Some(Work { sg, .. }) = take_back(!refused.is_null(), &self.recv_cq, raw.wr_id) {
            work.push_front(RecvWr { id, sg });
        }
        Err(error)
    }

    /// The first `len` bytes of the buffer's memory, for the device.
    fn sge(&self, buf: &mut Buf, len: usize) -> Result<ibv_sge, PostError> {
        if len == 0 {
            return Ok(ibv_sge { addr: 0, length: 0, lkey: 0 });
        }
        let limit = self.max_message;
        let length = u32::try_from(len).ok().filter(|length| *length <= limit);
        Ok(ibv_sge {
            length: length.ok_or(PostError::TooLong { len, limit: limit as usize })?,
            lkey: memory::lkey(buf, &self.domain)
                .ok_or(PostError::Invalid { why: "the buffer is not registered with this device" })?,
            addr: buf.memory_mut().as_mut_ptr() as u64,
        })
    }

    fn take_posted(&self) -> (Vec<Work>, Vec<Work>) {
        (self.send_cq.take_all(self.qpn), self.recv_cq.take_all(self.qpn))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // Taken before the number is free for another queue pair, dropped when the device can't reach it any more.
        let posted = self.take_posted();
        // SAFETY: this is the last owner. Its events are acknowledged when they are read.
        if unsafe { rdma_sys::ibv_destroy_qp(self.raw.get()) } != 0 {
            count(&self.counters.destroy_failures);
            std::mem::forget(posted); // the device may still read and write it
        }
    }
}

const ONE_BUFFER: PostError = PostError::Invalid { why: "not one buffer" };

/// Why the driver refused a post, if it did.
fn refusal(result: i32) -> Option<PostError> {
    let errno = match result {
        0 => return None,
        positive if positive > 0 => Errno::from_raw_os_error(positive),
        _ => Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL),
    };
    Some(match errno {
        Errno::NOMEM => PostError::Full,
        Errno::IO | Errno::NODEV => PostError::Gone,
        _ => PostError::Invalid { why: "the driver refused it" },
    })
}

/// Takes back the work that the driver named as refused. A driver that returns an error and names none has put the request
/// into its queue and could not tell the device (rxe's does): it stays posted.
fn take_back(named: bool, cq: &Cq, wr_id: u64) -> Option<Work> {
    if named { cq.take(wr_id) } else { None }
}

#[cfg(test)]
mod tests {
    use ibdev::Access;
    use ibdev::qp::Init;
    use ibwire::QKey;

    use super::*;

    #[test]
    fn a_queue_pair_goes_only_where_the_state_table_leads() {
        let init = Transition::Init(Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKey(0) });
        assert_eq!(State::Reset.next(&init), Some(State::Init));
        assert_eq!(State::Init.next(&init), Some(State::Init));
        assert_eq!(State::Rts.next(&init), None);
        assert_eq!(State::Reset.next(&Transition::Error), None);
        assert_eq!(State::Rtr.next(&Transition::Error), Some(State::Error));
        for state in [State::Reset, State::Init, State::Rtr, State::Rts, State::Error] {
            assert_eq!(state.next(&Transition::Reset), Some(State::Reset));
            assert_eq!(state.next(&Transition::DatagramRtr), None);
        }
    }
}
