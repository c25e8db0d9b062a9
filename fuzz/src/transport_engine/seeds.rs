//! The conversations of the captures, as if this device were one end of each.

use std::collections::BTreeMap;

use ibwire::packet::{Bth, Opcode, Transport, TransportPacket};
use ibwire::{Psn, Qpn};

use super::fix;
use crate::seeds::{Frame, Seed, frames};

/// Longer ones say nothing more.
const MOST_FRAMES: usize = 60;

/// One a capture and side: what that side has sent, with work of ours in between.
pub fn seeds() -> Vec<Seed> {
    let mut sides: BTreeMap<(String, Vec<u8>), Vec<Frame>> = BTreeMap::new();
    for frame in frames() {
        sides.entry((frame.capture.clone(), frame.source.clone())).or_default().push(frame);
    }
    let seeds = sides.into_iter().enumerate().map(|(n, ((capture, _), frames))| {
        // PSNs count from the first request and the first response that a QP is sent.
        let mut first: BTreeMap<(Qpn, bool), Psn> = BTreeMap::new();
        let mut bytes = Vec::new();
        for frame in frames.iter().take(MOST_FRAMES) {
            let Ok(packet) = TransportPacket::parse(frame.transport()) else { continue };
            let start = *first
                .entry((packet.bth().dest_qp, packet.bth().opcode.is_response()))
                .or_insert(packet.bth().psn);
            bytes.extend(work());
            bytes.extend(deliver(&packet, frame.transport(), start));
        }
        Seed { name: format!("{capture}-{n}"), bytes }
    });
    seeds.chain([migration_seed(), together_seed()]).collect()
}

/// A path is loaded, armed by the peer's first packet, and gone over to: told to, then because the peer does.
fn migration_seed() -> Seed {
    // An empty send only, with the PSN that is expected.
    let send_only =
        |fixes: u8| [&[0, 0, Opcode::RC_SEND_ONLY.0, fix::PSN | fix::PAD | fixes][..], &[0; 8]].concat();
    let (load, migrate) = ([12, 0, 4], [12, 0, 5]);
    let bytes = [
        &work()[..],
        &load,
        &send_only(fix::STAYS),
        &migrate,
        &work(),
        &send_only(fix::FOREIGN),
        &[12, 0, 3, 12, 0, 7],
        &work(),
        &load,
        &send_only(fix::STAYS),
        &send_only(fix::FOREIGN),
    ];
    Seed { name: "migration".to_owned(), bytes: bytes.concat() }
}

/// It is worth having only if it gets there.
#[test]
fn the_seed_migrates() {
    let counters = super::play(&migration_seed().bytes);
    assert_eq!(counters.path_migrations, 2, "{counters:?}");
}

/// A write, a send and the response to a read, the packets from the middle of each together; then a run that is broken off.
fn together_seed() -> Seed {
    /// The operations that hand in a packet, and several together.
    const ONE: u8 = 0;
    const SEVERAL: u8 = 4;
    let packet = |operation: u8, opcode: Opcode, ahead: u8, len: u16| {
        let fixes = fix::PSN | fix::REMOTE | fix::PAD;
        // Region 0 from its start, an acknowledgement is asked for.
        let mut bytes = vec![operation, 0, opcode.0, fixes, 0, ahead, 0, 0x40, 0, 0];
        let mut headers = vec![0; opcode.headers_len()];
        if opcode.has_reth() {
            headers[12..].copy_from_slice(&8192u32.to_be_bytes());
        }
        bytes.extend(headers);
        bytes.extend(len.to_be_bytes());
        bytes.extend(vec![opcode.0; len.into()]);
        bytes
    };
    let several = |opcode, ahead, count: u8, differs: &[u8]| {
        let differ = if differs.is_empty() { 0 } else { 0x82 };
        let mut bytes = packet(SEVERAL, opcode, ahead, 1024);
        bytes.extend([count - 1, differ]);
        bytes.extend_from_slice(differs);
        bytes.extend([0, 0, 4]);
        bytes
    };
    let (recv, read) = ([8, 0, 0x13, 0x87, 0], [6, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x13, 0x87]);
    let bytes = [
        packet(ONE, Opcode::RC_RDMA_WRITE_FIRST, 0, 1024),
        several(Opcode::RC_RDMA_WRITE_MIDDLE, 0, 6, &[]),
        packet(ONE, Opcode::RC_RDMA_WRITE_LAST, 0, 1024),
        recv.to_vec(),
        packet(ONE, Opcode::RC_SEND_FIRST, 0, 1024),
        several(Opcode::RC_SEND_MIDDLE, 0, 3, &[]),
        packet(ONE, Opcode::RC_SEND_LAST, 0, 100),
        read.to_vec(),
        packet(ONE, Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0, 1024),
        several(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 1, 3, &[]),
        packet(ONE, Opcode::RC_RDMA_READ_RESPONSE_LAST, 4, 903),
        packet(ONE, Opcode::RC_RDMA_WRITE_FIRST, 0, 1024),
        several(Opcode::RC_RDMA_WRITE_MIDDLE, 0, 6, &[1, 1]),
    ];
    Seed { name: "together".to_owned(), bytes: bytes.concat() }
}

/// It is worth having only if it gets there: one gap, of three packets.
#[test]
fn the_seed_takes_packets_together() {
    let counters = super::play(&together_seed().bytes);
    let drops: Vec<_> =
        counters.named().filter(|(name, count)| name.starts_with("drop") && *count > 0).collect();
    assert_eq!(drops, [("drop_out_of_sequence", 3)], "{counters:?}");
    assert_eq!((counters.rx_packets, counters.sequence_naks_sent), (8 + 5 + 5 + 7, 1));
}

/// Two receives for each QP, a send of three packets, a read, completions.
fn work() -> Vec<u8> {
    let recv = |to: u8| [8, to, 0x0b, 0xb8, 0];
    let send = |qp: u8, what: u8| [6, qp, what, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0xb8];
    let mut bytes = Vec::new();
    for qp in [0, 2, 3, 4] {
        bytes.extend(recv(qp));
    }
    bytes.extend(send(0, 0));
    bytes.extend(send(0, 3));
    bytes.extend([10, 3]);
    bytes
}

/// The packet as the operation of the same name takes it apart.
fn deliver(packet: &TransportPacket<'_>, all: &[u8], start: Psn) -> Vec<u8> {
    let bth = packet.bth();
    let qp = match bth.opcode.transport() {
        Transport::UC => 2,
        Transport::UD => 3,
        _ => 0,
    };
    let ahead = bth.psn.distance(start) as i16;
    let flags = u8::from(bth.ack_req) << 6 | u8::from(bth.solicited) << 7;
    let mut bytes = vec![0, qp, bth.opcode.0, fix::PSN_FROM_START | fix::REMOTE | fix::PAD];
    bytes.extend(ahead.to_be_bytes());
    bytes.extend([0, flags, 0, 0]);
    bytes.extend_from_slice(&all[Bth::LEN..Bth::LEN + bth.opcode.headers_len()]);
    bytes.extend((packet.payload().len() as u16).to_be_bytes());
    bytes.extend_from_slice(packet.payload());
    bytes
}
