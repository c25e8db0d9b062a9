//! A port with an SA behind it that lives in this process: it keeps groups, services and subscriptions as OpenSM does, and
//! is silent, slow or busy when it is told to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use ibdev::{
    AgentSpec, CompletionQueue, Device, DeviceAttr, DeviceError, DeviceEvent, GidEntry, GidKind, LinkLayer,
    MadAgent, MadSource, OutgoingMad, PortAttr, PortState, PortTables, ProtectionDomain, ReceivedMad,
};
use ibsa::mad::{RmppHeader, RmppType, SaHeader, attribute_offset};
use ibsa::record::{
    InformInfo, JoinState, Layout, McMemberRecord, PathRecord, ProxyJoin, Record, ServiceRecord,
};
use ibsa::{Client, Config};
use ibwire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, Qpn, Rate, Selector, ServiceLevel, TransactionId};
use tokio::sync::mpsc;

/// Where the SA is at first.
pub(crate) const SM: Lid = Lid(1);
/// The GID of the port.
pub(crate) const HERE: Gid = Gid::link_local(Guid(0xb));

/// The device, shared with the test.
#[derive(Debug, Clone)]
pub(crate) struct Fake(Arc<Mutex<World>>);

#[derive(Debug)]
pub(crate) struct World {
    attr: DeviceAttr,
    pub tables: PortTables,
    /// How often the next reads of the port fail.
    pub unreadable: u32,
    to_client: Option<mpsc::UnboundedSender<ReceivedMad>>,
    /// Every request that came, the last one last.
    pub log: Vec<Seen>,
    pub mood: Mood,
    /// Groups and how the port is in them.
    pub groups: BTreeMap<Gid, McMemberRecord>,
    next_mlid: u16,
    next_mgid: u8,
    pub services: BTreeMap<Vec<u8>, ServiceRecord>,
    pub subscriptions: BTreeSet<u16>,
    /// What the SA answers to queries for several paths.
    pub paths: Vec<PathRecord>,
    /// What it answers to queries for all records of an attribute: the table and how far its records are apart.
    pub others: BTreeMap<AttributeId, (u16, Vec<u8>)>,
    next_report: u64,
    /// Acknowledged notices.
    pub acknowledged: u32,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub method: Method,
    pub attribute: AttributeId,
    pub mask: u64,
    pub data: Vec<u8>,
    pub sl: ServiceLevel,
    pub pkey_index: u16,
}

/// How the SA answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Prompt,
    Silent,
    Busy,
    Slow(Duration),
    Refuses(MadStatus),
}

impl Fake {
    pub(crate) fn new() -> Self {
        let attr = PortAttr {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::InfiniBand,
            active_mtu: Mtu::B4096,
            lid: Lid(2),
            lmc: 0,
            sm_lid: SM,
            sm_sl: ServiceLevel::truncate(5),
            rate: Rate::GBPS_10,
        };
        let gids = vec![GidEntry { index: 0, gid: HERE, kind: GidKind::Infiniband }];
        Self(Arc::new(Mutex::new(World {
            attr: DeviceAttr::new("fake", Guid(0xb), 1),
            tables: PortTables { attr, gids, pkeys: vec![PKey::DEFAULT] },
            unreadable: 0,
            to_client: None,
            log: Vec::new(),
            mood: Mood::Prompt,
            groups: BTreeMap::new(),
            next_mlid: 0xc000,
            next_mgid: 0,
            services: BTreeMap::new(),
            subscriptions: BTreeSet::new(),
            paths: Vec::new(),
            others: BTreeMap::new(),
            next_report: 0x02da_b000,
            acknowledged: 0,
        })))
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(Config::default())
    }

