//! The invariant CRC of InfiniBand and RoCEv2 packets (IBTA vol. 1, 7.8.1; spec/softhca.md 1.8).
//!
//! A CRC-32 over the packet without what routers and switches change. On RoCEv2 it covers the IP and UDP headers
//! too, so a sender has to know them in advance: [`Ipv4Pseudo`] and [`Ipv6Pseudo`] stand for what the kernel of a
//! UDP socket will write. Whoever has the whole packet uses [`of_ipv4_frame`], [`of_ipv6_frame`] or [`of_ib_frame`].
//!
//! ```
//! use ibwire::icrc::{Icrc, Ipv4Pseudo};
//! // An RC acknowledgement from 10.77.0.2 to 10.77.0.1 with Identification 0x419a.
//! let bth_and_aeth = [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0x11, 0x11, 0x11, 0x1f, 0, 0, 1];
//! let mut pseudo = Ipv4Pseudo::new("10.77.0.2:49441".parse()?, "10.77.0.1:4791".parse()?);
//! pseudo.id = 0x419a;
//! assert_eq!(pseudo.icrc(&bth_and_aeth), Icrc([0xf2, 0x92, 0x99, 0xf5]));
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

mod id;
mod start;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

pub use id::{FoundId, IdClass};
pub use start::{IcrcStart, Ipv4Start};

use crate::DecodeError;
use crate::packet::{Bth, Grh, Ipv4Header, Lrh, NextHeader, UdpHeader};

/// The four bytes at the end of a packet, in the order in which they stand there: least significant first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icrc(pub [u8; 4]);

impl Icrc {
    /// Length in bytes.
    pub const LEN: usize = 4;

    fn value(self) -> u32 {
        u32::from_le_bytes(self.0)
    }
}

impl fmt::Display for Icrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.value())
    }
}

impl fmt::Debug for Icrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Icrc({self})")
    }
}

/// What the IPv4 and UDP headers of a RoCEv2 packet contribute to its ICRC.
///
/// A plain UDP socket never shows these headers. For sending, the Identification must be what the kernel writes
/// (spec/softhca.md 1.10); for receiving, [`Ipv4Pseudo::find_id`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv4Pseudo {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// Identification.
    pub id: u16,
    /// The flag DF. The other flags and the fragment offset are 0.
    pub dont_fragment: bool,
}

impl Ipv4Pseudo {
    /// A packet with Identification 0 and DF: what an unconnected socket with path MTU discovery sends.
    pub const fn new(src: SocketAddrV4, dst: SocketAddrV4) -> Self {
        Self {
            src: *src.ip(),
            dst: *dst.ip(),
            src_port: src.port(),
            dst_port: dst.port(),
            id: 0,
            dont_fragment: true,
        }
    }

    /// The ICRC of the packet with these headers and with `transport`: BTH through padding, at most 65,503 bytes.
    pub fn icrc(&self, transport: &[u8]) -> Icrc {
        self.start_with_id(transport.len()).icrc(transport)
    }

    /// What all packets have in common that have these headers, but for the Identification, and whose BTH through padding
    /// is `transport_len` bytes, at most 65,503.
    pub fn start(&self, transport_len: usize) -> Ipv4Start {
        Ipv4Start::new(Self { id: 0, ..*self }.start_with_id(transport_len))
    }

    fn start_with_id(&self, transport_len: usize) -> IcrcStart {
        let udp_len = UdpHeader::LEN + transport_len + Icrc::LEN;
        let mut headers = [0xff; IPV4_UDP_LEN];
        headers[0] = Ipv4Header::VERSION_IHL;
        headers[2..4].copy_from_slice(&((Ipv4Header::LEN + udp_len) as u16).to_be_bytes());
        headers[4..6].copy_from_slice(&self.id.to_be_bytes());
        headers[6..8].copy_from_slice(&(u16::from(self.dont_fragment) << 14).to_be_bytes());
        headers[9] = Ipv4Header::UDP;
        headers[12..16].copy_from_slice(&self.src.octets());
        headers[16..20].copy_from_slice(&self.dst.octets());
        headers[20..26].copy_from_slice(&ports_and_len(self.src_port, self.dst_port, udp_len));
        IcrcStart::behind_pseudo_lrh(&headers)
    }
}

/// What the IPv6 and UDP headers of a RoCEv2 packet contribute to its ICRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6Pseudo {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

impl Ipv6Pseudo {
    /// The ICRC of the packet with these headers and with `transport`: BTH through padding, at most 65,523 bytes.
    pub fn icrc(&self, transport: &[u8]) -> Icrc {
        self.start(transport.len()).icrc(transport)
    }

