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
