//! The own_qp example does what its documentation says.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The example, which is built beside this test.
fn own_qp(device: &str) -> Result<Command> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let mut command = Command::new(profile.join("examples").join("own_qp"));
    command.env_remove("RUST_LOG").env("IBCM_DEVICE", device);
    Ok(command)
}

fn check_client(lines: &[String]) {
    let expected = [
        "client: 64 bytes came back: [8, 8, 8, 8, 8, 8, 8, 8]..",
        "client: disconnected, the peer confirmed",
    ];
    assert_eq!(lines, expected);
}

fn check_server(lines: &[String]) {
    assert!(lines[0].contains(" is connected to QP 0x"), "{lines:?}");
    assert_eq!(lines[1..], ["server: disconnected by the peer"]);
}

#[test]
fn both_ends_in_one_process() -> Result {
    let output = own_qp("none")?.output()?;
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().map(str::to_owned);
    let (client, server): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("client: "));
    check_client(&client);
    check_server(&server);
    Ok(())
}

#[test]
fn two_processes() -> Result {
    let mut server = own_qp("soft:127.0.22.1")?.arg("serve").stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
    assert_eq!(lines.next().ok_or("the server ended")??, "listening at ::ffff:127.0.22.1");
    let client = own_qp("soft:127.0.22.2")?.args(["connect", "127.0.22.1"]).output()?;
    let text = String::from_utf8(client.stdout)?;
    assert!(client.status.success(), "{text}{}", String::from_utf8_lossy(&client.stderr));
    check_client(&text.lines().map(str::to_owned).collect::<Vec<_>>());
    check_server(&lines.collect::<std::io::Result<Vec<_>>>()?);
    assert!(server.wait()?.success());
    Ok(())
}
