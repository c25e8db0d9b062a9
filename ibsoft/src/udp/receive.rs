//! From the socket to the engine: batches of datagrams, each with its ICRC checked.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use ibwire::FlowLabel;
use ibwire::icrc::{FoundId, Icrc};
use ibwire::packet::{Bth, Opcode, UdpHeader};
use quinn_udp::{BATCH_SIZE, RecvMeta};

use super::backoff::Backoff;
use super::capture::Capture;
use super::counters::RxCounters;
use super::icrc::{LastStarts, Start};
use super::intake::FLUSH_EVERY;
use super::socket::RoceSocket;
use crate::engine::{NetHeader, NetRoute};

/// One call takes up to [`BATCH_SIZE`] buffers; a buffer holds what GRO merged, 64 KiB at most.
const BUFFER_LEN: usize = 1 << 16;
/// As many datagrams at once are a part of a stream.
const STREAM: u64 = 16;
/// Each buffer costs something even if it stays empty. A call takes so many, and all while they do not suffice.
const FEW_BUFFERS: usize = if BATCH_SIZE < 4 { BATCH_SIZE } else { 4 };

/// Takes datagrams from sockets and keeps those of one batch whose ICRC is right.
#[derive(Debug)]
pub(super) struct Receiver {
    memory: Vec<u8>,
    /// What the last call says about its buffers.
    metas: [RecvMeta; BATCH_SIZE],
    /// The last call has filled all its buffers.
    many: bool,
    valid: Vec<Run>,
    /// The device's port that the batch came to.
    pub port: u8,
    /// Of each socket of the device: which are left alone.
    pub backoffs: Box<[Backoff]>,
    last_starts: LastStarts,
    last_ids: LastIds,
    pub counters: RxCounters,
}

/// Good datagrams of one sender and one length, one behind the other: some from the middle of a message, or a single one.
#[derive(Debug)]
pub(super) struct Run {
    /// What stood in front of the first BTH. Packets from the middle of a message show nobody their Identification.
    pub net: NetHeader,
    /// Their bytes, each with its ICRC.
    at: Range<usize>,
    /// Length of each from the BTH through the padding.
    pub len: usize,
    pub packets: usize,
}

/// What one call has received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    /// How many datagrams, good ones or not.
    pub datagrams: u64,
    pub bytes: u64,
    /// The call could have taken more: nothing was left in the socket.
    pub emptied: bool,
    /// More is on its way: the last packet is not the last of its message, or there were so many that they are a part of a
    /// stream.
    pub goes_on: bool,
}

impl Receiver {
    /// For so many sockets.
    pub(super) fn new(sockets: usize) -> Self {
        Self {
            memory: vec![0; BATCH_SIZE * BUFFER_LEN],
            metas: [RecvMeta::default(); BATCH_SIZE],
            many: false,
            valid: Vec::new(),
            port: 1,
            backoffs: (0..sockets).map(|_| Backoff::default()).collect(),
            last_starts: LastStarts::default(),
            last_ids: LastIds::default(),
            counters: RxCounters::default(),
        }
    }

    /// Replaces the batch by the next one. An error is the socket's: `WouldBlock` if nothing waits.
    pub(super) fn recv(&mut self, from: &RoceSocket, capture: Option<&Capture>) -> io::Result<Received> {
        let (received, emptied) = match self.many {
            false => self.call::<FEW_BUFFERS>(from)?,
            true => self.call::<BATCH_SIZE>(from)?,
        };
        self.many = !emptied;
        Ok(self.check_all(from, capture, received, emptied))
    }

    /// The same for who comes back at once: one buffer only. Whether there is more is not asked, which takes as long as to
    /// receive something.
    pub(super) fn recv_one(&mut self, from: &RoceSocket, capture: Option<&Capture>) -> io::Result<Received> {
        let (received, emptied) = self.call::<1>(from)?;
        Ok(self.check_all(from, capture, received, emptied))
    }

    /// Makes a batch of what so many buffers hold.
    fn check_all(
        &mut self,
        from: &RoceSocket,
        capture: Option<&Capture>,
        received: usize,
        emptied: bool,
    ) -> Received {
        let before = self.counters.datagrams;
        self.counters.batches += 1;
        let mut bytes = 0;
        for n in 0..received {
            let (meta, buffer) = (self.metas[n], n * BUFFER_LEN);
            bytes += meta.len as u64;
            let mut merged = Merged::new(&meta, from.local, self.last_ids.of(meta.addr.ip()));
            let mut at = 0;
            loop {
                let end = meta.len.min(at + meta.stride.max(1));
                self.check(&mut merged, buffer + at..buffer + end, capture);
                at = end;
                // An empty datagram is one, too.
                if at >= meta.len {
                    break;
                }
            }
            if let Some(last) = merged.last_id {
                self.last_ids.set(meta.addr.ip(), last);
            }
        }
        if let Some(capture) = capture {
            capture.flush();
        }
        let last = self.valid.last().map(|run| Opcode(self.memory[run.at.start]));
        let datagrams = self.counters.datagrams - before;
        let goes_on =
            datagrams >= STREAM || last.is_some_and(|opcode| opcode.is_first() || opcode.is_middle());
        Received { datagrams, bytes, emptied, goes_on }
    }

