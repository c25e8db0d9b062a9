//! Building a subnet.

use ibdev::{DeviceError, PortTables};
use ibwire::{Guid, Mtu, PKey, Rate};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::at_once::Orders;
use super::driver;
use super::fabric::{Fabric, Link, PortId};
use super::link::{SimLink, Wires};
use super::node::{Node, PortShape};
use super::subnet::{Inner, Subnet};
use crate::device::{Core, SoftDevice};
use crate::engine::{Config, Engine, PortConfig, device_attr};
use crate::manager::{Qos, Topology};

/// A subnet to be built: awaited, it becomes a [`Subnet`] on the current tokio runtime, and is up.
///
/// Nodes come first, then the links between them. Each end of a link is a node's name, for its next free port, or name,
/// slash and number for that port.
///
/// # Errors
/// [`DeviceError::NoRuntime`] outside a tokio runtime; [`DeviceError::Limit`] for no rail or too many ports or LIDs;
/// [`DeviceError::InUse`] for a name that is there twice or a port with two links.
#[derive(Debug)]
#[must_use = "a subnet is built when this is awaited"]
pub struct BuildSubnet {
    nodes: Vec<NodeSpec>,
    links: Vec<LinkSpec>,
    mtu: Mtu,
    rate: Rate,
    lmc: u8,
    qos: Option<Qos>,
    timed: bool,
    managed: bool,
    seed: u64,
    refused: Option<DeviceError>,
}

#[derive(Debug)]
struct NodeSpec {
    name: String,
    is_switch: bool,
    /// Of an HCA; a switch has as many as links end there.
    ports: u8,
    pkeys: Option<Vec<PKey>>,
}

#[derive(Debug)]
struct LinkSpec {
    /// Index of the node, and its port if that was named.
    ends: [(usize, Option<u8>); 2],
    mtu: Mtu,
    rate: Rate,
}

/// Node GUIDs count from here, and leave room for the ports' GUIDs behind each.
const FIRST_GUID: u64 = 0x0200_00ff_fe00_0000;
const GUIDS_A_NODE: u64 = 0x100;
/// Most external ports of a node.
const MOST_PORTS: usize = 254;
/// P_Keys that a port holds.
const MOST_PKEYS: usize = super::node::PKEYS;
/// HCAs around each switch of a star that needs more than one.
const LEAF: usize = 250;

