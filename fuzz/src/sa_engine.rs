//! The client's transactions with an SA that the input plays: requests, answers of every kind, time, cancellation, an SA that
//! moves, and MADs of anybody.
//!
//! An input is a list of operations; see `World::step`. However it goes, each request that is not cancelled ends in
//! exactly one event, by its deadline at the latest, and nothing is left of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ibdev::{AddressVector, GlobalRoute, MAD_LEN, MadAddr, MadSource, OutgoingMad};
use ibsa::Config;
use ibsa::mad::{RmppHeader, RmppType, SaHeader};
use ibsa::proto::client::{Client, Event, Request, RequestId};
use ibsa::proto::rmpp::{Mad, RmppConfig, Sender};
use ibsa::record::{MultiPath, NodeRecord, Template};
use ibwire::mad::{ClassPortInfo, MadStatus, Method, Redirect};
use ibwire::{FlowLabel, Gid, Guid, Lid, PKey, QKey, Qpn, Rate, ServiceLevel};

use crate::seeds::{self, Seed};
use crate::{Input, mad};

/// Requests at once.
const QUEUE: usize = 40;
/// Sent MADs that are remembered, to be answered.
const REMEMBERED: usize = 32;
/// No deadline is later than so long after the request.
const LONGEST: Duration = Duration::from_secs(65);
const METHODS: [Method; 5] =
    [Method::GET, Method::SET, Method::GET_TABLE, Method::GET_TRACE_TABLE, Method::DELETE];
const STATUSES: [u16; 8] = [0, 1, 2, 0x1c, 0x0300, 0x0400, 0x0700, 0xff03];

/// The target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
        world.drain();
    }
    world.end();
}

struct World {
    now: Instant,
    client: Client,
    /// Requests that have not ended, with their deadlines.
    open: BTreeMap<RequestId, Instant>,
    /// What was sent last, the oldest first.
    sent: VecDeque<OutgoingMad>,
    /// The rest of tables that are being sent.
    tables: VecDeque<(MadSource, Sender)>,
}

