//! Subnet managers on switches: they start, stop and start anew, and their subnet administration behaves as a test wants it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use ibdev::DeviceError;
use ibsa::record::{PortCapabilities, SmState};
use ibwire::{Lid, PKey};

use super::fabric::{Fabric, Owner, PortId};
use super::management::Manager;
use super::node::Node;
use super::subnet::Subnet;
use crate::manager::{SaMode, SmConfig, SubnetManager, Topology};

/// A manager that starts again later: when its switch is back, and the mishap is over that has ended it.
#[derive(Debug)]
pub(super) struct Absent {
    config: SmConfig,
    ended_by: Option<u64>,
}

impl Absent {
    /// One whose switch is out.
    pub(super) const fn new(config: SmConfig) -> Self {
        Self { config, ended_by: None }
    }
}

/// Transaction IDs of each manager begin at another one, so that answers to its predecessor are not taken for its own.
const TIDS: u32 = 32;

impl Fabric {
    /// Puts a manager on the first switch of each subnet, where it has done its first sweep at once. The number of ports that
    /// are left without a LID.
    pub(super) fn start_managers(&mut self, now: Instant) -> Result<u64, DeviceError> {
        self.managed = true;
        let mut lacking = 0;
        for host in self.hosts() {
            if host.port != 0 {
                return Err(DeviceError::Unsupported { what: "a subnet manager where there is no switch" });
            }
            self.nodes[host.node].configure(0, |port| port.info.capability_mask |= PortCapabilities::SM);
            let mut manager = SubnetManager::new(self.sm_config(self.nodes[host.node].guid));
            self.operate(now, host, &mut manager);
            lacking += manager.counters().lids_lacking;
            self.managers.insert(host.node, Box::new(manager));
            self.manager_timeout(now, host.node);
        }
        // They have looked at everything.
        self.nodes.iter_mut().for_each(Node::forget_traps);
        Ok(lacking)
    }

    /// Puts a manager on a switch, which begins to look around.
    pub(super) fn attach(&mut self, now: Instant, node: usize, manager: Box<dyn Manager>) {
        self.managed = true;
        self.managers.insert(node, manager);
        self.nodes[node].set_capabilities(now, 0, |info| info.capability_mask |= PortCapabilities::SM);
        self.changed(node);
        self.set_timer(Owner::Manager(node), Some(now));
    }

    /// Starts a manager on a switch, in the place of the one that is there. P_Keys are those that are ordered now.
    pub(super) fn start_manager(&mut self, now: Instant, node: usize, config: SmConfig) {
        self.started += 1;
        let SmConfig { p_keys, .. } = self.sm_config(config.guid);
        let mut manager = SubnetManager::new(SmConfig { last_tid: self.started << TIDS, p_keys, ..config });
        manager.sa_mut().set_mode(self.sa_mode);
        self.attach(now, node, Box::new(manager));
    }

    /// Ends the manager on a switch. How it is set up when it starts again, if there was one.
    pub(super) fn end_manager(&mut self, now: Instant, node: usize) -> Option<SmConfig> {
        let manager = self.managers.remove(&node)?;
        self.set_timer(Owner::Manager(node), None);
        self.nodes[node].set_capabilities(now, 0, |info| info.capability_mask -= PortCapabilities::SM);
        self.changed(node);
        manager.sm().map(|sm| Self::with_old_lids(sm.config().clone()))
    }

    /// Starts a manager on a switch for the user: as soon as the switch is there, whatever was to start there.
    fn start_by_hand(&mut self, now: Instant, node: usize, config: SmConfig) {
        self.absent.insert(node, Absent::new(config));
        self.start_absent(now, node);
    }

    /// Starts the manager again that is to be on a switch, unless it still has to wait.
    pub(super) fn start_absent(&mut self, now: Instant, node: usize) {
        let may = |absent: &Absent| absent.ended_by.is_none();
        if !self.removed[node]
            && self.absent.get(&node).is_some_and(may)
            && let Some(absent) = self.absent.remove(&node)
        {
            self.start_manager(now, node, absent.config);
        }
    }

    /// A mishap ends the manager on a switch, which starts again like this.
    pub(super) fn suspend_manager(&mut self, now: Instant, node: usize, config: SmConfig, mishap: u64) {
        if self.end_manager(now, node).is_some() {
            self.absent.insert(node, Absent { config, ended_by: Some(mishap) });
        }
    }

