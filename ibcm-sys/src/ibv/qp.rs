//! Queue pairs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use async_trait::async_trait;
use ibdev::qp::{Init, QpType, Rtr, Rts, Transition};
use ibdev::{
    CompletionOp, DeviceError, PortAttr, PostError, QueuePair, RecvWr, SendFlags, SendOp, SendWr, SgList,
};
use ibwire::{Gid, Lid, QKey, Qpn};
use rdma_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_send_wr,
};
use smallvec::SmallVec;

use super::cq::{Cq, Leftovers, Reservation, Work};
use super::create::Wants;
use super::domain::Domain;
use super::groups::Groups;
use super::srq::Srq;
use super::state::State;
use super::work::{self, BATCH, Entries, Places, Prepared};
use super::{Hca, Raw, at_most, attr, check, zeroed};
use crate::counters::{add, count};
use crate::pool::Deferred;

/// A queue pair of the contract.
#[derive(Debug)]
pub(crate) struct VerbsQp {
    inner: Deferred<Arc<Qp>>,
}

impl VerbsQp {
    /// The handle of a new queue pair.
    pub(super) fn new(qp: Qp) -> Self {
        let hca = qp.hca().clone();
        let qp = Arc::new(qp);
        hca.add_qp(&qp);
        Self { inner: Deferred::new(qp, hca.pool()) }
    }
}

#[async_trait]
impl QueuePair for VerbsQp {
    fn qpn(&self) -> Qpn {
        self.inner.shared.qpn
    }

    async fn modify(&self, transition: Transition) -> Result<(), DeviceError> {
        let qp = Arc::clone(&self.inner);
        self.inner.hca().slow("change the state of a queue pair", move || qp.modify(&transition)).await
    }

    async fn modify_all(&self, transitions: &[Transition]) -> Result<(), (usize, DeviceError)> {
        let (qp, transitions) =
            (Arc::clone(&self.inner), SmallVec::<[Transition; 3]>::from_slice(transitions));
        let place = Arc::new(AtomicUsize::new(0));
        let modify = {
            let place = place.clone();
            move || {
                transitions.iter().enumerate().try_for_each(|(number, transition)| {
                    place.store(number, Ordering::Relaxed);
                    qp.modify(transition)
                })
            }
        };
        let modified = self.inner.hca().slow("change the state of a queue pair", modify).await;
        modified.map_err(|error| (place.load(Ordering::Relaxed), error))
    }

    async fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        let qp = Arc::clone(&self.inner);
        self.inner.hca().slow("attach to a multicast group", move || qp.attach(mgid, mlid)).await
    }

    async fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        let qp = Arc::clone(&self.inner);
        self.inner
            .hca()
            .slow("detach from a multicast group", move || qp.groups.detach(&qp.raw, mgid, mlid))
            .await
    }

    fn post_send(&self, work: &mut VecDeque<SendWr>) -> Result<(), PostError> {
        self.inner.post_send(work)
    }

    fn post_recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        let before = work.len();
        let result = self.inner.post_recv(work);
        if work.len() < before
            && self.inner.shared.failed.load(Ordering::Acquire)
            && !self.inner.will_flush.swap(true, Ordering::AcqRel)
        {
            // Posting a receive tells some drivers nothing (rxe), so it is told once more that it flushes.
            let qp = Arc::clone(&self.inner);
            self.inner.hca().pool().later(move || qp.flush_again());
        }
        result
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        self.inner.send.leave();
        self.inner.recv.leave();
    }
}

/// What is known of a queue pair beside its handle, to those who complete its work.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) qpn: Qpn,
    pub(super) kind: QpType,
    pub(super) max_sge: u32,
    pub(super) srq: Option<Arc<Srq>>,
    send_places: Places,
    recv_places: Arc<Places>,
    port: AtomicU8,
    qkey: AtomicU32,
    max_rd_atomic: AtomicU8,
    longest_datagram: AtomicU32,
    /// It is in the error state, and that is known or was asked for.
    failed: AtomicBool,
    drained: AtomicBool,
}

impl Shared {
    /// Where work of this kind has its place.
    pub(super) fn places(&self, op: CompletionOp) -> &Places {
        if op.is_recv() { &self.recv_places } else { &self.send_places }
    }

