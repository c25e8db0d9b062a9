//! From the engine to the socket: packets get their ICRC, and runs of equal length to one peer leave in one call.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use ibwire::icrc::{FoundId, Icrc, IdClass, Ipv4Pseudo, Ipv6Pseudo};
use quinn_udp::{EcnCodepoint, Transmit};

use super::capture::Capture;
use super::counters::TxCounters;
use super::socket::RoceSocket;
use crate::engine::Egress;

/// Takes packets from the engine in batches and sends them.
#[derive(Debug)]
pub(super) struct Transmitter {
    /// UDP destination port.
    port: u16,
    buffer: Vec<u8>,
    runs: VecDeque<Run>,
    pub counters: TxCounters,
}

/// Datagrams in the buffer, one behind the other, that one call can send.
#[derive(Debug)]
struct Run {
    to: Destination,
    /// Where in the buffer it starts.
    start: usize,
    end: usize,
    /// Length of each datagram but the last, which may be shorter.
    segment: usize,
    segments: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Destination {
    /// Index of the socket.
    socket: usize,
    addr: SocketAddr,
    ecn: u8,
}

/// How many bytes are taken from the engine before they are sent.
const BATCH_BYTES: usize = 256 << 10;
/// Most bytes in one call: what an IPv4 datagram can hold.
const RUN_BYTES: usize = 65_507;

/// All that was taken is sent, or the socket is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    /// The socket with this index would block; the rest stays here.
    Blocked(usize),
}

impl Transmitter {
    pub(super) fn new(port: u16) -> Self {
        Self { port, buffer: Vec::new(), runs: VecDeque::new(), counters: TxCounters::default() }
    }

    /// Sends what is left from the last time, then what `next` appends to the buffer, until it has no more.
    pub(super) fn drain(
        &mut self,
        sockets: &[RoceSocket],
        capture: Option<&Capture>,
        mut next: impl FnMut(&mut Vec<u8>) -> Option<Egress>,
    ) -> Progress {
        loop {
            while let Some(run) = self.runs.pop_front() {
                let socket = run.to.socket;
                if let Err(run) = self.send(&sockets[socket], run, capture) {
                    self.runs.push_front(run);
                    return Progress::Blocked(socket);
                }
            }
            self.buffer.clear();
            while self.buffer.len() < BATCH_BYTES {
                let start = self.buffer.len();
                let Some(egress) = next(&mut self.buffer) else { break };
                match destination(&egress, sockets, self.port) {
                    Some(to) => self.append(sockets, to, start),
                    None => {
                        self.buffer.truncate(start);
                        self.counters.drop_no_source += 1;
                    }
                }
            }
            if self.runs.is_empty() {
                return Progress::Done;
            }
        }
    }

    /// Lets go of what is left. How many datagrams that were.
    pub(super) fn give_up(&mut self) -> usize {
        self.runs.drain(..).map(|run| run.segments).sum()
    }

    /// Makes the packet at the end of the buffer a datagram of the last run or of a new one.
    fn append(&mut self, sockets: &[RoceSocket], to: Destination, start: usize) {
        let len = self.buffer.len() - start + Icrc::LEN;
        let socket = &sockets[to.socket];
        let joins = self.runs.back().is_some_and(|run| {
            run.to == to
                && run.segments * run.segment == run.end - run.start
                && len <= run.segment
                && run.segments < socket.gso_segments()
                && run.end - run.start + len <= RUN_BYTES
        });
        if !joins {
            self.runs.push_back(Run { to, start, end: start, segment: len, segments: 0 });
        }
        let Some(run) = self.runs.back_mut() else { return };
        // The kernel numbers the datagrams of one call from 0.
        let icrc = icrc(socket.local, to.addr, run.segments as u16, &self.buffer[start..]);
        self.buffer.extend_from_slice(&icrc.0);
        run.segments += 1;
        run.end = self.buffer.len();
    }