    pub(crate) fn client_with(&self, config: Config) -> Client {
        Client::new(
            Arc::new(FakeDevice { world: self.clone(), attr: self.with(|w| w.attr.clone()) }),
            1,
            config,
            [3; 32],
        )
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    /// How many requests of this kind came.
    pub(crate) fn count(&self, method: Method, attribute: AttributeId) -> usize {
        self.with(|w| {
            w.log.iter().filter(|seen| (seen.method, seen.attribute) == (method, attribute)).count()
        })
    }

    /// The requests of this kind with their join states.
    pub(crate) fn memberships(&self) -> Vec<(Method, u8)> {
        let of = |seen: &Seen| {
            (seen.attribute == McMemberRecord::ATTRIBUTE)
                .then(|| (seen.method, McMemberRecord::parse(&seen.data).unwrap().join_state.bits()))
        };
        self.with(|w| w.log.iter().filter_map(of).collect())
    }

    /// An SM that knows nothing takes over.
    pub(crate) fn new_sm(&self, lid: Lid) {
        self.with(|w| {
            w.tables.attr.sm_lid = lid;
            w.groups.clear();
            w.services.clear();
            w.subscriptions.clear();
            w.next_mlid += 0x10;
        });
    }

    /// The SA at this LID reports a trap about a GID.
    pub(crate) fn report(&self, from: Lid, trap: u16, gid: Gid) {
        self.notice(from, 0x83, trap, gid);
    }

    /// It reports what a device of a vendor says, with the device's number where the trap's would be.
    pub(crate) fn report_of_vendor(&self, from: Lid, device: u16) {
        self.notice(from, 0x03, device, HERE);
    }

    fn notice(&self, from: Lid, kind: u8, trap: u16, gid: Gid) {
        self.with(|w| {
            w.next_report += 1;
            let tid = TransactionId(w.next_report);
            let header = MadHeader::new(MgmtClass::SA, 2, Method::REPORT, AttributeId::NOTICE, tid);
            let mut data = [0; 80];
            data[..4].copy_from_slice(&[kind, 0, 0, 4]);
            data[4..6].copy_from_slice(&trap.to_be_bytes());
            data[16..32].copy_from_slice(&gid.0);
            w.deliver(from, &SaHeader::new(header), &data);
        });
    }
}

impl World {
    /// Makes a group that another port is in.
    pub(crate) fn make_group(&mut self, mgid: Gid) {
        let mlid = Lid(self.next_mlid);
        self.next_mlid += 1;
        self.groups.insert(mgid, McMemberRecord { mgid, mlid, ..McMemberRecord::default() });
    }

    fn deliver(&self, slid: Lid, header: &SaHeader, data: &[u8]) {
        let mut mad = [0; 256];
        mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
        mad[SaHeader::LEN..SaHeader::LEN + data.len()].copy_from_slice(data);
        let sl = ServiceLevel::default();
        let from = MadSource { port: 1, slid, sl, path_bits: 0, qpn: Qpn::GSI, pkey_index: 0, grh: None };
        if let Some(to_client) = &self.to_client {
            _ = to_client.send(ReceivedMad { from, mad }); // the client may be over
        }
    }

    /// The answer to a request.
    fn answer(&mut self, header: &SaHeader, data: &[u8]) -> (MadStatus, Vec<u8>) {
        match header.mad.attribute {
            _ if self.mood == Mood::Busy => (MadStatus(1), Vec::new()),
            _ if matches!(self.mood, Mood::Refuses(_)) => {
                let Mood::Refuses(status) = self.mood else { unreachable!() };
                (status, Vec::new())
            }
            PathRecord::ATTRIBUTE if header.mad.method == Method::GET_TABLE => {
                (MadStatus::OK, self.paths.iter().flat_map(Layout::to_bytes).collect())
            }
            PathRecord::ATTRIBUTE => {
                let path = PathRecord {
                    dlid: Lid(9),
                    slid: Lid(2),
                    mtu: Mtu::B2048,
                    ..<PathRecord as Layout>::parse(data).unwrap()
                };
                (MadStatus::OK, Layout::to_bytes(&path))
            }
            McMemberRecord::ATTRIBUTE => self.member(header, McMemberRecord::parse(data).unwrap()),
            ServiceRecord::ATTRIBUTE => self.service(header, data),
            InformInfo::ATTRIBUTE => {
                let info = InformInfo::parse(data).unwrap();
                match info.subscribe {
                    1 => _ = self.subscriptions.insert(info.trap_or_device),
                    _ => _ = self.subscriptions.remove(&info.trap_or_device),
                }
                (MadStatus::OK, info.to_bytes())
            }
            other => (MadStatus::OK, self.others[&other].1.clone()),
        }
    }

