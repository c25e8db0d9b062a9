//! Who reads a log learns no key.

use std::time::Instant;

use ibsa::Request;
use ibsa::mad::SaHeader;
use ibsa::record::v1::{Header, SaResponse};
use ibsa::record::{InvalidField, PortInfo, ServiceAssociationRecord, ServiceRecord, SmInfoRecord, Template};
use ibwire::mad::{MadHeader, Method};

#[test]
fn no_key_is_in_the_debug_form() -> Result<(), InvalidField> {
    const KEY: u64 = 0x0a5a_5a5a;
    let key = [0xa5; 16];
    let service = ServiceRecord { service_key: key, service_lease: 7, ..ServiceRecord::default() };
    let template = Template::<ServiceRecord>::new().service_key(key);
    let mut request = Request::new(Method::SET, template.clone(), Instant::now())?;
    request.sm_key = KEY;
    let mad = MadHeader::parse(&[0; 256]).unwrap_or_else(|_| unreachable!("it is long enough"));
    let v1 = Header::parse(&[0; 256]).unwrap_or_else(|_| unreachable!("it is long enough"));
    let forms = [
        format!("{service:?}"),
        format!("{template:?} {request:?}"),
        format!("{:?}", ServiceAssociationRecord { service_key: key, ..ServiceAssociationRecord::default() }),
        format!("{:?}", PortInfo { m_key: KEY, ..PortInfo::default() }),
        format!("{:?}", SmInfoRecord { sm_key: KEY, ..SmInfoRecord::default() }),
        format!("{:?}", SaHeader { sm_key: KEY, ..SaHeader::new(mad) }),
        format!("{:?}", Header { sa_key: KEY, sm_key: KEY, ..v1 }),
        format!("{:?}", SaResponse { current_key: KEY as u32, tables: Vec::new() }),
    ];
    for form in &forms {
        assert!(!form.contains("165, 165"), "{form}"); // the bytes of the key, as any array shows them
        assert!(!form.contains(&KEY.to_string()), "{form}");
    }
    assert!(forms[0].contains("service_key: .., ") && forms[0].contains("service_lease: 7"), "{}", forms[0]);
    Ok(())
}
