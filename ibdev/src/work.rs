//! Work requests and completions.

use std::fmt;

use ibwire::{Lid, QKey, Qpn, ServiceLevel};

use crate::{AddressVector, Buf, GlobalRoute};

/// A send work request. The buffer stays with the device until its completion brings it back.
#[derive(Debug)]
pub struct SendWr {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// The message: its length is the buffer's.
    pub buf: Buf,
    /// Whether the receiver's solicited-only waiters are woken.
    pub solicited: bool,
}

/// What a send work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// A message to the connected peer.
    Send {
        /// Four bytes beside the message, as a number in network order.
        imm: Option<u32>,
    },
    /// A datagram: one packet, no acknowledgement.
    Datagram {
        /// Where it goes.
        to: DatagramDest,
        /// Four bytes beside the message, as a number in network order.
        imm: Option<u32>,
    },
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramDest {
    /// The remote port.
    pub av: AddressVector,
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
    /// Its whole capacity is offered.
    pub buf: Buf,
}

/// The end of a work request. Every work request completes exactly once, unless its QP is reset or destroyed: then
/// its buffer returns to its home without a completion.
#[derive(Debug)]
pub struct Completion {
    /// The work request's id.
    pub id: u64,
    /// The QP that it was posted to.
    pub qpn: Qpn,
    /// How it ended. With an error only `id`, `qpn`, `op` and `buf` mean anything.
    pub status: Status,
    /// Which queue it was on and what it was.
    pub op: CompletionOp,
    /// Bytes received.
    pub len: u32,
    /// The immediate that came with the message.
    pub imm: Option<u32>,
    /// The work request's buffer; after a receive its length is that of the message.
    pub buf: Buf,
    /// Sender of a received datagram.
    pub from: Option<DatagramSource>,
}

/// What completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionOp {
    /// A send: on RC acknowledged, on UD left the device.
    Send,
    /// A received message.
    Recv,
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
