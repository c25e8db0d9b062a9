//! Shared pieces of the examples.
#![forbid(unsafe_code)]

pub mod cm_trace;

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use ibcm::{Hca, OpenError};

/// The device that is named, else the default one: that of IBCM_DEVICE, or the only one of the machine.
pub async fn open(device: Option<&str>) -> Result<Hca, OpenError> {
    match device {
        Some(device) => Hca::open(device).await,
        None => Hca::open_default().await,
    }
}

/// The HCAs of a client and of a server in one process: a device that is named serves both ends, else each has a software
/// HCA of its own. What the client's does is written to a file, if one is named.
pub async fn both_ends(device: Option<&str>, pcap: Option<&Path>) -> Result<(Hca, Hca), OpenError> {
    let open = Hca::open(device.unwrap_or("soft"));
    let client = match pcap {
        Some(file) => open.pcap(file).await?,
        None => open.await?,
    };
    let server = match device {
        Some(_) => client.clone(),
        None => Hca::open("soft").await?,
    };
    Ok((client, server))
}

/// The device behind `--device` on the command line, and the words besides.
pub fn arguments() -> (Option<String>, Vec<String>) {
    let (mut device, mut others) = (None, Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--device" => device = words.next(),
            _ => others.push(word),
        }
    }
    (device, others)
}

/// An error with all its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
