//! Queue pairs: attributes, states, queues.

use std::collections::VecDeque;
use std::time::Instant;

use ibdev::qp::{Init, QpType, Rtr, Rts, Transition};
use ibdev::{Access, Buf, CompletionOp, DeviceAttr, DeviceError, DeviceEvent, PostError, RecvWr, Status};
use ibwire::packet::Transport;
use ibwire::{PKey, Qpn};

use super::cq::CqId;
use super::limit::at_most;
use super::memory::{DomainId, Rights};
use super::net::{Ingress, Run};
use super::peer::PeerPath;
use super::post::Work;
use super::raw::Raw;
use super::rc::Rc;
use super::receives::{self, Receives, Srq, SrqId};
use super::shared::{Shared, Side};
pub(super) use super::state::State;
use super::table::Table;
use super::uc::Uc;
use super::ud::Ud;

/// What a queue pair is created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCreate {
    /// Transport.
    pub kind: QpType,
    /// Where it belongs: its peer reaches memory of this domain only.
    pub domain: DomainId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete; may be the same.
    pub recv_cq: CqId,
    /// Most sends outstanding: posted, and their completions not polled.
    pub max_send_wr: u32,
    /// Most receives outstanding: posted, and their completions not polled. With a shared receive queue it counts for
    /// nothing.
    pub max_recv_wr: u32,
    /// Most buffers of one work request.
    pub max_sge: u32,
    /// Where receives are taken from instead of a queue of its own, of the same domain.
    pub srq: Option<SrqId>,
}

impl QpCreate {
    /// Places that so many work requests reserve in a completion queue.
    pub(super) const fn places(&self, work_requests: u32) -> u32 {
        if self.kind.is_raw() { 0 } else { work_requests }
    }

    /// A queue pair of the default domain with one completion queue, one buffer a work request and receives of its own.
    pub const fn new(kind: QpType, cq: CqId, max_send_wr: u32, max_recv_wr: u32) -> Self {
        Self {
            kind,
            domain: DomainId::DEFAULT,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr,
            max_recv_wr,
            max_sge: 1,
            srq: None,
        }
    }
}

/// A work request that failed and takes its QP with it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Failure {
    /// The oldest send ends with this status.
    Send(Status),
    /// A request of the peer failed.
    Request {
        /// How the receive that is in use ends, if that is not as flushed.
        receive: Option<Status>,
        /// What the peer did.
        blame: Blame,
    },
}

/// What a peer did whose request failed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Blame {
    /// It asked for memory that is not its own.
    Access,
    /// It did not keep to the rules.
    Request,
}

/// What differs by transport.
#[derive(Debug)]
pub(super) enum Kind {
    Rc(Box<Rc>),
    Uc(Box<Uc>),
    Ud(Box<Ud>),
    Raw(Box<Raw>),
}

impl Kind {
    /// # Errors
    /// [`DeviceError::Unsupported`] for a transport that this engine, or the device, does not have.
    pub(super) fn new(kind: QpType, device: &DeviceAttr) -> Result<Self, DeviceError> {
        let unsupported = |what| Err(DeviceError::Unsupported { what });
        match kind {
            QpType::RawIpv6 if device.max_raw_ipv6_qp == 0 => return unsupported("a raw IPv6 queue pair"),
            QpType::RawEtherType if device.max_raw_ethertype_qp == 0 => {
                return unsupported("a raw EtherType queue pair");
            }
            _ => {}
        }
        if let Some(raw) = Raw::new(kind) {
            return Ok(Self::Raw(Box::new(raw)));
        }
        match kind {
            QpType::Rc => Ok(Self::Rc(Box::new(Rc::new()))),
            QpType::Uc => Ok(Self::Uc(Box::default())),
            QpType::Ud => Ok(Self::Ud(Box::default())),
            _ => unsupported("this QP type"),
        }
    }