    /// What all packets have in common that have these headers and whose BTH through padding is `transport_len` bytes, at
    /// most 65,523.
    pub fn start(&self, transport_len: usize) -> IcrcStart {
        let udp_len = UdpHeader::LEN + transport_len + Icrc::LEN;
        let mut headers = [0xff; IPV6_UDP_LEN];
        headers[0] = 0x6f;
        headers[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        headers[6] = Grh::NEXT_UDP;
        headers[8..24].copy_from_slice(&self.src.octets());
        headers[24..40].copy_from_slice(&self.dst.octets());
        headers[40..46].copy_from_slice(&ports_and_len(self.src_port, self.dst_port, udp_len));
        IcrcStart::behind_pseudo_lrh(&headers)
    }
}

fn ports_and_len(src_port: u16, dst_port: u16, udp_len: usize) -> [u8; 6] {
    let ([a, b], [c, d], [e, f]) =
        (src_port.to_be_bytes(), dst_port.to_be_bytes(), (udp_len as u16).to_be_bytes());
    [a, b, c, d, e, f]
}

const IPV4_UDP_LEN: usize = Ipv4Header::LEN + UdpHeader::LEN;
const IPV6_UDP_LEN: usize = Grh::LEN + UdpHeader::LEN;

/// Where the BTH has its one byte that the ICRC does not cover.
const MASKED_BTH_BYTE: usize = 4;

/// The CRC-32 polynomial with the coefficient of x^0 in bit 31, as all polynomials here.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Traffic class, flow label and hop limit of a GRH or IPv6 header.
fn mask_class_flow_hops(header: &mut [u8]) {
    header[0] |= 0x0f;
    header[1..4].fill(0xff);
    header[7] = 0xff;
}

fn of_frame(start: IcrcStart, what: &'static str, frame: &[u8], bth_at: usize) -> Result<Icrc, DecodeError> {
    let need = bth_at + Bth::LEN;
    if frame.len() < need {
        return Err(DecodeError::Truncated { what, need, have: frame.len() });
    }
    Ok(start.icrc(&frame[bth_at..]))
}

/// The headers at the start of a frame, to be masked.
fn headers<const N: usize>(what: &'static str, frame: &[u8]) -> Result<[u8; N], DecodeError> {
    frame.first_chunk().copied().ok_or(DecodeError::Truncated { what, need: N, have: frame.len() })
}

/// The ICRC of a RoCEv2 packet over IPv4: `frame` is all from the IP header to the byte before the ICRC.
///
/// Addresses, lengths and protocol count as they stand there; nothing is checked against the frame.
///
/// # Errors
/// [`DecodeError`] if the frame ends before its BTH does, or is not IPv4 or has IP options.
pub fn of_ipv4_frame(frame: &[u8]) -> Result<Icrc, DecodeError> {
    const WHAT: &str = "RoCEv2 packet over IPv4";
    let mut headers = headers::<IPV4_UDP_LEN>(WHAT, frame)?;
    Ipv4Header::parse(&headers)?;
    headers[1] = 0xff;
    headers[8] = 0xff;
    headers[10..12].fill(0xff);
    headers[26..28].fill(0xff);
    of_frame(IcrcStart::behind_pseudo_lrh(&headers), WHAT, frame, IPV4_UDP_LEN)
}

/// The ICRC of a RoCEv2 packet over IPv6: `frame` is all from the IP header to the byte before the ICRC.
///
/// # Errors
/// [`DecodeError`] if the frame ends before its BTH does, or is not IPv6.
pub fn of_ipv6_frame(frame: &[u8]) -> Result<Icrc, DecodeError> {
    const WHAT: &str = "RoCEv2 packet over IPv6";
    let mut headers = headers::<IPV6_UDP_LEN>(WHAT, frame)?;
    Grh::parse(&headers)?;
    mask_class_flow_hops(&mut headers);
    headers[46..48].fill(0xff);
    of_frame(IcrcStart::behind_pseudo_lrh(&headers), WHAT, frame, IPV6_UDP_LEN)
}

/// The ICRC of an InfiniBand packet, with or without a GRH: `frame` is all from the LRH to the byte before the ICRC.
///
/// # Errors
/// [`DecodeError`] if the frame ends before its BTH does, or has none (raw packets have no ICRC), or has a GRH of
/// another version.
pub fn of_ib_frame(frame: &[u8]) -> Result<Icrc, DecodeError> {
    const WHAT: &str = "InfiniBand packet";
    let lrh_bytes = headers::<{ Lrh::LEN }>(WHAT, frame)?;
    match Lrh::parse(&lrh_bytes)?.next {
        NextHeader::Bth => of_frame(IcrcStart::behind_lrh(&lrh_bytes), WHAT, frame, Lrh::LEN),
        NextHeader::Grh => {
            let grh_bytes = headers::<{ Grh::LEN }>(WHAT, &frame[Lrh::LEN..])?;
            Grh::parse(&grh_bytes)?;
            of_frame(IcrcStart::behind_grh(&grh_bytes), WHAT, frame, Lrh::LEN + Grh::LEN)
        }
        raw @ (NextHeader::RawEtherType | NextHeader::RawIpv6) => {
            Err(DecodeError::Invalid { what: "LRH next header", offset: 1, value: raw as u32 })
        }
    }
}
