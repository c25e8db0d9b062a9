//! The subnet as its administrator knows it: nodes, links, groups and paths as tables.
//!
//! ```text
//! cargo run --example fabric -- --device mlx5_0            with --features verbs
//! cargo run --example fabric -- --device ibsim:NODE paths
//! ```
//!
//! What is asked for more than a moment shows how far it is.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use examples::{chain, open};
use futures::future::try_join_all;
use ibcm::sa::{
    Client, LinkRecord, McMemberRecord, NodeRecord, NodeType, PathRecord, PortInfoRecord, Record, SaError,
    SaStatus, Table, Template,
};
use ibcm::{Gid, Lid};
use indicatif::{ProgressBar, ProgressStyle};

/// Shows an InfiniBand subnet.
#[derive(Debug, Parser)]
struct Args {
    /// The device whose subnet it is: mlx5_0, mlx5_0/2, ibsim:NODE
    #[arg(long)]
    device: Option<String>,
    /// What is shown; all of it if nothing is named. Paths are those of this port.
    what: Vec<What>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Nodes,
    Links,
    Groups,
    Paths,
}

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    match show(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn show(args: Args) -> Result {
    let what = if args.what.is_empty() { What::value_variants() } else { &args.what[..] };
    let hca = open(args.device.as_deref()).await?;
    let sa = hca.sa();
    let subnet = match Subnet::ask(&sa).await? {
        Some(subnet) => subnet,
        None => Subnet::walk(&sa, hca.port(sa.port()).map_or(Lid::NONE, |port| port.lid())).await?,
    };
    for what in what {
        match what {
            What::Nodes => subnet.print_nodes(),
            What::Links => subnet.print_links(),
            What::Groups => groups(&sa).await?,
            What::Paths => paths(&sa, hca.gid(), &subnet).await?,
        }
    }
    hca.close().await;
    Ok(())
}

/// A table, with a spinner while it comes.
async fn table<R: Record>(sa: &Client, what: &str, wanted: Template<R>) -> Result<Table<R>> {
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}")?;
    let progress = ProgressBar::new_spinner().with_style(style).with_message(format!("asking for {what}"));
    progress.enable_steady_tick(Duration::from_millis(100));
    let answer = sa.table(wanted).await;
    progress.finish_and_clear();
    Ok(answer?)
}

/// A bar of what is asked for one after another. It moves on by itself, too, so that one sees how long a slow SA takes.
fn bar(len: u64, words: &str, message: &'static str) -> Result<ProgressBar> {
    let style =
        ProgressStyle::with_template(&format!("{{spinner}} {{bar:30}} {{pos}} of {{len}} {{msg}}, {words}"))?;
    let progress = ProgressBar::new(len).with_style(style).with_message(message);
    progress.enable_steady_tick(Duration::from_millis(100));
    Ok(progress)
}

