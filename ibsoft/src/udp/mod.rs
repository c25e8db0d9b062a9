//! RoCEv2 over plain UDP sockets: no privileges, no RDMA hardware, and Linux's rdma_rxe or a real NIC may be at the
//! other end.
//!
//! One unconnected socket for each address. What the kernel writes into the IP header is known in advance, so the
//! ICRC is right (spec/softhca.md 1.10). What a UDP socket does not let through: DSCP and hop limit of an address
//! vector (ECN bits pass), and hop limit, DSCP and flow label of what arrives (taken for 64, 0 and 0).

mod address;
mod backoff;
mod capture;
mod counters;
mod group;
mod icrc;
mod intake;
mod link;
mod outbox;
mod receive;
mod socket;
mod task;
#[cfg(test)]
mod tests;
mod transmit;
mod watched;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ibdev::{DeviceError, GidEntry, GidKind, LinkLayer, PortAttr, PortState};
use ibwire::packet::UdpHeader;
use ibwire::{Guid, Lid, Mtu, PKey, Rate, ServiceLevel};
use rand::TryRng;
use rand::rngs::SysRng;
use tokio::sync::watch;

use self::address::LocalAddress;
use self::capture::Capture;
use self::link::{Io, UdpLink};
use self::socket::RoceSocket;
use crate::device::{Core, SoftDevice};
use crate::engine::{Config, Engine, PortConfig, device_attr};

/// How to open a device over UDP.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UdpConfig {
    /// The addresses of each port: its GID table, in this order. No port: one with the lowest 127.0.0.N that is free, so
    /// nothing outside this machine reaches the device.
    pub ports: Vec<Vec<IpAddr>>,
    /// UDP port, 4791 unless set. With another one it talks to soft devices with the same port only.
    pub port: u16,
    /// Seed of QP numbers, PSNs and all else that is random; from the operating system unless set.
    pub rng_seed: Option<[u8; 32]>,
    /// File for all packets, sent and received, to be read by Wireshark.
    pub pcap: Option<PathBuf>,
    /// The device's name; `soft:` and its addresses unless set.
    pub name: Option<String>,
}

impl UdpConfig {
    /// A device with one port at these addresses, or at a free one of loopback if there are none.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let addresses = Vec::from_iter(addresses);
        Self::with_ports(if addresses.is_empty() { Vec::new() } else { vec![addresses] })
    }

    /// A device whose ports have these addresses.
    pub fn with_ports(ports: Vec<Vec<IpAddr>>) -> Self {
        Self { ports, port: UdpHeader::ROCE_PORT, rng_seed: None, pcap: None, name: None }
    }
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self::new([])
    }
}

impl SoftDevice {
    /// Opens a device over UDP. Its I/O task runs on the current tokio runtime, which needs time and I/O enabled.
    ///
    /// [`Device::close`](ibdev::Device::close) closes it: when that returns, its addresses can be bound again. Dropping
    /// the last handle does the same in the background. Packets that are left then, because a socket is full, are sent
    /// if there is room within a second; what could not be sent is counted (`link_drop_tx_closed`) and reported as a
    /// warning, since nobody may be left to read the counter. A socket that gives nothing but errors for ten seconds
    /// ends the device, too ([`DeviceEvent::Gone`](ibdev::DeviceEvent::Gone), `link_rx_failed_sockets`).
    ///
    /// The node GUID depends on the first address and the port only.
    ///
    /// # Errors
    /// [`DeviceError::NoRuntime`] outside a tokio runtime; [`DeviceError::InUse`] if the UDP port is taken, with who
    /// may hold it and what to do; [`DeviceError::Permission`]; [`DeviceError::Os`], for example for an address that is
    /// not this machine's or a pcap file that cannot be created; [`DeviceError::Unsupported`] for a multicast or
    /// unspecified address, for a port without an address or with that of another port, and while tokio's clock is paused: packets over UDP do not wait for virtual time.
    ///
    /// # Panics
    /// If the runtime has I/O disabled.
    pub fn bind(config: UdpConfig) -> Result<Self, DeviceError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| DeviceError::NoRuntime)?;
        if clock_is_paused() {
            return Err(DeviceError::Unsupported {
                what: "UDP while tokio's clock is paused (a Subnet can do that)",
            });
        }
        let seed = match config.rng_seed {
            Some(seed) => seed,
            None => random_seed()?,
        };
        let (ports, sockets) = bind_all(&config)?;
        let capture = config.pcap.as_deref().map(Capture::create).transpose()?;

        let mtu = ports.iter().flatten().map(LocalAddress::mtu).min().unwrap_or(Mtu::B256);
        let name = config.name.unwrap_or_else(|| default_name(&ports));
        let guid = node_guid(ports[0][0].ip, config.port);
        let attr = device_attr(name, guid, ports.len() as u8);
        let engine_ports = ports.iter().map(|addresses| port(addresses, mtu)).collect();
        let mut engine_config = Config::new(attr, engine_ports, seed);
        let recv_buffer = sockets.iter().map(|socket| socket.recv_buffer).min().unwrap_or(0);
        engine_config.window = windows(recv_buffer);

        let io = Io::new(sockets, capture, config.port);
        Ok(Self::start(engine_config, io, mtu, &runtime))
    }

    /// A device with its I/O task.
    fn start(config: Config, io: Io, mtu: Mtu, runtime: &tokio::runtime::Handle) -> Self {
        let (open, closed) = watch::channel(());
        let io = Arc::new(io);
        let link = UdpLink::new(io.clone(), mtu, closed, runtime.clone());
        let now = tokio::time::Instant::now().into_std();
        let core = Arc::new(Core::new(Engine::new(config), Box::new(link), now));
        runtime.spawn(task::run(Arc::downgrade(&core), io, open));
        Self::new(core)
    }
}