fn address(lid: Lid, roce: bool) -> MadAddr {
    let grh = GlobalRoute {
        dgid: Gid::link_local(Guid(lid.0.into())),
        sgid_index: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let av = AddressVector {
        port: 1,
        dlid: if roce { Lid::NONE } else { lid },
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: roce.then_some(grh),
    };
    MadAddr { av, qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 }
}

/// Who answers what was sent there.
fn answering(to: &MadAddr) -> MadSource {
    MadSource {
        port: to.av.port,
        slid: to.av.dlid,
        sl: to.av.sl,
        path_bits: 0,
        qpn: to.qpn,
        pkey_index: 0,
        grh: to.av.grh,
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let mut config = Config::default();
        config.queue = QUEUE;
        config.window = u32::from(input.byte() % 20);
        config.tries = u32::from(input.byte() % 6);
        config.first_timeout = Duration::from_millis(u64::from(input.u16() % 4000));
        config.finished = input.below(6);
        config.rmpp.window = u32::from(input.byte() % 66);
        let now = Instant::now();
        let mut client = Client::new(config, [input.byte(); 32]);
        client.set_sa(
            now,
            Some(address(Lid(1), input.byte().is_multiple_of(4))),
            vec![PKey::DEFAULT, PKey(0x8001)],
        );
        Self { now, client, open: BTreeMap::new(), sent: VecDeque::new(), tables: VecDeque::new() }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(10) {
            0 => self.request(input),
            1 | 2 => self.answer(input),
            3 => self.table(input),
            4 => self.more_of_a_table(input),
            5 => self.acknowledge(input),
            6 => {
                self.now += Duration::from_millis(u64::from(input.u16()));
                self.client.handle_timeout(self.now);
            }
            7 => {
                let at = input.below(QUEUE);
                if let Some(id) = self.open.keys().nth(at).copied() {
                    self.open.remove(&id);
                    self.client.cancel(self.now, id);
                }
            }
            8 => {
                let lid = input.byte();
                let sa = (lid != 0).then(|| address(Lid(lid.into()), lid.is_multiple_of(7)));
                self.client.set_sa(self.now, sa, vec![PKey(input.u16()), PKey::DEFAULT]);
            }
            _ => self.foreign(input),
        }
    }

    fn request(&mut self, input: &mut Input<'_>) {
        let deadline = self.now + Duration::from_millis(u64::from(input.u16()));
        let kind = input.below(METHODS.len() + 1);
        let request = match METHODS.get(kind) {
            Some(&method) => Request::new(method, Template::<NodeRecord>::new().lid(input.u16()), deadline),
            None => {
                let gids = |count: usize| vec![Gid::link_local(Guid(9)); count];
                let (sources, destinations) = (gids(1 + input.below(40)), gids(1 + input.below(3)));
                Request::multi(&MultiPath { wanted: Template::new(), sources, destinations }, deadline)
            }
        };
        match request.map(|request| self.client.request(self.now, request)) {
            Ok(Ok(id)) => assert!(self.open.insert(id, deadline).is_none(), "an ID again"),
            Ok(Err(error)) => assert!(self.client.pending() == QUEUE, "{error}"),
            Err(invalid) => panic!("{invalid}"),
        }
    }

    /// One of the last MADs that were sent, and its headers.
    fn remembered(&self, input: &mut Input<'_>) -> Option<(OutgoingMad, SaHeader)> {
        let out = self.sent.get(input.below(REMEMBERED))?.clone();
        let header = SaHeader::parse(&out.mad).ok()?;
        Some((out, header))
    }

    /// A MAD with any status.
    fn answer(&mut self, input: &mut Input<'_>) {
        let Some((out, mut header)) = self.remembered(input) else { return };
        let status = MadStatus(STATUSES[input.below(STATUSES.len())]);
        header.mad = header.mad.response(status);
        header.rmpp = RmppHeader::default();
        let mut mad = mad::padded(&header.to_bytes());
        if status.is_redirect() {
            let redirect = Redirect {
                lid: Lid(u16::from(input.byte() % 4)),
                pkey: if input.byte().is_multiple_of(4) { PKey(0x7777) } else { PKey::DEFAULT },
                qpn: Qpn::GSI,
                qkey: QKey::GSI,
                ..Redirect::default()
            };
            let info = ClassPortInfo { redirect, ..ClassPortInfo::default() };
            mad[SaHeader::LEN..SaHeader::LEN + ClassPortInfo::LEN].copy_from_slice(&info.to_bytes());
        }
        self.client.handle(self.now, &answering(&out.to), &mad);
    }

    /// The first segment of a table.
    fn table(&mut self, input: &mut Input<'_>) {
        let Some((out, header)) = self.remembered(input) else { return };
        let mut answer = SaHeader { mad: header.mad.response(MadStatus::OK), attribute_offset: 14, ..header };
        if header.mad.method == Method::GET_MULTI && input.byte().is_multiple_of(2) {
            answer.mad.attribute = ibwire::mad::AttributeId(0x35);
        }
        let data = vec![0x5a; 112 * input.below(40)];
        let Ok(mut sender) = Sender::new(answer, data, &RmppConfig::default()) else { return };
        let from = answering(&out.to);
        if let Some(mad) = sender.poll_transmit(self.now) {
            self.client.handle(self.now, &from, &mad);
        }
        self.tables.push_back((from, sender));
        if self.tables.len() > REMEMBERED {
            self.tables.pop_front();
        }
    }

    /// More segments of a table, some of them twice, or all again.
    fn more_of_a_table(&mut self, input: &mut Input<'_>) {
        let at = input.below(REMEMBERED);
        let how = input.byte();
        let Some((from, sender)) = self.tables.get_mut(at) else { return };
        if how.is_multiple_of(8) {
            _ = sender.handle_timeout(self.now);
        }
        for _ in 0..=how % 32 {
            let Some(mad) = sender.poll_transmit(self.now) else { return };
            for _ in 0..=how >> 7 {
                self.client.handle(self.now, from, &mad);
            }
        }
    }

    /// An ACK, STOP or ABORT of what was sent.
    fn acknowledge(&mut self, input: &mut Input<'_>) {
        let Some((out, mut header)) = self.remembered(input) else { return };
        header.mad = header.mad.response(MadStatus::OK);
        let how = input.byte();
        header.rmpp = RmppHeader {
            version: RmppHeader::VERSION,
            kind: RmppType(2 + how % 3),
            flags: RmppHeader::ACTIVE,
            status: ibsa::mad::RmppStatus(if how >= 0x80 { input.byte() } else { 0 }),
            segment: u32::from(input.byte() % 8),
            length_or_window: u32::from(input.byte() % 16),
            ..header.rmpp
        };
        self.client.handle(self.now, &answering(&out.to), &mad::padded(&header.to_bytes()));
    }

    /// Any bytes, made to be about something.
    fn foreign(&mut self, input: &mut Input<'_>) {
        let fix = input.byte();
        let remembered = self.remembered(input);
        let mut mad: Mad = mad::padded(input.bytes(MAD_LEN));
        if fix & 1 != 0 {
            mad[..3].copy_from_slice(&[1, 3, 2]);
        }
        let mut from = answering(&address(Lid(1), false));
        if let Some((out, header)) = remembered {
            if fix & 2 != 0 {
                mad[8..16].copy_from_slice(&header.mad.tid.0.to_be_bytes());
            }
            if fix & 4 != 0 {
                mad[3] = header.mad.method.response().0;
                mad[16..18].copy_from_slice(&header.mad.attribute.0.to_be_bytes());
            }
            if fix & 8 != 0 {
                from = answering(&out.to);
            }
        }
        if fix & 16 != 0 {
            mad[4..6].fill(0);
        }
        self.client.handle(self.now, &from, &mad);
    }

    fn drain(&mut self) {
        while let Some(out) = self.client.poll_transmit() {
            assert!(SaHeader::parse(&out.mad).is_ok_and(|header| header.mad.class.0 == 3));
            self.sent.push_back(out);
            if self.sent.len() > REMEMBERED {
                self.sent.pop_front();
            }
        }
        while let Some(event) = self.client.poll_event() {
            match event {
                Event::Answered { id, answer } => {
                    assert!(self.open.remove(&id).is_some(), "an event of a request that has ended");
                    _ = (answer.record::<NodeRecord>().is_ok(), answer.table::<NodeRecord>().is_ok());
                }
                Event::Failed { id, error } => {
                    assert!(self.open.remove(&id).is_some(), "an event of a request that has ended: {error}");
                }
                _ => {}
            }
        }
        assert_eq!(self.client.pending(), self.open.len());
        assert_eq!(self.client.poll_timeout().is_some(), !self.open.is_empty());
        let late = self.open.values().any(|deadline| *deadline + LONGEST < self.now);
        assert!(!late, "a request outlives its deadline");
    }

    /// Nobody answers any more: all ends.
    fn end(mut self) {
        let mut times = BTreeSet::new();
        while let Some(at) = self.client.poll_timeout() {
            self.now = self.now.max(at);
            times.insert(self.now);
            assert!(times.len() < 100 * QUEUE, "it does not end");
            self.client.handle_timeout(self.now);
            self.drain();
        }
        assert!(self.open.is_empty());
        self.client.set_sa(self.now, None, Vec::new());
        assert!(self.client.poll_transmit().is_none());
    }
}

/// What an SA and its client say to each other, and what OpenSM said.
pub fn seeds() -> Vec<Seed> {
    let head = [16, 5, 0, 100, 4, 64, 1, 1];
    let scripts: [(&str, &[u8]); 8] = [
        ("answered", &[0, 0xff, 0, 0, 0, 4, 1, 0, 0]),
        ("busy", &[0, 0xff, 0, 0, 0, 4, 1, 0, 1, 6, 2, 0]),
        ("redirected", &[0, 0xff, 0, 0, 0, 4, 1, 0, 2, 3, 1, 1, 1, 0]),
        ("silent", &[0, 0xff, 0, 2, 0, 4, 6, 1, 0, 6, 2, 0]),
        ("table", &[0, 0xff, 0, 2, 0, 4, 3, 0, 30, 4, 0, 31, 5, 1, 0, 1, 9]),
        ("several", &[0, 0xff, 0, 5, 30, 2, 5, 0, 0, 1, 9, 5, 1, 0, 4, 9, 3, 0, 0, 3]),
        ("cancelled", &[0, 0xff, 0, 2, 0, 4, 3, 0, 30, 7, 0]),
        ("moved", &[0, 0xff, 0, 0, 0, 4, 8, 2, 0xff, 0xff, 1, 1, 0]),
    ];
    let mut seeds: Vec<_> = scripts
        .iter()
        .map(|(name, script)| Seed {
            name: (*name).to_owned(),
            bytes: [&head[..], &script.repeat(20)].concat(),
        })
        .collect();
    for capture in seeds::sa_captures() {
        let request = [0, 0xff, 0, 2, 0, 4, 9, 0x1f, 0];
        seeds.push(Seed { name: capture.name, bytes: [&head[..], &request, &capture.bytes].concat() });
    }
    seeds
}
