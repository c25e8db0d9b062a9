//! Finds a datagram service by its service ID, then asks it three times, at most, what it has to say.
//!
//! `cargo run --example discovery` runs both sides on two software HCAs; with `--device NAME` both are on that device.

use std::error::Error;
use std::time::Duration;

use ibcm::{ServiceId, sidr, ud};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (device, _) = examples::arguments();
    let (here, there) = examples::both_ends(device.as_deref(), None).await?;
    let (served, socket) = (ud::Socket::open(&there).await?, ud::Socket::open(&here).await?);
    let _published = sidr::publish(SID, &served).private_data(b"v1").await?; // the reactor answers, until dropped
    tokio::spawn(async move {
        while let Ok(datagram) = served.recv().await {
            served.send_copy(&datagram.from(), &datagram).await.ok(); // back the way it came
        }
    });
    let path = here.path_to(there.gid()).service_id(SID).await?;
    let peer = match sidr::query(path).private_data(b"who?").deadline(Duration::from_secs(2)).await {
        Ok(reply) => reply.peer(), // path, QPN and Q_Key in one; its private_data() starts with "v1"
        Err(sidr::QueryError::Refused { status, .. }) => return Err(format!("refused: {status}").into()),
        Err(other) => return Err(other.into()),
    };
    println!("the service is {peer}");
    for _ in 0..3 {
        socket.send_copy(&peer, b"tick").await?; // it left this host, no more is known
        let Ok(tick) = tokio::time::timeout(Duration::from_millis(200), socket.recv()).await else {
            continue;
        };
        assert_eq!(&tick?[..], b"tick");
        println!("it answers");
        return Ok(());
    }
    Err("three datagrams without an answer".into())
}
