//! Binding a socket for IPv6 packets.

use std::net::Ipv6Addr;

use crate::backend::{Backend, Ipv6};
use crate::bind::{Bind, Plan};
use crate::link::Inner;
use crate::net::ipv6::RawSockets;
#[cfg(feature = "soft")]
use crate::subnet::socket::SubnetSocket;
use crate::{Link, NextHeader, RawError, RawSocket};

/// A socket for IPv6 packets with one or more next headers.
pub type RawIpv6Socket = RawSocket<Ipv6>;

/// Binds a [`RawIpv6Socket`].
pub type BindIpv6 = Bind<Ipv6>;

#[allow(unnameable_types)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Ipv6Options {
    pub(crate) loops: bool,
    pub(crate) caller_header: bool,
    pub(crate) checksum_at: Option<u16>,
    pub(crate) hop_limit: Option<u8>,
    pub(crate) multicast_hops: Option<u8>,
    pub(crate) icmp_types: Option<IcmpTypes>,
    pub(crate) address: Option<Ipv6Addr>,
}

/// Types of ICMPv6: type t is bit t % 32 of word t / 32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IcmpTypes(pub(crate) [u32; 8]);

impl IcmpTypes {
    #[cfg(feature = "soft")]
    pub(crate) fn has(self, icmp_type: u8) -> bool {
        self.0[usize::from(icmp_type / 32)] & 1 << (icmp_type % 32) != 0
    }
}

impl RawSocket<Ipv6> {
    /// Binds a socket that receives IPv6 packets with these next headers. A payload is what follows the IPv6 header.
    ///
    /// The kernel goes on to treat the packets as it does without the socket: for TCP and UDP the socket gets copies.
    ///
    /// # Errors
    /// Of the awaited builder: [`RawError::Permission`] without CAP_NET_RAW; [`RawError::NoFilter`];
    /// [`RawError::Unsupported`] for 0 and 255; [`RawError::FilterConflict`]; [`RawError::LinkGone`];
    /// [`RawError::Io`].
    pub fn bind(link: &Link, next_headers: impl IntoIterator<Item = NextHeader>) -> BindIpv6 {
        let mut next: Vec<_> = next_headers.into_iter().collect();
        next.sort_unstable();
        next.dedup();
        Bind::new(link, next, open)
    }
}

impl Bind<Ipv6> {
    /// Multicast that is sent here is heard on this machine too, by this socket as well if it has joined; on a subnet by the
    /// other sockets of the port. Default: not.
    pub fn multicast_loop(mut self) -> Self {
        self.plan.own.loops = true;
        self
    }

    /// What is sent begins with the whole IPv6 header, which goes out as it is. Default: the kernel writes the header.
    pub fn caller_header(mut self) -> Self {
        self.plan.own.caller_header = true;
        self
    }

    /// The payload has an Internet checksum at this offset: the kernel fills it in, and drops packets in which it is wrong.
    /// Even. ICMPv6 always has its own.
    pub fn checksum_at(mut self, offset: u16) -> Self {
        self.plan.own.checksum_at = Some(offset);
        self
    }

    /// Hop limit of what is sent to one address. Default: that of the system.
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.plan.own.hop_limit = Some(hops);
        self
    }

    /// Hop limit of what is sent to groups. Default: 1.
    pub fn multicast_hops(mut self, hops: u8) -> Self {
        self.plan.own.multicast_hops = Some(hops);
        self
    }

    /// Of ICMPv6 only messages of these types are received, of other next headers all; of no ICMPv6 if there are none. On a subnet others
    /// are counted, on an interface the kernel drops them (RFC 3542, `ICMP6_FILTER`). Without ICMPv6 among the next headers the awaited
    /// builder is [`RawError::Unsupported`]. Default: all types.
    pub fn icmp_filter(mut self, types: impl IntoIterator<Item = u8>) -> Self {
        let mut words = [0; 8];
        for icmp_type in types {
            words[usize::from(icmp_type / 32)] |= 1 << (icmp_type % 32);
        }
        self.plan.own.icmp_types = Some(IcmpTypes(words));
        self
    }

    /// Only what is sent to this address is received, beside multicast; and what is sent comes from it, unless the caller writes
    /// the header. An address of this machine, on a subnet a GID of the port; of the link if it is link-local. Any other is
    /// [`RawError::NotOwnAddress`] of the awaited builder, and on a subnet of sending when the port has it no more (raw(7), `bind`).
    /// Default: what is sent to any address, from the one that the system takes, on a subnet from the first GID.
    pub fn bind_addr(mut self, addr: Ipv6Addr) -> Self {
        self.plan.own.address = Some(addr);
        self
    }
}

fn open(link: &Link, plan: &Plan<Ipv6>) -> Result<Box<dyn Backend<Ipv6>>, RawError> {
    if plan.filter.is_empty() {
        return Err(RawError::NoFilter);
    }
    if plan.own.icmp_types.is_some() && !plan.filter.contains(&NextHeader::ICMPV6) {
        return Err(RawError::Unsupported("a filter of ICMPv6 types without ICMPv6 among the next headers"));
    }
    if let Some(addr) = plan.own.address.filter(|addr| addr.is_multicast() || addr.is_unspecified()) {
        return Err(RawError::NotOwnAddress(addr));
    }
    if let Some(offset) = plan.own.checksum_at.filter(|offset| offset % 2 != 0) {
        let (value, limit) = (offset.into(), u64::from(offset) - 1);
        return Err(RawError::Invalid { field: "odd offset of the checksum", value, limit });
    }
    Ok(match &link.inner {
        Inner::Interface(interface) => Box::new(RawSockets::bind(interface, plan)?),
        #[cfg(feature = "soft")]
        Inner::Subnet(port) => Box::new(SubnetSocket::bind(port, plan)?),
    })
}
