//! Nodes: switches and HCAs as a subnet manager sees them. State machines: MADs and changes of links in, MADs and
//! changes to act on out.
//!
//! A node has ports, their tables, and an agent that answers SubnGet and SubnSet for them ([`Node::handle_smp`]); a switch
//! has forwarding tables besides. What the agent was told takes effect in the fabric, which reads the tables for each
//! packet, and at the HCA's engine, which learns of it by [`Change`].

mod agent;
mod forwarding;
mod port;
mod smp;
mod trap;

#[cfg(test)]
mod tests;

use std::time::Instant;

use ibsa::record::{Offender, PortCapabilities, PortInfo, PortPhysicalState, PortState, Text};
use ibwire::{Guid, Lid, PKey};

pub(crate) use agent::Handled;
pub(crate) use forwarding::{Forwarding, ports_of};
pub(crate) use port::{PKEYS, Port, PortShape};
pub(crate) use smp::{Smp, Step};

use trap::Traps;

/// Something that a node was told and that others have to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// State, addresses or tables of a port.
    Port(u8),
    /// The port's users are asked to register again with the SA.
    Reregister(u8),
    /// The link of a port is to be trained anew, or given up if the port was switched off.
    Retrain(u8),
    /// A trap waits to be sent.
    Trap,
}

/// What the agents of a node have counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AgentCounters {
    /// Requests that were answered.
    pub answered: u64,
    /// MADs that a port with an M_Key does not take.
    pub drop_m_key: u64,
    /// MADs of no known class version or method.
    pub drop_unknown: u64,
    /// Traps that nobody repressed.
    pub traps_given_up: u64,
}

impl AgentCounters {
    /// Those of two nodes.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            answered: self.answered + other.answered,
            drop_m_key: self.drop_m_key + other.drop_m_key,
            drop_unknown: self.drop_unknown + other.drop_unknown,
            traps_given_up: self.traps_given_up + other.traps_given_up,
        }
    }

    /// All of them by name.
    pub(crate) const fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("smps_answered", self.answered),
            ("drop_m_key", self.drop_m_key),
            ("drop_smp_unknown", self.drop_unknown),
            ("traps_given_up", self.traps_given_up),
        ]
    }
}

/// A switch or an HCA.
#[derive(Debug)]
pub(crate) struct Node {
    pub name: String,
    pub guid: Guid,
    description: Text<64>,
    /// A switch's begin with port 0, an HCA's with port 1.
    ports: Vec<Port>,
    /// Of a switch.
    pub forwarding: Option<Forwarding>,
    changes: Vec<Change>,
    traps: Traps,
    pub counters: AgentCounters,
}

impl Node {
    /// An HCA with these ports, numbered from 1.
    pub(crate) fn hca(name: String, guid: Guid, ports: impl IntoIterator<Item = PortShape>) -> Self {
        Self::new(name, guid, ports, None)
    }

    /// A switch with these external ports, numbered from 1; the management port has the switch's own GUID.
    pub(crate) fn switch(name: String, guid: Guid, ports: impl IntoIterator<Item = PortShape>) -> Self {
        let zero = PortShape { number: 0, guid, mtu: ibwire::Mtu::B4096, rate: ibwire::Rate::GBPS_100 };
        let ports = std::iter::once(zero).chain(ports);
        let mut switch = Self::new(name, guid, ports, Some(Forwarding::new()));
        // The management port has no link that could be down.
        let info = &mut switch.ports[0].info;
        (info.port_state, info.port_physical_state) = (PortState::ACTIVE, PortPhysicalState::LINK_UP);
        info.capability_mask |= Self::OF_SWITCHES;
        switch
    }

    /// What port 0 of a switch can do besides.
    const OF_SWITCHES: PortCapabilities =
        PortCapabilities::MULTICAST_FDB_TOP.union(PortCapabilities::P_KEY_SWITCH_EXTERNAL_PORT_TRAP);

