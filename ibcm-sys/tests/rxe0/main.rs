//! The Linux device on rxe0. Needs `rxe0` with the addresses of tests/guest/wire.sh and no ib_cm, so everything here is
//! ignored but in the guest, which runs it with `--ignored --test-threads=1`: class 7 has one holder at a time.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod bad_states;
mod connections;
mod datagrams;
mod device;
mod drops;
mod end;
mod mads;
mod memory;
mod removal;
mod shared_receives;
mod unreliable;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use end::*;
use ibcm_sys::{LinuxDevice, LinuxError};
use ibdev::qp::{Init, QpSpec, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressVector, AgentSpec, Buf, Completion, CompletionOp, CompletionQueue, Device, DeviceError,
    DeviceEvent, GidKind, GlobalRoute, LinkLayer, MAD_LEN, MadAddr, MadAgent, OutgoingMad, PortState,
    PostError, QueuePair, ReceivedMad, RecvWr, Region, RemoteAddr, SendFlags, SendOp, SendWr, SgList,
    SharedMemory, Status,
};
use ibwire::mad::{Method, MgmtClass};
use ibwire::{FlowLabel, Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Rate, RnrTimer, ServiceLevel, TimeCode};

const CM: AgentSpec = AgentSpec { port: 1, class: MgmtClass::CM, class_version: 2, methods: &[Method::SEND] };
const HERE: &str = "10.77.0.1";
const PATIENCE: Duration = Duration::from_secs(20);

async fn rxe0() -> Arc<LinuxDevice> {
    LinuxDevice::open("rxe0").await.expect("rxe0 opens")
}

/// The address of a port as seen from 10.77.0.1.
fn av(device: &LinuxDevice, to: &str) -> AddressVector {
    av_from(device, HERE, to)
}

fn av_from(device: &LinuxDevice, from: &str, to: &str) -> AddressVector {
    let here: Gid = from.parse().unwrap();
    let entries = device.gids(1).unwrap();
    let entry = entries.iter().find(|entry| entry.gid == here && entry.kind == GidKind::RoceV2).unwrap();
    let grh = GlobalRoute {
        dgid: to.parse().unwrap(),
        sgid_index: entry.index,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        traffic_class: 0,
    };
    AddressVector {
        port: 1,
        dlid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: Some(grh),
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("no {what} within {PATIENCE:?}"))
}

fn counter(device: &LinuxDevice, name: &str) -> u64 {
    device.counters().into_iter().find(|(found, _)| *found == name).unwrap().1
}

/// The next event that is `wanted`.
async fn event(device: &LinuxDevice, wanted: DeviceEvent) {
    let event = async { while poll_fn(|cx| device.poll_event(cx)).await != wanted {} };
    within(&format!("{wanted:?}"), event).await;
}

/// Objects of rxe0 in the kernel, the device's own included.
fn resources() -> String {
    run("rdma resource show")
}

fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = std::process::Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
