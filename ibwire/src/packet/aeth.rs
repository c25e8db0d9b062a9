//! Acknowledge extended transport header and its syndrome.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{codec, u24, u24_bytes};
use crate::{DecodeError, Msn, RnrTimer};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AethLayout {
    syndrome: u8,
    msn: [u8; 3],
}

/// The ACK extended transport header (IBTA vol. 1, 9.3; spec/softhca.md 1.5, 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// How many request messages the responder has completed.
    pub msn: Msn,
}

codec!(Aeth, AethLayout, 4, "AETH");

impl Aeth {
    /// A header with these fields.
    pub const fn new(syndrome: Syndrome, msn: Msn) -> Self {
        Self { syndrome, msn }
    }

    fn decode(l: &AethLayout) -> Result<Self, DecodeError> {
        Ok(Self { syndrome: Syndrome(l.syndrome), msn: Msn::truncate(u24(l.msn)) })
    }

    fn encode(&self) -> AethLayout {
        AethLayout { syndrome: self.syndrome.0, msn: u24_bytes(self.msn.get()) }
    }
}

/// The syndrome of an AETH; [`Syndrome::kind`] says what it means.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Syndrome(pub u8);

/// What a syndrome means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SyndromeKind {
    /// Positive acknowledgement.
    Ack(Credits),
    /// The receiver was not ready: try again after this time.
    Rnr(RnrTimer),
    /// Negative acknowledgement.
    Nak(NakCode),
    /// Reserved: to be dropped.
    Reserved,
}

impl Syndrome {
    /// ACK without a limit of credits.
    pub const ACK: Self = Self::ack(Credits::UNLIMITED);

    /// ACK that announces credits.
    pub const fn ack(credits: Credits) -> Self {
        Self(credits.0 & 0x1f)
    }

    /// RNR NAK: try again after the time.
    pub const fn rnr(timer: RnrTimer) -> Self {
        Self(0x20 | timer.get())
    }

    /// NAK with this code.
    pub const fn nak(code: NakCode) -> Self {
        Self(0x60 | code.0 & 0x1f)
    }

    /// What it means.
    pub const fn kind(self) -> SyndromeKind {
        match self.0 >> 5 {
            0 => SyndromeKind::Ack(Credits(self.0)),
            1 => SyndromeKind::Rnr(RnrTimer::truncate(self.0)),
            3 => SyndromeKind::Nak(NakCode(self.0 & 0x1f)),
            _ => SyndromeKind::Reserved,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            SyndromeKind::Ack(credits) => write!(f, "ACK, {credits}"),
            SyndromeKind::Rnr(timer) => write!(f, "RNR NAK, {:?}", timer.duration()),
            SyndromeKind::Nak(code) => write!(f, "NAK, {code}"),
            SyndromeKind::Reserved => write!(f, "syndrome {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome({:#04x}: {self})", self.0)
    }
}

/// A credit code, 0..=31: how many receives the responder has posted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Credits(pub u8);

impl Credits {
    /// The sender must not count. Mandatory with a shared receive queue.
    pub const UNLIMITED: Self = Self(31);

    /// Receives by code.
    const RECEIVES: [u16; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
        3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768,
    ];

    /// The number of receives, `None` without a limit.
    pub const fn receives(self) -> Option<u16> {
        if (self.0 as usize) < Self::RECEIVES.len() { Some(Self::RECEIVES[self.0 as usize]) } else { None }
    }

    /// The largest code that does not promise more than `receives`.
    pub const fn at_most(receives: u32) -> Self {
        let mut code = 30;
        while Self::RECEIVES[code] as u32 > receives {
            code -= 1;
        }
        Self(code as u8)
    }
}

impl fmt::Display for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.receives() {
            Some(receives) => write!(f, "{receives} credits"),
            None => f.write_str("unlimited credits"),
        }
    }
}

impl fmt::Debug for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credits({}: {self})", self.0)
    }
}

/// Why a responder refused a request, 5 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A packet is missing before this one.
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// The request is malformed or not allowed.
    pub const INVALID_REQUEST: Self = Self(1);
    /// Key, range or right of the remote memory do not fit.
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// The responder could not complete the request.
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);
    /// The RD request is invalid.
    pub const INVALID_RD_REQUEST: Self = Self(4);
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::PSN_SEQUENCE_ERROR => "PSN sequence error",
            Self::INVALID_REQUEST => "invalid request",
            Self::REMOTE_ACCESS_ERROR => "remote access error",
            Self::REMOTE_OPERATIONAL_ERROR => "remote operational error",
            Self::INVALID_RD_REQUEST => "invalid RD request",
            Self(other) => return write!(f, "code {other}"),
        })
    }
}

impl fmt::Debug for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NakCode({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_mean_what_the_table_says() {
        assert_eq!(Syndrome::ACK, Syndrome(0x1f));
        assert_eq!(Syndrome(0x1f).to_string(), "ACK, unlimited credits");
        assert_eq!(Syndrome(0x0a).to_string(), "ACK, 32 credits");
        assert_eq!(Syndrome::rnr(RnrTimer::truncate(14)), Syndrome(0x2e));
        assert_eq!(Syndrome(0x2e).to_string(), "RNR NAK, 1.28ms");
        assert_eq!(Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR), Syndrome(0x62));
        assert_eq!(Syndrome(0x7f).to_string(), "NAK, code 31");
        for reserved in [0x40, 0x5f, 0x80, 0xff] {
            assert_eq!(Syndrome(reserved).kind(), SyndromeKind::Reserved);
        }
    }

    #[test]
    fn credit_codes_never_promise_too_much() {
        assert_eq!(Credits::at_most(0), Credits(0));
        assert_eq!(Credits::at_most(5).receives(), Some(4));
        assert_eq!(Credits::at_most(u32::MAX).receives(), Some(32_768));
        assert_eq!(Credits::UNLIMITED.receives(), None);
    }
}
