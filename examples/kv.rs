//! A key-value store's data path: a target exposes memory, a client writes and reads it without the target's program.
//!
//! ```text
//! cargo run --release --example kv                      on two software HCAs
//! cargo run --release --example kv -- --device NAME     on this device, for both ends
//! ```
//!
//! The client writes sixteen blocks with eight buffers, reads one back, and tells the target which block it wrote last.
#![forbid(unsafe_code)]

use std::error::Error;

use futures::future::try_join_all;
use ibcm::{Access, Connection, Hca, Listener, RemoteRegion, ServiceId};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
const BLOCK: usize = 64 << 10;

/// Exposes a mebibyte, and looks at it only when it is told to.
async fn target(hca: Hca, listener: Listener) -> Result<(), ibcm::Error> {
    let region = hca.expose(1 << 20, Access::REMOTE_READ | Access::REMOTE_WRITE).await?;
    let conn = listener.accept().await?.accept().private_data(&region.remote().to_bytes()).await?;
    let mut head = [0; 8];
    while let Some(doorbell) = conn.recv().await? {
        let at = doorbell.imm().unwrap_or(0) as usize;
        region.copy_to(at, &mut head)?; // a copy, never a &[u8] into it
        match doorbell.imm() {
            Some(at) => println!("target: written at {at}: {head:?}"),
            None => println!("target: {}", String::from_utf8_lossy(&doorbell)),
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (here, there) = examples::both_ends(examples::arguments().0.as_deref(), None).await?;
    let path = here.path_to(there.gid()).service_id(SID).await?;
    let target = tokio::spawn(target(there.clone(), Listener::bind(SID).device(&there).await?));
    let (conn, pool) = (&Connection::connect(path).await?, &here.pool(8, BLOCK).await?);
    let remote = RemoteRegion::from_bytes(conn.private_data())?;
    println!("client: {} bytes of the target's memory, written with 8 buffers", remote.len());

    let write = |at| async move {
        let mut buf = pool.get().await?; // waits while all eight are out
        buf.resize(BLOCK, 7);
        conn.write(buf, remote.slice(at, BLOCK)?).await?; // comes back, is dropped, is free again
        Ok::<_, ibcm::Error>(())
    };
    try_join_all((0..remote.len()).step_by(BLOCK).map(write)).await?;

    let mut data = conn.read(pool.get().await?, remote.slice(BLOCK, BLOCK)?).await?; // the buffer, filled
    println!("client: read {} bytes back: {:?}..", data.len(), &data[..8]);
    data.fill(8);
    let write = conn.write(data, remote.slice(0, BLOCK)?).imm(0).post().await?; // in the queue
    let word = conn.send_copy(b"done").post().await?; // in the queue behind it, so seen behind it
    tokio::try_join!(write, word)?;
    println!("client: {}", conn.disconnect().await);
    Ok(target.await??)
}
