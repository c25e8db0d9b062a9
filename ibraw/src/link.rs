//! What sockets are bound to.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use ibcm_sys::packet::{self, LinkAddress};
#[cfg(feature = "soft")]
use ibdev::Device;
#[cfg(feature = "soft")]
use ibsoft::SoftDevice;
#[cfg(feature = "soft")]
use ibwire::Lid;

use crate::RawError;
#[cfg(feature = "soft")]
use crate::subnet::{SubnetPort, lid_address};

/// A link: a network interface of this machine, or a port of an in-process subnet. A cheap handle.
///
/// ```
/// # #[cfg(feature = "soft")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ibraw::{EtherType, Group, Link, RawEtherSocket};
/// use ibsoft::sim::Subnet;
///
/// let net = Subnet::star(["ann", "bob"]).await?;
/// let (ann, bob): (Link, Link) = (net.device("ann").into(), net.device("bob").into());
/// let ann = RawEtherSocket::bind(&ann, [EtherType::LOCAL_1]).await?;
/// let bob = RawEtherSocket::bind(&bob, [EtherType::LOCAL_1]).await?;
/// let group = Group::link([0x33, 0x33, 0, 0, 0x88, 0xb5])?;
/// let _held = bob.join(&group).await?;
/// ann.send_to(b"hello, all", &group.dest(EtherType::LOCAL_1)).await?;
/// assert_eq!(&bob.recv().await?.data[..10], b"hello, all"); // padded to 12: a raw header has no length
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Link {
    pub(crate) inner: Inner,
}

#[derive(Debug, Clone)]
pub(crate) enum Inner {
    Interface(Arc<Interface>),
    #[cfg(feature = "soft")]
    Subnet(Arc<SubnetPort>),
}

/// A network interface as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) kind: LinkKind,
    pub(crate) mtu: usize,
    pub(crate) address: LinkAddress,
    /// Its network namespace.
    space: u64,
}

/// Which interface of the machine it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LinkId {
    pub(crate) space: u64,
    pub(crate) index: u32,
}

impl Interface {
    pub(crate) fn id(&self) -> LinkId {
        LinkId { space: self.space, index: self.index }
    }
}

/// Kinds of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// Ethernet, real or virtual.
    Ethernet,
    /// IP over InfiniBand: IPv4, IPv6, ARP, RARP and TIPC only.
    InfiniBand,
    /// This machine alone.
    Loopback,
    /// A port of an in-process subnet: raw packets as IBTA has them, from the LRH through the VCRC.
    Subnet,
}

impl Link {
    /// The network interface with this name, such as `eth0`, of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`RawError::NoSuchLink`]; [`RawError::RawPacketQp`] for the name of an RDMA device; [`RawError::Unsupported`] for a link of
    /// another kind than [`LinkKind`] has.
    pub fn open(name: &str) -> Result<Self, RawError> {
        let any = std::net::UdpSocket::bind("[::]:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"));
        let any = any.map_err(|error| RawError::io("make a socket", error))?;
        let info =
            packet::link_info(any.as_fd(), name).map_err(|_| no_link(Path::new(RDMA_DEVICES), name))?;
        let kind = match info.kind {
            1 => LinkKind::Ethernet,
            32 => LinkKind::InfiniBand,
            772 => LinkKind::Loopback,
            _ => return Err(RawError::Unsupported("a link that is neither Ethernet nor InfiniBand")),
        };
        let (index, address) = (info.index, info.address);
        let mtu = info.mtu as usize;
        let space = packet::namespace(any.as_fd());
        let interface = Interface { name: name.into(), index, kind, mtu, address, space };
        Ok(Self { inner: Inner::Interface(Arc::new(interface)) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match &self.inner {
            Inner::Interface(interface) => &interface.name,
            #[cfg(feature = "soft")]
            Inner::Subnet(port) => &port.device.attr().name,
        }
    }

    /// What it is.
    pub fn kind(&self) -> LinkKind {
        match &self.inner {
            Inner::Interface(interface) => interface.kind,
            #[cfg(feature = "soft")]
            Inner::Subnet(_) => LinkKind::Subnet,
        }
    }

    /// The longest payload of a frame in bytes, IPv6 header included. On a subnet its MTU; what a raw packet saves of headers
    /// it may have more (spec/raw.md 2). 0 if the port is gone.
    pub fn mtu(&self) -> usize {
        match &self.inner {
            Inner::Interface(interface) => interface.mtu,
            #[cfg(feature = "soft")]
            Inner::Subnet(port) => {
                port.attr().ok().and_then(|attr| attr.active_mtu.bytes()).unwrap_or(0) as usize
            }
        }
    }

    /// Its own address; of InfiniBand the first 14 bytes, on a subnet the LID.
    pub fn address(&self) -> LinkAddress {
        match &self.inner {
            Inner::Interface(interface) => interface.address,
            #[cfg(feature = "soft")]
            Inner::Subnet(port) => lid_address(port.attr().map_or(Lid::NONE, |attr| attr.lid)),
        }
    }
}

/// Port 1 of an HCA of a subnet. What only one of the two kinds of links has is [`RawError::Unsupported`] on the other.
#[cfg(feature = "soft")]
impl From<SoftDevice> for Link {
    fn from(device: SoftDevice) -> Self {
        Self { inner: Inner::Subnet(Arc::new(SubnetPort::new(device, 1))) }
    }
}

#[cfg(feature = "soft")]
impl Link {
    /// A port of an HCA of a subnet, numbered from 1.
    ///
    /// # Errors
    /// [`RawError::Invalid`] if there is no such port, [`RawError::LinkGone`] if the device is gone.
    pub fn port(device: SoftDevice, port: u8) -> Result<Self, RawError> {
        let port = SubnetPort::new(device, port);
        port.attr()?;
        Ok(Self { inner: Inner::Subnet(Arc::new(port)) })
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.name()).finish()
    }
}

/// Where the kernel lists RDMA devices.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// Why there is no network interface with this name.
fn no_link(rdma_devices: &Path, name: &str) -> RawError {
    let mut listed = rdma_devices.read_dir().into_iter().flatten().flatten();
    match listed.any(|device| device.file_name() == name) {
        true => RawError::RawPacketQp(name.into()),
        false => RawError::NoSuchLink(name.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every machine has it.
    #[test]
    fn the_loopback() {
        let link = Link::open("lo").unwrap();
        assert_eq!((link.name(), link.kind()), ("lo", LinkKind::Loopback));
        let bind = crate::RawEtherSocket::bind(&link, []);
        assert_eq!([20, 1500, 9000].map(|mtu| bind.plan.longest(mtu)), [2048, 2048, 9000]);
        assert_eq!(bind.buffer(64).plan.longest(9000), 64);
    }

    #[test]
    fn the_name_of_an_rdma_device_is_told_from_one_that_nothing_has() {
        // Names of directories that are there: of this package.
        let devices = Path::new(env!("CARGO_MANIFEST_DIR"));
        let error = no_link(devices, "src");
        assert!(matches!(&error, RawError::RawPacketQp(name) if name == "src"), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::Unsupported);
        for name in ["mlx5_0", "", "..", "src/"] {
            assert!(matches!(no_link(devices, name), RawError::NoSuchLink(_)), "{name:?}");
        }
        assert!(matches!(no_link(Path::new("/no/such/place"), "src"), RawError::NoSuchLink(_)));
    }
}
