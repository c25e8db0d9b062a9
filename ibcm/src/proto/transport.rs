//! Which transport a connection is of.

use std::fmt;

use ibwire::{QKey, Qpn};

use super::message::{Eecn, Rep, Req, TransportService};

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

    /// The number that the sender of a REQ is known by: that of its queue pair, or of its EE context.
    pub(super) fn end_of_req(self, req: &Req) -> Qpn {
        match self {
            Self::Rd => end_of(req.local_eecn),
            Self::Rc | Self::Uc | Self::Xrc => req.local_qpn,
        }
    }

    /// The same with a REP. With XRC the number of the target queue pair stands in the place of the EE context.
    pub(super) fn end_of_rep(self, rep: &Rep) -> Qpn {
        match self {
            Self::Rd | Self::Xrc => end_of(rep.local_eecn),
            Self::Rc | Self::Uc => rep.local_qpn,
        }
    }

    /// The most reads and atomics that the active side's queue pair can have, of so many that the device can: inbound and
    /// outbound.
    pub(super) const fn active_depths(self, inbound: u8, outbound: u8) -> (u8, u8) {
        match self {
            Self::Rc | Self::Rd => (inbound, outbound),
            Self::Uc => (0, 0),
            // An initiator serves nobody.
            Self::Xrc => (0, outbound),
        }
    }

    /// The same for the passive side.
    pub(super) const fn passive_depths(self, inbound: u8, outbound: u8) -> (u8, u8) {
        match self {
            Self::Rc | Self::Rd => (inbound, outbound),
            Self::Uc => (0, 0),
            // A target asks nobody.
            Self::Xrc => (inbound, 0),
        }
    }
}

/// The number of an EE context where that of a queue pair stands elsewhere.
pub(super) const fn end_of(eecn: Eecn) -> Qpn {
    Qpn::truncate(eecn.get())
}

/// What reliable datagrams have besides a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdEnd {
    /// The EE context. Not 0.
    pub eecn: Eecn,
    /// The Q_Key of the queue pair.
    pub qkey: QKey,
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
