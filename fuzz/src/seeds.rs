//! Where inputs come from: the captures and vectors that the tests of other crates check byte by byte.

use std::fs;
use std::path::PathBuf;

use ibwire::icrc::Icrc;
use ibwire::packet::{Deth, Grh, Ipv4Header, TransportPacket, UdpHeader};
use ibwire::{Qpn, packet::Bth};
use pcap_file::pcap::PcapReader;

const ETHERNET_LEN: usize = 14;

/// An input to start from.
#[derive(Debug, Clone)]
pub struct Seed {
    /// Where it comes from; a file name.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

/// A RoCEv2 packet out of a capture file.
#[derive(Debug, Clone)]
pub struct Frame {
    /// File, and number of the frame, from 1.
    pub name: String,
    /// Name of the capture.
    pub capture: String,
    /// The IP source address as it stands in the header.
    pub source: Vec<u8>,
    /// From the IP header through the padding.
    pub packet: Vec<u8>,
    transport_at: usize,
}

impl Frame {
    /// From the BTH through the padding.
    pub fn transport(&self) -> &[u8] {
        &self.packet[self.transport_at..]
    }

    /// The MAD, if it is one.
    pub fn mad(&self) -> Option<&[u8]> {
        let packet = TransportPacket::parse(self.transport()).ok()?;
        (packet.bth().dest_qp == Qpn::GSI && packet.deth().is_some())
            .then(|| &self.transport()[Bth::LEN + Deth::LEN..])
    }
}

/// A file of another crate's test data.
fn file(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", path].iter().collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All RoCEv2 packets of all captures, in order.
pub fn frames() -> Vec<Frame> {
    let folder = file("ibwire/tests/captures");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    paths.sort();
    paths.into_iter().flat_map(|path| frames_of(&path)).collect()
}

fn frames_of(path: &PathBuf) -> Vec<Frame> {
    let capture = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let opened = fs::File::open(path).map_err(|error| error.to_string());
    let mut reader = opened
        .and_then(|file| PcapReader::new(file).map_err(|error| error.to_string()))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut frames = Vec::new();
    let mut number = 0;
    while let Some(Ok(packet)) = reader.next_packet() {
        number += 1;
        frames.extend(frame(&capture, number, &packet.data));
    }
    assert!(!frames.is_empty(), "{capture}");
    frames
}

/// The RoCEv2 packet in an Ethernet frame, if there is one.
fn frame(capture: &str, number: usize, ethernet: &[u8]) -> Option<Frame> {
    let network = ethernet.get(ETHERNET_LEN..)?;
    let (ip_len, len, source) = match ethernet[12..ETHERNET_LEN] {
        [0x08, 0x00] => {
            let ip = Ipv4Header::parse(network).ok().filter(|ip| ip.protocol == Ipv4Header::UDP)?;
            (Ipv4Header::LEN, usize::from(ip.total_len), &network[12..16])
        }
        [0x86, 0xdd] => {
            let ip = Grh::parse(network).ok().filter(|ip| ip.next_header == Grh::NEXT_UDP)?;
            (Grh::LEN, Grh::LEN + usize::from(ip.payload_len), &network[8..24])
        }
        _ => return None,
    };
    let udp = UdpHeader::parse(network.get(ip_len..)?).ok().filter(|udp| udp.dst_port == 4791)?;
    let end = (ip_len + usize::from(udp.len)).min(len).checked_sub(Icrc::LEN)?;
    Some(Frame {
        name: format!("{capture}-{number}"),
        capture: capture.to_owned(),
        source: source.to_vec(),
        packet: network.get(..end)?.to_vec(),
        transport_at: ip_len + UdpHeader::LEN,
    })
}

/// The vectors of spec/softhca.md 1.17, RoCE and native InfiniBand.
pub fn vectors() -> Vec<Seed> {
    lines("ibwire/tests/data/icrc-vectors.txt", 0, 2)
}

/// MADs of OpenSM and its clients.
pub fn sa_mads() -> Vec<Seed> {
    lines("ibwire/tests/data/sa-mads.txt", 0, 1)
}

/// All captured MADs of subnet administration, and each table with its records behind the first header.
pub fn sa_captures() -> Vec<Seed> {
    let folder = file("ibsa/tests/captures");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".hex") && !name.contains("datagrams"));
    names.sort();
    let mut seeds: Vec<Seed> = Vec::new();
    for name in names {
        for line in read(&format!("ibsa/tests/captures/{name}")).lines() {
            if let Some(head) = line.strip_prefix("@ ") {
                let label = head.split(' ').next().unwrap_or(head).replace('/', "-");
                let name = format!("{}-{label}", name.trim_end_matches(".hex"));
                seeds.push(Seed { name, bytes: Vec::new() });
            } else if !line.starts_with('#')
                && let Some(seed) = seeds.last_mut()
            {
                seed.bytes.extend(from_hex(&line.replace(' ', "")));
            }
        }
    }
    // The same bytes need not be tried again.
    let mut known = std::collections::BTreeSet::new();
    seeds.retain(|seed| known.insert(seed.bytes.clone()));
    assert!(seeds.len() > 100, "{}", seeds.len());
    seeds
}

/// The lines of a file as seeds: one word is the name, another one bytes in hexadecimal digits.
fn lines(path: &str, name: usize, bytes: usize) -> Vec<Seed> {
    let text = read(path);
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let digits = words.get(bytes).unwrap_or_else(|| panic!("{path}: {line}"));
            Seed { name: words[name].replace('/', "-"), bytes: from_hex(digits) }
        })
        .collect()
}

fn from_hex(digits: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    digits.as_bytes().chunks(2).map(|pair| pair.iter().fold(0, |value, &d| value << 4 | digit(d))).collect()
}
