//! Requests that Linux and a probing peer have sent, and what rdma_rxe of Linux 6.1 answered, against our answers, byte for
//! byte from the BTH through the padding. The labels are those of spec/roce-captures.
//!
//! Everywhere else: M is 1 here and 0 there, because these QPs are in the state MIGRATED (spec/softhca.md 0.10, 2.12).

use std::fs::File;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ibdev::SharedMemory;
use ibdev::qp::QpType;
use ibwire::RKey;
use ibwire::icrc;
use ibwire::packet::{AtomicEth, Bth, Ipv4Header, Opcode, Reth, TransportPacket, UdpHeader};
use pcap_file::pcap::PcapReader;

use super::super::{DomainId, QpCreate};
use super::*;

/// One QP of a capture that answers requests.
struct Probe {
    label: &'static str,
    /// The number that it has there.
    qpn: u32,
    first_psn: u32,
    path_mtu: Mtu,
    resources: u8,
    rnr_timer: u8,
    access: Access,
    is_rts: bool,
    /// Receives posted before this frame, and their lengths.
    receives: &'static [(usize, &'static [usize])],
    /// Address, key and length of the region there.
    region: (u64, u32, usize),
    fill: fn(usize) -> u8,
    /// What is answered otherwise here, by the frame of the answer there.
    differences: &'static [(usize, Otherwise)],
}

const PROBE: Probe = Probe {
    label: "",
    qpn: 0,
    first_psn: 1000,
    path_mtu: Mtu::B1024,
    resources: 4,
    rnr_timer: 12,
    access: Access::all(),
    is_rts: true,
    receives: &[],
    region: (0, 0, 0),
    fill: |i| i as u8,
    differences: &[],
};

/// How an answer differs from that of rxe.
#[derive(Debug, Clone, Copy)]
enum Otherwise {
    /// There is none.
    Silence,
    /// It has this syndrome and PSN, and leaves with this many packets before it.
    Nak(u8, u32),
    /// It is a READ response FIRST with an AETH: MSN 1.
    First,
}

/// A RoCEv2 packet over IPv4.
pub(super) struct Frame {
    pub(super) number: usize,
    from: IpAddr,
    to: IpAddr,
    is_intact: bool,
    /// From the BTH through the padding.
    pub(super) transport: Vec<u8>,
}

impl Frame {
    pub(super) fn bth(&self) -> Bth {
        Bth::parse(&self.transport).unwrap()
    }
}

pub(super) fn frames(file: &str) -> Vec<Frame> {
    let path = format!("{}/../ibwire/tests/captures/{file}.pcap", env!("CARGO_MANIFEST_DIR"));
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let packets = std::iter::from_fn(|| Some(reader.next_packet()?.unwrap().data.into_owned()));
    packets
        .zip(1..)
        .filter_map(|(bytes, number)| {
            let packet = (bytes[12..14] == [8, 0]).then_some(&bytes[14..])?;
            let ip = Ipv4Header::parse(packet).ok().filter(|ip| ip.protocol == Ipv4Header::UDP)?;
            let packet = &packet[..usize::from(ip.total_len)];
            let (packet, icrc) = packet.split_at(packet.len() - 4);
            let udp = UdpHeader::parse(&packet[Ipv4Header::LEN..]).unwrap();
            (udp.dst_port == 4791).then(|| Frame {
                number,
                from: ip.src.into(),
                to: ip.dst.into(),
                is_intact: icrc::of_ipv4_frame(packet).unwrap().0[..] == *icrc,
                transport: packet[Ipv4Header::LEN + UdpHeader::LEN..].to_vec(),
            })
        })
        .collect()
}

/// The numbers of our region instead of those there.
fn rewrite(bytes: &mut [u8], probe: &Probe, rkey: RKey, addr: u64) {
    let opcode = Opcode(bytes[0]);
    let (theirs, key, _) = probe.region;
    let ours = |va: u64, named: RKey| {
        if named == RKey(key) { (addr.wrapping_add(va.wrapping_sub(theirs)), rkey) } else { (va, named) }
    };
    let headers = &mut bytes[Bth::LEN..];
    if opcode.has_reth() {
        let reth = Reth::parse(headers).unwrap();
        let (va, rkey) = ours(reth.va, reth.rkey);
        headers[..Reth::LEN].copy_from_slice(&Reth { va, rkey, ..reth }.to_bytes());
    }
    if opcode.has_atomic_eth() {
        let atomic = AtomicEth::parse(headers).unwrap();
        let (va, rkey) = ours(atomic.va, atomic.rkey);
        headers[..AtomicEth::LEN].copy_from_slice(&AtomicEth { va, rkey, ..atomic }.to_bytes());
    }
}

