//! Where a connection's receives come from, and what has arrived in them.

use std::collections::VecDeque;
use std::sync::Arc;

use ibdev::{Buf, Completion, CompletionOp, PostError, QueuePair, RecvWr, SgList, Status};

use super::recv_pool::RecvPool;
use crate::proto::ConnHandle;
use crate::shared::Shared;
use crate::shared_recv::SharedQueue;

/// The id of every receive into a buffer that is posted again; a send's is its key in the slab.
pub(crate) const RECV_ID: u64 = u64::MAX;
/// The id of every receive into a buffer that the program gave.
const GIVEN_ID: u64 = u64::MAX - 1;

/// The id of every write that asks whether the peer is there.
pub(super) const KEEPALIVE_ID: u64 = u64::MAX - 2;

/// Whether a completion with this id is that of a receive.
pub(super) const fn is_recv(id: u64) -> bool {
    id >= GIVEN_ID
}

/// A message that was received and not read yet.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) buf: Buf,
    pub(crate) imm: Option<u32>,
}

/// The receives of one connection and its unread messages.
#[derive(Debug)]
pub(super) struct Receives {
    from: Source,
    inbox: VecDeque<Arrived>,
    /// Receives posted into buffers that the program gave.
    given: u32,
    /// The most of them.
    max_given: u32,
    /// Nobody will read any more.
    unwanted: bool,
}

/// Where buffers are posted.
#[derive(Debug)]
pub(super) enum Source {
    /// To the connection's own queue pair.
    Own(Arc<RecvPool>),
    /// To a queue that other connections take from too.
    Shared(Arc<SharedQueue>),
    /// Nowhere any more.
    Released,
}

/// What came of a receive.
#[derive(Debug)]
pub(super) enum Received {
    /// A message of so many bytes, which is in the inbox.
    Message(u64),
    /// A message of so many bytes that nobody will read.
    Unread(u64, Buf),
    /// A failure, and buffers for [`Receives::retire`].
    Failed(Status, SgList),
    /// A failure, and buffers that are not the connection's own, to be dropped.
    GivenFailed(Status, SgList),
}

impl Receives {
    pub(super) fn new(from: Source, max_given: u32) -> Self {
        Self { from, inbox: VecDeque::new(), given: 0, max_given, unwanted: false }
    }

    /// From here on the driver posts what comes home, if nobody else does.
    pub(super) fn attach(&self, shared: &Arc<Shared>, conn: ConnHandle) {
        if let Source::Own(pool) = &self.from {
            pool.attach(shared, conn);
        }
    }

    /// Posts the first buffers.
    pub(super) fn post_first(&mut self, qp: &dyn QueuePair, work: VecDeque<RecvWr>) -> Result<(), PostError> {
        match &self.from {
            Source::Own(pool) => pool.post(qp, work),
            Source::Shared(_) | Source::Released => Ok(()),
        }
    }

    /// Posts the buffers that came home.
    pub(super) fn repost(&self, qp: &dyn QueuePair) {
        match &self.from {
            Source::Own(pool) => {
                let returned = pool.take_returned();
                if let Err(error) = pool.post(qp, returned) {
                    tracing::debug!(%error, "receive buffers not posted");
                }
            }
            Source::Shared(queue) => queue.refill(),
            Source::Released => {}
        }
    }

    /// How many buffers of the program may be posted at once; `None` where none may.
    pub(super) fn max_given(&self) -> Option<u32> {
        matches!(self.from, Source::Own(_)).then_some(self.max_given)
    }

    /// Posts a buffer of the program.
    pub(super) fn post_given(&mut self, qp: &dyn QueuePair, buf: Buf) -> Result<(), (PostError, Buf)> {
        if self.given >= self.max_given {
            return Err((PostError::Full, buf));
        }
        let mut work = VecDeque::from([RecvWr::new(GIVEN_ID, buf)]);
        let result = qp.post_recv(&mut work);
        match (result, work.pop_front().and_then(|wr| wr.sg.into_iter().next())) {
            (Err(error), Some(buf)) => Err((error, buf)),
            _ => {
                self.given += 1;
                Ok(())
            }
        }
    }

    /// Takes a completion of the receive side.
    pub(super) fn complete(&mut self, completion: Completion) -> Received {
        let given = completion.id == GIVEN_ID;
        match &self.from {
            _ if given => self.given -= 1,
            Source::Own(pool) => pool.sub_posted(),
            Source::Shared(_) | Source::Released => {}
        }
        let (status, op, imm) = (completion.status, completion.op, completion.imm);
        let len = u64::from(completion.len);
        if !status.is_ok() {
            return match &self.from {
                Source::Own(_) if !given => Received::Failed(status, completion.sg),
                _ => Received::GivenFailed(status, completion.sg),
            };
        }
        let Some(mut buf) = completion.sg.into_iter().next() else {
            debug_assert!(false, "a receive without its buffer");
            return Received::Failed(Status::GENERAL_ERR, SgList::new());
        };
        // What a peer wrote is in the region, not here.
        let len = if op == CompletionOp::RecvWrite { 0 } else { len };
        buf.set_filled(len as usize);
        let buf = match &self.from {
            Source::Own(pool) if !given => pool.lend(buf),
            _ => buf,
        };
        if self.unwanted {
            return Received::Unread(len, buf);
        }
        self.inbox.push_back(Arrived { buf, imm });
        Received::Message(len)
    }

    /// Keeps the connection's own buffers for others.
    pub(super) fn retire(&self, bufs: impl IntoIterator<Item = Buf>) {
        if let Source::Own(pool) = &self.from {
            pool.retire(bufs);
        }
    }

    /// The oldest message that was not read.
    pub(super) fn next_message(&mut self) -> Option<Arrived> {
        self.inbox.pop_front()
    }

    /// How many messages were not read.
    pub(super) fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// Nobody will read any more; what was not read.
    pub(super) fn discard(&mut self) -> impl Iterator<Item = Buf> + use<> {
        self.unwanted = true;
        std::mem::take(&mut self.inbox).into_iter().map(|arrived| arrived.buf)
    }

    /// Nothing is posted from here on.
    pub(super) fn release(&mut self) -> Source {
        if let Source::Own(pool) = &self.from {
            pool.close();
        }
        std::mem::replace(&mut self.from, Source::Released)
    }
}
