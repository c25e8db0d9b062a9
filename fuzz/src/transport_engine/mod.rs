//! The transport engine: packets of a peer and of others, work and time, in any order.
//!
//! An input is a list of operations; see `World::step`. However it goes, each signaled work request completes once and in
//! its queue's order, whatever path it goes by, and memory changes only where and how the peer may change it.

mod seeds;
mod world;

use ibdev::qp::Transition;
use ibdev::{Buf, RemoteAddr, SendFlags, SendOp};
use ibsoft::engine::Counters;
use ibwire::packet::{AtomicEth, Bth, Opcode, Reth};
use ibwire::{Psn, RKey};

use crate::Input;
use world::{QPS, REGIONS, World};

pub use seeds::seeds;

/// What a packet gets before it is delivered, so that it is about something.
mod fix {
    /// The PSN that is expected, or that is answered; plus what stands in the input.
    pub(super) const PSN: u8 = 1;
    /// The same, but from the first PSN of the connection on.
    pub(super) const PSN_FROM_START: u8 = 1 << 1;
    /// Key and address of a region.
    pub(super) const REMOTE: u8 = 1 << 2;
    /// A pad count that fits, and version 0.
    pub(super) const PAD: u8 = 1 << 3;
    /// Another source than the peer; it is the peer's by the alternate path.
    pub(super) const FOREIGN: u8 = 1 << 4;
    /// The peer does not ask for migration: it has an alternate path loaded.
    pub(super) const STAYS: u8 = 1 << 5;
}

/// The target.
pub fn run(bytes: &[u8]) {
    play(bytes);
}

/// What it came to, in the counters of the engine. Packets that came together come to the same as one by one.
fn play(bytes: &[u8]) -> Counters {
    let play = |singly| {
        let mut input = Input::new(bytes);
        let mut world = World::new(singly);
        while !input.is_empty() {
            world.step(&mut input);
            world.drain();
        }
        (world.had_runs, world.end())
    };
    let (had_runs, end) = play(false);
    if had_runs {
        let (_, singly) = play(true);
        assert!(end == singly, "together {:?}, one by one {:?}", end.counters, singly.counters);
    }
    end.counters
}