/// Hands the requests to a QP of ours and compares. Returns the region's memory.
fn replay(file: &str, probe: &Probe) -> SharedMemory {
    let all = frames(file);
    let is_request = |frame: &&Frame| {
        let bth = frame.bth();
        bth.dest_qp.get() == probe.qpn && !bth.opcode.is_response()
    };
    let requests: Vec<_> = all.iter().filter(is_request).collect();
    let place = format!("{file} {}", probe.label);
    let first = requests.first().unwrap_or_else(|| panic!("{place}: no requests"));
    let (peer, here) = (first.from, first.to);
    // The QPs take turns: the answers stand up to the first request to the next one.
    let last = requests.last().unwrap().number;
    let end = all
        .iter()
        .find(|frame| frame.number > last && frame.from == peer)
        .map_or(usize::MAX, |frame| frame.number);
    let is_answer = |frame: &&Frame| {
        frame.from == here && (first.number..end).contains(&frame.number) && frame.bth().opcode.is_response()
    };
    let answers: Vec<_> = all.iter().filter(is_answer).collect();
    let peer_qpn = answers.first().map_or(Qpn::truncate(0xbeef), |frame| frame.bth().dest_qp);

    let mut engine = engine(roce_port(&here.to_string()), 1);
    let cq = engine.create_cq(64).unwrap();
    let qpn = engine.create_qp(&QpCreate { max_sge: 4, ..QpCreate::new(QpType::Rc, cq, 8, 16) }).unwrap();
    let rtr = Rtr {
        path_mtu: probe.path_mtu,
        max_dest_rd_atomic: probe.resources,
        min_rnr_timer: RnrTimer::truncate(probe.rnr_timer),
        ..rtr(roce_av(&peer.to_string()), peer_qpn, probe.first_psn)
    };
    engine.modify(qpn, Transition::Init(Init { access: probe.access, ..INIT })).unwrap();
    engine.modify(qpn, Transition::Rtr(rtr)).unwrap();
    if probe.is_rts {
        engine.modify(qpn, Transition::Rts(rts(5000))).unwrap();
    }
    let memory = SharedMemory::zeroed(probe.region.2);
    let bytes: Vec<u8> = (0..probe.region.2).map(probe.fill).collect();
    memory.copy_from(0, &bytes).unwrap();
    let (rkey, addr) = engine.register(DomainId::DEFAULT, memory.clone(), Access::all()).unwrap();

    let (mut ours, mut out) = (Vec::new(), Vec::new());
    for request in requests {
        for (_, lens) in probe.receives.iter().filter(|(frame, _)| *frame == request.number) {
            let mut work = lens.iter().map(|len| recv(0, *len)).collect();
            engine.post_recv(qpn, &mut work).unwrap();
        }
        if !request.is_intact {
            continue;
        }
        let mut bytes = request.transport.clone();
        bytes[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
        rewrite(&mut bytes, probe, rkey, addr);
        engine.handle_packet(Instant::now(), 1, &roce_net(&peer.to_string(), &here.to_string()), &bytes);
        while engine.poll_transmit(Instant::now(), &mut out).is_some() {
            ours.push(std::mem::take(&mut out));
        }
    }

    let mut theirs = Vec::new();
    for answer in answers {
        let mut bytes = answer.transport.clone();
        bytes[1] |= 0x40;
        let difference = probe.differences.iter().find(|(frame, _)| *frame == answer.number);
        match difference.map(|(_, otherwise)| *otherwise) {
            None => {}
            Some(Otherwise::Silence) => continue,
            Some(Otherwise::Nak(syndrome, psn)) => {
                bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
                bytes[Bth::LEN..].copy_from_slice(&[syndrome, 0, 0, 0]);
            }
            Some(Otherwise::First) => {
                assert_eq!(Opcode(bytes[0]), Opcode::RC_RDMA_READ_RESPONSE_MIDDLE);
                bytes[0] = Opcode::RC_RDMA_READ_RESPONSE_FIRST.0;
                bytes.splice(Bth::LEN..Bth::LEN, [0x1f, 0, 0, 1]);
            }
        }
        theirs.push(bytes);
    }
    let count = |list: &[Vec<u8>]| {
        list.iter()
            .map(|bytes| format!("{:?}", TransportPacket::parse(bytes).map(|p| *p.bth())))
            .collect::<Vec<_>>()
    };
    assert_eq!(count(&ours), count(&theirs), "{place}");
    assert!(ours == theirs, "{place}: {ours:02x?} {theirs:02x?}");
    memory
}

const PROBES: &str = "30-raw-requester-vs-rxe";
/// Receives for all that a probe sends.
const LONG: &[usize] = &[4096; 8];
const LOW: u64 = 0x1266_0000;
const HIGH: u64 = 0x126c_f000;

#[test]
fn probes_of_order() {
    use Otherwise::{Nak, Silence};

    for probe in [
        // rxe acknowledges a duplicate even if nobody asked.
        Probe { label: "E1", qpn: 0x11, receives: &[(1, LONG)], differences: &[(7, Silence)], ..PROBE },
        Probe { label: "E2", qpn: 0x12, receives: &[(16, LONG)], ..PROBE },
        Probe { label: "E3", qpn: 0x13, receives: &[(30, LONG)], ..PROBE },
        Probe { label: "E4", qpn: 0x14, region: (HIGH, 0x5b8, 4096), receives: &[(32, LONG)], ..PROBE },
        // rxe 6.1 takes a FIRST of any length (spec/softhca.md 2.2, T15).
        Probe {
            label: "E7",
            qpn: 0x17,
            receives: &[(39, LONG)],
            differences: &[(41, Nak(0x61, 1000))],
            ..PROBE
        },
        // rxe answers what follows an RNR NAK with a sequence NAK (2.4, T25).
        Probe {
            label: "E12",
            qpn: 0x1c,
            rnr_timer: 1,
            receives: &[(65, LONG)],
            differences: &[(64, Silence)],
            ..PROBE
        },
        Probe { label: "E13", qpn: 0x1d, rnr_timer: 0, ..PROBE },
        Probe { label: "E14", qpn: 0x1e, is_rts: false, receives: &[(71, LONG)], ..PROBE },
        // rxe acknowledges all before a SEND whose key it cannot invalidate (2.5).
        Probe { label: "E15", qpn: 0x1f, receives: &[(73, LONG)], differences: &[(74, Silence)], ..PROBE },
        // rxe calls a message that is too long an operational error (2.5, T26).
        Probe {
            label: "E18",
            qpn: 0x22,
            receives: &[(83, &[1500])],
            differences: &[(85, Nak(0x61, 1001))],
            ..PROBE
        },
        Probe { label: "E20", qpn: 0x24, receives: &[(88, LONG)], ..PROBE },
        Probe { label: "E21", qpn: 0x25, receives: &[(90, LONG)], ..PROBE },
        Probe { label: "E22", qpn: 0x26, first_psn: 0xff_fffe, receives: &[(92, LONG)], ..PROBE },
        Probe { label: "E23", qpn: 0x27, receives: &[(106, LONG)], ..PROBE },
    ] {
        replay(PROBES, &probe);
    }
}

#[test]
fn probes_of_memory() {
    for probe in [
        Probe { label: "E5", qpn: 0x15, region: (LOW, 0x69c, 65536), ..PROBE },
        Probe { label: "E6", qpn: 0x16, region: (HIGH, 0x779, 4096), ..PROBE },
        Probe { label: "E8", qpn: 0x18, ..PROBE },
        // rxe goes on with MIDDLE where a READ that is asked for again begins (2.6, T20).
        Probe {
            label: "E9",
            qpn: 0x19,
            region: (LOW, 0xa5d, 65536),
            differences: &[(51, Otherwise::First)],
            ..PROBE
        },
        Probe { label: "E11", qpn: 0x1b, region: (LOW, 0xc10, 65536), ..PROBE },
        Probe { label: "E16", qpn: 0x20, resources: 1, region: (HIGH, 0x11e8, 4096), ..PROBE },
        Probe { label: "E17", qpn: 0x21, resources: 0, region: (LOW, 0x12c6, 65536), ..PROBE },
        Probe { label: "E19", qpn: 0x23, region: (LOW, 0x14c5, 65536), ..PROBE },
        Probe { label: "E24", qpn: 0x28, region: (HIGH, 0x19ea, 4096), ..PROBE },
        Probe { label: "E25", qpn: 0x29, region: (LOW, 0x1a95, 65536), receives: &[(110, &[64])], ..PROBE },
    ] {
        replay(PROBES, &probe);
    }
    let fill = |i| (100u64.to_ne_bytes()).get(i).copied().unwrap_or(0);
    let atomic = Probe { label: "E10", qpn: 0x1a, region: (HIGH, 0xb03, 4096), fill, ..PROBE };
    let memory = replay(PROBES, &atomic);
    assert_eq!(memory.atomic(0).unwrap().load(Ordering::Relaxed), 105);
}

/// What the kernel's requester sends when nothing is wrong.
const KERNEL: Probe = Probe { first_psn: 0x11_1111, ..PROBE };

#[test]
fn requests_of_the_kernel() {
    use Otherwise::{Nak, Silence};
    replay("01-rc-send", &Probe { qpn: 0x11, receives: &[(1, &[4096; 8])], ..KERNEL });
    let region = (0x29af_c000, 0x37e, 8192);
    let write = Probe { qpn: 0x12, region, fill: |_| 0xee, receives: &[(1, &[8; 4])], ..KERNEL };
    let memory = replay("02-rc-write", &write);
    let (mut bytes, mut expected) = (vec![0; 8192], vec![0xee; 8192]);
    memory.copy_to(0, &mut bytes).unwrap();
    let pattern = |len: usize| (0..len).map(|i| i as u8);
    expected.splice(..3000, pattern(3000));
    expected.splice(0xe20..0xe20 + 1500, pattern(1500));
    assert!(bytes == expected);

    let region = (0x29b1_a000, 0x418, 1 << 15);
    replay("03-rc-read", &Probe { qpn: 0x13, region, fill: |i| !(i as u8), ..KERNEL });
    let fill = |i| (0x1000u64.to_ne_bytes()).get(i).copied().unwrap_or(0);
    let memory =
        replay("04-rc-atomic", &Probe { qpn: 0x14, region: (0x29b3_c000, 0x546, 64), fill, ..KERNEL });
    assert_eq!(memory.atomic(0).unwrap().load(Ordering::Relaxed), 0x1122_3344_5566_7788);

    replay("07-rc-rnr", &Probe { qpn: 0x18, rnr_timer: 14, receives: &[(15, &[16])], ..KERNEL });
    let silence = &[(4, Silence), (8, Silence)];
    replay("08-rc-rnr-exceeded", &Probe { qpn: 0x19, differences: silence, ..KERNEL });
    replay("09-rc-nak-access", &Probe { qpn: 0x1a, region: (0x29b2_b000, 0x5ea4, 4096), ..KERNEL });
    let invalid = &[(2, Nak(0x61, 0x11_1111))];
    replay(
        "10-rc-recv-too-small",
        &Probe { qpn: 0x1b, receives: &[(1, &[8])], differences: invalid, ..KERNEL },
    );
    let access = Access::REMOTE_WRITE;
    replay("11-rc-invalid-op", &Probe { qpn: 0x1d, access, region: (0x29b6_f000, 0xe72, 4096), ..KERNEL });
}

#[test]
fn probes_of_states_and_keys() {
    let file = "32-sqd-err-ud-mcast";
    replay(file, &Probe { label: "R21", qpn: 0x13, is_rts: false, receives: &[(7, &[64])], ..PROBE });
    replay(file, &Probe { label: "R22", qpn: 0x14, receives: &[(9, &[64, 64])], ..PROBE });
    let file = "33-keys-read-length-uc";
    replay(file, &Probe { label: "S2", qpn: 0x12, region: (0x37ea_4000, 0x206, 4096), ..PROBE });
    replay(file, &Probe { label: "S8", qpn: 0x18, receives: &[(17, &[106])], ..PROBE });
}

/// At MTU 256, with the kernel's own requests for acknowledgement (spec/softhca.md 2.7).
#[test]
fn a_long_write_of_the_kernel() {
    let region = (0x2b9f_a000, 0x201, 200 * 256);
    let probe = Probe { qpn: 0x11, path_mtu: Mtu::B256, region, fill: |_| 0xee, ..KERNEL };
    let memory = replay("13-rc-write-200pkt", &probe);
    let mut bytes = vec![0; 200 * 256];
    memory.copy_to(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 200 * 256]);
}
