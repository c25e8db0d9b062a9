//! Two CM engines that connect and disconnect, both ends in one thread, no socket, a virtual clock.

use std::time::{Duration, Instant};

use ibcm::proto::message::{Eecn, FailoverAccepted, Lap, Message, PathBlock, Rep, RetryCount, VendorId};
use ibcm::proto::{
    Accept, Config, ConnHandle, Connect, Disconnect, Endpoint, Event, Info, Listen, LocalCa, LocalPort, Path,
};
use ibdev::{
    DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, MAD_LEN, MadSource, PortAttr, PortState,
    ReceivedMad,
};
use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, Psn, QKey, Qpn, Rate, ServiceId,
    ServiceLevel, TimeCode, TransactionId,
};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// What each connection sends, both ends together.
pub const MADS: f64 = 5.0;
/// How many MADs an engine takes in before the other has its turn: what the driver of an HCA receives at once.
const BATCH: usize = 64;
/// Longer than any TimeWait of these paths.
pub const PAST_TIME_WAIT: Duration = Duration::from_secs(1);

/// How an engine gets the MADs of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// All at once, as the driver of an HCA hands over what it received.
    Together,
    /// One after the other.
    OneByOne,
}

/// One end.
#[derive(Debug)]
struct Host {
    endpoint: Endpoint,
    /// What the other end sees of this one.
    source: MadSource,
    next_qpn: u32,
    delivery: Delivery,
    /// The batch that is on its way to it.
    received: Vec<ReceivedMad>,
}

impl Host {
    fn new(number: u8, delivery: Delivery) -> Self {
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
            sm_sl: ServiceLevel::default(),
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
        Self {
            endpoint: Endpoint::new(Config::default(), ca, [number; 32]),
            source,
            next_qpn: 1,
            delivery,
            received: Vec::with_capacity(BATCH),
        }
    }

    /// Numbers go round; a number comes again long after its TimeWait.
    fn qpn(&mut self) -> Qpn {
        self.next_qpn = if self.next_qpn < 0xff_fffe { self.next_qpn + 1 } else { 2 };
        Qpn::truncate(self.next_qpn)
    }

    /// Takes in what the other end sends, up to a batch. Returns whether there was anything.
    fn receive(&mut self, now: Instant, from: &mut Self) -> bool {
        while self.received.len() < BATCH
            && let Some(out) = from.endpoint.poll_transmit(now, 1)
        {
            self.received.push(ReceivedMad { from: from.source, mad: out.mad });
        }
        self.take_in(now)
    }

    /// Takes in what has come. Returns whether there was anything.
    fn take_in(&mut self, now: Instant) -> bool {
        match self.delivery {
            Delivery::Together => self.endpoint.handle_mads(now, &self.received),
            Delivery::OneByOne => {
                for ReceivedMad { from, mad } in &self.received {
                    self.endpoint.handle_mad(now, from, mad);
                }
            }
        }
        let some = !self.received.is_empty();
        self.received.clear();
        some
    }

    /// As a driver does after each batch.
    fn handle_timeout(&mut self, now: Instant) {
        if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            self.endpoint.handle_timeout(now);
        }
    }
}

/// Two ends and their clock.
#[derive(Debug)]
pub struct Pair {
    active: Host,
    passive: Host,
    path: Path,
    now: Instant,
    in_flight: u64,
    /// How far the clock moves for each connection.
    tick: Duration,
    started: u64,
    disconnected: u64,
    /// REPs that came again, and LAPs.
    repeated: u64,
    proposed: u64,
    /// Established connections, where they are to stay.
    kept: Option<Vec<ConnHandle>>,
    rng: u64,
}

impl Pair {
    /// `in_flight` connections are begun at once; the clock moves on by `tick` for each.
    pub fn new(in_flight: u64, tick: Duration, delivery: Delivery) -> Self {
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
        let mut passive = Host::new(2, delivery);
        let mut listen = Listen::new(SERVICE);
        listen.backlog = in_flight as usize;
        passive.endpoint.listen(listen).expect("the only listener");
        Self {
            active: Host::new(1, delivery),
            passive,
            path: Path { port: 1, record },
            now: Instant::now(),
            in_flight,
            tick,
            started: 0,
            disconnected: 0,
            repeated: 0,
            proposed: 0,
            kept: None,
            rng: 1,
        }
    }

    /// How many connections were begun.
    pub const fn started(&self) -> u64 {
        self.started
    }

    /// Goes on until as many connections leave TimeWait as enter it.
    pub fn fill(&mut self) {
        let end = self.now + PAST_TIME_WAIT + PAST_TIME_WAIT / 2;
        while self.now < end {
            self.wave(self.in_flight);
        }
    }

    /// Makes so many connections and ends them.
    pub fn run(&mut self, mut count: u64) {
        while count > 0 {
            let wave = count.min(self.in_flight);
            self.wave(wave);
            count -= wave;
        }
    }

    /// Makes so many connections, which stay.
    pub fn establish(&mut self, count: usize) {
        self.kept = Some(Vec::with_capacity(count));
        self.run(count as u64);
    }

