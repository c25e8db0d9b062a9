//! What sockets are bound to.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use ibcm_sys::packet::{self, LinkAddress};

use crate::RawError;

/// A link: a network interface of this machine. A cheap handle.
#[derive(Clone)]
pub struct Link {
    pub(crate) inner: Arc<Interface>,
}

/// A network interface as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) kind: LinkKind,
    pub(crate) mtu: usize,
    pub(crate) address: LinkAddress,
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
}

impl Link {
    /// The network interface with this name, such as `eth0`, of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`RawError::NoSuchLink`]; [`RawError::Unsupported`] for a link of another kind than [`LinkKind`] has.
    pub fn open(name: &str) -> Result<Self, RawError> {
        let any = std::net::UdpSocket::bind("[::]:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"));
        let any = any.map_err(|error| RawError::io("make a socket", error))?;
        let info = packet::link_info(any.as_fd(), name).map_err(|_| RawError::NoSuchLink(name.into()))?;
        let kind = match info.kind {
            1 => LinkKind::Ethernet,
            32 => LinkKind::InfiniBand,
            772 => LinkKind::Loopback,
            _ => return Err(RawError::Unsupported("a link that is neither Ethernet nor InfiniBand")),
        };
        let (index, address) = (info.index, info.address);
        let mtu = info.mtu as usize;
        Ok(Self { inner: Arc::new(Interface { name: name.into(), index, kind, mtu, address }) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What it is.
    pub fn kind(&self) -> LinkKind {
        self.inner.kind
    }

    /// The longest payload of a frame in bytes, IPv6 header included.
    pub fn mtu(&self) -> usize {
        self.inner.mtu
    }

    /// Its own address; of InfiniBand the first 14 bytes.
    pub fn address(&self) -> LinkAddress {
        self.inner.address
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.inner.name).finish()
    }
}
