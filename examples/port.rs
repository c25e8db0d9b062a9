//! The other end stays C: what a program on librdmacm does with rdma-core's own tools, with IP addresses and not a byte of
//! difference.
//!
//!     cargo run --example port                        # serves `rping -c -a ADDR -p 7174`
//!     cargo run --example port -- ADDR:PORT           # answers `ucmatose -b ADDR -p PORT`, which sends first
//!
//! `--device soft:ADDR`, or IBCM_DEVICE, to face another host.

use std::error::Error;

use bytes::{Buf, TryGetError};
use ibcm::{Connection, Listener, RemoteRegion};

/// How rping says where its memory is: address, rkey, length.
fn parse(mut advert: &[u8]) -> Result<RemoteRegion, TryGetError> {
    Ok(RemoteRegion::new(advert.try_get_u64()?, advert.try_get_u32()?, advert.try_get_u32()? as usize))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (device, words) = examples::arguments();
    let hca = examples::open(device.as_deref()).await?;
    if let Some(server) = words.first() {
        let conn = Connection::connect_ip(server.parse::<std::net::SocketAddr>()?).device(&hca).await?;
        while let Some(message) = conn.recv().await? {
            conn.send(message.into_buf()).await?;
        }
        return Ok(());
    }
    let listener = Listener::bind_ip(([0, 0, 0, 0], 7174)).device(&hca).await?;
    println!("listening on {}", listener.local_addr().ok_or("not bound to an IP address")?);
    let (conn, mut data) = (listener.accept().await?.accept().await?, hca.alloc(64 << 10).await?);
    while let Some(source) = conn.recv().await? {
        data = conn.read(data, parse(&source)?).await?;
        conn.send_copy(&[0; 16]).await?; // go ahead
        let sink = conn.recv().await?.ok_or("client left")?;
        data = conn.write(data, parse(&sink)?).await?;
        conn.send_copy(&[0; 16]).await?;
    }
    Ok(())
}
