//! What kinds of devices do otherwise than the cases expect of all: one list a kind, with the reasons. No case is left out for
//! that: the one that meets a difference checks what such a device does instead.

use super::bench::Bench;

/// Where not all devices are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// A message longer than its receive is an operational error of the receiving queue pair, not an invalid request of the
    /// sender.
    TooLongIsOperationalError,
    /// One that comes over an unreliable transport ends the receiving queue pair, too, and is not dropped.
    TooLongEndsUnreliable,
    /// A write with immediate data that is refused takes its receive, which completes with the reason.
    RefusedImmediateTakesItsReceive,
    /// An atomic whose address is no multiple of 8 is refused where it is posted.
    UnalignedAtomicIsNotPosted,
    /// A response does not reach who asked over IPv4: the request stays unanswered and is sent again.
    ResponsesMissTheirRequest,
    /// MADs may overtake each other, and come when what was sent after them has come.
    MadsOvertake,
    /// Of MADs that come faster than they are taken, those are lost for which the port has no receive left.
    MadsAreLost,
    /// What was posted to a drained send queue goes on with the next post after it is resumed, not at once.
    ResumedQueueWaitsForAPost,
}

/// Linux's rdma_rxe, of the kernel that the guest boots (6.1).
#[cfg(feature = "verbs")]
pub const RXE: &[(Difference, &str)] = &[
    (
        Difference::TooLongIsOperationalError,
        "it answers with NAK 0x63 where IBTA vol. 1, 9.7.4.1.6 has 0x61 (spec/softhca.md 2.5, 5.1)",
    ),
    (
        Difference::TooLongEndsUnreliable,
        "it has one way to handle a receive that is too short, whatever the transport",
    ),
    (Difference::RefusedImmediateTakesItsReceive, "it takes the receive before it looks at the key"),
    (
        Difference::ResponsesMissTheirRequest,
        "ib_mad compares the response's GID with the request's, and over IPv4 there is none (spec/sa.md 2.8)",
    ),
    (
        Difference::MadsOvertake,
        "a packet arrives on the processor that sent it, and the sender may move to another one meanwhile",
    ),
    (
        Difference::MadsAreLost,
        "the GSI's queue pair has 512 receives (IB_MAD_QP_RECV_SIZE), posted again by a thread that may have to wait",
    ),
    (
        Difference::ResumedQueueWaitsForAPost,
        "the change of state wakes nothing, and its library posts no empty list, which would",
    ),
    (Difference::UnalignedAtomicIsNotPosted, "the kernel checks work requests that libibverbs has queued"),
];

impl Bench {
    pub fn differs(&self, difference: Difference) -> bool {
        self.differs.iter().any(|(listed, _)| *listed == difference)
    }
}
