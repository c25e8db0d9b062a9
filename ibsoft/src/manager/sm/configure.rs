//! Writing what was decided: LIDs, partitions, routes, states of ports.

use std::collections::BTreeSet;
use std::time::Instant;

use ibsa::proto::after;
use ibsa::record::{Layout, PortCapabilities, PortInfo, PortPhysicalState, PortState, SwitchInfo};
use ibwire::mad::Method;
use ibwire::{Lid, Mtu, TimeCode};

use super::smp::attribute;
use super::{Phase, Purpose, SmConfig, SubnetManager};
use crate::manager::routing::route;
use crate::manager::topology::{PortAt, Switch, Topology};

/// What is to be written to a subnet.
#[derive(Debug)]
pub(super) struct Plan {
    /// As it will be.
    pub topology: Topology,
    /// Its end ports as they were found.
    found: Vec<(PortAt, PortInfo)>,
    /// Ports of switches that are to enforce partitions otherwise than they did, and how they did: inbound, outbound.
    pub enforcing: Vec<(PortAt, [bool; 2])>,
    /// Ports of switches that may not let through what their hosts are to send.
    pub unsure: BTreeSet<PortAt>,
}

/// Entries of a block of a linear forwarding table.
const LINEAR_BLOCK: usize = 64;
/// How long a packet may wait at the head of a switch's queue, towards another switch and towards a host: 1.07 s and 268 ms.
const HOQ_LIFE: TimeCode = TimeCode::truncate(18);
const LEAF_HOQ_LIFE: TimeCode = TimeCode::truncate(16);

