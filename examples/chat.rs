//! A chat without a server, an address or a port: packets of an EtherType to a multicast group of the link.
//!
//! `chat eth0 ann` says what is typed and prints what the others say, on any number of machines or in any number of processes
//! (CAP_NET_RAW). `cargo run --example chat -- --sim` is the same program three times over on an in-process subnet.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use ibcm::sim::Subnet;
use ibraw::{EtherType, Group, Link, RawError, RawEtherSocket};
use tokio::sync::{Barrier, mpsc};

const CHAT: EtherType = EtherType::LOCAL_1;

/// Says each line to the group, and prints each line of others, until there are no more and it is quiet.
async fn chat(link: Link, name: &str, mut lines: mpsc::Receiver<String>) -> Result<(), RawError> {
    let socket = RawEtherSocket::bind(&link, [CHAT]).await?;
    let group = Group::link([0x33, 0x33, 0, 0, 0x88, 0xb5])?;
    let _held = socket.join(&group).await?;
    let (mut hear, mut say) = (socket.stream(), socket.sink());
    let mut is_said = false;
    loop {
        tokio::select! {
            line = lines.recv(), if !is_said => match line {
                Some(line) => say.send((encode(name, &line).into(), group.dest(CHAT))).await?,
                None => is_said = true,
            },
            Some(frame) = hear.next() => match frame {
                Ok(frame) => {
                    if frame.meta.drops_before > 0 {
                        println!("{name}: {} lines were lost", frame.meta.drops_before);
                    }
                    match decode(&frame.data) {
                        Some((who, line)) => println!("{name} hears {who}: {line}"),
                        None => println!("{name} hears noise from {:?}", frame.meta.src),
                    }
                }
                Err(error) if error.is_transient() => eprintln!("{name}: {error}"), // the link may come back
                Err(error) => return Err(error),
            },
            () = tokio::time::sleep(Duration::from_secs(1)), if is_said => return Ok(()),
        }
    }
}

/// A packet of the link may be padded, so the lengths are in it.
fn encode(name: &str, line: &str) -> Vec<u8> {
    let cut = |text: &str| text.as_bytes()[..text.len().min(255)].to_vec();
    [name, line].into_iter().map(cut).flat_map(|text| [vec![text.len() as u8], text].concat()).collect()
}

fn decode(packet: &[u8]) -> Option<(String, String)> {
    let text = |bytes: &[u8]| -> Option<(String, usize)> {
        let len = usize::from(*bytes.first()?);
        Some((String::from_utf8_lossy(bytes.get(1..1 + len)?).into_owned(), 1 + len))
    };
    let (name, at) = text(packet)?;
    Some((name, text(&packet[at..])?.0))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or("chat NETDEV [NAME] or chat --sim")?;
    if place != "--sim" {
        let name = arguments.next().unwrap_or_else(|| format!("process {}", std::process::id()));
        return Ok(chat(Link::open(&place)?, &name, typed()).await?);
    }
    let names = ["ann", "bob", "cy"];
    let net = Subnet::star(names).await?;
    let all = Arc::new(Barrier::new(names.len()));
    let talk = |name| {
        let (say, lines) = mpsc::channel(1);
        let all = all.clone();
        let saying = async move {
            say.send(format!("{name} is here")).await?;
            drop(say.reserve().await); // it is said, so this one has joined
            all.wait().await;
            say.send(format!("hello from {name}")).await
        };
        let link: Link = net.device(name).into(); // the changed line
        async move { tokio::join!(chat(link, name, lines), saying).0 }
    };
    futures::future::try_join_all(names.map(talk)).await?;
    Ok(())
}

/// What is typed, line by line. The thread ends with the program.
fn typed() -> mpsc::Receiver<String> {
    let (say, lines) = mpsc::channel(16);
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| say.blocking_send(line))
    });
    lines
}
