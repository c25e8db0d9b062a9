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

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

pub use id::{FoundId, IdClass};

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
    #[inline]
    pub fn icrc(&self, transport: &[u8]) -> Icrc {
        let mut hasher = self.hasher(transport.len());
        hasher.update(transport);
        hasher.finalize()
    }

    /// Starts the ICRC of a packet whose BTH through padding will be `transport_len` bytes, at most 65,503.
    #[inline]
    pub fn hasher(&self, transport_len: usize) -> IcrcHasher {
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
        IcrcHasher::behind_pseudo_lrh(&headers)
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
    #[inline]
    pub fn icrc(&self, transport: &[u8]) -> Icrc {
        let mut hasher = self.hasher(transport.len());
        hasher.update(transport);
        hasher.finalize()
    }

    /// Starts the ICRC of a packet whose BTH through padding will be `transport_len` bytes, at most 65,523.
    #[inline]
    pub fn hasher(&self, transport_len: usize) -> IcrcHasher {
        let udp_len = UdpHeader::LEN + transport_len + Icrc::LEN;
        let mut headers = [0xff; IPV6_UDP_LEN];
        headers[0] = 0x6f;
        headers[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        headers[6] = Grh::NEXT_UDP;
        headers[8..24].copy_from_slice(&self.src.octets());
        headers[24..40].copy_from_slice(&self.dst.octets());
        headers[40..46].copy_from_slice(&ports_and_len(self.src_port, self.dst_port, udp_len));
        IcrcHasher::behind_pseudo_lrh(&headers)
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

/// An ICRC in the making: fed with the packet from the BTH to the padding, in pieces of any size.
#[derive(Debug, Clone)]
pub struct IcrcHasher {
    crc: crc32fast::Hasher,
    /// How many bytes stand before the masked byte of the BTH; `None` behind it.
    before_mask: Option<usize>,
}

impl IcrcHasher {
    /// CRC-32 of the eight bytes 0xff that stand for the LRH where there is none, or where all of it may change.
    const PSEUDO_LRH: u32 = 0x2144_df1c;

    /// Starts the ICRC of an InfiniBand packet without a GRH.
    pub fn local(lrh: &Lrh) -> Self {
        Self::behind_lrh(&lrh.to_bytes())
    }

    /// Starts the ICRC of an InfiniBand packet with this GRH. It does not depend on the LRH.
    pub fn global(grh: &Grh) -> Self {
        Self::behind_grh(&grh.to_bytes())
    }

    fn behind_lrh(lrh: &[u8; Lrh::LEN]) -> Self {
        let mut lrh = *lrh;
        lrh[0] |= 0xf0;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&lrh);
        Self { crc, before_mask: Some(MASKED_BTH_BYTE) }
    }

    fn behind_grh(grh: &[u8; Grh::LEN]) -> Self {
        let mut grh = *grh;
        mask_class_flow_hops(&mut grh);
        Self::behind_pseudo_lrh(&grh)
    }

    fn behind_pseudo_lrh(masked_headers: &[u8]) -> Self {
        let mut crc = crc32fast::Hasher::new_with_initial(Self::PSEUDO_LRH);
        crc.update(masked_headers);
        Self { crc, before_mask: Some(MASKED_BTH_BYTE) }
    }

    /// Adds the next bytes of the packet.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let Some(before) = self.before_mask else { return self.crc.update(bytes) };
        match bytes.split_at_checked(before) {
            Some((head, [_, tail @ ..])) => {
                self.crc.update(head);
                self.crc.update(&[0xff]);
                self.crc.update(tail);
                self.before_mask = None;
            }
            _ => {
                self.crc.update(bytes);
                self.before_mask = Some(before - bytes.len());
            }
        }
    }

    /// The ICRC of the bytes so far.
    #[inline]
    pub fn finalize(self) -> Icrc {
        Icrc(self.crc.finalize().to_le_bytes())
    }
}

/// Traffic class, flow label and hop limit of a GRH or IPv6 header.
fn mask_class_flow_hops(header: &mut [u8]) {
    header[0] |= 0x0f;
    header[1..4].fill(0xff);
    header[7] = 0xff;
}

fn of_frame(
    mut hasher: IcrcHasher,
    what: &'static str,
    frame: &[u8],
    bth_at: usize,
) -> Result<Icrc, DecodeError> {
    let need = bth_at + Bth::LEN;
    if frame.len() < need {
        return Err(DecodeError::Truncated { what, need, have: frame.len() });
    }
    hasher.update(&frame[bth_at..]);
    Ok(hasher.finalize())
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
    of_frame(IcrcHasher::behind_pseudo_lrh(&headers), WHAT, frame, IPV4_UDP_LEN)
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
    of_frame(IcrcHasher::behind_pseudo_lrh(&headers), WHAT, frame, IPV6_UDP_LEN)
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
        NextHeader::Bth => of_frame(IcrcHasher::behind_lrh(&lrh_bytes), WHAT, frame, Lrh::LEN),
        NextHeader::Grh => {
            let grh_bytes = headers::<{ Grh::LEN }>(WHAT, &frame[Lrh::LEN..])?;
            Grh::parse(&grh_bytes)?;
            of_frame(IcrcHasher::behind_grh(&grh_bytes), WHAT, frame, Lrh::LEN + Grh::LEN)
        }
        raw @ (NextHeader::RawEtherType | NextHeader::RawIpv6) => {
            Err(DecodeError::Invalid { what: "LRH next header", offset: 1, value: raw as u32 })
        }
    }
}
