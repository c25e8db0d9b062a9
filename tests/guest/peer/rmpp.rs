//! Transfers of several MADs by the engines of ibsa on the software HCA; the other end is `python/rmpp_peer.py`, whose
//! transfers the kernel does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ibdev::{
    AddressVector, AgentSpec, Device, GlobalRoute, MAD_LEN, MadAddr, MadAgent, OutgoingMad, ReceivedMad,
};
use ibsa::Config;
use ibsa::mad::{RmppType, SaHeader};
use ibsa::proto::client::{Client, Event, Request};
use ibsa::proto::rmpp::{Mad, RmppConfig, RmppError, Sender, Sent};
use ibsa::record::{NodeRecord, Template};
use ibsoft::{SoftDevice, UdpConfig};
use ibwire::mad::{MadStatus, Method, MgmtClass};
use ibwire::{FlowLabel, Gid, Lid, PKey, QKey, Qpn, Rate, ServiceLevel, TransactionId};

use crate::Error;

/// How long one transfer may take: each segment that is lost costs the kernel 2 s.
const DEADLINE: Duration = Duration::from_secs(120);

/// Segments of the longest answer to a request of several.
const ECHO_SEGMENTS: usize = 66;

/// Who asks whom for how much.
#[derive(Debug, Clone, Args)]
pub struct Rmpp {
    /// Our address.
    us: IpAddr,
    /// The kernel's.
    kernel: IpAddr,
    role: Role,
    /// Segments of each transfer.
    segments: Vec<usize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Asks,
    Answers,
}

/// The bytes that both ends know, without asking.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// Not all of the last segment is used.
fn length_of(segments: usize) -> usize {
    SaHeader::DATA_LEN * segments - 8
}

