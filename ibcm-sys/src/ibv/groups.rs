//! Multicast groups of a queue pair.
//!
//! libibverbs attaches a queue pair at the device alone, where the driver filters what the port lets in. On RoCE the network has
//! to be asked for a group as well (IGMP, MLD), and the kernel hands nothing of it in otherwise: sockets join, which are bound to
//! nothing and receive nothing (spec/softhca.md 3.3).

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ibdev::{DeviceError, LinkLayer};
use ibwire::{Gid, Lid};
use rdma_sys::{ibv_gid, ibv_qp};
use rustix::io::Errno;
use rustix::net::sockopt::{set_ip_add_membership_with_ifindex, set_ipv6_add_membership};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Hca, Raw, check};

/// The groups that a queue pair is in, by address and LID: a group of InfiniBand may move to another LID, and is attached there
/// before it is detached from the old one.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<Attached>);

/// On RoCE with the membership of the network.
type Attached = HashMap<(Gid, Lid), Option<Membership>>;

impl Groups {
    /// Attaches the queue pair, which is of `port`. Twice is once. Slow.
    pub(super) fn attach(
        &self,
        qp: &Raw<ibv_qp>,
        hca: &Hca,
        port: u8,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), DeviceError> {
        if !mgid.is_multicast() {
            return Err(DeviceError::Unsupported { what: "a multicast group with an address that is none" });
        }
        let mut groups = self.groups();
        if groups.contains_key(&(mgid, mlid)) {
            return Ok(());
        }
        let membership = match hca.port(port)?.link_layer {
            LinkLayer::Ethernet => Some(Membership::new(hca, port, mgid)?),
            _ => None,
        };
        // SAFETY: the queue pair lives while its `Raw` does; the address is read during the call only.
        let result = unsafe { rdma_sys::ibv_attach_mcast(qp.get(), &ibv_gid { raw: mgid.0 }, mlid.0) };
        check(result, "attach a queue pair to a multicast group")?;
        groups.insert((mgid, mlid), membership);
        Ok(())
    }

    /// Nothing happens if it is not attached. Slow.
    pub(super) fn detach(&self, qp: &Raw<ibv_qp>, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        let mut groups = self.groups();
        if !groups.contains_key(&(mgid, mlid)) {
            return Ok(());
        }
        // SAFETY: as in `attach`.
        let result = unsafe { rdma_sys::ibv_detach_mcast(qp.get(), &ibv_gid { raw: mgid.0 }, mlid.0) };
        check(result, "detach a queue pair from a multicast group")?;
        groups.remove(&(mgid, mlid));
        Ok(())
    }

    /// Before the queue pair is destroyed, which libibverbs refuses while it is in a group.
    pub(super) fn detach_all(&mut self, qp: &Raw<ibv_qp>) {
        for (mgid, mlid) in self.0.get_mut().unwrap_or_else(PoisonError::into_inner).keys() {
            // SAFETY: as in `attach`. Should it be refused, destroying is, too, which is counted.
            unsafe { rdma_sys::ibv_detach_mcast(qp.get(), &ibv_gid { raw: mgid.0 }, mlid.0) };
        }
    }

    fn groups(&self) -> MutexGuard<'_, Attached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Membership of all interfaces behind a port, which ends when it is dropped.
#[derive(Debug)]
struct Membership {
    _socket: OwnedFd,
}

impl Membership {
    fn new(hca: &Hca, port: u8, mgid: Gid) -> Result<Self, DeviceError> {
        let group = mgid.to_ip();
        let interfaces = hca.context().interfaces(port, group.is_ipv4())?;
        if interfaces.is_empty() {
            let what = "a multicast group of a family that the port has not";
            return Err(DeviceError::Unsupported { what });
        }
        let socket = join(group, &interfaces);
        Ok(Self { _socket: socket.map_err(|error| DeviceError::os("join a multicast group", error.into()))? })
    }
}

fn join(group: IpAddr, interfaces: &BTreeSet<u32>) -> Result<OwnedFd, Errno> {
    let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    for interface in interfaces {
        match group {
            IpAddr::V4(group) => {
                set_ip_add_membership_with_ifindex(&socket, &group, &Ipv4Addr::UNSPECIFIED, *interface)?;
            }
            IpAddr::V6(group) => set_ipv6_add_membership(&socket, &group, *interface)?,
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's lists of what an interface is in.
    fn is_member(group: IpAddr) -> bool {
        let (file, wanted) = match group {
            // In the byte order of the machine.
            IpAddr::V4(group) => ("/proc/net/igmp", format!("{:08X}", u32::from_ne_bytes(group.octets()))),
            IpAddr::V6(group) => ("/proc/net/igmp6", format!("{:032x}", u128::from(group))),
        };
        std::fs::read_to_string(file).unwrap().contains(&wanted)
    }

    #[test]
    fn a_group_is_joined_on_its_interface_and_left() {
        const LOOPBACK: u32 = 1;
        for group in ["239.255.77.1", "ff11::4d01"] {
            let group = group.parse().unwrap();
            assert!(!is_member(group), "{group}");
            let socket = join(group, &BTreeSet::from([LOOPBACK])).unwrap();
            assert!(is_member(group), "{group}");
            drop(socket);
            assert!(!is_member(group), "{group}");
        }
        let nowhere = BTreeSet::from([u32::MAX >> 1]);
        assert_eq!(join("239.255.77.1".parse().unwrap(), &nowhere).unwrap_err(), Errno::NODEV);
    }
}