    /// Takes the oldest work request that is not complete.
    pub(super) fn pop_send(&mut self) -> Option<Work> {
        match self {
            Self::Rc(rc) => rc.requester.pop(),
            Self::Uc(uc) => uc.pop(),
            Self::Ud(ud) => ud.pop(),
            Self::Raw(raw) => raw.pop(),
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) slot: u32,
    /// Whether it stands in the ring of QPs that may have packets to send.
    pub(super) ready: bool,
    pub(super) state: State,
    pub(super) port: u8,
    pkey: PKey,
    pub(super) sq: Side,
    pub(super) rq: Side,
    rights: Rights,
    pub(super) max_sge: usize,
    pub(super) receives: Receives,
    pub(super) kind: Kind,
}

impl Qp {
    pub(super) fn new(qpn: Qpn, slot: u32, kind: Kind, create: &QpCreate) -> Self {
        let side = |cq, max| Side { cq, slot, qpn, max, is_raw: create.kind.is_raw(), used: 0 };
        Self {
            qpn,
            slot,
            ready: false,
            state: State::Reset,
            port: 0,
            pkey: PKey::default(),
            sq: side(create.send_cq, create.max_send_wr),
            rq: side(create.recv_cq, if create.srq.is_some() { 0 } else { create.max_recv_wr }),
            rights: Rights { domain: create.domain, access: Access::empty() },
            max_sge: create.max_sge as usize,
            receives: Receives::new(create.srq),
            kind,
        }
    }

    pub(super) fn side(&mut self, recv: bool) -> &mut Side {
        if recv { &mut self.rq } else { &mut self.sq }
    }

    /// A completion was polled: its work request's place is free.
    pub(super) fn polled(&mut self, recv: bool, srqs: &mut Table<SrqId, Srq>) {
        match self.receives.srq().filter(|_| recv) {
            Some(srq) => {
                if let Some(srq) = srqs.get_mut(srq) {
                    srq.release(1);
                }
            }
            None => self.side(recv).used -= 1,
        }
    }

    /// Makes a transition of the state table.
    ///
    /// # Errors
    /// See [`Engine::modify`](super::Engine::modify).
    pub(super) fn modify(
        &mut self,
        transition: Transition,
        shared: &mut Shared,
    ) -> Result<Vec<Buf>, DeviceError> {
        use State::{Init as Initialized, ReadyToReceive, ReadyToSend, Reset};
        match (self.state, transition) {
            (_, Transition::Reset) => return Ok(self.reset(shared)),
            (Reset | Initialized, Transition::Init(init)) => self.init(&init, shared)?,
            (Initialized, Transition::Rtr(rtr)) => self.ready_to_receive(&rtr, shared)?,
            (Initialized, Transition::DatagramRtr) => {
                self.datagram()?;
                self.state = ReadyToReceive;
            }
            (ReadyToReceive, Transition::Rts(rts)) => self.ready_to_send(&rts, shared)?,
            (ReadyToReceive, Transition::DatagramRts { sq_psn }) => {
                self.datagram()?;
                if let Kind::Ud(ud) = &mut self.kind {
                    ud.psn = sq_psn;
                }
                self.state = ReadyToSend;
            }
            (ReadyToSend, Transition::SqDrain) => {
                self.state = State::Draining;
                self.finish_drain(shared);
            }
            (State::Drained | State::SendError, Transition::SqResume) => {
                self.state = ReadyToSend;
                self.wake(shared);
            }
            (ReadyToSend, Transition::LoadPath(path)) => {
                let path = self.alternate_path(&path, shared)?;
                self.load_path(path)?;
            }
            (ReadyToSend, Transition::Migrate) => self.migrate(shared)?,
            (State::Error, Transition::Error) => {}
            (state, Transition::Error) if state != Reset => {
                self.stop_answers();
                self.flush(shared);
            }
            (state, _) => return Err(DeviceError::State { state: state.name() }),
        }
        Ok(Vec::new())
    }

    fn init(&mut self, init: &Init, shared: &mut Shared) -> Result<(), DeviceError> {
        let limit = |what, value: u64, limit: usize| DeviceError::Limit { what, value, limit: limit as u64 };
        let port = shared.port(init.port).ok_or(limit("port", init.port.into(), shared.ports.len()))?;
        self.pkey = *port.pkeys.get(usize::from(init.pkey_index)).ok_or(limit(
            "P_Key index",
            init.pkey_index.into(),
            port.pkeys.len().saturating_sub(1),
        ))?;
        if let Kind::Raw(raw) = &self.kind {
            shared.raws.enter(self.qpn, init.port, raw.next(), &shared.device)?;
        }
        self.port = init.port;
        self.rights.access = init.access;
        if let Kind::Ud(ud) = &mut self.kind {
            ud.qkey = init.qkey;
        }
        self.state = State::Init;
        Ok(())
    }

