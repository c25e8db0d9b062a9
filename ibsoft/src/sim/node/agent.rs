//! The subnet management agent: what a node answers for its ports (IBTA vol. 1, 14.2.5).

use std::time::Instant;

use ibsa::record::{Layout, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo, VlWeight};
use ibwire::mad::{MadHeader, MadStatus, Method};
use ibwire::{Guid, Lid, PKey};

use super::port::{GUIDS, PKEYS, SLS, vls_of};
use super::smp::attribute;
use super::{Change, Forwarding, Node, Port, Smp};

/// What became of a packet for the node itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handled {
    /// To be sent back the way it came.
    Answer(Smp),
    /// For the manager on this node, if there is one; what it does not take is answered with [`Smp::answer`].
    Manager(Smp),
    /// Nothing more.
    Done,
}

/// Why an attribute is not answered.
struct Refused(MadStatus);

const UNKNOWN: Refused = Refused(MadStatus::BAD_METHOD_ATTRIBUTE);
const INVALID: Refused = Refused(MadStatus::INVALID_FIELD);

impl Node {
    /// Handles a packet that reached the node by a port (0: from the switch itself).
    pub(crate) fn handle_smp(&mut self, now: Instant, entered: u8, mut smp: Smp) -> Handled {
        let MadHeader { method, class_version, .. } = smp.header;
        if method == Method::TRAP_REPRESS {
            self.repress(smp.header.tid);
            return Handled::Done;
        }
        if smp.is_for_manager() {
            return Handled::Manager(smp);
        }
        if class_version != Smp::CLASS_VERSION {
            self.counters.answered += 1;
            return Handled::Answer(smp.answer(MadStatus::BAD_VERSION));
        }
        if !matches!(method, Method::GET | Method::SET) {
            self.counters.drop_unknown += 1;
            return Handled::Done;
        }
        if !self.opens(entered, &smp) {
            self.counters.drop_m_key += 1;
            return Handled::Done;
        }
        let set = match method {
            Method::SET => self.set(now, entered, &smp),
            _ => Ok(()),
        };
        let status = match set.and_then(|()| self.get(entered, &mut smp)) {
            Ok(()) => MadStatus::OK,
            Err(Refused(status)) => status,
        };
        self.counters.answered += 1;
        Handled::Answer(smp.answer(status))
    }

    /// Whether the M_Key lets the packet in.
    fn opens(&mut self, entered: u8, smp: &Smp) -> bool {
        let end = self.end_port(entered);
        let Some(port) = self.port_mut(end) else { return false };
        let info = &mut port.info;
        let reads = smp.header.method == Method::GET && info.m_key_protect_bits < 2;
        if info.m_key == 0 || reads || smp.m_key() == info.m_key {
            return true;
        }
        info.m_key_violations = info.m_key_violations.saturating_add(1);
        false
    }

    /// The port that an attribute modifier names.
    fn named(&self, entered: u8, number: u8) -> Result<u8, Refused> {
        let number = if number == 0 && !self.is_switch() { entered } else { number };
        self.port(number).map(|_| number).ok_or(INVALID)
    }

    fn port_named(&self, entered: u8, number: u8) -> Result<&Port, Refused> {
        self.port(self.named(entered, number)?).ok_or(INVALID)
    }

    fn tables(&self) -> Result<&Forwarding, Refused> {
        self.forwarding.as_ref().ok_or(UNKNOWN)
    }

