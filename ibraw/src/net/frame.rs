//! The header of a frame as packet sockets hand it out.

use ibcm_sys::packet::{Head, LinkAddress};
use ibwire::raw::EtherType;

use crate::link::LinkKind;

/// Length of the header in bytes. Of InfiniBand it is a pseudo header: 20 bytes of an address, EtherType, reserved.
pub(super) const fn header_len(kind: LinkKind) -> usize {
    if matches!(kind, LinkKind::InfiniBand) { 24 } else { 14 }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dst: Option<LinkAddress>,
    pub(super) src: Option<LinkAddress>,
    pub(super) ether_type: EtherType,
}

/// Reads the header; `None` if the frame is shorter.
pub(super) fn parse(kind: LinkKind, frame: &[u8]) -> Option<Header> {
    let header = frame.get(..header_len(kind))?;
    let number = |at: usize| EtherType(u16::from_be_bytes([header[at], header[at + 1]]));
    Some(match kind {
        // The address before it is all zeros.
        LinkKind::InfiniBand => Header { dst: None, src: None, ether_type: number(20) },
        _ => Header {
            dst: LinkAddress::new(&header[..6]),
            src: LinkAddress::new(&header[6..12]),
            ether_type: number(12),
        },
    })
}

/// The header of a frame that is sent.
pub(super) fn build(
    kind: LinkKind,
    dst: LinkAddress,
    src: LinkAddress,
    ether_type: EtherType,
) -> [u8; Head::MAX] {
    let mut header = [0; Head::MAX];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    match (kind, dst.as_bytes().first_chunk::<6>(), src.as_bytes().first_chunk::<6>()) {
        (LinkKind::InfiniBand, ..) | (_, None, _) | (_, _, None) => {
            put(0, dst.as_bytes());
            put(20, &ether_type.0.to_be_bytes());
        }
        (_, Some(dst), Some(src)) => {
            put(0, dst);
            put(6, src);
            put(12, &ether_type.0.to_be_bytes());
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_both_ways() {
        let [dst, src] =
            [[0x33, 0x33, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]].map(|address| LinkAddress::new(&address).unwrap());
        let header = build(LinkKind::Ethernet, dst, src, EtherType::LOCAL_1);
        assert_eq!(header[..14], [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
        let read = parse(LinkKind::Ethernet, &header).unwrap();
        assert_eq!(read, Header { dst: Some(dst), src: Some(src), ether_type: EtherType::LOCAL_1 });
        assert_eq!(parse(LinkKind::Ethernet, &header[..13]), None);
        let far = LinkAddress::new(&[7; 20]).unwrap();
        let header = build(LinkKind::InfiniBand, far, src, EtherType::IPV6);
        assert_eq!((&header[..20], &header[20..]), (&[7; 20][..], &[0x86, 0xdd, 0, 0][..]));
        assert_eq!(parse(LinkKind::InfiniBand, &header).unwrap().ether_type, EtherType::IPV6);
    }
}