    fn member(&mut self, header: &SaHeader, asked: McMemberRecord) -> (MadStatus, Vec<u8>) {
        const INVALID: MadStatus = MadStatus(0x0200);
        assert_eq!(asked.port_gid, HERE);
        let makes = header.component_mask & 0x130c7 == 0x130c7 && asked.join_state.bits() & 9 != 0;
        if header.mad.method == Method::DELETE {
            assert_eq!(header.component_mask, 0x10003);
            let Some(group) = self.groups.get_mut(&asked.mgid) else { return (INVALID, Vec::new()) };
            if !group.join_state.contains(asked.join_state) {
                return (INVALID, Vec::new());
            }
            group.join_state -= asked.join_state;
            let left = group.clone();
            if left.join_state.bits() & 9 == 0 {
                self.groups.remove(&asked.mgid);
            }
            return (MadStatus::OK, left.to_bytes());
        }
        let mut mgid = asked.mgid;
        let assigned = mgid.0[..4] == [0xff, 0x12, 0xa0, 0x1b];
        if makes && mgid.is_unspecified() {
            mgid.0[..4].copy_from_slice(&[0xff, 0x12, 0xa0, 0x1b]);
            mgid.0[12] = self.next_mgid;
            self.next_mgid += 1;
        } else if !self.groups.contains_key(&mgid) && (!makes || assigned) {
            return (if makes { INVALID } else { MadStatus(0x0600) }, Vec::new());
        }
        if !self.groups.contains_key(&mgid) {
            self.make_group(mgid);
            let group = self.groups.get_mut(&mgid).unwrap();
            *group = McMemberRecord {
                mgid,
                mlid: group.mlid,
                mtu_selector: Selector::Exactly,
                mtu: Mtu::B2048,
                join_state: JoinState::empty(),
                proxy_join: ProxyJoin(false),
                ..asked.clone()
            };
        }
        let group = self.groups.get_mut(&mgid).unwrap();
        group.join_state |= asked.join_state;
        group.port_gid = HERE;
        (MadStatus::OK, group.to_bytes())
    }

    fn service(&mut self, header: &SaHeader, data: &[u8]) -> (MadStatus, Vec<u8>) {
        let record = ServiceRecord::parse(data).unwrap();
        let key = data[..26].to_vec();
        match header.mad.method {
            Method::GET_TABLE => {
                let found = self.services.values().find(|one| one.service_id == record.service_id);
                (MadStatus::OK, found.map(Layout::to_bytes).unwrap_or_default())
            }
            Method::DELETE => match self.services.remove(&key) {
                Some(record) => (MadStatus::OK, record.to_bytes()),
                None => (MadStatus(0x0300), Vec::new()),
            },
            _ => {
                assert_eq!(header.component_mask & 7, 7, "spec/sa.md T72");
                self.services.insert(key, record.clone());
                (MadStatus::OK, record.to_bytes())
            }
        }
    }
}

#[derive(Debug)]
struct FakeDevice {
    world: Fake,
    attr: DeviceAttr,
}

#[async_trait]
impl Device for FakeDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn port(&self, _port: u8) -> Result<PortAttr, DeviceError> {
        self.world.with(|w| match w.unreadable {
            0 => Ok(w.tables.attr),
            _ => {
                w.unreadable -= 1;
                Err(DeviceError::os("reading the port", std::io::Error::other("not now")))
            }
        })
    }

