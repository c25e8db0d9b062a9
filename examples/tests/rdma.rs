//! The rping, port and kv examples do what their documentation says.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// An example, which is built beside this test.
fn example(name: &str) -> Result<Command> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let mut command = Command::new(profile.join("examples").join(name));
    command.env_remove("RUST_LOG").env_remove("IBCM_DEVICE");
    Ok(command)
}

/// What it prints, if it ends well.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    if output.status.success() { Ok(text) } else { Err(text.into()) }
}

#[test]
fn rping_serves_rping() -> Result {
    let mut server = example("rping")?
        .args(["serve", "0.0.0.0:7175", "--device", "soft:127.0.20.1", "--verbose"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
    assert_eq!(lines.next().ok_or("the server ended")??, "listening on 0.0.0.0:7175");
    let client = output(example("rping")?.args([
        "connect",
        "127.0.20.1:7175",
        "--device",
        "soft:127.0.20.2",
        "--count",
        "70",
        "--size",
        "200",
    ]))?;
    let served = lines.collect::<std::io::Result<Vec<_>>>()?;
    assert!(server.wait()?.success(), "{served:?}");
    assert!(client.contains("client: 70 pings of 200 bytes verified"), "{client}");
    assert!(client.contains("client: disconnected, the peer confirmed"), "{client}");
    assert!(served[1].starts_with("server: ping data: rdma-ping-1: BCDE"), "{}", served[1]);
    let last = served.last().ok_or("nothing")?;
    assert_eq!(last, "server: 70 pings of 127.0.20.2, disconnected by the peer");
    Ok(())
}

/// Also while a client is there, which is told.
#[test]
fn rping_ends_when_it_is_interrupted() -> Result {
    let mut server = example("rping")?
        .args(["serve", "0.0.0.0:7176", "--device", "soft:127.0.21.1", "--persistent", "--verbose"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
    assert_eq!(lines.next().ok_or("the server ended")??, "listening on 0.0.0.0:7176");
    let client = example("rping")?
        .args(["connect", "127.0.21.1:7176", "--device", "soft:127.0.21.2", "--count", "100000000"])
        .stderr(Stdio::piped())
        .spawn()?;
    assert!(lines.next().ok_or("the server ended")??.starts_with("server: ping data"));
    let drain = std::thread::spawn(move || lines.count());
    let interrupt = Command::new("kill").args(["-INT", &server.id().to_string()]).status()?;
    assert!(interrupt.success() && server.wait()?.success());
    let left = client.wait_with_output()?;
    assert!(!left.status.success() && !left.stderr.is_empty());
    drain.join().map_err(|_| "reading failed")?;
    Ok(())
}

#[test]
fn a_key_value_store() -> Result {
    let text = output(&mut example("kv")?)?;
    let expected = [
        "client: 1048576 bytes of the target's memory, written with 8 buffers",
        "client: read 65536 bytes back: [7, 7, 7, 7, 7, 7, 7, 7]..",
        "target: written at 0: [8, 8, 8, 8, 8, 8, 8, 8]",
        "target: done",
        "client: disconnected, the peer confirmed",
    ];
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(lines, expected, "{text}");
    Ok(())
}

#[test]
fn port_serves_rping() -> Result {
    let mut server = example("port")?.env("IBCM_DEVICE", "soft:127.0.22.1").stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
    assert_eq!(lines.next().ok_or("the server ended")??, "listening on 0.0.0.0:7174");
    let connect = ["connect", "127.0.22.1:7174", "--device", "soft:127.0.22.2", "--count", "20"];
    let client = output(example("rping")?.args(connect))?;
    assert!(server.wait()?.success());
    assert!(client.contains("client: 20 pings of 64 bytes verified"), "{client}");
    Ok(())
}

/// As `ucmatose` does: it sends first, and wants its messages back.
#[tokio::test]
async fn port_gives_messages_back() -> Result {
    let hca = ibcm::Hca::open("soft:127.0.23.1").await?;
    let listener = ibcm::Listener::bind_ip(([127, 0, 23, 1], 7471)).device(&hca).await?;
    let mut client = example("port")?.arg("127.0.23.1:7471").env("IBCM_DEVICE", "soft:127.0.23.2").spawn()?;
    let conn = listener.accept().await?.accept().await?;
    for message in [&b"first"[..], b"", b"third"] {
        conn.send_copy(message).await?;
        let back = conn.recv().await?.ok_or("it left")?;
        assert_eq!(&back[..], message);
    }
    conn.disconnect().await;
    assert!(tokio::task::spawn_blocking(move || client.wait()).await??.success());
    Ok(())
}