impl BuildSubnet {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            links: Vec::new(),
            mtu: Fabric::MTU,
            rate: Fabric::RATE,
            lmc: 0,
            qos: None,
            timed: false,
            managed: false,
            seed: 0,
            refused: None,
        }
    }

    pub(super) fn rails(rails: usize, names: Vec<String>) -> Self {
        let mut build = Self::new();
        if rails == 0 || rails > MOST_PORTS {
            build.limit("rails", rails, MOST_PORTS);
            return build;
        }
        if names.len() > MOST_PORTS * LEAF {
            build.limit("ports", names.len(), MOST_PORTS * LEAF);
            return build;
        }
        let count = names.len();
        build.nodes = names.into_iter().map(|name| NodeSpec::hca(name, rails as u8)).collect();
        for rail in 1..=rails as u8 {
            let middle = build.add_switch(format!("switch {rail}"));
            let mut around = middle;
            for hca in 0..count {
                if count > MOST_PORTS && hca % LEAF == 0 {
                    around = build.add_switch(format!("switch {rail}.{}", hca / LEAF + 1));
                    build.add_link([(around, None), (middle, None)]);
                }
                build.add_link([(hca, Some(rail)), (around, None)]);
            }
        }
        build
    }

    /// Decides every fault, QP number and PSN. 0 unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// An HCA with one port.
    pub fn hca(self, name: impl Into<String>) -> Self {
        self.hca_with_ports(name, 1)
    }

    /// An HCA with `ports` ports, 1..=254.
    pub fn hca_with_ports(mut self, name: impl Into<String>, ports: u8) -> Self {
        if ports == 0 || usize::from(ports) > MOST_PORTS {
            self.limit("ports of an HCA", ports.into(), MOST_PORTS);
        }
        self.nodes.push(NodeSpec::hca(name.into(), ports));
        self
    }

    /// The P_Keys of all ports of the HCA that was named last, 1 to 64 of them. [`PKey::DEFAULT`] alone unless set. Switches let
    /// no packets of other partitions in from it, and none out to it.
    ///
    /// # Panics
    /// If the node that was named last is no HCA.
    pub fn p_keys(mut self, p_keys: impl IntoIterator<Item = PKey>) -> Self {
        let p_keys: Vec<_> = p_keys.into_iter().collect();
        if p_keys.is_empty() || p_keys.len() > MOST_PKEYS {
            self.limit("P_Keys", p_keys.len(), MOST_PKEYS);
            return self;
        }
        match self.nodes.last_mut().filter(|node| !node.is_switch) {
            Some(hca) => hca.pkeys = Some(p_keys),
            None => panic!("P_Keys of no HCA: name it first"),
        }
        self
    }

    /// A switch. It has as many ports as links end there, at most 254.
    pub fn switch(mut self, name: impl Into<String>) -> Self {
        self.add_switch(name.into());
        self
    }

    /// A link between two nodes that were named before.
    ///
    /// # Panics
    /// If there is no such node, or an HCA has no such port.
    pub fn link(mut self, a: &str, b: &str) -> Self {
        let ends = [self.end(a), self.end(b)];
        self.add_link(ends);
        self
    }

    /// The MTU of the link that was named last; before the first link: of all that do not say otherwise, 4096 unless set.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        *self.links.last_mut().map_or(&mut self.mtu, |link| &mut link.mtu) = mtu;
        self
    }

    /// The rate of the link that was named last; before the first link: of all that do not say otherwise, 100 Gb/s unless
    /// set. It is what ports and paths say; packets take that time if [`timed`](Self::timed) is set.
    pub fn rate(mut self, rate: Rate) -> Self {
        *self.links.last_mut().map_or(&mut self.rate, |link| &mut link.rate) = rate;
        self
    }

    /// Each port of an HCA has 2^`lmc` LIDs, `lmc` 0..=7. 0 unless set.
    pub fn lmc(mut self, lmc: u8) -> Self {
        if lmc > 7 {
            self.limit("LMC", lmc.into(), 7);
        }
        self.lmc = lmc.min(7);
        self
    }

    /// Which VL packets of each SL take on every link, and how often each has its turn. VL 0 for all unless set; links have
    /// VLs 0 to 7.
    pub fn qos(mut self, qos: Qos) -> Self {
        for (what, entries) in [("low priority entries", &qos.low), ("high priority entries", &qos.high)] {
            if entries.len() > 32 {
                self.limit(what, entries.len(), 32);
            }
        }
        if let Some(vl) = qos.vls.iter().find(|vl| **vl > 15) {
            self.limit("VL", usize::from(*vl), 15);
        }
        self.qos = Some(qos);
        self
    }

    /// Packets take their time on each link, one behind the other, as its rate says. Without it they take no time but that of
    /// [`Faults::delay`](super::Faults::delay).
    pub fn timed(mut self) -> Self {
        self.timed = true;
        self
    }

    /// Each subnet, and each rail, has a subnet manager with subnet administration on its first switch, as a real one: when
    /// something changes it sweeps by packets that take their time and may get lost, and it answers the SA's queries. Its
    /// first sweep is over when the subnet is there. Without it the same is done at once whenever something changes, and
    /// nobody answers as the SA.
    pub fn managed(mut self) -> Self {
        self.managed = true;
        self
    }

    fn limit(&mut self, what: &'static str, value: usize, limit: usize) {
        let error = DeviceError::Limit { what, value: value as u64, limit: limit as u64 };
        self.refused.get_or_insert(error);
    }

    fn add_switch(&mut self, name: String) -> usize {
        self.nodes.push(NodeSpec { name, is_switch: true, ports: 0, pkeys: None });
        self.nodes.len() - 1
    }

    fn add_link(&mut self, ends: [(usize, Option<u8>); 2]) {
        self.links.push(LinkSpec { ends, mtu: self.mtu, rate: self.rate });
    }

    /// What a text of node and maybe port means.
    fn end(&self, text: &str) -> (usize, Option<u8>) {
        let find = |name: &str| self.nodes.iter().position(|node| node.name == name);
        if let Some(node) = find(text) {
            return (node, None);
        }
        let named =
            text.rsplit_once('/').and_then(|(name, port)| Some((find(name)?, port.parse::<u8>().ok()?)));
        let there = |(node, port): &(usize, u8)| {
            let node: &NodeSpec = &self.nodes[*node];
            *port > 0 && usize::from(*port) <= if node.is_switch { MOST_PORTS } else { node.ports.into() }
        };
        match named.filter(there) {
            Some((node, port)) => (node, Some(port)),
            None => panic!("no node or port {text:?} was named before"),
        }
    }

    fn build(&mut self) -> Result<Subnet, DeviceError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| DeviceError::NoRuntime)?;
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        self.check_names()?;
        self.put_hcas_first();
        let links = self.connect()?;
        let start = tokio::time::Instant::now().into_std();
        let nodes = self.make_nodes(&links);
        let ends: Vec<_> = links.iter().map(|(link, _)| *link).collect();
        let mut seeds = ChaCha8Rng::seed_from_u64(self.seed);
        let hcas = self.nodes.iter().filter(|node| !node.is_switch).count();
        let engines: Vec<[u8; 32]> = (0..hcas).map(|_| seeds.random()).collect();
        let mut fabric = Fabric::new(nodes, &ends, seeds.random(), start);
        fabric.timed = self.timed;
        fabric.orders = self.orders();
        let lacking = match self.managed {
            true => fabric.start_managers(start)?,
            false => fabric.configure_at_once(start),
        };
        if lacking > 0 {
            let limit = u64::from(Topology::LAST_LID);
            return Err(DeviceError::Limit { what: "LIDs", value: limit + lacking, limit });
        }
        // The engines are made with what the ports are now.
        while fabric.take_configured().is_some() {}
        let configs: Vec<_> =
            engines.into_iter().zip(&fabric.nodes).map(|(seed, node)| engine_config(node, seed)).collect();
        let wires = Arc::new(Wires::new(fabric, runtime.clone()));
        let device = |(hca, config)| {
            let link = SimLink::new(wires.clone(), hca, seeds.random());
            SoftDevice::new(Arc::new(Core::new(Engine::new(config), Box::new(link), start)))
        };
        let devices: Vec<_> = configs.into_iter().enumerate().map(device).collect();
        let inner = Arc::new(Inner::new(self.seed, wires.clone(), devices, seeds));
        runtime.spawn(driver::run(Arc::downgrade(&inner)));
        Ok(Subnet(inner))
    }

    /// What managers are told.
    fn orders(&self) -> Orders {
        let p_keys =
            self.nodes.iter().enumerate().filter_map(|(node, spec)| Some((node, spec.pkeys.clone()?)));
        Orders { lmc: self.lmc, qos: self.qos.clone(), p_keys: p_keys.collect() }
    }

    fn check_names(&self) -> Result<(), DeviceError> {
        let mut names = BTreeSet::new();
        match self.nodes.iter().all(|node| names.insert(&node.name)) {
            true => Ok(()),
            false => Err(DeviceError::InUse {
                what: "the name of an HCA or switch",
                holder: "another node of the subnet",
            }),
        }
    }

    /// HCAs have the lowest indices.
    fn put_hcas_first(&mut self) {
        let mut order: Vec<_> = (0..self.nodes.len()).collect();
        order.sort_by_key(|node| self.nodes[*node].is_switch);
        let mut now_at = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, node)| now_at[*node] = at);
        self.nodes.sort_by_key(|node| node.is_switch);
        for (node, _) in self.links.iter_mut().flat_map(|link| &mut link.ends) {
            *node = now_at[*node];
        }
    }

    /// Gives each link its ports.
    fn connect(&mut self) -> Result<Vec<(Link, PortShape)>, DeviceError> {
        let mut taken: Vec<_> = self.nodes.iter().map(|_| [false; MOST_PORTS + 1]).collect();
        for (node, port) in self.links.iter().flat_map(|link| link.ends) {
            if let Some(port) = port
                && std::mem::replace(&mut taken[node][usize::from(port)], true)
            {
                return Err(DeviceError::InUse { what: "a port", holder: "another link of the subnet" });
            }
        }
        let mut free_from = vec![1; self.nodes.len()];
        let mut links = Vec::with_capacity(self.links.len());
        for link in &self.links {
            let mut ends = [PortId { node: 0, port: 0 }; 2];
            for (end, (node, port)) in ends.iter_mut().zip(link.ends) {
                let spec = &mut self.nodes[node];
                let most = if spec.is_switch { MOST_PORTS } else { spec.ports.into() };
                let port = match port.map(usize::from) {
                    Some(port) => port,
                    None => {
                        let free: &mut usize = &mut free_from[node];
                        while *free <= most && taken[node][*free] {
                            *free += 1;
                        }
                        if *free > most {
                            let (value, limit) = (*free as u64, most as u64);
                            return Err(DeviceError::Limit { what: "links of a node", value, limit });
                        }
                        taken[node][*free] = true;
                        *free
                    }
                };
                if spec.is_switch {
                    spec.ports = spec.ports.max(port as u8);
                }
                *end = PortId { node, port: port as u8 };
            }
            let shape = PortShape { number: 0, guid: Guid(0), mtu: link.mtu, rate: link.rate };
            links.push((Link(ends[0], ends[1]), shape));
        }
        Ok(links)
    }

    fn make_nodes(&self, links: &[(Link, PortShape)]) -> Vec<Node> {
        let default = PortShape { number: 0, guid: Guid(0), mtu: self.mtu, rate: self.rate };
        let mut shapes: Vec<_> = self.nodes.iter().map(|node| vec![default; node.ports.into()]).collect();
        for (Link(a, b), shape) in links {
            for end in [a, b] {
                shapes[end.node][usize::from(end.port) - 1] = *shape;
            }
        }
        let make = |(at, (spec, shapes)): (usize, (&NodeSpec, Vec<PortShape>))| {
            let guid = Guid(FIRST_GUID + (at as u64 + 1) * GUIDS_A_NODE);
            let ports = shapes.into_iter().zip(1..).map(|(shape, number)| PortShape { number, ..shape });
            if spec.is_switch {
                return Node::switch(spec.name.clone(), guid, ports);
            }
            let with_guid =
                ports.map(|shape| PortShape { guid: Guid(guid.0 + u64::from(shape.number)), ..shape });
            Node::hca(spec.name.clone(), guid, with_guid)
        };
        self.nodes.iter().zip(shapes).enumerate().map(make).collect()
    }
}

impl NodeSpec {
    fn hca(name: String, ports: u8) -> Self {
        Self { name, is_switch: false, ports, pkeys: None }
    }
}

/// Raw QPs of each type on a port.
const RAW_QPS: u32 = 256;

pub(super) fn engine_config(node: &Node, seed: [u8; 32]) -> Config {
    let ports = node.numbers().filter_map(|number| {
        let PortTables { attr, gids, pkeys } = node.port(number)?.tables(number);
        Some(PortConfig { attr, gids, pkeys })
    });
    let mut attr = device_attr(node.name.clone(), node.guid, node.port_count());
    (attr.max_raw_ipv6_qp, attr.max_raw_ethertype_qp, attr.raw_multicast) = (RAW_QPS, RAW_QPS, true);
    Config::new(attr, ports.collect(), seed)
}

impl Future for BuildSubnet {
    type Output = Result<Subnet, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.build())
    }
}
