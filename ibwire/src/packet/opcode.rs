//! What a packet is: transport, operation, and the headers that follow from them.

use std::fmt;

use super::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth};

/// The transport service of an opcode, its upper three bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transport(pub u8);

impl Transport {
    /// Reliable connection.
    pub const RC: Self = Self(0);
    /// Unreliable connection.
    pub const UC: Self = Self(1);
    /// Reliable datagram.
    pub const RD: Self = Self(2);
    /// Unreliable datagram.
    pub const UD: Self = Self(3);
    /// Congestion notification.
    pub const CNP: Self = Self(4);
    /// Extended reliable connection.
    pub const XRC: Self = Self(5);
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::RC => "RC",
            Self::UC => "UC",
            Self::RD => "RD",
            Self::UD => "UD",
            Self::CNP => "CNP",
            Self::XRC => "XRC",
            Self(other) => return write!(f, "transport {other}"),
        })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transport({self})")
    }
}

/// The operation of an opcode, its lower five bits. The same for every transport that has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation(pub u8);

macro_rules! operations {
    ($($name:ident = $code:literal;)*) => {
        impl Operation {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Self = Self($code);
            )*

            /// Its name in the standard, `None` if the code is reserved.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

operations! {
    SEND_FIRST = 0x00;
    SEND_MIDDLE = 0x01;
    SEND_LAST = 0x02;
    SEND_LAST_WITH_IMM = 0x03;
    SEND_ONLY = 0x04;
    SEND_ONLY_WITH_IMM = 0x05;
    RDMA_WRITE_FIRST = 0x06;
    RDMA_WRITE_MIDDLE = 0x07;
    RDMA_WRITE_LAST = 0x08;
    RDMA_WRITE_LAST_WITH_IMM = 0x09;
    RDMA_WRITE_ONLY = 0x0a;
    RDMA_WRITE_ONLY_WITH_IMM = 0x0b;
    RDMA_READ_REQUEST = 0x0c;
    RDMA_READ_RESPONSE_FIRST = 0x0d;
    RDMA_READ_RESPONSE_MIDDLE = 0x0e;
    RDMA_READ_RESPONSE_LAST = 0x0f;
    RDMA_READ_RESPONSE_ONLY = 0x10;
    ACKNOWLEDGE = 0x11;
    ATOMIC_ACKNOWLEDGE = 0x12;
    COMPARE_SWAP = 0x13;
    FETCH_ADD = 0x14;
    SEND_LAST_WITH_INVALIDATE = 0x16;
    SEND_ONLY_WITH_INVALIDATE = 0x17;
    FLUSH = 0x1c;
    ATOMIC_WRITE = 0x1d;
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "operation {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({self})")
    }
}

/// The opcode of a BTH: transport and operation (IBTA vol. 1, 9.2.1; spec/softhca.md 1.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($name:ident = $code:literal;)*) => {
        impl Opcode {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Self = Self($code);
            )*

            /// Its name, `None` if the opcode is not [known](Opcode::is_known).
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00;
    RC_SEND_MIDDLE = 0x01;
    RC_SEND_LAST = 0x02;
    RC_SEND_LAST_WITH_IMM = 0x03;
    RC_SEND_ONLY = 0x04;
    RC_SEND_ONLY_WITH_IMM = 0x05;
    RC_RDMA_WRITE_FIRST = 0x06;
    RC_RDMA_WRITE_MIDDLE = 0x07;
    RC_RDMA_WRITE_LAST = 0x08;
    RC_RDMA_WRITE_LAST_WITH_IMM = 0x09;
    RC_RDMA_WRITE_ONLY = 0x0a;
    RC_RDMA_WRITE_ONLY_WITH_IMM = 0x0b;
    RC_RDMA_READ_REQUEST = 0x0c;
    RC_RDMA_READ_RESPONSE_FIRST = 0x0d;
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0e;
    RC_RDMA_READ_RESPONSE_LAST = 0x0f;
    RC_RDMA_READ_RESPONSE_ONLY = 0x10;
    RC_ACKNOWLEDGE = 0x11;
    RC_ATOMIC_ACKNOWLEDGE = 0x12;
    RC_COMPARE_SWAP = 0x13;
    RC_FETCH_ADD = 0x14;
    RC_SEND_LAST_WITH_INVALIDATE = 0x16;
    RC_SEND_ONLY_WITH_INVALIDATE = 0x17;
    RC_ATOMIC_WRITE = 0x1d;
    UC_SEND_FIRST = 0x20;
    UC_SEND_MIDDLE = 0x21;
    UC_SEND_LAST = 0x22;
    UC_SEND_LAST_WITH_IMM = 0x23;
    UC_SEND_ONLY = 0x24;
    UC_SEND_ONLY_WITH_IMM = 0x25;
    UC_RDMA_WRITE_FIRST = 0x26;
    UC_RDMA_WRITE_MIDDLE = 0x27;
    UC_RDMA_WRITE_LAST = 0x28;
    UC_RDMA_WRITE_LAST_WITH_IMM = 0x29;
    UC_RDMA_WRITE_ONLY = 0x2a;
    UC_RDMA_WRITE_ONLY_WITH_IMM = 0x2b;
    UD_SEND_ONLY = 0x64;
    UD_SEND_ONLY_WITH_IMM = 0x65;
    CNP = 0x81;
}

