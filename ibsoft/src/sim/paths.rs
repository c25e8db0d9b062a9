//! Who has which GID, and the paths there, for devices that know their subnet themselves.

use ibwire::{Gid, Mtu, PacketLifeTime, PathRecord};

use super::fabric::{Fabric, PortId};

/// Hop limit of packets to groups.
const GROUP_HOPS: u8 = 64;
/// 268 ms, so that packets that a fault holds back are not taken for lost.
const LIFE_TIME: PacketLifeTime = PacketLifeTime::truncate(16);

impl Fabric {
    /// Gives a port another GID, or says why not.
    pub(super) fn set_gid(&mut self, id: PortId, gid: Gid) -> Result<(), &'static str> {
        if self.managed {
            return Err("its subnet manager alone gives GIDs");
        }
        self.learn_gids();
        if self.gids.get(&gid).is_some_and(|ports| ports.iter().any(|other| *other != id)) {
            return Err("another port of the subnet has that GID");
        }
        if self.nodes[id.node].port(id.port).is_none() {
            return Err("the HCA has no such port");
        }
        self.nodes[id.node].configure(id.port, |port| {
            port.info.gid_prefix = gid.prefix();
            port.guids[0] = ibwire::Guid(gid.interface_id());
        });
        self.changed(id.node);
        Ok(())
    }

    fn learn_gids(&mut self) {
        if !std::mem::take(&mut self.gids_are_old) {
            return;
        }
        self.gids.clear();
        for (node, state) in self.nodes.iter().enumerate().filter(|(_, node)| !node.is_switch()) {
            for port in 1..=state.port_count() {
                let own = state.port(port);
                let gids =
                    own.into_iter().flat_map(|own| (0..own.guids.len()).filter_map(|index| own.gid(index)));
                for gid in gids {
                    self.gids.entry(gid).or_default().push(PortId { node, port });
                }
            }
        }
    }

    /// The path from a port to a GID, if they are connected at all and both have LIDs, which an HCA that is out has not.
    /// Whether packets pass at the moment does not matter.
    pub(super) fn path(&mut self, from: PortId, dgid: Gid) -> Option<PathRecord> {
        self.learn_gids();
        let own = self.nodes[from.node].port(from.port).filter(|_| from.port > 0)?;
        let (sgid, slid) = (own.gid(0)?, own.info.lid);
        if !slid.is_unicast() {
            return None;
        }
        let subnet = self.subnet_of(from);
        if dgid.is_multicast() {
            // Where there is an SA it alone makes groups.
            if self.managed {
                return None;
            }
            let (mtu, rate) = (own.info.neighbor_mtu, own.rate);
            let dlid = self.mlid(subnet, dgid)?;
            let record = PathRecord::exact(sgid, dgid, mtu, rate, LIFE_TIME);
            // Packets to groups always have a GRH.
            return Some(PathRecord { slid, dlid, hop_limit: GROUP_HOPS, ..record });
        }
        let to = self.gids.get(&dgid)?.iter().find(|to| self.subnet_of(**to) == subnet)?;
        let dlid = Some(self.nodes[to.node].port(to.port)?.info.lid).filter(|lid| lid.is_unicast())?;
        let outs = self.route(from, dlid);
        let ports = outs.iter().filter_map(|out| self.nodes[out.node].port(out.port));
        let (mut mtu, mut rate) = (own.info.neighbor_mtu, own.rate);
        for port in ports {
            mtu = Mtu(mtu.0.min(port.info.neighbor_mtu.0));
            rate = [rate, port.rate].into_iter().min_by_key(|rate| rate.mbps())?;
        }
        let record = PathRecord::exact(sgid, dgid, mtu, rate, LIFE_TIME);
        Some(PathRecord { slid, dlid, ..record })
    }
}
