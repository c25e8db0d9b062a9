//! Writes of no length that ask whether the peer is still there.

use std::collections::VecDeque;
use std::time::Duration;

use ibdev::{Buf, Completion, PostError, RemoteAddr, SendFlags, SendOp, SendWr, Status};
use ibwire::RKey;

use super::{Queues, Totals};
use crate::data::Fault;
use crate::data::receives::KEEPALIVE_ID;
use crate::keepalive::{MOST_WRITES, Sign};

/// What has become of writes whose completions are needed.
#[derive(Debug, Default)]
pub(super) struct Asked {
    under_way: u32,
    answered: u64,
}

impl Queues {
    /// What is known of the peer's life.
    pub(crate) fn sign_of_life(&mut self) -> Sign {
        let told = self.qp().map(|qp| qp.last_heard());
        if let Some(Ok(heard)) = told {
            return Sign::At(heard);
        }
        self.drain();
        let counters = &self.counters;
        let count = counters.messages_sent
            + counters.messages_received
            + counters.writes
            + counters.reads
            + counters.atomics
            + self.asked.answered;
        Sign::Completions { count, may_wait: self.is_sending() }
    }

    /// Asks. If the send queue is full, what is in it asks as well.
    pub(crate) fn post_keepalive(&mut self) {
        let Some(device) = &self.device else { return };
        // A completion wakes whoever waits, so there is none where none is needed.
        let needed = device.qp.last_heard().is_err();
        if needed && self.asked.under_way >= MOST_WRITES {
            return;
        }
        let to = RemoteAddr { addr: 0, rkey: RKey(0) };
        let wr = SendWr::new(KEEPALIVE_ID, SendOp::Write { to, imm: None }, Buf::unregistered(0));
        let flags = if needed { SendFlags::SIGNALED } else { SendFlags::empty() };
        match device.qp.post_send(&mut VecDeque::from([SendWr { flags, ..wr }])) {
            Ok(()) => {
                self.asked.under_way += u32::from(needed);
                self.counters.keepalives_sent += 1;
                Totals::add(&self.totals.keepalives_sent, 1);
            }
            Err(PostError::Full) => {}
            // Otherwise a peer that cannot be asked would count as silent.
            Err(PostError::Invalid { why }) => {
                tracing::debug!(why, "the device cannot ask");
                self.failed(Status::LOC_QP_OP_ERR);
            }
            Err(error) => tracing::debug!(%error, "keepalive not posted"),
        }
    }

    pub(super) fn keepalive_completed(&mut self, completion: &Completion) {
        let status = completion.status;
        if !status.is_ok() {
            return self.failed(status);
        }
        self.asked.under_way = self.asked.under_way.saturating_sub(1);
        self.asked.answered += 1;
    }

    /// The peer was silent for so long that the connection is over.
    pub(crate) fn silent(&mut self, silence: Duration) {
        self.broken.get_or_insert(Fault::Silence(silence));
    }
}
