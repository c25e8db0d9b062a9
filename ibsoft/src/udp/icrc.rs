//! ICRCs of packets between socket addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ibwire::icrc::{FoundId, Icrc, IcrcStart, IdClass, Ipv4Pseudo, Ipv4Start, Ipv6Pseudo};

/// What packets of one length between two addresses have in common.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    V4(Ipv4Start),
    V6(IcrcStart),
}

impl Start {
    /// Of packets with `len` bytes from the BTH through the padding.
    fn new(src: SocketAddr, dst: SocketAddr, len: usize) -> Self {
        match (src, dst) {
            (SocketAddr::V4(src), SocketAddr::V4(dst)) => Self::V4(Ipv4Pseudo::new(src, dst).start(len)),
            _ => {
                let (src_port, dst_port) = (src.port(), dst.port());
                Self::V6(Ipv6Pseudo { src: v6(src), dst: v6(dst), src_port, dst_port }.start(len))
            }
        }
    }

    /// The ICRC of a packet from the BTH through the padding; only IPv4 has an Identification.
    pub(super) fn icrc(self, id: u16, transport: &[u8]) -> Icrc {
        match self {
            Self::V4(start) => start.with_id(id).icrc(transport),
            Self::V6(start) => start.icrc(transport),
        }
    }

    /// Whether a packet is undamaged, and what its Identification was, as far as that can be told: see
    /// [`Ipv4Start::find_id`].
    pub(super) fn find_id(
        self,
        transport: &[u8],
        received: Icrc,
        last: Option<u16>,
        guess: u16,
    ) -> Option<FoundId> {
        match self {
            Self::V4(start) => start.find_id(transport, received, last, guess),
            Self::V6(start) => {
                (start.icrc(transport) == received).then_some(FoundId { id: 0, class: IdClass::Zero })
            }
        }
    }
}

fn v6(addr: SocketAddr) -> Ipv6Addr {
    match addr.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The last [`Start`]s: most packets are as long as one of the two before, and go the same way.
#[derive(Debug, Default)]
pub(super) struct LastStarts {
    known: [Option<Known>; 2],
    /// The one that was found first.
    older: usize,
}

#[derive(Debug)]
struct Known {
    src: SocketAddr,
    dst: SocketAddr,
    len: usize,
    start: Start,
}

impl LastStarts {
    /// That of packets with `len` bytes from the BTH through the padding.
    pub(super) fn of(&mut self, src: SocketAddr, dst: SocketAddr, len: usize) -> Start {
        let fits = |known: &&Known| known.len == len && known.dst == dst && known.src == src;
        if let Some(known) = self.known.iter().flatten().find(fits) {
            return known.start;
        }
        let start = Start::new(src, dst, len);
        self.known[self.older] = Some(Known { src, dst, len, start });
        self.older = 1 - self.older;
        start
    }
}
