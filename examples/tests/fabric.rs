//! The fabric example shows a subnet of ibsim as OpenSM manages it. Without the programs its cases count as ignored; with
//! CI=true they fail.

mod common;

use std::path::Path;
use std::process::ExitCode;

use common::{Program, example};
use libtest_mimic::{Arguments, Failed, Trial};
use tests::ibsim::{self, Fabric};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let missing = ibsim::missing();
    let left_out = !missing.is_empty() && std::env::var_os("CI").is_none_or(|ci| ci != "true");
    if left_out {
        eprintln!("fabric is left out, programs are missing: {}", missing.join(" "));
    }
    let trials = [
        Trial::test("fabric_shows_the_subnet", shows_the_subnet).with_ignored_flag(left_out),
        Trial::test("sa_t83_fabric_needs_infiniband", needs_infiniband),
    ];
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn shows_the_subnet() -> Result<(), Failed> {
    let fabric = Fabric::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("fabric"))?;
    let mut command = example("fabric").map_err(said)?;
    command.env("IBSIM_SOCKNAME", fabric.base()).args(["--device", "ibsim:B"]);
    let ended =
        Program::start(&mut command).and_then(Program::end).and_then(|ended| ended.well()).map_err(said)?;
    let text = ended.stdout;
    for line in ["nodes: 6", "groups: ", "paths: 6"] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    // ibsim has two links between its switches, and each HCA has one.
    assert!(text.contains("links: 6"), "{text}");
    for name in ["A", "B", "C", "D"] {
        let of = |line: &&str| line.contains(&format!(" CA      {name} ")) && line.contains("Active");
        assert_eq!(text.lines().filter(of).count(), 1, "{name}: {text}");
    }
    Ok(())
}

/// RoCE has no SA: that is said at once.
fn needs_infiniband() -> Result<(), Failed> {
    let mut command = example("fabric").map_err(said)?;
    let ended = Program::start(command.args(["--device", "soft"])).and_then(Program::end).map_err(said)?;
    assert!(!ended.success && ended.stderr.contains("error: "), "{ended:?}");
    Ok(())
}

fn said(error: Box<dyn std::error::Error + Send + Sync>) -> Failed {
    error.to_string().into()
}
