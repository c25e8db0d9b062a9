//! From the engine to the socket: packets get their ICRC, and runs of equal length to one peer leave in one call.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use ibwire::icrc::{FoundId, Icrc, IdClass};
use quinn_udp::{EcnCodepoint, Transmit};

use super::capture::Capture;
use super::counters::TxCounters;
use super::icrc::LastStarts;
use super::outbox::Packets;
use super::socket::RoceSocket;
use crate::engine::NetHeader;

/// Sends packets that have left the engine.
#[derive(Debug)]
pub(super) struct Transmitter {
    /// UDP destination port.
    port: u16,
    packets: Packets,
    /// What was tried and not sent, in front of the packets.
    runs: VecDeque<Run>,
    /// Where the last packet went: most go where the one before went.
    last: Option<(NetHeader, Option<Destination>)>,
    last_starts: LastStarts,
    pub counters: TxCounters,
}

/// Packets, one behind the other, that one call can send.
#[derive(Debug)]
struct Run {
    to: Destination,
    /// Where its bytes start.
    start: usize,
    end: usize,
    /// Length of each datagram but the last, which may be shorter.
    segment: usize,
    segments: usize,
}

impl Run {
    /// How many of the next packets, which go there, too, and have `len` bytes each, can be datagrams of the call: only the
    /// last one may be shorter than the others.
    fn takes(&self, len: usize, max_segments: usize) -> usize {
        let whole = self.end - self.start;
        if len > self.segment || self.segments * self.segment != whole {
            return 0;
        }
        let room =
            max_segments.saturating_sub(self.segments).min(RUN_BYTES.saturating_sub(whole) / len.max(1));
        // One that is longer than a call may be is the system's to refuse.
        let room = if self.segments == 0 { room.max(1) } else { room };
        if len < self.segment { room.min(1) } else { room }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Destination {
    /// Index of the socket.
    socket: usize,
    addr: SocketAddr,
    ecn: u8,
}

/// Most bytes in one call: what an IPv4 datagram can hold.
const RUN_BYTES: usize = 65_507;

/// All is sent, or a socket is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    /// The socket with this index would block; the rest stays here.
    Blocked(usize),
}

impl Transmitter {
    pub(super) fn new(port: u16) -> Self {
        Self {
            port,
            packets: Packets::default(),
            runs: VecDeque::new(),
            last: None,
            last_starts: LastStarts::default(),
            counters: TxCounters::default(),
        }
    }

    /// Takes all packets out of `outbox`. Those before them are sent.
    pub(super) fn take(&mut self, outbox: &mut Packets) {
        debug_assert!(self.runs.is_empty());
        self.packets.swap(outbox);
    }

    /// Sends what it has.
    pub(super) fn drain(&mut self, sockets: &[RoceSocket], capture: Option<&Capture>) -> Progress {
        while let Some(run) = self.runs.pop_front().or_else(|| self.next_run(sockets)) {
            let socket = run.to.socket;
            if let Err(run) = self.send(&sockets[socket], run, capture) {
                self.runs.push_front(run);
                return Progress::Blocked(socket);
            }
        }
        Progress::Done
    }

    /// Lets go of what is left. How many datagrams that were.
    pub(super) fn give_up(&mut self) -> usize {
        let tried: usize = self.runs.drain(..).map(|run| run.segments).sum();
        tried + std::mem::take(&mut self.packets).count()
    }

    /// Takes the packets that the next call sends, and gives them their ICRCs.
    fn next_run(&mut self, sockets: &[RoceSocket]) -> Option<Run> {
        let (to, socket) = self.next_destination(sockets)?;
        let most = socket.gso_segments();
        let (at, row) = self.packets.first()?;
        let mut run = Run { to, start: at, end: at, segment: row.len, segments: 0 };
        let mut goes_on = true;
        while goes_on && let Some((at, row)) = self.packets.first() {
            let packets = run.takes(row.len, most).min(row.packets);
            if packets == 0 {
                break;
            }
            let start = self.last_starts.of(socket.local, to.addr, row.len - Icrc::LEN);
            let end = at + packets * row.len;
            for (k, packet) in self.packets.bytes_mut(at..end).chunks_exact_mut(row.len).enumerate() {
                if let Some((transport, icrc)) = packet.split_last_chunk_mut() {
                    // The kernel numbers the datagrams of one call from 0.
                    *icrc = start.icrc((run.segments + k) as u16, transport).0;
                }
            }
            run.segments += packets;
            run.end = end;
            goes_on = self.packets.take(packets)
                || self.next_destination(sockets).is_some_and(|(next, _)| next == to);
        }
        Some(run)
    }

    /// Where the next packet goes that can go anywhere.
    fn next_destination<'a>(&mut self, sockets: &'a [RoceSocket]) -> Option<(Destination, &'a RoceSocket)> {
        while let Some(net) = self.packets.way() {
            let to = match self.last {
                Some((last, to)) if last == *net => to,
                _ => {
                    let to = destination(net, sockets, self.port);
                    self.last = Some((*net, to));
                    to
                }
            };
            if let Some(to) = to {
                return Some((to, sockets.get(to.socket)?));
            }
            self.packets.take(1);
            self.counters.drop_no_source += 1;
        }
        None
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
            let without_id = self.last_starts.of(socket.local, run.to.addr, end - start - Icrc::LEN);
            if let Some((transport, icrc)) = self.packets.bytes_mut(start..end).split_last_chunk_mut() {
                *icrc = without_id.icrc(0, transport).0;
            }
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
        let datagrams = self.packets.bytes(run.start..run.end);
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
fn destination(net: &NetHeader, sockets: &[RoceSocket], port: u16) -> Option<Destination> {
    let route = net.route?;
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
