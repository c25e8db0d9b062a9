//! Queries for paths: the SA alone, bytes in and bytes out, and across the subnet by the client of an HCA.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use benches::{Case, Clock, Options, Sampling, Table, side_by_side};
use futures::{StreamExt, TryStreamExt, stream};
use ibcm::sa::{PathRecord, Template};
use ibcm::sim::Subnet;
use ibcm::{Gid, Hca};
use ibsa::mad::SaHeader;
use ibsa::record::{LinkSpeed, LinkWidth, NodeInfo, NodeType, PortInfo, PortState};
use ibsoft::manager::{Node, Peer, Port, PortAt, Sa, SaConfig, Topology, route};
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ibwire::{Guid, Lid, Mtu, PKey, Qpn, ServiceLevel, TransactionId};
use tokio::runtime::Runtime;

use crate::net::{Shape, hca_name};
use crate::{Result, runtime};

const IN_FLIGHT: [usize; 3] = [1, 16, 256];
/// DGID, SGID, reversible and the number of paths.
const MASK: u64 = 1 << 2 | 1 << 3 | 1 << 11;

pub(crate) fn run(options: &Options) -> Result {
    let shape = if options.quick { Shape::SMALL } else { Shape::HUNDRED };
    let runtime = runtime()?;
    let (net, hcas) = runtime.block_on(opened(shape))?;
    let mut alone = Alone::new(shape);
    let gids: Vec<Gid> = hcas.iter().map(Hca::gid).collect();
    let ask = |count: u64, in_flight: usize| {
        let queries = (0..count).map(|query| query_of(&hcas, &gids, query as usize));
        let all = stream::iter(queries).buffer_unordered(in_flight).try_for_each(async |()| Ok(()));
        runtime.block_on(all).expect("every query is answered");
    };
    let mut cases = vec![Case::new("SA alone", |count| alone.ask(count))];
    for in_flight in IN_FLIGHT {
        cases.push(Case::new(format!("hca.sa(), {in_flight} in flight"), move |count| ask(count, in_flight)));
    }
    cases.retain(|case| options.selects(case.name()));
    let sampling = Sampling::new(options, Clock::Cpu, Duration::from_millis(100), 21);
    let mut table = Table::new(["queries for a path", "queries/s", "us each", "quartiles, ns"]);
    for case in side_by_side(sampling, cases) {
        let (rate, us) = (format!("{:.0}", case.per_second()), format!("{:.2}", case.median / 1e3));
        table.row([case.name.clone(), rate, us, case.spread()]);
    }
    println!("{table}");
    if options.selects("a second of its time") {
        a_second(&runtime, &net, &hcas, if options.quick { 1_000 } else { 10_000 })?;
    }
    Ok(())
}

async fn opened(shape: Shape) -> Result<(Subnet, Vec<Hca>)> {
    let net = shape.build().managed().await?;
    let mut hcas = Vec::new();
    for hca in 0..shape.hcas {
        hcas.push(Hca::open(net.device(&hca_name(hca))).await?);
    }
    Ok((net, hcas))
}

/// A query of one HCA for the path to another, each time other ones.
async fn query_of(hcas: &[Hca], gids: &[Gid], number: usize) -> std::result::Result<(), ibcm::sa::SaError> {
    let from = number % hcas.len();
    let to = (from + 1 + number / hcas.len() % (hcas.len() - 1)) % hcas.len();
    let wanted = Template::<PathRecord>::new().sgid(gids[from]).dgid(gids[to]).reversible(true);
    let sa = hcas[from].sa();
    let path = sa.get(wanted).await?;
    assert_eq!(path.dgid, gids[to]);
    Ok(())
}

