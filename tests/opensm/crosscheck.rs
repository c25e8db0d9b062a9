//! Our subnet manager and OpenSM on the same subnets, those that ibsim ships and larger ones: every record of both, field by
//! field. [`FREE`] lists what may differ and why; all else is the same: LIDs, routes, trees, paths, tables.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibdev::{Device, DeviceError};
use ibsa::record::{
    GuidInfoRecord, Is, JoinState, LftRecord, LinkRecord, McMemberRecord, MftRecord, NodeRecord, NodeType,
    PKeyTableRecord, PathRecord, PortInfoRecord, PortPhysicalState, Record, Sl2VlTableRecord, SmInfoRecord,
    SwitchInfoRecord, Template, VlArbitrationTableRecord,
};
use ibsa::{Client, QueryError, SaStatus};
use ibsoft::IbsimDevice;
use ibsoft::manager::{SmConfig, SubnetManager};
use ibwire::{Gid, Guid, PKey, PacketLifeTime, QKey};
use tests::ibsim::{Fabric, manager};

use crate::records::trusted;
use crate::{Outcome, PATIENCE, client};

/// What may differ: a record, its field, and the reason.
const FREE: &[(&str, &str, &str)] = &[
    ("SMInfoRecord", "act_count", "it counts as time goes by"),
    (
        "PortInfoRecord",
        "capability_mask",
        "that of the manager's port: OpenSM's library tells ibsim to set IsSM",
    ),
    (
        "PortInfoRecord",
        "local_port_num",
        "the port by which OpenSM's question came in; ours says which port it is",
    ),
    (
        "PortInfoRecord",
        "subnet_timeout",
        "ibsim's ports keep their own whatever is written; ours says what it wrote",
    ),
    (
        "LFTRecord",
        "ports",
        "with an LMC above 0, if several ways are as short: which of them each further LID of a port takes; as long they are",
    ),
    ("MFTRecord", SENDERS_TREE, "OpenSM sends a group's packets to those, too, that only send to it"),
];

/// The tree of the last of [`GROUPS`], which has a member that only sends.
const SENDERS_TREE: &str = "port_masks[3]";

/// Groups and their Q_Keys: the one that OpenSM makes by itself; one of all ports; one of the first and the last; one with a
/// sender.
const GROUPS: [(&str, u32); 4] =
    [("ff12:401b:ffff::ffff:ffff", 0x0b1b), ("ff15:a01b::7", 7), ("ff15:a01b::8", 8), ("ff15:a01b::9", 9)];

/// The highest LID that is asked for.
const LIDS: u16 = 56;

/// All records of a subnet: by what was asked, the fields of the answer.
type Records = BTreeMap<String, Vec<(String, String)>>;