    /// The mishap is over.
    pub(super) fn resume_manager(&mut self, now: Instant, node: usize, mishap: u64) {
        if let Some(absent) = self.absent.get_mut(&node).filter(|absent| absent.ended_by == Some(mishap)) {
            absent.ended_by = None;
            self.start_absent(now, node);
        }
    }

    /// A manager that lets ports keep the LIDs that they have.
    pub(super) fn with_old_lids(config: SmConfig) -> SmConfig {
        SmConfig { keep_lids: true, first_lid: Lid(1), ..config }
    }

    /// A manager of this node that gives all ports other LIDs than they have.
    pub(super) fn with_new_lids(&self, node: usize, config: SmConfig) -> SmConfig {
        let highest = self.highest_lid(self.subnet_of(PortId { node, port: 0 }));
        let first_lid = Lid(if highest <= Topology::LAST_LID / 2 { highest + 1 } else { 1 });
        SmConfig { keep_lids: false, lids: BTreeMap::new(), first_lid, ..config }
    }

    /// The highest LID of an end port on a subnet.
    fn highest_lid(&self, subnet: usize) -> u16 {
        let last = |info: &ibsa::record::PortInfo| info.lid.0.saturating_add((1 << info.lmc) - 1);
        let ends = self.nodes.iter().enumerate().flat_map(|(node, it)| {
            let ends = if it.is_switch() { 0..=0 } else { 1..=it.port_count() };
            ends.filter_map(move |port| Some((PortId { node, port }, &it.port(port)?.info)))
        });
        ends.filter(|(id, _)| self.subnet_of(*id) == subnet).map(|(_, info)| last(info)).max().unwrap_or(0)
    }

    /// Has all managers do something, and sees to it that they go on.
    fn tell_managers(&mut self, now: Instant, tell: impl Fn(&mut SubnetManager)) {
        let all: Vec<_> = self.managers.keys().copied().collect();
        for node in all {
            self.managers.get_mut(&node).and_then(|manager| manager.sm_mut()).into_iter().for_each(&tell);
            self.set_timer(Owner::Manager(node), Some(now));
        }
    }

    /// Whether all managers have the subnet as they want it.
    fn is_settled(&self) -> bool {
        self.managers.values().filter_map(|manager| manager.sm()).all(SubnetManager::is_settled)
    }
}

/// The subnet manager of a switch, whether there is one or not: [`Subnet::sm`].
#[derive(Debug, Clone)]
pub struct Sm {
    subnet: Subnet,
    node: usize,
}

impl Sm {
    /// Starts a manager here, which gives the ports the LIDs that they have. With the highest `priority`, 0..=15, it becomes
    /// master, otherwise standby; of equal ones the first switch. One that is here already starts anew. If the switch is out it
    /// starts when that is put back.
    ///
    /// # Panics
    /// If the priority is higher than 15.
    pub fn start(&self, priority: u8) {
        assert!(priority < 16, "{priority} is no priority of 0 to 15");
        self.change(|fabric, now| {
            let config = fabric.sm_config(fabric.nodes[self.node].guid);
            fabric.start_by_hand(now, self.node, SmConfig { priority, ..config });
        });
    }

    /// Ends the manager, as if its process was killed: it answers nothing any more, and what was registered with it is lost. One
    /// that would start again because its switch is put back, or a [mishap](super::Mishap::Manager) ends, does not.
    ///
    /// # Panics
    /// If there is none.
    pub fn kill(&self) {
        self.change(|fabric, now| drop(self.end(fabric, now)));
    }

    /// Ends the manager and starts it anew. LIDs stay; what was registered is lost, and the ports are asked to register again.
    ///
    /// # Panics
    /// If there is none.
    pub fn restart(&self) {
        self.change(|fabric, now| {
            let config = self.end(fabric, now);
            fabric.start_by_hand(now, self.node, config);
        });
    }

    /// The same, but every port gets another LID.
    ///
    /// # Panics
    /// If there is none.
    pub fn restart_with_new_lids(&self) {
        self.change(|fabric, now| {
            let config = self.end(fabric, now);
            let config = fabric.with_new_lids(self.node, config);
            fabric.start_by_hand(now, self.node, config);
        });
    }

    /// What the manager is: master, standby, or still looking around. `None` if there is none, or it is to start later.
    pub fn state(&self) -> Option<SmState> {
        Some(self.subnet.0.wires.fabric().managers.get(&self.node)?.sm()?.state())
    }

