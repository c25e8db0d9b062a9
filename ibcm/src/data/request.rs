//! What an operation asks of the send queue, and what is refused before it is posted.

use ibdev::{DeviceAttr, DeviceError, RemoteAddr, RemoteRegion, SendFlags, SendOp};

use crate::error::OpCause;
use crate::proto::{Invalid, Limit, Value};

/// The length of what an atomic works on.
const WORD: usize = size_of::<u64>();

/// What an operation asks of the send queue.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    op: SendOp,
    /// Bytes of the peer's memory that were named.
    remote_len: usize,
    flags: SendFlags,
}

/// What kind of operation it is, for the counters and for what comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
    Atomic,
}

/// What the queue pair and its connection allow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest message.
    pub(crate) message: u32,
    /// Longest message that the device copies when it is posted.
    pub(crate) inline: u32,
    pub(crate) atomics: bool,
    /// Reads and atomics that the peer serves at once; 0 as long as nothing is agreed.
    pub(crate) initiator_depth: u8,
}

impl Limits {
    pub(crate) const fn of(device: &DeviceAttr) -> Self {
        Self {
            message: device.max_message,
            inline: device.max_inline_data,
            atomics: device.atomics,
            initiator_depth: 0,
        }
    }
}

fn remote(region: &RemoteRegion) -> RemoteAddr {
    RemoteAddr { addr: region.addr(), rkey: region.rkey() }
}

impl Request {
    fn new(op: SendOp, remote_len: usize) -> Self {
        Self { op, remote_len, flags: SendFlags::SIGNALED }
    }

    pub(crate) fn send() -> Self {
        Self::new(SendOp::Send { imm: None }, 0)
    }

    pub(crate) fn write(to: &RemoteRegion) -> Self {
        Self::new(SendOp::Write { to: remote(to), imm: None }, to.len())
    }

    pub(crate) fn read(from: &RemoteRegion) -> Self {
        Self::new(SendOp::Read { from: remote(from) }, from.len())
    }

    pub(crate) fn fetch_add(at: &RemoteRegion, add: u64) -> Self {
        Self::new(SendOp::FetchAdd { at: remote(at), add }, at.len())
    }

    pub(crate) fn compare_swap(at: &RemoteRegion, compare: u64, swap: u64) -> Self {
        Self::new(SendOp::CompareSwap { at: remote(at), compare, swap }, at.len())
    }

    /// Sends and writes carry it.
    pub(crate) fn set_imm(&mut self, value: u32) {
        if let SendOp::Send { imm } | SendOp::Write { imm, .. } = &mut self.op {
            *imm = Some(value);
        }
    }

    pub(crate) fn set_flag(&mut self, flag: SendFlags) {
        self.flags |= flag;
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.op {
            SendOp::Write { .. } => Kind::Write,
            SendOp::Read { .. } => Kind::Read,
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => Kind::Atomic,
            _ => Kind::Send,
        }
    }

    pub(crate) fn op(&self) -> SendOp {
        self.op.clone()
    }

    pub(crate) fn flags(&self) -> SendFlags {
        self.flags
    }

    /// Bytes of the peer's memory that were named.
    pub(crate) fn remote_len(&self) -> usize {
        self.remote_len
    }

    /// Whether it may be copied by the device when it is posted.
    pub(crate) fn can_be_inline(&self, len: usize, limits: &Limits) -> bool {
        matches!(self.kind(), Kind::Send | Kind::Write) && len <= limits.inline as usize
    }

    /// Refuses what can't be carried out. The message is `len` bytes long, its buffer has room for `capacity`.
    pub(crate) fn check(&self, len: usize, capacity: usize, limits: &Limits) -> Result<(), OpCause> {
        let at_most = |field, value: usize, most: usize| Invalid::at_most(field, value as u64, most as u64);
        let message = limits.message as usize;
        match &self.op {
            SendOp::Write { .. } => {
                at_most("write length", len, self.remote_len)?;
                at_most("write length", len, message)?;
            }
            SendOp::Read { .. } => {
                at_most("read length", self.remote_len, capacity)?;
                at_most("read length", self.remote_len, message)?;
                limits.check_initiator_depth()?;
            }
            SendOp::FetchAdd { at, .. } | SendOp::CompareSwap { at, .. } => {
                if self.remote_len < WORD {
                    let len = self.remote_len as u64;
                    return Err(Invalid::at_least("region of an atomic", len, WORD as u64).into());
                }
                if !at.addr.is_multiple_of(WORD as u64) {
                    let must = Limit::Must("a multiple of 8");
                    return Err(Invalid::new("address of an atomic", Value::Number(at.addr), must).into());
                }
                if !limits.atomics {
                    return Err(OpCause::Device(DeviceError::Unsupported { what: "an atomic operation" }));
                }
                limits.check_initiator_depth()?;
            }
            _ => at_most("message length", len, message)?,
        }
        Ok(())
    }
}

