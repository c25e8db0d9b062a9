//! Work requests of the contract as libibverbs takes them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibdev::qp::QpType;
use ibdev::{Buf, CompletionOp, PostError, RecvWr, SendFlags, SendOp, SendWr, SgList};
use rdma_sys::{atomic_t, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t, ud_t};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::ah::VerbsAh;
use super::domain::Domain;
use super::qp::Shared;
use super::{memory, zeroed};

// rdma-sys writes it by hand: it has to be what libibverbs reads.
const _: () = assert!(size_of::<ibv_send_wr>() == 128);

/// Work requests that are posted with one call.
pub(super) const BATCH: usize = 16;

/// Local memory of the work requests of a batch.
pub(super) type Entries = SmallVec<[ibv_sge; 2 * BATCH]>;

/// Places in a work queue: taken when work is posted, free again when its completion has been polled.
#[derive(Debug)]
pub(super) struct Places {
    used: AtomicU32,
    max: u32,
}

impl Places {
    pub(super) const fn new(max: u32) -> Self {
        Self { used: AtomicU32::new(0), max }
    }

    pub(super) const fn max(&self) -> u32 {
        self.max
    }

    pub(super) fn take(&self) -> bool {
        let more = |used| (used < self.max).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn give(&self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a send becomes, without its id and the links to what is around it.
pub(super) struct Prepared {
    pub(super) raw: ibv_send_wr,
    pub(super) op: CompletionOp,
}

/// Checks a send and appends its memory to `entries`.
///
/// # Errors
/// It is not for this queue pair, or beyond a limit.
pub(super) fn prepare(
    wr: &mut SendWr,
    qp: &Shared,
    domain: &Arc<Domain>,
    entries: &mut Entries,
) -> Result<Prepared, PostError> {
    let attr = domain.hca().attr();
    at_most("number of buffers", wr.sg.len(), qp.max_sge as usize)?;
    let (len, is_inline) = (wr.message_len(), wr.flags.contains(SendFlags::INLINE));
    if is_inline {
        longest(len, attr.max_inline_data as usize)?;
    }
    // SAFETY: integers, null pointers and unions of integers: all bytes zero is a value.
    let mut raw: ibv_send_wr = unsafe { zeroed() };
    let with_imm = |raw: &mut ibv_send_wr, imm: Option<u32>, plain, with| {
        raw.opcode = if imm.is_some() { with } else { plain };
        raw.imm_data_invalidated_rkey_union.imm_data = imm.unwrap_or(0).to_be();
    };
    let (mut longest_message, mut atomic) = (attr.max_message, false);
    let op = match (&wr.op, qp.kind) {
        (SendOp::Datagram { to, imm }, QpType::Ud) => {
            let ah = VerbsAh::of(&*to.ah, domain)
                .ok_or(invalid("the address handle is not of the QP's domain"))?;
            if to.ah.av().port != qp.port() {
                return Err(invalid("the address handle is of another port"));
            }
            longest_message = qp.longest_datagram();
            with_imm(&mut raw, *imm, ibv_wr_opcode::IBV_WR_SEND, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM);
            // Not every device puts in the own key by itself (rxe sends this one).
            let qkey = if to.qkey.is_privileged() { qp.qkey() } else { to.qkey };
            raw.wr.ud = ud_t { ah: ah.raw(), remote_qpn: to.qpn.get(), remote_qkey: qkey.0 };
            CompletionOp::Send
        }
        (SendOp::RawIpv6 { .. } | SendOp::RawEtherType { .. }, _) => {
            return Err(invalid("raw packets need a raw queue pair, which verbs do not have"));
        }
        (SendOp::Datagram { .. }, _) => return Err(invalid("not an operation of a connected QP")),
        (_, QpType::Ud) => return Err(invalid("not an operation of a datagram QP")),
        (SendOp::Send { imm }, _) => {
            with_imm(&mut raw, *imm, ibv_wr_opcode::IBV_WR_SEND, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM);
            CompletionOp::Send
        }
        (SendOp::Write { to, imm }, _) => {
            let (plain, with) = (ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
            with_imm(&mut raw, *imm, plain, with);
            raw.wr.rdma = rdma_t { remote_addr: to.addr, rkey: to.rkey.0 };
            CompletionOp::Write
        }
        (_, QpType::Uc) => return Err(invalid("not an operation of an unreliable connection")),
        (SendOp::Read { from }, _) => {
            at_most("number of a read's buffers", wr.sg.len(), domain.hca().max_sge_rd() as usize)?;
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            raw.wr.rdma = rdma_t { remote_addr: from.addr, rkey: from.rkey.0 };
            CompletionOp::Read
        }
        (SendOp::FetchAdd { at, add }, _) => {
            atomic = true;
            raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            raw.wr.atomic = atomic_t { remote_addr: at.addr, compare_add: *add, swap: 0, rkey: at.rkey.0 };
            CompletionOp::FetchAdd
        }
        (SendOp::CompareSwap { at, compare, swap }, _) => {
            atomic = true;
            raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            raw.wr.atomic =
                atomic_t { remote_addr: at.addr, compare_add: *compare, swap: *swap, rkey: at.rkey.0 };
            CompletionOp::CompareSwap
        }
        _ => return Err(invalid("an operation that this device does not know")),
    };
    longest(len, longest_message as usize)?;
    if atomic || op == CompletionOp::Read {
        if is_inline {
            return Err(invalid("reads and atomics cannot be inline"));
        }
        at_most("reads and atomics outstanding", 1, qp.max_rd_atomic().into())?;
    }
    if atomic {
        if !attr.atomics {
            return Err(invalid("the device has no atomics"));
        }
        at_most("number of an atomic's buffers", wr.sg.len(), 1)?;
        if len < size_of::<u64>() {
            let what = "too short for the result of an atomic: bytes";
            return Err(PostError::Limit { what, value: len as u64, limit: size_of::<u64>() as u64 });
        }
    }
    let most = if atomic { size_of::<u64>() } else { usize::MAX };
    let before = entries.len();
    for buf in &mut wr.sg {
        let len = buf.len().min(most);
        entry(buf, len, domain, !is_inline, entries).inspect_err(|_| entries.truncate(before))?;
    }
    raw.num_sge = (entries.len() - before) as i32;
    for (asked, flag) in [
        (SendFlags::SOLICITED, ibv_send_flags::IBV_SEND_SOLICITED),
        (SendFlags::FENCE, ibv_send_flags::IBV_SEND_FENCE),
        (SendFlags::INLINE, ibv_send_flags::IBV_SEND_INLINE),
    ] {
        if wr.flags.contains(asked) {
            raw.send_flags |= flag.0;
        }
    }
    Ok(Prepared { raw, op })
}

/// Appends the first `len` bytes of the buffer's memory, for the device.
fn entry(
    buf: &mut Buf,
    len: usize,
    domain: &Arc<Domain>,
    needs_key: bool,
    entries: &mut Entries,
) -> Result<(), PostError> {
    if len == 0 {
        return Ok(());
    }
    let length = u32::try_from(len).map_err(|_| PostError::TooLong { len, limit: u32::MAX as usize })?;
    let lkey = match memory::lkey(buf, domain) {
        Some(lkey) => lkey,
        None if needs_key => return Err(invalid("the buffer is not registered with this domain")),
        None => 0,
    };
    entries.push(ibv_sge { addr: buf.memory_mut().as_mut_ptr() as u64, length, lkey });
    Ok(())
}

/// Gives each of `raws` its memory in `entries` and its successor: from here on they are a list of C, to be posted before
/// either of the two moves. The first of the list.
pub(super) fn link(raws: &mut [ibv_send_wr], entries: &mut Entries) -> *mut ibv_send_wr {
    let (count, first, memory) = (raws.len(), raws.as_mut_ptr(), entries.as_mut_ptr());
    let mut at = 0;
    for (index, raw) in (1..).zip(raws) {
        raw.sg_list = memory.wrapping_add(at);
        raw.next = if index < count { first.wrapping_add(index) } else { std::ptr::null_mut() };
        at += raw.num_sge as usize;
    }
    first
}

/// Posts up to a batch from the front of `work`. `keep` keeps receives and gives their ids, `take` takes them back, `post` is the
/// call of libibverbs.
pub(super) fn post_receives(
    work: &mut VecDeque<RecvWr>,
    places: &Places,
    max_sge: usize,
    domain: &Arc<Domain>,
    keep: impl FnOnce(&mut dyn Iterator<Item = RecvWr>, &mut dyn FnMut(u64)),
    take: impl Fn(u64) -> Option<(u64, SgList)>,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> Result<(), PostError> {
    let mut entries = Entries::new();
    let mut raws = SmallVec::<[ibv_recv_wr; BATCH]>::new();
    let mut stopped = Ok(());
    for wr in work.iter_mut().take(BATCH) {
        let checked = check_receive(wr, max_sge, domain, &mut entries);
        let checked = checked.and_then(|count| if places.take() { Ok(count) } else { Err(PostError::Full) });
        match checked {
            Ok(count) => raws.push(ibv_recv_wr {
                wr_id: 0,
                next: std::ptr::null_mut(),
                sg_list: std::ptr::null_mut(),
                num_sge: count,
            }),
            Err(error) => {
                stopped = Err(error);
                break;
            }
        }
    }
    if raws.is_empty() {
        return stopped;
    }
    let count = raws.len();
    let mut ids = raws.iter_mut();
    keep(&mut work.drain(..count), &mut |id| {
        if let Some(raw) = ids.next() {
            raw.wr_id = id;
        }
    });
    let (first, memory) = (raws.as_mut_ptr(), entries.as_mut_ptr());
    let mut at = 0;
    for (index, raw) in (1..).zip(&mut raws) {
        raw.sg_list = memory.wrapping_add(at);
        raw.next = if index < count { first.wrapping_add(index) } else { std::ptr::null_mut() };
        at += raw.num_sge as usize;
    }
    let mut refused = std::ptr::null_mut();
    let Some(error) = refusal(post(first, &raw mut refused)) else { return stopped };
    let first = raws.iter().position(|raw| std::ptr::eq(raw, refused)).unwrap_or(raws.len());
    for raw in raws[first..].iter().rev() {
        if let Some((id, sg)) = take(raw.wr_id) {
            places.give();
            work.push_front(RecvWr { id, sg });
        }
    }
    Err(error)
}

/// Appends a receive's memory and gives the number of entries.
fn check_receive(
    wr: &mut RecvWr,
    max_sge: usize,
    domain: &Arc<Domain>,
    entries: &mut Entries,
) -> Result<i32, PostError> {
    at_most("number of buffers", wr.sg.len(), max_sge)?;
    let before = entries.len();
    for buf in &mut wr.sg {
        let len = buf.capacity();
        entry(buf, len, domain, true, entries).inspect_err(|_| entries.truncate(before))?;
    }
    Ok((entries.len() - before) as i32)
}

/// Why the driver refused a post, if it did. A driver that returns an error and names no work request has put all into its
/// queue and could not tell the device (rxe's does): they stay posted.
pub(super) fn refusal(result: i32) -> Option<PostError> {
    let errno = match result {
        0 => return None,
        positive if positive > 0 => Errno::from_raw_os_error(positive),
        _ => Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL),
    };
    Some(match errno {
        Errno::NOMEM => PostError::Full,
        Errno::IO | Errno::NODEV => PostError::Gone,
        _ => invalid("the driver refused it"),
    })
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