impl World {
    /// One operation: its number, then what it needs.
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=3 => self.packet(input),
            4 => self.run(input),
            5 => {
                let len = usize::from(input.u16() % 1500);
                self.deliver(false, input.bytes(len));
            }
            6 | 7 => self.send(input),
            8 | 9 => {
                let (to, len) = (input.below(QPS + 1), usize::from(input.u16() % 5000));
                let empty = usize::from(input.byte() & 1);
                let lens = std::iter::repeat_n(0, empty).chain([len]);
                self.post_recv(to, lens.map(Buf::unregistered).collect());
            }
            10 => self.poll(input.byte().into()),
            11 => self.wait(input.u16()),
            12 => self.modify(input),
            13 => self.toggle_region(input.below(REGIONS)),
            14 => self.toggle_port(),
            _ => self.mad(input.byte()),
        }
    }

    /// A packet.
    fn packet(&mut self, input: &mut Input<'_>) {
        let (is_foreign, bytes) = self.make(input);
        self.deliver(is_foreign, &bytes);
    }

    /// Packets of one length that came together: the first one, how many, and of some of the others what differs from one that
    /// goes on where the one before ends; at last how many bytes are missing, and how many are behind each.
    fn run(&mut self, input: &mut Input<'_>) {
        let (is_foreign, first) = self.make(input);
        let (count, differ) = (1 + input.below(20), input.byte());
        let Ok(mut bth) = Bth::parse(&first) else { return };
        let mut packets = vec![first.clone()];
        for n in 1..count {
            bth.psn = bth.psn.offset(1);
            let mut packet = [&bth.to_bytes()[..], &first[Bth::LEN..]].concat();
            if usize::from(differ) % 8 == n % 8 && differ & 0x80 != 0 {
                let (what, value) = (input.byte(), input.byte());
                match what % 4 {
                    // One bit of the header.
                    0 => packet[usize::from(value >> 3) % Bth::LEN] ^= 1 << (value & 7),
                    1 => bth.psn = bth.psn.offset(Psn::truncate(i32::from(value as i8) as u32).get()),
                    2 => {
                        bth.opcode = Opcode(value);
                        packet[0] = value;
                    }
                    _ => packet[9..12].copy_from_slice(&[value, what, value]),
                }
            }
            packets.push(packet);
        }
        let (missing, room) = (input.below(8) * input.below(40), input.below(9));
        self.deliver_together(is_foreign, &packets, room, missing);
    }

    /// A packet: for which QP, opcode, what is fixed, PSN, region, flags, headers, length of the payload. Whether it is from
    /// elsewhere.
    fn make(&mut self, input: &mut Input<'_>) -> (bool, Vec<u8>) {
        let (qp, opcode, fixes) = (input.below(QPS), Opcode(input.byte()), input.byte());
        let (ahead, region, flags) = (i16::from_be_bytes(input.array()), input.below(REGIONS), input.byte());
        let at = u64::from(input.u16());
        let ahead = Psn::truncate(i32::from(ahead) as u32).get();
        let psn = match fixes {
            fixes if fixes & fix::PSN_FROM_START != 0 => self.start_psn(opcode).offset(ahead),
            fixes if fixes & fix::PSN != 0 => self.next_psn(qp, opcode).offset(ahead),
            _ => Psn::truncate(ahead),
        };
        let mut headers = [0; 64];
        let headers = &mut headers[..opcode.headers_len()];
        let given = input.bytes(headers.len());
        headers[..given.len()].copy_from_slice(given);
        let len = usize::from(input.u16() % 1100);
        let payload = input.bytes(len);
        if fixes & fix::REMOTE != 0 {
            let RemoteAddr { addr, rkey } = self.remote(region);
            if let Some(reth) = opcode.has_reth().then(|| Reth::parse(headers).ok()).flatten() {
                let len = if reth.len == 0 { payload.len() as u32 } else { reth.len };
                Reth { va: addr.wrapping_add(at), rkey, len }.write_to(headers);
            }
            if let Some(atomic) = opcode.has_atomic_eth().then(|| AtomicEth::parse(headers).ok()).flatten() {
                AtomicEth { va: addr.wrapping_add(at & !7), rkey, ..atomic }.write_to(headers);
            }
        }
        if opcode.has_deth() {
            headers[..4].copy_from_slice(&world::QKEY.0.to_be_bytes());
        }
        let pad = if fixes & fix::PAD != 0 { Bth::pad_for(len) } else { flags >> 4 & 3 };
        let bth = Bth {
            pad,
            version: if fixes & fix::PAD != 0 { 0 } else { flags & 0xf },
            mig_req: fixes & fix::STAYS == 0,
            ack_req: flags & 0x40 != 0,
            solicited: flags & 0x80 != 0,
            ..Bth::new(opcode, self.qpn(qp), psn)
        };
        let mut bytes = [&bth.to_bytes()[..], headers, payload].concat();
        bytes.resize(bytes.len() + len - payload.len() + usize::from(pad), 0);
        (fixes & fix::FOREIGN != 0, bytes)
    }

    /// A send: to which QP, what, with which flags, of which region of ours, how long.
    fn send(&mut self, input: &mut Input<'_>) {
        let (qp, what, flags) = (input.below(QPS), input.byte(), SendFlags::from_bits_truncate(input.byte()));
        let (addr, len) = (input.u64(), usize::from(input.u16() % 5000));
        let at = RemoteAddr { addr, rkey: RKey(addr as u32) };
        let imm = (what & 0x80 != 0).then_some(len as u32);
        let op = match what % 8 {
            0 | 1 => SendOp::Send { imm },
            2 => SendOp::Write { to: at, imm },
            3 => SendOp::Read { from: at },
            4 => SendOp::FetchAdd { at, add: addr },
            5 => SendOp::CompareSwap { at, compare: addr, swap: 1 },
            _ => SendOp::Datagram { to: self.datagram_dest(), imm },
        };
        let bufs = if what & 0x40 != 0 { vec![len / 2, 0, len - len / 2] } else { vec![len] };
        self.post_send(qp, op, flags, bufs.into_iter().map(Buf::unregistered).collect());
    }

    fn modify(&mut self, input: &mut Input<'_>) {
        let qp = input.below(QPS);
        match input.byte() % 8 {
            0 => self.transition(qp, Transition::Error),
            1 => self.transition(qp, Transition::SqDrain),
            2 => self.transition(qp, Transition::SqResume),
            3 => self.reset(qp),
            4 => self.transition(qp, Transition::LoadPath(world::alternate())),
            5 => self.transition(qp, Transition::Migrate),
            _ => self.connect(qp),
        }
    }
}
