//! Which transport a connection is of.

use std::fmt;

use super::message::TransportService;

/// The transport of a connection (spec/cm.md 2.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Transport {
    /// Reliable connection: messages arrive once, in order and whole.
    #[default]
    Rc,
    /// Unreliable connection: messages arrive once at most, in order and whole, or not at all, and nobody is told.
    Uc,
    /// Reliable datagrams through EE contexts. No device of this workspace has them, and no known NIC: the handshake alone.
    Rd,
    /// Extended reliable connection, from an initiator (INI) to a target (TGT) queue pair: the handshake alone.
    Xrc,
}

impl Transport {
    /// The transport of a service; `None` for a reserved code.
    pub const fn of(service: TransportService) -> Option<Self> {
        match (service.service_type(), service.extension()) {
            // The extension of these was reserved before XRC.
            (0, _) => Some(Self::Rc),
            (1, _) => Some(Self::Uc),
            (2, _) => Some(Self::Rd),
            (3, 1) => Some(Self::Xrc),
            _ => None,
        }
    }

    /// The code in a REQ.
    pub const fn service(self) -> TransportService {
        match self {
            Self::Rc => TransportService::RC,
            Self::Uc => TransportService::UC,
            Self::Rd => TransportService::RD,
            Self::Xrc => TransportService::XRC,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.service().fmt(f)
    }
}

/// Some of the transports.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Transports(u8);

impl Transports {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Reliable connections only.
    pub const RC: Self = Self::NONE.with(Transport::Rc);

    /// These and one more.
    #[must_use]
    pub const fn with(self, transport: Transport) -> Self {
        Self(self.0 | 1 << transport as u8)
    }

    /// Whether it is one of them.
    pub const fn contains(self, transport: Transport) -> bool {
        self.0 & 1 << transport as u8 != 0
    }
}

impl From<Transport> for Transports {
    fn from(transport: Transport) -> Self {
        Self::NONE.with(transport)
    }
}

impl<const N: usize> From<[Transport; N]> for Transports {
    fn from(transports: [Transport; N]) -> Self {
        transports.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [Transport::Rc, Transport::Uc, Transport::Rd, Transport::Xrc];
        f.debug_set().entries(all.iter().filter(|transport| self.contains(**transport))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        for transport in [Transport::Rc, Transport::Uc, Transport::Rd, Transport::Xrc] {
            assert_eq!(Transport::of(transport.service()), Some(transport));
        }
        for service_type in 0..4 {
            for extension in 0..8 {
                let service = TransportService::new(service_type, extension).unwrap();
                assert_eq!(Transport::of(service).map(Transport::service), service.known());
            }
        }
    }

    #[test]
    fn sets() {
        let both = Transports::from([Transport::Rc, Transport::Xrc]);
        assert!(both.contains(Transport::Rc) && both.contains(Transport::Xrc));
        assert!(!both.contains(Transport::Uc) && !Transports::NONE.contains(Transport::Rc));
        assert_eq!(Transports::from(Transport::Rc), Transports::RC);
        assert_eq!(format!("{both:?}"), "{Rc, Xrc}");
    }
}