/// Most ports of a device; hardware has one or two.
const MOST_PORTS: usize = 8;

/// At least one port, each with at least one address.
type Ports = Vec<Vec<LocalAddress>>;

fn bind_all(config: &UdpConfig) -> Result<(Ports, Vec<RoceSocket>), DeviceError> {
    if config.ports.is_empty() {
        let (address, socket) = socket::bind_free_loopback(config.port)?;
        return Ok((vec![vec![address]], vec![socket]));
    }
    if config.ports.len() > MOST_PORTS {
        let (value, limit) = (config.ports.len() as u64, MOST_PORTS as u64);
        return Err(DeviceError::Limit { what: "ports", value, limit });
    }
    let (mut ports, mut sockets) = (Ports::new(), Vec::new());
    for (addresses, number) in config.ports.iter().zip(1..) {
        let mut port: Vec<LocalAddress> = Vec::new();
        for ip in addresses.iter().map(IpAddr::to_canonical) {
            if ip.is_unspecified() || ip.is_multicast() {
                return Err(DeviceError::Unsupported { what: "an unspecified or multicast address" });
            }
            if ports.iter().flatten().any(|address| address.ip == ip) {
                return Err(DeviceError::Unsupported { what: "an address on two ports" });
            }
            if port.iter().all(|address| address.ip != ip) {
                let address = LocalAddress::look_up(ip);
                sockets.push(RoceSocket::bind(&address, config.port)?.of_port(number));
                port.push(address);
            }
        }
        if port.is_empty() {
            return Err(DeviceError::Unsupported { what: "a port without an address" });
        }
        ports.push(port);
    }
    Ok((ports, sockets))
}

fn port(addresses: &[LocalAddress], mtu: Mtu) -> PortConfig {
    let gids = addresses.iter().zip(0..).map(|(address, index)| GidEntry {
        index,
        gid: address.ip.into(),
        kind: GidKind::RoceV2,
    });
    PortConfig {
        attr: PortAttr {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            active_mtu: mtu,
            lid: Lid::NONE,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Rate::PORT_CURRENT,
        },
        gids: gids.collect(),
        pkeys: vec![PKey::DEFAULT],
    }
}

fn default_name(ports: &Ports) -> String {
    let port = |addresses: &Vec<LocalAddress>| {
        let ips: Vec<_> = addresses.iter().map(|address| address.ip.to_string()).collect();
        ips.join(",")
    };
    let ports: Vec<_> = ports.iter().map(port).collect();
    format!("soft:{}", ports.join("+"))
}

/// Packets in flight by their path MTU, 256 to 4096: what a peer with as large a receive buffer as ours can hold, but no more
/// than keeps it busy while an acknowledgement is on its way and its reader is woken. The kernel charges a buffer for the
/// memory around a packet, too (spec/softhca.md 6.1, 6.2).
fn windows(recv_buffer: usize) -> [u16; 5] {
    /// Bytes that the kernel charges for a packet.
    const CHARGED: [usize; 5] = [2304, 2304, 2304, 4352, 8448];
    /// A mebibyte in the longest packets.
    const MOST: usize = 256 * CHARGED[4];
    /// Eight calls of the shorter ones.
    const MOST_PACKETS: usize = 512;
    CHARGED.map(|charged| (recv_buffer.min(MOST) / charged).clamp(4, MOST_PACKETS) as u16)
}

/// A locally administered GUID, always the same for an address and a port (FNV-1a).
fn node_guid(ip: IpAddr, port: u16) -> Guid {
    const LOCAL: u64 = 0x02 << 56;
    const GROUP: u64 = 0x01 << 56;
    let octets = ibwire::Gid::from_ip(ip).0;
    let hash = octets.iter().chain(&port.to_be_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, &octet| {
        (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3)
    });
    Guid(hash & !GROUP | LOCAL)
}

fn random_seed() -> Result<[u8; 32], DeviceError> {
    let mut seed = [0; 32];
    SysRng
        .try_fill_bytes(&mut seed)
        .map_err(|error| DeviceError::os("read random numbers", std::io::Error::other(error)))?;
    Ok(seed)
}

/// Whether tokio's clock stands still while the real one goes on.
fn clock_is_paused() -> bool {
    let (virtual_start, real_start) = (tokio::time::Instant::now(), Instant::now());
    while real_start.elapsed() < std::time::Duration::from_micros(2) {
        std::hint::spin_loop();
    }
    tokio::time::Instant::now() == virtual_start
}