    /// Ends so many of the connections that stay, drawn at random, and makes as many anew.
    pub fn replace(&mut self, mut count: u64) {
        while count > 0 {
            let wave = count.min(self.in_flight);
            for conn in self.draw_conns(wave) {
                self.end(conn);
            }
            self.wave(wave);
            count -= wave;
        }
    }

    /// So many of the connections that stay, drawn at random, see their REP once more, and repeat the RTU.
    pub fn repeat_reply(&mut self, count: u64) {
        for batch in batches(count) {
            for info in self.draw_infos(batch) {
                self.active.received.push(ReceivedMad { from: self.passive.source, mad: mad(reply(&info)) });
            }
            self.active.take_in(self.now);
            self.passive.receive(self.now, &mut self.active);
        }
        self.repeated += count;
    }

    /// So many of the connections that stay, drawn at random, are asked for an alternate path (LAP), which their device
    /// cannot have (APR).
    pub fn propose_path(&mut self, count: u64) {
        for batch in batches(count) {
            for info in self.draw_infos(batch) {
                self.passive.received.push(ReceivedMad { from: self.active.source, mad: mad(lap(&info)) });
            }
            self.passive.take_in(self.now);
            self.active.receive(self.now, &mut self.passive);
        }
        self.proposed += count;
    }

    /// What the active side knows of so many of those that stay.
    fn draw_infos(&mut self, count: u64) -> Vec<Info> {
        (0..count)
            .map_while(|_| {
                let place = self.draw()?;
                self.active.endpoint.info(self.kept.as_ref()?[place])
            })
            .collect()
    }

    /// One of those that stay.
    fn draw(&mut self) -> Option<usize> {
        let kept = self.kept.as_ref().filter(|kept| !kept.is_empty())?;
        self.rng = self.rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((self.rng >> 33) as usize % kept.len())
    }

    /// So many of those that stay, which do not any more.
    fn draw_conns(&mut self, count: u64) -> Vec<ConnHandle> {
        (0..count)
            .map_while(|_| {
                let place = self.draw()?;
                self.kept.as_mut().map(|kept| kept.swap_remove(place))
            })
            .collect()
    }

    fn end(&mut self, conn: ConnHandle) {
        let endpoint = &mut self.active.endpoint;
        endpoint.disconnect(self.now, conn, Disconnect::default()).expect("an established connection");
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
                    match &mut self.kept {
                        Some(kept) => kept.push(conn),
                        None => endpoint
                            .disconnect(now, conn, Disconnect::default())
                            .expect("an established connection"),
                    }
                }
                Event::Disconnected { .. } => self.disconnected += 1,
                _ => {}
            }
        }
        self.active.handle_timeout(now);
        self.passive.handle_timeout(now);
        busy
    }

    /// Connections of both ends, TimeWait included.
    pub fn connections(&self) -> usize {
        self.active.endpoint.connections() + self.passive.endpoint.connections()
    }

    /// That the bench did what it says: each connection was made and ended, its MADs were sent once, nothing is left. At
    /// this pace one end draws now and then an ID that the other, whose TimeWait is longer, has still in memory; that must
    /// cost nothing.
    pub fn check(&mut self) {
        for conn in self.kept.take().into_iter().flatten() {
            self.end(conn);
        }
        while self.step() {}
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
            let again = [end.resent, end.refused_requests, end.dropped_id_taken];
            assert_eq!(again, [0; 3], "{end:?}");
        }
        assert_eq!((active.repeated_answers, passive.repeated_answers), (self.repeated, 0));
        assert_eq!(passive.refused_alternates, self.proposed);
        let answers = self.repeated + self.proposed;
        assert_eq!(active.mads_sent + passive.mads_sent, MADS as u64 * self.started + answers);
    }
}

/// Sizes of the batches in which so many MADs come.
fn batches(count: u64) -> impl Iterator<Item = u64> {
    (0..count).step_by(BATCH).map(move |done| (count - done).min(BATCH as u64))
}

/// The REP by which the active side has come to this.
fn reply(info: &Info) -> Rep {
    Rep {
        local_comm_id: info.remote_comm_id,
        remote_comm_id: info.local_comm_id,
        local_qkey: QKey(0),
        local_qpn: info.remote_qpn,
        vendor_id: VendorId::truncate(0),
        local_eecn: Eecn::default(),
        starting_psn: Psn::truncate(0),
        responder_resources: 0,
        initiator_depth: 0,
        target_ack_delay: TimeCode::default(),
        failover_accepted: FailoverAccepted::ACCEPTED,
        end_to_end_flow_control: false,
        rnr_retry_count: RetryCount::truncate(0),
        srq: false,
        local_ca_guid: info.remote_ca_guid,
        private_data: PrivateData::EMPTY,
    }
}

/// What the active side would ask for.
fn lap(info: &Info) -> Lap {
    Lap {
        local_comm_id: info.local_comm_id,
        remote_comm_id: info.remote_comm_id,
        remote_qpn: info.remote_qpn,
        remote_cm_response_timeout: TimeCode::default(),
        alternate: PathBlock::NONE,
        private_data: PrivateData::EMPTY,
    }
}

fn mad(message: impl Into<Message>) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    message.into().encode(TransactionId(1), &mut mad);
    mad
}

fn gid(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number].into())
}
