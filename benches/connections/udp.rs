//! The datagrams of a connection, REQ to DREP, between two plain UDP sockets: what nothing that sends them one by one through
//! tokio can be faster than.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::UdpSocket;

use super::ends::Ends;

/// A MAD with its headers from the BTH on and its ICRC.
const LEN: usize = 12 + 8 + 256 + 4;
/// As much as a device asks for.
const RECV_BUFFER: usize = 4 << 20;
/// After so long without an answer what is unanswered is sent again.
const PATIENCE: Duration = Duration::from_millis(100);

const REQ: u8 = 1;
const REP: u8 = 2;
const RTU: u8 = 3;
const DREQ: u8 = 4;
const DREP: u8 = 5;

/// Two sockets; the server's end answers by itself.
#[derive(Debug)]
pub(crate) struct Pair {
    client: Arc<UdpSocket>,
    lost: Arc<AtomicU64>,
}

/// A connection as its next datagram sees it.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    id: u64,
    /// What was sent last.
    sent: u8,
}

impl Pair {
    pub(crate) fn open(ends: &Ends) -> io::Result<Self> {
        let server = ends.on_server(async {
            let server = bind(4).await?;
            let address = server.local_addr()?;
            tokio::spawn(serve(server));
            Ok::<_, io::Error>(address)
        })?;
        ends.client.block_on(async {
            let client = bind(3).await?;
            client.connect(server).await?;
            Ok(Self { client: Arc::new(client), lost: Arc::default() })
        })
    }

    pub(crate) async fn run(&self, in_flight: u64, count: u64) {
        let run = run(Arc::clone(&self.client), in_flight, count, Arc::clone(&self.lost));
        tokio::spawn(run).await.expect("a task that does not panic").expect("a socket on loopback");
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

async fn bind(host: u8) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 1, host), 0)).await?;
    SockRef::from(&socket).set_recv_buffer_size(RECV_BUFFER)?;
    Ok(socket)
}

async fn serve(socket: UdpSocket) -> io::Result<()> {
    let mut buffer = [0; LEN];
    loop {
        let (_, from) = socket.recv_from(&mut buffer).await?;
        match buffer[0] {
            REQ => answer(&socket, &mut buffer, REP, from).await?,
            DREQ => answer(&socket, &mut buffer, DREP, from).await?,
            _ => {}
        }
    }
}

async fn answer(socket: &UdpSocket, buffer: &mut [u8; LEN], kind: u8, to: SocketAddr) -> io::Result<()> {
    buffer[0] = kind;
    socket.send_to(buffer, to).await?;
    Ok(())
}

async fn run(socket: Arc<UdpSocket>, in_flight: u64, count: u64, lost: Arc<AtomicU64>) -> io::Result<()> {
    let mut left = count;
    let mut exchanges = Vec::new();
    for id in 0..in_flight.min(count) {
        left -= 1;
        exchanges.push(Exchange { id, sent: REQ });
        send(&socket, REQ, id).await?;
    }
    let mut open = exchanges.len();
    let mut buffer = [0; LEN];
    while open > 0 {
        let Ok(received) = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await else {
            for exchange in exchanges.iter().filter(|exchange| exchange.sent != DREP) {
                lost.fetch_add(1, Ordering::Relaxed);
                send(&socket, exchange.sent, exchange.id).await?;
            }
            continue;
        };
        received?;
        let id = u64::from_be_bytes(buffer[8..16].try_into().expect("eight bytes"));
        let slot = &mut exchanges[(id % in_flight) as usize];
        match (buffer[0], slot.sent) {
            _ if slot.id != id => {}
            (REP, REQ) => {
                slot.sent = DREQ;
                send(&socket, RTU, id).await?;
                send(&socket, DREQ, id).await?;
            }
            (DREP, DREQ) if left > 0 => {
                left -= 1;
                // The same place, another connection.
                *slot = Exchange { id: id + in_flight, sent: REQ };
                send(&socket, REQ, slot.id).await?;
            }
            (DREP, DREQ) => {
                slot.sent = DREP;
                open -= 1;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn send(socket: &UdpSocket, kind: u8, id: u64) -> io::Result<()> {
    let mut datagram = [0; LEN];
    datagram[0] = kind;
    datagram[8..16].copy_from_slice(&id.to_be_bytes());
    socket.send(&datagram).await?;
    Ok(())
}
