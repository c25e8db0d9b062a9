//! Messages captured from OpenSM and Linux; spec/sa.md says how.

#![allow(dead_code, reason = "each test target uses its part")]

use std::path::Path;

use ibsa::mad::SaHeader;
use ibsa::record::{Layout, Record};

/// The message `label` of `file`, such as `node-get/sa1` of `02-noderecord-get`.
pub(crate) fn message(file: &str, label: &str) -> Vec<u8> {
    let found = messages(file).into_iter().find(|(name, _)| name == label);
    found.unwrap_or_else(|| panic!("{label} is not in {file}")).1
}

/// All messages of `file` with their labels.
pub(crate) fn messages(file: &str) -> Vec<(String, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/captures/{file}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut messages: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("@ ") {
            let label = head.split(' ').next().unwrap();
            messages.push((label.into(), Vec::new()));
        } else if !line.starts_with('#') && !line.is_empty() {
            let (_, bytes) = messages.last_mut().expect("bytes follow a label");
            bytes.extend(line.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()));
        }
    }
    messages
}

/// Names of all capture files of SA MADs.
pub(crate) fn files() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> = names.filter_map(|name| Some(name.strip_suffix(".hex")?.to_owned())).collect();
    files.retain(|name| name != "19-ibsim-datagrams");
    files.sort();
    files
}

/// The only record of a message.
pub(crate) fn record<R: Record>(file: &str, label: &str) -> R {
    let message = message(file, label);
    assert_eq!(SaHeader::parse(&message).unwrap().mad.attribute, R::ATTRIBUTE, "{file} {label}");
    R::parse(&message[SaHeader::LEN..]).unwrap()
}

/// The data of a table answer, its segments put together, and the attribute offset.
pub(crate) fn data(file: &str, exchange: &str) -> (Vec<u8>, u16) {
    let mut whole = Vec::new();
    let mut offset = 0;
    for (label, bytes) in messages(file) {
        let header = SaHeader::parse(&bytes).unwrap();
        if !label.starts_with(&format!("{exchange}/sa")) || header.rmpp.kind.0 != 1 {
            continue;
        }
        offset = header.attribute_offset;
        let len = match header.rmpp.flags & 4 != 0 {
            true => header.rmpp.length_or_window as usize - 20,
            false => SaHeader::DATA_LEN,
        };
        whole.extend_from_slice(&bytes[SaHeader::LEN..SaHeader::LEN + len]);
    }
    (whole, offset)
}

/// Header and record of a request, as one MAD of 256 bytes.
pub(crate) fn request<L: Layout>(header: SaHeader, record: &L) -> Vec<u8> {
    let mut mad = header.to_bytes().to_vec();
    mad.extend(record.to_bytes());
    mad.resize(256, 0);
    mad
}
