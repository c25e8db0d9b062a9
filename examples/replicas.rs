//! Testing your own program: a register on three replicas while the network is cut, in virtual time, the same each run.
//!
//!     cargo run --example replicas
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use futures::future::join_all;
use ibcm::{Connection, Gid, Hca, Listener, ServiceId, sim::Subnet};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
const REPLICAS: [&str; 3] = ["r1", "r2", "r3"];

async fn replica(listener: Listener, register: Arc<AtomicU8>) {
    while let Ok(request) = listener.accept().await {
        let register = register.clone();
        tokio::spawn(async move {
            let conn = request.accept().await?;
            if let Some(message) = conn.recv().await? {
                register.store(message[0], Relaxed);
                conn.send(message.into_buf()).await?;
            }
            Ok::<_, ibcm::Error>(())
        });
    }
}

/// Whether a replica has taken the value.
async fn write_to(hca: Hca, replica: Gid, value: u8) -> Result<bool, ibcm::Error> {
    let path = hca.path_to(replica).service_id(SID).await?;
    let conn = Connection::connect(path).deadline(Duration::from_secs(5)).await?;
    conn.send_copy(&[value]).await?;
    Ok(conn.recv().await?.is_some())
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    let net = Subnet::star(REPLICAS.into_iter().chain(["client"])).seed(9).await?;
    net.faults().loss(0.02).delay(Duration::from_micros(2)..=Duration::from_millis(1));
    let (client, mut gids, mut registers) = (Hca::open(net.device("client")).await?, vec![], vec![]);
    for name in REPLICAS {
        let hca = Hca::open(net.device(name)).await?;
        registers.push(Arc::<AtomicU8>::default());
        tokio::spawn(replica(Listener::bind(SID).device(&hca).await?, registers[gids.len()].clone()));
        gids.push(hca.gid());
    }
    for (value, cut) in [(1, &REPLICAS[..0]), (2, &REPLICAS[..1]), (3, &REPLICAS[..2]), (4, &[])] {
        net.heal();
        net.partition(&["client"], cut);
        let written = join_all(gids.iter().map(|gid| write_to(client.clone(), *gid, value))).await;
        let taken = written.iter().filter(|written| matches!(written, Ok(true))).count();
        let outcome = if taken >= 2 { "written" } else { "refused" };
        println!("value {value}, {} cut off: {outcome}, registers {registers:?}", cut.len());
    }
    Ok(net.quiet().await?) // nothing is left of any connection, also of those that were cut
}
