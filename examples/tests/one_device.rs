//! Examples with both ends in one process run on one device, too. The guest runs the same on rxe0
//! (tests/guest/cases/examples.sh).

mod common;

use common::{Result, output};

/// Runs an example on one software HCA, and expects these words in what it prints.
fn runs(name: &str, arguments: &[&str], expected: &[&str]) -> Result {
    let text = output(name, &[&["--device", "soft"], arguments].concat())?;
    for words in expected {
        assert!(text.contains(words), "{words:?} is not in what {name} prints:\n{text}");
    }
    Ok(())
}

#[test]
fn echo() -> Result {
    runs("echo", &[], &["both ends: soft", "client: message 5, 64 bytes, came back after"])
}

#[test]
fn http() -> Result {
    runs("http", &[], &["client: the same came back: true", "GET /nothing: 404"])
}

#[test]
fn kv() -> Result {
    runs("kv", &[], &["client: read 65536 bytes back: [7, 7, 7, 7, 7, 7, 7, 7]", "target: done"])
}

#[test]
fn observe() -> Result {
    runs("observe", &[], &["disconnected, the peer confirmed, after 10 messages", "established 2"])
}

#[test]
fn own_qp() -> Result {
    runs("own_qp", &[], &["client: 64 bytes came back", "server: disconnected by the peer"])
}

#[test]
fn ranks() -> Result {
    runs("ranks", &[], &["1000 of 1000 up"])
}

#[test]
fn rpc() -> Result {
    runs("rpc", &[], &["client: reverse: olleh", "server: 2 calls served"])
}

#[test]
fn storm() -> Result {
    runs("storm", &["--count", "200"], &["200 of 200 connections in", "nothing is left after"])
}

/// A device that can't be opened says why; what is here is listed.
#[test]
fn devinfo() -> Result {
    runs(
        "devinfo",
        &[],
        &[
            "is open; peers dial 127.0.0.",
            "port 1: Active, 127.0.0.",
            "a mebibyte of buffers: fine",
            "listening: fine",
        ],
    )
}
