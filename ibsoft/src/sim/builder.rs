//! Building a subnet.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ibdev::{DeviceError, GidEntry, GidKind, LinkLayer, PortAttr, PortState};
use ibwire::{Gid, Guid, Lid, PKey, ServiceLevel};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::driver;
use super::fabric::{Fabric, Node, Plug, PortId};
use super::link::{SimLink, Wires};
use super::subnet::{Inner, Subnet};
use crate::device::{Core, SoftDevice};
use crate::engine::{Config, Engine, PortConfig, device_attr};

/// A subnet to be built: awaited, it becomes a [`Subnet`] on the current tokio runtime.
///
/// # Errors
/// [`DeviceError::NoRuntime`] outside a tokio runtime; [`DeviceError::Limit`] for no rail or too many ports;
/// [`DeviceError::InUse`] for a name that is there twice.
#[derive(Debug)]
#[must_use = "a subnet is built when this is awaited"]
pub struct BuildSubnet {
    names: Vec<String>,
    rails: usize,
    seed: u64,
}

/// Node GUIDs count from here, and leave room for the ports' GUIDs behind each.
const FIRST_GUID: u64 = 0x0200_00ff_fe00_0000;
const GUIDS_A_NODE: u64 = 0x100;

impl BuildSubnet {
    pub(super) fn new(rails: usize, names: Vec<String>) -> Self {
        Self { names, rails, seed: 0 }
    }

    /// Decides every fault, QP number and PSN. 0 unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    fn build(&mut self) -> Result<Subnet, DeviceError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| DeviceError::NoRuntime)?;
        let names = std::mem::take(&mut self.names);
        self.check(&names)?;
        let start = tokio::time::Instant::now().into_std();
        let nodes: Vec<_> = names.into_iter().enumerate().map(|(hca, name)| self.node(hca, name)).collect();
        let mut seeds = ChaCha8Rng::seed_from_u64(self.seed);
        let configs: Vec<_> = nodes.iter().map(|node| engine_config(node, seeds.random())).collect();
        let wires = Arc::new(Wires::new(Fabric::new(nodes, seeds.random(), start)));
        let device = |(hca, config)| {
            let link = SimLink::new(wires.clone(), hca, seeds.random());
            SoftDevice::new(Arc::new(Core::new(Engine::new(config), Box::new(link), start)))
        };
        let devices = configs.into_iter().enumerate().map(device).collect();
        let inner = Arc::new(Inner::new(self.seed, wires.clone(), devices));
        runtime.spawn(driver::run(Arc::downgrade(&inner)));
        Ok(Subnet(inner))
    }

    fn check(&self, names: &[String]) -> Result<(), DeviceError> {
        const MOST_RAILS: usize = 254;
        const MOST_LIDS: usize = 0xbfff;
        if self.rails == 0 || self.rails > MOST_RAILS {
            let (value, limit) = (self.rails as u64, MOST_RAILS as u64);
            return Err(DeviceError::Limit { what: "rails", value, limit });
        }
        let lids = names.len() * self.rails;
        if lids > MOST_LIDS {
            return Err(DeviceError::Limit { what: "ports", value: lids as u64, limit: MOST_LIDS as u64 });
        }
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(DeviceError::InUse {
                what: "the name of an HCA",
                holder: "another HCA of the subnet",
            });
        }
        Ok(())
    }

    fn node(&self, hca: usize, name: String) -> Node {
        let guid = Guid(FIRST_GUID + (hca as u64 + 1) * GUIDS_A_NODE);
        let plug = |rail| Plug {
            rail,
            lid: Lid((hca * self.rails + rail + 1) as u16),
            gid: Gid::link_local(Guid(guid.0 + rail as u64 + 1)),
            up: true,
        };
        Node { name, guid, ports: (0..self.rails).map(plug).collect(), removed: false }
    }
}

/// Raw QPs of each type on a port.
const RAW_QPS: u32 = 256;

fn engine_config(node: &Node, seed: [u8; 32]) -> Config {
    let ports = node.ports.iter().zip(1..).map(|(plug, number)| PortConfig {
        attr: PortAttr {
            number,
            state: PortState::Active,
            link_layer: LinkLayer::InfiniBand,
            active_mtu: Fabric::MTU,
            lid: plug.lid,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Fabric::RATE,
        },
        gids: gid_table(plug.gid),
        pkeys: vec![PKey::DEFAULT],
    });
    let mut attr = device_attr(node.name.clone(), node.guid, node.ports.len() as u8);
    (attr.max_raw_ipv6_qp, attr.max_raw_ethertype_qp, attr.raw_multicast) = (RAW_QPS, RAW_QPS, true);
    Config::new(attr, ports.collect(), seed)
}

/// The GIDs of a port: it has one.
pub(super) fn gid_table(gid: Gid) -> Vec<GidEntry> {
    vec![GidEntry { index: 0, gid, kind: GidKind::Infiniband }]
}

impl Future for BuildSubnet {
    type Output = Result<Subnet, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.build())
    }
}

/// All ports of an HCA.
pub(super) fn ports_of(hca: usize, node: &Node) -> impl Iterator<Item = PortId> + use<> {
    (1..=node.ports.len() as u8).map(move |port| PortId { hca, port })
}
