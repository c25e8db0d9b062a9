//! Work requests and completions.

use std::fmt;
use std::sync::Arc;

use ibwire::raw::EtherType;
use ibwire::{Lid, QKey, Qpn, RKey, ServiceLevel};
use smallvec::{SmallVec, smallvec};

use crate::{AddressHandle, Buf, GlobalRoute, RawDest, RawSource};

/// The buffers of a work request, in order: gathered by a send, filled one after the other by a receive or a read.
/// Mostly one, and then no memory is allocated.
pub type SgList = SmallVec<[Buf; 1]>;

bitflags::bitflags! {
    /// How a send work request is carried out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u8 {
        /// It completes in the completion queue whatever comes of it. Without, only a failure does: upon success its place
        /// is free and its buffers go home by themselves.
        const SIGNALED = 1;
        /// The receiver's solicited-only waiters are woken.
        const SOLICITED = 1 << 1;
        /// It starts when all earlier reads and atomics of the QP are complete.
        const FENCE = 1 << 2;
        /// The device copies the message when it is posted, so buffers need not be registered; the message is at most
        /// [`DeviceAttr::max_inline_data`](crate::DeviceAttr::max_inline_data) bytes. Sends, writes and datagrams only.
        const INLINE = 1 << 3;
    }
}

/// A send work request. The buffers stay with the device until the completion brings them back.
#[derive(Debug)]
pub struct SendWr {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local memory: the message is the contents of the buffers, one behind the other. A read fills their
    /// lengths. An atomic has one, of 8 bytes at least: the value before it comes back in its first 8 bytes, in
    /// the byte order of this machine.
    pub sg: SgList,
    /// How.
    pub flags: SendFlags,
}

impl SendWr {
    /// A signaled work request with one buffer.
    pub fn new(id: u64, op: SendOp, buf: Buf) -> Self {
        Self { id, op, sg: smallvec![buf], flags: SendFlags::SIGNALED }
    }

    /// Length of the message in bytes, the sum of the buffers' lengths.
    pub fn message_len(&self) -> usize {
        self.sg.iter().map(|buf| buf.len()).sum()
    }
}

/// What a send work request does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SendOp {
    /// A message to the connected peer.
    Send {
        /// Four bytes beside the message, as a number in network order.
        imm: Option<u32>,
    },
    /// Writes the message to the peer's memory. With immediate data it takes a receive of the peer and completes that.
    Write {
        /// Where to.
        to: RemoteAddr,
        /// Four bytes beside the message, as a number in network order.
        imm: Option<u32>,
    },
    /// Reads the peer's memory, as many bytes as the buffers are long. RC only.
    Read {
        /// Where from.
        from: RemoteAddr,
    },
    /// Adds to the 8 bytes at an address that is a multiple of 8. RC only.
    FetchAdd {
        /// Which.
        at: RemoteAddr,
        /// What is added, modulo 2^64.
        add: u64,
    },
    /// Replaces the 8 bytes at an address that is a multiple of 8, if they have a value. RC only.
    CompareSwap {
        /// Which.
        at: RemoteAddr,
        /// The value that they must have.
        compare: u64,
        /// The value that they get.
        swap: u64,
    },
    /// A raw IPv6 packet: the message begins with its 40-byte IPv6 header. One packet, no acknowledgement.
    RawIpv6 {
        /// Where it goes.
        to: RawDest,
    },
    /// A raw EtherType packet: the message is what follows the raw header. It is padded with zeros to a multiple of 4 bytes, and
    /// to 8 at least. One packet, no acknowledgement.
    RawEtherType {
        /// Where it goes.
        to: RawDest,
        /// The protocol.
        ether_type: EtherType,
    },
    /// A datagram: one packet, no acknowledgement.
    Datagram {
        /// Where it goes.
        to: DatagramDest,
        /// Four bytes beside the message, as a number in network order.
        imm: Option<u32>,
    },
}

/// Where in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// The peer's address.
    pub addr: u64,
    /// The key that the peer gave for it.
    pub rkey: RKey,
}

/// Where a datagram goes.
#[derive(Debug, Clone)]
pub struct DatagramDest {
    /// The remote port, as a handle of the QP's protection domain.
    pub ah: Arc<dyn AddressHandle>,
    /// The remote QP.
    pub qpn: Qpn,
    /// Its Q_Key; with bit 31 set the sending QP's own key is sent instead.
    pub qkey: QKey,
}

