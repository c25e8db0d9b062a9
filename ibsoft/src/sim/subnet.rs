//! A subnet in the hands of its user.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ibwire::Gid;
use rand::RngExt;
use rand::distr::{Distribution, StandardUniform};
use rand::rngs::ChaCha8Rng;

use super::builder::BuildSubnet;
use super::fabric::{BY_HAND, Fabric, PortId};
use super::faults::FaultRates;
use super::link::Wires;
use super::node::AgentCounters;
use crate::device::SoftDevice;

/// HCAs and the wires between them, all in this process and on the clock of its tokio runtime: under a paused clock
/// its time is virtual.
///
/// A cheap handle; clones are the same subnet. Dropping the last one takes the devices away: what still runs on them
/// gets [`DeviceError::Gone`](ibdev::DeviceError::Gone). If that happens because a test fails, the seed and the last
/// packets are printed.
///
/// Methods that take the name of an HCA panic if there is none of that name: they are for tests.
#[derive(Debug, Clone)]
pub struct Subnet(pub(super) Arc<Inner>);

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// What the handles of a subnet share.
pub(super) struct Inner {
    seed: u64,
    pub wires: Arc<Wires>,
    /// In the order of the nodes. One that comes back is another device.
    devices: Vec<Mutex<SoftDevice>>,
    /// For the devices that come back.
    seeds: Mutex<ChaCha8Rng>,
    /// Held while something happens by chance, or is ended: no end comes before its beginning.
    pub mishap: Mutex<()>,
}

impl Inner {
    pub(super) fn new(seed: u64, wires: Arc<Wires>, devices: Vec<SoftDevice>, seeds: ChaCha8Rng) -> Self {
        let devices = devices.into_iter().map(Mutex::new).collect();
        Self { seed, wires, devices, seeds: Mutex::new(seeds), mishap: Mutex::default() }
    }

    pub(super) fn device(&self, hca: usize) -> SoftDevice {
        self.devices[hca].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn hcas(&self) -> usize {
        self.devices.len()
    }

    /// Draws something for a device that comes back.
    pub(super) fn draw<T>(&self) -> T
    where
        StandardUniform: Distribution<T>,
    {
        self.seeds.lock().unwrap_or_else(PoisonError::into_inner).random()
    }

    /// Puts another device in the place of one, which is returned.
    pub(super) fn replace_device(&self, hca: usize, device: SoftDevice) -> SoftDevice {
        let mut there = self.devices[hca].lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *there, device)
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = SoftDevice> {
        (0..self.devices.len()).map(|hca| self.device(hca))
    }
}

/// Packets that a failing test prints.
const LAST_PACKETS: usize = 100;

impl Subnet {
    /// One switch, and around it an HCA with one port for each name. More than 254 HCAs are around leaf switches, which are
    /// around that one. The switch in the middle is called "switch 1". Nobody answers as the SA there unless it is built with
    /// [`managed`](BuildSubnet::managed).
    pub fn star<N: Into<String>>(names: impl IntoIterator<Item = N>) -> BuildSubnet {
        Self::rails(1, names)
    }

    /// An HCA with `n` ports for each name: port k of each is on rail k, a star of its own around "switch k". Rails are not
    /// connected.
    pub fn rails<N: Into<String>>(n: usize, names: impl IntoIterator<Item = N>) -> BuildSubnet {
        BuildSubnet::rails(n, names.into_iter().map(Into::into).collect())
    }

    /// HCAs, switches and links, named one by one.
    ///
    /// ```
    /// # use ibsoft::sim::Subnet;
    /// # use ibwire::Rate;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), ibdev::DeviceError> {
    /// let net = Subnet::builder()
    ///     .switch("left")
    ///     .switch("right")
    ///     .link("left", "right")
    ///     .rate(Rate::GBPS_25)
    ///     .hca("a")
    ///     .link("a", "left")
    ///     .hca_with_ports("b", 2)
    ///     .link("b/1", "left")
    ///     .link("b/2", "right")
    ///     .await?;
    /// # drop(net);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> BuildSubnet {
        BuildSubnet::new()
    }

    /// The HCA of that name, to be opened as a device.
    ///
    /// # Panics
    /// If there is none.
    pub fn device(&self, name: &str) -> SoftDevice {
        self.0.device(self.hca(name))
    }

    /// The seed that it was built with.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// What goes wrong on the way. Nothing unless set.
    pub fn faults(&self) -> Faults {
        Faults(self.clone())
    }