    fn gids(&self, _port: u8) -> Result<Vec<GidEntry>, DeviceError> {
        Ok(self.world.with(|w| w.tables.gids.clone()))
    }

    fn pkeys(&self, _port: u8) -> Result<Vec<PKey>, DeviceError> {
        Ok(self.world.with(|w| w.tables.pkeys.clone()))
    }

    fn open_agent(&self, spec: AgentSpec) -> Result<Box<dyn MadAgent>, DeviceError> {
        assert_eq!((spec.port, spec.class, spec.methods), (1, MgmtClass::SA, &[Method::REPORT][..]));
        let (to_client, received) = mpsc::unbounded_channel();
        self.world.with(|w| w.to_client = Some(to_client));
        Ok(Box::new(FakeAgent { world: self.world.clone(), received: Mutex::new(received) }))
    }

    fn poll_event(&self, _cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        Poll::Pending
    }

    async fn create_cq(&self, _capacity: u32) -> Result<Arc<dyn CompletionQueue>, DeviceError> {
        Err(DeviceError::Unsupported { what: "all but MADs" })
    }

    fn domain(&self) -> Arc<dyn ProtectionDomain> {
        unreachable!("only MADs")
    }

    async fn create_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        Err(DeviceError::Unsupported { what: "all but MADs" })
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[derive(Debug)]
struct FakeAgent {
    world: Fake,
    received: Mutex<mpsc::UnboundedReceiver<ReceivedMad>>,
}

impl FakeAgent {
    fn handle(&self, out: &OutgoingMad) {
        let header = SaHeader::parse(&out.mad).unwrap();
        let data = &out.mad[SaHeader::LEN..];
        if header.mad.method == Method(0x86) {
            return self.world.with(|w| w.acknowledged += 1);
        }
        if header.rmpp.is_active() {
            return; // an ACK of a table
        }
        let (lid, mood) = self.world.with(|w| {
            let SaHeader { mad, component_mask, .. } = header;
            let (method, attribute) = (mad.method, mad.attribute);
            let seen = Seen {
                method,
                attribute,
                mask: component_mask,
                data: data.to_vec(),
                sl: out.to.av.sl,
                pkey_index: out.to.pkey_index,
            };
            w.log.push(seen);
            (w.tables.attr.sm_lid, w.mood)
        });
        if mood == Mood::Silent || out.to.av.dlid != lid {
            return;
        }
        let (status, data) = self.world.with(|w| w.answer(&header, data));
        let mut answer = SaHeader { mad: header.mad.response(status), ..header };
        if header.mad.method == Method::GET_TABLE && status == MadStatus::OK {
            answer.rmpp = RmppHeader {
                version: RmppHeader::VERSION,
                kind: RmppType::DATA,
                flags: 7,
                segment: 1,
                length_or_window: 20 + data.len() as u32,
                ..RmppHeader::default()
            };
            answer.attribute_offset = match header.mad.attribute {
                _ if data.is_empty() => 0,
                PathRecord::ATTRIBUTE => attribute_offset::<PathRecord>(),
                ServiceRecord::ATTRIBUTE => attribute_offset::<ServiceRecord>(),
                other => self.world.with(|w| w.others[&other].0),
            };
        }
        let world = self.world.clone();
        match mood {
            Mood::Slow(time) => {
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    world.with(|w| w.deliver(lid, &answer, &data));
                });
            }
            _ => world.with(|w| w.deliver(lid, &answer, &data)),
        }
    }
}

impl MadAgent for FakeAgent {
    fn send(&self, batch: &mut VecDeque<OutgoingMad>) -> Result<(), DeviceError> {
        batch.drain(..).for_each(|out| self.handle(&out));
        Ok(())
    }

    fn poll_ready(&self, _cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<ReceivedMad>,
        max: usize,
    ) -> Poll<Result<(), DeviceError>> {
        self.received.lock().unwrap().poll_recv_many(cx, out, max).map(|_| Ok(()))
    }
}
