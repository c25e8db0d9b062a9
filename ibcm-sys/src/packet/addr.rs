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
    #[inline]
    pub fn new(address: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..address.len())?.copy_from_slice(address);
        Some(Self { len: address.len() as u8, bytes })
    }

    /// Its bytes.
    #[inline]
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
    pub(super) raw: Storage,
    pub(super) len: libc::socklen_t,
}

/// Room for a `sockaddr_ll`, whose address may be longer than its field, and for a `sockaddr_in6`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Storage([u8; Self::LEN]);

impl Storage {
    pub(super) const LEN: usize = Source::LINK_LEN.next_multiple_of(8);
}

const _: () = {
    assert!(
        Storage::LEN >= size_of::<libc::sockaddr_ll>() && Storage::LEN >= size_of::<libc::sockaddr_in6>()
    );
    assert!(align_of::<Storage>() >= align_of::<libc::sockaddr_ll>());
    assert!(align_of::<Storage>() >= align_of::<libc::sockaddr_in6>());
};

impl Address {
    /// On a link: interface, EtherType, address.
    pub fn link(index: u32, protocol: u16, address: LinkAddress) -> Self {
        let mut this = Self::none();
        let len = size_of::<libc::sockaddr_ll>() - 8 + address.as_bytes().len().max(8);
        // SAFETY: the storage is large and aligned enough for this address, for which all bytes zero is a value. The link address
        // may be longer than its field: it goes on behind it, inside the storage, as the kernel reads it.
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

    pub(super) const fn none() -> Self {
        Self { raw: Storage([0; Storage::LEN]), len: 0 }
    }

    /// Who sent a datagram, from an address that the kernel has filled in.
    #[inline]
    pub(super) fn source(&self) -> Source {
        let [low, high, ..] = self.raw.0;
        match i32::from(u16::from_ne_bytes([low, high])) {
            // SAFETY: an address of this family is a `sockaddr_ll`; the storage has the bytes that are read.
            libc::AF_PACKET => unsafe { Source::link_at((&raw const self.raw).cast()) },
            libc::AF_INET6 => {
                // SAFETY: an address of this family is a `sockaddr_in6`, for which the storage is large enough.
                let in6 = unsafe { &*(&raw const self.raw).cast::<libc::sockaddr_in6>() };
                Source::Ipv6 { address: Ipv6Addr::from(in6.sin6_addr.s6_addr), scope: in6.sin6_scope_id }
            }
            _ => Source::Unknown,
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.source()).finish()
    }
}

/// Who sent a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A station of a link.
    Link {
        /// Whom the frame is for: `PACKET_HOST`, …
        packet_type: u8,
        /// The address, of no bytes where the link does not say.
        address: LinkAddress,
    },
    /// A host.
    Ipv6 {
        /// Its address.
        address: Ipv6Addr,
        /// The interface, for an address of a link.
        scope: u32,
    },
    /// The kernel does not say.
    Unknown,
}

impl Source {
    /// How many bytes an address of the link layer has at most.
    pub(super) const LINK_LEN: usize = std::mem::offset_of!(libc::sockaddr_ll, sll_addr) + LinkAddress::MAX;

    /// Reads a `sockaddr_ll`.
    ///
    /// # Safety
    /// There are [`LINK_LEN`](Self::LINK_LEN) bytes to read, though the address may be shorter, and they begin with one.
    #[inline]
    pub(super) unsafe fn link_at(at: *const u8) -> Self {
        // SAFETY: the caller has them; they need not be aligned.
        let ll = unsafe { at.cast::<libc::sockaddr_ll>().read_unaligned() };
        let len = usize::from(ll.sll_halen).min(LinkAddress::MAX);
        let mut bytes = [0; LinkAddress::MAX];
        if len == 6 {
            bytes[..6].copy_from_slice(&ll.sll_addr[..6]); // no call to copy so few
        } else {
            // SAFETY: the address begins in its field and may go on behind it, at most 24 bytes, which the caller has.
            unsafe {
                at.add(std::mem::offset_of!(libc::sockaddr_ll, sll_addr))
                    .copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
            }
        }
        Self::Link { packet_type: ll.sll_pkttype, address: LinkAddress { len: len as u8, bytes } }
    }
}
