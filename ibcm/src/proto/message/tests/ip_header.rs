//! The IP header in the private data.

use std::net::{IpAddr, SocketAddr};

use ibwire::PrivateData;

use super::golden::golden_req;
use super::*;

fn header(source: &str, destination: &str) -> Option<IpHeader> {
    IpHeader::new(source.parse().unwrap(), destination.parse().unwrap())
}

#[test]
fn of_the_golden_req() {
    let private_data = golden_req().private_data;
    let (header, user) = IpHeader::split(&private_data).unwrap();
    assert_eq!(header.source(), "10.0.0.1:4660".parse::<SocketAddr>().unwrap());
    assert_eq!(header.destination(), "10.0.0.2".parse::<IpAddr>().unwrap());
    assert_eq!(user, &[0x55; 56]);
    assert_eq!(header.encode(), private_data[..36]);
}

#[test]
fn v6() {
    let ours = header("[fd77::2]:40000", "fd77::1").unwrap();
    let bytes = ours.encode();
    assert_eq!(bytes[..4], [0, 0x60, 0x9c, 0x40]);
    assert_eq!((bytes[4], bytes[19], bytes[20], bytes[35]), (0xfd, 2, 0xfd, 1));
    assert_eq!(IpHeader::decode(&bytes), Ok(ours));
    assert_eq!(header("[fd77::2]:1", "10.0.0.1"), None);
    assert_eq!(header("10.0.0.1:1", "fd77::2"), None);
}

#[test]
fn cm_t55_56_bytes_are_left() {
    let ours = header("10.0.0.1:1", "10.0.0.2").unwrap();
    assert_eq!(ours.private_data::<92>(&[9; 56]).unwrap()[36..], [9; 56]);
    let refused = ours.private_data::<92>(&[9; 57]).unwrap_err();
    assert_eq!((refused.len, refused.max), (57, 56));
    assert_eq!(ours.private_data::<216>(&[9; 180]).unwrap()[36..], [9; 180]);
    let refused = ours.private_data::<216>(&[9; 181]).unwrap_err();
    assert_eq!((refused.len, refused.max), (181, IpHeader::SIDR_USER_LEN));
}

#[test]
fn cm_t56_the_receiver_sees_56_zero_padded_bytes() {
    let area = header("10.0.0.1:1", "10.0.0.2").unwrap().private_data::<92>(&[9; 40]).unwrap();
    let (_, user) = IpHeader::split(&area).unwrap();
    assert_eq!(user[..40], [9; 40]);
    assert_eq!(user[40..], [0; 16]);
}

#[test]
fn cm_t57_unknown_versions() {
    let with = |version: u8, ip_version: u8| {
        let mut area = *golden_req().private_data.as_bytes();
        (area[0], area[1]) = (version, ip_version);
        IpHeader::split(&PrivateData::from_area(area)).map(|(header, _)| header)
    };
    assert_eq!(with(0x10, 0x40), Err(IpHeaderError::Version { major: 1, minor: 0 }));
    assert_eq!(with(0x01, 0x40), Err(IpHeaderError::Version { major: 0, minor: 1 }));
    assert_eq!(with(0, 0x50), Err(IpHeaderError::IpVersion(5)));
    assert_eq!(with(0, 0x00), Err(IpHeaderError::IpVersion(0)));
    assert!(with(0, 0x4f).is_ok(), "the low bits are reserved");
}

#[test]
fn cm_t58_padding_before_an_ipv4_address_is_ignored() {
    let mut bytes = header("10.0.0.1:4660", "10.0.0.2").unwrap().encode();
    bytes[4..16].fill(0xff);
    bytes[20..32].fill(0xee);
    assert_eq!(IpHeader::decode(&bytes).unwrap(), header("10.0.0.1:4660", "10.0.0.2").unwrap());
}
