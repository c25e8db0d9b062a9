//! The storage target serves, refuses and stops as its documentation says.

mod common;

use std::time::Duration;

use common::{Program, Result, example};
use ibcm::{ConnectError, Connection, Hca, How, RejReason, ServiceId};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

#[cfg(unix)]
#[tokio::test]
async fn serves_refuses_and_stops() -> Result {
    let mut target = Program::start(example("target")?.env("IBCM_DEVICE", "soft:127.0.25.1"))?;
    assert_eq!(target.line()?, "listening at ::ffff:127.0.25.1");

    let hca = Hca::open("soft:127.0.25.2").await?;
    let path = hca.path_to("::ffff:127.0.25.1".parse()?).service_id(SID).await?;
    match Connection::connect(path.clone()).private_data(b"BD\x03\x20").await {
        Err(ConnectError::Rejected(no)) => {
            assert_eq!((no.reason, &no.private_data[..2]), (RejReason::CONSUMER, &b"V\x02"[..]));
        }
        other => return Err(format!("{other:?}").into()),
    }
    let conn = Connection::connect(path).private_data(b"BD\x02\x04").await?;
    assert_eq!(&conn.private_data()[..3], b"BD\x02");
    for n in 0..20u8 {
        conn.send_copy(&[n; 4096]).await?;
        assert_eq!(conn.recv().await?.ok_or("closed")?[..], [n; 4096]);
    }

    target.interrupt()?;
    let closed = tokio::time::timeout(Duration::from_secs(10), conn.closed()).await?;
    assert_eq!((closed.how, &closed.private_data()[..11]), (How::ByPeer, &b"maintenance"[..]));
    assert!(conn.recv().await?.is_none());
    let ended = target.ended().await?.well()?;
    let rest: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(rest.len(), 3, "{rest:?}");
    assert!(rest[0].starts_with("serving ") && rest[0].ends_with(" at depth 4"), "{rest:?}");
    assert_eq!(rest[1..], ["disconnected, the peer confirmed", "stopped"]);
    Ok(())
}
