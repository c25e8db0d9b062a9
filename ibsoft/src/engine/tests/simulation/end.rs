//! One end of a connection: what it posts, and what it makes of completions.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use ibdev::{
    Access, Buf, Completion, CompletionOp, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, SgList,
    SharedMemory, Status,
};
use ibwire::{Qpn, RKey};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::super::pattern;
use super::model::{Effect, Model, Place};

/// Work requests that an end keeps posted.
pub(super) const DEPTH: usize = 16;
/// Buffers of a work request at most.
pub(super) const MOST_BUFS: usize = 4;
/// Unsignaled work requests in a row.
const UNSIGNALED: u32 = 5;

/// A region that the peer may use.
#[derive(Debug)]
pub(super) struct Exposed {
    pub(super) memory: SharedMemory,
    pub(super) at: RemoteAddr,
    pub(super) access: Access,
    /// Its bytes when it was deregistered.
    pub(super) gone: Option<Vec<u8>>,
}

impl Exposed {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.len()];
        self.memory.copy_to(0, &mut bytes).unwrap();
        bytes
    }
}

/// An addition to a word that all ends share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// The node that has it, and which it is.
    pub(super) word: (usize, usize),
    pub(super) add: u64,
    /// What it was before, once that is known.
    pub(super) before: Option<u64>,
}

/// What an end knows of the memory that it may use.
#[derive(Debug)]
pub(super) struct Reach<'a> {
    /// The peer's regions.
    pub(super) regions: &'a [Exposed],
    /// The words that all share: whose they are, where they begin, how many.
    pub(super) counters: (usize, RemoteAddr, usize),
}

/// Receives of a QP alone, or of a shared queue.
#[derive(Debug, Default)]
pub(super) struct Posted {
    next: u64,
    open: BTreeSet<u64>,
}

impl Posted {
    /// A receive with room for `len` bytes.
    pub(super) fn draw(&mut self, rng: &mut ChaCha8Rng, len: usize) -> RecvWr {
        let id = self.next;
        self.next += 1;
        self.open.insert(id);
        RecvWr { id, sg: cut(rng, len).into_iter().map(|part| Buf::unregistered(part.len())).collect() }
    }

    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// A receive has completed. Those of a QP alone do so in order.
    fn close(&mut self, id: u64, in_order: bool) -> Result<(), String> {
        if in_order && self.open.first() != Some(&id) {
            return Err(format!("receive {id} completes, {:?} is first", self.open.first()));
        }
        self.open.remove(&id).then_some(()).ok_or_else(|| format!("receive {id} is not posted"))
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) node: usize,
    pub(super) qpn: Qpn,
    /// What it does to its peer.
    pub(super) model: Model,
    pub(super) regions: Vec<Exposed>,
    /// Receives of its own; none if the node's queue is used.
    pub(super) receives: Option<Posted>,
    /// Work requests to post yet.
    pub(super) left: u64,
    pub(super) longest: usize,
    pub(super) claims: VecDeque<(u64, Claim)>,
    pub(super) claimed: Vec<Claim>,
    ops: VecDeque<(u64, CompletionOp)>,
    unsignaled: u32,
    /// How the first work request to fail ended, if the end did not fail by itself.
    pub(super) failed: Option<Status>,
    /// The next work request that will be flushed.
    flushed: u64,
}

impl End {
    pub(super) fn new(node: usize, qpn: Qpn, left: u64, longest: usize, has_receives: bool) -> Self {
        Self {
            node,
            qpn,
            model: Model::new(Vec::new()),
            regions: Vec::new(),
            receives: has_receives.then(Posted::default),
            left,
            longest,
            claims: VecDeque::new(),
            claimed: Vec::new(),
            ops: VecDeque::new(),
            unsignaled: 0,
            failed: None,
            flushed: 0,
        }
    }

    /// One past the last work request that was flushed, after a failure.
    pub(super) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Whether there is nothing to be expected of it any more.
    pub(super) fn is_through(&self) -> bool {
        self.failed.is_some() || self.left == 0 && self.model.in_flight() == 0
    }