impl SubnetManager {
    /// Gives LIDs, computes routes, and writes both. Ports are not in service before that is done.
    pub(super) fn configure(&mut self, mut topology: Topology) {
        topology.index();
        let found: Vec<(PortAt, PortInfo)> =
            topology.end_ports().map(|(at, port)| (at, port.info.clone())).collect();
        let own = topology.at_guid(self.config.guid);
        let is_new_master = self.reregister;
        for node in &mut topology.nodes {
            if let Some(switch) = &mut node.switch {
                switch.info.life_time = self.config.sa.life_time.time_code();
                self.is_said |= std::mem::take(&mut switch.info.port_state_change);
            }
            for port in node.ports.values_mut() {
                if is_new_master && !self.config.keep_lids {
                    port.info.lid = Lid::NONE;
                }
                if let Some(p_keys) = self.config.p_keys.get(&port.guid()) {
                    port.p_keys.clone_from(p_keys);
                }
            }
        }
        let SmConfig { lmc, first_lid, lids, .. } = &mut self.config;
        if let Err(lacking) = topology.assign_lids(own, *lmc, lids, *first_lid) {
            self.counters.lids_lacking += lacking as u64;
        }
        let sm = own.and_then(|own| topology.port(own)).filter(|_| self.config.stays);
        let sm_lid = sm.map_or(Lid::NONE, |port| port.info.lid);
        let links: Vec<_> = topology
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(node, it)| {
                it.ports.iter().filter_map(move |(port, it)| Some((PortAt { node, port: *port }, it.peer?)))
            })
            .collect();
        for (at, peer) in links {
            let there = topology.port(peer).map(|port| (port.info.mtu_cap, port.info.vl_cap));
            let [is_switch, leads_to_switch] = [at, peer].map(|at| topology.nodes[at.node].is_switch());
            let (Some((mtu, vls)), Some(port)) = (there, topology.port_mut(at)) else { continue };
            port.info.neighbor_mtu = port.info.mtu_cap.min(mtu);
            port.info.operational_vls = port.info.vl_cap.min(vls);
            if is_switch {
                port.info.hoq_life = if leads_to_switch { HOQ_LIFE } else { LEAF_HOQ_LIFE };
            }
        }
        for (at, _) in &found {
            let Some(port) = topology.port_mut(*at) else { continue };
            port.info.master_sm_lid = sm_lid;
            if self.config.stays {
                port.info.gid_prefix = self.config.sa.prefix;
            }
            port.info.subnet_timeout = self.config.subnet_timeout;
        }
        self.set_lanes(&mut topology);
        let enforcing = Self::enforce_partitions(&mut topology);
        self.routing = Some(route(&mut topology));
        self.doubt_trees(&topology);
        let plan = Plan { topology, found, enforcing, unsure: BTreeSet::new() };
        self.admit(&plan);
        self.phase = Phase::Admit(Box::new(plan));
    }

    /// Writes what was decided, once switches let through what hosts may send from now on.
    pub(super) fn carry_out(&mut self, mut plan: Plan) {
        plan.leave_unsure();
        let topology = &plan.topology;
        self.write_tables(topology);
        self.write_lanes(topology);
        for (at, found) in &plan.found {
            let Some(port) = topology.port(*at) else { continue };
            // A port that was not there before may have registered what subnet administration has forgotten.
            let asks = (self.reregister || self.port_before(port).is_none())
                && self.config.stays
                && port.info.capability_mask.contains(PortCapabilities::CLIENT_REREGISTRATION);
            let info = PortInfo { client_reregister: asks, ..port.info.clone() };
            if info != *found {
                self.write_port(topology, *at, &info, PortState(0), Purpose::Write);
            }
            if plan.lets_through(port) {
                self.write_p_keys(topology, *at);
            }
        }
        self.phase = Phase::Configure(Box::new(plan));
    }

    fn write_tables(&mut self, topology: &Topology) {
        for (node, it) in topology.nodes.iter().enumerate() {
            let (Some(switch), Some(path)) = (&it.switch, self.paths.get(&PortAt { node, port: 0 }).cloned())
            else {
                continue;
            };
            for (block, entries) in switch.linear.chunks(LINEAR_BLOCK).enumerate() {
                let mut data = [Switch::NO_PORT; LINEAR_BLOCK];
                data[..entries.len()].copy_from_slice(entries);
                self.ask(
                    Method::SET,
                    attribute::LINEAR_FORWARDING,
                    block as u32,
                    &path,
                    &data,
                    Purpose::Write,
                );
            }
            // What has changed since the ports were looked at stays said.
            let info = SwitchInfo { port_state_change: false, ..switch.info.clone() };
            self.ask(Method::SET, attribute::SWITCH_INFO, 0, &path, &info.to_bytes(), Purpose::Write);
        }
    }

    /// The way to the node of a port: an HCA's port is reached by itself.
    pub(super) fn path_to(&self, topology: &Topology, at: PortAt) -> Option<Vec<u8>> {
        self.paths.get(&topology.end_port_of(at)).cloned()
    }

    pub(super) fn write_port(
        &mut self,
        topology: &Topology,
        at: PortAt,
        info: &PortInfo,
        state: PortState,
        purpose: Purpose,
    ) {
        let Some(path) = self.path_to(topology, at) else { return };
        let is_switch = topology.nodes[at.node].is_switch();
        let info = PortInfo {
            port_state: state,
            port_physical_state: PortPhysicalState(0),
            link_down_default_state: PortPhysicalState(0),
            neighbor_mtu: if at.port == 0 { Mtu(0) } else { info.neighbor_mtu },
            ..info.clone()
        };
        let modifier = if is_switch { at.port.into() } else { 0 };
        self.ask(Method::SET, attribute::PORT_INFO, modifier, &path, &info.to_bytes(), purpose);
    }

    /// The ports that have a link in one of these states.
    fn linked(topology: &Topology, states: &[PortState]) -> Vec<PortAt> {
        let all =
            topology.nodes.iter().enumerate().flat_map(|(node, it)| {
                it.ports.iter().map(move |(port, it)| (PortAt { node, port: *port }, it))
            });
        all.filter(|(at, port)| at.port != 0 && port.peer.is_some() && states.contains(&port.info.port_state))
            .map(|(at, _)| at)
            .collect()
    }

    fn take_to(&mut self, topology: &mut Topology, from: &[PortState], state: PortState) {
        for at in Self::linked(topology, from) {
            let Some(port) = topology.port_mut(at) else { continue };
            port.info.port_state = state;
            let info = PortInfo { client_reregister: false, ..port.info.clone() };
            self.write_port(topology, at, &info, state, Purpose::Write);
        }
    }

    /// All hosts have their P_Keys: those in service are held to them, too.
    pub(super) fn arm(&mut self, plan: Plan) {
        let mut topology = plan.topology;
        for (at, _) in plan.enforcing {
            let port = topology.port(at).filter(|port| port.info.port_state > PortState::INIT);
            let Some(port) = port else { continue };
            self.write_port(&topology, at, &port.info, PortState(0), Purpose::Write);
        }
        self.take_to(&mut topology, &[PortState::INIT], PortState::ARMED);
        self.phase = Phase::Arm(Box::new(topology));
    }

    pub(super) fn activate(&mut self, mut topology: Topology) {
        self.take_to(&mut topology, &[PortState::ARMED], PortState::ACTIVE);
        self.phase = Phase::Activate(Box::new(topology));
    }

    /// The subnet is in service.
    pub(super) fn finish(&mut self, now: Instant, topology: Topology) {
        if std::mem::take(&mut self.reregister) {
            self.sa.restart();
        }
        self.sa.set_managers(self.manager_records(&topology));
        self.sa.set_topology(now, topology);
        self.partial = if self.is_partial { self.partial.saturating_add(1) } else { 0 };
        self.next = (self.config.stays || self.is_partial).then(|| after(now, self.pause()));
        // What has changed while there was no master is to be looked at by one. Who is to be master may be ready soon.
        if std::mem::take(&mut self.is_said) && self.config.stays || self.has_coming_heir() {
            self.next = Some(after(now, self.config.again));
        }
        self.hand_over();
    }

    /// Looks whether a switch has changed, and is as it was told: another manager may have been master meanwhile.
    pub(super) fn look(&mut self) {
        self.counters.light_sweeps += 1;
        self.phase = Phase::Look;
        let switches: Vec<_> =
            self.paths.iter().filter(|(at, _)| at.port == 0).map(|(at, path)| (*at, path.clone())).collect();
        for (at, path) in switches {
            self.ask(Method::GET, attribute::SWITCH_INFO, 0, &path, &[], Purpose::Look);
            self.ask(Method::GET, attribute::PORT_INFO, 0, &path, &[], Purpose::Compare(at));
        }
        self.watch();
    }

    /// The port of a switch has answered.
    pub(super) fn compared(&mut self, at: PortAt, data: &[u8]) {
        let known = self.sa.topology().port(at).map(|port| &port.info);
        let is_same = PortInfo::parse(data)
            .ok()
            .zip(known)
            .is_some_and(|(is, known)| (is.lid, is.master_sm_lid) == (known.lid, known.master_sm_lid));
        self.is_stale |= !is_same;
    }

    /// A switch has answered.
    pub(super) fn looked(&mut self, data: &[u8]) {
        self.is_stale |= SwitchInfo::parse(data).is_ok_and(|info| info.port_state_change);
    }
}
