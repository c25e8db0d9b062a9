//! Subnets to ask about: files in ibsim's format, with the ports that its nodes have.

use std::collections::HashMap;
use std::time::Instant;

use ibsa::mad::SaHeader;
use ibsa::record::{
    Layout, LinkSpeed, LinkWidth, NodeInfo, NodeType, PortCapabilities, PortCapabilities2, PortInfo,
    PortPhysicalState, PortState, SmInfoRecord, SmState, SwitchInfo, Text,
};
use ibsoft::manager::{Node, Peer, Port, PortAt, Sa, SaConfig, Switch, Topology, route};
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ibwire::{Guid, Lid, Mtu, PKey, Qpn, ServiceLevel, TimeCode, TransactionId};

/// 2 switches with two cables between them, 4 hosts: ibsim's net.2sw2path4hca, of which OpenSM's answers were captured.
pub(crate) const TWO_SWITCHES: &str = r#"
Switch 8 "Switch1"
[1] "Hca1"[1]
[2] "Hca3"[1]
[3] "Switch2"[3]
[5] "Switch2"[5]

Switch 8 "Switch2"
[1] "Hca2"[1]
[2] "Hca4"[1]
[3] "Switch1"[3]
[5] "Switch1"[5]

Hca 2 "Hca1"
[1] "Switch1"[1]

Hca 2 "Hca2"
[1] "Switch2"[1]

Hca 2 "Hca3"
[1] "Switch1"[2]

Hca 2 "Hca4"
[1] "Switch2"[2]
"#;

/// The subnet of a file, with LIDs and routes; the host of the first port has the subnet manager.
pub(crate) fn subnet(file: &str, lmc: u8) -> Topology {
    let mut topology = unmanaged(file);
    let sm = topology.end_ports().map(|(at, _)| at).find(|at| at.port != 0);
    topology.assign_lids(sm, lmc, &mut Default::default(), Lid(1)).unwrap();
    let sm = &mut topology.port_mut(sm.unwrap()).unwrap().info;
    sm.capability_mask |= PortCapabilities::SM;
    let sm_lid = sm.lid;
    let ports = topology.nodes.iter_mut().flat_map(|node| node.ports.values_mut());
    ports.for_each(|port| port.info.master_sm_lid = sm_lid);
    route(&mut topology);
    topology
}

/// The nodes and links of a file.
fn unmanaged(file: &str) -> Topology {
    let mut topology = Topology::new(Topology::DEFAULT_PREFIX);
    let mut nodes = HashMap::new();
    let mut cables = Vec::new();
    let (mut hosts, mut switches, mut here) = (0x10_0000, 0x20_0000, None);
    for line in file.lines() {
        let words: Vec<&str> =
            line.split([' ', '\t', '"', '[', ']']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            [kind @ ("Switch" | "Hca"), count, name] => {
                let count = count.parse().unwrap();
                let is_switch = kind == "Switch";
                let guid = if is_switch { &mut switches } else { &mut hosts };
                let node = topology.add(node(name, is_switch, count, *guid));
                *guid += if is_switch { 1 } else { 1 + u64::from(count) };
                here = Some(node);
                nodes.insert(name.to_owned(), node);
            }
            [port, peer, peer_port] if line.starts_with('[') => {
                let from = PortAt { node: here.unwrap(), port: port.parse().unwrap() };
                cables.push((from, peer.to_owned(), peer_port.parse().unwrap()));
            }
            _ => assert!(line.is_empty() || line.starts_with('#'), "{line}"),
        }
    }
    for (from, peer, port) in cables {
        let to = PortAt { node: nodes[&peer], port };
        topology.link(from, to);
        for at in [from, to] {
            let info = &mut topology.port_mut(at).unwrap().info;
            (info.port_state, info.port_physical_state) = (PortState::ACTIVE, PortPhysicalState::LINK_UP);
        }
    }
    topology
}

