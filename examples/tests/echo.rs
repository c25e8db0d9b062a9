//! The echo example does what its documentation says.

mod common;

use common::{Program, Result, example, output};

/// The lines of `text` that report a CM message, as "WHO ARROW WHOM NAME".
fn messages(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.contains(" ms  "));
    lines.map(|line| line.split_whitespace().skip(2).take(4).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn both_ends_in_one_process() -> Result {
    let folder = std::env::temp_dir().join(format!("echo-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let pcap = folder.join("echo.pcap");
    let file = pcap.to_str().ok_or("not UTF-8")?;
    let text = output("echo", &["--count", "12", "--size", "5000", "--pcap", file])?;
    let expected = [
        "client -> server REQ",
        "server -> client REP",
        "client -> server RTU",
        "client -> server DREQ",
        "server -> client DREP",
    ];
    assert_eq!(messages(&text), expected, "{text}");
    assert!(text.contains("client: message 1, 5000 bytes, came back after"), "{text}");
    assert!(text.contains("client: and 2 more"), "{text}");
    assert!(text.contains("server: 12 messages echoed to 127.0.0."), "{text}");
    assert!(text.contains("client: disconnected, the peer confirmed"), "{text}");
    let captured = std::fs::metadata(&pcap)?.len();
    std::fs::remove_dir_all(&folder)?;
    assert!(captured > 12 * 2 * 5000, "{captured} bytes captured");
    Ok(())
}

/// Runs the ends as two processes.
fn two_processes(arguments: &[&str]) -> Result {
    let start = |role: &[&str]| {
        Program::start(example("echo")?.args(role).args(["--device", "soft"]).args(arguments))
    };
    let mut server = start(&["serve", "--once"])?;
    let address = loop {
        if let Some(rest) = server.line()?.strip_prefix("connect to ") {
            break rest.split(' ').next().ok_or("no address")?.to_owned();
        }
    };
    let client = start(&["connect", &address])?.end()?.well()?.stdout;
    let server_text = server.end()?.well()?.stdout;
    assert!(client.contains("client: message 5, 64 bytes, came back after"), "{client}");
    assert!(client.contains("client: disconnected, the peer confirmed"), "{client}");
    assert!(server_text.contains("server: 5 messages echoed to"), "{server_text}");
    assert!(
        messages(&client).iter().any(|line| line.starts_with("client <- ") && line.ends_with(" REP")),
        "{client}"
    );
    Ok(())
}

#[test]
fn two_processes_by_service_id() -> Result {
    two_processes(&[])
}

#[test]
fn two_processes_by_ip() -> Result {
    two_processes(&["--ip", "7999"])
}

#[test]
fn nobody_serves() -> Result {
    // Nothing lives at this address, so the deadline decides.
    let arguments = ["connect", "127.0.255.1", "--device", "soft", "--deadline", "0.5"];
    let ended = Program::start(example("echo")?.args(arguments))?.end()?;
    assert!(!ended.success);
    let error = ended.stderr;
    assert!(error.starts_with("error: no answer to 1 request in "), "{error}");
    Ok(())
}
