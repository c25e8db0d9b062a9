//! The own_qp example does what its documentation says.

mod common;

use common::{Program, Result, example};

fn start(device: &str, arguments: &[&str]) -> Result<Program> {
    Program::start(example("own_qp")?.env("IBCM_DEVICE", device).args(arguments))
}

fn check_client(lines: &[&str]) {
    let expected = [
        "client: 64 bytes came back: [8, 8, 8, 8, 8, 8, 8, 8]..",
        "client: disconnected, the peer confirmed",
    ];
    assert_eq!(lines, expected);
}

fn check_server(lines: &[&str]) {
    assert!(lines[0].contains(" is connected to QP 0x"), "{lines:?}");
    assert_eq!(lines[1..], ["server: disconnected by the peer"]);
}

#[test]
fn both_ends_in_one_process() -> Result {
    let ended = start("none", &[])?.end()?.well()?;
    let lines = ended.stdout.lines();
    let (client, server): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("client: "));
    check_client(&client);
    check_server(&server);
    Ok(())
}

#[test]
fn two_processes() -> Result {
    let mut server = start("soft:127.0.24.1", &["serve"])?;
    assert_eq!(server.line()?, "listening at ::ffff:127.0.24.1");
    let client = start("soft:127.0.24.2", &["connect", "127.0.24.1"])?.end()?.well()?;
    check_client(&client.stdout.lines().collect::<Vec<_>>());
    check_server(&server.end()?.well()?.stdout.lines().collect::<Vec<_>>());
    Ok(())
}
