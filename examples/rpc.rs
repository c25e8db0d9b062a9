//! An RPC framework's transport: calls of any length, framed by a codec of tokio-util, over a connection.
//!
//! ```text
//! cargo run --release --example rpc                          both ends in this process, on two software HCAs
//! cargo run --release --example rpc -- --pcap rpc.pcap       and every packet in a file, for Wireshark
//! cargo run --release --example rpc -- --device NAME         both ends on this device
//! RUST_LOG=debug cargo run --release --example rpc           and what happens to the connection, with its span
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::path::PathBuf;

use clap::Parser;
use futures::{SinkExt, StreamExt};
use ibcm::{ByteStream, Connection, Listener, ServiceId};
use tokio_util::bytes::{BufMut, Bytes, BytesMut};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use tracing_subscriber::EnvFilter;

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// Calls procedures over a connection.
#[derive(Debug, Parser)]
struct Args {
    /// The device of both ends; without it two software HCAs
    #[arg(long)]
    device: Option<String>,
    /// Length of the long call in bytes
    #[arg(long, default_value_t = 1 << 20)]
    size: usize,
    /// Write to this file, for Wireshark: all packets of the client's software HCA, of another device the CM messages
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// A frame is the length in four bytes and then a call: the procedure in one byte, and its argument.
type Calls = Framed<ByteStream, LengthDelimitedCodec>;

fn calls(conn: Connection) -> Calls {
    Framed::new(conn.into_stream(), LengthDelimitedCodec::new())
}

/// Answers calls until the client disconnects.
async fn serve(listener: Listener) -> io::Result<u32> {
    let mut calls = calls(listener.accept().await?.accept().await?);
    let mut served = 0;
    while let Some(call) = calls.next().await {
        let mut answer = call?;
        match answer.split_to(1.min(answer.len())).as_ref() {
            b"e" => {}
            b"r" => answer.reverse(),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "no such procedure")),
        }
        calls.send(answer.freeze()).await?;
        served += 1;
    }
    Ok(served)
}

async fn call(calls: &mut Calls, procedure: u8, argument: &[u8]) -> Result<BytesMut, Box<dyn Error>> {
    let mut frame = BytesMut::with_capacity(1 + argument.len());
    frame.put_u8(procedure);
    frame.put_slice(argument);
    calls.send(frame.freeze()).await?; // the stream cuts it into messages
    Ok(calls.next().await.ok_or("the server closed the connection")??)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let filter = EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let (here, there) = examples::both_ends(args.device.as_deref(), args.pcap.as_deref()).await?;
    let server = tokio::spawn(serve(Listener::bind(SID).device(&there).await?));
    let path = here.path_to(there.gid()).service_id(SID).await?;
    let mut calls = calls(Connection::connect(path).await?);

    let answer = call(&mut calls, b'r', b"hello").await?;
    println!("client: reverse: {}", String::from_utf8_lossy(&answer));
    let before = calls.get_ref().stats();
    let answer = call(&mut calls, b'e', &vec![7; args.size]).await?;
    let after = calls.get_ref().stats();
    println!(
        "client: echo: {} bytes went out in {} messages and came back in {}",
        answer.len(),
        after.messages_sent - before.messages_sent,
        after.messages_received - before.messages_received
    );
    SinkExt::<Bytes>::close(&mut calls).await?; // flushes, then DREQ
    println!("client: {}", calls.get_ref().closed().await);
    println!("server: {} calls served", server.await??);
    here.stats().named().filter(|(_, value)| *value > 0).for_each(|(name, value)| println!("{name} {value}"));
    here.close().await;
    Ok(())
}
