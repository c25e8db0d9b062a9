//! A storage target that an operator restarts under load: who gets in, why not, and a clean stop.
//!
//! ```text
//! cargo run --example target -- --device soft:127.0.0.1
//! ```
//!
//! A request says `BD`, a version and how many commands it will have outstanding; commands are sent back as they are. A
//! client whose host dies is noticed within ten seconds. Ctrl-C refuses those who wait, lets the others finish their command,
//! tells them "maintenance" and ends when nothing is left.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use ibcm::{IncomingRequest, Listener, Recv, RejReason, Reject, ServiceId};
use tokio_util::sync::CancellationToken;

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

async fn serve(request: IncomingRequest, depth: usize, stop: CancellationToken) -> Result<(), ibcm::Error> {
    let accept = request.accept().private_data(b"BD\x02").recv(Recv::buffers(depth, 8192));
    let conn = accept.keepalive(Duration::from_secs(5)).await?;
    println!("serving {} at depth {depth}", conn.peer());
    while let Some(message) = stop.run_until_cancelled(conn.recv()).await {
        let Some(command) = message? else { return Ok(()) }; // a DREQ, after every message before it
        conn.send(command.into_buf()).await?;
    }
    println!("{}", conn.disconnect().private_data(b"maintenance").await);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let hca = examples::open(examples::arguments().0.as_deref()).await?;
    let (listener, stop) = (Listener::bind(SID).device(&hca).backlog(256).await?, CancellationToken::new());
    println!("listening at {}", hca.gid());
    let mut ctrl_c = std::pin::pin!(tokio::signal::ctrl_c());
    while let Some(request) = tokio::select! { r = listener.accept() => Some(r?), _ = &mut ctrl_c => None } {
        match *request.private_data() {
            [b'B', b'D', 1..=2, depth, ..] if depth > 0 => {
                let serving = serve(request, depth.into(), stop.clone());
                tokio::spawn(async move {
                    if let Err(error) = serving.await {
                        println!("lost a client: {error}"); // its affair alone
                    }
                });
            }
            _ => request.reject(Reject::new(RejReason::CONSUMER).private_data(b"V\x02")), // our newest version
        }
    }
    listener.close().await; // requests that still wait in the backlog get REJ 28
    stop.cancel();
    _ = tokio::time::timeout(Duration::from_secs(10), hca.wait_idle()).await; // the tasks' time to disconnect
    hca.close().await; // disconnects what is left; over when the last TimeWait is
    println!("stopped");
    Ok(())
}
