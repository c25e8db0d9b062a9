//! The rpc and http examples do what their documentation says.

mod common;

use common::{Result, output};

#[test]
fn calls_in_frames() -> Result {
    let folder = std::env::temp_dir().join(format!("rpc-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let pcap = folder.join("rpc.pcap");
    let text = output("rpc", &["--size", "100000", "--pcap", pcap.to_str().ok_or("not UTF-8")?]);
    let captured = std::fs::metadata(&pcap).map(|file| file.len());
    std::fs::remove_dir_all(&folder)?;
    let text = text?;
    assert!(text.contains("client: reverse: olleh\n"), "{text}");
    assert!(
        text.contains("client: echo: 100000 bytes went out in 25 messages and came back in 25\n"),
        "{text}"
    );
    assert!(text.contains("client: disconnected, the peer confirmed\n"), "{text}");
    assert!(text.contains("server: 2 calls served\n"), "{text}");
    assert!(text.contains("\nbytes_sent 1000"), "{text}");
    assert!(captured? > 200_000);
    Ok(())
}

#[test]
fn requests_and_responses() -> Result {
    let text = output("http", &[])?;
    let mut lines: Vec<&str> = text.lines().collect();
    let messages = lines.pop().ok_or("nothing")?;
    let expected = [
        "client: GET /: 200 OK, 24 bytes",
        "client: hello over a queue pair",
        "client: POST /echo: 200 OK, 3145728 bytes",
        "client: the same came back: true",
        "client: GET /nothing: 404 Not Found, 0 bytes",
        "server: a client has gone",
    ];
    assert_eq!(lines, expected, "{text}");
    assert!(messages.starts_with("client: ") && messages.ends_with(" messages for all of it"), "{text}");
    Ok(())
}
