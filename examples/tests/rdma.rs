//! The rping, port and kv examples do what their documentation says.

mod common;

use common::{Program, Result, example, output};

fn rping(arguments: &[&str]) -> Result<Program> {
    Program::start(example("rping")?.args(arguments))
}

#[test]
fn rping_serves_rping() -> Result {
    let mut server = rping(&["serve", "0.0.0.0:7175", "--device", "soft:127.0.20.1", "--verbose"])?;
    assert_eq!(server.line()?, "listening on 0.0.0.0:7175");
    let connect = ["connect", "127.0.20.1:7175", "--device", "soft:127.0.20.2"];
    let client = output("rping", &[&connect[..], &["--count", "70", "--size", "200"]].concat())?;
    let ended = server.end()?.well()?;
    let served: Vec<_> = ended.stdout.lines().collect();
    assert!(client.contains("client: 70 pings of 200 bytes verified"), "{client}");
    assert!(client.contains("client: disconnected, the peer confirmed"), "{client}");
    assert!(served[1].starts_with("server: ping data: rdma-ping-1: BCDE"), "{}", served[1]);
    let last = *served.last().ok_or("nothing")?;
    assert_eq!(last, "server: 70 pings of 127.0.20.2, disconnected by the peer");
    Ok(())
}

/// Also while a client is there, which is told.
#[test]
fn rping_ends_when_it_is_interrupted() -> Result {
    let serve = ["serve", "0.0.0.0:7176", "--device", "soft:127.0.21.1", "--persistent", "--verbose"];
    let mut server = rping(&serve)?;
    assert_eq!(server.line()?, "listening on 0.0.0.0:7176");
    let connect = ["connect", "127.0.21.1:7176", "--device", "soft:127.0.21.2", "--count", "100000000"];
    let client = rping(&connect)?;
    assert!(server.line()?.starts_with("server: ping data"));
    server.interrupt()?;
    server.end()?.well()?;
    let left = client.end()?;
    assert!(!left.success && !left.stderr.is_empty());
    Ok(())
}

#[test]
fn a_key_value_store() -> Result {
    let text = output("kv", &[])?;
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
    let mut server = Program::start(example("port")?.env("IBCM_DEVICE", "soft:127.0.22.1"))?;
    assert_eq!(server.line()?, "listening on 0.0.0.0:7174");
    let connect = ["connect", "127.0.22.1:7174", "--device", "soft:127.0.22.2", "--count", "20"];
    let client = output("rping", &connect)?;
    server.end()?.well()?;
    assert!(client.contains("client: 20 pings of 64 bytes verified"), "{client}");
    Ok(())
}

/// As `ucmatose` does: it sends first, and wants its messages back.
#[tokio::test]
async fn port_gives_messages_back() -> Result {
    let hca = ibcm::Hca::open("soft:127.0.23.1").await?;
    let listener = ibcm::Listener::bind_ip(([127, 0, 23, 1], 7471)).device(&hca).await?;
    let client =
        Program::start(example("port")?.arg("127.0.23.1:7471").env("IBCM_DEVICE", "soft:127.0.23.2"))?;
    let conn = listener.accept().await?.accept().await?;
    for message in [&b"first"[..], b"", b"third"] {
        conn.send_copy(message).await?;
        let back = conn.recv().await?.ok_or("it left")?;
        assert_eq!(&back[..], message);
    }
    conn.disconnect().await;
    client.ended().await?.well()?;
    Ok(())
}