    /// Writes what is asked for.
    fn get(&self, entered: u8, smp: &mut Smp) -> Result<(), Refused> {
        let modifier = smp.header.attribute_modifier;
        let [high, port_high, block_high, low] = modifier.to_be_bytes();
        let mut data = [0; 64];
        match smp.header.attribute {
            attribute::NODE_DESCRIPTION => {
                let text = self.description.as_bytes();
                data[..text.len()].copy_from_slice(text);
            }
            attribute::NODE_INFO => self.node_info(entered).write_to(&mut data),
            attribute::PORT_INFO => {
                let number = self.named(entered, low)?;
                let port = self.port(number).ok_or(INVALID)?;
                let knows = smp.m_key() == port.info.m_key || port.info.m_key_protect_bits == 0;
                let m_key = if knows { port.info.m_key } else { 0 };
                let info = PortInfo { m_key, local_port_num: entered, ..port.info.clone() };
                info.write_to(&mut data);
            }
            attribute::SWITCH_INFO => self.tables()?.info.write_to(&mut data),
            attribute::GUID_INFO => {
                let port = self.port(self.end_port(entered)).ok_or(INVALID)?;
                let block = block(modifier as usize, 8, port.guids.len())?;
                for (out, guid) in data.chunks_exact_mut(8).zip(&port.guids[block..]) {
                    out.copy_from_slice(&guid.0.to_be_bytes());
                }
            }
            attribute::P_KEY_TABLE => {
                let number = if self.is_switch() { port_high } else { 0 };
                let port = self.port_named(entered, number)?;
                let block = block(usize::from(modifier as u16), 32, PKEYS)?;
                for (out, pkey) in data.chunks_exact_mut(2).zip(&port.pkeys[block..]) {
                    out.copy_from_slice(&pkey.0.to_be_bytes());
                }
            }
            attribute::SL_TO_VL => {
                let (from, number) = self.mapped(entered, block_high, low)?;
                let vls = self.port(number).ok_or(INVALID)?.vls(from);
                for (out, pair) in data.iter_mut().zip(vls.chunks_exact(2)) {
                    *out = pair[0] << 4 | pair[1];
                }
            }
            attribute::VL_ARBITRATION => {
                let port = self.port_named(entered, low)?;
                let table =
                    port_high.checked_sub(1).and_then(|index| port.arbitration.get(usize::from(index)));
                for (out, entry) in data.chunks_exact_mut(2).zip(table.ok_or(INVALID)?) {
                    entry.write_to(out);
                }
            }
            attribute::LINEAR_FORWARDING => {
                data = self.tables()?.linear_block(modifier as usize).ok_or(INVALID)?;
            }
            attribute::MULTICAST_FORWARDING => {
                let (block, position) = (modifier as usize & 0x1ff, usize::from(high >> 4));
                let entries = self.tables()?.multicast_block(block, position).ok_or(INVALID)?;
                for (out, entry) in data.chunks_exact_mut(2).zip(entries) {
                    out.copy_from_slice(&entry.to_be_bytes());
                }
            }
            _ => return Err(UNKNOWN),
        }
        smp.data_mut().copy_from_slice(&data);
        Ok(())
    }