    /// From now on nothing passes between the HCAs and switches of the two groups, in either direction; what is under way is
    /// lost. It is where packets begin and end that counts, not where they pass: of a switch that is its subnet manager.
    ///
    /// # Panics
    /// If there is no HCA or switch of one of the names.
    pub fn partition(&self, a: &[&str], b: &[&str]) {
        let group = |names: &[&str]| names.iter().map(|name| self.node(name)).collect::<BTreeSet<_>>();
        let (a, b) = (group(a), group(b));
        self.0.wires.fabric().partition(BY_HAND, a, b);
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.0.wires.fabric().heal();
    }

    /// Takes all ports of an HCA down: it reports that, and nothing reaches or leaves them.
    ///
    /// # Panics
    /// If there is no HCA of that name.
    pub fn link_down(&self, name: &str) {
        self.set_links(name, None, false);
    }

    /// Takes the ports of an HCA up again, also if a [mishap](Faults::happen) has taken them down.
    ///
    /// # Panics
    /// If there is no HCA of that name.
    pub fn link_up(&self, name: &str) {
        self.set_links(name, None, true);
    }

    /// [`link_down`](Self::link_down) for one port, numbered from 1.
    ///
    /// # Panics
    /// If there is no HCA of that name.
    pub fn port_down(&self, name: &str, port: u8) {
        self.set_links(name, Some(port), false);
    }

    /// [`link_up`](Self::link_up) for one port, numbered from 1.
    ///
    /// # Panics
    /// If there is no HCA of that name.
    pub fn port_up(&self, name: &str, port: u8) {
        self.set_links(name, Some(port), true);
    }

    fn set_links(&self, name: &str, port: Option<u8>, up: bool) {
        let node = self.node(name);
        self.change(|fabric, now| {
            let all = 1..=fabric.nodes[node].port_count();
            for port in all.filter(|number| port.is_none_or(|port| port == *number)) {
                fabric.set_plugged(now, PortId { node, port }, BY_HAND, up);
            }
        });
    }

    /// Changes something now.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Fabric, Instant) -> R) -> R {
        self.0.change(tokio::time::Instant::now().into_std(), change)
    }

    /// Gives a port, numbered from 1, another GID, as a subnet manager does with another prefix: the HCA reports that, and
    /// from now on paths lead to the new one. Connections stay as they are.
    ///
    /// # Panics
    /// If there is no HCA of that name, it has no such port, another port has that GID, or the subnet was built with
    /// [`managed`](BuildSubnet::managed): its subnet manager would set the prefix back with its next sweep.
    pub fn set_gid(&self, name: &str, port: u8, gid: Gid) {
        let node = self.hca(name);
        let set = self.change(|fabric, _| fabric.set_gid(PortId { node, port }, gid));
        if let Err(why) = set {
            panic!("port {port} of {name:?}, GID {gid}: {why}");
        }
    }

    /// Writes the last packets, up to 65,536 of them or 32 MiB, to a file for Wireshark, native InfiniBand from the LRH
    /// on. Times count from the building of the subnet; a packet that did not arrive is marked as "RX error".
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn write_pcap(&self, file: impl AsRef<Path>) -> io::Result<()> {
        self.0.wires.fabric().trace.write_pcap(file.as_ref(), None)
    }

    /// [`write_pcap`](Self::write_pcap) of one link, the one at a port of a node: "name/number", of a node with one port its
    /// name.
    ///
    /// # Errors
    /// The file cannot be made or written.
    ///
    /// # Panics
    /// If there is no such port, or it has no link.
    pub fn write_pcap_of_link(&self, port: &str, file: impl AsRef<Path>) -> io::Result<()> {
        let fabric = self.0.wires.fabric();
        let ports = fabric
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(node, state)| (1..=state.port_count()).map(move |port| PortId { node, port }));
        let full = |id: &PortId| format!("{}/{}", fabric.nodes[id.node].name, id.port) == port;
        let found = ports.clone().find(full).or_else(|| ports.clone().find(|id| fabric.name(*id) == port));
        match found.and_then(|id| Some([id, fabric.peer(id)?])) {
            Some(link) => fabric.trace.write_pcap(file.as_ref(), Some(link)),
            None => panic!("no port {port:?} with a link in the subnet"),
        }
    }

    /// The last packets and what became of them, one a line, as many as [`write_pcap`](Self::write_pcap) writes. Times
    /// count from the building of the subnet; the same seed and the same program give the same lines.
    pub fn log(&self) -> Vec<String> {
        self.0.log()
    }

    /// What became of all packets since the subnet was built, by name, and of those that nodes' management agents took.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let fabric = self.0.wires.fabric();
        let agents = fabric.nodes.iter().fold(AgentCounters::default(), |all, node| all.and(node.counters));
        fabric.counters.named().into_iter().chain(agents.named()).collect()
    }

    /// The index of an HCA.
    pub(super) fn hca(&self, name: &str) -> usize {
        self.find("HCA", name, |switch| !switch)
    }

    /// The index of a switch.
    pub(super) fn switch(&self, name: &str) -> usize {
        self.find("switch", name, |switch| switch)
    }

    /// The index of an HCA or switch.
    fn node(&self, name: &str) -> usize {
        self.find("node", name, |_| true)
    }

    fn find(&self, what: &str, name: &str, fits: impl Fn(bool) -> bool) -> usize {
        let fabric = self.0.wires.fabric();
        match fabric.nodes.iter().position(|node| node.name == name && fits(node.is_switch())) {
            Some(node) => node,
            None => {
                let all = fabric.nodes.iter().filter(|node| fits(node.is_switch()));
                let names: Vec<_> = all.map(|node| node.name.clone()).collect();
                drop(fabric);
                panic!("no {what} {name:?} in the subnet, there are {names:?}");
            }
        }
    }
}

