//! A raw queue pair with its receives.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ibdev::qp::{Init, QpSpec, QpType, Transition};
use ibdev::{
    Access, Buf, Completion, CompletionQueue, Device, PostError, QueuePair, RawDest, RawFilter, RawSource,
    RecvWr, SendFlags, SendOp, SendWr,
};
use ibwire::{Gid, Lid, PathRecord, Psn, QKey, Rate};
use tokio::sync::Semaphore;

use super::{SubnetPort, at_once};
use crate::RawError;
use crate::backend::NotSent;
use crate::stats::{Counters, add, count};

/// Receives that wait unless the socket asks for others.
const RECEIVES: usize = 256;
/// Most receives of a socket.
const MOST_RECEIVES: usize = 8192;
/// Sends that may wait for the link.
const SENDS: u32 = 256;

/// A raw queue pair in RTS.
#[derive(Debug)]
pub(super) struct Queue {
    qp: Arc<dyn QueuePair>,
    received: Arc<dyn CompletionQueue>,
    sent: Arc<dyn CompletionQueue>,
    /// A completion queue wakes one task: whoever has this waits, and lets the next one look.
    turn: Semaphore,
    taking: Mutex<Taking>,
    /// Nobody posts between a failure and what it leads to: a queue pair that goes on already cannot be told to.
    sending: Mutex<()>,
    lost: AtomicU64,
    /// Bytes of all receives.
    room: usize,
}

#[derive(Debug, Default)]
struct Taking {
    /// Completions between the device and a batch.
    completions: Vec<Completion>,
    /// One of them was a failure: nothing comes behind it.
    has_failed: bool,
}

impl Queue {
    /// `room`: bytes of all receives together, if that is asked for.
    pub(super) fn open(
        port: &SubnetPort,
        kind: QpType,
        filter: RawFilter,
        longest: usize,
        room: Option<usize>,
    ) -> Result<Self, RawError> {
        let receives = room.map_or(RECEIVES, |bytes| bytes / longest).clamp(1, MOST_RECEIVES);
        let device = &port.device;
        let received = at_once(device.create_cq(receives as u32))?;
        let sent = at_once(device.create_cq(SENDS))?;
        let spec = QpSpec { send_cq: sent.clone(), ..QpSpec::new(kind, &received, SENDS, receives as u32) };
        let qp = at_once(device.domain().create_qp(spec))?;
        let init = Init { port: port.port, pkey_index: 0, access: Access::empty(), qkey: QKey::default() };
        at_once(qp.modify(init.into()))?;
        at_once(qp.set_raw_filter(filter))?;
        let mut work = (0..receives as u64).map(|id| RecvWr::new(id, Buf::unregistered(longest))).collect();
        qp.post_recv(&mut work).map_err(not_posted)?;
        at_once(qp.modify(Transition::DatagramRtr))?;
        at_once(qp.modify(Transition::DatagramRts { sq_psn: Psn::default() }))?;
        let (turn, taking, sending) = (Semaphore::new(1), Mutex::default(), Mutex::default());
        let (lost, room) = (AtomicU64::new(0), receives * longest);
        Ok(Self { qp, received, sent, turn, taking, sending, lost, room })
    }

    /// Gives up to `most` packets to `take`; false if there are none.
    pub(super) fn recv(
        &self,
        port: &SubnetPort,
        most: usize,
        mut take: impl FnMut(&[u8], RawSource),
    ) -> Result<bool, RawError> {
        let mut taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let Taking { completions, has_failed } = &mut *taking;
        if !*has_failed {
            self.received.poll(completions, most);
        }
        let mut again = VecDeque::with_capacity(completions.len());
        for completion in completions.drain(..) {
            let Completion { id, status, raw, mut sg, .. } = completion;
            match (raw.filter(|_| status.is_ok()), sg.pop()) {
                (Some(source), Some(buf)) => {
                    take(&buf, source);
                    again.push_back(RecvWr::new(id, buf));
                }
                _ => *has_failed = true,
            }
        }
        if again.is_empty() {
            // A device that is gone has flushed its queues, too.
            port.attr()?;
            return if *has_failed { Err(RawError::QueueFailed) } else { Ok(false) };
        }
        // What was received before a failure is handed out before that is said, as the next call does.
        if !*has_failed && self.qp.post_recv(&mut again).is_err() {
            *has_failed = true;
        }
        Ok(true)
    }

    /// Ends the queue pair as an error of the device does.
    #[cfg(test)]
    pub(super) fn fail(&self) {
        at_once(self.qp.modify(Transition::Error)).expect("to ERR from any state");
    }

    /// Bytes that there are for what was not received yet.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    pub(super) async fn readable(&self) -> Result<(), RawError> {
        let _turn = self.turn.acquire().await.map_err(|_| RawError::Closed)?;
        poll_fn(|cx| self.received.poll_notified(cx)).await;
        Ok(())
    }

    /// Sends in order, and says how many.
    pub(super) fn send(&self, mut work: VecDeque<SendWr>, counters: &Counters) -> Result<usize, NotSent> {
        let all = work.len();
        let _one = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = self.qp.post_send(&mut work).err();
        let mut failed = Vec::new();
        // Only failures complete, and with one all that was behind it.
        let lost = self.sent.poll(&mut failed, SENDS as usize);
        if lost > 0 {
            add(&counters.tx_faults, lost);
            let error = match at_once(self.qp.modify(Transition::SqResume)) {
                Ok(()) => RawError::SendFault { lost },
                Err(RawError::LinkGone) => RawError::LinkGone,
                Err(_) => RawError::QueueFailed,
            };
            return Err(error.into());
        }
        match (all - work.len(), refused) {
            (0, Some(PostError::Full)) => {
                count(&counters.tx_nobufs);
                Err(NotSent::NoBuffers)
            }
            (0, Some(error)) => Err(not_posted(error).into()),
            (sent, _) => Ok(sent),
        }
    }

    pub(super) fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), RawError> {
        at_once(self.qp.attach(mgid, mlid))
    }

    pub(super) fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), RawError> {
        at_once(self.qp.detach(mgid, mlid))
    }

    /// Adds what was lost since the last time.
    pub(super) fn note_drops(&self, counters: &Counters) {
        let Ok(raw) = self.qp.raw_counters() else { return };
        let lost = raw.no_receive + raw.too_long;
        let before = self.lost.fetch_max(lost, Ordering::AcqRel);
        add(&counters.rx_dropped, lost.saturating_sub(before) as usize);
    }

    /// Packets of groups that the queue pair is not attached to.
    pub(super) fn not_member(&self) -> u64 {
        self.qp.raw_counters().map_or(0, |raw| raw.not_member)
    }
}

/// A packet to be sent; nothing tells of its end but a failure.
pub(super) fn work(op: SendOp, parts: &[&[u8]]) -> SendWr {
    let mut buf = Buf::unregistered(parts.iter().map(|part| part.len()).sum());
    buf.clear();
    parts.iter().for_each(|part| buf.put_slice(part));
    SendWr { flags: SendFlags::empty(), ..SendWr::new(0, op, buf) }
}

/// The destination of what goes by a path.
pub(super) fn dest(path: &PathRecord) -> RawDest {
    RawDest { dlid: path.dlid, sl: path.sl, path_bits: 0, rate: Rate::PORT_CURRENT }
}

fn not_posted(error: PostError) -> RawError {
    match error {
        PostError::Gone => RawError::LinkGone,
        PostError::TooLong { len, limit } => RawError::TooLarge { len, max: limit },
        PostError::Invalid { why } => RawError::InvalidDest(why),
        _ => RawError::QueueFailed,
    }
}