/// Spreads so many queries over a second of the subnet's time, and waits for all answers.
fn a_second(runtime: &Runtime, net: &Subnet, hcas: &[Hca], count: usize) -> Result {
    let gids: Vec<Gid> = hcas.iter().map(Hca::gid).collect();
    let (real, its) = (Instant::now(), tokio::time::Instant::now());
    let millisecond = Duration::from_millis(1);
    let each = count / 1000;
    runtime.block_on(async {
        let turns = (0..1000).map(|turn| {
            let (at, gids) = (its + millisecond * turn as u32, &gids);
            async move {
                tokio::time::sleep_until(at).await;
                let queries = (turn * each..(turn + 1) * each).map(|query| query_of(hcas, gids, query));
                futures::future::try_join_all(queries).await.map(|answers| answers.len())
            }
        });
        let answered: usize = futures::future::try_join_all(turns).await?.into_iter().sum();
        assert_eq!(answered, count);
        assert!(its.elapsed() <= Duration::from_secs(1), "{:?}", its.elapsed());
        net.quiet().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    let real = real.elapsed().as_secs_f64();
    println!("{count} queries within a second of the subnet's time took {real:.3} s\n");
    Ok(())
}

/// The SA without a subnet around it.
struct Alone {
    sa: Sa,
    now: Instant,
    queries: Vec<(Peer, [u8; 256])>,
}

impl Alone {
    fn new(shape: Shape) -> Self {
        let (topology, hosts) = topology(shape);
        let queries = (0..4096).map(|number| {
            let from = number % hosts.len();
            let to = (from + 1 + number / hosts.len() % (hosts.len() - 1)) % hosts.len();
            let record = PathRecord {
                sgid: topology.gid(hosts[from]),
                dgid: topology.gid(hosts[to]),
                reversible: true,
                ..PathRecord::default()
            };
            let lid = topology.port(hosts[from]).expect("each host has a port").info.lid;
            let (sl, p_key) = (ServiceLevel::default(), PKey::DEFAULT);
            let peer = Peer { lid, qpn: Qpn::GSI, gid: None, sl, p_key };
            let tid = TransactionId(number as u64);
            let header = MadHeader::new(MgmtClass::SA, 2, Method::GET, AttributeId(0x35), tid);
            let mut mad = [0; 256];
            let header = SaHeader { component_mask: MASK, ..SaHeader::new(header) };
            mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
            record.write_to(&mut mad[SaHeader::LEN..]);
            (peer, mad)
        });
        let (queries, now) = (queries.collect(), Instant::now());
        let mut sa = Sa::new(SaConfig::default());
        sa.set_topology(now, topology);
        Self { sa, now, queries }
    }

    fn ask(&mut self, count: u64) {
        let Self { sa, now, queries } = self;
        for (peer, mad) in queries.iter().cycle().take(count as usize) {
            sa.handle_mad(*now, *peer, mad);
            let answer = sa.poll_transmit(*now).expect("an answer");
            assert_eq!(answer.mad[4..6], [0, 0], "status");
        }
    }
}

/// The subnet as its manager knows it, and the ports of its hosts.
fn topology(shape: Shape) -> (Topology, Vec<PortAt>) {
    let mut topology = Topology::new(Topology::DEFAULT_PREFIX);
    let mut guid = 0x100;
    let mut add = |topology: &mut Topology, is_switch: bool, ports: usize| {
        guid += 0x100;
        let node_type = if is_switch { NodeType::SWITCH } else { NodeType::CA };
        let info =
            NodeInfo { node_type, num_ports: ports as u8, node_guid: Guid(guid), ..NodeInfo::default() };
        let info_of = |number| PortInfo {
            local_port_num: number,
            port_state: PortState::ACTIVE,
            neighbor_mtu: Mtu::B4096,
            link_width_active: LinkWidth::X4,
            link_speed_active: LinkSpeed::QDR,
            mtu_cap: Mtu::B4096,
            ..PortInfo::default()
        };
        let first = u8::from(!is_switch);
        let ports =
            (first..=ports as u8).map(|port| (port, Port::new(Guid(guid + u64::from(first)), info_of(port))));
        let switch = is_switch.then(Default::default);
        topology.add(Node { info, description: Default::default(), ports: ports.collect(), switch })
    };
    let spines: Vec<_> = (0..shape.spines).map(|_| add(&mut topology, true, shape.leaves)).collect();
    let room = shape.hcas.div_ceil(shape.leaves) + shape.spines;
    let leaves: Vec<_> = (0..shape.leaves).map(|_| add(&mut topology, true, room)).collect();
    for (at, leaf) in leaves.iter().enumerate() {
        for (port, spine) in (1..).zip(&spines) {
            topology.link(PortAt { node: *leaf, port }, PortAt { node: *spine, port: at as u8 + 1 });
        }
    }
    let mut hosts = Vec::new();
    for hca in 0..shape.hcas {
        let node = add(&mut topology, false, 1);
        let port = (shape.spines + hca / shape.leaves + 1) as u8;
        topology.link(PortAt { node, port: 1 }, PortAt { node: leaves[hca % shape.leaves], port });
        hosts.push(PortAt { node, port: 1 });
    }
    topology.assign_lids(None, 0, &mut BTreeMap::new(), Lid(1)).expect("there are enough LIDs");
    route(&mut topology);
    (topology, hosts)
}
