//! Seeing what happens: the log, the events of ports and connections, every packet, and the counters.
//!
//!     cargo run --example observe -- observe.pcap
//!     cargo run --example observe -- --device NAME     both ends on this device instead of two software HCAs
//!
//! The library logs with `tracing`: each connection has a span `conn` with both communication IDs, the service and the
//! peer, in which it tells how it began and ended at level DEBUG; each CM message is an event of target `ibcm::mad` at
//! level TRACE. `RUST_LOG` filters:
//!
//!     RUST_LOG=ibcm=debug                             connections without their messages
//!     RUST_LOG=ibcm::mad=trace                        nothing but messages
//!     RUST_LOG='[conn{service=0x1000000000000001}]=debug'   connections of one service
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use futures::StreamExt;
use ibcm::{Connection, Listener, ServiceId};
use tracing_subscriber::EnvFilter;

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let filter =
        EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new("ibcm=debug,ibcm::mad=trace"))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();

    let (device, words) = examples::arguments();
    let (client, server) = examples::both_ends(device.as_deref(), words.first().map(Path::new)).await?;
    let mut events = client.events();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            eprintln!("event: {event:?}"); // a cable was pulled, an address came
        }
    });

    let listener = Listener::bind(SID).device(&server).await?;
    let path = client.path_to(server.gid()).service_id(SID).await?;
    let serve = async {
        let conn = listener.accept().await?.accept().await?;
        while let Some(message) = conn.recv().await? {
            conn.send(message.into_buf()).await?;
        }
        Ok::<_, ibcm::Error>(())
    };
    let ask = async {
        let conn = Connection::connect(path).await?;
        for _ in 0..10 {
            conn.send_copy(b"tick").await?;
            conn.recv().await?;
        }
        let (sent, busy) = (conn.stats().messages_sent, conn.events());
        println!("{}, after {sent} messages", conn.disconnect().await);
        println!("the peer was busy {} times", busy.count().await);
        Ok(())
    };
    tokio::try_join!(serve, ask)?;

    println!("the listener accepted {} of {}", listener.stats().accepted, listener.stats().received);
    for (name, value) in client.stats().named().filter(|(_, value)| *value > 0) {
        println!("{name} {value}"); // for an exporter of metrics
    }
    client.close().await;
    server.close().await;
    Ok(())
}