    fn ready_to_receive(&mut self, rtr: &Rtr, shared: &Shared) -> Result<(), DeviceError> {
        let (pkey, number, rights) = (self.pkey, self.port, self.rights);
        let port = shared.port(number).filter(|_| rtr.av.port == number).ok_or(DeviceError::Limit {
            what: "port of the address, the QP is on another port:",
            value: rtr.av.port.into(),
            limit: number.into(),
        })?;
        let mtu = rtr.path_mtu.bytes().map_or(usize::MAX, |bytes| bytes as usize);
        if mtu > port.mtu() {
            return Err(DeviceError::Limit {
                what: "path MTU code",
                value: rtr.path_mtu.0.into(),
                limit: port.attr.active_mtu.0.into(),
            });
        }
        let net = port.resolve(&rtr.av).map_err(|what| DeviceError::Unsupported { what })?;
        let path = PeerPath { port: number, net, pkey };
        match &mut self.kind {
            Kind::Rc(rc) => {
                let limit = shared.device.max_responder_resources;
                at_most("responder resources", rtr.max_dest_rd_atomic, limit)?;
                rc.ready_to_receive(rtr, path, rights, mtu);
            }
            Kind::Uc(uc) => uc.ready_to_receive(rtr, path, rights, mtu),
            Kind::Ud(_) | Kind::Raw(_) => return Err(NOT_CONNECTED),
        }
        self.state = State::ReadyToReceive;
        Ok(())
    }

    fn ready_to_send(&mut self, rts: &Rts, shared: &Shared) -> Result<(), DeviceError> {
        let alternate = rts.alternate.map(|path| self.alternate_path(&path, shared)).transpose()?;
        match &mut self.kind {
            Kind::Rc(rc) => {
                at_most("retry count", rts.retry_count, 7u8)?;
                at_most("RNR retry count", rts.rnr_retry, 7u8)?;
                at_most("initiator depth", rts.max_rd_atomic, shared.device.max_initiator_depth)?;
                rc.ready_to_send(rts, shared);
            }
            Kind::Uc(uc) => uc.ready_to_send(rts),
            Kind::Ud(_) | Kind::Raw(_) => return Err(NOT_CONNECTED),
        }
        self.state = State::ReadyToSend;
        alternate.map_or(Ok(()), |path| self.load_path(path))
    }

    /// Ends the draining if all is complete that was started. Datagrams, and messages of UC, are complete when they leave.
    fn finish_drain(&mut self, shared: &mut Shared) {
        let is_drained = match &self.kind {
            Kind::Rc(rc) => rc.requester.is_drained(),
            Kind::Uc(uc) => uc.is_drained(),
            Kind::Ud(_) | Kind::Raw(_) => true,
        };
        if self.state == State::Draining && is_drained {
            self.state = State::Drained;
            shared.device_event(DeviceEvent::SqDrained(self.qpn));
        }
    }

    /// Whether it is one without a peer.
    fn datagram(&self) -> Result<(), DeviceError> {
        match &self.kind {
            Kind::Ud(_) | Kind::Raw(_) => Ok(()),
            Kind::Rc(_) | Kind::Uc(_) => {
                Err(DeviceError::Unsupported { what: "this transition of a connected QP" })
            }
        }
    }

    /// Back to RESET: all work and all completions are gone, their buffers are returned.
    fn reset(&mut self, shared: &mut Shared) -> Vec<Buf> {
        let mut bufs = Vec::new();
        while let Some(work) = self.kind.pop_send() {
            bufs.extend(work.sg);
        }
        let receives = self.receives.drain();
        let mut taken = receives.len() as u32;
        bufs.extend(receives.flat_map(|wr| wr.sg));
        for id in [self.sq.cq, self.rq.cq] {
            if let Some(cq) = shared.cq(id) {
                taken += cq.purge(self.qpn, &mut bufs);
            }
        }
        if let Some(srq) = self.receives.srq().and_then(|srq| shared.srqs.get_mut(srq)) {
            srq.release(taken);
        }
        match &mut self.kind {
            Kind::Rc(rc) => **rc = Rc::new(),
            Kind::Uc(uc) => **uc = Uc::default(),
            Kind::Ud(ud) => **ud = Ud::default(),
            Kind::Raw(raw) => raw.reset(),
        }
        shared.raws.leave(self.qpn);
        (self.sq.used, self.rq.used) = (0, 0);
        self.state = State::Reset;
        shared.timers.remove(self.slot);
        bufs
    }

