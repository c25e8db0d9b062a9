//! Our side against Linux's own RDMA stack, in a guest that this test boots: one boot per kernel configuration, one test
//! per case. Without the tools it needs the cases count as ignored; with CI=true they fail.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tests::guest::{self, Case, Config, Machine, Target};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // one guest, one case at a time
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest");
    let machine = |config| Arc::new(Machine::new(config, &folder));
    let cm = machine(Config {
        name: "cm",
        setup: "setup-cm.sh",
        variables: Vec::new(),
        helpers: &["cm_peer"],
        targets: &[],
        limit: Duration::from_secs(900),
    });
    let umad = machine(Config {
        name: "umad",
        setup: "setup-umad.sh",
        variables: Vec::new(),
        helpers: &[],
        targets: &[Target { package: "ibcm-sys", name: "rxe0", feature: "verbs" }],
        limit: Duration::from_secs(300),
    });
    let mut trials = vec![
        Trial::test("guest_reports_a_failure", ends_with(&cm, Case::new("failure", "fails.sh", &["3"]), 3)),
        Trial::test(
            "guest_ends_a_case_at_its_limit",
            ends_with(&cm, Case::new("limit", "hangs.sh", &[]).limit(1), 124),
        ),
    ];
    for (machine, cases) in [(&cm, kernel_alone()), (&umad, without_ib_cm())] {
        trials.extend(
            cases.into_iter().map(|case| Trial::test(case.name.clone(), ends_with(machine, case, 0))),
        );
    }

    let missing = guest::missing();
    let left_out = !missing.is_empty() && std::env::var_os("CI").is_none_or(|ci| ci != "true");
    if left_out {
        eprintln!("kernel cases are left out, programs are missing: {}", missing.join(" "));
    }
    let trials = trials.into_iter().map(|trial| trial.with_ignored_flag(left_out)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The kernel with itself: that the guest is what the other cases take it for.
fn kernel_alone() -> Vec<Case> {
    vec![
        Case::new("kernel_rxe_is_up", "rxe_up.sh", &[]),
        Case::new("kernel_rping_to_itself", "rping_loop.sh", &["10.77.0.1"]),
        Case::new("kernel_refuses_itself_v4", "cm_peer_loop.sh", &["10.77.0.1"]),
        Case::new("kernel_refuses_itself_v6", "cm_peer_loop.sh", &["fd77::1"]),
        Case::new("kernel_ucmatose_to_itself_v4", "ucmatose_loop.sh", &["10.77.0.1"]),
        Case::new("kernel_ucmatose_to_itself_v6", "ucmatose_loop.sh", &["fd77::1"]),
    ]
}

/// What wants the CM class for itself, so that ib_cm must not be there.
fn without_ib_cm() -> Vec<Case> {
    vec![
        Case::new("umad_is_free_for_user_space", "umad_free.sh", &[]),
        Case::new("verbs_device_says_what_it_is", "test_target.sh", &["rxe0", "device::"]),
        Case::new("verbs_device_sends_mads", "test_target.sh", &["rxe0", "mads::"]),
        Case::new("verbs_device_moves_messages", "test_target.sh", &["rxe0", "connections::"]),
        Case::new("verbs_device_leaves_nothing", "test_target.sh", &["rxe0", "drops::"]),
    ]
}

/// Runs the case and expects its script to end with `status`.
fn ends_with(
    machine: &Arc<Machine>,
    case: Case,
    status: i32,
) -> impl FnOnce() -> Result<(), Failed> + Send + use<> {
    let machine = Arc::clone(machine);
    move || {
        let outcome = machine.run(&case).map_err(|error| Failed::from(error.to_string()))?;
        if outcome.status == status {
            return Ok(());
        }
        Err(Failed::from(format!(
            "status {}, not {status}; it printed:
{}",
            outcome.status, outcome.log
        )))
    }
}
