//! Paths, field by field what saquery prints.

use ibsa::record::{Is, MultiPath, MultiPathRecord, PathRecord, SmInfoRecord, SmState, Template};
use ibsa::{Client, PathSource, QueryError, SaStatus};
use ibwire::{Gid, Guid, Mtu, Rate};
use tests::ibsim::Fabric;

use crate::Outcome;
use crate::records::{Printed, node};

/// The path between its LIDs as saquery prints it.
fn same(fabric: &Fabric, path: &PathRecord) -> Outcome {
    let lids = [path.slid, path.dlid].map(|lid| lid.0.to_string());
    Printed::of(fabric, &["PR", "--slid", &lids[0], "--dlid", &lids[1]])?.assert(&[
        ("service_id", format!("{:#018x}", path.service_id.0)),
        ("dgid", path.dgid.to_string()),
        ("sgid", path.sgid.to_string()),
        ("dlid", path.dlid.0.to_string()),
        ("slid", path.slid.0.to_string()),
        ("hop_flow_raw", format!("{:#x}", path.hop_limit)),
        ("tclass", format!("{:#x}", path.traffic_class)),
        ("num_path_revers", format!("{:#x}", u8::from(path.reversible) << 7 | path.num_paths)),
        ("pkey", path.pkey.to_string()),
        ("qos_class", format!("{:#x}", path.qos_class)),
        ("sl", format!("{:#x}", path.sl.get())),
        ("mtu", format!("{:#x}", 0x80 | path.mtu.0)),
        ("rate", format!("{:#x}", 0x80 | path.rate.0)),
        ("pkt_life", format!("{:#x}", 0x80 | path.packet_life_time.get())),
        ("preference", format!("{:#x}", path.preference)),
    ]);
    Ok(())
}

pub(crate) async fn one(sa: Client, fabric: &Fabric) -> Outcome {
    let manager = sa.get(Template::<SmInfoRecord>::new()).await?;
    assert_eq!(manager.sm_state, SmState::MASTER);
    let (here, there) = (node(&sa, "B").await?, node(&sa, "A").await?);
    let to = Gid::link_local(there.node_info.port_guid);
    let path: PathRecord = *sa.path(to).await?;
    assert_eq!((path.dgid, path.slid, path.dlid), (to, here.lid, manager.lid));
    same(fabric, &path)?;
    // The second time it comes from the cache; a rate that the links do not have is no path.
    let again = sa.path(to).await?;
    assert!(matches!(again.source(), PathSource::Cache { .. }));
    assert_eq!(*again, path);
    assert_eq!(sa.cache_stats(), (1, 1));
    let fast = sa.path(to).rate(Is::GreaterThan(Rate::GBPS_10)).await.expect_err("no such record");
    assert!(matches!(fast, QueryError::Status(SaStatus::NO_RECORDS)), "{fast}");
    let slow = sa.path(to).mtu(Is::LessThan(Mtu::B2048)).await?;
    assert_eq!(slow.mtu, Mtu::B1024);
    Ok(())
}

/// By GetMulti, which saquery does not know: what it finds is what saquery prints of each pair, and what we are told when we ask
/// for that alone.
///
/// OpenSM's library has no RMPP here: the answer's header is that of the request, and shows as many bytes as the request had.
/// Nine GIDs make room for two paths: those from the first source to the first destinations. (Of eleven it loses the last.)
pub(crate) async fn between_several(sa: Client, fabric: &Fabric) -> Outcome {
    let mut ports = Vec::new();
    for name in ["A", "B", "C", "D", "S1", "S2"] {
        let node = node(&sa, name).await?;
        ports.push((Gid::link_local(node.node_info.port_guid), node.lid));
    }
    // From one, to the next and the one behind that; behind them those that make room.
    let ask = async |from: usize, step: usize, wanted| {
        let gid = |index: usize| ports[index % 4].0;
        let ends = [gid(from), gid(from + step), gid(from + 2 * step)];
        let others = || ports.iter().map(|(gid, _)| *gid).filter(|gid| !ends.contains(gid));
        let sources = [ends[0]].into_iter().chain(others()).collect();
        let destinations = ends[1..].iter().copied().chain(others()).collect();
        (ends, sa.multi(&MultiPath { wanted, sources, destinations }).await)
    };
    for (from, step) in (0..4).flat_map(|from| [(from, 1), (from, 3)]) {
        let ([from, to @ ..], found) = ask(from, step, Template::new()).await;
        let found = found?;
        let pairs: Vec<_> = found.iter().map(|path| (path.sgid, path.dgid)).collect();
        assert_eq!(pairs, to.map(|to| (from, to)));
        for path in &found {
            same(fabric, path)?;
            let alone: PathRecord = *sa.path(path.dgid).sgid(path.sgid).uncached().await?;
            assert_eq!(*path, alone);
        }
    }
    // What is asked for beyond the ends counts, too.
    let slow = Template::<MultiPathRecord>::new().mtu(Is::LessThan(Mtu::B2048));
    let slow = ask(1, 1, slow).await.1?;
    assert!(slow.len() == 2 && slow.iter().all(|path| path.mtu == Mtu::B1024), "{slow:?}");
    // A port that nobody knows.
    let stranger = Gid::link_local(Guid(0xdead));
    let query =
        MultiPath { wanted: Template::new(), sources: vec![ports[1].0], destinations: vec![stranger] };
    let unknown = sa.multi(&query).await;
    assert!(matches!(unknown, Err(QueryError::Status(SaStatus::INVALID_GID))), "{unknown:?}");
    Ok(())
}