fn limits() -> RmppConfig {
    let mut config = RmppConfig::default();
    (config.resend, config.retries, config.total) = (Duration::from_millis(200), 40, DEADLINE);
    config
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Rmpp {
    /// Says its part, and that all was right.
    pub async fn run(self) -> Result<(), Error> {
        let device = SoftDevice::bind(UdpConfig::new([self.us]))?;
        let methods: &[Method] = match self.role {
            Role::Asks => &[],
            Role::Answers => &[Method::GET_TABLE],
        };
        let (class, class_version) = (MgmtClass::SA, SaHeader::CLASS_VERSION);
        let agent = device.open_agent(AgentSpec { port: 1, class, class_version, methods })?;
        let mut wire = Wire { agent, outbox: VecDeque::new(), inbox: Vec::new() };
        match self.role {
            Role::Asks => {
                let us = Gid::from_ip(self.us);
                let index = device.gids(1)?.iter().find(|entry| entry.gid == us).ok_or("no such GID")?.index;
                asks(&mut wire, address(Gid::from_ip(self.kernel), index), &self.segments).await?;
            }
            Role::Answers => answers(&mut wire, self.segments.len()).await?,
        }
        println!("right");
        Ok(())
    }
}

fn address(dgid: Gid, sgid_index: u16) -> MadAddr {
    let flow_label = FlowLabel::default();
    let grh = GlobalRoute { dgid, sgid_index, flow_label, hop_limit: 64, traffic_class: 0 };
    let av = AddressVector {
        port: 1,
        dlid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: Some(grh),
    };
    MadAddr { av, qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 }
}

/// MADs out and in.
#[derive(Debug)]
struct Wire {
    agent: Box<dyn MadAgent>,
    outbox: VecDeque<OutgoingMad>,
    inbox: Vec<ReceivedMad>,
}

impl Wire {
    /// Sends what is to be sent, and waits until something has come or it is time.
    async fn turn(&mut self, until: Option<Instant>) -> Result<Vec<ReceivedMad>, Error> {
        self.agent.send(&mut self.outbox)?;
        let (agent, inbox, waits) = (&self.agent, &mut self.inbox, !self.outbox.is_empty());
        let time = async {
            match until {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = poll_fn(|cx| agent.poll_recv(cx, inbox, 64)) => received?,
            ready = poll_fn(|cx| agent.poll_ready(cx)), if waits => ready?,
            () = time => {}
        }
        Ok(std::mem::take(&mut self.inbox))
    }
}

/// Asks for tables, then with requests that are as long.
async fn asks(wire: &mut Wire, kernel: MadAddr, segments: &[usize]) -> Result<(), Error> {
    let mut config = Config::default();
    (config.first_timeout, config.tries, config.rmpp) = (Duration::from_secs(1), 10, limits());
    let mut client = Client::new(config, [7; 32]);
    client.set_sa(now(), Some(kernel), vec![PKey::DEFAULT]);
    for method in [Method::GET_TABLE, Method::GET_MULTI] {
        for &count in segments {
            let len = length_of(count);
            let mut request = Request::new(method, Template::<NodeRecord>::new(), now() + DEADLINE)?;
            request.data = match method {
                Method::GET_MULTI => pattern(len),
                _ => (len as u32).to_be_bytes().to_vec(),
            };
            client.request(now(), request)?;
            let answer = match ended(wire, &mut client).await? {
                Event::Answered { answer, .. } => answer,
                Event::Failed { error, .. } => {
                    return Err(format!("{method} of {count} segments: {error:?}").into());
                }
                other => return Err(format!("{other:?}").into()),
            };
            let echo = length_of(ECHO_SEGMENTS);
            let len = if method == Method::GET_MULTI { len.min(echo) } else { len };
            if !answer.complete || answer.data != pattern(len) {
                return Err(format!("{method} of {count} segments: {} bytes", answer.data.len()).into());
            }
            println!("{method} of segments: {count}");
        }
    }
    Ok(())
}

/// Runs the client until its request has ended.
async fn ended(wire: &mut Wire, client: &mut Client) -> Result<Event, Error> {
    loop {
        client.handle_timeout(now());
        wire.outbox.extend(std::iter::from_fn(|| client.poll_transmit()));
        if let Some(event) = client.poll_event() {
            wire.agent.send(&mut wire.outbox)?;
            return Ok(event);
        }
        for ReceivedMad { from, mad } in wire.turn(client.poll_timeout()).await? {
            client.handle(now(), &from, &mad);
        }
    }
}

/// A table on its way.
#[derive(Debug)]
struct Table {
    to: MadAddr,
    sender: Sender,
    /// The segment that was sent last.
    last: Option<Mad>,
}

/// Answers so many requests with the tables that they ask for. Says what is not acknowledged, and what is once more: when a
/// table is acknowledged its last segment is sent again.
async fn answers(wire: &mut Wire, count: usize) -> Result<(), Error> {
    let mut tables: BTreeMap<u64, Table> = BTreeMap::new();
    let mut known = BTreeSet::new();
    println!("listening");
    loop {
        let mut unacknowledged = Vec::new();
        for (tid, Table { to, sender, last }) in &mut tables {
            match sender.handle_timeout(now()) {
                Sent::Failed(RmppError::Unacknowledged { segment }, _) if segment == sender.segments() => {
                    println!("unacknowledged");
                    unacknowledged.push(*tid);
                    continue;
                }
                Sent::Failed(error, _) => return Err(error.into()),
                Sent::Going | Sent::Done => {}
            }
            while let Some(mad) = sender.poll_transmit(now()) {
                *last = Some(mad);
                wire.outbox.push_back(OutgoingMad { to: *to, mad });
            }
        }
        tables.retain(|tid, _| !unacknowledged.contains(tid));
        if known.len() == count && tables.is_empty() {
            return Ok(());
        }
        let until = tables.values().filter_map(|table| table.sender.poll_timeout()).min();
        for received in wire.turn(until).await? {
            let header = SaHeader::parse(&received.mad)?;
            let TransactionId(tid) = header.mad.tid;
            if header.rmpp.kind == RmppType::NONE {
                if known.insert(tid) {
                    let (to, sender) = (received.from.reply(), table(&header, &received.mad)?);
                    tables.insert(tid, Table { to, sender, last: None });
                }
                continue;
            }
            match tables.get_mut(&tid).map(|table| table.sender.handle(now(), &header)) {
                Some(Sent::Done) => {
                    let table = tables.remove(&tid);
                    let again = table.and_then(|Table { to, last, .. }| Some(OutgoingMad { to, mad: last? }));
                    wire.outbox.extend(again);
                }
                Some(Sent::Failed(error, _)) => return Err(error.into()),
                Some(Sent::Going) => {}
                None => println!("acknowledged again"),
            }
        }
    }
}

/// The answer to a request, which says how many bytes it wants.
fn table(request: &SaHeader, mad: &[u8; MAD_LEN]) -> Result<Sender, Error> {
    let wanted: [u8; 4] = mad[SaHeader::LEN..SaHeader::LEN + 4].try_into()?;
    let header = SaHeader { mad: request.mad.response(MadStatus::OK), attribute_offset: 1, ..*request };
    Ok(Sender::new(header, pattern(u32::from_be_bytes(wanted) as usize), &limits())?)
}
