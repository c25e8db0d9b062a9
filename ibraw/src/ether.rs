//! Binding a socket for packets of an EtherType.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::{Backend, Ether};
use crate::core::{Core, OnTruncate};
use crate::link::Inner;
use crate::meta::Vlan;
use crate::net::ether::PacketSocket;
#[cfg(feature = "soft")]
use crate::subnet::ether::EtherQueue;
use crate::{EtherType, Link, RawError, RawSocket, Ring};

/// A socket for packets of one or more EtherTypes.
pub type RawEtherSocket = RawSocket<Ether>;

/// How long it is tried to send on a link that takes nothing.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Which tagged frames a socket takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum VlanPolicy {
    /// Those without a tag, or with a priority alone.
    #[default]
    Untagged,
    /// All.
    Any,
    /// Those of one VLAN.
    Id(u16),
}

impl VlanPolicy {
    pub(crate) fn takes(self, vlan: Option<Vlan>) -> bool {
        match self {
            Self::Untagged => vlan.is_none_or(|vlan| vlan.id == 0),
            Self::Any => true,
            Self::Id(id) => vlan.is_some_and(|vlan| vlan.id == id),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) is_any: bool,
    pub(crate) is_exclusive: bool,
    pub(crate) is_promiscuous: bool,
    pub(crate) accepts_other_host: bool,
    pub(crate) sees_outgoing: bool,
    pub(crate) hears_port: bool,
    pub(crate) vlan: VlanPolicy,
    pub(crate) recv_buffer: Option<usize>,
    pub(crate) buffer: Option<usize>,
    pub(crate) ring: Option<Ring>,
    pub(crate) fanout: Option<(u16, u16)>,
}

impl RawSocket<Ether> {
    /// Binds a socket that receives packets of these EtherTypes.
    ///
    /// With one it is the kernel that sorts out the others; with more, and with a VLAN policy, a filter program in the
    /// kernel looks at every frame of the link.
    ///
    /// # Errors
    /// Of the awaited builder: [`RawError::Permission`] without CAP_NET_RAW; [`RawError::NoFilter`];
    /// [`RawError::EtherTypeNotOnLink`]; [`RawError::FilterConflict`]; [`RawError::LinkGone`]; [`RawError::Io`].
    pub fn bind(link: &Link, ether_types: impl IntoIterator<Item = EtherType>) -> BindEther {
        let types = ether_types.into_iter().collect();
        BindEther {
            link: link.clone(),
            types,
            options: Options::default(),
            cuts: OnTruncate::Deliver,
            send_timeout: SEND_TIMEOUT,
        }
    }

    /// Binds a socket that receives packets of every EtherType.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_any(link: &Link) -> BindEther {
        let mut bind = Self::bind(link, []);
        bind.options.is_any = true;
        bind
    }
}

/// Binds a [`RawEtherSocket`] when it is awaited. Dropped before, nothing happened.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct BindEther {
    link: Link,
    types: Vec<EtherType>,
    options: Options,
    cuts: OnTruncate,
    send_timeout: Duration,
}

impl BindEther {
    /// No other socket of this process may have one of these EtherTypes on this link. Default: several may, and each gets
    /// every packet. Not for [`bind_any`](RawSocket::bind_any).
    pub fn exclusive(mut self) -> Self {
        self.options.is_exclusive = true;
        self
    }

    /// Bytes of the kernel's queue of received frames, its bookkeeping included; at most `net.core.rmem_max`. Default: that of
    /// the system.
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.options.recv_buffer = Some(bytes);
        self
    }

    /// Frames come through a ring of memory that is shared with the kernel, in the place of its queue: see [`Ring`]. Default:
    /// by system calls.
    pub fn ring(mut self, ring: Ring) -> Self {
        self.options.ring = Some(ring);
        self
    }

    /// The longest payload in bytes that is received whole. Default: the link's MTU, at least 2,048. What the kernel puts
    /// together of IPv4 and IPv6 packets (GRO) is longer than the MTU, at most 65,535.
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

    /// Which tagged frames are received. Default: [`VlanPolicy::Untagged`].
    pub fn vlan(mut self, policy: VlanPolicy) -> Self {
        self.options.vlan = policy;
        self
    }

    /// Multicast of every group that arrives is received, joined or not. Default: of joined groups.
    pub fn hear_port(mut self) -> Self {
        self.options.hears_port = true;
        self
    }

    /// Frames for other stations that arrive are received. Default: not.
    pub fn accept_other_host(mut self) -> Self {
        self.options.accepts_other_host = true;
        self
    }

    /// The interface takes all frames that pass, and they are received. Default: not.
    pub fn promiscuous(mut self) -> Self {
        self.options.is_promiscuous = true;
        self
    }

    /// Frames that other sockets of this machine send are received. Default: not.
    pub fn see_outgoing(mut self) -> Self {
        self.options.sees_outgoing = true;
        self
    }

    /// Shares what arrives with the other sockets that name the same group: each frame goes to one of them, chosen as
    /// `mode` says (packet(7), `PACKET_FANOUT`): 1 in turn, 2 by processor.
    pub fn fanout(mut self, group: u16, mode: u16) -> Self {
        self.options.fanout = Some((group, mode));
        self
    }

    /// How long it is tried to send on a link that takes nothing. Default: 1 s.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = timeout;
        self
    }

    fn bind(&self) -> Result<RawEtherSocket, RawError> {
        check_buffer(self.options.buffer)?;
        if self.options.is_any && self.options.is_exclusive {
            return Err(RawError::Unsupported("a claim to every EtherType"));
        }
        if self.options.ring.is_some() && self.options.recv_buffer.is_some() {
            return Err(RawError::Unsupported("a queue beside a ring"));
        }
        if let VlanPolicy::Id(id @ 4096..) = self.options.vlan {
            return Err(RawError::Invalid { field: "VLAN", value: id.into(), limit: 4095 });
        }
        let backend: Box<dyn Backend<Ether>> = match &self.link.inner {
            Inner::Interface(interface) => {
                Box::new(PacketSocket::bind(interface, &self.types, self.options)?)
            }
            #[cfg(feature = "soft")]
            Inner::Subnet(port) => Box::new(EtherQueue::bind(port, &self.types, &self.options)?),
        };
        Ok(RawSocket::of(Core::new(backend, self.link.clone(), self.cuts, self.send_timeout)))
    }
}

/// The longest datagram.
const LONGEST: usize = 65_535;

pub(crate) fn check_buffer(buffer: Option<usize>) -> Result<(), RawError> {
    match buffer {
        Some(bytes) if bytes > LONGEST => {
            Err(RawError::Invalid { field: "buffer", value: bytes as u64, limit: LONGEST as u64 })
        }
        _ => Ok(()),
    }
}

impl Future for BindEther {
    type Output = Result<RawEtherSocket, RawError>;

    /// Ready at once.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.bind())
    }
}