impl Limits {
    /// Reads and atomics need a peer that serves them.
    fn check_initiator_depth(&self) -> Result<(), Invalid> {
        match self.initiator_depth {
            0 => Err(Invalid::at_least("the connection's initiator depth", 0, 1)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { message: 1000, inline: 16, atomics: true, initiator_depth: 4 };

    fn refusal(request: &Request, len: usize, capacity: usize, limits: &Limits) -> String {
        request.check(len, capacity, limits).map_or_else(|cause| cause.to_string(), |()| "fine".to_owned())
    }

    #[test]
    fn lengths_are_checked_against_message_buffer_and_region() {
        let region = RemoteRegion::new(0x1000, 7, 100);
        let (send, write, read) = (Request::send(), Request::write(&region), Request::read(&region));
        let check = |request: &Request, len, capacity| refusal(request, len, capacity, &LIMITS);
        assert_eq!(check(&send, 1000, 4096), "fine");
        assert_eq!(check(&send, 1001, 4096), "message length is 1001, at most 1000 is allowed");
        assert_eq!(check(&write, 100, 4096), "fine");
        assert_eq!(check(&write, 0, 4096), "fine");
        assert_eq!(check(&write, 101, 4096), "write length is 101, at most 100 is allowed");
        assert_eq!(check(&read, 0, 100), "fine");
        assert_eq!(check(&read, 4096, 99), "read length is 100, at most 99 is allowed");
        let long = RemoteRegion::new(0, 7, 5000);
        assert_eq!(
            check(&Request::write(&long), 1001, 4096),
            "write length is 1001, at most 1000 is allowed"
        );
        assert_eq!(check(&Request::read(&long), 0, 8192), "read length is 5000, at most 1000 is allowed");
    }

    #[test]
    fn atomics_need_an_aligned_word() {
        let at = |addr, len| Request::fetch_add(&RemoteRegion::new(addr, 7, len), 1);
        let check = |request: &Request| refusal(request, 8, 8, &LIMITS);
        assert_eq!(check(&at(0x1008, 8)), "fine");
        assert_eq!(check(&at(0x1008, 80)), "fine");
        assert_eq!(check(&at(0x1008, 7)), "region of an atomic is 7, at least 8 is needed");
        assert_eq!(check(&at(0x1004, 8)), "address of an atomic is 4100, it must be a multiple of 8");
        let none = Limits { atomics: false, ..LIMITS };
        let swap = Request::compare_swap(&RemoteRegion::new(0, 7, 8), 0, 1);
        assert_eq!(refusal(&swap, 8, 8, &none), "an atomic operation is not supported by this device");
    }

    #[test]
    fn reads_and_atomics_need_an_initiator_depth() {
        let (region, none) = (RemoteRegion::new(0, 7, 8), Limits { initiator_depth: 0, ..LIMITS });
        let expected = "the connection's initiator depth is 0, at least 1 is needed";
        for request in [Request::read(&region), Request::fetch_add(&region, 1)] {
            assert_eq!(refusal(&request, 8, 8, &none), expected);
        }
        assert_eq!(refusal(&Request::write(&region), 8, 8, &none), "fine");
    }

    #[test]
    fn short_sends_and_writes_can_be_inline() {
        let region = RemoteRegion::new(0, 7, 8);
        assert!(Request::send().can_be_inline(16, &LIMITS) && !Request::send().can_be_inline(17, &LIMITS));
        assert!(Request::write(&region).can_be_inline(0, &LIMITS));
        assert!(!Request::fetch_add(&region, 1).can_be_inline(8, &LIMITS));
    }
}