    /// Carries out what is asked for.
    fn set(&mut self, now: Instant, entered: u8, smp: &Smp) -> Result<(), Refused> {
        let modifier = smp.header.attribute_modifier;
        let [high, port_high, block_high, low] = modifier.to_be_bytes();
        let data = smp.data();
        match smp.header.attribute {
            attribute::PORT_INFO => {
                let number = self.named(entered, low)?;
                let asked = PortInfo::parse(data).map_err(|_| INVALID)?;
                self.set_port_info(now, number, &asked)
            }
            attribute::SWITCH_INFO => {
                let asked = SwitchInfo::parse(data).map_err(|_| INVALID)?;
                self.set_switch_info(&asked)
            }
            attribute::GUID_INFO => {
                let number = self.end_port(entered);
                let block = block(modifier as usize, 8, GUIDS)?;
                let port = self.port_mut(number).ok_or(INVALID)?;
                for (at, raw) in data.chunks_exact(8).enumerate() {
                    // The first GUID is the port's own.
                    if block + at > 0
                        && let Some(guid) = port.guids.get_mut(block + at)
                    {
                        *guid = Guid(raw.first_chunk().map_or(0, |raw| u64::from_be_bytes(*raw)));
                    }
                }
                self.changes.push(Change::Port(number));
                Ok(())
            }
            attribute::P_KEY_TABLE => {
                let number = self.named(entered, if self.is_switch() { port_high } else { 0 })?;
                let block = block(usize::from(modifier as u16), 32, PKEYS)?;
                let port = self.port_mut(number).ok_or(INVALID)?;
                let mut changes = false;
                for (pkey, raw) in port.pkeys[block..].iter_mut().zip(data.chunks_exact(2)) {
                    let asked = PKey(u16::from_be_bytes([raw[0], raw[1]]));
                    changes |= std::mem::replace(pkey, asked) != asked;
                }
                self.changes.extend(changes.then_some(Change::Port(number)));
                Ok(())
            }
            attribute::SL_TO_VL => {
                let (from, number) = self.mapped(entered, block_high, low)?;
                let mut vls = [0; SLS];
                for (pair, raw) in vls.chunks_exact_mut(2).zip(data) {
                    (pair[0], pair[1]) = (raw >> 4, raw & 0xf);
                }
                self.port_mut(number).ok_or(INVALID)?.set_vls(from, vls);
                Ok(())
            }
            attribute::VL_ARBITRATION => {
                let number = self.named(entered, low)?;
                let port = self.port_mut(number).ok_or(INVALID)?;
                let table =
                    port_high.checked_sub(1).and_then(|index| port.arbitration.get_mut(usize::from(index)));
                for (entry, raw) in table.ok_or(INVALID)?.iter_mut().zip(data.chunks_exact(2)) {
                    *entry = VlWeight::parse(raw).map_err(|_| INVALID)?;
                }
                Ok(())
            }
            attribute::LINEAR_FORWARDING => {
                let entries = data.first_chunk().ok_or(INVALID)?;
                let switch = self.forwarding.as_mut().ok_or(UNKNOWN)?;
                if switch.set_linear_block(modifier as usize, entries) { Ok(()) } else { Err(INVALID) }
            }
            attribute::MULTICAST_FORWARDING => {
                let mut entries = [0; Forwarding::MULTICAST_BLOCK];
                for (entry, raw) in entries.iter_mut().zip(data.chunks_exact(2)) {
                    *entry = u16::from_be_bytes([raw[0], raw[1]]);
                }
                let (block, position) = (modifier as usize & 0x1ff, usize::from(high >> 4));
                let switch = self.forwarding.as_mut().ok_or(UNKNOWN)?;
                if switch.set_multicast_block(block, position, &entries) { Ok(()) } else { Err(INVALID) }
            }
            _ => Err(UNKNOWN),
        }
    }

    /// The ports of a mapping table: where packets come in, and where they leave. An HCA's are its own.
    fn mapped(&self, entered: u8, from: u8, number: u8) -> Result<(u8, u8), Refused> {
        if !self.is_switch() {
            return Ok((0, self.named(entered, number)?));
        }
        Ok((self.named(entered, from)?, self.named(entered, number)?))
    }

    fn node_info(&self, entered: u8) -> NodeInfo {
        let end = self.end_port(entered);
        let port_guid = self.port(end).and_then(|port| port.guids.first().copied()).unwrap_or(self.guid);
        NodeInfo {
            base_version: MadHeader::BASE_VERSION,
            class_version: Smp::CLASS_VERSION,
            node_type: if self.is_switch() { NodeType::SWITCH } else { NodeType::CA },
            num_ports: self.port_count(),
            system_image_guid: self.guid,
            node_guid: self.guid,
            port_guid,
            partition_cap: PKEYS as u16,
            local_port_num: entered,
            ..NodeInfo::default()
        }
    }

    fn set_switch_info(&mut self, asked: &SwitchInfo) -> Result<(), Refused> {
        let info = &mut self.forwarding.as_mut().ok_or(UNKNOWN)?.info;
        let (first, top) = (Forwarding::FIRST_MLID, asked.multicast_fdb_top.0);
        let is_top = top == 0 || (first - 1..first + Forwarding::MULTICAST_CAP).contains(&top);
        if asked.linear_fdb_top >= info.linear_fdb_cap || !is_top {
            return Err(INVALID);
        }
        info.linear_fdb_top = asked.linear_fdb_top;
        info.default_port = asked.default_port;
        info.default_multicast_primary_port = asked.default_multicast_primary_port;
        info.default_multicast_not_primary_port = asked.default_multicast_not_primary_port;
        info.life_time = asked.life_time;
        info.multicast_fdb_top = asked.multicast_fdb_top;
        // Written as 1 it is taken back.
        info.port_state_change &= !asked.port_state_change;
        Ok(())
    }