    /// Takes the QP out of everything shared.
    pub(super) fn dissolve(mut self, shared: &mut Shared) -> Vec<Buf> {
        let bufs = self.reset(shared);
        if self.ready {
            shared.ready.retain(|&slot| slot != self.slot);
        }
        if let Some(cq) = shared.cq(self.sq.cq) {
            cq.release(self.sq.places());
        }
        shared.release_receives(self.rq.cq, self.rq.places(), self.receives.srq());
        shared.memory.leave(self.rights.domain);
        bufs
    }

    /// To ERR: all work completes as flushed.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        self.state = State::Error;
        while let Some(work) = self.kind.pop_send() {
            work.fail(Status::WR_FLUSH_ERR, &self.sq, shared);
        }
        // What waits for the end of TimeWait in this state needs no memory for receives.
        let receives = self.receives.drain();
        if let Some(cq) = shared.cq(self.rq.cq) {
            cq.expect_flush(receives.len());
        }
        for RecvWr { id, sg } in receives {
            self.rq.plain(shared, CompletionOp::Recv, id, sg, Status::WR_FLUSH_ERR);
        }
        shared.timers.remove(self.slot);
        if self.receives.srq().is_some() {
            shared.device_event(DeviceEvent::LastWqeReached(self.qpn));
        }
    }

    /// To ERR by itself: the failed work request first, then the rest.
    fn fail(&mut self, failure: Failure, shared: &mut Shared) {
        if self.state == State::Error {
            // An answer that was still to be given cannot be: nothing is left to fail.
            return;
        }
        tracing::debug!(qpn = %self.qpn, ?failure, "QP failed");
        match failure {
            Failure::Send(status) => {
                self.stop_answers();
                if let Some(work) = self.kind.pop_send() {
                    work.fail(status, &self.sq, shared);
                }
            }
            Failure::Request { receive: Some(status), .. } => {
                if let Some(RecvWr { id, sg }) = self.receives.take_held() {
                    self.rq.plain(shared, CompletionOp::Recv, id, sg, status);
                }
            }
            Failure::Request { receive: None, .. } => {}
        }
        shared.counters.qp_errors += 1;
        shared.device_event(match failure {
            Failure::Send(_) => DeviceEvent::QpError(self.qpn),
            Failure::Request { blame: Blame::Access, .. } => DeviceEvent::QpAccessError(self.qpn),
            Failure::Request { blame: Blame::Request, .. } => DeviceEvent::QpRequestError(self.qpn),
        });
        self.flush(shared);
    }

    fn stop_answers(&mut self) {
        if let Kind::Rc(rc) = &mut self.kind {
            rc.responder.stop();
        }
    }

    /// Posts receives from the front of `work`.
    pub(super) fn post_recv(
        &mut self,
        work: &mut VecDeque<RecvWr>,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        if self.receives.srq().is_some() {
            return Err(PostError::Invalid { why: "the QP takes its receives from a shared queue" });
        }
        let posted = u32::try_from(work.len()).unwrap_or(u32::MAX);
        let fits = posted <= self.rq.max - self.rq.used
            && work.iter().all(|wr| receives::fits(wr, self.max_sge).is_ok());
        if fits && self.receives.own().is_empty() && !matches!(self.state, State::Reset | State::Error) {
            // All at once, as the first receives of a connection are.
            self.rq.used += posted;
            std::mem::swap(work, self.receives.own());
            return Ok(());
        }
        while let Some(wr) = work.front() {
            if self.state == State::Reset {
                return Err(PostError::State { state: self.state.name() });
            }
            receives::fits(wr, self.max_sge)?;
            if self.rq.used >= self.rq.max {
                return Err(PostError::Full);
            }
            let Some(wr) = work.pop_front() else { break };
            self.rq.used += 1;
            if self.state == State::Error {
                self.rq.plain(shared, CompletionOp::Recv, wr.id, wr.sg, Status::WR_FLUSH_ERR);
            } else {
                self.receives.own().push_back(wr);
            }
        }
        Ok(())
    }