/// The same subnet under both managers, which are on node Hca1, asked from node `from`. Files are under `folder`.
pub(crate) async fn same(folder: &Path, net: &Path, from: &str, lmc: u8) -> Outcome {
    const MANAGER: &str = "Hca1";
    let ours = {
        let fabric = Fabric::unmanaged(folder, net, MANAGER)?;
        let device = tokio::time::timeout(PATIENCE, started(&fabric, MANAGER)).await??;
        let own = device.gids(1)?[0].gid;
        let mut config = SmConfig::new(Guid(own.interface_id()));
        config.lmc = lmc;
        let running = tokio::spawn(manager::run(device, SubnetManager::new(config)));
        let records = everything(&client(&fabric, from).await?).await?;
        running.abort();
        records
    };
    assert!(ours.len() > 30, "{ours:?}");
    let fabric = Fabric::unmanaged(folder, net, MANAGER)?;
    fabric.start_opensm_with(&["-l", &lmc.to_string()])?;
    let sa = client(&fabric, from).await?;
    // Its first sweep may still be going on, and its multicast trees follow a moment later.
    let until = Instant::now() + PATIENCE;
    loop {
        let differences = match everything(&sa).await {
            Ok(theirs) => differences(&ours, &theirs, lmc),
            Err(error) => vec![error.to_string()],
        };
        if differences.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{} differences:\n{}", differences.len(), differences.join("\n")).into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The node of the manager as soon as ibsim is there.
async fn started(fabric: &Fabric, node: &str) -> Result<Arc<dyn Device>, DeviceError> {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    loop {
        tick.tick().await;
        match IbsimDevice::attach_to(fabric.base(), node) {
            Err(DeviceError::Os { .. }) => {}
            attached => return Ok(Arc::new(attached?)),
        }
    }
}

fn differences(ours: &Records, theirs: &Records, lmc: u8) -> Vec<String> {
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let mut found = Vec::new();
    let (a, mut b) = (Routes::of(ours), Routes::of(theirs));
    b.links.clone_from(&a.links);
    let ends: BTreeSet<_> = a.ports.keys().chain(b.ports.keys()).collect();
    for (switch, lid) in ends {
        let ways = (a.hops(*switch, *lid), b.hops(*switch, *lid));
        if ways.0.is_none() || ways.0 != ways.1 {
            found.push(format!("hops from LID {switch} to {lid}: {ways:?}"));
        }
    }
    for key in keys {
        let is_free = |field: &str| {
            let field = if lmc > 0 && field.starts_with("ports[") { "ports" } else { field };
            FREE.iter().any(|(record, free, _)| key.starts_with(record) && field == *free)
        };
        match (ours.get(key), theirs.get(key)) {
            // OpenSM looks for a switch's links at its LID without the low bits, as if it had several.
            (Some(_), Some(b)) if lmc > 0 && key.starts_with("LinkRecord") && b[0].0 == "status" => {}
            (Some(a), Some(b)) if a.len() == b.len() => {
                let unlike = a.iter().zip(b).filter(|(a, b)| a != b && !is_free(&a.0));
                found.extend(unlike.map(|((name, a), (_, b))| format!("{key}: {name} is {a}, OpenSM's {b}")));
            }
            (a, b) => found.push(format!("{key}: {a:?}, OpenSM's {b:?}")),
        }
    }
    found
}

/// Where packets go by the records.
struct Routes {
    /// The port of a switch towards a LID.
    ports: BTreeMap<(u16, u16), u8>,
    /// What is at the other end of a switch's port.
    links: BTreeMap<(u16, u8), u16>,
    /// The first LID of each end port.
    bases: BTreeSet<u16>,
}

impl Routes {
    fn of(records: &Records) -> Self {
        let (mut ports, mut links, mut bases) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for (key, fields) in records {
            let number = |text: &str| match text.strip_prefix("0x") {
                Some(digits) => u16::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            };
            let field =
                |name: &str| fields.iter().find(|field| field.0 == name).and_then(|field| number(&field.1));
            if key.starts_with("NodeRecord") {
                bases.extend(field("lid"));
            }
            if let (true, Some(lid)) = (key.starts_with("LFTRecord"), field("lid")) {
                let towards = |to: u16| Some((to, field(&format!("ports[{to}]"))? as u8));
                let known = (0..64).filter_map(towards).filter(|(_, port)| *port != 255);
                ports.extend(known.map(|(to, port)| ((lid, to), port)));
            }
            if let (Some(from), Some(port), Some(to)) =
                (field("from_lid"), field("from_port"), field("to_lid"))
            {
                links.insert((from, port as u8), to);
            }
        }
        Self { ports, links, bases }
    }

    /// How many switches lie between one and a LID. `None` if the way does not lead there.
    fn hops(&self, from: u16, to: u16) -> Option<usize> {
        let (mut at, mut hops) = (from, 0);
        while let Some(port) = self.ports.get(&(at, to)).filter(|_| hops < self.ports.len()) {
            if *port == 0 {
                return (at == to).then_some(hops);
            }
            at = *self.links.get(&(at, *port))?;
            hops += 1;
        }
        (self.bases.range(..=to).next_back() == Some(&at)).then_some(hops)
    }
}

/// An end port, and the ports with a link that it stands for.
struct End {
    node: NodeRecord,
    lids: Range<u16>,
    linked: Vec<u8>,
}

impl End {
    fn gid(&self) -> Gid {
        Gid::link_local(self.node.node_info.port_guid)
    }

    fn is_host(&self) -> bool {
        self.node.node_info.node_type == NodeType::CA
    }
}

async fn everything(sa: &Client) -> Result<Records, QueryError> {
    let ends = ends(sa).await?;
    join(sa, &ends).await?;
    let mut all = Asking { sa, records: Records::new() };
    all.ask(String::new(), Template::<SmInfoRecord>::new()).await?;
    for end in &ends {
        all.node(end).await?;
    }
    for slid in ends.iter().flat_map(|end| end.lids.clone()) {
        for dlid in ends.iter().flat_map(|end| end.lids.clone()) {
            let path = Template::<PathRecord>::new().slid(slid).dlid(dlid);
            all.ask(format!("from LID {slid} to {dlid}"), path).await?;
        }
    }
    for (group, _) in GROUPS {
        for end in &ends {
            let member = Template::<McMemberRecord>::new().mgid(gid(group)).port_gid(end.gid());
            all.ask(format!("of {group} at LID {}", end.node.lid.0), member).await?;
        }
    }
    Ok(all.records)
}

fn gid(group: &str) -> Gid {
    group.parse().expect("those of the table are GIDs")
}

/// All end ports.
async fn ends(sa: &Client) -> Result<Vec<End>, QueryError> {
    let mut ends: Vec<End> = Vec::new();
    for lid in 1..LIDS {
        if ends.last().is_some_and(|last| last.lids.contains(&lid)) {
            continue;
        }
        let node = match sa.get(Template::<NodeRecord>::new().lid(lid)).await {
            Ok(node) => node,
            Err(QueryError::Status(SaStatus::NO_RECORDS)) => continue,
            Err(error) => return Err(error),
        };
        let (own, is_host) = (node.node_info.local_port_num, node.node_info.node_type == NodeType::CA);
        let ports = if is_host { own..=own } else { 0..=node.node_info.num_ports };
        let (mut linked, mut lmc) = (Vec::new(), 0);
        for port in ports {
            let info = Template::<PortInfoRecord>::new().end_port_lid(lid).port_num(port);
            let info = sa.get(info).await?.port_info;
            lmc = lmc.max(info.lmc);
            if port != 0 && info.port_physical_state == PortPhysicalState::LINK_UP {
                linked.push(port);
            }
        }
        ends.push(End { node, lids: lid..lid + (1 << lmc), linked });
    }
    Ok(ends)
}

/// Hosts join the groups, asked for by this client.
async fn join(sa: &Client, ends: &[End]) -> Result<(), QueryError> {
    let hosts: Vec<_> = ends.iter().filter(|end| end.is_host()).collect();
    for (number, (group, q_key)) in GROUPS.into_iter().enumerate() {
        for (turn, host) in hosts.iter().enumerate() {
            let state = match number {
                2 if turn != 0 && turn + 1 != hosts.len() => continue,
                3 if turn == 1 => JoinState::SEND_ONLY_NON_MEMBER,
                3 if turn != 0 => continue,
                _ => JoinState::FULL_MEMBER,
            };
            let join = Template::<McMemberRecord>::new().mgid(gid(group)).port_gid(host.gid());
            let join = join.join_state(state).q_key(QKey(q_key)).p_key(PKey::DEFAULT);
            let mut join = join.traffic_class(0u8).sl(0u8).flow_label(0u32);
            if number == 0 {
                // What OpenSM has made it with.
                join = join.packet_life_time(Is::Exactly(PacketLifeTime::truncate(18))).scope(2u8);
            }
            sa.set(join).await?;
        }
    }
    Ok(())
}

/// Who asks for one record after the other.
struct Asking<'a> {
    sa: &'a Client,
    records: Records,
}

impl Asking<'_> {
    /// What there is about a node.
    async fn node(&mut self, end: &End) -> Result<(), QueryError> {
        let lid = end.node.lid;
        let key = format!("of LID {}", lid.0);
        self.ask(key.clone(), Template::<NodeRecord>::new().lid(lid)).await?;
        self.ask(key.clone(), Template::<SwitchInfoRecord>::new().lid(lid)).await?;
        self.ask(key.clone(), Template::<LftRecord>::new().lid(lid).block_num(0u16)).await?;
        let spread = Template::<MftRecord>::new().lid(lid).position(0u8).block_num(0u16);
        self.ask(key.clone(), spread).await?;
        self.ask(key, Template::<GuidInfoRecord>::new().lid(lid).block_num(0u8)).await?;
        let own = (!end.is_host()).then_some(0);
        for port in end.linked.iter().copied().chain(own) {
            let key = format!("of LID {} port {port}", lid.0);
            let info = Template::<PortInfoRecord>::new().end_port_lid(lid).port_num(port);
            self.ask(key.clone(), info).await?;
            let link = Template::<LinkRecord>::new().from_lid(lid).from_port(port);
            self.ask(key.clone(), link).await?;
            let keys = Template::<PKeyTableRecord>::new().lid(lid).port_num(port).block_num(0u16);
            self.ask(key.clone(), keys).await?;
            let turns = Template::<VlArbitrationTableRecord>::new().lid(lid).output_port_num(port);
            self.ask(key.clone(), turns.block_num(1u8)).await?;
            let (inputs, output) = if end.is_host() { (vec![0], 0) } else { (end.linked.clone(), port) };
            for input in inputs {
                let vls = Template::<Sl2VlTableRecord>::new().lid(lid).output_port_num(output);
                self.ask(format!("{key} from {input}"), vls.input_port_num(input)).await?;
            }
        }
        Ok(())
    }

    /// Asks for a record. That there is none counts, too.
    async fn ask<R: Record>(&mut self, key: String, wanted: Template<R>) -> Result<(), QueryError> {
        let needs_trust = [PKeyTableRecord::ATTRIBUTE, McMemberRecord::ATTRIBUTE].contains(&R::ATTRIBUTE);
        let answer = match needs_trust {
            true => trusted(self.sa, wanted).await,
            false => self.sa.get(wanted).await,
        };
        let fields = match answer {
            Ok(record) => fields(&record),
            Err(QueryError::Status(status)) => vec![("status".into(), status.to_string())],
            Err(error) => return Err(error),
        };
        self.records.insert(format!("{} {key}", R::NAME), fields);
        Ok(())
    }
}

/// A record's fields by name.
fn fields<R: Record>(record: &R) -> Vec<(String, String)> {
    let text = format!("{record:#}");
    let field = |line: &str| {
        let (name, value) = line.trim().split_once('.').unwrap_or((line.trim(), ""));
        (name.to_owned(), value.trim_start_matches('.').trim().to_owned())
    };
    text.lines().map(field).collect()
}