    /// Fills up to `N` buffers. How many, and whether nothing was left behind.
    fn call<const N: usize>(&mut self, from: &RoceSocket) -> io::Result<(usize, bool)> {
        self.valid.clear();
        self.port = from.port;
        let mut buffers = self.memory.chunks_exact_mut(BUFFER_LEN);
        let mut slices: [IoSliceMut<'_>; N] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
        let received = from.recv(&mut slices, &mut self.metas[..N])?;
        Ok((received, received < N))
    }

    /// The batch.
    pub(super) fn runs(&self) -> &[Run] {
        &self.valid
    }

    /// A run's bytes: of each packet BTH through padding, and its ICRC.
    pub(super) fn bytes(&self, run: &Run) -> &[u8] {
        &self.memory[run.at.clone()]
    }

    /// The packets of the batch, one by one.
    #[cfg(test)]
    pub(super) fn batch(&self) -> impl Iterator<Item = (&NetHeader, &[u8])> {
        self.runs().iter().flat_map(|run| {
            self.bytes(run).chunks(run.len + Icrc::LEN).map(|packet| (&run.net, &packet[..run.len]))
        })
    }

    fn check(&mut self, merged: &mut Merged, at: Range<usize>, capture: Option<&Capture>) {
        self.counters.datagrams += 1;
        let Merged { src, dst, route, last_id, .. } = *merged;
        let datagram = &self.memory[at.clone()];
        let Some((transport, icrc)) = datagram.split_last_chunk().filter(|(rest, _)| rest.len() >= Bth::LEN)
        else {
            self.counters.drop_too_short += 1;
            return;
        };
        let start = match merged.start {
            Some((len, start)) if len == transport.len() => start,
            _ => self.last_starts.of(src, dst, transport.len()),
        };
        merged.start = Some((transport.len(), start));
        let found = start.find_id(transport, Icrc(*icrc), last_id, merged.guess());
        if let Some(capture) = capture {
            capture.lock().packet(src, dst, found, datagram);
        }
        let Some(FoundId { id, class }) = found else {
            self.counters.drop_icrc += 1;
            return;
        };
        if !self.counters.count_id(class) {
            return;
        }
        let (len, is_middle) = (transport.len(), Opcode(transport[0]).is_middle());
        let run = self.valid.last_mut().filter(|_| is_middle && merged.was_middle);
        match run.filter(|run| run.at.end == at.start && run.len == len && run.packets < FLUSH_EVERY) {
            Some(run) => {
                run.at.end = at.end;
                run.packets += 1;
            }
            None => {
                let net = NetHeader::roce(NetRoute { ip_id: id, ..route });
                self.valid.push(Run { net, at, len, packets: 1 });
            }
        }
        merged.found(id, is_middle);
    }
}

/// Datagrams of one sender that the system has merged, or a single one.
#[derive(Debug)]
struct Merged {
    src: SocketAddr,
    dst: SocketAddr,
    route: NetRoute,
    /// The sender's last IPv4 Identification.
    last_id: Option<u16>,
    /// That of the datagram before, and by how much it differed from the one before that.
    previous: Option<u16>,
    step: u16,
    /// Whether the good datagram before was from the middle of a message.
    was_middle: bool,
    /// What the datagram before had in common with others of its length.
    start: Option<(usize, Start)>,
}

impl Merged {
    fn new(meta: &RecvMeta, local: SocketAddr, last_id: Option<u16>) -> Self {
        let route = NetRoute {
            sgid: meta.addr.ip().into(),
            dgid: local.ip().into(),
            flow_label: FlowLabel::default(),
            traffic_class: meta.ecn.map_or(0, |ecn| ecn as u8),
            // A UDP socket does not tell what came.
            hop_limit: UdpHeader::ROCE_HOP_LIMIT,
            ip_id: 0,
        };
        Self {
            src: meta.addr,
            dst: local,
            route,
            last_id,
            previous: None,
            step: 1,
            was_middle: false,
            start: None,
        }
    }

    /// What the next Identification probably is.
    fn guess(&self) -> u16 {
        self.previous.map_or(0, |previous| previous.wrapping_add(self.step))
    }

    /// What it is, and whether the datagram is from the middle of a message.
    fn found(&mut self, id: u16, is_middle: bool) {
        if let Some(previous) = self.previous {
            self.step = id.wrapping_sub(previous);
        }
        (self.previous, self.last_id) = (Some(id), Some(id));
        self.was_middle = is_middle;
    }
}

/// The last IPv4 Identification of each sender, as far as there is room: senders that count are told by it from
/// damaged packets that happen to fit some Identification.
#[derive(Debug)]
struct LastIds([Option<(IpAddr, u16)>; Self::SENDERS]);

impl LastIds {
    const SENDERS: usize = 256;

    fn slot(sender: IpAddr) -> usize {
        let octets = match sender {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        octets.iter().fold(0u8, |slot, &octet| slot.rotate_left(3) ^ octet).into()
    }

    fn of(&self, sender: IpAddr) -> Option<u16> {
        self.0[Self::slot(sender)].filter(|(ip, _)| *ip == sender).map(|(_, id)| id)
    }

    fn set(&mut self, sender: IpAddr, id: u16) {
        self.0[Self::slot(sender)] = Some((sender, id));
    }
}

impl Default for LastIds {
    fn default() -> Self {
        Self([None; Self::SENDERS])
    }
}
