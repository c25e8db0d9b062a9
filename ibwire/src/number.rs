//! Wire numbers with their widths and their arithmetic.

use std::fmt;

/// Declares a number narrower than its carrier: `new` checks, `truncate` masks what a decoder has read.
macro_rules! narrow {
    ($(#[$doc:meta])* $name:ident($carrier:ty), $bits:literal, $hex:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name($carrier);

        impl $name {
            /// The largest value.
            pub const MAX: Self = Self(((1u64 << $bits) - 1) as $carrier);

            /// The number, or `None` if it does not fit the field.
            pub const fn new(raw: $carrier) -> Option<Self> {
                if raw <= Self::MAX.0 { Some(Self(raw)) } else { None }
            }

            /// The low bits of `raw` that fit the field.
            pub const fn truncate(raw: $carrier) -> Self {
                Self(raw & Self::MAX.0)
            }

            /// The plain number.
            pub const fn get(self) -> $carrier {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $hex, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

/// Declares a number that fills its carrier.
macro_rules! full {
    ($(#[$doc:meta])* $name:ident($carrier:ty), $hex:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $carrier);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $hex, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

narrow! {
    /// A queue pair number, 24 bits.
    Qpn(u32), 24, "{:#08x}"
}

impl Qpn {
    /// The subnet management interface, QP0.
    pub const SMI: Self = Self(0);
    /// The general services interface, QP1: CM and SA traffic.
    pub const GSI: Self = Self(1);
    /// The destination of multicast packets.
    pub const MULTICAST: Self = Self(0xff_ffff);
}

narrow! {
    /// A packet sequence number, 24 bits, with wrap-around arithmetic.
    Psn(u32), 24, "{:#08x}"
}

impl Psn {
    /// This PSN plus `n`, modulo 2^24.
    #[must_use]
    pub const fn offset(self, n: u32) -> Self {
        Self::truncate(self.0.wrapping_add(n))
    }

    /// The PSN before this one.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self::truncate(self.0.wrapping_sub(1))
    }

    /// How far this PSN is ahead of `from`; negative if behind. In -2^23..2^23.
    pub const fn distance(self, from: Self) -> i32 {
        (self.0.wrapping_sub(from.0) << 8) as i32 >> 8
    }
}

narrow! {
    /// A message sequence number, 24 bits: how many request messages a responder has completed.
    Msn(u32), 24, "{}"
}

impl Msn {
    /// This MSN plus `n`, modulo 2^24.
    #[must_use]
    pub const fn offset(self, n: u32) -> Self {
        Self::truncate(self.0.wrapping_add(n))
    }

    /// How far this MSN is ahead of `from`; negative if behind. In -2^23..2^23.
    pub const fn distance(self, from: Self) -> i32 {
        (self.0.wrapping_sub(from.0) << 8) as i32 >> 8
    }
}

narrow! {
    /// A flow label, 20 bits.
    FlowLabel(u32), 20, "{:#07x}"
}

narrow! {
    /// A service level, 4 bits.
    ServiceLevel(u8), 4, "{}"
}

full! {
    /// A partition key. Bit 15 marks a full member (IBTA vol. 1, 10.9).
    PKey(u16), "{:#06x}"
}

impl PKey {
    /// The default partition, full member. The only P_Key of RoCE.
    pub const DEFAULT: Self = Self(0xffff);

    /// The partition without the membership bit.
    pub const fn base(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether the membership bit is set.
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether holders of the two keys may talk: same non-zero partition, and not both limited members.
    pub const fn matches(self, other: Self) -> bool {
        self.base() == other.base() && self.base() != 0 && (self.is_full_member() || other.is_full_member())
    }
}

full! {
    /// A queue key: the password of a datagram QP. Bit 31 marks a privileged key (IBTA vol. 1, 10.2.4).
    QKey(u32), "{:#010x}"
}

impl QKey {
    /// The well-known Q_Key of QP1.
    pub const GSI: Self = Self(0x8001_0000);

    /// Whether the key is privileged: a sender that names it sends its QP's own key instead.
    pub const fn is_privileged(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// The key of a memory region that a peer may use. Who knows it may do that, so its `Debug` form keeps it to itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RKey(pub u32);

impl fmt::Display for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Debug for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RKey(..)")
    }
}

full! {
    /// A 64-bit service identifier: what a listener is bound to (IBTA annex A3).
    ServiceId(u64), "{:#018x}"
}

impl ServiceId {
    /// The service ID with this value.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The service ID of `port` in RDMA_PS_TCP, the port space of reliable connections addressed by IP.
    pub const fn tcp_port(port: u16) -> Self {
        Self(0x0106_0000 | port as u64)
    }

    /// The service ID of `port` in RDMA_PS_UDP, the port space of datagram services addressed by IP.
    pub const fn udp_port(port: u16) -> Self {
        Self(0x0111_0000 | port as u64)
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

full! {
    /// A communication ID: one side's name of a connection. 0 is never assigned.
    CommId(u32), "{:#010x}"
}

impl CommId {
    /// No connection.
    pub const NONE: Self = Self(0);

    /// Whether an ID is named at all.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

full! {
    /// The transaction ID of a MAD.
    TransactionId(u64), "{:#018x}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps() {
        let last = Psn::MAX;
        assert_eq!(last.offset(1), Psn::truncate(0));
        assert_eq!(Psn::truncate(0).prev(), last);
        assert_eq!(Psn::truncate(2).distance(last), 3);
        assert_eq!(last.distance(Psn::truncate(2)), -3);
        // spec/softhca.md 2.1, ePSN = 2
        assert!(Psn::truncate(0x7f_ffff).distance(Psn::truncate(2)) > 0);
        assert!(Psn::truncate(0x80_0003).distance(Psn::truncate(2)) < 0);
    }

    #[test]
    fn narrow_numbers_refuse_what_does_not_fit() {
        assert_eq!(Qpn::new(0x0100_0000), None);
        assert_eq!(Qpn::new(0xff_ffff), Some(Qpn::MULTICAST));
        assert_eq!(ServiceLevel::new(16), None);
        assert_eq!(FlowLabel::truncate(0xfff5_4321).get(), 0x5_4321);
    }

    #[test]
    fn pkeys_match_as_the_partition_rules_say() {
        assert!(PKey(0x7fff).matches(PKey::DEFAULT));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8001).matches(PKey::DEFAULT));
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
    }

    #[test]
    fn service_ids_of_ip_port_spaces() {
        assert_eq!(ServiceId::tcp_port(0x1234).to_string(), "0x0000000001061234");
        assert_eq!(ServiceId::udp_port(0x1234).get(), 0x0111_1234);
    }
}
