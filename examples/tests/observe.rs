//! The observe example does what its documentation says.

mod common;

use common::{Program, Result, example};

/// Standard output and the log of a run.
fn observe(filter: Option<&str>, arguments: &[&str]) -> Result<(String, String)> {
    let mut command = example("observe")?;
    command.args(arguments);
    if let Some(filter) = filter {
        command.env("RUST_LOG", filter);
    }
    let ended = Program::start(&mut command)?.end()?.well()?;
    Ok((ended.stdout, ended.stderr))
}

/// Lines about connections, and about messages.
fn count(log: &str) -> (usize, usize) {
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    (count("DEBUG conn{"), count(" ibcm::mad: "))
}

#[test]
fn it_shows_all_there_is() -> Result {
    let pcap = std::env::temp_dir().join(format!("observe-example-{}.pcap", std::process::id()));
    let (text, log) = observe(None, &[pcap.to_str().ok_or("no text")?])?;
    for line in
        ["the listener accepted 1 of 1", "the peer was busy 0 times", "messages_sent 10", "established 1"]
    {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let (connections, messages) = count(&log);
    // REQ, REP, RTU, DREQ and DREP, both as sent and as received.
    assert!(connections >= 4 && messages == 10, "{log}");
    let established = log.lines().find(|line| line.contains(": established")).ok_or("not established")?;
    for field in ["DEBUG conn{", "local=", "remote=", "service=0x1000000000000001", "peer="] {
        assert!(established.contains(field), "{established}");
    }
    let ended = log.lines().find(|line| line.contains(": ended")).ok_or("not ended")?;
    assert!(
        ended.contains("how=disconnected, the peer confirmed")
            || ended.contains("how=disconnected by the peer"),
        "{ended}"
    );
    assert!(std::fs::read(&pcap)?.len() > 2_000);
    std::fs::remove_file(pcap)?;
    Ok(())
}

#[test]
fn the_log_is_filtered() -> Result {
    let counts = |filter| Result::Ok(count(&observe(Some(filter), &[])?.1));
    let (connections, messages) = counts("ibcm=debug")?;
    assert!(connections >= 4 && messages == 0);
    assert_eq!(counts("ibcm::mad=trace")?, (0, 10));
    assert!(counts("[conn{service=0x1000000000000001}]=debug")?.0 >= 4);
    assert_eq!(counts("[conn{service=0x1000000000000002}]=debug")?.0, 0);
    assert_eq!(counts("off")?, (0, 0));
    Ok(())
}
