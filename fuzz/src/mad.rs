//! Whatever reads the bytes of a MAD: header, CM messages and what is inside them, SA attributes.

use ibcm::proto::message::{IpHeader, Message, RejectInfo, SidrInfo};
use ibdev::MAD_LEN;
use ibwire::mad::{ClassPortInfo, MadHeader};
use ibwire::{DecodeError, PathRecord};

use crate::seeds::{self, Seed};

/// Reserved fields of these are not kept: what was read comes back as an equal value.
macro_rules! check_values {
    ($bytes:expr; $($value:ident)*) => {
        $(match $value::parse($bytes) {
            Ok(value) => assert_eq!($value::parse(&value.to_bytes()), Ok(value)),
            Err(error) => assert!(
                $bytes.len() < $value::LEN && matches!(error, DecodeError::Truncated { .. }),
                "{error}"
            ),
        })*
    };
}

/// The target: the input is a MAD, cut or filled with zeros to 256 bytes.
pub fn run(bytes: &[u8]) {
    check_values!(bytes; MadHeader ClassPortInfo PathRecord);
    let mad = padded(bytes);
    match Message::decode(&mad) {
        Ok((header, message)) => check_message(&header, &message),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What was decoded is fixed from then on: encoded and decoded again it is the same.
fn check_message(header: &MadHeader, message: &Message) {
    let mut mad = [0xee; MAD_LEN]; // what an earlier message left in the buffer
    message.encode(header.tid, &mut mad);
    let again = Message::decode(&mad);
    assert_eq!(again.as_ref().map(|(header, message)| (header.tid, message)), Ok((header.tid, message)));
    match message {
        Message::Req(req) => {
            if let Ok((ip, _)) = IpHeader::split(&req.private_data) {
                assert_eq!(IpHeader::decode(&ip.encode()), Ok(ip));
            }
        }
        Message::Rej(rej) => {
            let info = RejectInfo::decode(rej.reason, &rej.ari);
            assert!(info.encode().as_bytes().len() <= rej.ari.as_bytes().len());
        }
        Message::SidrReq(req) => {
            if let Ok((ip, _)) = IpHeader::split(&req.private_data) {
                assert_eq!(IpHeader::decode(&ip.encode()), Ok(ip));
            }
        }
        Message::SidrRep(rep) => {
            let info = SidrInfo::decode(rep.status, &rep.info);
            assert!(info.encode().as_bytes().len() <= rep.info.as_bytes().len());
        }
        _ => {}
    }
}

pub(crate) fn padded(bytes: &[u8]) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let len = bytes.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&bytes[..len]);
    mad
}

/// The MADs of all captures, and those of OpenSM.
pub fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<_> = seeds::frames()
        .into_iter()
        .filter_map(|frame| Some(Seed { bytes: frame.mad()?.to_vec(), name: frame.name }))
        .collect();
    seeds.extend(seeds::sa_mads());
    seeds
}
