//! Posting sends: what is checked, and what is kept of a work request until it completes.

use std::collections::VecDeque;

use ibdev::{CompletionOp, PostError, SendFlags, SendOp, SendWr, SgList, Status};

use super::qp::{Kind, Qp};
use super::raw::RawAddress;
use super::segment::Request;
use super::shared::{Arrival, Shared, Side};
use super::ud::{Address, Ud};

/// A work request on the send queue: what its completion needs. How it is carried out is the transport's to know.
#[derive(Debug)]
pub(super) struct Work {
    id: u64,
    op: CompletionOp,
    pub(super) flags: SendFlags,
    /// The local memory.
    pub(super) sg: SgList,
}

impl Work {
    /// Ends it well, with `len` bytes read. If it is not signaled its place is free at once, and its buffers go home once
    /// nobody holds a lock that their home may want ([`Engine::take_released`](super::Engine::take_released)).
    pub(super) fn succeed(self, len: usize, side: &mut Side, shared: &mut Shared) {
        if self.flags.contains(SendFlags::SIGNALED) {
            let arrival = Arrival { op: self.op, len: len as u32, imm: None, from: None, raw: None };
            side.complete(shared, self.id, self.sg, Status::SUCCESS, arrival);
        } else {
            side.used -= 1;
            shared.released.extend(self.sg);
        }
    }

    pub(super) fn is_signaled(&self) -> bool {
        self.flags.contains(SendFlags::SIGNALED)
    }

    /// Length of the message in bytes, the sum of the buffers' lengths.
    pub(super) fn message_len(&self) -> usize {
        self.sg.iter().map(|buf| buf.len()).sum()
    }

    /// Ends it with an error, signaled or not.
    pub(super) fn fail(self, status: Status, side: &Side, shared: &mut Shared) {
        side.plain(shared, self.op, self.id, self.sg, status);
    }
}

/// What a transport carries out.
#[derive(Debug)]
enum Operation {
    Message(Request),
    Datagram(Address),
    Raw(RawAddress),
}

impl Operation {
    const fn op(&self) -> CompletionOp {
        match self {
            Self::Message(request) => request.op(),
            Self::Datagram(_) | Self::Raw(_) => CompletionOp::Send,
        }
    }
}

impl Qp {
    /// Posts sends from the front of `work`.
    pub(super) fn post_send(
        &mut self,
        work: &mut VecDeque<SendWr>,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        let result = self.queue_sends(work, shared);
        self.wake(shared);
        result
    }

    fn queue_sends(&mut self, queue: &mut VecDeque<SendWr>, shared: &mut Shared) -> Result<(), PostError> {
        while let Some(wr) = queue.front() {
            if !self.state.takes_sends() {
                return Err(PostError::State { state: self.state.name() });
            }
            if self.sq.used >= self.sq.max {
                return Err(PostError::Full);
            }
            let operation = self.check(wr, shared)?;
            let Some(SendWr { id, flags, sg, .. }) = queue.pop_front() else { break };
            let work = Work { id, op: operation.op(), flags, sg };
            self.sq.used += 1;
            match (&mut self.kind, operation) {
                _ if self.state.flushes_sends() => work.fail(Status::WR_FLUSH_ERR, &self.sq, shared),
                (Kind::Ud(ud), Operation::Datagram(to)) => ud.post(work, to),
                (Kind::Rc(rc), Operation::Message(request)) => rc.requester.post(work, request),
                (Kind::Uc(uc), Operation::Message(request)) => uc.post(work, request),
                (Kind::Raw(raw), Operation::Raw(to)) => raw.post(work, to),
                // `check` has matched operation and transport.
                (Kind::Ud(_) | Kind::Raw(_), Operation::Message(_))
                | (Kind::Rc(_) | Kind::Uc(_) | Kind::Raw(_), Operation::Datagram(_))
                | (Kind::Rc(_) | Kind::Uc(_) | Kind::Ud(_), Operation::Raw(_)) => {}
            }
        }
        Ok(())
    }

    /// What a work request asks of the transport.
    ///
    /// # Errors
    /// It is not for this QP, or beyond a limit.
    fn check(&self, wr: &SendWr, shared: &Shared) -> Result<Operation, PostError> {
        at_most("number of buffers", wr.sg.len(), self.max_sge)?;
        let len = wr.message_len();
        if wr.flags.contains(SendFlags::INLINE) {
            longest(len, shared.device.max_inline_data as usize)?;
        }
        let request = match (&self.kind, &wr.op) {
            (Kind::Ud(_), SendOp::Datagram { to, imm }) => {
                return Ud::address(self.port, to, *imm, len, shared).map(Operation::Datagram);
            }
            (Kind::Raw(raw), op) => {
                let (to, ether_type) = match op {
                    SendOp::RawIpv6 { to } => (to, None),
                    SendOp::RawEtherType { to, ether_type } => (to, Some(*ether_type)),
                    _ => return Err(invalid("not an operation of a raw QP")),
                };
                return raw.address(self.port, to, ether_type, len, shared).map(Operation::Raw);
            }
            (Kind::Ud(_), _) => return Err(invalid("not an operation of a datagram QP")),
            (Kind::Uc(_), SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }) => {
                return Err(invalid("not an operation of an unreliable connection"));
            }
            (Kind::Rc(_) | Kind::Uc(_), op) => {
                Request::of(op).ok_or(invalid("not an operation of a connected QP"))?
            }
        };
        longest(len, shared.device.max_message as usize)?;
        if request.has_result() {
            if wr.flags.contains(SendFlags::INLINE) {
                return Err(invalid("reads and atomics cannot be inline"));
            }
            if let Kind::Rc(rc) = &self.kind {
                at_most("reads and atomics outstanding", 1, rc.requester.max_rd_atomic().into())?;
            }
        }
        if request.is_atomic() {
            at_most("number of an atomic's buffers", wr.sg.len(), 1)?;
            if len < size_of::<u64>() {
                let what = "too short for the result of an atomic: bytes";
                return Err(PostError::Limit { what, value: len as u64, limit: size_of::<u64>() as u64 });
            }
        }
        Ok(Operation::Message(request))
    }
}

fn invalid(why: &'static str) -> PostError {
    PostError::Invalid { why }
}

fn longest(len: usize, limit: usize) -> Result<(), PostError> {
    if len > limit { Err(PostError::TooLong { len, limit }) } else { Ok(()) }
}

fn at_most(what: &'static str, value: usize, limit: usize) -> Result<(), PostError> {
    if value > limit {
        return Err(PostError::Limit { what, value: value as u64, limit: limit as u64 });
    }
    Ok(())
}
