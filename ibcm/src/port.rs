//! A port of an HCA.

use std::fmt;

use ibdev::{GidEntry, GidKind, LinkLayer, PortState};
use ibwire::{Gid, Lid, Mtu};

use crate::events::HcaEvents;
use crate::hca::Hca;
use crate::path::{Origin, PathBuilder};
use crate::proto::LocalPort;

/// A port of an [`Hca`]. A cheap handle, which keeps the HCA open.
#[derive(Clone, PartialEq, Eq)]
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

    /// The GID by which peers reach it: on RoCE the first of type RoCE v2 that is not
    /// link-local, or the first of them. [`Gid::UNSPECIFIED`] if it has none.
    pub fn gid(&self) -> Gid {
        self.local().map_or(Gid::UNSPECIFIED, |port| first_gid(&port))
    }

    /// Its GID table; unused entries are left out. On RoCE its addresses, on most NICs each of them once a type.
    ///
    /// ```
    /// # use ibcm::{GidKind, Hca};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hca = Hca::open("soft").await?;
    /// for port in hca.ports() {
    ///     for entry in port.gids().iter().filter(|entry| entry.kind == GidKind::RoceV2) {
    ///         println!("port {} has {}, MTU {}", port.number(), entry.gid.to_ip(), port.mtu());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn gids(&self) -> Vec<GidEntry> {
        self.local().map_or_else(Vec::new, |port| port.gids)
    }

    /// Its base LID; [`Lid::NONE`] on RoCE.
    pub fn lid(&self) -> Lid {
        self.local().map_or(Lid::NONE, |port| port.lid)
    }

    /// The MTU in force: the longest datagram, and the most that a path can have.
    pub fn mtu(&self) -> Mtu {
        self.local().map_or(Mtu::B256, |port| port.mtu)
    }

    /// InfiniBand, or Ethernet for RoCE.
    pub fn link_layer(&self) -> LinkLayer {
        self.local().map_or(LinkLayer::InfiniBand, |port| port.link_layer)
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

/// The GID by which peers reach a port: of RoCE v2 one that is known beyond the link, if there is one.
pub(crate) fn first_gid(port: &LocalPort) -> Gid {
    let of = |kind| port.gids.iter().filter(move |entry| entry.kind == kind);
    let routable = of(GidKind::RoceV2).find(|entry| !entry.gid.is_link_local());
    let entry = routable.or_else(|| of(GidKind::RoceV2).next());
    let entry = entry.or_else(|| of(GidKind::Infiniband).next()).or(port.gids.first());
    entry.map_or(Gid::UNSPECIFIED, |entry| entry.gid)
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({}/{})", self.hca.name(), self.number)
    }
}

#[cfg(test)]
mod tests {
    use ibdev::PortAttr;
    use ibwire::{Rate, ServiceLevel};

    use super::*;

    fn port(link_layer: LinkLayer, gids: &[(GidKind, &str)]) -> LocalPort {
        let attr = PortAttr {
            number: 1,
            state: PortState::Active,
            link_layer,
            active_mtu: Mtu::B1024,
            lid: Lid::NONE,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Rate::PORT_CURRENT,
        };
        let gids = gids.iter().enumerate().map(|(index, (kind, gid))| GidEntry {
            index: index as u16,
            gid: gid.parse().expect("a GID"),
            kind: *kind,
        });
        LocalPort::new(&attr, gids.collect(), Vec::new())
    }

    #[test]
    fn peers_dial_an_address_that_they_can_route_to() {
        use GidKind::{Infiniband, RoceV1, RoceV2};
        let of = |link_layer, gids: &[_]| first_gid(&port(link_layer, gids)).to_string();
        let (own, v4, v6) = ("fe80::1", "::ffff:10.0.0.1", "fd00::1");
        let roce = LinkLayer::Ethernet;
        assert_eq!(of(roce, &[(RoceV1, own), (RoceV2, own), (RoceV1, v4), (RoceV2, v4)]), v4);
        assert_eq!(of(roce, &[(RoceV2, own), (RoceV2, v6), (RoceV2, v4)]), v6);
        assert_eq!(of(roce, &[(RoceV1, v4), (RoceV2, own)]), own);
        assert_eq!(of(LinkLayer::InfiniBand, &[(Infiniband, own)]), own);
        assert_eq!(of(roce, &[]), "::");
    }
}
