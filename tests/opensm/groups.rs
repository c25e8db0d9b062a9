//! Groups and services, as a second client and saquery see them.

use std::time::{Duration, Instant};

use ibdev::DeviceEvent;
use ibsa::record::{Is, JoinState, McMemberRecord, Template};
use ibsa::{Client, Group, QueryError, SaStatus};
use ibwire::{Gid, Mtu, QKey, ServiceId};
use tests::ibsim::Fabric;

use crate::records::{self, Printed, trusted};
use crate::{Outcome, PATIENCE, client};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0078);

pub(crate) async fn groups(sa: Client, fabric: &Fabric) -> Outcome {
    let other = client(fabric, "D").await?;
    let mgid: Gid = "ff15:a01b::7".parse()?;
    let absent = sa.join(mgid).await.expect_err("no such group");
    assert!(matches!(absent, QueryError::Status(SaStatus::INSUFFICIENT_COMPONENTS)), "{absent}");
    let fields = Group::new(0x1ee7u32).traffic_class(4).flow_label(0x12345u32).hop_limit(7);
    let ours = sa.join(mgid).or_create(fields.mtu(Is::Exactly(Mtu::B1024)).scope(5)).await?;
    let record = ours.record();
    assert_eq!((record.mgid, record.q_key, record.mtu), (mgid, QKey(0x1ee7), Mtu::B1024));
    assert_eq!((record.flow_label.get(), record.hop_limit, record.traffic_class), (0x12345, 7, 4));
    records::member(fabric, &record)?;
    // A second client is in it too, at first only to send.
    let theirs = other.join(mgid).send_only().await?;
    assert_eq!((theirs.mlid(), theirs.record().join_state), (ours.mlid(), JoinState::SEND_ONLY_NON_MEMBER));
    let full = other.join(mgid).await?;
    assert_eq!(full.record().join_state.bits(), 5);
    theirs.leave().await?;
    let members = || Template::<McMemberRecord>::new().mgid(mgid);
    // To the switches it goes in a moment.
    let until = Instant::now() + PATIENCE;
    while let Err(error) = records::spread(&sa, fabric, "S2", ours.mlid()).await {
        if Instant::now() > until {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ours.leave().await?;
    let left = trusted(&sa, members()).await?;
    assert_eq!((left.port_gid, left.join_state), (full.record().port_gid, JoinState::FULL_MEMBER));
    full.leave().await?;
    let gone = sa.get(members()).await.expect_err("nobody is in it");
    assert!(matches!(gone, QueryError::Status(SaStatus::NO_RECORDS)), "{gone}");
    // One for which the SA finds the name.
    let named = sa.join(Gid::UNSPECIFIED).or_create(Group::new(1u32)).await?;
    assert_eq!(named.mgid().0[..4], [0xff, 0x12, 0xa0, 0x1b]);
    let same = other.join(named.mgid()).await?;
    assert_eq!(same.mlid(), named.mlid());
    named.leave().await?;
    Ok(same.leave().await?)
}

pub(crate) async fn services(sa: Client, fabric: &Fabric) -> Outcome {
    let other = client(fabric, "D").await?;
    let lease = Duration::from_secs(1);
    let ours = sa.register(SERVICE, "kv/eu-1").lease(lease).data8(1, 7).data32(0, 0x1234_5678).await?;
    let record = ours.record();
    let shown = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:#x}")).collect::<Vec<_>>();
    assert_eq!(shown(&record.service_data8[..3]), ["0x0", "0x7", "0x0"]);
    Printed::of(fabric, &["SR"])?.assert(&[
        ("ServiceID", format!("{:#018x}", SERVICE.0)),
        ("ServiceGID", record.service_gid.to_string()),
        ("ServiceP_Key", format!("{:#x}", record.service_p_key.0)),
        ("ServiceLease", format!("{:#x}", record.service_lease)),
        ("ServiceName", "kv/eu-1".into()),
    ]);
    // Longer than the lease.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let found = other.resolve(SERVICE).await?;
    assert_eq!((found.len(), found[0].service_gid), (1, record.service_gid), "{found:?}");
    assert_eq!((found[0].service_data8[1], found[0].service_data32[0]), (7, 0x1234_5678));
    ours.cancel().await?;
    assert!(other.resolve(SERVICE).await?.complete()?.is_empty(), "an empty answer was not cut");
    Ok(())
}

/// What a client has at an SM that is started anew comes again when the port is asked for it.
pub(crate) async fn again(sa: &Client, fabric: &Fabric, restart: impl AsyncFnOnce() -> Outcome) -> Outcome {
    let mgid: Gid = "ff15:a01b::8".parse()?;
    let mut member = sa.join(mgid).or_create(Group::new(1u32)).await?;
    let mut service = sa.register(SERVICE, "kv/eu-1").await?;
    restart().await?;
    assert_eq!(fabric.saquery("C", &["SR"])?, "", "it knows nothing");
    // ibsim's HCAs cannot be asked, so that OpenSM does not.
    sa.device_event(DeviceEvent::ClientReregister(1));
    let record = tokio::time::timeout(PATIENCE, member.changed()).await??;
    records::member(fabric, &record)?;
    tokio::time::timeout(PATIENCE, service.changed()).await??;
    Printed::of(fabric, &["SR"])?.assert(&[("ServiceName", "kv/eu-1".into())]);
    Ok(())
}
