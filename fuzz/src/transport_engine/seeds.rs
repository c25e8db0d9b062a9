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
    seeds.chain([migration_seed()]).collect()
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
