//! The echo example does what its documentation says.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The example, which is built beside this test.
fn echo() -> Result<Command> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let program: PathBuf = profile.join("examples").join("echo");
    let mut command = Command::new(program);
    command.env_remove("RUST_LOG").env_remove("IBCM_DEVICE");
    Ok(command)
}

fn stdout(output: Output) -> Result<String> {
    let text = String::from_utf8(output.stdout)?;
    if output.status.success() { Ok(text) } else { Err(text.into()) }
}

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
    let text = stdout(echo()?.args(["--count", "12", "--size", "5000", "--pcap"]).arg(&pcap).output()?)?;
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
    let mut server = echo()?
        .args(["serve", "--once", "--device", "soft"])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
    let address = loop {
        let line = lines.next().ok_or("the server ended")??;
        if let Some(rest) = line.strip_prefix("connect to ") {
            break rest.split(' ').next().ok_or("no address")?.to_owned();
        }
    };
    let client = echo()?.args(["connect", &address, "--device", "soft"]).args(arguments).output()?;
    let client = stdout(client)?;
    let server_text = lines.collect::<std::io::Result<Vec<_>>>()?.join("\n");
    assert!(server.wait()?.success(), "{server_text}");
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
    let output =
        echo()?.args(["connect", "127.0.255.1", "--device", "soft", "--deadline", "0.5"]).output()?;
    let error = String::from_utf8(output.stderr)?;
    assert!(!output.status.success());
    assert!(error.starts_with("error: no answer to 1 request in "), "{error}");
    Ok(())
}