impl Opcode {
    /// The opcode of an operation over a transport, known or not.
    pub const fn new(transport: Transport, operation: Operation) -> Self {
        Self(transport.0 << 5 | operation.0 & 0x1f)
    }

    /// The transport service.
    pub const fn transport(self) -> Transport {
        Transport(self.0 >> 5)
    }

    /// The operation.
    pub const fn operation(self) -> Operation {
        Operation(self.0 & 0x1f)
    }

    /// Whether this crate knows which headers the packet has: those with a constant here.
    ///
    /// RD, XRC and FLUSH packets carry headers of their own, which nothing here decodes: they are not known.
    pub const fn is_known(self) -> bool {
        self.name().is_some()
    }

    /// Whether a DETH follows the BTH.
    pub const fn has_deth(self) -> bool {
        self.transport().0 == Transport::UD.0
    }

    /// Whether there is a RETH.
    pub const fn has_reth(self) -> bool {
        matches!(
            self.operation(),
            Operation::RDMA_WRITE_FIRST
                | Operation::RDMA_WRITE_ONLY
                | Operation::RDMA_WRITE_ONLY_WITH_IMM
                | Operation::RDMA_READ_REQUEST
                | Operation::ATOMIC_WRITE
        )
    }

    /// Whether there is an AtomicETH.
    pub const fn has_atomic_eth(self) -> bool {
        matches!(self.operation(), Operation::COMPARE_SWAP | Operation::FETCH_ADD)
    }

    /// Whether there is an AETH.
    pub const fn has_aeth(self) -> bool {
        matches!(
            self.operation(),
            Operation::RDMA_READ_RESPONSE_FIRST
                | Operation::RDMA_READ_RESPONSE_LAST
                | Operation::RDMA_READ_RESPONSE_ONLY
                | Operation::ACKNOWLEDGE
                | Operation::ATOMIC_ACKNOWLEDGE
        )
    }

    /// Whether there is an AtomicAckETH.
    pub const fn has_atomic_ack(self) -> bool {
        matches!(self.operation(), Operation::ATOMIC_ACKNOWLEDGE)
    }

    /// Whether there is immediate data.
    pub const fn has_immdt(self) -> bool {
        matches!(
            self.operation(),
            Operation::SEND_LAST_WITH_IMM
                | Operation::SEND_ONLY_WITH_IMM
                | Operation::RDMA_WRITE_LAST_WITH_IMM
                | Operation::RDMA_WRITE_ONLY_WITH_IMM
        )
    }

    /// Whether there is an IETH.
    pub const fn has_ieth(self) -> bool {
        matches!(
            self.operation(),
            Operation::SEND_LAST_WITH_INVALIDATE | Operation::SEND_ONLY_WITH_INVALIDATE
        )
    }

    /// How many bytes of headers stand between BTH and payload.
    pub const fn headers_len(self) -> usize {
        const fn len(there: bool, len: usize) -> usize {
            if there { len } else { 0 }
        }
        len(self.has_deth(), Deth::LEN)
            + len(self.has_reth(), Reth::LEN)
            + len(self.has_atomic_eth(), AtomicEth::LEN)
            + len(self.has_aeth(), Aeth::LEN)
            + len(self.has_atomic_ack(), AtomicAckEth::LEN)
            + len(self.has_immdt(), ImmDt::LEN)
            + len(self.has_ieth(), Ieth::LEN)
    }

    /// Whether this is the first of several packets of a message.
    pub const fn is_first(self) -> bool {
        matches!(
            self.operation(),
            Operation::SEND_FIRST | Operation::RDMA_WRITE_FIRST | Operation::RDMA_READ_RESPONSE_FIRST
        )
    }

