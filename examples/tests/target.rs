//! The storage target serves, refuses and stops as its documentation says.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use ibcm::{ConnectError, Connection, Hca, How, RejReason, ServiceId};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// Kills what it runs if the test fails.
struct Program(std::process::Child);

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn serves_refuses_and_stops() -> Result {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let mut target = Command::new(profile.join("examples/target"))
        .env("IBCM_DEVICE", "soft:127.0.22.1")
        .stdout(Stdio::piped())
        .spawn()
        .map(Program)?;
    let mut lines = BufReader::new(target.0.stdout.take().ok_or("no output")?).lines();
    assert_eq!(lines.next().ok_or("it ended")??, "listening at ::ffff:127.0.22.1");

    let hca = Hca::open("soft:127.0.22.2").await?;
    let path = hca.path_to("::ffff:127.0.22.1".parse()?).service_id(SID).await?;
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

    // As Ctrl-C does.
    assert!(Command::new("kill").args(["-INT", &target.0.id().to_string()]).status()?.success());
    let closed = tokio::time::timeout(Duration::from_secs(10), conn.closed()).await?;
    assert_eq!((closed.how, &closed.private_data()[..11]), (How::ByPeer, &b"maintenance"[..]));
    assert!(conn.recv().await?.is_none());
    assert!(target.0.wait()?.success());
    let rest = lines.collect::<std::io::Result<Vec<_>>>()?;
    assert_eq!(rest.len(), 3, "{rest:?}");
    assert!(rest[0].starts_with("serving ") && rest[0].ends_with(" at depth 4"), "{rest:?}");
    assert_eq!(rest[1..], ["disconnected, the peer confirmed", "stopped"]);
    Ok(())
}
