//! A port of an HCA.

use std::fmt;

use ibdev::{GidKind, PortState};
use ibwire::{Gid, Lid};

use crate::events::HcaEvents;
use crate::hca::Hca;
use crate::path::{Origin, PathBuilder};
use crate::proto::LocalPort;

/// A port of an [`Hca`]. A cheap handle, which keeps the HCA open.
#[derive(Clone)]
pub struct Port {
    hca: Hca,
    number: u8,
}

impl Port {
    pub(crate) const fn new(hca: Hca, number: u8) -> Self {
        Self { hca, number }
    }

    /// Its number, from 1.
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// The HCA that it belongs to.
    pub const fn hca(&self) -> &Hca {
        &self.hca
    }

    /// The GID by which peers reach it: on RoCE the first of type RoCE v2. [`Gid::UNSPECIFIED`] if it has none.
    pub fn gid(&self) -> Gid {
        self.local().map_or(Gid::UNSPECIFIED, |port| first_gid(&port))
    }

    /// Its base LID; [`Lid::NONE`] on RoCE.
    pub fn lid(&self) -> Lid {
        self.local().map_or(Lid::NONE, |port| port.lid)
    }

    /// Whether it carries traffic.
    pub fn state(&self) -> PortState {
        match self.local() {
            Some(port) if port.active => PortState::Active,
            _ => PortState::Down,
        }
    }

    /// Finds a path from this port to the port with this GID.
    pub fn path_to(&self, dgid: Gid) -> PathBuilder {
        PathBuilder::new(Origin::Port(self.clone()), dgid)
    }

    /// Queries to the SA of its subnet. On RoCE there is none, and every request fails at once.
    pub fn sa(&self) -> crate::sa::Client {
        self.hca.shared().sa.of(self.hca.shared(), self.number)
    }

    /// What happens to it from now on.
    pub fn events(&self) -> HcaEvents {
        HcaEvents::new(&self.hca.shared().events, Some(self.number))
    }

    fn local(&self) -> Option<LocalPort> {
        self.hca.shared().engine().endpoint.local_ca().port(self.number).cloned()
    }
}

/// The GID by which peers reach a port.
pub(crate) fn first_gid(port: &LocalPort) -> Gid {
    let of = |kind| port.gids.iter().find(|entry| entry.kind == kind);
    let entry = of(GidKind::RoceV2).or_else(|| of(GidKind::Infiniband)).or(port.gids.first());
    entry.map_or(Gid::UNSPECIFIED, |entry| entry.gid)
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({}/{})", self.hca.name(), self.number)
    }
}
