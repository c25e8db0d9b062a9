//! Every record that OpenSM on ibsim answers, field by field what saquery prints.

use std::collections::BTreeMap;

use ibsa::record::{
    GuidInfoRecord, InformInfoRecord, LftRecord, LinkRecord, LinkSpeed, LinkWidth, McMemberRecord, MftRecord,
    NodeRecord, NodeType, PKeyTableRecord, PortInfoRecord, PortPhysicalState, PortState, Record,
    Sl2VlTableRecord, SmInfoRecord, SwitchInfoRecord, Template, VlArbitrationTableRecord,
};
use ibsa::{Client, QueryError, Request, SaStatus};
use ibwire::mad::Method;
use ibwire::{Lid, Mtu, PKey};
use libtest_mimic::Failed;
use tests::ibsim::Fabric;

use crate::Outcome;

/// OpenSM's key for trusted requests unless it is configured.
const SM_KEY: u64 = 1;

/// The first record that saquery prints at node C: its fields, and the lines that are none.
pub(crate) struct Printed {
    fields: BTreeMap<String, String>,
    rows: Vec<Vec<u64>>,
}

impl Printed {
    pub(crate) fn of(fabric: &Fabric, arguments: &[&str]) -> Result<Self, Failed> {
        let output = fabric.saquery("C", arguments)?;
        let record = output.split("ecord dump:").nth(1);
        let record = record.ok_or_else(|| format!("no record in {output:?}"))?;
        let (mut fields, mut rows) = (BTreeMap::new(), Vec::new());
        for line in record.lines() {
            match line.trim().split_once("..").or_else(|| line.trim().split_once(":.")) {
                Some((name, value)) => {
                    let name = name.trim_end_matches(':').to_owned();
                    fields.insert(name, value.trim_start_matches('.').to_lowercase());
                }
                None => rows.extend(row(line)),
            }
        }
        Ok(Self { fields, rows })
    }

    #[track_caller]
    pub(crate) fn assert(&self, ours: &[(&str, String)]) {
        for (field, ours) in ours {
            assert_eq!(self.fields.get(*field), Some(&ours.to_lowercase()), "{field} of {:?}", self.fields);
        }
    }
}

