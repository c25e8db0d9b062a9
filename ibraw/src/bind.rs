//! Binding sockets of both kinds.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::{Backend, Protocol};
use crate::core::{Core, OnTruncate};
use crate::{Instruction, Link, RawError, RawSocket};

/// How long it is tried to send on a link that takes nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest datagram.
const LONGEST: usize = 65_535;

/// Binds a socket when it is awaited: [`BindEther`](crate::BindEther) or [`BindIpv6`](crate::BindIpv6). Dropped before,
/// nothing happened.
#[must_use = "futures do nothing unless awaited"]
pub struct Bind<P: Protocol> {
    pub(crate) link: Link,
    pub(crate) plan: Plan<P>,
    cuts: OnTruncate,
    send_timeout: Duration,
    open: Open<P>,
}

type Open<P> = fn(&Link, &Plan<P>) -> Result<Box<dyn Backend<P>>, RawError>;

/// What a socket is to be.
#[derive(Debug, Clone)]
pub(crate) struct Plan<P: Protocol> {
    /// What it receives.
    pub(crate) filter: Vec<P::Number>,
    pub(crate) is_exclusive: bool,
    pub(crate) hears_port: bool,
    pub(crate) is_strict: bool,
    pub(crate) recv_buffer: Option<usize>,
    pub(crate) buffer: Option<usize>,
    pub(crate) is_timed: bool,
    /// The caller's filter program, empty if there is none.
    pub(crate) program: Vec<Instruction>,
    pub(crate) own: P::Options,
}

impl<P: Protocol> Plan<P> {
    /// The longest payload that is received whole on a link with this MTU.
    pub(crate) fn longest(&self, mtu: usize) -> usize {
        self.buffer.unwrap_or(mtu.max(2048))
    }
}

impl<P: Protocol> Bind<P> {
    pub(crate) fn new(link: &Link, filter: Vec<P::Number>, open: Open<P>) -> Self {
        let plan = Plan {
            filter,
            is_exclusive: false,
            hears_port: false,
            is_strict: false,
            recv_buffer: None,
            buffer: None,
            is_timed: false,
            program: Vec::new(),
            own: P::Options::default(),
        };
        let (cuts, send_timeout) = (OnTruncate::Deliver, SEND_TIMEOUT);
        Self { link: link.clone(), plan, cuts, send_timeout, open }
    }

    /// No other socket of this process may have a part of the filter on this link. Default: several may, and each gets every
    /// packet. Not for [`bind_any`](RawSocket::bind_any).
    pub fn exclusive(mut self) -> Self {
        self.plan.is_exclusive = true;
        self
    }

    /// Bytes of the kernel's queue of received datagrams, its bookkeeping included. Without CAP_NET_ADMIN it is at most
    /// `net.core.rmem_max`: [`recv_buffer`](RawSocket::recv_buffer) tells what it has become. Default: that of the system.
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.plan.recv_buffer = Some(bytes);
        self
    }

    /// The longest payload in bytes that is received whole. Default: the link's MTU, at least 2,048. What the kernel puts
    /// together of IPv4 and IPv6 packets (GRO) is longer than the MTU, at most 65,535.
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.plan.buffer = Some(bytes);
        self
    }

    /// What becomes of a payload longer than the buffer. Default: [`OnTruncate::Deliver`].
    pub fn on_truncate(mut self, what: OnTruncate) -> Self {
        self.cuts = what;
        self
    }

    /// Each datagram tells when the kernel took it from the link, `meta.time`: in nanoseconds by the system's clock, which may be set
    /// meanwhile (socket(7), `SO_TIMESTAMPNS`; of a ring packet(7)). The kernel begins to note times when the first socket asks: without a
    /// ring the first datagrams may have the time when they were received here. Not on a subnet: [`RawError::Unsupported`].
    /// Default: not told.
    pub fn timestamps(mut self) -> Self {
        self.plan.is_timed = true;
        self
    }

    /// A classic BPF program in the kernel looks at each datagram (socket(7), `SO_ATTACH_FILTER`); one that it returns 0 for is
    /// not received, nor counted. It returns `u32::MAX` for the others: anything else is how many bytes the kernel keeps, and the
    /// metadata may not tell that it is a part. Default, and with no instructions: all are received.
    ///
    /// A socket for EtherTypes shows it frames with the link's header and without a VLAN tag, and of its own EtherTypes only; VLANs,
    /// stations and groups are told apart after it. A socket for IPv6 packets shows it what follows the IPv6 header.
    ///
    /// It has at most 4,096 instructions; with several EtherTypes, or a VLAN policy, or outgoing frames, 3 less and one less
    /// for each EtherType. What is longer is [`RawError::Invalid`], what is no program [`RawError::InvalidFilter`]. The system lets a
    /// socket have `net.core.optmem_max` bytes of programs and the like: of more, [`RawError::Io`]. Not on a subnet: [`RawError::Unsupported`].
    ///
    /// ```
    /// use ibraw::Instruction;
    ///
    /// /// Frames whose payload begins with this byte: behind 14 bytes of Ethernet's header.
    /// fn begins_with(byte: u8) -> [Instruction; 4] {
    ///     let op = |code, jt, jf, k| Instruction { code, jt, jf, k };
    ///     [op(0x30, 0, 0, 14), op(0x15, 0, 1, byte.into()), op(0x06, 0, 0, u32::MAX), op(0x06, 0, 0, 0)]
    /// }
    /// # use ibraw::{EtherType, Link, RawEtherSocket};
    /// # let link = Link::open("lo").expect("every machine has it");
    /// # let bind =
    /// RawEtherSocket::bind(&link, [EtherType::LOCAL_1]).filter(&begins_with(7))
    /// # ;
    /// ```
    pub fn filter(mut self, program: &[Instruction]) -> Self {
        self.plan.program = program.to_vec();
        self
    }

    /// Multicast of every group that arrives is received, joined or not. Default: of groups that the socket has joined.
    pub fn hear_port(mut self) -> Self {
        self.plan.hears_port = true;
        self
    }

    /// On a subnet nothing is sent that is longer than the port's MTU, an IPv6 header included; spec/raw.md 2 lets a raw packet
    /// have what it saves of headers, 76 bytes more with IPv6, 112 with an EtherType. Default: it may. On an interface its MTU
    /// is the limit in any case.
    pub fn strict_pmtu(mut self) -> Self {
        self.plan.is_strict = true;
        self
    }

    /// How long it is tried to send on a link that takes nothing. Default: 1 s.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = timeout;
        self
    }

    fn bind(&self) -> Result<RawSocket<P>, RawError> {
        if let Some(bytes) = self.plan.buffer.filter(|bytes| *bytes > LONGEST) {
            return Err(RawError::Invalid { field: "buffer", value: bytes as u64, limit: LONGEST as u64 });
        }
        let backend = (self.open)(&self.link, &self.plan)?;
        Ok(RawSocket::of(Core::new(backend, self.link.clone(), self.cuts, self.send_timeout)))
    }
}

impl<P: Protocol> Future for Bind<P> {
    type Output = Result<RawSocket<P>, RawError>;

    /// Ready at once.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.bind())
    }
}

impl<P: Protocol> fmt::Debug for Bind<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bind").field("link", &self.link).field("plan", &self.plan).finish_non_exhaustive()
    }
}