    /// The next work request.
    pub(super) fn draw(&mut self, rng: &mut ChaCha8Rng, reach: &Reach<'_>) -> SendWr {
        let number = self.model.posted();
        let imm = rng.random_bool(0.4).then(|| rng.random());
        let mut takes = None;
        let mut is_counted = None;
        let (op, effect, len) = match rng.random_range(0..10) {
            0..=2 => {
                let len = self.len(rng);
                takes = Some((false, len, imm));
                (SendOp::Send { imm }, Effect::Nothing, len)
            }
            3..=5 => {
                let (to, effect, len) = match self.place(rng, reach, Access::REMOTE_WRITE) {
                    Some((to, place)) => (to, Effect::Write(place.clone()), place.bytes.len()),
                    None => (junk(rng), Effect::Nothing, 0),
                };
                takes = imm.is_some().then_some((true, len, imm));
                (SendOp::Write { to, imm }, effect, len)
            }
            6 | 7 => match self.place(rng, reach, Access::REMOTE_READ) {
                Some((from, place)) => {
                    (SendOp::Read { from }, Effect::Read(place.clone()), place.bytes.len())
                }
                None => (SendOp::Read { from: junk(rng) }, Effect::Nothing, 0),
            },
            8 => match self.word(rng, reach) {
                Some((at, place)) if rng.random_bool(0.5) => {
                    let add = rng.random();
                    (SendOp::FetchAdd { at, add }, Effect::FetchAdd { at: place, add }, 8)
                }
                Some((at, place)) => {
                    // Zero is what many words have.
                    let compare = if rng.random_bool(0.5) { 0 } else { rng.random() };
                    let swap = if rng.random_bool(0.3) { 0 } else { rng.random() };
                    let effect = Effect::CompareSwap { at: place, compare, swap };
                    (SendOp::CompareSwap { at, compare, swap }, effect, 8)
                }
                None => (SendOp::Read { from: junk(rng) }, Effect::Nothing, 0),
            },
            _ => {
                let (node, at, words) = reach.counters;
                let word = rng.random_range(0..words);
                let add = rng.random_range(1..1000);
                is_counted = Some(Claim { word: (node, word), add, before: None });
                let at = RemoteAddr { addr: at.addr + 8 * word as u64, ..at };
                (SendOp::FetchAdd { at, add }, Effect::Nothing, 8)
            }
        };

        let mut flags = SendFlags::empty();
        let is_last = self.left == 1;
        if is_last || is_counted.is_some() || self.unsignaled == UNSIGNALED || rng.random_bool(0.5) {
            flags |= SendFlags::SIGNALED;
            self.unsignaled = 0;
        } else {
            self.unsignaled += 1;
        }
        flags.set(SendFlags::FENCE, rng.random_bool(0.2));
        flags.set(SendFlags::SOLICITED, rng.random_bool(0.2));
        let is_atomic = matches!(op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        let brings = is_atomic || matches!(op, SendOp::Read { .. });
        flags.set(SendFlags::INLINE, !brings && len <= 64 && rng.random_bool(0.5));
        let parts = if is_atomic { std::iter::once(0..8).collect() } else { cut(rng, len) };
        let sg: SgList = parts
            .into_iter()
            .map(|part| {
                let mut buf = Buf::unregistered(part.len());
                if !brings {
                    buf.iter_mut().zip(part).for_each(|(byte, i)| *byte = pattern(number, i));
                }
                buf
            })
            .collect();

        let completion = match op {
            SendOp::Write { .. } => CompletionOp::Write,
            SendOp::Read { .. } => CompletionOp::Read,
            SendOp::FetchAdd { .. } => CompletionOp::FetchAdd,
            SendOp::CompareSwap { .. } => CompletionOp::CompareSwap,
            _ => CompletionOp::Send,
        };
        self.ops.push_back((number, completion));
        self.claims.extend(is_counted.map(|claim| (number, claim)));
        let is_signaled = flags.contains(SendFlags::SIGNALED);
        self.model.post(effect, is_signaled, flags.contains(SendFlags::FENCE), takes);
        self.left -= 1;
        SendWr { id: number, op, sg, flags }
    }

    fn len(&self, rng: &mut ChaCha8Rng) -> usize {
        match rng.random_range(0..4) {
            0 => rng.random_range(0..=64),
            1 => self.longest,
            _ => rng.random_range(0..=self.longest),
        }
    }

    /// Some bytes of a region of the peer that allows this.
    fn place(&self, rng: &mut ChaCha8Rng, reach: &Reach<'_>, need: Access) -> Option<(RemoteAddr, Place)> {
        let region = rng.random_range(0..reach.regions.len());
        let exposed = &reach.regions[region];
        let room = exposed.memory.len();
        let len = self.len(rng).min(room);
        if len == 0 || !exposed.access.contains(need) {
            return None;
        }
        let start = rng.random_range(0..=room - len);
        let at = RemoteAddr { addr: exposed.at.addr + start as u64, ..exposed.at };
        Some((at, Place { region, bytes: start..start + len }))
    }

    fn word(&self, rng: &mut ChaCha8Rng, reach: &Reach<'_>) -> Option<(RemoteAddr, Place)> {
        let region = rng.random_range(0..reach.regions.len());
        let exposed = &reach.regions[region];
        let words = exposed.memory.len() / 8;
        if words == 0 || !exposed.access.contains(Access::REMOTE_ATOMIC) {
            return None;
        }
        // Few, so that they meet.
        let start = 8 * rng.random_range(0..words.min(4));
        let at = RemoteAddr { addr: exposed.at.addr + start as u64, ..exposed.at };
        Some((at, Place { region, bytes: start..start + 8 }))
    }

    /// One of its sends has completed.
    pub(super) fn sent(&mut self, completion: &Completion, peer: &[Exposed]) -> Result<(), String> {
        let number = completion.id;
        while self.ops.front().is_some_and(|&(posted, _)| posted < number) {
            self.ops.pop_front();
        }
        let posted = self.ops.pop_front();
        if posted != Some((number, completion.op)) {
            return Err(format!("{completion:?} of {posted:?}"));
        }
        if self.failed.is_some() {
            let in_turn = completion.status == Status::WR_FLUSH_ERR && number == self.flushed;
            self.flushed += 1;
            return in_turn
                .then_some(())
                .ok_or_else(|| format!("{completion:?}, {} is next", self.flushed - 1));
        }
        if !completion.status.is_ok() {
            self.model.retire(number)?;
            self.flushed = number + 1;
            self.failed = Some(completion.status);
            let place = self.model.effect(number).and_then(Effect::place);
            let is_gone = place.is_some_and(|place| peer[place.region].gone.is_some());
            return match completion.status {
                Status::REM_ACCESS_ERR if !is_gone => Err(format!("{number} may do what it does")),
                Status::REM_ACCESS_ERR | Status::RETRY_EXC_ERR | Status::WR_FLUSH_ERR => Ok(()),
                other => Err(format!("{number}: {other}")),
            };
        }
        let result: Vec<u8> = completion.sg.iter().flat_map(|buf| buf.iter().copied()).collect();
        if completion.op == CompletionOp::Read && completion.len as usize != result.len() {
            return Err(format!("{completion:?}"));
        }
        if self.claims.front().is_some_and(|&(posted, _)| posted == number)
            && let Some((_, mut claim)) = self.claims.pop_front()
        {
            claim.before = Some(u64::from_ne_bytes(result[..8].try_into().unwrap()));
            self.claimed.push(claim);
        }
        self.model.complete(number, &result)
    }

    /// One of its receives has completed, with what `peer` has sent; `others` are the node's receives.
    pub(super) fn received(
        &mut self,
        completion: &Completion,
        peer: &mut Model,
        others: &mut Posted,
    ) -> Result<(), String> {
        let in_order = self.receives.is_some();
        self.receives.as_mut().unwrap_or(others).close(completion.id, in_order)?;
        if !completion.status.is_ok() {
            // The sends of the same end say why, unless there is none.
            if self.failed.is_none() {
                self.flushed = self.model.posted();
            }
            let status = self.failed.get_or_insert(Status::WR_FLUSH_ERR);
            let is_flushed = completion.status == Status::WR_FLUSH_ERR;
            return is_flushed.then_some(()).ok_or_else(|| format!("{completion:?} after {status}"));
        }
        let arrival = peer.arrivals.pop_front().ok_or_else(|| format!("{completion:?} of nothing"))?;
        let op = if arrival.is_write { CompletionOp::RecvWrite } else { CompletionOp::Recv };
        if (completion.op, completion.len as usize, completion.imm) != (op, arrival.len, arrival.imm) {
            return Err(format!("{completion:?} of {arrival:?}"));
        }
        let bytes = completion.sg.iter().flat_map(|buf| buf.iter().copied());
        let sent = if arrival.is_write { 0 } else { arrival.len };
        if !bytes.eq((0..sent).map(|i| pattern(arrival.number, i))) {
            return Err(format!("other bytes than those of {arrival:?}"));
        }
        // What was written before is there.
        match arrival.seen {
            Some(place) if self.regions[place.region].gone.is_none() => {
                let mut actual = vec![0; place.bytes.len()];
                self.regions[place.region].memory.copy_to(place.bytes.start, &mut actual).unwrap();
                peer.check(&place, &actual, arrival.number + 1, false)
            }
            _ => Ok(()),
        }
    }
}

/// Ranges that make up 0..len, some of them empty.
fn cut(rng: &mut ChaCha8Rng, len: usize) -> Vec<Range<usize>> {
    let mut cuts: Vec<_> = (1..rng.random_range(1..=MOST_BUFS)).map(|_| rng.random_range(0..=len)).collect();
    cuts.sort_unstable();
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    starts.zip(cuts.iter().copied().chain([len])).map(|(start, end)| start..end).collect()
}

/// Where nothing is.
fn junk(rng: &mut ChaCha8Rng) -> RemoteAddr {
    RemoteAddr { addr: rng.random(), rkey: RKey(rng.random()) }
}
