//! What an engine is made with.

use ibdev::{DeviceAttr, GidEntry, PortAttr};
use ibwire::{Guid, PKey};

/// The attributes of a device with `ports` ports and the limits of this engine; set what differs.
pub fn device_attr(name: impl Into<String>, node_guid: Guid, ports: u8) -> DeviceAttr {
    let mut attr = DeviceAttr::new(name, node_guid, ports);
    (attr.max_sge, attr.max_inline_data) = (16, 256);
    (attr.max_srq_wr, attr.atomics, attr.path_migration) = (16_384, true, true);
    attr
}

/// What an [`Engine`](super::Engine) is made with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The device: its limits are the engine's.
    pub device: DeviceAttr,
    /// The ports in order, the first is port 1.
    pub ports: Vec<PortConfig>,
    /// Most QPs at a time.
    pub max_qps: u32,
    /// Most protection domains at a time.
    pub max_domains: u32,
    /// Most memory regions at a time.
    pub max_regions: u32,
    /// Most shared receive queues at a time.
    pub max_srqs: u32,
    /// Packets that a connected QP has in flight at most, 1..=65535, by its path MTU: of 256, 512, 1024, 2048 and 4096 bytes.
    /// Keep it below what the peer's receive buffer holds (spec/softhca.md 6.2).
    pub window: [u16; 5],
    /// MADs of one agent that wait for the link at most.
    pub mad_send_window: usize,
    /// Received MADs that wait for one agent at most; more are dropped and counted.
    pub mad_recv_queue: usize,
    /// Seed of everything random.
    pub rng_seed: [u8; 32],
}

impl Config {
    /// A device with `ports` and a window of 64 packets; set what differs.
    pub fn new(device: DeviceAttr, ports: Vec<PortConfig>, rng_seed: [u8; 32]) -> Self {
        Self {
            device,
            ports,
            max_qps: 1 << 17,
            max_domains: 1 << 16,
            max_regions: 1 << 18,
            max_srqs: 1 << 16,
            window: [64; 5],
            mad_send_window: 128,
            mad_recv_queue: 4096,
            rng_seed,
        }
    }
}

/// A port of an engine at the start.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Its attributes. The number is set from its position.
    pub attr: PortAttr,
    /// Its GID table.
    pub gids: Vec<GidEntry>,
    /// Its P_Key table; the position is the index.
    pub pkeys: Vec<PKey>,
}