    /// What the manager and its subnet administration have counted, by name. Nothing if there is none.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let fabric = self.subnet.0.wires.fabric();
        let Some(sm) = fabric.managers.get(&self.node).and_then(|manager| manager.sm()) else {
            return Vec::new();
        };
        sm.counters().named().into_iter().chain(sm.sa().counters().named()).collect()
    }

    fn end(&self, fabric: &mut Fabric, now: Instant) -> SmConfig {
        let absent = fabric.absent.remove(&self.node).map(|absent| absent.config);
        match fabric.end_manager(now, self.node).or(absent) {
            Some(config) => config,
            None => panic!("no subnet manager on switch {:?}", fabric.nodes[self.node].name),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Fabric, Instant)) {
        self.subnet.change(change);
    }
}

/// How subnet administration behaves: [`Subnet::sa`].
#[derive(Debug, Clone)]
pub struct SaBehaviour(Subnet);

impl SaBehaviour {
    /// It answers every request with "busy".
    pub fn busy(&self) {
        self.set(SaMode::Busy);
    }

    /// It answers nothing.
    pub fn silent(&self) {
        self.set(SaMode::Silent);
    }

    /// Its answers, but not the segments of tables, leave so much later.
    pub fn slow(&self, by: Duration) {
        self.set(SaMode::Slow(by));
    }

    /// It does what it should.
    pub fn normal(&self) {
        self.set(SaMode::Normal);
    }

    fn set(&self, mode: SaMode) {
        self.0.change(|fabric, now| {
            fabric.sa_mode = mode;
            fabric.tell_managers(now, |sm| sm.sa_mut().set_mode(mode));
        });
    }
}

/// Managers that did not get everything as they want it within ten minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotSettled {
    /// The subnet's seed.
    pub seed: u64,
}

impl fmt::Display for NotSettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the managers of the subnet with seed {} are not done after {WAIT:?}", self.seed)
    }
}

impl std::error::Error for NotSettled {}

/// How long a sweep is waited for, and how often it is looked whether it is over.
const WAIT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(1);

impl Subnet {
    /// The subnet manager on a switch, to be started, killed, and started anew. With [`managed`](super::BuildSubnet::managed)
    /// there is one on the first switch of each subnet.
    ///
    /// # Panics
    /// If there is no switch of that name, or the subnet was built without managers.
    pub fn sm(&self, switch: &str) -> Sm {
        let node = self.switch(switch);
        assert!(self.0.wires.fabric().managed, "a subnet that was built without `managed()`");
        Sm { subnet: self.clone(), node }
    }

    /// How the subnet administration of all managers behaves, also of those that start later.
    pub fn sa(&self) -> SaBehaviour {
        SaBehaviour(self.clone())
    }

    /// Gives all ports of an HCA other P_Keys, 1 to 64 of them: at once, or with the next sweep of the managers, which begins
    /// now.
    ///
    /// # Panics
    /// If there is no HCA of that name, or the number of P_Keys is out of range.
    pub fn set_p_keys(&self, name: &str, p_keys: &[PKey]) {
        let node = self.hca(name);
        assert!(
            (1..=super::node::PKEYS).contains(&p_keys.len()),
            "{} P_Keys, 1 to 64 are possible",
            p_keys.len()
        );
        self.change(|fabric, now| {
            fabric.orders.p_keys.insert(node, p_keys.to_vec());
            let guids = fabric.guids(node);
            let give = |sm: &mut SubnetManager| {
                guids.iter().for_each(|guid| sm.set_p_keys(*guid, p_keys.to_vec()));
            };
            fabric.tell_managers(now, give);
        });
    }

    /// Lets all managers sweep through their subnets, and waits until they have everything as they want it. A subnet without
    /// managers is so at once.
    ///
    /// # Errors
    /// [`NotSettled`] after ten minutes of the runtime's clock.
    ///
    /// # Cancel safety
    /// The sweeps go on.
    pub async fn sweep(&self) -> Result<(), NotSettled> {
        self.change(|fabric, now| fabric.tell_managers(now, SubnetManager::request_sweep));
        let start = tokio::time::Instant::now();
        while !self.0.wires.fabric().is_settled() {
            if start.elapsed() >= WAIT {
                return Err(NotSettled { seed: self.seed() });
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