fn node(name: &str, is_switch: bool, count: u8, guid: u64) -> Node {
    let info = NodeInfo {
        base_version: 1,
        class_version: 1,
        node_type: if is_switch { NodeType::SWITCH } else { NodeType::CA },
        num_ports: count,
        system_image_guid: Guid(guid),
        node_guid: Guid(guid),
        port_guid: Guid(guid),
        partition_cap: if is_switch { 8 } else { 0x40 },
        revision: 0xa1,
        local_port_num: 1,
        ..NodeInfo::default()
    };
    let first = if is_switch { 0 } else { 1 };
    let ports = (first..=count).map(|number| {
        let port_guid = if is_switch { guid } else { guid + u64::from(number) };
        (number, Port::new(Guid(port_guid), port_info(number)))
    });
    let switch = is_switch.then(|| Switch {
        info: SwitchInfo {
            linear_fdb_cap: 0x7800,
            multicast_fdb_cap: 0x400,
            life_time: TimeCode::truncate(0x12),
            partition_enforcement_cap: 0x40,
            inbound_enforcement_cap: false,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: true,
            ..SwitchInfo::default()
        },
        ..Switch::default()
    });
    Node { info, description: Text::new(name).expect("64 bytes are enough"), ports: ports.collect(), switch }
}

/// A port of ibsim: 4x SDR, MTU 2048, of port 0 of a switch 1024.
fn port_info(number: u8) -> PortInfo {
    PortInfo {
        gid_prefix: 0xfe80 << 48,
        capability_mask: PortCapabilities::from_bits_retain(0x0050_c048),
        local_port_num: number,
        m_key_lease_period: 0x0ff9,
        link_width_enabled: LinkWidth::X4,
        link_width_supported: LinkWidth::from_bits_retain(0x1f),
        link_width_active: LinkWidth::X4,
        link_speed_supported: LinkSpeed::from_bits_retain(7),
        port_state: if number == 0 { PortState::ACTIVE } else { PortState::DOWN },
        port_physical_state: PortPhysicalState::POLLING,
        link_down_default_state: PortPhysicalState::POLLING,
        link_speed_active: LinkSpeed::SDR,
        link_speed_enabled: LinkSpeed::SDR,
        neighbor_mtu: if number == 0 { Mtu::B1024 } else { Mtu::B2048 },
        mtu_cap: if number == 0 { Mtu::B1024 } else { Mtu::B2048 },
        vl_cap: 4,
        vl_arbitration_high_cap: 8,
        vl_arbitration_low_cap: 8,
        operational_vls: 4,
        vl_stall_count: 7,
        guid_cap: 32,
        subnet_timeout: TimeCode::truncate(31),
        capability_mask2: PortCapabilities2::from_bits_retain(0x30),
        ..PortInfo::default()
    }
}

/// A service that answers from this subnet; the subnet manager is where the ports say.
pub(crate) fn service(topology: Topology, config: SaConfig, now: Instant) -> Sa {
    let mut sa = Sa::new(config);
    let lid = topology.end_ports().next().unwrap().1.info.master_sm_lid;
    let guid = topology.port(topology.at_lid(lid).unwrap()).unwrap().guid();
    let manager = SmInfoRecord { lid, guid, sm_key: 1, sm_state: SmState::MASTER, ..SmInfoRecord::default() };
    sa.set_managers(vec![manager]);
    sa.set_topology(now, topology);
    sa
}

/// QP1 of the port with a LID.
pub(crate) fn peer(lid: u16) -> Peer {
    let (sl, p_key) = (ServiceLevel::default(), PKey::DEFAULT);
    Peer { lid: Lid(lid), qpn: Qpn::GSI, gid: None, sl, p_key }
}

/// A request.
pub(crate) fn request<L: Layout>(
    method: Method,
    attribute: u16,
    tid: u64,
    record: &L,
    mask: u64,
) -> [u8; 256] {
    let mad = MadHeader::new(MgmtClass::SA, 2, method, AttributeId(attribute), TransactionId(tid));
    let header = SaHeader { component_mask: mask, ..SaHeader::new(mad) };
    let mut out = [0; 256];
    out[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
    record.write_to(&mut out[SaHeader::LEN..]);
    out
}
