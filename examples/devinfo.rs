//! What RDMA devices are here, what can be opened, and why not.
//!
//! ```text
//! cargo run --example devinfo                      without the feature `verbs` it lists, and opens software HCAs only
//! cargo run --features verbs --example devinfo
//! cargo run --features verbs --example devinfo -- --device rxe0
//! ```
//!
//! With `--device` that one is opened, in which case its limits and counters are shown, and whether it can listen.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use examples::chain;
use ibcm::{DeviceInfo, Gid, GidEntry, GidKind, Hca, Lid, Listener, ServiceId};

/// Lists the RDMA devices of this machine; with a device it opens that one.
#[derive(Debug, Parser)]
struct Args {
    /// The device to open: rxe0, rxe0/1, soft, soft:ADDRESS[,ADDRESS..]
    #[arg(long)]
    device: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Args::parse().device {
        Some(device) => open(&device).await,
        None => {
            list();
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn list() {
    let devices = ibcm::devices();
    for device in &devices {
        show(device);
    }
    if devices.is_empty() {
        println!("no RDMA device here; a software HCA can be opened: soft, soft:ADDRESS");
    }
    if let Some(limit) = memlock() {
        println!("memory that may be locked: {limit}");
    }
}

fn show(device: &DeviceInfo) {
    let DeviceInfo { name, node_guid, ports, unusable, ib_cm, .. } = device;
    match unusable {
        None => println!("{name}: can be opened, node GUID {node_guid}"),
        Some(why) => println!("{name}: cannot be opened: {why}"),
    }
    if *ib_cm {
        println!("  neither listening nor connecting: the kernel's ib_cm is loaded and holds CM messages");
    }
    for port in ports {
        let interface = port.interface.as_deref().unwrap_or("no network interface");
        println!("  port {}: {:?}, {:?}, {interface}", port.number, port.state, port.link_layer);
        if port.lid != Lid::NONE {
            println!("    LID {}", port.lid);
        }
        for GidEntry { index, gid, kind, .. } in &port.gids {
            println!("    GID {index}: {} ({})", address(*gid), name_of(*kind));
        }
    }
}

fn address(gid: Gid) -> String {
    gid.to_ip().to_string()
}

const fn name_of(kind: GidKind) -> &'static str {
    match kind {
        GidKind::Infiniband => "InfiniBand",
        GidKind::RoceV1 => "RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
        _ => "unknown",
    }
}

async fn open(device: &str) -> Result<(), Box<dyn Error>> {
    let hca = Hca::open(device).await?;
    println!("{} is open; peers dial {}", hca.name(), address(hca.gid()));
    for port in hca.ports() {
        println!("port {}: {:?}, {}", port.number(), port.state(), address(port.gid()));
    }
    let buffers = hca.pool(16, 64 << 10).await;
    println!("a mebibyte of buffers: {}", buffers.map_or_else(|error| chain(&error), |_| "fine".into()));
    let listening = Listener::bind(ServiceId::new(0x1000_0000_0000_0001)).device(&hca).await;
    println!("listening: {}", listening.map_or_else(|error| chain(&error), |_| "fine".into()));
    for (name, value) in hca.stats().named().filter(|(_, value)| *value > 0) {
        println!("{name} {value}");
    }
    hca.close().await;
    Ok(())
}

/// The limit of locked memory as the kernel tells it, where it does.
fn memlock() -> Option<String> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut words = line.split_whitespace();
    match words.next()? {
        "unlimited" => Some("unlimited".into()),
        soft => Some(format!("{} KiB", soft.parse::<u64>().ok()? >> 10)),
    }
}
