//! Binding a socket for IPv6 packets.

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
}

fn open(link: &Link, plan: &Plan<Ipv6>) -> Result<Box<dyn Backend<Ipv6>>, RawError> {
    if plan.filter.is_empty() {
        return Err(RawError::NoFilter);
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
