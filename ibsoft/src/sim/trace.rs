//! What passed: a bounded record of packets and their fates, as text and as a pcap file.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibwire::mad::MadHeader;
use ibwire::packet::TransportPacket;
use ibwire::pcap::{ErfRecord, LinkType, PcapWriter};
use ibwire::raw::{RawHeader, RawPacket};

use super::fabric::PortId;
use super::frame::{self, Content};
use super::way::Hop;

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not there yet.
    Flying,
    /// Arrived this long after the start.
    Delivered(Duration),
    /// A fault took it.
    Lost,
    /// Sender and receiver were partitioned.
    Partitioned,
    /// One of the two ports was down.
    LinkDown,
    /// No port has the LID it was sent to.
    NoRoute,
    /// The receiver was removed.
    Removed,
    /// Too many packets were under way to its receiver.
    Overrun,
    /// A management packet that was changed on the way.
    Damaged,
    /// Its way has no end.
    Circling,
    /// A port has no VL for its SL.
    NoVl,
    /// It is longer than the MTU of a link.
    TooLong,
    /// It waited too long to leave a port.
    HoqLife,
    /// A port of a switch does not let its P_Key pass.
    PKey,
    /// A port of a switch does not let raw packets pass.
    RawFiltered,
    /// A management packet whose route cannot be.
    SmpDiscarded,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flying => "under way",
            Self::Delivered(at) => return write!(f, "at {at:?}"),
            Self::Lost => "lost",
            Self::Partitioned => "partitioned",
            Self::LinkDown => "link down",
            Self::NoRoute => "no such LID",
            Self::Removed => "receiver removed",
            Self::Overrun => "overrun",
            Self::Damaged => "damaged",
            Self::Circling => "in circles",
            Self::NoVl => "no VL for its SL",
            Self::TooLong => "longer than the MTU",
            Self::HoqLife => "waited too long",
            Self::PKey => "P_Key not let through",
            Self::RawFiltered => "raw packet not let through",
            Self::SmpDiscarded => "impossible route",
        })
    }
}

/// One copy of a packet.
#[derive(Debug, Clone)]
pub(super) struct Passage {
    /// When it was sent, from the start on.
    pub sent: Duration,
    pub from: PortId,
    pub to: Option<PortId>,
    /// The ports that it left by.
    pub hops: Arc<[Hop]>,
    /// Whether it is the second copy of a duplicated packet.
    pub duplicate: bool,
    pub frame: Bytes,
    pub fate: Fate,
}

/// The last packets.
#[derive(Debug)]
pub(super) struct Trace {
    pub start: Instant,
    passages: VecDeque<Passage>,
    /// Number of the oldest one kept.
    first: u64,
    bytes: usize,
}

impl Trace {
    const PASSAGES: usize = 65_536;
    const BYTES: usize = 32 << 20;

    pub(super) fn new(start: Instant) -> Self {
        Self { start, passages: VecDeque::new(), first: 0, bytes: 0 }
    }

    /// Adds a packet and returns its number.
    pub(super) fn push(&mut self, passage: Passage) -> u64 {
        self.bytes += passage.frame.len();
        self.passages.push_back(passage);
        while self.passages.len() > Self::PASSAGES || self.bytes > Self::BYTES {
            let Some(oldest) = self.passages.pop_front() else { break };
            self.bytes -= oldest.frame.len();
            self.first += 1;
        }
        self.first + self.passages.len() as u64 - 1
    }

    /// Says what became of a packet, if it is still kept.
    pub(super) fn settle(&mut self, number: u64, fate: Fate) {
        let kept =
            number.checked_sub(self.first).and_then(|at| self.passages.get_mut(usize::try_from(at).ok()?));
        if let Some(passage) = kept {
            passage.fate = fate;
        }
    }

    /// A line for each packet.
    pub(super) fn lines<'a>(
        &'a self,
        name: impl Fn(PortId) -> String + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        self.passages.iter().map(move |passage| {
            let to = passage.to.map_or("?".into(), &name);
            let copy = if passage.duplicate { ", second copy" } else { "" };
            let (sent, fate) = (passage.sent, passage.fate);
            format!("{sent:?} {} > {to} {}{copy}: {fate}", name(passage.from), Summary(&passage.frame))
        })
    }

    /// Writes the packets that are kept and that passed one of the ports of `link`, all of them without one. The start is
    /// in 1970, so that the same seed gives the same file.
    pub(super) fn write_pcap(&self, path: &Path, link: Option<[PortId; 2]>) -> io::Result<()> {
        let mut file = PcapWriter::new(BufWriter::new(File::create(path)?), LinkType::Erf)?;
        for passage in &self.passages {
            let mut hops = passage.hops.iter();
            let hop = match link {
                Some(link) => match hops.find(|hop| link.contains(&hop.out)) {
                    Some(hop) => Some(hop),
                    None => continue,
                },
                None => hops.next(),
            };
            let lost = !matches!(passage.fate, Fate::Delivered(_) | Fate::Flying);
            let on_vl = hop.filter(|hop| hop.vl != 0).map(|hop| frame::on_vl(&passage.frame, hop.vl));
            let packet = on_vl.as_ref().unwrap_or(&passage.frame);
            let record = ErfRecord { since_epoch: passage.sent, lost, packet };
            file.write(passage.sent, |out| record.write_to(out))?;
        }
        file.flush()
    }
}

/// A raw packet in a few words.
fn raw(packet: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match RawPacket::parse_covered(packet) {
        Ok(RawPacket { lrh, header: RawHeader::EtherType(rwh), payload, .. }) => {
            write!(f, "raw {} to {} {} bytes", rwh.ether_type, lrh.dlid, payload.len())
        }
        Ok(RawPacket { lrh, header: RawHeader::Ipv6(ipv6), payload, .. }) => {
            let (next, len) = (ipv6.next_header, payload.len());
            write!(f, "raw IPv6 {next} {} > {} to {} {len} bytes", ipv6.src, ipv6.dst, lrh.dlid)
        }
        Err(error) => write!(f, "unreadable raw packet: {error}"),
    }
}

/// A packet in a few words.
struct Summary<'a>(&'a [u8]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match frame::decode(self.0) {
            Ok(Content::Transport(_, transport)) => transport,
            Ok(Content::Raw(packet)) => return raw(&self.0[packet], f),
            Err(_) => return write!(f, "damaged packet of {} bytes", self.0.len()),
        };
        let Ok(packet) = TransportPacket::parse(&self.0[transport]) else {
            return write!(f, "unreadable packet of {} bytes", self.0.len());
        };
        let bth = packet.bth();
        write!(f, "{} qp {:#x} psn {:#x}", bth.opcode, bth.dest_qp.get(), bth.psn.get())?;
        if let Some(aeth) = packet.aeth() {
            write!(f, " {} msn {}", aeth.syndrome, aeth.msn.get())?;
        }
        match MadHeader::parse(packet.payload()) {
            Ok(mad) if bth.dest_qp == ibwire::Qpn::GSI => {
                write!(f, " {} {} tid {}", mad.class, mad.attribute, mad.tid)
            }
            _ => write!(f, " {} bytes", packet.payload().len()),
        }
    }
}
