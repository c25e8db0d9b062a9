//! How fast two CM engines connect and disconnect: REQ, REP, RTU, DREQ, DREP, each encoded and decoded, both ends in one
//! thread, no socket, a virtual clock.
//!
//! With TimeWait populated the clock moves on as if [`PACE`] connections were made in a second, so that each rests in
//! TimeWait for as long as its path demands and then leaves it. With TimeWait empty the clock jumps over it as soon as a
//! connection has ended.

use std::time::{Duration, Instant};

use benches::{Case, Clock, Estimate, Options, Sampling, Table, resident_bytes, side_by_side};
use ibcm::proto::{Accept, Config, Connect, Disconnect, Endpoint, Event, Listen, LocalCa, LocalPort, Path};
use ibdev::{DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, MadSource, PortAttr, PortState};
use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, Qpn, Rate, ServiceId, ServiceLevel,
    TimeCode,
};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// Connections per second of the virtual clock.
const PACE: u32 = 300_000;
/// What each connection sends, both ends together.
const MADS: f64 = 5.0;
/// How many MADs an engine takes in before the other has its turn.
const BATCH: usize = 64;
/// Longer than any TimeWait of these paths.
const PAST_TIME_WAIT: Duration = Duration::from_secs(1);

fn main() {
    let options = Options::start("handshake: two CM engines, REQ to DREP, both ends on one core");
    let sampling = Sampling::new(&options, Clock::Cpu, Duration::from_millis(100), 41);
    let mut pairs: Vec<(String, Pair)> = Vec::new();
    let pace = if options.quick { PACE / 100 } else { PACE };
    for (time_wait, tick) in [("empty", PAST_TIME_WAIT), ("populated", Duration::from_secs(1) / pace)] {
        for in_flight in [1, 1000] {
            let name = format!("TimeWait {time_wait}, {in_flight} in flight");
            if options.selects(&name) {
                pairs.push((name, Pair::new(in_flight, tick)));
            }
        }
    }
    let mut state_bytes = None;
    for (_, pair) in &mut pairs {
        let before = resident_bytes();
        pair.fill();
        if let (Some(before), Some(after), count @ 10_000..) = (before, resident_bytes(), pair.connections())
        {
            state_bytes = Some((after.saturating_sub(before) / count as u64, count));
        }
    }
    let cases =
        pairs.iter_mut().map(|(name, pair)| Case::new(name.clone(), |count| pair.run(count))).collect();
    let estimates = side_by_side(sampling, cases);
    print!("{}", table(&estimates, &pairs));
    if let Some((bytes, count)) = state_bytes {
        println!("\n{bytes} bytes resident per connection in TimeWait and end ({count} connections)");
    }
    for (name, pair) in &mut pairs {
        pair.check();
        println!("{name}: {} connections, no message sent twice, none refused", pair.started);
    }
}

fn table(estimates: &[Estimate], pairs: &[(String, Pair)]) -> Table {
    let mut table =
        Table::new(["", "handshakes/s", "ns each", "quartiles", "ns per MAD", "of the first", "in TimeWait"]);
    for (case, (_, pair)) in estimates.iter().zip(pairs) {
        table.row([
            case.name.clone(),
            format!("{:.0}", case.per_second()),
            format!("{:.0}", case.median),
            case.spread(),
            format!("{:.0}", case.median / MADS),
            format!("{:.2}", case.median / estimates[0].median),
            pair.connections().to_string(),
        ]);
    }
    table
}

/// One end.
struct Host {
    endpoint: Endpoint,
    /// What the other end sees of this one.
    source: MadSource,
    next_qpn: u32,
}

impl Host {
    fn new(number: u8) -> Self {
        let gid = gid(number);
        let attr = DeviceAttr::new("bench", Guid(0x0200_00ff_fe00_0000 | u64::from(number)), 1);
        let port = PortAttr {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Mtu::B4096,
            lid: Lid::NONE,
            lmc: 0,
            sm_lid: Lid::NONE,
            rate: Rate::GBPS_100,
        };
        let gids = vec![GidEntry { index: 0, gid, kind: GidKind::RoceV2 }];
        let ca = LocalCa::new(&attr, vec![LocalPort::new(&port, gids, vec![PKey::DEFAULT])]);
        let source = MadSource {
            port: 1,
            slid: Lid::NONE,
            sl: ServiceLevel::truncate(0),
            path_bits: 0,
            qpn: Qpn::GSI,
            pkey_index: 0,
            grh: Some(GlobalRoute {
                dgid: gid,
                sgid_index: 0,
                flow_label: FlowLabel::truncate(0),
                hop_limit: 64,
                traffic_class: 0,
            }),
        };
        Self { endpoint: Endpoint::new(Config::default(), ca, [number; 32]), source, next_qpn: 1 }
    }