impl Inner {
    /// Changes something, lets the subnet be configured anew and HCAs learn what has changed, and the driver see to what is
    /// due.
    pub(super) fn change<R>(&self, now: Instant, change: impl FnOnce(&mut Fabric, Instant) -> R) -> R {
        let result = {
            let mut fabric = self.wires.fabric();
            let result = change(&mut fabric, now);
            fabric.configure_at_once(now);
            result
        };
        self.configure_all(now);
        self.wires.wake_driver();
        result
    }

    /// Takes all HCAs away.
    pub(super) fn remove_all(&self) {
        self.devices().for_each(|device| device.0.remove());
    }

    fn log(&self) -> Vec<String> {
        let fabric = self.wires.fabric();
        fabric.trace.lines(|id| fabric.name(id)).collect()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let skipped = log.len().saturating_sub(LAST_PACKETS);
            let counters = self.wires.fabric().counters.named();
            let counted: Vec<_> = counters.iter().filter(|(_, value)| *value > 0).collect();
            eprintln!("subnet with seed {}: {counted:?}", self.seed);
            for line in &log[skipped..] {
                eprintln!("{line}");
            }
        }
        self.remove_all();
        self.wires.wake_driver();
    }
}

/// Sets what goes wrong between the ports of a subnet, from now on and for each packet by itself.
#[derive(Debug, Clone)]
pub struct Faults(pub(super) Subnet);

impl Faults {
    /// The share of packets that are lost, 0.0..=1.0.
    ///
    /// # Panics
    /// If it is out of range.
    pub fn loss(self, share: f64) -> Self {
        self.set(|rates| rates.loss = checked(share))
    }

    /// The share of packets that arrive twice, 0.0..=1.0. Each copy is delayed and held back by itself.
    ///
    /// # Panics
    /// If it is out of range.
    pub fn duplicate(self, share: f64) -> Self {
        self.set(|rates| rates.duplicate = checked(share))
    }

    /// The share of packets of which a bit is flipped, 0.0..=1.0. Their receiver finds that by the CRCs.
    ///
    /// # Panics
    /// If it is out of range.
    pub fn corrupt(self, share: f64) -> Self {
        self.set(|rates| rates.corrupt = checked(share))
    }

    /// The share of packets that are held back, 0.0..=1.0, for 1 us to 65 ms, short times as likely as long ones on a
    /// logarithmic scale, so that packets that were sent later overtake them.
    ///
    /// # Panics
    /// If it is out of range.
    pub fn reorder(self, share: f64) -> Self {
        self.set(|rates| rates.reorder = checked(share))
    }

    /// How long packets travel; no time unless set. A different time for each packet, but without
    /// [`reorder`](Self::reorder) none overtakes another between the same two ports.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn delay(self, range: RangeInclusive<Duration>) -> Self {
        assert!(!range.is_empty(), "an empty range of times");
        self.set(|rates| rates.delay = range)
    }

    /// Nothing goes wrong any more, and what [happens](Self::happen) ends. Partitions and what else was done by hand stay.
    pub fn clear(self) -> Self {
        self.end_mishaps();
        self.set(|rates| *rates = FaultRates::default())
    }

    fn set(self, change: impl FnOnce(&mut FaultRates)) -> Self {
        change(&mut self.0.0.wires.fabric().dice.rates);
        self
    }
}

fn checked(share: f64) -> f64 {
    assert!((0.0..=1.0).contains(&share), "{share} is not a share of 0.0 to 1.0");
    share
}
