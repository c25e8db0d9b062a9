//! Plain UDP, as fast as it goes: one datagram there and back; a stream of datagrams as long as those of a reliable
//! connection, in GSO and GRO batches, whose receiver gives credit so that none is lost.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ibwire::Mtu;
use ibwire::icrc::Icrc;
use ibwire::packet::Bth;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::{Control, DEPTH, End, MESSAGE, PING, Result, Task, Waiting, Work};

/// As much as a device asks for.
const RECV_BUFFER: usize = 8 << 20;
/// Longest datagram, and so the most that one call sends.
const LONGEST: usize = 65_507;

/// One end: a socket for ping-pongs and one for streams.
#[derive(Debug)]
pub struct Udp {
    ping: std::net::UdpSocket,
    stream: UdpSocket,
    state: UdpSocketState,
    peer: SocketAddr,
    /// Payload of a datagram, and its length with headers.
    payload: usize,
    datagram: usize,
    buffer: Vec<u8>,
}

impl Udp {
    /// Sockets on `address`, or on one of loopback, and those of the other end, which does the same.
    ///
    /// # Errors
    /// The network's.
    pub async fn open(control: &mut Control, address: Option<IpAddr>, mtu: Mtu) -> Result<Self> {
        let address = address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let ping = std::net::UdpSocket::bind((address, 0))?;
        let stream = UdpSocket::bind((address, 0)).await?;
        let state = UdpSocketState::new((&stream).into())?;
        // Without the right to force it, what the system grants has to do.
        _ = state.set_recv_buffer_size((&stream).into(), RECV_BUFFER);
        _ = set_socket_recv_buffer_size_force(&stream, RECV_BUFFER);
        ping.connect(control.swap(ping.local_addr()?).await?.parse::<SocketAddr>()?)?;
        let peer = control.swap(stream.local_addr()?).await?.parse()?;
        let payload = mtu.bytes().ok_or("an MTU that nobody knows")? as usize;
        let datagram = Bth::LEN + payload + Icrc::LEN;
        Ok(Self { ping, stream, state, peer, payload, datagram, buffer: vec![0; BATCH_SIZE << 16] })
    }

    fn send(&self) -> io::Result<()> {
        self.ping.send(&[0; PING]).map(drop)
    }

    fn receive(&self) -> io::Result<()> {
        let mut buffer = [0; PING];
        loop {
            match self.ping.recv(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                received => return received.map(drop),
            }
        }
    }

    /// Datagrams of a stream.
    fn datagrams(&self, task: Task) -> u64 {
        task.count * (MESSAGE / self.payload) as u64
    }

    /// Datagrams that may be under way.
    fn window(&self) -> u64 {
        (DEPTH * MESSAGE / self.payload) as u64
    }

    /// Sends that many datagrams with as few calls as possible, never more than the window ahead of the other end.
    async fn send_stream(&mut self, total: u64) -> Result {
        let run = ((LONGEST / self.datagram) as u64).min(self.state.max_gso_segments() as u64);
        let contents = vec![0x5a; run as usize * self.datagram];
        let (mut sent, mut credited) = (0, 0);
        while credited < total {
            let datagrams = run.min(total - sent).min(credited + self.window() - sent);
            if datagrams == 0 || datagrams < run && datagrams < total - sent {
                let mut credit = [0; 8];
                self.stream.recv_from(&mut credit).await?;
                credited = u64::from_le_bytes(credit);
                continue;
            }
            let transmit = Transmit {
                destination: self.peer,
                ecn: None,
                contents: &contents[..datagrams as usize * self.datagram],
                segment_size: (datagrams > 1).then_some(self.datagram),
                src_ip: None,
            };
            let call = || self.state.try_send((&self.stream).into(), &transmit);
            match self.stream.try_io(Interest::WRITABLE, call) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.stream.writable().await?,
                result => {
                    result?;
                    sent += datagrams;
                }
            }
        }
        Ok(())
    }

    /// Receives that many datagrams, and gives credit four times a window.
    async fn receive_stream(&mut self, total: u64) -> Result {
        let (mut received, mut credited) = (0, 0);
        while received < total {
            self.stream.readable().await?;
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let mut chunks = self.buffer.chunks_exact_mut(1 << 16);
            let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let call = || self.state.recv((&self.stream).into(), &mut slices, &mut metas);
            let filled = match self.stream.try_io(Interest::READABLE, call) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                filled => filled?,
            };
            for meta in &metas[..filled] {
                received += meta.len.div_ceil(meta.stride.max(1)) as u64;
            }
            if received - credited >= self.window() / 4 || received == total {
                self.stream.send_to(&received.to_le_bytes(), self.peer).await?;
                credited = received;
            }
        }
        Ok(())
    }
}

impl End for Udp {
    async fn ask(&mut self, task: Task) -> Result {
        self.ping.set_nonblocking(task.waiting == Waiting::Spinning)?;
        if task.work != Work::PingPong {
            return self.send_stream(self.datagrams(task)).await;
        }
        for _ in 0..task.count {
            self.send()?;
            self.receive()?;
        }
        Ok(())
    }

    async fn answer(&mut self, task: Task) -> Result {
        self.ping.set_nonblocking(task.waiting == Waiting::Spinning)?;
        if task.work != Work::PingPong {
            return self.receive_stream(self.datagrams(task)).await;
        }
        for _ in 0..task.count {
            self.receive()?;
            self.send()?;
        }
        Ok(())
    }
}