/// The record, if there is one.
async fn one<R: Record>(sa: &Client, wanted: Template<R>) -> Result<Option<R>> {
    match sa.get(wanted).await {
        Ok(record) => Ok(Some(record)),
        Err(SaError::Status(SaStatus::NO_RECORDS)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Columns as wide as their widest word.
fn print(title: &str, head: &[&str], mut rows: Vec<Vec<String>>) {
    rows.sort();
    rows.insert(0, head.iter().map(|word| (*word).to_owned()).collect());
    println!("{title}: {}", rows.len() - 1);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("  {}", cells.join("  ").trim_end());
    }
    println!();
}

/// Nodes (a record for each port of a CA, one for a switch), their ports, and links from both of their ends.
#[derive(Default)]
struct Subnet {
    nodes: BTreeMap<Lid, NodeRecord>,
    ports: BTreeMap<Lid, PortInfoRecord>,
    links: Vec<LinkRecord>,
}

/// The port that has the LID: of a switch that is its own port 0.
const fn port_of(node: &NodeRecord) -> u8 {
    match node.node_info.node_type {
        NodeType::SWITCH => 0,
        _ => node.node_info.local_port_num,
    }
}

impl Subnet {
    /// All of it by three queries; nothing if an answer was cut on its way, as those are that come through ibsim's library.
    async fn ask(sa: &Client) -> Result<Option<Self>> {
        let nodes = table(sa, "nodes", Template::<NodeRecord>::new()).await?.complete();
        let ports = table(sa, "ports", Template::<PortInfoRecord>::new()).await?.complete();
        let links = table(sa, "links", Template::<LinkRecord>::new()).await?.complete();
        let (Ok(nodes), Ok(ports), Ok(links)) = (nodes, ports, links) else { return Ok(None) };
        let mut subnet = Self { links, ..Self::default() };
        subnet.nodes.extend(nodes.into_iter().map(|node| (node.lid, node)));
        for port in ports {
            let node = subnet.nodes.get(&port.end_port_lid);
            if node.is_some_and(|node| port_of(node) == port.port_num) {
                subnet.ports.insert(port.end_port_lid, port);
            }
        }
        Ok(Some(subnet))
    }

    /// From link to link, one record after another.
    async fn walk(sa: &Client, ours: Lid) -> Result<Self> {
        let progress = bar(1, "{elapsed}", "ports known")?;
        let (mut subnet, mut next) = (Self::default(), VecDeque::from([ours]));
        while let Some(lid) = next.pop_front() {
            let Some(node) = one(sa, Template::<NodeRecord>::new().lid(lid)).await? else { continue };
            let wanted = Template::<PortInfoRecord>::new().end_port_lid(lid).port_num(port_of(&node));
            subnet.ports.extend(one(sa, wanted).await?.map(|port| (lid, port)));
            let ports = match port_of(&node) {
                0 => 1..=node.node_info.num_ports,
                port => port..=port,
            };
            subnet.nodes.insert(lid, node);
            let wanted = |port| Template::<LinkRecord>::new().from_lid(lid).from_port(port);
            // At once: the client has some under way, and the others wait for their turn.
            for link in try_join_all(ports.map(|port| one(sa, wanted(port)))).await?.into_iter().flatten() {
                if !subnet.nodes.contains_key(&link.to_lid) && !next.contains(&link.to_lid) {
                    next.push_back(link.to_lid);
                }
                subnet.links.push(link);
            }
            progress.set_position(subnet.nodes.len() as u64);
            progress.set_length((subnet.nodes.len() + next.len()) as u64);
        }
        progress.finish_and_clear();
        Ok(subnet)
    }

    /// How people call the node with this LID.
    fn name(&self, lid: Lid) -> String {
        let known = self.nodes.get(&lid);
        known.map_or_else(|| format!("LID {}", lid.0), |record| record.node_description.to_string())
    }

    fn print_nodes(&self) {
        let row = |node: &NodeRecord| {
            let info = &node.node_info;
            let port = self.ports.get(&node.lid).map(|port| &port.port_info);
            vec![
                format!("{:>5}", node.lid.0),
                info.node_type.to_string(),
                node.node_description.to_string(),
                format!("{} of {}", port_of(node), info.num_ports),
                info.port_guid.to_string(),
                port.map_or_else(String::new, |port| port.port_state.to_string()),
                port.and_then(|port| port.rate()).map_or_else(String::new, |rate| rate.to_string()),
            ]
        };
        let head = ["  LID", "type", "name", "port", "port GUID", "state", "rate"];
        print("nodes", &head, self.nodes.values().map(row).collect());
    }

    /// Each link once.
    fn print_links(&self) {
        let row = |link: &LinkRecord| {
            let end = |lid, port: u8| [self.name(lid), format!("{port:>3}")];
            [end(link.from_lid, link.from_port), end(link.to_lid, link.to_port)].concat()
        };
        let forward = |link: &&LinkRecord| (link.from_lid, link.from_port) <= (link.to_lid, link.to_port);
        print("links", &["from", "port", "to", "port"], self.links.iter().filter(forward).map(row).collect());
    }
}

async fn groups(sa: &Client) -> Result {
    // Members are shown to the trusted only; anybody sees the groups.
    let answer = table(sa, "groups", Template::<McMemberRecord>::new()).await?;
    if !answer.is_complete() {
        eprintln!("warning: the table of groups was cut on its way");
    }
    let row = |group: &McMemberRecord| {
        vec![
            group.mgid.to_string(),
            format!("{:#06x}", group.mlid.0),
            group.p_key.to_string(),
            group.q_key.to_string(),
            group.mtu.to_string(),
            group.rate.to_string(),
            group.sl.to_string(),
        ]
    };
    // Behind the last record of a table that was cut stands anything.
    let groups = answer.iter().filter(|group| group.mgid.is_multicast());
    let head = ["group", "MLID", "P_Key", "Q_Key", "MTU", "rate", "SL"];
    print("groups", &head, groups.map(row).collect());
    Ok(())
}

/// From this port to all others, one query after another: of that there is a bar.
async fn paths(sa: &Client, ours: Gid, subnet: &Subnet) -> Result {
    let progress = bar(subnet.nodes.len() as u64, "{elapsed}, {eta} left", "destinations")?;
    let mut rows = Vec::new();
    for lid in subnet.nodes.keys() {
        let wanted = Template::<PathRecord>::new().sgid(ours).dlid(*lid).reversible(true);
        if let Some(path) = one(sa, wanted).await? {
            rows.push(vec![
                subnet.name(path.dlid),
                path.dgid.to_string(),
                format!("{} -> {}", path.slid.0, path.dlid.0),
                path.pkey.to_string(),
                path.sl.to_string(),
                path.mtu.to_string(),
                path.rate.to_string(),
                path.packet_life_time.to_string(),
            ]);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    print("paths", &["to", "GID", "LIDs", "P_Key", "SL", "MTU", "rate", "lifetime"], rows);
    Ok(())
}
