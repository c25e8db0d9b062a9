//! What many cost one: a MAD on a CM engine with 1,000 established connections and with 100,000; a message to and fro on
//! a software HCA's engine with one idle queue pair beside it and with 10,000. One thread, no socket, a virtual clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use benches::engines::{Delivery, MADS, PAST_TIME_WAIT, Pair};
use benches::{Case, Clock, Estimate, Options, Sampling, Table, side_by_side};
use ibdev::qp::{Init, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressVector, Buf, Completion, GidEntry, GidKind, GlobalRoute, LinkLayer, PortAttr, PortState,
    RecvWr, SendOp, SendWr,
};
use ibsoft::engine::{Config, CqId, Engine, NetHeader, NetRoute, PortConfig, QpCreate, device_attr};
use ibwire::{FlowLabel, Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, Rate, RnrTimer, ServiceLevel, TimeCode};

const CONNECTIONS: [usize; 2] = [1_000, 100_000];
const NEIGHBOURS: [usize; 2] = [1, 10_000];
/// Handshakes under way at once.
const IN_FLIGHT: u64 = 64;
/// Bytes to and fro.
const LEN: usize = 64;

fn main() {
    let options = Options::start("scale: the same work beside few and beside many, one core");
    let sampling = Sampling::new(&options, Clock::Cpu, Duration::from_millis(100), 41);
    let part = if options.quick { 100 } else { 1 };
    for (how, delivery) in [("together", Delivery::Together), ("one by one", Delivery::OneByOne)] {
        replace_and_ask(&options, sampling, how, CONNECTIONS.map(|count| (count, count / part)), delivery);
    }
    let mut devices = NEIGHBOURS.map(|count| (count, Devices::new((count / part).max(1))));
    let mut cases: Vec<_> = devices
        .iter_mut()
        .map(|(count, devices)| {
            Case::new(format!("{count} idle queue pairs"), |pings| (0..pings).for_each(|_| devices.ping()))
        })
        .collect();
    cases.retain(|case| options.selects(case.name()));
    print!("{}", table("per message of 64 bytes", &side_by_side(sampling, cases), 2.0));
}

