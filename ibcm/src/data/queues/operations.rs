//! Operations that are in a send queue, and their results until somebody fetches them.

use ibdev::{Buf, Completion, SgList, Status};
use slab::Slab;

use super::Shelf;
use crate::data::request::Kind;

/// Operations by their key, which is the id of their work request.
#[derive(Debug, Default)]
pub(super) struct Operations {
    slab: Slab<Operation>,
    /// How many the device holds.
    outstanding: u32,
    /// For how many of those nobody waits.
    detached: u32,
}

#[derive(Debug)]
enum Operation {
    Posted(Pending),
    /// Nobody waits for it any more.
    Detached(Pending),
    Done(Done),
}

/// What is known of a posted operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) kind: Kind,
    /// If the buffer is one of the connection's own: where it goes.
    pub(super) own: Option<Shelf>,
    /// Bytes of the message, or of what is read.
    pub(super) len: usize,
}

/// A completed operation.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: Status,
    /// The buffer that was given.
    pub(crate) buf: Option<Buf>,
    /// What an atomic found.
    pub(crate) value: u64,
}

/// What a completion leaves to be done.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pending: Pending,
    /// A buffer of the connection's own.
    pub(super) own: Option<(Shelf, Buf)>,
    /// A buffer that nobody waits for.
    pub(super) unwanted: Option<Buf>,
}

impl Operations {
    /// How many the device holds.
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether the device holds any that nobody waits for.
    pub(super) fn has_detached(&self) -> bool {
        self.detached > 0
    }

    /// The key of the next one.
    pub(super) fn next_key(&self) -> usize {
        self.slab.vacant_key()
    }

    /// The next one is with the device.
    pub(super) fn posted(&mut self, pending: Pending) -> usize {
        self.outstanding += 1;
        self.slab.insert(Operation::Posted(pending))
    }

    /// Takes a completion. An id that is not that of a posted operation gives its buffers back.
    pub(super) fn complete(&mut self, completion: Completion) -> Result<Ended, SgList> {
        let key = completion.id as usize;
        let operation = self.slab.get_mut(key);
        let Some(Operation::Posted(pending) | Operation::Detached(pending)) = operation else {
            return Err(completion.sg);
        };
        let pending = *pending;
        self.outstanding -= 1;
        let status = completion.status;
        let (mut buf, mut value) = (completion.into_buf(), 0);
        match (&mut buf, pending.kind) {
            (Some(buf), Kind::Atomic) => {
                value = buf.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
            }
            // Part of it may be there, and part of what was there before.
            (Some(buf), Kind::Read) if !status.is_ok() => buf.clear(),
            _ => {}
        }
        let own = match pending.own {
            Some(shelf) => buf.take().map(|buf| (shelf, buf)),
            None => None,
        };
        let mut unwanted = None;
        match &mut self.slab[key] {
            Operation::Detached(_) => {
                if !status.is_ok() {
                    tracing::debug!(%status, "a detached operation failed");
                }
                unwanted = buf;
                self.detached -= 1;
                self.slab.remove(key);
            }
            operation => *operation = Operation::Done(Done { status, buf, value }),
        }
        Ok(Ended { pending, own, unwanted })
    }

    /// The result of an operation, if it is there.
    pub(super) fn take_done(&mut self, key: usize) -> Option<Done> {
        match self.slab.get(key)? {
            Operation::Done(_) => match self.slab.remove(key) {
                Operation::Done(done) => Some(done),
                Operation::Posted(_) | Operation::Detached(_) => None,
            },
            _ => None,
        }
    }

    /// Nobody waits for this one any more; gives its buffer if it is done.
    pub(super) fn detach(&mut self, key: usize) -> Option<Buf> {
        match self.slab.get_mut(key)? {
            Operation::Posted(pending) => {
                let pending = *pending;
                self.slab[key] = Operation::Detached(pending);
                self.detached += 1;
                None
            }
            _ => match self.slab.remove(key) {
                Operation::Done(done) => done.buf,
                Operation::Posted(_) | Operation::Detached(_) => None,
            },
        }
    }

    /// Ends operations whose completions will never come.
    pub(super) fn flush(&mut self) {
        (self.outstanding, self.detached) = (0, 0);
        self.slab.retain(|_, operation| match operation {
            Operation::Posted(_) => {
                let done = Done { status: Status::WR_FLUSH_ERR, buf: None, value: 0 };
                *operation = Operation::Done(done);
                true
            }
            Operation::Detached(_) => false,
            Operation::Done(_) => true,
        });
    }
}
