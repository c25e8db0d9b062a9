//! Whatever comes in, nothing panics and no promise is broken.

use std::time::{Duration, Instant};

use ibdev::Completion;
use ibdev::qp::QpType;
use ibwire::packet::{Bth, Opcode};
use proptest::prelude::*;

use super::super::{CqId, QpCreate};
use super::*;

const PEER: &str = "10.77.0.1";
const HERE: &str = "10.77.0.2";

#[derive(Debug, Clone)]
enum Op {
    Bytes(Vec<u8>),
    Packet { connected: bool, opcode: u8, psn: i8, flags: u8, ack: bool, extended: [u8; 4], len: usize },
    Send(usize),
    Recv(usize),
    Poll(usize),
    Wait(u64),
    Fail,
}

fn op() -> impl Strategy<Value = Op> {
    let opcode = prop_oneof![
        4 => prop::sample::select(vec![0u8, 1, 2, 3, 4, 5]),
        4 => Just(0x11u8),
        2 => prop::sample::select(vec![0x64u8, 0x65]),
        1 => any::<u8>(),
    ];
    let len = prop_oneof![Just(0usize), Just(1024), 0usize..1100];
    let syndrome = prop_oneof![
        3 => Just(0x1fu8),
        1 => Just(0x60u8),
        1 => Just(0x21u8),
        1 => any::<u8>(),
    ];
    let packet =
        (any::<bool>(), opcode, -2i8..4, any::<u8>(), any::<bool>(), syndrome, any::<[u8; 3]>(), len);
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Op::Bytes),
        12 => packet.prop_map(|(connected, opcode, psn, flags, ack, syndrome, [a, b, c], len)| {
            // Mostly version 0 and a right pad count.
            let flags = if flags > 32 { flags & 0xc0 } else { flags };
            Op::Packet { connected, opcode, psn, flags, ack, extended: [syndrome, a, b, c], len }
        }),
        4 => (0usize..3000).prop_map(Op::Send),
        4 => (0usize..3000).prop_map(Op::Recv),
        2 => (0usize..4).prop_map(Op::Poll),
        1 => (0u64..200).prop_map(Op::Wait),
        1 => Just(Op::Fail),
    ]
}

/// What an observer knows: what was posted and what has completed.
struct World {
    engine: Engine,
    now: Instant,
    cq: CqId,
    rc: Qpn,
    ud: Qpn,
    /// Next ids, by queue: RC sends, RC receives, UD receives.
    posted: [u64; 3],
    completed: [u64; 3],
    out: Vec<u8>,
    /// The PSN that comes after the last request that the QP acknowledged or asked for.
    expected: Psn,
    next: Psn,
}

impl World {
    fn new() -> Self {
        let mut engine = engine(roce_port(HERE), 9);
        let cq = engine.create_cq(64).unwrap();
        let create = |kind| QpCreate::new(kind, cq, 16, 16);
        let rc = engine.create_qp(&create(QpType::Rc)).unwrap();
        let ud = engine.create_qp(&create(QpType::Ud)).unwrap();
        engine.modify(ud, Transition::Init(INIT)).unwrap();
        engine.modify(ud, Transition::DatagramRtr).unwrap();
        let (expected, next) = (Psn::truncate(0xff_fffe), Psn::truncate(0xff_fffd));
        connect(
            &mut engine,
            rc,
            rtr(roce_av(PEER), Qpn::truncate(5), expected.get()),
            Rts { rnr_retry: 3, ..rts(next.get()) },
        );
        Self {
            engine,
            now: Instant::now(),
            cq,
            rc,
            ud,
            posted: [0; 3],
            completed: [0; 3],
            out: Vec::new(),
            expected,
            next,
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Bytes(bytes) => self.deliver(bytes),
            Op::Packet { connected, opcode, psn, flags, ack, extended, len } => {
                let opcode = Opcode(*opcode);
                let base = if opcode.is_response() { self.next } else { self.expected };
                let qpn = if *connected { self.rc } else { self.ud };
                let bth = Bth {
                    pad: if *flags & 0x3f == 0 { Bth::pad_for(*len) } else { *flags >> 4 & 3 },
                    version: flags & 0xf,
                    ack_req: *ack,
                    ..Bth::new(opcode, qpn, base.offset(*psn as u32))
                };
                let mut bytes = bth.to_bytes().to_vec();
                if opcode.has_deth() {
                    bytes.extend_from_slice(&0x1234u32.to_be_bytes());
                }
                bytes.extend_from_slice(extended);
                bytes.truncate(Bth::LEN + opcode.headers_len());
                bytes.resize(Bth::LEN + opcode.headers_len(), 7);
                bytes.resize(bytes.len() + len + usize::from(bth.pad), 9);
                self.deliver(&bytes);
            }
            Op::Send(len) => {
                let mut work = one(send(self.posted[0], *len, None));
                if self.engine.post_send(self.rc, &mut work).is_ok() {
                    self.posted[0] += 1;
                }
            }
            Op::Recv(len) => {
                for (qpn, queue) in [(self.rc, 1), (self.ud, 2)] {
                    let mut work = one(recv(self.posted[queue], *len));
                    if self.engine.post_recv(qpn, &mut work).is_ok() {
                        self.posted[queue] += 1;
                    }
                }
            }
            Op::Poll(max) => self.poll(*max),
            Op::Wait(ms) => {
                self.now += Duration::from_millis(*ms);
                self.engine.handle_timeout(self.now);
            }
            Op::Fail => drop(self.engine.modify(self.ud, Transition::Error).unwrap()),
        }
        self.transmit();
        assert!(self.engine.poll_timeout().is_none_or(|at| at <= self.now + Duration::from_secs(1)));
    }

    fn deliver(&mut self, bytes: &[u8]) {
        self.engine.handle_packet(self.now, 1, &roce_net(PEER, HERE), bytes);
    }

    fn transmit(&mut self) {
        let mut budget = 0;
        loop {
            self.out.clear();
            let Some(egress) = self.engine.poll_transmit(self.now, &mut self.out) else { break };
            assert_eq!(egress.len, self.out.len());
            let bth = Bth::parse(&self.out).unwrap();
            if bth.opcode.is_response() {
                // An ACK names the last request that was executed, a NAK the one that is missing.
                let ack = self.out[Bth::LEN] < 0x20;
                self.expected = if ack { bth.psn.offset(1) } else { bth.psn };
            } else {
                self.next = bth.psn;
            }
            budget += 1;
            assert!(budget <= 65, "a window of packets and an answer at most");
        }
    }

    fn poll(&mut self, max: usize) {
        let mut completions = Vec::new();
        self.engine.poll_cq(self.cq, &mut completions, max);
        for completion in completions {
            self.check(&completion);
        }
    }

    /// Each queue completes in order, each work request once.
    fn check(&mut self, completion: &Completion) {
        let queue = match completion.op {
            ibdev::CompletionOp::Send => 0,
            _ if completion.qpn == self.rc => 1,
            _ => 2,
        };
        assert_eq!(completion.id, self.completed[queue]);
        self.completed[queue] += 1;
        assert!(self.completed[queue] <= self.posted[queue]);
    }

    /// After both QPs went to ERR nothing is left over.
    fn end(mut self) {
        for qpn in [self.rc, self.ud] {
            drop(self.engine.modify(qpn, Transition::Error).unwrap());
        }
        self.poll(usize::MAX);
        assert_eq!(self.posted, self.completed);
        let counters = *self.engine.counters();
        self.deliver(&[4, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(self.engine.counters().drop_transport, counters.drop_transport + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_break_nothing(ops in prop::collection::vec(op(), 0..120)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
        world.end();
    }
}