/// What happens to connections drawn at random, in pairs of engines with as many of them: called this, and in truth.
fn replace_and_ask(
    options: &Options,
    sampling: Sampling,
    how: &str,
    counts: [(usize, usize); 2],
    delivery: Delivery,
) {
    let mut pairs = counts.map(|(name, count)| {
        let mut pair = Pair::new(IN_FLIGHT, PAST_TIME_WAIT, delivery);
        pair.establish(count);
        (format!("{name} connections, {how}"), pair)
    });
    type Act = (&'static str, fn(&mut Pair, u64), f64);
    let acts: [Act; 3] = [
        ("per MAD, one of its connections replaced", Pair::replace, MADS),
        ("per MAD, a REP again and its RTU", Pair::repeat_reply, 2.0),
        ("per MAD, a LAP and its APR", Pair::propose_path, 2.0),
    ];
    for (thing, act, mads) in acts {
        let mut cases: Vec<_> =
            pairs.iter_mut().map(|(name, pair)| Case::new(name.clone(), |count| act(pair, count))).collect();
        cases.retain(|case| options.selects(&format!("{thing}: {}", case.name())));
        if !cases.is_empty() {
            println!("{}", table(thing, &side_by_side(sampling, cases), mads));
        }
    }
    pairs.iter_mut().for_each(|(_, pair)| pair.check());
}

/// Each case does `parts` of the thing at once.
fn table(thing: &str, estimates: &[Estimate], parts: f64) -> Table {
    let mut table = Table::new([thing, "ns", "quartiles", "of the first"]);
    for case in estimates {
        table.row([
            case.name.clone(),
            format!("{:.0}", case.median / parts),
            format!("{:.0} .. {:.0}", case.quartiles.0 / parts, case.quartiles.1 / parts),
            format!("{:.2}", case.median / estimates[0].median),
        ]);
    }
    table
}

/// One device, and its queue pair that has something to do.
struct Device {
    engine: Engine,
    cq: CqId,
    qpn: Qpn,
    /// What the other sees of its packets.
    net: NetHeader,
    completions: Vec<Completion>,
}

impl Device {
    fn new(number: u8, neighbours: usize) -> Self {
        let attr = PortAttr {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Mtu::B1024,
            lid: Lid::NONE,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Rate::GBPS_100,
        };
        let gids = vec![GidEntry { index: 0, gid: gid(number), kind: GidKind::RoceV2 }];
        let port = PortConfig { attr, gids, pkeys: vec![PKey::DEFAULT] };
        let device = device_attr("bench", Guid(number.into()), 1);
        let mut engine = Engine::new(Config::new(device, vec![port], [number; 32]));
        for _ in 0..neighbours {
            let (_, idle) = queue_pair(&mut engine);
            // It waits for a message of a peer that has nothing to say.
            connect(&mut engine, idle, number, Qpn::truncate(0x77));
            post_recv(&mut engine, idle);
        }
        let (cq, qpn) = queue_pair(&mut engine);
        let net = NetHeader::roce(NetRoute {
            sgid: gid(number),
            dgid: gid(3 - number),
            flow_label: FlowLabel::default(),
            traffic_class: 0,
            hop_limit: 64,
            ip_id: 0,
        });
        Self { engine, cq, qpn, net, completions: Vec::new() }
    }

    fn send(&mut self) {
        let send = SendWr::new(1, SendOp::Send { imm: None }, Buf::unregistered(LEN));
        self.engine.post_send(self.qpn, &mut VecDeque::from([send])).expect("room for one");
    }

    /// Hands what is sent to the other device.
    fn transmit(&mut self, now: Instant, to: &mut Self, out: &mut Vec<u8>) {
        while self.engine.poll_transmit(now, out).is_some() {
            to.engine.handle_packet(now, 1, &self.net, out);
            out.clear();
        }
        while self.engine.poll_event().is_some() {}
    }

    /// Takes the completions, all good. Returns how many.
    fn complete(&mut self) -> usize {
        self.completions.clear();
        self.engine.poll_cq(self.cq, &mut self.completions, usize::MAX);
        assert!(self.completions.iter().all(|completion| completion.status.is_ok()));
        self.completions.len()
    }
}

fn queue_pair(engine: &mut Engine) -> (CqId, Qpn) {
    let cq = engine.create_cq(8).expect("within the limits");
    (cq, engine.create_qp(&QpCreate::new(QpType::Rc, cq, 4, 4)).expect("within the limits"))
}

fn post_recv(engine: &mut Engine, qpn: Qpn) {
    engine
        .post_recv(qpn, &mut VecDeque::from([RecvWr::new(2, Buf::unregistered(LEN))]))
        .expect("room for one");
}

/// To RTS, with a queue pair of the other device.
fn connect(engine: &mut Engine, qpn: Qpn, number: u8, dest_qpn: Qpn) {
    let av = AddressVector {
        port: 1,
        dlid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: Some(GlobalRoute {
            dgid: gid(3 - number),
            sgid_index: 0,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            traffic_class: 0,
        }),
    };
    let psn = Psn::truncate(0);
    let rtr = Rtr {
        av,
        path_mtu: Mtu::B1024,
        dest_qpn,
        rq_psn: psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::truncate(12),
    };
    let rts = Rts {
        sq_psn: psn,
        timeout: TimeCode::truncate(14),
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        alternate: None,
    };
    let init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKey(0) };
    for transition in [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(rts)] {
        engine.modify(qpn, transition).expect("one after the other");
    }
}

fn gid(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number].into())
}

/// Two devices, as many idle queue pairs on each.
struct Devices {
    a: Device,
    b: Device,
    now: Instant,
    out: Vec<u8>,
}

impl Devices {
    fn new(neighbours: usize) -> Self {
        let [mut a, mut b] = [1, 2].map(|number| Device::new(number, neighbours));
        connect(&mut a.engine, a.qpn, 1, b.qpn);
        connect(&mut b.engine, b.qpn, 2, a.qpn);
        Self { a, b, now: Instant::now(), out: Vec::with_capacity(2048) }
    }

    /// A message there and one back.
    fn ping(&mut self) {
        let Self { a, b, now, out } = self;
        *now += Duration::from_micros(10);
        for device in [&mut *a, &mut *b] {
            post_recv(&mut device.engine, device.qpn);
            if device.engine.poll_timeout().is_some_and(|due| due <= *now) {
                device.engine.handle_timeout(*now);
            }
        }
        a.send();
        a.transmit(*now, b, out);
        b.transmit(*now, a, out);
        assert_eq!((a.complete(), b.complete()), (1, 1), "a send, a receive");
        b.send();
        b.transmit(*now, a, out);
        a.transmit(*now, b, out);
        assert_eq!((a.complete(), b.complete()), (1, 1), "a receive, a send");
    }
}
