//! Connects to a storage target within seconds, and tells "no", "nobody" and "me" apart.
//!
//! ```text
//! cargo run --release --example echo -- serve        something to dial; it takes any request
//! cargo run --release --example dial -- 127.0.0.1    its GID; on RoCE that is its IP address
//! ```
//!
//! A second argument is the deadline in seconds, 5 without it. It spans everything: what each REQ says about time follows
//! from it, and so does how often an attempt is made again.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use ibcm::{ConnectError::*, Connection, Gid, RejReason, Retry, ServiceId};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (device, words) = examples::arguments();
    let target: Gid = words.first().ok_or("usage: dial [--device NAME] GID [SECONDS]")?.parse()?;
    let deadline = Duration::try_from_secs_f64(words.get(1).map_or("5", String::as_str).parse()?)?;
    let hca = examples::open(device.as_deref()).await?; // without a name that of IBCM_DEVICE, or the only one
    let path = hca.path_to(target).service_id(SID).await?;
    let connect = Connection::connect(path).private_data(b"BD\x02\x20"); // protocol version 2, depth 32
    match connect.deadline(deadline).retry(Retry::backoff()).await {
        Ok(conn) => println!("{}", conn.disconnect().await), // a report, not a Result
        Err(Rejected(no)) => match (no.reason, &no.private_data[..2]) {
            (RejReason::CONSUMER, [b'V', newest]) => println!("it speaks versions up to {newest}"),
            (RejReason::INVALID_SERVICE_ID, _) => println!("nothing is served there"),
            _ => println!("{no}; it suggests {:?}", no.info),
        },
        Err(Unreachable { busy: true, waited, .. }) => {
            println!("alive (it sent MRA), undecided for {waited:.1?}");
        }
        Err(Unreachable { sent, waited, .. }) => println!("{sent} REQs, silence for {waited:.1?}"),
        Err(here) => return Err(here.into()), // path query, device, QP, bad argument
    }
    Ok(())
}