    /// When the peer's last packet came.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        match &self.kind {
            Kind::Rc(rc) => rc.heard,
            Kind::Uc(_) | Kind::Ud(_) | Kind::Raw(_) => None,
        }
    }

    /// The port of a datagram or raw QP that has one.
    pub(super) fn datagram_port(&self) -> Result<u8, DeviceError> {
        match (&self.kind, self.state) {
            (Kind::Rc(_) | Kind::Uc(_), _) => {
                Err(DeviceError::Unsupported { what: "multicast to a connected QP" })
            }
            (Kind::Ud(_) | Kind::Raw(_), State::Reset) => Err(DeviceError::State { state: "RESET" }),
            (Kind::Ud(_) | Kind::Raw(_), _) => Ok(self.port),
        }
    }

    /// Puts the QP into the ring of those that may have packets to send, if it has.
    pub(super) fn wake(&mut self, shared: &mut Shared) {
        let can_send = match &self.kind {
            Kind::Rc(rc) => rc.can_send(self.state),
            Kind::Uc(uc) => uc.can_send(self.state),
            Kind::Ud(ud) => self.state == State::ReadyToSend && ud.can_send(),
            Kind::Raw(raw) => self.state == State::ReadyToSend && raw.can_send(),
        };
        if can_send && !self.ready {
            self.ready = true;
            shared.ready.push_back(self.slot);
        }
    }

    /// Appends the next packet to `out` and returns its length.
    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        shared: &mut Shared,
    ) -> Option<usize> {
        loop {
            let result = match &mut self.kind {
                Kind::Rc(rc) => rc.poll_transmit(now, self.state, &self.sq, out, shared),
                Kind::Uc(uc) => Ok(uc.poll_transmit(self.state, &mut self.sq, out, shared)),
                Kind::Ud(ud) if self.state == State::ReadyToSend => {
                    Ok(ud.poll_transmit(self.port, self.pkey, &mut self.sq, out, shared))
                }
                Kind::Raw(_) if self.state == State::ReadyToSend => Ok(self.poll_raw(out, shared)),
                Kind::Ud(_) | Kind::Raw(_) => Ok(None),
            };
            match result {
                Ok(len) => {
                    self.finish_drain(shared);
                    return len;
                }
                // What says so is sent next.
                Err(failure) => self.fail(failure, shared),
            }
        }
    }

    /// Appends packets that follow the last one in its message and are as long. How many.
    pub(super) fn go_on(&mut self, out: &mut Vec<u8>, run: Run, shared: &mut Shared) -> u32 {
        match &mut self.kind {
            Kind::Rc(rc) => rc.go_on(self.state, out, run, shared),
            Kind::Uc(_) | Kind::Ud(_) | Kind::Raw(_) => 0,
        }
    }

    /// What follows the last packet in its message is lost, too: the port is down. How many packets, none of which is made.
    pub(super) fn lose_rest(&mut self, shared: &mut Shared) -> u32 {
        match &mut self.kind {
            Kind::Rc(rc) => rc.responder.lose_rest(),
            Kind::Uc(uc) => uc.lose_rest(&mut self.sq, shared),
            Kind::Ud(_) | Kind::Raw(_) => 0,
        }
    }

    /// Handles a packet with this QP's number. How many of those behind it were handled with it.
    pub(super) fn handle_packet(&mut self, now: Instant, ingress: &Ingress<'_>, shared: &mut Shared) -> u32 {
        let transport = ingress.packet.bth().opcode.transport();
        let result = match (&mut self.kind, transport) {
            (Kind::Ud(_), _) if ingress.port != self.port => {
                shared.counters.drop_address += 1;
                Ok(0)
            }
            (Kind::Rc(rc), Transport::RC) => rc.handle_packet(
                now,
                self.state,
                ingress,
                &mut self.receives,
                (&mut self.sq, &self.rq),
                shared,
            ),
            (Kind::Uc(uc), Transport::UC) => {
                Ok(uc.handle_packet(self.state, ingress, &mut self.receives, &self.rq, shared))
            }
            (Kind::Ud(ud), Transport::UD) => {
                if self.state == State::ReadyToReceive || self.state.sends() {
                    ud.handle_packet(self.pkey, ingress, &mut self.receives, &self.rq, shared);
                } else {
                    shared.counters.drop_state += 1;
                }
                Ok(0)
            }
            _ => {
                shared.counters.drop_transport += 1;
                Ok(0)
            }
        };
        let behind = result.unwrap_or_else(|failure| {
            self.fail(failure, shared);
            0
        });
        self.finish_drain(shared);
        self.wake(shared);
        behind
    }

    /// To be called when the QP's timer comes up.
    pub(super) fn handle_timeout(&mut self, now: Instant, shared: &mut Shared) {
        if let Kind::Rc(rc) = &mut self.kind
            && let Err(status) = rc.handle_timeout(now, &self.sq, shared)
        {
            self.fail(Failure::Send(status), shared);
        }
        self.wake(shared);
    }
}

const NOT_CONNECTED: DeviceError = DeviceError::Unsupported { what: "this transition of a datagram QP" };
