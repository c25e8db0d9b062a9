//! Attaching to a node: the sockets, CONNECT, and the GUID of the port.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ibdev::DeviceError;
use ibwire::{Guid, Lid, Qpn};

use super::packet::{Control, Packet};

/// How long ibsim may take for an answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Tells the attachments of one process apart.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// What ibsim has given us.
#[derive(Debug)]
pub(super) struct Attachment {
    pub control: UnixDatagram,
    pub data: UnixDatagram,
    pub slot: u32,
    pub node_guid: Guid,
    pub port_guid: Guid,
}

/// Attaches to `node` of the ibsim whose sockets' names begin with `base`.
pub(super) fn attach(base: &str, node: &str) -> Result<Attachment, DeviceError> {
    if node.is_empty() || node.len() > Control::MAX_NODE {
        let (value, limit) = (node.len() as u64, Control::MAX_NODE as u64);
        return Err(DeviceError::Limit { what: "length of the node's name", value, limit });
    }
    let os = |what| move |error| DeviceError::os(what, error);
    let (id, control) = bind_control(base).map_err(os("bind a control socket for ibsim"))?;
    let data = UnixDatagram::bind_addr(&name(base, "in", id).map_err(os("name a socket for ibsim"))?);
    let data = data.map_err(os("bind a packet socket for ibsim"))?;
    let address = |kind: &str| SocketAddr::from_abstract_name(format!("{base}:{kind}\0"));
    let there = address("ctl").and_then(|address| control.connect_addr(&address));
    there.map_err(os("reach ibsim: is it running, and is IBSIM_SOCKNAME the same as its own?"))?;
    control.set_read_timeout(Some(ANSWER)).map_err(os("set up a socket for ibsim"))?;
    let reply = exchange(&control, Control::connect(id, node)).map_err(os("ask ibsim for the node"))?;
    let Some(reply) = reply else {
        return Err(DeviceError::InUse {
            what: "the node of ibsim",
            holder: "there is no node of that name, another program serves it, or ten programs are attached",
        });
    };
    let slot = reply.given_slot();
    let joined = address(&format!("out{slot}")).and_then(|address| data.connect_addr(&address));
    joined.map_err(os("reach ibsim's packet socket"))?;
    let (node_guid, port_guid) = guids(&data).map_err(os("ask the node for its GUIDs"))?;
    data.set_nonblocking(true).map_err(os("set up a socket for ibsim"))?;
    Ok(Attachment { control, data, slot, node_guid, port_guid })
}

/// A control socket under an ID that no other of this machine has: the kernel refuses a name that is taken.
fn bind_control(base: &str) -> io::Result<(u32, UnixDatagram)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..64 {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id().wrapping_mul(64).wrapping_add(turn % 64) & 0x7fff_ffff | 1 << 30;
        match name(base, "ctl", id).and_then(|name| UnixDatagram::bind_addr(&name)) {
            Ok(socket) => return Ok((id, socket)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Abstract names; the NUL at their end counts.
fn name(base: &str, kind: &str, id: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{base}:{kind}{id}\0"))
}

/// Sends a control message and waits for its reply; `None` if ibsim refuses.
pub(super) fn exchange(control: &UnixDatagram, message: Control) -> io::Result<Option<Control>> {
    control.send(&message.to_bytes())?;
    let mut bytes = [0; Control::LEN + 1];
    loop {
        let len = control.recv(&mut bytes)?;
        match Control::parse(&bytes[..len]) {
            Some(reply) if reply.kind == message.kind => return Ok(Some(reply)),
            Some(reply) if reply.kind == 0 => return Ok(None),
            _ => {} // no answer to this
        }
    }
}

/// Asks the node itself, by a directed route of no hops; what ibsim says is always the node's GUID.
fn guids(data: &UnixDatagram) -> io::Result<(Guid, Guid)> {
    const TID: u32 = 0x6962_6364;
    let permissive = Lid(0xffff);
    let mut mad = [0; ibdev::MAD_LEN];
    mad[..4].copy_from_slice(&[1, 0x81, 1, 0x01]);
    mad[12..16].copy_from_slice(&TID.to_be_bytes());
    mad[16..18].copy_from_slice(&[0x00, 0x11]);
    mad[32..36].fill(0xff);
    let ask = Packet { dlid: permissive, slid: permissive, dqp: Qpn::SMI, sqp: Qpn::SMI, status: 0, mad };
    data.set_read_timeout(Some(ANSWER))?;
    data.send(&ask.to_bytes())?;
    let mut bytes = [0; Packet::LEN + 1];
    for _ in 0..64 {
        let len = data.recv(&mut bytes)?;
        let Some(packet) = Packet::parse(&bytes[..len]) else { continue };
        let mad = &packet.mad;
        if mad[1] == 0x81 && mad[3] & 0x80 != 0 && mad[12..16] == TID.to_be_bytes() {
            let be64 = |at: usize| mad[at..at + 8].iter().fold(0, |guid, byte| guid << 8 | u64::from(*byte));
            return Ok((Guid(be64(64 + 12)), Guid(be64(64 + 20))));
        }
    }
    Err(io::Error::from(io::ErrorKind::TimedOut))
}
