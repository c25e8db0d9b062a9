//! Whatever reads the bytes of subnet administration: the headers of both class versions, each record, tables, answers.

use ibsa::mad::{MalformedTable, SaHeader, table};
use ibsa::record::{self, Layout, Record, Template, v1};

use crate::seeds::{self, Seed};

/// Each of these, over the bytes behind the header.
macro_rules! check_records {
    ($bytes:expr; $($record:path),* $(,)?) => { $( check_record::<$record>($bytes); )* };
}

/// The target: the input is an SA MAD, or one behind whose header a whole table stands.
pub fn run(bytes: &[u8]) {
    check_headers(bytes);
    let Some((header, data)) = SaHeader::parse(bytes).ok().zip(bytes.get(SaHeader::LEN..)) else { return };
    check_records!(data;
        record::ClassPortInfo, record::NodeRecord, record::PortInfoRecord, record::PortInfoExtendedRecord,
        record::SwitchInfoRecord, record::LftRecord, record::RftRecord, record::MftRecord,
        record::Sl2VlTableRecord, record::VlArbitrationTableRecord, record::PKeyTableRecord,
        record::GuidInfoRecord, record::SmInfoRecord, record::LinkRecord, record::TraceRecord,
        record::PathRecord, record::McMemberRecord, record::ServiceRecord,
        record::ServiceAssociationRecord, record::InformInfo, record::InformInfoRecord, record::Notice,
        v1::NodeRecord, v1::PortInfoRecord, v1::SlToVlMappingTableRecord, v1::SwitchInfoRecord,
        v1::LinearForwardingTableRecord, v1::RandomForwardingTableRecord,
        v1::MulticastForwardingTableRecord, v1::VlArbitrationTableRecord, v1::SmInfoRecord,
        v1::PartitionRecord, v1::LinkRecord, v1::GuidInfoRecord, v1::ServiceRecord, v1::RangeRecord,
        v1::McGroupRecord, v1::McMemberRecord, v1::PathRecord,
    );
    check_layout::<record::MultiPathRecord>(data);
    check_layout::<v1::InformRecord>(data);
    check_layout::<v1::NoticeRecord>(data);
    check_methods(data);
    check_table::<record::NodeRecord>(data, header.attribute_offset);
    check_table::<record::LinkRecord>(data, header.attribute_offset);
    check_table::<record::ServiceRecord>(data, header.attribute_offset);
    if let Ok((response, rest)) = v1::SaResponse::parse(data) {
        let again = response.to_bytes();
        assert_eq!(again.len() + rest.len(), data.len());
        assert_eq!(v1::SaResponse::parse(&again), Ok((response, &[][..])));
    }
}

fn check_headers(bytes: &[u8]) {
    match SaHeader::parse(bytes) {
        Ok(header) => assert_eq!(SaHeader::parse(&header.to_bytes()), Ok(header)),
        Err(_) => assert!(bytes.len() < SaHeader::LEN),
    }
    match v1::Header::parse(bytes) {
        Ok(header) => assert_eq!(v1::Header::parse(&header.to_bytes()), Ok(header)),
        Err(_) => assert!(bytes.len() < v1::Header::LEN),
    }
}

fn check_record<R: Record>(bytes: &[u8]) {
    if let Some(record) = check_layout::<R>(bytes) {
        assert!(!record.to_string().is_empty() && !format!("{record:#}").is_empty());
    }
}

/// What was read can be sent and is read again, and no more bytes are written than there are.
fn check_layout<L: Layout>(bytes: &[u8]) -> Option<L> {
    let Ok(value) = L::parse(bytes) else {
        assert!(bytes.len() < L::LEN, "{}", L::NAME);
        return None;
    };
    assert!(bytes.len() >= L::LEN, "{}", L::NAME);
    assert_eq!(value.check(), Ok(()), "{}", L::NAME);
    let mut out = vec![0xee; L::LEN + 8];
    value.write_to(&mut out);
    assert_eq!(out[L::LEN..], [0xee; 8], "{}", L::NAME);
    assert_eq!(L::parse(&out).as_ref(), Ok(&value), "{}", L::NAME);
    assert_eq!(value.to_bytes(), out[..L::LEN], "{}", L::NAME);
    let sent = Template::with_mask(value.clone(), u64::MAX).checked();
    assert!(sent.is_ok_and(|(record, mask)| record == value && mask == u64::MAX));
    Some(value)
}

/// What records say beyond their fields.
fn check_methods(bytes: &[u8]) {
    if let Ok(record) = record::PortInfoRecord::parse(bytes) {
        _ = record.port_info.rate();
    }
    if let Ok(record) = record::MftRecord::parse(bytes) {
        for mlid in [0, 0xbfff, 0xc000, 0xc01f, 0xffff] {
            assert!(record.ports(ibwire::Lid(mlid)).count() <= 16);
        }
    }
    if let Ok(record) = record::LftRecord::parse(bytes) {
        for lid in [0, 63, 64, 0xffff] {
            _ = record.port(ibwire::Lid(lid));
        }
    }
    if let Ok(notice) = record::Notice::parse(bytes) {
        _ = notice.details();
    }
}

/// The records of a table are as many as fit, whatever the stride.
fn check_table<R: Record>(data: &[u8], offset: u16) {
    let stride = 8 * usize::from(offset);
    match table::<R>(data, offset) {
        Ok(records) if data.is_empty() => assert!(records.is_empty()),
        Ok(records) => assert_eq!(records.len(), data.len() / stride),
        Err(MalformedTable { need, len, .. }) => {
            assert!(stride < need && need == R::LEN && len == data.len());
        }
    }
}

/// The MADs of OpenSM and its clients.
pub fn seeds() -> Vec<Seed> {
    seeds::sa_captures()
}
