//! Our GIDs by numbers of the engine's own, so that addresses stay right when a port's GID table changes.

use ibdev::{AddressVector, GidKind, MadAddr};
use ibwire::Gid;

use super::local::LocalPort;

/// Where the MADs of a connection go. The GID index in it is a number in [`Sgids`]; the device's own is put in when
/// something is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address(MadAddr);

impl Address {
    /// The port that it starts from.
    pub(super) fn port(&self) -> u8 {
        self.0.av.port
    }

    /// The other end.
    pub(super) fn av(&self) -> &AddressVector {
        &self.0.av
    }
}

/// The GIDs that the ports have or had: as many as the HCA ever had.
#[derive(Debug, Default)]
pub(super) struct Sgids(Vec<Sgid>);

#[derive(Debug)]
struct Sgid {
    port: u8,
    /// `None` if the table did not have the index that a MAD came by: then the index is all that is known.
    name: Option<(Gid, GidKind)>,
    /// Where it is in the table now.
    index: Option<u16>,
}

impl Sgids {
    pub(super) fn new(ports: &[LocalPort]) -> Self {
        let mut sgids = Self::default();
        ports.iter().for_each(|port| sgids.update(port));
        sgids
    }

    /// The port's table is this now.
    pub(super) fn update(&mut self, port: &LocalPort) {
        for known in self.0.iter_mut().filter(|known| known.port == port.number) {
            match known.name {
                Some((gid, kind)) => known.index = port.index_of(gid, kind),
                // A MAD may have come by a new GID before the news of it.
                None => {
                    let entry = port.gids.iter().find(|entry| Some(entry.index) == known.index);
                    known.name = entry.map(|entry| (entry.gid, entry.kind));
                }
            }
        }
        for entry in &port.gids {
            let name = Some((entry.gid, entry.kind));
            if !self.0.iter().any(|known| known.port == port.number && known.name == name) {
                self.0.push(Sgid { port: port.number, name, index: Some(entry.index) });
            }
        }
    }

    /// The address `to`, whose GID index is right at present.
    pub(super) fn address(&mut self, mut to: MadAddr) -> Address {
        let port = to.av.port;
        if let Some(grh) = &mut to.av.grh {
            let index = Some(grh.sgid_index);
            let known = self.0.iter().position(|known| known.port == port && known.index == index);
            let number = known.unwrap_or_else(|| {
                self.0.push(Sgid { port, name: None, index });
                self.0.len() - 1
            });
            // More than these a device cannot have at once, let alone connections by them.
            grh.sgid_index = u16::try_from(number).unwrap_or(u16::MAX);
        }
        Address(to)
    }

    /// The address as the device wants it; `None` while the port does not have the GID.
    #[inline]
    pub(super) fn resolve(&self, address: &Address) -> Option<MadAddr> {
        let mut to = address.0;
        if let Some(grh) = &mut to.av.grh {
            let index = self.0.get(usize::from(grh.sgid_index))?.index?;
            if index != grh.sgid_index {
                grh.sgid_index = index;
            }
        }
        Some(to)
    }

    /// Our GID of the address, if it is known.
    pub(super) fn gid(&self, address: &Address) -> Option<Gid> {
        let grh = address.0.av.grh.as_ref()?;
        self.0.get(usize::from(grh.sgid_index))?.name.map(|(gid, _)| gid)
    }
}

#[cfg(test)]
mod tests {
    use ibdev::{GidEntry, GlobalRoute, LinkLayer, PortAttr, PortState};
    use ibwire::{Lid, Mtu, QKey, Qpn, Rate, ServiceLevel};

    use super::*;

    fn gid(n: u8) -> Gid {
        Gid([n; 16])
    }

    /// A port with these GIDs at these indices; each has a RoCE v1 entry ten below.
    fn port(number: u8, gids: &[(u8, u16)]) -> LocalPort {
        let attr = PortAttr {
            number,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Mtu::B1024,
            lid: Lid::NONE,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Rate::PORT_CURRENT,
        };
        let entries = gids.iter().flat_map(|&(n, index)| {
            let entry = |index, kind| GidEntry { index, gid: gid(n), kind };
            [entry(index - 10, GidKind::RoceV1), entry(index, GidKind::RoceV2)]
        });
        LocalPort::new(&attr, entries.collect(), Vec::new())
    }

    fn to(port: u8, sgid_index: u16) -> MadAddr {
        let grh = GlobalRoute {
            dgid: gid(99),
            sgid_index,
            flow_label: Default::default(),
            hop_limit: 64,
            traffic_class: 0,
        };
        let av = AddressVector {
            port,
            dlid: Lid::NONE,
            sl: Default::default(),
            path_bits: 0,
            rate: Rate::PORT_CURRENT,
            grh: Some(grh),
        };
        MadAddr { av, qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 }
    }

    #[test]
    fn an_address_follows_its_gid() {
        let mut sgids = Sgids::new(&[port(1, &[(1, 10), (2, 11)]), port(2, &[(1, 10)])]);
        let [first, second, old, other] =
            [(1, 10), (1, 11), (1, 0), (2, 10)].map(|(port, index)| sgids.address(to(port, index)));
        let all = [first, second, old, other];
        let indices = |sgids: &Sgids| all.map(|to| Some(sgids.resolve(&to)?.av.grh.unwrap().sgid_index));
        assert_eq!(indices(&sgids), [Some(10), Some(11), Some(0), Some(10)]);
        sgids.update(&port(1, &[(3, 10), (1, 11)]));
        assert_eq!(indices(&sgids), [Some(11), None, Some(1), Some(10)]);
        sgids.update(&port(1, &[(2, 20)]));
        assert_eq!(indices(&sgids), [None, Some(20), None, Some(10)]);
        assert_eq!(all.map(|to| sgids.gid(&to)), [1, 2, 1, 1].map(|n| Some(gid(n))));
        let known = sgids.0.len();
        for n in 0..100 {
            sgids.update(&port(1, &[(1 + n % 3, 30)]));
        }
        assert_eq!(sgids.0.len(), known);
    }

    /// A MAD came by a GID that the table does not have yet.
    #[test]
    fn an_index_without_a_gid() {
        let mut sgids = Sgids::new(&[port(1, &[(1, 10)])]);
        let address = sgids.address(to(1, 12));
        assert_eq!((sgids.resolve(&address), sgids.gid(&address)), (Some(to(1, 12)), None));
        assert_eq!(sgids.address(to(1, 12)).0, address.0);
        sgids.update(&port(1, &[(1, 11)]));
        assert_eq!(sgids.resolve(&address), Some(to(1, 12)));
        sgids.update(&port(1, &[(1, 10), (2, 12)]));
        sgids.update(&port(1, &[(2, 15)]));
        assert_eq!((sgids.resolve(&address), sgids.gid(&address)), (Some(to(1, 15)), Some(gid(2))));
    }
}
