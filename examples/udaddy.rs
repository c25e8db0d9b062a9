//! The other end of rdma-core's `udaddy` and `mckey`: datagrams found by SIDR, and multicast.
//!
//!     cargo run --example udaddy -- serve                # for `udaddy -s ADDR`: sends each datagram back
//!     cargo run --example udaddy -- call ADDR            # to `udaddy -b ADDR`: ten datagrams there and back
//!     cargo run --example udaddy -- hear GROUP           # for `mckey -s -m GROUP`: ten datagrams to a group
//!     cargo run --example udaddy -- tell GROUP           # to `mckey -m GROUP`
//!
//! Set IBCM_DEVICE=soft:ADDR to face another host.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use ibcm::{Gid, Hca, sidr, ud};

/// The port of both tools.
const PORT: u16 = 7174;
/// Datagrams that they send and want.
const COUNT: usize = 10;
/// Their length.
const LEN: usize = 100;

/// Datagrams, until they are all here.
async fn receive(socket: &ud::Socket) -> Result<(), Box<dyn Error>> {
    for n in 1..=COUNT {
        let datagram = socket.recv().await?;
        println!("datagram {n} of {} bytes from {}", datagram.len(), datagram.from());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut args, hca) = (std::env::args().skip(1), Hca::open_default().await?);
    let (what, whom) = (args.next().unwrap_or_default(), args.next());
    let address = || Ok::<IpAddr, Box<dyn Error>>(whom.as_deref().ok_or("an address is wanted")?.parse()?);
    let socket = ud::Socket::open(&hca).await?;
    match what.as_str() {
        "serve" => {
            let _published = sidr::publish_ip(([0, 0, 0, 0], PORT), &socket).await?;
            println!("listening");
            for _ in 0..COUNT {
                let datagram = socket.recv().await?;
                socket.send_copy(&datagram.from(), &datagram).imm(socket.qpn().get()).await?;
            }
        }
        "call" => {
            let reply = sidr::query_ip((address()?, PORT)).deadline(Duration::from_secs(20)).await?;
            println!("it is {}", reply.peer());
            for _ in 0..COUNT {
                // udaddy answers to the queue pair that the immediate data names.
                socket.send_copy(&reply.peer(), &[7; LEN]).imm(socket.qpn().get()).await?;
            }
            receive(&socket).await?;
        }
        "hear" => {
            socket.join(Gid::from_ip(address()?)).await?;
            println!("listening");
            receive(&socket).await?;
        }
        "tell" => {
            let group = socket.group(Gid::from_ip(address()?))?;
            for _ in 0..COUNT {
                socket.send_copy(&group, &[7; LEN]).imm(socket.qpn().get()).await?;
            }
        }
        _ => return Err("usage: udaddy serve | call ADDR | hear GROUP | tell GROUP".into()),
    }
    hca.close().await;
    Ok(())
}
