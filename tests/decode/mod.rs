//! A decoder that is not ours: what tshark says about packets, and what it ought to say about our values.
//!
//! tshark proves layout, never a CRC: it prints ICRC and VCRC without checking them. What it is known to misread is left out of
//! [`fields`], with a word there.

pub mod capture;
pub mod conversation;
pub mod fields;
pub mod frame;
pub mod samples;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What a field ought to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// A number, however tshark writes it.
    Number(u64),
    /// Bytes, which tshark writes with colons.
    Bytes(Vec<u8>),
    /// A text, letter by letter.
    Text(String),
}

/// One frame of a capture as tshark sees it.
#[derive(Debug, Clone)]
pub struct Decoded {
    fields: BTreeMap<String, Vec<String>>,
}

/// Runs tshark over a capture.
///
/// # Errors
///
/// tshark is missing, fails, or does not write JSON.
pub fn tshark(capture: &Path) -> Result<Vec<Decoded>, String> {
    let output = Command::new("tshark")
        // Its guess that short messages are RPC over RDMA is wrong, and it calls the guess malformed.
        .args(["--disable-protocol", "rpcordma"])
        .args(["-n", "-T", "json", "--no-duplicate-keys", "-r"])
        .arg(capture)
        .output()
        .map_err(|error| format!("tshark: {error}"))?;
    if !output.status.success() {
        return Err(format!("tshark: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let frames: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("tshark's JSON: {error}"))?;
    let frames = frames.as_array().ok_or("tshark's JSON is no list")?;
    Ok(frames.iter().map(|frame| Decoded::new(&frame["_source"]["layers"])).collect())
}

impl Decoded {
    fn new(layers: &Value) -> Self {
        let mut fields = BTreeMap::new();
        flatten("", layers, &mut fields);
        Self { fields }
    }

    /// The values of a field, none if the frame does not have it.
    pub fn values(&self, field: &str) -> &[String] {
        self.fields.get(field).map_or(&[], Vec::as_slice)
    }

    /// All that is wrong with this frame: marks of tshark's own (malformed, truncated, expert's remarks) and fields
    /// that are not as wanted.
    pub fn complaints(&self, wanted: &[(&str, Want)]) -> Vec<String> {
        let marks = self.fields.iter().filter(|(name, _)| name.starts_with("_ws."));
        let marks = marks.map(|(name, values)| format!("{name}: {}", values.join(", ")));
        let unlike = wanted.iter().filter_map(|(name, want)| {
            let seen = self.values(name);
            // Some fields come twice, as the branch and its only leaf.
            let all_alike = !seen.is_empty() && seen.iter().all(|value| want.is(value));
            (!all_alike).then(|| format!("{name} is {seen:?}, not {want:?}"))
        });
        marks.chain(unlike).collect()
    }
}

impl Want {
    fn is(&self, seen: &str) -> bool {
        match self {
            Self::Text(text) => text == seen,
            Self::Bytes(bytes) => {
                let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                pairs.join(":") == seen
            }
            Self::Number(number) => {
                let seen = match seen.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => seen.parse(),
                };
                seen == Ok(*number)
            }
        }
    }
}

/// Every name with its text values, wherever in the tree it stands. Names of mere branches, which tshark ends with
/// `_tree`, are dropped; marks are kept even where they are branches.
fn flatten(name: &str, value: &Value, fields: &mut BTreeMap<String, Vec<String>>) {
    match value {
        Value::Object(children) => {
            if name.starts_with("_ws.") {
                fields.entry(name.to_owned()).or_default();
            }
            for (name, child) in children {
                flatten(name, child, fields);
            }
        }
        Value::Array(values) => {
            for value in values {
                flatten(name, value, fields);
            }
        }
        Value::String(text) => fields.entry(name.to_owned()).or_default().push(text.clone()),
        other => fields.entry(name.to_owned()).or_default().push(other.to_string()),
    }
}