    /// Notes that it is in the error state; true if that was known.
    pub(super) fn note_failed(&self) -> bool {
        self.failed.swap(true, Ordering::AcqRel)
    }

    /// What SQD had to finish is finished.
    pub(super) fn drained(&self) {
        self.drained.store(true, Ordering::Release);
    }

    pub(super) fn port(&self) -> u8 {
        self.port.load(Ordering::Relaxed)
    }

    pub(super) fn qkey(&self) -> QKey {
        QKey(self.qkey.load(Ordering::Relaxed))
    }

    pub(super) fn max_rd_atomic(&self) -> u8 {
        self.max_rd_atomic.load(Ordering::Relaxed)
    }

    pub(super) fn longest_datagram(&self) -> u32 {
        self.longest_datagram.load(Ordering::Relaxed)
    }
}

/// The queue pair. What its object stands on comes after it.
#[derive(Debug)]
pub(super) struct Qp {
    raw: Raw<ibv_qp>,
    shared: Arc<Shared>,
    /// Held for reading while work is posted, so that a state that takes none begins when the last post has ended.
    state: RwLock<State>,
    /// One state change at a time.
    modifying: Mutex<()>,
    /// Receives were posted in the error state, and the driver is going to hear of it.
    will_flush: AtomicBool,
    groups: Groups,
    send: Reservation,
    recv: Reservation,
    domain: Arc<Domain>,
}

