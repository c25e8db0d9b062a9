//! Captures of our devices, read with our own decoders: what each frame is, and what tshark ought to say about it.

use std::fs::File;
use std::path::Path;

use ibcm::proto::message::Message;
use ibwire::packet::{Grh, Ipv4Header, Lrh, NakCode, NextHeader, SyndromeKind, TransportPacket, UdpHeader};
use ibwire::{Qpn, packet::Opcode};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;

use super::fields::{self, Fields};

/// One frame of a capture.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Which kind of packet it holds: `REQ`, `RC_SEND_ONLY`, `RNR_NAK`.
    pub kind: String,
    /// Whether the capture marks it as one that never arrived.
    pub lost: bool,
    /// What is in it, as we decode it.
    pub wanted: Fields,
}

const ETHERNET_LEN: usize = 14;
const ERF_LEN: usize = 16;
const ERF_FLAGS: usize = 9;
const ERF_RX_ERROR: u8 = 0x10;
const ICRC_LEN: usize = 4;
const VCRC_LEN: usize = 2;

/// All frames of a capture.
///
/// # Errors
///
/// The file is no capture, or holds what is no packet of ours.
pub fn read(capture: &Path) -> Result<Vec<Frame>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", capture.display());
    let file = File::open(capture).map_err(|error| failed(&error))?;
    let mut reader = PcapReader::new(file).map_err(|error| failed(&error))?;
    let link = reader.header().datalink;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|error| failed(&error))?;
        let frame = match link {
            DataLink::ERF => infiniband(&packet.data[ERF_LEN..])
                .map(|frame| Frame { lost: packet.data[ERF_FLAGS] & ERF_RX_ERROR != 0, ..frame }),
            _ => roce(&packet.data),
        };
        frames.push(frame.map_err(|error| format!("frame {}: {error}", frames.len() + 1))?);
    }
    Ok(frames)
}

type Error = Box<dyn std::error::Error>;

/// An Ethernet frame; the headers in front of the BTH are the operating system's affair, not ours.
fn roce(frame: &[u8]) -> Result<Frame, Error> {
    let ip_len = if frame[ETHERNET_LEN] >> 4 == 4 { Ipv4Header::LEN } else { Grh::LEN };
    transport(&frame[ETHERNET_LEN + ip_len + UdpHeader::LEN..frame.len() - ICRC_LEN], Vec::new())
}

/// A frame of an InfiniBand link, LRH through VCRC.
fn infiniband(frame: &[u8]) -> Result<Frame, Error> {
    let (lrh, mut rest) = (Lrh::parse(frame)?, &frame[Lrh::LEN..frame.len() - ICRC_LEN - VCRC_LEN]);
    let mut wanted = fields::lrh(&lrh);
    if lrh.next == NextHeader::Grh {
        wanted.extend(fields::grh(&Grh::parse(rest)?));
        rest = &rest[Grh::LEN..];
    }
    transport(rest, wanted)
}

fn transport(bytes: &[u8], mut wanted: Fields) -> Result<Frame, Error> {
    let packet = TransportPacket::parse(bytes)?;
    wanted.extend(fields::packet(&packet));
    let kind = match packet.aeth().map(|aeth| aeth.syndrome.kind()) {
        Some(SyndromeKind::Ack(_)) => "ACK".to_owned(),
        Some(SyndromeKind::Rnr(_)) => "RNR_NAK".to_owned(),
        Some(SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR)) => "SEQUENCE_NAK".to_owned(),
        Some(_) => "FATAL_NAK".to_owned(),
        None if packet.bth().dest_qp == Qpn::GSI => {
            let (header, message) = Message::decode(packet.payload().try_into()?)?;
            wanted.extend(fields::mad(&header, &message));
            message.attribute().to_string()
        }
        None => {
            if !packet.payload().is_empty() {
                wanted.extend(fields::payload(&packet));
            }
            packet.bth().opcode.name().map_or_else(|| Opcode::to_string(&packet.bth().opcode), str::to_owned)
        }
    };
    Ok(Frame { kind, lost: false, wanted })
}