    /// Whether packets of the same message stand before and after this one.
    pub const fn is_middle(self) -> bool {
        matches!(
            self.operation(),
            Operation::SEND_MIDDLE | Operation::RDMA_WRITE_MIDDLE | Operation::RDMA_READ_RESPONSE_MIDDLE
        )
    }

    /// Whether this is the last of several packets of a message.
    pub const fn is_last(self) -> bool {
        matches!(
            self.operation(),
            Operation::SEND_LAST
                | Operation::SEND_LAST_WITH_IMM
                | Operation::SEND_LAST_WITH_INVALIDATE
                | Operation::RDMA_WRITE_LAST
                | Operation::RDMA_WRITE_LAST_WITH_IMM
                | Operation::RDMA_READ_RESPONSE_LAST
        )
    }

    /// Whether the message is this packet alone: the `ONLY` operations, READ requests, atomics, acknowledgements.
    pub const fn is_only(self) -> bool {
        !self.is_first() && !self.is_middle() && !self.is_last()
    }

    /// Whether a responder sends it: READ responses and acknowledgements.
    pub const fn is_response(self) -> bool {
        let operation = self.operation().0;
        operation >= Operation::RDMA_READ_RESPONSE_FIRST.0 && operation <= Operation::ATOMIC_ACKNOWLEDGE.0
    }

    /// Whether a requester sends it. A CNP is neither request nor response.
    pub const fn is_request(self) -> bool {
        !self.is_response() && self.transport().0 != Transport::CNP.0
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> impl Iterator<Item = Opcode> {
        (0..=255).map(Opcode).filter(|opcode| opcode.is_known())
    }

    #[test]
    fn names_are_transport_and_operation() {
        assert_eq!(known().count(), 39);
        for opcode in known().filter(|&opcode| opcode != Opcode::CNP) {
            assert_eq!(opcode.to_string(), format!("{}_{}", opcode.transport(), opcode.operation()));
            assert_eq!(Opcode::new(opcode.transport(), opcode.operation()), opcode);
        }
        assert_eq!(Opcode(0x15).to_string(), "opcode 0x15");
        assert_eq!(Opcode::new(Transport::XRC, Operation::SEND_ONLY), Opcode(0xa4));
    }

    #[test]
    fn each_known_opcode_has_one_place_in_its_message_and_one_direction() {
        for opcode in known() {
            let places = [opcode.is_first(), opcode.is_middle(), opcode.is_last(), opcode.is_only()];
            assert_eq!(places.iter().filter(|&&place| place).count(), 1, "{opcode}");
            assert_eq!(opcode.is_request(), !opcode.is_response() && opcode != Opcode::CNP, "{opcode}");
        }
        assert!(Opcode::RC_ACKNOWLEDGE.is_response() && Opcode::RC_RDMA_READ_RESPONSE_MIDDLE.is_response());
        assert!(Opcode::RC_RDMA_READ_REQUEST.is_request() && Opcode::RC_FETCH_ADD.is_request());
    }

    #[test]
    fn header_lengths_are_those_of_the_table() {
        // spec/softhca.md 1.6; ImmDt 4, RETH 16, AETH 4, AtomicETH 28, AtomicAckETH 8, IETH 4, DETH 8
        let table = [
            (Opcode::RC_SEND_FIRST, 0),
            (Opcode::RC_SEND_LAST_WITH_IMM, 4),
            (Opcode::RC_SEND_ONLY_WITH_IMM, 4),
            (Opcode::RC_RDMA_WRITE_FIRST, 16),
            (Opcode::RC_RDMA_WRITE_MIDDLE, 0),
            (Opcode::UC_RDMA_WRITE_LAST_WITH_IMM, 4),
            (Opcode::UC_RDMA_WRITE_ONLY_WITH_IMM, 20),
            (Opcode::RC_RDMA_READ_REQUEST, 16),
            (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 4),
            (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 0),
            (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 4),
            (Opcode::RC_ACKNOWLEDGE, 4),
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, 12),
            (Opcode::RC_COMPARE_SWAP, 28),
            (Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 4),
            (Opcode::RC_ATOMIC_WRITE, 16),
            (Opcode::UD_SEND_ONLY, 8),
            (Opcode::UD_SEND_ONLY_WITH_IMM, 12),
            (Opcode::CNP, 0),
        ];
        for (opcode, len) in table {
            assert_eq!(opcode.headers_len(), len, "{opcode}");
        }
    }
}
