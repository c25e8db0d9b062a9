//! The failover example does what its documentation says.

mod common;

use common::{Program, Result, example};

#[test]
fn cables_are_pulled_and_nothing_is_lost() -> Result {
    nothing_is_lost(&mut example("failover")?)
}

#[test]
fn over_udp_as_well() -> Result {
    nothing_is_lost(example("failover")?.arg("--udp"))
}

fn nothing_is_lost(failover: &mut std::process::Command) -> Result {
    let ended = Program::start(failover)?.end()?.well()?;
    let lines: Vec<_> = ended.stdout.lines().collect();
    let expected = [
        "the peer's answer to the spare path: Some(FailoverAccepted(accepted))",
        "round 10: the first cable is pulled",
        "round 20: goes by port 2 now",
        "round 20: the first cable is back, and the spare path",
        "round 30: the second cable is pulled",
        "then by port 1; no message was lost",
        "disconnected, the peer confirmed",
    ];
    assert_eq!(lines, expected);
    Ok(())
}

/// On a device of one's own: it takes two ports with path migration, or says what it lacks.
#[test]
fn a_device_is_used_or_told_what_it_lacks() -> Result {
    let on = |device: &str| Program::start(example("failover")?.args(["--device", device, "3"]))?.end();
    let [.., high, low] = std::process::id().to_be_bytes(); // addresses that no other test has at the same time
    let ended = on(&format!("soft:127.177.{high}.{low}+127.178.{high}.{low}"))?.well()?;
    assert!(ended.stdout.contains("spare path: Some(FailoverAccepted(accepted))"), "{}", ended.stdout);
    assert!(ended.stdout.contains("disconnected, the peer confirmed"), "{}", ended.stdout);
    let ended = on("soft")?;
    assert!(ended.stderr.contains("has 1 port, with path migration"), "{}", ended.stderr);
    Ok(())
}
