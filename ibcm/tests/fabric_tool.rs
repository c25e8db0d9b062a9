//! A tool that reads and joins what the SA offers, on a managed subnet of this process.

use std::error::Error;
use std::time::Duration;

use futures::StreamExt;

use ibcm::sa::{Group, Is, Notice, PathRecord, Template, Trap};
use ibcm::{Hca, Mtu, Rate, ServiceId, sim::Subnet};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

#[tokio::test(start_paused = true)]
async fn every_part_of_it_runs() -> Result<(), Box<dyn Error>> {
    let net = Subnet::star(["a", "b", "c"]).managed().await?;
    let (a, b) = (Hca::open(net.device("a")).await?, Hca::open(net.device("b")).await?);
    let sa = a.sa();
    let path = sa.path(b.gid()).rate(Is::GreaterThan(Rate::GBPS_10)).await?;
    assert_eq!((path.dgid, path.rate), (b.gid(), Rate::GBPS_100));
    let slow = sa.path(b.gid()).mtu(Is::LessThan(Mtu::B2048)).sl(3).p_key(0x1234).count(2).all().await?;
    assert_eq!(slow, [], "nobody has that P_Key");
    let table = sa.table(Template::<PathRecord>::new().sgid(a.gid()).num_paths(1)).await?;
    assert_eq!(table.complete()?.len(), 4, "three HCAs and the switch, where the manager is");

    let mut notices = sa.subscribe([Trap::GROUP_CREATED, Trap::GID_OUT]).await?;
    let group = b.sa().join("ff15:a01b::7".parse()?).or_create(Group::new(0x1ee7)).await?;
    let _service = b.sa().register(SID, "kv/eu-1").lease(Duration::from_secs(60)).await?;
    let found = sa.resolve(SID).await?;
    assert_eq!(found.iter().map(|record| record.service_gid).collect::<Vec<_>>(), [b.gid()]);
    while let Some(notice) = notices.next().await {
        if matches!(notice, Notice::GroupCreated(gid) if gid == group.mgid()) {
            break;
        }
    }
    group.leave().await?;
    Ok(())
}
