//! Our subnet manager and OpenSM on the same subnets, those that ibsim ships and larger ones: every record of both, field by
//! field. [`FREE`] lists what may differ, why, and how; all else is the same: LIDs, routes, trees, paths, tables.

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

/// A field that may differ, and what it then is.
struct Free {
    record: &'static str,
    field: &'static str,
    /// Whether this difference is the one that is meant.
    is: fn(&Unlike<'_>) -> bool,
}

/// What may differ.
const FREE: &[Free] = &[
    // It counts as time goes by.
    Free { record: "SMInfoRecord", field: "act_count", is: |_| true },
    // OpenSM's library tells ibsim to set IsSM on the manager's port.
    Free {
        record: "PortInfoRecord",
        field: "capability_mask",
        is: |it| it.lid() == it.subnet.manager && flags(it.theirs) == &flags(it.ours) | &flags("SM"),
    },
    // A switch says by which port the question came in, and OpenSM passes that on; ours says which port the record is of.
    Free {
        record: "PortInfoRecord",
        field: "local_port_num",
        is: |it| it.ours == it.port().to_string() && it.subnet.entered(it.lid()) == Some(it.theirs),
    },
    // ibsim's end ports keep their own whatever is written; ours says what it wrote.
    Free {
        record: "PortInfoRecord",
        field: "subnet_timeout",
        is: |it| {
            let is_end = it.port() == 0 || !it.subnet.is_switch(it.lid());
            is_end && (code(it.ours), code(it.theirs)) == (WRITTEN_TIMEOUT, KEPT_TIMEOUT)
        },
    },
    // With an LMC above 0: which of several ways that are as short each further LID of a port takes. That they are as short
    // is looked at for all.
    Free { record: "LFTRecord", field: "ports", is: |it| !it.subnet.routes.bases.contains(&it.index()) },
    // OpenSM sends a group's packets to those, too, that only send to it.
    Free {
        record: "MFTRecord",
        field: "port_masks",
        is: |it| it.index() == SENDERS_TREE && has_all(it.theirs, it.ours),
    },
];

const WRITTEN_TIMEOUT: &str = "18";
const KEPT_TIMEOUT: &str = "31";

/// Which of the trees is that of the last of [`GROUPS`], which has a member that only sends.
const SENDERS_TREE: u16 = 3;

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
    let manager = ours.iter().find(|(key, _)| key.starts_with("SMInfoRecord"));
    let manager = manager.and_then(|(_, fields)| number(value(fields, "lid")?)).unwrap_or_default();
    let subnet = Subnet { manager, routes: a, theirs };
    for key in keys {
        match (ours.get(key), theirs.get(key)) {
            // OpenSM looks for a switch's links at its LID without the low bits, as if it had several.
            (Some(_), Some(b)) if lmc > 0 && key.starts_with("LinkRecord") && b[0].0 == "status" => {}
            (Some(a), Some(b)) if a.len() == b.len() => {
                for ((field, ours), (_, theirs)) in a.iter().zip(b).filter(|(a, b)| a != b) {
                    let unlike = Unlike { key, field, ours, theirs, subnet: &subnet };
                    if !unlike.is_free() {
                        found.push(format!("{key}: {field} is {ours}, OpenSM's {theirs}"));
                    }
                }
            }
            (a, b) => found.push(format!("{key}: {a:?}, OpenSM's {b:?}")),
        }
    }
    found
}

/// What it depends on whether a difference is free.
struct Subnet<'a> {
    /// The LID of the manager's port.
    manager: u16,
    routes: Routes,
    theirs: &'a Records,
}

impl Subnet<'_> {
    fn is_switch(&self, lid: u16) -> bool {
        self.routes.ports.keys().any(|(switch, _)| *switch == lid)
    }

    /// By which port OpenSM's questions reach a switch: the one that it says of all of them, if it is on a shortest way.
    fn entered(&self, lid: u16) -> Option<&str> {
        let own = self.theirs.get(&format!("PortInfoRecord of LID {lid} port 0"))?;
        let port = value(own, "local_port_num")?;
        let peer = *self.routes.links.get(&(lid, port.parse().ok()?))?;
        let hops = |from| self.routes.hops(from, self.manager);
        (peer == self.manager || hops(peer)? < hops(lid)?).then_some(port)
    }
}

/// What stands in a field.
fn value<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    Some(&fields.iter().find(|(known, _)| known == name)?.1)
}

/// A number as records show it.
fn number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The number of a time, behind which the time stands.
fn code(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// A field that is not the same.
struct Unlike<'a> {
    key: &'a str,
    field: &'a str,
    ours: &'a str,
    theirs: &'a str,
    subnet: &'a Subnet<'a>,
}

impl Unlike<'_> {
    fn is_free(&self) -> bool {
        let field = self.field.split('[').next();
        let is_named = |free: &&Free| self.key.starts_with(free.record) && field == Some(free.field);
        FREE.iter().find(is_named).is_some_and(|free| (free.is)(self))
    }

    /// The number behind a word in what was asked for.
    fn number(&self, word: &str) -> Option<u16> {
        self.key.split_once(word)?.1.split_whitespace().next()?.parse().ok()
    }

    fn lid(&self) -> u16 {
        self.number("of LID ").unwrap_or_default()
    }

    fn port(&self) -> u16 {
        self.number("port ").unwrap_or_default()
    }

    /// Of a field that is one of many.
    fn index(&self) -> u16 {
        let index = self.field.split_once('[').and_then(|(_, index)| index.strip_suffix(']')?.parse().ok());
        index.unwrap_or(u16::MAX)
    }
}

/// Whether one mask of ports has all that another one has.
fn has_all(mask: &str, of: &str) -> bool {
    number(mask).zip(number(of)).is_some_and(|(mask, of)| mask & of == of)
}

fn flags(text: &str) -> BTreeSet<&str> {
    text.split(" | ").collect()
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
            let field = |name: &str| number(value(fields, name)?);
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
