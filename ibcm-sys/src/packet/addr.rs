//! Socket addresses of the link layer and of IPv6.

use std::fmt;
use std::net::Ipv6Addr;

/// An address of the link layer: 6 bytes on Ethernet, 20 on InfiniBand, at most 24.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkAddress {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl LinkAddress {
    /// The longest in bytes.
    pub const MAX: usize = 24;

    /// The address with these bytes, `None` if there are more than [`MAX`](Self::MAX).
    pub fn new(address: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..address.len())?.copy_from_slice(address);
        Some(Self { len: address.len() as u8, bytes })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.as_bytes().iter().enumerate() {
            let colon = if n == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkAddress({self})")
    }
}

/// Where a datagram goes, or came from.
#[derive(Clone, Copy)]
pub struct Address {
    pub(super) raw: libc::sockaddr_storage,
    pub(super) len: libc::socklen_t,
}

impl Address {
    /// On a link: interface, EtherType, address.
    pub fn link(index: u32, protocol: u16, address: LinkAddress) -> Self {
        let mut this = Self::none();
        let len = size_of::<libc::sockaddr_ll>() - 8 + address.as_bytes().len().max(8);
        // SAFETY: `sockaddr_storage` is as large and as aligned as every socket address, and all bytes zero is one of these.
        // The link address may be longer than its field: it goes on behind it, inside the storage, as the kernel reads it.
        unsafe {
            let ll = (&raw mut this.raw).cast::<libc::sockaddr_ll>();
            (*ll).sll_family = libc::AF_PACKET as _;
            (*ll).sll_protocol = protocol.to_be();
            (*ll).sll_ifindex = index as _;
            (*ll).sll_halen = address.len;
            let at = (&raw mut (*ll).sll_addr).cast::<u8>();
            at.copy_from_nonoverlapping(address.bytes.as_ptr(), address.as_bytes().len());
        }
        this.len = len as _;
        this
    }

    /// An IPv6 address, and the interface that it is to be reached by.
    pub fn ipv6(address: Ipv6Addr, index: u32) -> Self {
        let mut this = Self::none();
        // SAFETY: as above.
        unsafe {
            let in6 = (&raw mut this.raw).cast::<libc::sockaddr_in6>();
            (*in6).sin6_family = libc::AF_INET6 as _;
            (*in6).sin6_addr.s6_addr = address.octets();
            (*in6).sin6_scope_id = index;
        }
        this.len = size_of::<libc::sockaddr_in6>() as _;
        this
    }

    pub(super) fn none() -> Self {
        // SAFETY: integers: all bytes zero is a value.
        Self { raw: unsafe { std::mem::zeroed() }, len: 0 }
    }

    /// EtherType, packet type (`PACKET_HOST`, ..), kind of the link and address, if it is of the link layer.
    pub fn as_link(&self) -> Option<(u16, u8, u16, LinkAddress)> {
        if i32::from(self.raw.ss_family) != libc::AF_PACKET {
            return None;
        }
        // SAFETY: an address of this family is a `sockaddr_ll`, for which the storage is large enough.
        let ll = unsafe { &*(&raw const self.raw).cast::<libc::sockaddr_ll>() };
        let len = usize::from(ll.sll_halen).min(LinkAddress::MAX);
        let mut bytes = [0; LinkAddress::MAX];
        // SAFETY: the address begins in its field and may go on behind it, at most 24 bytes inside the storage of 128.
        unsafe {
            let at =
                (&raw const self.raw).cast::<u8>().add(std::mem::offset_of!(libc::sockaddr_ll, sll_addr));
            at.copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
        }
        let address = LinkAddress { len: len as u8, bytes };
        Some((u16::from_be(ll.sll_protocol), ll.sll_pkttype, ll.sll_hatype, address))
    }

    /// Address and scope, if it is of IPv6.
    pub fn as_ipv6(&self) -> Option<(Ipv6Addr, u32)> {
        if i32::from(self.raw.ss_family) != libc::AF_INET6 {
            return None;
        }
        // SAFETY: an address of this family is a `sockaddr_in6`, for which the storage is large enough.
        let in6 = unsafe { &*(&raw const self.raw).cast::<libc::sockaddr_in6>() };
        Some((Ipv6Addr::from(in6.sin6_addr.s6_addr), in6.sin6_scope_id))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_link(), self.as_ipv6()) {
            (Some(link), _) => write!(f, "{link:?}"),
            (_, Some(ipv6)) => write!(f, "{ipv6:?}"),
            _ => write!(f, "Address(none)"),
        }
    }
}
