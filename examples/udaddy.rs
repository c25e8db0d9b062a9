//! The other end of rdma-core's `udaddy` and `mckey`: datagrams found by SIDR, and multicast.
//!
//!     cargo run --example udaddy -- serve                # for `udaddy -s ADDR`: sends each datagram back
//!     cargo run --example udaddy -- call ADDR            # to `udaddy -b ADDR`: ten datagrams there and back
//!     cargo run --example udaddy -- hear GROUP           # for `mckey -s -m GROUP`: ten datagrams to a group
//!     cargo run --example udaddy -- tell GROUP           # to `mckey -m GROUP`
//!
//! Add `--device soft:ADDR` to face another host.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use ibcm::{Gid, sidr, ud};

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
    let (device, words) = examples::arguments();
    let (what, whom) = (words.first().map_or("", String::as_str), words.get(1));
    let address = || Ok::<IpAddr, Box<dyn Error>>(whom.ok_or("an address is wanted")?.parse()?);
    let hca = examples::open(device.as_deref()).await?;
    let socket = ud::Socket::open(&hca).await?;
    match what {
        "serve" => {
            let _published = sidr::publish_ip(([0, 0, 0, 0], PORT), &socket).await?;
            println!("listening");
            for _ in 0..COUNT {
                let datagram = socket.recv().await?;
                socket.send_copy(&datagram.from(), &datagram).imm(socket.qpn().get()).await?;
            }
        }
        "call" => {
            let query = sidr::query_ip((address()?, PORT)).device(&hca);
            let reply = query.deadline(Duration::from_secs(20)).await?;
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
        _ => return Err("usage: udaddy [--device NAME] serve | call ADDR | hear GROUP | tell GROUP".into()),
    }
    hca.close().await;
    Ok(())
}