/// A receive work request.
#[derive(Debug)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub id: u64,
    /// The whole capacity of each buffer is offered.
    pub sg: SgList,
}

impl RecvWr {
    /// A receive into one buffer.
    pub fn new(id: u64, buf: Buf) -> Self {
        Self { id, sg: smallvec![buf] }
    }
}

/// The end of a work request. Every signaled work request completes exactly once, unless its QP is reset or destroyed: then
/// its buffers return to their homes without a completion.
#[derive(Debug)]
pub struct Completion {
    /// The work request's id.
    pub id: u64,
    /// The QP that it was posted to, or whose message took it from a shared receive queue.
    pub qpn: Qpn,
    /// How it ended. With an error only `id`, `qpn`, `op` and `sg` mean anything.
    pub status: Status,
    /// Which queue it was on and what it was.
    pub op: CompletionOp,
    /// Bytes received, or read.
    pub len: u32,
    /// The immediate that came with the message.
    pub imm: Option<u32>,
    /// The work request's buffers; after a receive their lengths are those of the message's parts. A write with
    /// immediate data leaves those of the receive that it took empty.
    pub sg: SgList,
    /// Sender of a received datagram.
    pub from: Option<DatagramSource>,
    /// Of a packet that a raw QP received.
    pub raw: Option<RawSource>,
}

impl Completion {
    /// The first buffer of the work request.
    pub fn into_buf(self) -> Option<Buf> {
        self.sg.into_iter().next()
    }
}

/// What completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionOp {
    /// A send or datagram: on RC acknowledged, on UC and UD left the device.
    Send,
    /// A write: on RC acknowledged, on UC left the device.
    Write,
    /// A read: the data is there.
    Read,
    /// A fetch-and-add: the value before it is there.
    FetchAdd,
    /// A compare-and-swap: the value before it is there.
    CompareSwap,
    /// A received message.
    Recv,
    /// A receive that a peer's write with immediate data took; `len` is what was written.
    RecvWrite,
}

impl CompletionOp {
    /// Whether it was on the receive queue.
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWrite)
    }
}

/// Who sent a datagram, and how. The 40 bytes of the GRH area are at the front of the buffer and count in its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramSource {
    /// Source QP.
    pub qpn: Qpn,
    /// Source LID; [`Lid::NONE`] on RoCE.
    pub slid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the LID that it was sent to.
    pub path_bits: u8,
    /// Index of the P_Key in the BTH.
    pub pkey_index: u16,
    /// The route back, if a GRH came along.
    pub grh: Option<GlobalRoute>,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// How a work request ended; the numbers are those of libibverbs. Unknown codes are kept.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Status(pub u8);

        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($code => f.write_str($text),)*
                    other => write!(f, "status {other}"),
                }
            }
        }

        impl fmt::Debug for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($code => f.write_str(stringify!($name)),)*
                    other => write!(f, "Status({other})"),
                }
            }
        }
    };
}

statuses! {
    /// Done.
    SUCCESS = 0, "success";
    /// A received message was longer than its buffer, or a response had the wrong length.
    LOC_LEN_ERR = 1, "local length error";
    /// The work request is malformed.
    LOC_QP_OP_ERR = 2, "local QP operation error";
    /// A local buffer is not registered for the operation.
    LOC_PROT_ERR = 4, "local protection error";
    /// The QP is in the error state.
    WR_FLUSH_ERR = 5, "flushed";
    /// The peer's response does not fit the request.
    BAD_RESP_ERR = 7, "bad response";
    /// A peer asked for memory of this side that it may not touch.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The peer called the request invalid.
    REM_INV_REQ_ERR = 9, "remote invalid request";
    /// The peer refused the access.
    REM_ACCESS_ERR = 10, "remote access error";
    /// The peer could not complete the request.
    REM_OP_ERR = 11, "remote operation error";
    /// No acknowledgement within all retries.
    RETRY_EXC_ERR = 12, "transport retries exceeded";
    /// The peer had no receive posted within all retries.
    RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retries exceeded";
    /// The device failed.
    FATAL_ERR = 19, "fatal device error";
    /// Anything else.
    GENERAL_ERR = 21, "general error";
}

impl Status {
    /// Whether it ended well.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}