    /// Numbers go round; a number comes again long after its TimeWait.
    fn qpn(&mut self) -> Qpn {
        self.next_qpn = if self.next_qpn < 0xff_fffe { self.next_qpn + 1 } else { 2 };
        Qpn::truncate(self.next_qpn)
    }

    /// Takes in what the other end sends, up to a batch. Returns whether there was anything.
    fn receive(&mut self, now: Instant, from: &mut Self) -> bool {
        let mut received = 0;
        while received < BATCH
            && let Some(out) = from.endpoint.poll_transmit(now, 1)
        {
            self.endpoint.handle_mad(now, &from.source, &out.mad);
            received += 1;
        }
        received > 0
    }

    /// As a driver does after each batch.
    fn handle_timeout(&mut self, now: Instant) {
        if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            self.endpoint.handle_timeout(now);
        }
    }
}

/// Two ends and their clock.
struct Pair {
    active: Host,
    passive: Host,
    path: Path,
    now: Instant,
    in_flight: u64,
    /// How far the clock moves for each connection.
    tick: Duration,
    started: u64,
    disconnected: u64,
}

impl Pair {
    fn new(in_flight: u64, tick: Duration) -> Self {
        let record = PathRecord {
            sgid: gid(1),
            dgid: gid(2),
            hop_limit: 64,
            reversible: true,
            pkey: PKey::DEFAULT,
            mtu: Mtu::B4096,
            packet_life_time: TimeCode::truncate(16).into(),
            ..PathRecord::default()
        };
        let mut passive = Host::new(2);
        let mut listen = Listen::new(SERVICE);
        listen.backlog = in_flight as usize;
        passive.endpoint.listen(listen).expect("the only listener");
        Self {
            active: Host::new(1),
            passive,
            path: Path { port: 1, record },
            now: Instant::now(),
            in_flight,
            tick,
            started: 0,
            disconnected: 0,
        }
    }

    /// Goes on until as many connections leave TimeWait as enter it.
    fn fill(&mut self) {
        let end = self.now + PAST_TIME_WAIT + PAST_TIME_WAIT / 2;
        while self.now < end {
            self.wave(self.in_flight);
        }
    }

    fn run(&mut self, mut count: u64) {
        while count > 0 {
            let wave = count.min(self.in_flight);
            self.wave(wave);
            count -= wave;
        }
    }

    /// Makes this many connections at once and ends them.
    fn wave(&mut self, count: u64) {
        for _ in 0..count {
            let connect = Connect::new(self.path, SERVICE, self.active.qpn());
            self.active.endpoint.connect(self.now, connect).expect("a path from here and a free queue pair");
        }
        self.started += count;
        while self.step() {}
        self.now += self.tick * count as u32;
        self.active.handle_timeout(self.now);
        self.passive.handle_timeout(self.now);
    }

    /// A batch in each direction, what the programs at both ends make of it, and the timers.
    fn step(&mut self) -> bool {
        let now = self.now;
        let mut busy = self.passive.receive(now, &mut self.active);
        while let Some(event) = self.passive.endpoint.poll_event() {
            if let Event::Request { conn, .. } = event {
                let accept = Accept::new(self.passive.qpn());
                self.passive.endpoint.accept(now, conn, accept).expect("a request that waits");
            }
        }
        busy |= self.active.receive(now, &mut self.passive);
        while let Some(event) = self.active.endpoint.poll_event() {
            match event {
                Event::Reply { conn, .. } => {
                    let endpoint = &mut self.active.endpoint;
                    endpoint.ready(now, conn, PrivateData::EMPTY).expect("a reply that waits");
                    endpoint.disconnect(now, conn, Disconnect::default()).expect("an established connection");
                }
                Event::Disconnected { .. } => self.disconnected += 1,
                _ => {}
            }
        }
        self.active.handle_timeout(now);
        self.passive.handle_timeout(now);
        busy
    }

    fn connections(&self) -> usize {
        self.active.endpoint.connections() + self.passive.endpoint.connections()
    }

    /// That the bench did what it says: each connection was made and ended, its MADs were sent once, nothing is left. At
    /// this pace one end draws now and then an ID that the other, whose TimeWait is longer, has still in memory; that must
    /// cost nothing.
    fn check(&mut self) {
        while let Some(due) = [&mut self.active, &mut self.passive]
            .into_iter()
            .filter_map(|host| host.endpoint.poll_timeout())
            .min()
        {
            self.now = due;
            while self.step() {}
        }
        assert_eq!((self.started, self.connections()), (self.disconnected, 0));
        let (active, passive) = (self.active.endpoint.stats(), self.passive.endpoint.stats());
        assert_eq!((active.established, passive.established), (self.started, self.started));
        for end in [&active, &passive] {
            let again = [end.resent, end.repeated_answers, end.refused_requests, end.dropped_id_taken];
            assert_eq!(again, [0; 4], "{end:?}");
        }
        assert_eq!(active.mads_sent + passive.mads_sent, MADS as u64 * self.started);
    }
}

fn gid(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number].into())
}