    fn set_port_info(&mut self, now: Instant, number: u8, asked: &PortInfo) -> Result<(), Refused> {
        let end = self.end_port(number) == number;
        let external = !self.is_switch() || number != 0;
        let port = self.port_mut(number).ok_or(INVALID)?;
        let state =
            if external { next_state(port.info.port_state, asked.port_state)? } else { port.info.port_state };
        let physical = match asked.port_physical_state.0 {
            0 => None,
            _ if !external => None,
            // Sleep and Polling look for a partner, Disabled does not.
            1..=3 => Some(asked.port_physical_state),
            _ => return Err(INVALID),
        };
        let (lid, mtu, vls) = (asked.lid, asked.neighbor_mtu, asked.operational_vls);
        let aligned = lid.0 & ((1 << asked.lmc) - 1) == 0;
        let bad_lid = end && !(lid == Lid::NONE || lid.is_unicast() && aligned);
        let bad_mtu = external && !(mtu.0 == 0 || (1..=port.info.mtu_cap.0).contains(&mtu.0));
        if bad_lid || bad_mtu || vls != 0 && vls_of(vls) > vls_of(port.info.vl_cap) {
            return Err(INVALID);
        }
        let info = &mut port.info;
        if end {
            info.m_key = asked.m_key;
            info.m_key_lease_period = asked.m_key_lease_period;
            info.m_key_protect_bits = asked.m_key_protect_bits;
            info.gid_prefix = if asked.gid_prefix == 0 { 0xfe80 << 48 } else { asked.gid_prefix };
            (info.lid, info.lmc) = (lid, asked.lmc);
            (info.master_sm_lid, info.master_sm_sl) = (asked.master_sm_lid, asked.master_sm_sl);
            info.subnet_timeout = asked.subnet_timeout;
        }
        if external {
            if mtu.0 != 0 {
                info.neighbor_mtu = mtu;
            }
            if vls != 0 {
                info.operational_vls = vls;
            }
            info.vl_high_limit = asked.vl_high_limit;
            (info.vl_stall_count, info.hoq_life) = (asked.vl_stall_count, asked.hoq_life);
            info.partition_enforcement_inbound = asked.partition_enforcement_inbound;
            info.partition_enforcement_outbound = asked.partition_enforcement_outbound;
            info.filter_raw_inbound = asked.filter_raw_inbound;
            info.filter_raw_outbound = asked.filter_raw_outbound;
            (info.local_phy_errors, info.overrun_errors) = (asked.local_phy_errors, asked.overrun_errors);
            if asked.link_down_default_state.0 != 0 {
                info.link_down_default_state = asked.link_down_default_state;
            }
        }
        for (violations, asked) in [
            (&mut info.m_key_violations, asked.m_key_violations),
            (&mut info.p_key_violations, asked.p_key_violations),
            (&mut info.q_key_violations, asked.q_key_violations),
        ] {
            // They can only be cleared.
            if asked == 0 {
                *violations = 0;
            }
        }
        let retrains = asked.port_state == PortState::DOWN && external;
        let was = std::mem::replace(&mut info.port_state, state);
        if let Some(physical) = physical {
            info.port_physical_state = physical;
        }
        self.changes.push(Change::Port(number));
        if retrains || physical.is_some() {
            self.changes.push(Change::Retrain(number));
        }
        if asked.client_reregister && end {
            self.changes.push(Change::Reregister(number));
        }
        if was != state && state != PortState::DOWN && was == PortState::DOWN {
            self.state_changed(now);
        }
        Ok(())
    }
}

/// The state of a port that is asked to change to another: armed from Init, active from Armed. 0 leaves it.
fn next_state(is: PortState, asked: PortState) -> Result<PortState, Refused> {
    match (is, asked) {
        // Down: the link is trained anew, which the fabric does.
        (is, PortState(0) | PortState::DOWN) => Ok(is),
        (PortState::INIT | PortState::ARMED, PortState::ARMED) => Ok(PortState::ARMED),
        (PortState::ARMED | PortState::ACTIVE, PortState::ACTIVE) => Ok(PortState::ACTIVE),
        _ => Err(INVALID),
    }
}

/// The first entry of a block of a table.
fn block(block: usize, len: usize, table: usize) -> Result<usize, Refused> {
    block.checked_mul(len).filter(|first| first + len <= table).ok_or(INVALID)
}