    /// Sends a run. Gives it back if the socket would block.
    fn send(&mut self, socket: &RoceSocket, run: Run, capture: Option<&Capture>) -> Result<(), Run> {
        let segment = (run.segments > 1).then_some(run.segment);
        match self.transmit(socket, &run, segment, capture) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(run),
            Err(error) if segment.is_none() => self.refused(&error, &run),
            Err(_) => self.send_singly(socket, run, capture),
        }
        Ok(())
    }

    /// After a call for many datagrams has failed: each in a call of its own, with Identification 0. If one of the
    /// same length leaves so, it was the segmentation that does not work, and it is not tried again.
    fn send_singly(&mut self, socket: &RoceSocket, run: Run, capture: Option<&Capture>) {
        let mut singles = VecDeque::with_capacity(run.segments);
        for k in 0..run.segments {
            let start = run.start + k * run.segment;
            let end = run.end.min(start + run.segment);
            let (transport, tail) = self.buffer[start..end].split_at_mut(end - start - Icrc::LEN);
            tail.copy_from_slice(&icrc(socket.local, run.to.addr, 0, transport).0);
            singles.push_back(Run { to: run.to, start, end, segment: end - start, segments: 1 });
        }
        while let Some(single) = singles.pop_front() {
            match self.transmit(socket, &single, None, capture) {
                Ok(()) => {
                    if single.segment == run.segment && socket.stop_gso() {
                        self.counters.gso_fallbacks += 1;
                        tracing::debug!(local = %socket.local, "no segmentation offload here, packets leave one by one");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    singles.push_front(single);
                    break;
                }
                Err(error) => self.refused(&error, &single),
            }
        }
        for single in singles.into_iter().rev() {
            self.runs.push_front(single);
        }
    }

    /// One call to the socket, counted and captured. The capture is held meanwhile: an answer comes behind it.
    fn transmit(
        &mut self,
        socket: &RoceSocket,
        run: &Run,
        segment_size: Option<usize>,
        capture: Option<&Capture>,
    ) -> io::Result<()> {
        let datagrams = &self.buffer[run.start..run.end];
        let transmit = Transmit {
            destination: run.to.addr,
            ecn: EcnCodepoint::from_bits(run.to.ecn),
            contents: datagrams,
            segment_size,
            src_ip: None,
        };
        let mut recording = capture.map(Capture::lock);
        socket.send(&transmit)?;
        self.counters.batches += 1;
        self.counters.datagrams += run.segments as u64;
        if let Some(recording) = &mut recording {
            for (k, datagram) in datagrams.chunks(run.segment).enumerate() {
                let id = FoundId { id: k as u16, class: IdClass::Zero };
                recording.packet(socket.local, run.to.addr, Some(id), datagram);
            }
        }
        Ok(())
    }

    fn refused(&mut self, error: &io::Error, run: &Run) {
        if quinn_udp::is_msg_size_err(error) {
            self.counters.drop_too_long += 1;
        } else {
            self.counters.drop_refused += 1;
        }
        tracing::debug!(to = %run.to.addr, %error, "packet not sent");
    }
}

/// Which socket a packet leaves by and where to. `None` if no bound address is its source.
fn destination(egress: &Egress, sockets: &[RoceSocket], port: u16) -> Option<Destination> {
    let route = egress.net.route?;
    let source = route.sgid.to_ip();
    let socket = sockets.iter().position(|socket| socket.local.ip() == source)?;
    let addr = match (route.dgid.to_ip(), sockets[socket].local) {
        (IpAddr::V4(ip), SocketAddr::V4(_)) => SocketAddr::new(ip.into(), port),
        (IpAddr::V6(ip), SocketAddr::V6(local)) => {
            let scope_id = if ip.is_unicast_link_local() { local.scope_id() } else { 0 };
            SocketAddrV6::new(ip, port, 0, scope_id).into()
        }
        _ => return None,
    };
    Some(Destination { socket, addr, ecn: route.traffic_class & 3 })
}

/// The ICRC of a packet from the BTH through the padding.
fn icrc(src: SocketAddr, dst: SocketAddr, id: u16, transport: &[u8]) -> Icrc {
    match (src, dst) {
        (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
            Ipv4Pseudo { id, ..Ipv4Pseudo::new(src, dst) }.icrc(transport)
        }
        (src, dst) => {
            let v6 = |ip| match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let pseudo = Ipv6Pseudo {
                src: v6(src.ip()),
                dst: v6(dst.ip()),
                src_port: src.port(),
                dst_port: dst.port(),
            };
            pseudo.icrc(transport)
        }
    }
}
