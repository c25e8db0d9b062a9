//! An HCA of a running ibsim: management datagrams only (spec/sa.md section 8).
//!
//! ibsim simulates a subnet of InfiniBand switches and HCAs for subnet managers. Programs attach to a node of it by a pair of
//! unix datagram sockets. What travels are MADs: there are no queue pairs for data, so a device has agents and nothing else.

mod agents;
mod attach;
mod core;
mod packet;
#[cfg(test)]
mod tests;
mod unsupported;

use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use ibdev::{
    AgentSpec, CompletionQueue, Device, DeviceAttr, DeviceError, DeviceEvent, GidEntry, GidKind, LinkLayer,
    MadAgent, PortAttr, PortState, PortTables, ProtectionDomain,
};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, Rate, ServiceLevel};

use agents::SimAgent;
use core::Core;
use unsupported::{NoDomain, unsupported};

/// The only port of a device: the one by which its node's MADs travel.
const PORT: u8 = 1;

/// An HCA of a running ibsim, made for management datagrams: a client of its subnet's SA, or one end of a handshake
/// without data.
///
/// Closes with its last handle.
#[derive(Debug)]
pub struct IbsimDevice(Arc<Core>);

impl IbsimDevice {
    /// Attaches to the node with this name, `Hca1` for instance. The sockets' names begin with what the environment
    /// variable IBSIM_SOCKNAME says, as those of ibsim do; see [`attach_to`](Self::attach_to).
    ///
    /// # Errors
    /// As [`attach_to`](Self::attach_to).
    pub fn attach(node: &str) -> Result<Self, DeviceError> {
        let base = std::env::var("IBSIM_SOCKNAME").unwrap_or_else(|_| "sim".into());
        Self::attach_to(&base, node)
    }

    /// Attaches to the node with this name in the ibsim whose sockets' names begin with `base`. Takes milliseconds.
    ///
    /// # Errors
    /// [`DeviceError::Os`] if there is no such ibsim, [`DeviceError::InUse`] if it refuses: no such node, another program
    /// serves the node, or ten programs are attached already; [`DeviceError::NoRuntime`] outside a tokio runtime.
    pub fn attach_to(base: &str, node: &str) -> Result<Self, DeviceError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| DeviceError::NoRuntime)?;
        let attachment = attach::attach(base, node)?;
        let core = Core::new(attachment, node).map_err(|error| DeviceError::os("attach to ibsim", error))?;
        runtime.spawn(core::run(Arc::downgrade(&core)));
        Ok(Self(core))
    }
}

#[async_trait]
impl Device for IbsimDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.0.attr
    }

    fn port(&self, port: u8) -> Result<PortAttr, DeviceError> {
        check(port)?;
        self.0.port_info().map(|info| port_attr(&info))
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, DeviceError> {
        check(port)?;
        self.0.port_info().map(|info| gids(&info, self.0.port_guid))
    }

    fn pkeys(&self, port: u8) -> Result<Vec<PKey>, DeviceError> {
        check(port)?;
        self.0.pkeys()
    }

    async fn read_port(&self, port: u8) -> Result<PortTables, DeviceError> {
        check(port)?;
        let read = |core: &Core| {
            let info = core.port_info()?;
            let (attr, gids) = (port_attr(&info), gids(&info, core.port_guid));
            Ok(PortTables { attr, gids, pkeys: core.pkeys()? })
        };
        self.0.asked(read).await
    }

    fn open_agent(&self, spec: AgentSpec) -> Result<Box<dyn MadAgent>, DeviceError> {
        check(spec.port)?;
        Ok(Box::new(SimAgent::open(&self.0, spec)?))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        self.0.poll_event(cx)
    }

    async fn create_cq(&self, _capacity: u32) -> Result<Arc<dyn CompletionQueue>, DeviceError> {
        unsupported()
    }

    fn domain(&self) -> Arc<dyn ProtectionDomain> {
        Arc::new(NoDomain)
    }

    async fn create_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        unsupported()
    }

    async fn close(&self) {
        self.0.close();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.counters()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for IbsimDevice {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What PortInfo says of the port (spec/sa.md 3.4.2).
fn port_attr(info: &[u8; 64]) -> PortAttr {
    let state = match info[32] & 0x0f {
        4 => PortState::Active,
        2 | 3 => PortState::Initializing,
        _ => PortState::Down,
    };
    PortAttr {
        number: PORT,
        state,
        link_layer: LinkLayer::InfiniBand,
        active_mtu: Mtu(info[36] >> 4),
        lid: Lid(u16::from_be_bytes([info[16], info[17]])),
        lmc: info[34] & 7,
        sm_lid: Lid(u16::from_be_bytes([info[18], info[19]])),
        sm_sl: ServiceLevel::truncate(info[36] & 0x0f),
        rate: Rate::PORT_CURRENT,
    }
}

/// The only GID: the subnet's prefix and the port's GUID.
fn gids(info: &[u8; 64], port_guid: Guid) -> Vec<GidEntry> {
    let prefix = info[8..16].iter().fold(0, |prefix, byte| prefix << 8 | u64::from(*byte));
    let prefix = if prefix == 0 { 0xfe80 << 48 } else { prefix };
    let gid = Gid::from_parts(prefix, port_guid);
    vec![GidEntry { index: 0, gid, kind: GidKind::Infiniband }]
}

fn check(port: u8) -> Result<(), DeviceError> {
    match port {
        PORT => Ok(()),
        port => Err(DeviceError::Limit { what: "port", value: port.into(), limit: PORT.into() }),
    }
}

/// A name by which ibsim's GUIDs are shown.
fn attr(node: &str, node_guid: Guid) -> DeviceAttr {
    let mut attr = DeviceAttr::new(format!("ibsim:{node}"), node_guid, PORT);
    (attr.max_qp_wr, attr.max_cqe, attr.max_message, attr.max_sge) = (0, 0, 0, 0);
    (attr.max_responder_resources, attr.max_initiator_depth) = (0, 0);
    attr
}
