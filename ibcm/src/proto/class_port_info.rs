//! Get and Set MADs of the CM class: what it tells about itself (spec/cm.md 1.5, 1.6).

use ibdev::MAD_LEN;
use ibwire::TimeCode;
use ibwire::mad::{AttributeId, ClassPortInfo, MadHeader, MadStatus, Method};

use super::message::CLASS_VERSION;

/// The class supports reliable connections.
const RC_CAPABLE: u16 = 0x0200;

/// The class supports service ID resolution.
const SIDR_CAPABLE: u16 = 0x2000;

/// Code for how long an answer may take: 1.07 s.
const RESPONSE_TIME: u8 = 18;

/// The answer to a MAD of the CM class that is no Send; `None` if there is none to give.
pub(super) fn answer(mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let header = MadHeader::parse(mad).ok()?;
    let is_get = match header.method {
        Method::GET => true,
        Method::SET => false,
        _ => return None,
    };
    let mut answer = *mad;
    let status = match header.attribute {
        AttributeId::CLASS_PORT_INFO if is_get => MadStatus::OK,
        AttributeId::CLASS_PORT_INFO => MadStatus::BAD_METHOD,
        _ => MadStatus::BAD_METHOD_ATTRIBUTE,
    };
    header.response(status).write_to(&mut answer);
    if status == MadStatus::OK {
        let payload = &mut answer[MadHeader::LEN..];
        payload.fill(0);
        let info = ClassPortInfo {
            base_version: MadHeader::BASE_VERSION,
            class_version: CLASS_VERSION,
            capability_mask: RC_CAPABLE | SIDR_CAPABLE,
            resp_time: TimeCode::truncate(RESPONSE_TIME),
            ..ClassPortInfo::default()
        };
        info.write_to(payload);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use ibwire::TransactionId;
    use ibwire::mad::MgmtClass;

    use super::*;

    fn mad(method: Method, attribute: u16) -> [u8; MAD_LEN] {
        let mut mad = [0xee; MAD_LEN];
        MadHeader::new(MgmtClass::CM, 2, method, AttributeId(attribute), TransactionId(77))
            .write_to(&mut mad);
        mad
    }

    #[test]
    fn what_is_answered_to_get_and_set() {
        let status = |method, attribute| {
            answer(&mad(method, attribute)).map(|mad| {
                let header = MadHeader::parse(&mad).unwrap();
                assert_eq!((header.method, header.tid), (Method::GET_RESP, TransactionId(77)));
                header.status
            })
        };
        assert_eq!(status(Method::GET, 1), Some(MadStatus::OK));
        assert_eq!(status(Method::SET, 1), Some(MadStatus::BAD_METHOD));
        assert_eq!(status(Method::GET, 0x10), Some(MadStatus::BAD_METHOD_ATTRIBUTE));
        assert_eq!(status(Method::GET_RESP, 1), None);
        assert_eq!(status(Method::TRAP, 2), None);
    }

    #[test]
    fn the_class_port_info() {
        let mad = answer(&mad(Method::GET, 1)).unwrap();
        let info = ClassPortInfo::parse(&mad[MadHeader::LEN..]).unwrap();
        assert_eq!((info.base_version, info.class_version), (1, 2));
        assert_eq!((info.capability_mask, info.resp_time.get()), (0x2200, 18));
        assert!(mad[MadHeader::LEN + 8..].iter().all(|&byte| byte == 0));
    }
}
