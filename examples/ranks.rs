//! A training job: a thousand ranks restart at once, and all get in. It prints a line that tells how far they are.
//!
//!     cargo run --release --example ranks                      on two software HCAs
//!     cargo run --release --example ranks -- 5000              as many ranks
//!     cargo run --release --example ranks -- --device NAME     on this device, for both ends
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use futures::{StreamExt, future::join_all};
use ibcm::{Connection, Listener, Overflow, Retry};

const SID: ibcm::ServiceId = ibcm::ServiceId::new(0x1000_0000_0000_0001);

async fn serve(listener: Listener) {
    while let Ok(request) = listener.accept().await {
        tokio::spawn(async move { Ok::<_, ibcm::Error>(request.accept().await?.closed().await) });
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (device, words) = examples::arguments();
    let count = words.first().map_or("1000", String::as_str).parse()?;
    let (here, there) = examples::both_ends(device.as_deref(), None).await?;
    let bind = Listener::bind(SID).device(&there).window(32).backlog(512).overflow(Overflow::Drop);
    tokio::spawn(serve(bind.await?));
    let all = here.connect_all(std::iter::repeat_n((there.gid(), SID), count)).concurrency(64);
    let mut all = all.retry(Retry::backoff()).deadline(Duration::from_secs(30));
    let mut conns = Vec::new();
    while let Some(attempt) = all.next().await {
        match attempt.result {
            Ok(conn) => conns.push(conn),
            Err(e) => {
                eprintln!("\npeer {}: {e}, {} tries in {:?}", attempt.index, attempt.tries, attempt.took);
            }
        }
        eprint!("\r{}", all.progress()); // 731 of 1000 up, 0 failed, 64 in flight, 205 waiting
    }
    join_all(conns.iter().map(Connection::disconnect)).await;
    Ok(())
}
