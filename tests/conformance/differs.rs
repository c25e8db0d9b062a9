//! What kinds of devices do otherwise than the cases expect of all: one list a kind, with the reasons. No case is left out for
//! that: the one that meets a difference checks what such a device does instead.

use super::bench::Bench;

/// Where not all devices are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// A message longer than its receive fails as the responder's operational error, not as an invalid request.
    TooLongIsOperationalError,
}

/// Linux's rdma_rxe, of the kernel that the guest boots (6.1).
#[cfg(feature = "verbs")]
pub const RXE: &[(Difference, &str)] = &[(
    Difference::TooLongIsOperationalError,
    "it answers with NAK 0x63 where IBTA vol. 1, 9.7.4.1.6 has 0x61 (spec/softhca.md 2.5, 5.1)",
)];

impl Bench {
    pub fn differs(&self, difference: Difference) -> bool {
        self.differs.iter().any(|(listed, _)| *listed == difference)
    }
}