impl Qp {
    /// Slow.
    pub(super) fn new(
        domain: Arc<Domain>,
        wants: &Wants,
        send: Reservation,
        recv: Reservation,
        srq: Option<Arc<Srq>>,
    ) -> Result<Self, DeviceError> {
        let owns_receives = srq.is_none();
        let cap = ibv_qp_cap {
            max_send_wr: wants.max_send_wr,
            max_recv_wr: if owns_receives { wants.max_recv_wr } else { 0 },
            max_send_sge: wants.max_sge,
            max_recv_sge: if owns_receives { wants.max_sge } else { 0 },
            max_inline_data: domain.hca().attr().max_inline_data,
        };
        let mut init = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: send.cq().raw(),
            recv_cq: recv.cq().raw(),
            srq: srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.raw()),
            cap,
            qp_type: attr::qp_type(wants.kind)?,
            sq_sig_all: 1,
        };
        // SAFETY: domain, completion queues and shared receive queue outlive the queue pair, which keeps them all; nothing
        // else is kept.
        let qp = unsafe { rdma_sys::ibv_create_qp(domain.raw(), &raw mut init) };
        let raw = Raw::new(qp, "create a queue pair")?;
        // SAFETY: the queue pair is alive, and its number never changes.
        let qpn = Qpn::truncate(unsafe { (*raw.get()).qp_num });
        let recv_places = match &srq {
            Some(srq) => srq.places.clone(),
            None => Arc::new(Places::new(wants.max_recv_wr)),
        };
        let shared = Arc::new(Shared {
            qpn,
            kind: wants.kind,
            max_sge: wants.max_sge,
            srq,
            send_places: Places::new(wants.max_send_wr),
            recv_places,
            port: AtomicU8::new(0),
            qkey: AtomicU32::new(0),
            max_rd_atomic: AtomicU8::new(0),
            longest_datagram: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            drained: AtomicBool::new(false),
        });
        if !owns_receives {
            recv.cq().add_sharer(&shared);
        }
        Ok(Self {
            raw,
            shared,
            state: RwLock::new(State::Reset),
            modifying: Mutex::new(()),
            will_flush: AtomicBool::new(false),
            groups: Groups::default(),
            send,
            recv,
            domain,
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn hca(&self) -> &Arc<Hca> {
        self.domain.hca()
    }

    /// The queues that it completes on, each once.
    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        let (send, recv) = (self.send.cq(), self.recv.cq());
        std::iter::once(send).chain((!Arc::ptr_eq(send, recv)).then_some(recv))
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Slow.
    fn modify(&self, transition: &Transition) -> Result<(), DeviceError> {
        if transition.is_path_migration() && !self.hca().attr().path_migration {
            return Err(DeviceError::Unsupported { what: "path migration" });
        }
        let _one = self.modifying.lock().unwrap_or_else(PoisonError::into_inner);
        let from = match *self.state() {
            State::Reset => State::Reset,
            _ if self.shared.failed.load(Ordering::Acquire) => State::Error,
            state => state,
        };
        let to = from.next(transition).ok_or(DeviceError::State { state: from.name() })?;
        let (mut attr, mask) = attr::transition(self.shared.kind, transition)?;
        self.check(transition)?;
        if to == State::Sqd {
            self.shared.drained.store(false, Ordering::Release);
        }
        if *transition == Transition::SqResume && !self.is_drained()? {
            return Err(DeviceError::State { state: "SQD, draining" });
        }
        let had_failed = match to {
            // Before the change: what is posted during it might stay in the driver's queue for the next connection.
            State::Reset => {
                self.set_state(to);
                true
            }
            // Before the change: what it flushes has not failed by itself.
            State::Error => self.shared.note_failed(),
            _ => true,
        };
        // SAFETY: the queue pair lives while `self` does; the attributes are read during the call only.
        let result = unsafe { rdma_sys::ibv_modify_qp(self.raw.get(), &raw mut attr, mask.0 as i32) };
        if let Err(error) = check(result, "change the state of a queue pair") {
            if !had_failed {
                self.shared.failed.store(false, Ordering::Release);
            }
            return Err(self.refused(from, error));
        }
        self.set_state(to);
        self.note(transition);
        if to == State::Reset {
            drop(self.take_posted(false));
            self.shared.failed.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Whether attributes are within what the device and the QP's port allow.
    fn check(&self, transition: &Transition) -> Result<(), DeviceError> {
        match transition {
            Transition::Init(init) => self.check_init(init),
            Transition::Rtr(rtr) => self.check_rtr(rtr),
            Transition::Rts(rts) => self.check_rts(rts),
            Transition::LoadPath(path) => self.hca().address_attr(&path.av).map(drop),
            _ => Ok(()),
        }
    }

    fn check_init(&self, init: &Init) -> Result<(), DeviceError> {
        self.hca().check_port(init.port)?;
        let pkeys = self.hca().context().pkey_count(init.port);
        at_most("P_Key index", init.pkey_index.into(), u32::from(pkeys).saturating_sub(1))
    }

    fn check_rtr(&self, rtr: &Rtr) -> Result<(), DeviceError> {
        let port = self.shared.port();
        if rtr.av.port != port {
            let what = "port of the address, the QP is on another port:";
            return Err(DeviceError::Limit { what, value: rtr.av.port.into(), limit: port.into() });
        }
        let (_, PortAttr { active_mtu: active, .. }) = self.hca().address_attr(&rtr.av)?;
        at_most("path MTU code", rtr.path_mtu.0.into(), active.0.into())?;
        if self.shared.kind == QpType::Rc {
            let limit = self.hca().attr().max_responder_resources;
            at_most("responder resources", rtr.max_dest_rd_atomic.into(), limit.into())?;
        }
        Ok(())
    }

    fn check_rts(&self, rts: &Rts) -> Result<(), DeviceError> {
        if self.shared.kind != QpType::Rc {
            return Ok(());
        }
        let limit = self.hca().attr().max_initiator_depth;
        at_most("initiator depth", rts.max_rd_atomic.into(), limit.into())?;
        rts.alternate.map_or(Ok(()), |path| self.hca().address_attr(&path.av).map(drop))
    }

    /// Keeps of a state change what posting and completing have to know.
    fn note(&self, transition: &Transition) {
        let shared = &self.shared;
        match transition {
            Transition::Init(init) => {
                shared.port.store(init.port, Ordering::Relaxed);
                shared.qkey.store(init.qkey.0, Ordering::Relaxed);
            }
            Transition::Rts(rts) => shared.max_rd_atomic.store(rts.max_rd_atomic, Ordering::Relaxed),
            Transition::DatagramRts { .. } => {
                let port = self.hca().context().port(shared.port());
                let mtu = port.ok().and_then(|port| port.active_mtu.bytes()).unwrap_or(0);
                shared.longest_datagram.store(mtu, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// A state change that the driver refused although the state table has it: the queue pair may be elsewhere.
    fn refused(&self, from: State, error: DeviceError) -> DeviceError {
        let is_error = || self.query().is_ok_and(|attr| attr.qp_state == ibv_qp_state::IBV_QPS_ERR);
        if from != State::Error && matches!(error, DeviceError::Os { .. }) && is_error() {
            self.shared.note_failed();
            return DeviceError::State { state: State::Error.name() };
        }
        error
    }

    /// Whether a queue pair in SQD has finished what it had started.
    fn is_drained(&self) -> Result<bool, DeviceError> {
        Ok(self.shared.drained.load(Ordering::Acquire) || self.query()?.sq_draining == 0)
    }

    /// Its state. Slow.
    fn query(&self) -> Result<ibv_qp_attr, DeviceError> {
        // SAFETY: integers, and structs of integers and of null pointers: all bytes zero is a value.
        let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair lives while `self` does; the call fills both and keeps nothing.
        let result = unsafe { rdma_sys::ibv_query_qp(self.raw.get(), &raw mut attr, mask, &raw mut init) };
        check(result, "query a queue pair").map(|()| attr)
    }

    /// Slow.
    fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        if self.shared.kind != QpType::Ud {
            return Err(DeviceError::Unsupported { what: "multicast to a connected QP" });
        }
        if *self.state() == State::Reset {
            return Err(DeviceError::State { state: State::Reset.name() });
        }
        self.groups.attach(&self.raw, self.hca(), self.shared.port(), mgid, mlid)
    }

    fn post_send(&self, work: &mut VecDeque<SendWr>) -> Result<(), PostError> {
        if self.hca().is_gone() {
            return Err(PostError::Gone);
        }
        while !work.is_empty() {
            let mut left = Leftovers::default();
            let before = work.len();
            let result = self.send_batch(work, &mut left);
            add(&self.hca().counters().sends_posted, before - work.len());
            left.settle(self.hca());
            result?;
        }
        Ok(())
    }

    /// Posts up to a batch from the front of `work`.
    fn send_batch(&self, work: &mut VecDeque<SendWr>, left: &mut Leftovers) -> Result<(), PostError> {
        let state = self.state();
        if !state.takes_sends() {
            return Err(PostError::State { state: state.name() });
        }
        let mut entries = Entries::new();
        let mut raws = SmallVec::<[ibv_send_wr; BATCH]>::new();
        let mut ops = SmallVec::<[CompletionOp; BATCH]>::new();
        let mut stopped = Ok(());
        for wr in work.iter_mut().take(BATCH) {
            if !self.take_send_place(left) {
                stopped = Err(PostError::Full);
                break;
            }
            match work::prepare(wr, &self.shared, &self.domain, &mut entries) {
                Ok(Prepared { raw, op }) => {
                    raws.push(raw);
                    ops.push(op);
                }
                Err(error) => {
                    self.shared.send_places.give();
                    stopped = Err(error);
                    break;
                }
            }
        }
        if raws.is_empty() {
            return stopped;
        }
        let mut asked = SmallVec::<[(SendOp, SendFlags); BATCH]>::new();
        let mut ids = raws.iter_mut();
        let works = work.drain(..ops.len()).zip(ops).map(|(SendWr { id, op: what, sg, flags }, op)| {
            let ah = match &what {
                SendOp::Datagram { to, .. } => Some(to.ah.clone()),
                _ => None,
            };
            asked.push((what, flags));
            let is_signaled = flags.contains(SendFlags::SIGNALED);
            Work { id, qp: self.shared.clone(), op, sg, is_signaled, ah }
        });
        self.send.cq().keep(works, |id| {
            if let Some(raw) = ids.next() {
                raw.wr_id = id;
            }
        });
        let first = work::link(&mut raws, &mut entries);
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair lives while `self` does. The list and its entries are read during the call. The memory that they
        // name stays with the completion queue, so nobody touches it before the completion, or before the queue pair
        // is reset or destroyed.
        let result = unsafe { rdma_sys::ibv_post_send(self.raw.get(), first, &raw mut refused) };
        let Some(error) = work::refusal(result) else { return stopped };
        let first = raws.iter().position(|raw| std::ptr::eq(raw, refused)).unwrap_or(raws.len());
        for (raw, (op, flags)) in raws.iter().zip(asked).skip(first).rev() {
            if let Some(Work { id, sg, .. }) = self.send.cq().take(raw.wr_id) {
                self.shared.send_places.give();
                work.push_front(SendWr { id, op, sg, flags });
            }
        }
        Err(error)
    }

    fn take_send_place(&self, left: &mut Leftovers) -> bool {
        if self.shared.send_places.take() {
            return true;
        }
        // Unsignaled work may be complete.
        self.send.cq().collect(left);
        self.shared.send_places.take()
    }

    fn post_recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        if self.hca().is_gone() {
            return Err(PostError::Gone);
        }
        if self.shared.srq.is_some() {
            return Err(PostError::Invalid { why: "the QP takes its receives from a shared queue" });
        }
        let state = self.state();
        if *state == State::Reset {
            return Err(PostError::State { state: state.name() });
        }
        let cq = self.recv.cq();
        while !work.is_empty() {
            let before = work.len();
            let result = work::post_receives(
                work,
                &self.shared.recv_places,
                self.shared.max_sge as usize,
                &self.domain,
                |receives, with_id| {
                    let (qp, op) = (&self.shared, CompletionOp::Recv);
                    let works = receives.map(|RecvWr { id, sg }| Work {
                        id,
                        qp: qp.clone(),
                        op,
                        sg,
                        is_signaled: true,
                        ah: None,
                    });
                    cq.keep(works, with_id);
                },
                |id| cq.take(id).map(|work| (work.id, work.sg)),
                |first, refused| {
                    // SAFETY: as in `send_batch`.
                    unsafe { rdma_sys::ibv_post_recv(self.raw.get(), first, refused) }
                },
            );
            add(&self.hca().counters().receives_posted, before - work.len());
            result?;
        }
        Ok(())
    }

    fn take_posted(&self, is_destroyed: bool) -> Vec<SgList> {
        self.cqs().flat_map(|cq| cq.take_all(&self.shared, is_destroyed)).collect()
    }

    /// Has the driver flush what was posted since it went to the error state. Slow.
    fn flush_again(&self) {
        self.will_flush.swap(false, Ordering::AcqRel); // first: what is posted from here on may come too late
        let _one = self.modifying.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.state() == State::Reset || !self.shared.failed.load(Ordering::Acquire) {
            return;
        }
        let Ok((mut attr, mask)) = attr::transition(self.shared.kind, &Transition::Error) else { return };
        // SAFETY: the queue pair lives while `self` does; the attributes are read during the call only.
        unsafe { rdma_sys::ibv_modify_qp(self.raw.get(), &raw mut attr, mask.0 as i32) };
    }

    /// The device is being removed. The driver may still flush what is posted; if not, the device reaches no memory any more,
    /// and it is ended here.
    pub(super) fn flush_of_removed(&self) {
        let _one = self.modifying.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.state() == State::Reset {
            return;
        }
        self.shared.note_failed();
        let Ok((mut attr, mask)) = attr::transition(self.shared.kind, &Transition::Error) else { return };
        // SAFETY: the queue pair lives while `self` does; the attributes are read during the call only.
        if unsafe { rdma_sys::ibv_modify_qp(self.raw.get(), &raw mut attr, mask.0 as i32) } != 0 {
            for cq in self.cqs() {
                cq.flush(&self.shared);
            }
        }
        self.set_state(State::Error);
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let mut left = Leftovers::default();
        for cq in self.cqs() {
            cq.collect(&mut left); // with a driver that drops its completions they would be missed
        }
        self.groups.detach_all(&self.raw);
        let hca = self.hca();
        left.settle(hca);
        // SAFETY: this is the last owner. Its events are acknowledged when they are read.
        let is_destroyed = unsafe { rdma_sys::ibv_destroy_qp(self.raw.get()) } == 0;
        let posted = self.take_posted(true);
        hca.remove_qp(&self.shared);
        if !is_destroyed {
            count(&hca.counters().destroy_failures);
            if !hca.is_gone() {
                std::mem::forget(posted); // the device may still read and write it
            }
        }
    }
}
