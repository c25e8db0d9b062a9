//! A connection that survives a cable: data goes on by a second path while the first one is down, then the first is
//! loaded again as the spare one.
//!
//!     cargo run --example failover                       in a subnet within this process
//!     cargo run --example failover -- --udp              over UDP on loopback
//!     cargo run --example failover -- --device mlx5_0    both ends on a device of yours (feature `verbs`)
//!
//! Two HCAs have two ports each, whose cables the program pulls. On real HCAs only what is in `Cables` differs; with `--device` you
//! pull them, and it goes on for half a minute, or for as many messages as a number says.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use ibcm::sim::Subnet;
use ibcm::{Connection, ConnectionEvent, Hca, Listener, Path, ServiceId};
use ibsoft::{SoftDevice, UdpConfig};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    if let (Some(device), words) = examples::arguments() {
        return on_device(&device, words.first().map_or("3000", String::as_str).parse()?).await;
    }
    let over_udp = std::env::args().any(|word| word == "--udp");
    let (cables, [client, server]) = if over_udp { Cables::over_udp()? } else { Cables::in_subnet().await? };
    let (client, server) = (Hca::open(client).await?, Hca::open(server).await?);
    let listener = Listener::bind(SID).device(&server).await?;
    let echo = tokio::spawn(echo(listener));

    let first = path_by(1, &client, &server).await?;
    let spare = path_by(2, &client, &server).await?;
    let connect = Connection::connect(first.with_service(SID)).alternate_path(&spare);
    let conn = connect.retry_count(1).await?; // few retries: the spare path is tried soon
    println!("the peer's answer to the spare path: {:?}", conn.failover());

    let mut events = conn.events();
    for round in 0..40u32 {
        if round == 10 {
            println!("round {round}: the first cable is pulled");
            cables.plug(SERVER, 1, false)?;
        }
        ask(&conn, round).await?;
        if round == 20 {
            match events.next().await {
                Some(ConnectionEvent::Migrated { port, .. }) => {
                    println!("round {round}: goes by port {port} now");
                }
                other => return Err(format!("no migration, but {other:?}").into()),
            }
            cables.plug(SERVER, 1, true)?;
            conn.load_alternate_path(&path_by(1, &client, &server).await?).await?;
            println!("round {round}: the first cable is back, and the spare path");
        }
        if round == 30 {
            println!("round {round}: the second cable is pulled");
            cables.plug(CLIENT, 2, false)?;
        }
    }
    while let Some(event) = events.next().await {
        if let ConnectionEvent::Migrated { port, .. } = event {
            println!("then by port {port}; no message was lost");
            break;
        }
    }
    println!("{}", conn.disconnect().await);
    echo.await??;
    client.close().await;
    server.close().await;
    Ok(())
}

/// Takes a connection and sends back what comes by it.
async fn echo(listener: Listener) -> Result<(), ibcm::Error> {
    let conn = listener.accept().await?.accept().await?; // takes alternate paths unless told otherwise
    while let Some(message) = conn.recv().await? {
        conn.send(message.into_buf()).await?;
    }
    Ok(())
}

async fn ask(conn: &Connection, round: u32) -> Result<(), Box<dyn Error>> {
    conn.send_copy(&round.to_be_bytes()).await?;
    let reply = conn.recv().await?.ok_or("closed too early")?;
    assert_eq!(reply[..], round.to_be_bytes());
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(())
}

/// Both ends on one device, whose cables are not the program's.
async fn on_device(name: &str, rounds: u32) -> Result<(), Box<dyn Error>> {
    let hca = Hca::open(name).await?;
    let (ports, migration) = (hca.ports().len(), hca.path_migration());
    if ports < 2 || !migration {
        let migrates = if migration { "" } else { "out" };
        return Err(format!(
            "{name} has {ports} port{}, with{migrates} path migration; this takes a device with both: two ports, and automatic path migration, as InfiniBand HCAs have them, or soft:ADDRESS+ADDRESS",
            if ports == 1 { "" } else { "s" }
        )
        .into());
    }
    let echo = tokio::spawn(echo(Listener::bind(SID).device(&hca).await?));
    let (first, spare) = (path_by(1, &hca, &hca).await?, path_by(2, &hca, &hca).await?);
    let conn = Connection::connect(first.with_service(SID)).alternate_path(&spare).retry_count(1).await?;
    println!("the peer's answer to the spare path: {:?}; pull the cable of port 1", conn.failover());
    let mut events = conn.events();
    for round in 0..rounds {
        ask(&conn, round).await?;
        while let Some(Some(event)) = events.next().now_or_never() {
            println!("round {round}: {event:?}");
        }
    }
    println!("{}", conn.disconnect().await);
    echo.await??;
    hca.close().await;
    Ok(())
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// What is between the two HCAs.
enum Cables {
    Subnet(Subnet),
    Udp([SoftDevice; 2]),
}

impl Cables {
    async fn in_subnet() -> Result<(Self, [SoftDevice; 2]), Box<dyn Error>> {
        let net = Subnet::rails(2, ["client", "server"]).seed(1).await?;
        let devices = [net.device("client"), net.device("server")];
        Ok((Self::Subnet(net), devices))
    }

    /// Free addresses of loopback, one for each port.
    fn over_udp() -> Result<(Self, [SoftDevice; 2]), Box<dyn Error>> {
        let device = |host: u8| -> Result<SoftDevice, Box<dyn Error>> {
            let process = std::process::id().to_be_bytes();
            let address = |port: u8| vec![[127, 2 + (process[2] & 15), process[3], 16 * port + host].into()];
            Ok(SoftDevice::bind(UdpConfig::with_ports([1, 2].map(address).to_vec()))?)
        };
        let devices = [device(1)?, device(2)?];
        Ok((Self::Udp(devices.clone()), devices))
    }

    /// Plugs the cable of a port in, or pulls it out.
    fn plug(&self, hca: usize, port: u8, is_in: bool) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Subnet(net) if is_in => net.port_up(["client", "server"][hca], port),
            Self::Subnet(net) => net.port_down(["client", "server"][hca], port),
            Self::Udp(devices) => devices[hca].set_port_up(port, is_in)?,
        }
        Ok(())
    }
}

/// The path from our port to the server's port with the same number.
async fn path_by(port: usize, client: &Hca, server: &Hca) -> Result<Path, Box<dyn Error>> {
    Ok(client.ports()[port - 1].path_to(server.ports()[port - 1].gid()).await?)
}