/// The numbers of a line of a table; of one with a heading those behind it.
fn row(line: &str) -> Option<Vec<u64>> {
    let numbers = line.split_once(':').map_or(line, |(_, numbers)| numbers);
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let numbers: Option<Vec<_>> =
        numbers.split(['|', ' ', '\t']).filter(|text| !text.is_empty()).map(number).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

fn hex(value: impl std::fmt::LowerHex) -> String {
    format!("{value:#x}")
}

fn bit(value: bool) -> String {
    u8::from(value).to_string()
}

/// A request that OpenSM answers to who knows its key.
pub(crate) async fn trusted<R: Record>(sa: &Client, wanted: Template<R>) -> Result<R, QueryError> {
    let deadline = std::time::Instant::now() + sa.default_timeout();
    let mut request = Request::new(Method::GET, wanted, deadline)?;
    request.sm_key = SM_KEY;
    sa.request(request).await?.record()
}

pub(crate) async fn node(sa: &Client, name: &str) -> Result<NodeRecord, QueryError> {
    sa.get(Template::<NodeRecord>::new().node_description(name)).await
}

pub(crate) async fn nodes(sa: Client, fabric: &Fabric) -> Outcome {
    let manager = sa.get(Template::<SmInfoRecord>::new()).await?;
    let node = sa.get(Template::<NodeRecord>::new().lid(manager.lid)).await?;
    let info = &node.node_info;
    Printed::of(fabric, &["NR", &manager.lid.0.to_string()])?.assert(&[
        ("lid", node.lid.0.to_string()),
        ("base_version", hex(info.base_version)),
        ("class_version", hex(info.class_version)),
        ("node_type", "Channel Adapter".into()),
        ("num_ports", info.num_ports.to_string()),
        ("sys_guid", info.system_image_guid.to_string()),
        ("node_guid", info.node_guid.to_string()),
        ("port_guid", info.port_guid.to_string()),
        ("partition_cap", hex(info.partition_cap)),
        ("device_id", hex(info.device_id)),
        ("revision", hex(info.revision)),
        ("port_num", info.local_port_num.to_string()),
        ("vendor_id", hex(info.vendor_id)),
        ("NodeDescription", node.node_description.to_string()),
    ]);
    assert_eq!((info.node_type, node.node_description.as_bytes()), (NodeType::CA, &b"A"[..]));
    Ok(())
}

pub(crate) async fn ports(sa: Client, fabric: &Fabric) -> Outcome {
    let lid = node(&sa, "A").await?.lid;
    let record = sa.get(Template::<PortInfoRecord>::new().end_port_lid(lid).port_num(1u8)).await?;
    let port = &record.port_info;
    let width = |width| match width {
        LinkWidth::X1 => "1x",
        LinkWidth::X4 => "4x",
        LinkWidth::X8 => "8x",
        _ => "another",
    };
    let speed = |speed| if speed == LinkSpeed::SDR { "2.5 gbps" } else { "another" };
    let mtu = |mtu: Mtu| mtu.bytes().map_or("none".into(), |bytes| bytes.to_string());
    assert_eq!((port.port_state, port.port_physical_state), (PortState::ACTIVE, PortPhysicalState::LINK_UP));
    assert_eq!((port.vl_cap, port.operational_vls), (4, 4), "a code for VL0-7");
    Printed::of(fabric, &["PIR", &format!("{}/1", lid.0)])?.assert(&[
        ("EndPortLid", record.end_port_lid.0.to_string()),
        ("PortNum", record.port_num.to_string()),
        ("GidPrefix", hex(port.gid_prefix)),
        ("Lid", port.lid.0.to_string()),
        ("SMLid", port.master_sm_lid.0.to_string()),
        ("CapMask", hex(port.capability_mask.bits())),
        ("DiagCode", format!("{:#06x}", port.diag_code)),
        ("MkeyLeasePeriod", port.m_key_lease_period.to_string()),
        ("LocalPort", port.local_port_num.to_string()),
        ("LinkWidthEnabled", width(port.link_width_enabled).into()),
        ("LinkWidthActive", width(port.link_width_active).into()),
        ("LinkState", "active".into()),
        ("PhysLinkState", "linkup".into()),
        ("LinkDownDefState", "polling".into()),
        ("ProtectBits", port.m_key_protect_bits.to_string()),
        ("LMC", port.lmc.to_string()),
        ("LinkSpeedActive", speed(port.link_speed_active).into()),
        ("LinkSpeedEnabled", speed(port.link_speed_enabled).into()),
        ("NeighborMTU", mtu(port.neighbor_mtu)),
        ("SMSL", port.master_sm_sl.get().to_string()),
        ("VLCap", "vl0-7".into()),
        ("InitType", format!("{:#04x}", port.init_type)),
        ("VLHighLimit", port.vl_high_limit.to_string()),
        ("VLArbHighCap", port.vl_arbitration_high_cap.to_string()),
        ("VLArbLowCap", port.vl_arbitration_low_cap.to_string()),
        ("InitReply", format!("{:#04x}", port.init_type_reply)),
        ("MtuCap", mtu(port.mtu_cap)),
        ("VLStallCount", port.vl_stall_count.to_string()),
        ("HoqLife", port.hoq_life.get().to_string()),
        ("OperVLs", "vl0-7".into()),
        ("PartEnforceInb", bit(port.partition_enforcement_inbound)),
        ("PartEnforceOutb", bit(port.partition_enforcement_outbound)),
        ("FilterRawInb", bit(port.filter_raw_inbound)),
        ("FilterRawOutb", bit(port.filter_raw_outbound)),
        ("MkeyViolations", port.m_key_violations.to_string()),
        ("PkeyViolations", port.p_key_violations.to_string()),
        ("QkeyViolations", port.q_key_violations.to_string()),
        ("GuidCap", port.guid_cap.to_string()),
        ("ClientReregister", bit(port.client_reregister)),
        ("McastPkeyTrapSuppressionEnabled", port.multicast_p_key_trap_suppression.to_string()),
        ("SubnetTimeout", port.subnet_timeout.get().to_string()),
        ("RespTimeVal", port.resp_time.get().to_string()),
        ("LocalPhysErr", port.local_phy_errors.to_string()),
        ("OverrunErr", port.overrun_errors.to_string()),
        ("MaxCreditHint", port.max_credit_hint.to_string()),
        ("LinkSpeedExtEnabled", port.link_speed_ext_enabled.bits().to_string()),
        ("CapabilityMask2", hex(port.capability_mask2.bits())),
        ("RoundTrip", port.link_round_trip_latency.to_string()),
    ]);
    Ok(())
}

pub(crate) async fn switches(sa: Client, fabric: &Fabric) -> Outcome {
    let lid = node(&sa, "S1").await?.lid;
    let number = lid.0.to_string();
    let record = sa.get(Template::<SwitchInfoRecord>::new().lid(lid)).await?;
    let info = &record.switch_info;
    let life =
        info.life_time.get() << 3 | u8::from(info.port_state_change) << 2 | info.optimized_sl_to_vl_mapping;
    let flags = [
        info.inbound_enforcement_cap,
        info.outbound_enforcement_cap,
        info.filter_raw_inbound_cap,
        info.filter_raw_outbound_cap,
        info.enhanced_port0,
    ];
    let flags = flags.iter().zip((3..8).rev()).fold(0, |byte, (flag, at)| byte | u8::from(*flag) << at);
    Printed::of(fabric, &["SWIR", &number])?.assert(&[
        ("LID", number.clone()),
        ("LinearFDBCap", hex(info.linear_fdb_cap)),
        ("RandomFDBCap", hex(info.random_fdb_cap)),
        ("MulticastFDBCap", hex(info.multicast_fdb_cap)),
        ("LinearFDBTop", hex(info.linear_fdb_top)),
        ("DefaultPort", info.default_port.to_string()),
        ("DefaultMulticastPrimaryPort", info.default_multicast_primary_port.to_string()),
        ("DefaultMulticastNotPrimaryPort", info.default_multicast_not_primary_port.to_string()),
        ("LifeTimeValue/PortStateChange/OpSL2VL", hex(life)),
        ("LIDsPerPort", hex(info.lids_per_port)),
        ("PartitionEnforcementCap", hex(info.partition_enforcement_cap)),
        ("flags", hex(flags)),
        ("MulticastFDBTop", hex(info.multicast_fdb_top.0)),
    ]);
    // Which port leads to which LID.
    let table = sa.get(Template::<LftRecord>::new().lid(lid).block_num(0u16)).await?;
    let theirs = Printed::of(fabric, &["LFTR", &format!("{number}/0")])?;
    theirs.assert(&[("LID", number.clone()), ("Block", table.block_num.to_string())]);
    let ours: Vec<Vec<u64>> = (0..).zip(table.ports).map(|(lid, port)| vec![lid, port.into()]).collect();
    assert_eq!(ours, theirs.rows);
    assert_eq!(table.ports[usize::from(node(&sa, "A").await?.lid.0)], 1, "A hangs on port 1");
    // Which link leads where.
    let link = sa.get(Template::<LinkRecord>::new().from_lid(lid).from_port(1u8)).await?;
    Printed::of(fabric, &["LR", &format!("{number}/1")])?.assert(&[
        ("FromLID", link.from_lid.0.to_string()),
        ("FromPort", link.from_port.to_string()),
        ("ToPort", link.to_port.to_string()),
        ("ToLID", link.to_lid.0.to_string()),
    ]);
    Ok(())
}

pub(crate) async fn tables(sa: Client, fabric: &Fabric) -> Outcome {
    let lid = node(&sa, "A").await?.lid;
    let number = lid.0.to_string();
    let of = |vl: &[u8]| vl.iter().map(|vl| u64::from(*vl)).collect::<Vec<_>>();

    let map = sa.get(Template::<Sl2VlTableRecord>::new().lid(lid).output_port_num(0u8)).await?;
    let theirs = Printed::of(fabric, &["SL2VL", &number])?;
    theirs.assert(&[("LID", number.clone()), ("InPort", "0".into()), ("OutPort", "0".into())]);
    assert_eq!(theirs.rows, [(0..16).collect(), of(&map.vls)]);

    let wanted = Template::<VlArbitrationTableRecord>::new().lid(lid).output_port_num(1u8).block_num(1u8);
    let table = sa.get(wanted).await?;
    let theirs = Printed::of(fabric, &["VLAR", &format!("{number}/1/1")])?;
    theirs.assert(&[("LID", number.clone()), ("Port", "1".into()), ("Block", "1".into())]);
    let halves = table.entries.chunks(16).flat_map(|half| {
        let vls: Vec<_> = half.iter().map(|entry| entry.vl).collect();
        let weights: Vec<_> = half.iter().map(|entry| entry.weight).collect();
        [of(&vls), of(&weights)]
    });
    assert_eq!(theirs.rows, halves.collect::<Vec<_>>());

    let table = sa.get(Template::<GuidInfoRecord>::new().lid(lid).block_num(0u8)).await?;
    let guids: Vec<_> =
        (0..8).map(|index| (format!("GUID {index}"), table.guids[index].to_string())).collect();
    let theirs = Printed::of(fabric, &["GIR", &format!("{number}/0")])?;
    theirs.assert(&[("LID", number.clone()), ("Block", "0".into())]);
    guids.iter().for_each(|(name, guid)| theirs.assert(&[(name, guid.clone())]));

    // P_Keys are shown to who knows the key alone, all others hear that they may not.
    let wanted = || Template::<PKeyTableRecord>::new().lid(lid).port_num(1u8).block_num(0u16);
    let error = sa.get(wanted()).await.expect_err("without the key");
    assert!(matches!(error, QueryError::Status(SaStatus::REQUEST_INVALID)), "{error}");
    let table = trusted(&sa, wanted()).await?;
    let theirs = Printed::of(fabric, &["--smkey", "1", "PKTR", &format!("{number}/1/0")])?;
    theirs.assert(&[("LID", number.clone()), ("Port", "1".into()), ("Block", "0".into())]);
    assert_eq!(table.p_keys[0], PKey::DEFAULT);
    let lines = table.p_keys.chunks(8).map(|line| line.iter().map(|p_key| p_key.0.into()).collect());
    assert_eq!(theirs.rows, lines.collect::<Vec<Vec<u64>>>());
    Ok(())
}

pub(crate) async fn manager(sa: Client, fabric: &Fabric) -> Outcome {
    let manager = sa.get(Template::<SmInfoRecord>::new()).await?;
    Printed::of(fabric, &["SMIR"])?.assert(&[
        ("LID", manager.lid.0.to_string()),
        ("GUID", manager.guid.to_string()),
        ("SM_Key", format!("{:#018x}", manager.sm_key)),
        ("Priority", manager.priority.to_string()),
        ("SMState", manager.sm_state.0.to_string()),
    ]);
    Ok(())
}

/// The group as saquery shows it to who knows the key, with its member.
pub(crate) fn member(fabric: &Fabric, ours: &McMemberRecord) -> Outcome {
    let theirs = Printed::of(fabric, &["--smkey", "1", "MCMR", "--mgid", &ours.mgid.to_string()])?;
    theirs.assert(&[
        ("MGID", ours.mgid.to_string()),
        ("qkey", hex(ours.q_key.0)),
        ("mlid", hex(ours.mlid.0)),
        ("mtu", hex(0x80 | ours.mtu.0)),
        ("TClass", hex(ours.traffic_class)),
        ("pkey", hex(ours.p_key.0)),
        ("rate", hex(0x80 | ours.rate.0)),
        ("pkt_life", hex(0x80 | ours.packet_life_time.get())),
        ("SL", hex(ours.sl.get())),
        ("FlowLabel", hex(ours.flow_label.get())),
        ("HopLimit", hex(ours.hop_limit)),
        ("Scope", hex(ours.scope)),
        ("JoinState", hex(ours.join_state.bits())),
        ("ProxyJoin", hex(u8::from(ours.proxy_join.0))),
        ("PortGid", ours.port_gid.to_string()),
    ]);
    Ok(())
}

/// How a switch spreads a group, as saquery shows it; an error while that changes.
pub(crate) async fn spread(sa: &Client, fabric: &Fabric, switch: &str, mlid: Lid) -> Outcome {
    let lid = node(sa, switch).await?.lid;
    let wanted = Template::<MftRecord>::new().lid(lid).position(0u8).block_num(0u16);
    let table = sa.get(wanted).await?;
    let theirs = Printed::of(fabric, &["MFTR", &lid.0.to_string()])?;
    theirs.assert(&[("LID", lid.0.to_string()), ("Position", "0".into()), ("Block", "0".into())]);
    let ours = (0xc000..).zip(table.port_masks).map(|(mlid, ports)| vec![mlid, ports.into()]);
    let ours: Vec<Vec<u64>> = ours.collect();
    let spreads = table.port_masks[usize::from(mlid.0 - 0xc000)] != 0;
    match spreads && theirs.rows == ours {
        true => Ok(()),
        false => Err(format!("{ours:?}, but saquery prints {:?}", theirs.rows).into()),
    }
}

/// The only subscription that the SA holds, as saquery shows it.
pub(crate) async fn subscription(sa: &Client, fabric: &Fabric) -> Outcome {
    let record = sa.get(Template::<InformInfoRecord>::new()).await?;
    let info = &record.inform_info;
    Printed::of(fabric, &["IIR"])?.assert(&[
        ("SubscriberGID", record.subscriber_gid.to_string()),
        ("SubscriberEnum", hex(record.enumeration)),
        ("gid", info.gid.to_string()),
        ("lid_range_begin", info.lid_range_begin.0.to_string()),
        ("lid_range_end", info.lid_range_end.0.to_string()),
        ("is_generic", hex(info.is_generic)),
        ("subscribe", hex(info.subscribe)),
        ("trap_num", info.trap_or_device.to_string()),
    ]);
    Ok(())
}
