//! Binding a socket for IPv6 packets.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::{Backend, Ipv6};
use crate::core::{Core, OnTruncate};
use crate::ether::{SEND_TIMEOUT, check_buffer};
use crate::link::Inner;
use crate::net::ipv6::RawSockets;
#[cfg(feature = "soft")]
use crate::subnet::ipv6::Ipv6Queue;
use crate::{Link, NextHeader, RawError, RawSocket};

/// A socket for IPv6 packets with one or more next headers.
pub type RawIpv6Socket = RawSocket<Ipv6>;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) is_exclusive: bool,
    pub(crate) hears_port: bool,
    pub(crate) loops: bool,
    pub(crate) caller_header: bool,
    pub(crate) checksum_at: Option<u16>,
    pub(crate) hop_limit: Option<u8>,
    pub(crate) multicast_hops: Option<u8>,
    pub(crate) recv_buffer: Option<usize>,
    pub(crate) buffer: Option<usize>,
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
        BindIpv6 {
            link: link.clone(),
            next,
            options: Options::default(),
            cuts: OnTruncate::Deliver,
            send_timeout: SEND_TIMEOUT,
        }
    }
}

/// Binds a [`RawIpv6Socket`] when it is awaited. Dropped before, nothing happened.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct BindIpv6 {
    link: Link,
    next: Vec<NextHeader>,
    options: Options,
    cuts: OnTruncate,
    send_timeout: Duration,
}

impl BindIpv6 {
    /// No other socket of this process may have one of these next headers on this link. Default: several may, and each gets
    /// every packet.
    pub fn exclusive(mut self) -> Self {
        self.options.is_exclusive = true;
        self
    }

    /// Bytes of the kernel's queue of received packets, its bookkeeping included; at most `net.core.rmem_max`. Default: that
    /// of the system.
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.options.recv_buffer = Some(bytes);
        self
    }

    /// The longest payload in bytes that is received whole. Default: the link's MTU, at least 2,048.
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.options.buffer = Some(bytes);
        self
    }

    /// A payload longer than the buffer is an error of `recv` and of the stream. Default: it is delivered as far as there is
    /// room, and its metadata says so.
    pub fn truncation_is_error(mut self) -> Self {
        self.cuts = OnTruncate::Error;
        self
    }

    /// Multicast of every group that this machine has joined is received. Default: of groups that this socket has joined.
    pub fn hear_port(mut self) -> Self {
        self.options.hears_port = true;
        self
    }

    /// Multicast that is sent here is heard on this machine too, by this socket as well if it has joined. Default: not.
    pub fn multicast_loop(mut self) -> Self {
        self.options.loops = true;
        self
    }

    /// What is sent begins with the whole IPv6 header, which goes out as it is. Default: the kernel writes the header.
    pub fn caller_header(mut self) -> Self {
        self.options.caller_header = true;
        self
    }

    /// The payload has an Internet checksum at this offset: the kernel fills it in, and drops packets in which it is wrong.
    /// Even. ICMPv6 always has its own.
    pub fn checksum_at(mut self, offset: u16) -> Self {
        self.options.checksum_at = Some(offset);
        self
    }

    /// Hop limit of what is sent to one address. Default: that of the system.
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.options.hop_limit = Some(hops);
        self
    }

    /// Hop limit of what is sent to groups. Default: 1.
    pub fn multicast_hops(mut self, hops: u8) -> Self {
        self.options.multicast_hops = Some(hops);
        self
    }

    /// How long it is tried to send on a link that takes nothing. Default: 1 s.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = timeout;
        self
    }

    fn bind(&self) -> Result<RawIpv6Socket, RawError> {
        check_buffer(self.options.buffer)?;
        if let Some(offset) = self.options.checksum_at.filter(|offset| offset % 2 != 0) {
            let (value, limit) = (offset.into(), u64::from(offset) - 1);
            return Err(RawError::Invalid { field: "odd offset of the checksum", value, limit });
        }
        let backend: Box<dyn Backend<Ipv6>> = match &self.link.inner {
            Inner::Interface(interface) => Box::new(RawSockets::bind(interface, &self.next, self.options)?),
            #[cfg(feature = "soft")]
            Inner::Subnet(port) => Box::new(Ipv6Queue::bind(port, &self.next, &self.options)?),
        };
        Ok(RawSocket::of(Core::new(backend, self.link.clone(), self.cuts, self.send_timeout)))
    }
}

impl Future for BindIpv6 {
    type Output = Result<RawIpv6Socket, RawError>;

    /// Ready at once.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.bind())
    }
}