    fn new(
        name: String,
        guid: Guid,
        ports: impl IntoIterator<Item = PortShape>,
        forwarding: Option<Forwarding>,
    ) -> Self {
        let mut end = name.len().min(64);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            description: Text::new(&name[..end]).unwrap_or_default(),
            name,
            guid,
            ports: ports.into_iter().map(Port::new).collect(),
            forwarding,
            changes: Vec::new(),
            traps: Traps::default(),
            counters: AgentCounters::default(),
        }
    }

    pub(crate) fn is_switch(&self) -> bool {
        self.forwarding.is_some()
    }

    /// The number of the first port.
    fn first(&self) -> u8 {
        u8::from(!self.is_switch())
    }

    /// How many external ports there are.
    pub(crate) fn port_count(&self) -> u8 {
        (self.ports.len() - usize::from(self.is_switch())) as u8
    }

    /// Numbers of all ports, a switch's port 0 included.
    pub(crate) fn numbers(&self) -> std::ops::RangeInclusive<u8> {
        self.first()..=self.port_count()
    }

    pub(crate) fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number.checked_sub(self.first())?))
    }

    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        let first = self.first();
        self.ports.get_mut(usize::from(number.checked_sub(first)?))
    }

    /// The port that has the node's addresses: a switch's port 0, else the one that is named.
    fn end_port(&self, number: u8) -> u8 {
        if self.is_switch() { 0 } else { number }
    }

    /// The port with a LID, among those that have one.
    pub(crate) fn port_of_lid(&self, lid: Lid) -> Option<u8> {
        let ends = if self.is_switch() { 0..=0 } else { 1..=self.port_count() };
        ends.into_iter().find(|number| self.port(*number).is_some_and(|port| port.has_lid(lid)))
    }

    /// The link of a port came up or went down. A link that is up is to be configured: state Init.
    pub(crate) fn set_link(&mut self, now: Instant, number: u8, up: bool) {
        let Some(port) = self.port_mut(number) else { return };
        let (state, physical) = match up {
            true => (PortState::INIT, PortPhysicalState::LINK_UP),
            false => (PortState::DOWN, port.info.link_down_default_state),
        };
        let was = std::mem::replace(&mut port.info.port_state, state);
        if port.info.port_physical_state != PortPhysicalState::DISABLED || up {
            port.info.port_physical_state = physical;
        }
        if was == state {
            return;
        }
        self.changes.push(Change::Port(number));
        self.state_changed(now);
    }

    /// Of a switch: the SM is told.
    fn state_changed(&mut self, now: Instant) {
        let Some(forwarding) = &mut self.forwarding else { return };
        forwarding.info.port_state_change = true;
        self.trap(now, 0, trap::Cause::LinkState);
    }

    /// A port of a switch did not let a packet through: that is counted, and the SM is told.
    pub(crate) fn refuse_p_key(&mut self, now: Instant, number: u8, p_key: PKey, offender: Offender) {
        let Some(port) = self.port_mut(number) else { return };
        port.info.p_key_violations = port.info.p_key_violations.saturating_add(1);
        self.trap_p_key(now, trap::Cause::PKey { port: number, p_key, offender });
    }

    /// An armed port becomes active when its neighbour sends it a packet that is no SMP.
    pub(crate) fn activate_armed(&mut self, number: u8) {
        let Some(port) = self.port_mut(number) else { return };
        if port.info.port_state == PortState::ARMED {
            port.info.port_state = PortState::ACTIVE;
            self.changes.push(Change::Port(number));
        }
    }

    /// Changes a port and says so.
    pub(crate) fn configure(&mut self, number: u8, change: impl FnOnce(&mut Port)) {
        if let Some(port) = self.port_mut(number) {
            change(port);
            self.changes.push(Change::Port(number));
        }
    }

    /// Forgets all that it was told, as a node does that is switched off.
    pub(crate) fn reset(&mut self) {
        self.ports.iter_mut().for_each(Port::reset);
        if let Some(forwarding) = &mut self.forwarding {
            *forwarding = Forwarding::new();
            forwarding.info.port_state_change = true;
            self.ports[0].info.capability_mask |= Self::OF_SWITCHES;
        }
        self.changes.extend(self.numbers().map(Change::Port));
        self.traps = Traps::default();
    }

    /// The next change to act on.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Sets the capabilities of a port that an SM runs on or leaves, and tells the master.
    pub(crate) fn set_capabilities(&mut self, now: Instant, number: u8, change: impl FnOnce(&mut PortInfo)) {
        let Some(port) = self.port_mut(number) else { return };
        let before = port.info.capability_mask;
        change(&mut port.info);
        if port.info.capability_mask != before {
            self.trap(now, number, trap::Cause::Capabilities);
        }
    }
}
