//! Ports: addresses, partitions, state.

use ibdev::{AddressVector, GidEntry, GidKind, GlobalRoute, LinkLayer, PortAttr, PortState};
use ibwire::{Lid, PKey};

use super::config::PortConfig;
use super::net::{NetHeader, NetRoute};

/// Hop limit of routes back to a sender (spec/softhca.md 1.11).
const HOP_LIMIT: u8 = 64;

/// A port and its tables.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) attr: PortAttr,
    pub(super) gids: Vec<GidEntry>,
    pub(super) pkeys: Vec<PKey>,
}

/// How a packet reached a port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// Low bits of the LID that it was sent to.
    pub(super) path_bits: u8,
    /// The route back, if it had a GRH.
    pub(super) grh: Option<GlobalRoute>,
}

impl Port {
    pub(super) fn new(number: u8, config: PortConfig) -> Self {
        Self { attr: PortAttr { number, ..config.attr }, gids: config.gids, pkeys: config.pkeys }
    }

    pub(super) fn is_up(&self) -> bool {
        self.attr.state == PortState::Active
    }

    /// The largest payload of a packet in bytes.
    pub(super) fn mtu(&self) -> usize {
        self.attr.active_mtu.bytes().unwrap_or(256) as usize
    }

    /// The header of packets to `av`, or why there is no way.
    pub(super) fn resolve(&self, av: &AddressVector) -> Result<NetHeader, &'static str> {
        let route = match &av.grh {
            Some(grh) => {
                let Some(source) = self.gids.iter().find(|entry| entry.index == grh.sgid_index) else {
                    return Err("no GID at this index of the port's table");
                };
                Some(NetRoute {
                    sgid: source.gid,
                    dgid: grh.dgid,
                    flow_label: grh.flow_label,
                    traffic_class: grh.traffic_class,
                    hop_limit: grh.hop_limit,
                    ip_id: 0,
                })
            }
            None => None,
        };
        match (self.attr.link_layer, route) {
            (LinkLayer::Ethernet, None) => Err("a RoCE address without a global route"),
            (LinkLayer::Ethernet, Some(route))
                if route.sgid.to_ip().is_ipv4() != route.dgid.to_ip().is_ipv4() =>
            {
                Err("IPv4 and IPv6 in one RoCE address")
            }
            (LinkLayer::Ethernet, Some(route)) => Ok(NetHeader::roce(route)),
            _ if u32::from(av.path_bits) >= 1 << (self.attr.lmc & 7) => {
                Err("path bits beyond the port's LMC")
            }
            _ => Ok(NetHeader {
                slid: Lid(self.attr.lid.0 | u16::from(av.path_bits)),
                dlid: av.dlid,
                sl: av.sl,
                route,
            }),
        }
    }

    /// The index of the P_Key that lets in packets with this one: the same, or else one that matches.
    pub(super) fn pkey_index(&self, sent: PKey) -> Option<u16> {
        let at = |is_it: &dyn Fn(PKey) -> bool| self.pkeys.iter().position(|&pkey| is_it(pkey));
        let index =
            at(&|pkey| pkey == sent && pkey.matches(sent)).or_else(|| at(&|pkey| pkey.matches(sent)))?;
        u16::try_from(index).ok()
    }

    /// How a packet to a multicast group reached this port.
    pub(super) fn group_arrival(&self, net: &NetHeader) -> Option<Arrival> {
        let route = net.route.as_ref()?;
        let is_ethernet = self.attr.link_layer == LinkLayer::Ethernet;
        let fits = |entry: &&GidEntry| {
            let same_family = entry.gid.to_ip().is_ipv4() == route.dgid.to_ip().is_ipv4();
            !is_ethernet || entry.kind == GidKind::RoceV2 && same_family
        };
        let own = self.gids.iter().find(fits)?;
        let grh = GlobalRoute {
            dgid: route.sgid,
            sgid_index: own.index,
            flow_label: route.flow_label,
            hop_limit: HOP_LIMIT,
            traffic_class: route.traffic_class,
        };
        Some(Arrival { path_bits: 0, grh: Some(grh) })
    }

    /// How a packet reached this port, `None` if it is for another one.
    pub(super) fn arrival(&self, net: &NetHeader) -> Option<Arrival> {
        let grh = match &net.route {
            Some(route) => {
                let to = self.gids.iter().find(|entry| entry.gid == route.dgid)?;
                Some(GlobalRoute {
                    dgid: route.sgid,
                    sgid_index: to.index,
                    flow_label: route.flow_label,
                    hop_limit: HOP_LIMIT,
                    traffic_class: route.traffic_class,
                })
            }
            None => None,
        };
        if self.attr.link_layer == LinkLayer::Ethernet {
            return grh.is_some().then_some(Arrival { path_bits: 0, grh });
        }
        let path_bits = net.dlid.0 ^ self.attr.lid.0;
        (path_bits >> (self.attr.lmc & 7) == 0).then_some(Arrival { path_bits: path_bits as u8, grh })
    }
}
