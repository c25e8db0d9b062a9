//! Our side against Linux's own RDMA stack, in a guest that this test boots: one boot per kernel configuration, one test
//! per case. Without the tools it needs the cases count as ignored; with CI=true they fail.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tests::guest::{self, Case, Config, Machine, Target};

/// What runs beside the kernel's own connection manager.
const CM_TARGETS: &[Target] = &[
    Target::Test { package: "tests", name: "verbs", feature: "verbs" },
    example("rping"),
    example("udaddy"),
];

/// What runs where class 7 is free.
const UMAD_TARGETS: &[Target] = &[
    Target::Test { package: "ibcm-sys", name: "rxe0", feature: "verbs" },
    Target::Test { package: "tests", name: "verbs", feature: "verbs" },
    Target::Test { package: "tests", name: "conformance", feature: "verbs" },
    Target::Example { package: "ibcm-sys", name: "rdma_sys_qp", feature: Some("verbs") },
    example("devinfo"),
    example("dial"),
    example("discovery"),
    example("echo"),
    example("failover"),
    example("http"),
    example("kv"),
    example("observe"),
    example("own_qp"),
    example("port"),
    example("ranks"),
    example("rpc"),
    example("rping"),
    example("storm"),
    example("target"),
    example("udaddy"),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // one guest, one case at a time
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest");
    let machine = |config| Arc::new(Machine::new(config, &folder));
    let cm = machine(Config {
        name: "cm",
        setup: "setup-cm.sh",
        variables: vec![("PEER", env!("CARGO_BIN_EXE_guest-peer").into())],
        helpers: &["cm_peer"],
        targets: CM_TARGETS,
        limit: Duration::from_secs(1200),
    });
    let umad = machine(Config {
        name: "umad",
        setup: "setup-umad.sh",
        variables: Vec::new(),
        helpers: &[],
        targets: UMAD_TARGETS,
        limit: Duration::from_secs(1800),
    });
    let mut trials = vec![
        Trial::test("guest_reports_a_failure", ends_with(&cm, Case::new("failure", "fails.sh", &["3"]), 3)),
        Trial::test(
            "guest_ends_a_case_at_its_limit",
            ends_with(&cm, Case::new("limit", "hangs.sh", &[]).limit(1), 124),
        ),
        Trial::test(
            "guest_sees_what_a_case_leaves",
            ends_with(&cm, Case::new("leaves", "leaves.sh", &[]).settling(1), guest::LEAVES_SOMETHING),
        ),
    ];
    for (machine, cases) in [
        (&cm, kernel_alone()),
        (&cm, kernel_and_us()),
        (&cm, verbs()),
        (&cm, rmpp()),
        (&cm, beside_ib_cm()),
        (&umad, conformance()),
        (&umad, without_ib_cm()),
    ] {
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

const fn example(name: &'static str) -> Target {
    Target::Example { package: "examples", name, feature: Some("verbs") }
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

/// The kernel at one end, our CM and software HCA at the other, over IPv4 and IPv6.
fn kernel_and_us() -> Vec<Case> {
    let families = [("v4", "10.77.0.1", "10.77.0.2"), ("v6", "fd77::1", "fd77::2")];
    let cases = families.into_iter().flat_map(|(family, kernel, us)| {
        let case = |script: &'static str, arguments: &[&str]| {
            Case::new(format!("{}_{family}", script.trim_end_matches(".sh")), script, arguments)
        };
        [
            case("we_call_ucmatose.sh", &[kernel]),
            case("hca_t61_we_call_rdma_server.sh", &[kernel]),
            case("ucmatose_calls_us.sh", &[us]),
            case("hca_t61_rdma_client_calls_us.sh", &[us]),
            case("hca_t60_nobody_serves.sh", &[kernel, us]),
            case("consumer_refuses.sh", &[kernel, us]),
            case("kernel_server_killed.sh", &[kernel]),
            case("kernel_client_killed.sh", &[us]),
            case("kernel_dies_unheard.sh", &[kernel]),
            case("bad_wire_we_call.sh", &[kernel]).limit(120),
            case("bad_wire_kernel_calls.sh", &[us]).limit(120),
            case("rping_calls_us.sh", &[us, "64"]),
            case("we_call_rping.sh", &[kernel, "64"]),
            case("udaddy_calls_us.sh", &[us]),
            case("we_call_udaddy.sh", &[kernel]),
        ]
    });
    let long = [
        Case::new("rping_calls_us_with_long_pings", "rping_calls_us.sh", &["10.77.0.2", "65000"]).limit(120),
        Case::new("we_call_rping_with_long_pings", "we_call_rping.sh", &["10.77.0.1", "65000"]).limit(120),
    ];
    let groups = ["hca_t59_mckey_tells_us.sh", "hca_t59_mckey_hears_us.sh"]
        .map(|script| Case::new(script.trim_end_matches(".sh"), script, &["10.77.0.1", "239.1.1.1"]));
    let lap =
        [Case::new("cm_t74_lap_is_not_answered", "cm_t74_lap_is_not_answered.sh", &["10.77.0.1", "fd77::1"])
            .limit(120)];
    let link = [Case::new("link_goes_down", "link_goes_down.sh", &["10.77.0.1", "fd77::1"]).limit(120)];
    cases.chain(long).chain(groups).chain(lap).chain(link).collect()
}

/// Tables of several MADs between the kernel's RMPP and ours, over IPv6: with other GIDs the kernel does not find the request
/// that is answered.
fn rmpp() -> Vec<Case> {
    let case = |who: &str, (wire, loss): (&str, &str), segments: &[&str]| {
        let arguments = [&["fd77::1", "fd77::2", who, loss], segments].concat();
        let name = format!("sa_t52_rmpp_{who}_asks_on_a_{wire}_wire");
        Case::new(name, "sa_t52_rmpp.sh", &arguments).limit(240)
    };
    let (all, some) = (["1", "2", "3", "64", "65", "66", "129", "1000"], ["1", "2", "66", "1000"]);
    vec![
        case("us", ("good", "0%"), &all),
        case("kernel", ("good", "0%"), &all),
        case("us", ("bad", "1%"), &some),
        case("kernel", ("bad", "2%"), &some),
    ]
}

/// Queue pairs that are brought up by hand: pyverbs on rxe0 at one end, the software HCA at the other.
fn verbs() -> Vec<Case> {
    let v4 = [
        ("rc", "send"),
        ("rc", "write"),
        ("rc", "write_imm"),
        ("rc", "read"),
        ("rc", "atomic"),
        ("rc", "wrong_rkey"),
        ("uc", "send"),
        ("uc", "write"),
        ("uc", "write_imm"),
    ];
    let v6 = [("rc", "write_imm"), ("rc", "read"), ("rc", "atomic"), ("uc", "write_imm")];
    let families = [("v4", "10.77.0.1", &v4[..]), ("v6", "fd77::1", &v6[..])];
    let cases = families.into_iter().flat_map(|(family, kernel, what)| {
        let both = what.iter().flat_map(|what| ["us", "kernel"].map(|who| (*what, who)));
        both.map(move |((transport, what), who)| {
            let name = format!("verbs_{transport}_{what}_by_{who}_{family}");
            Case::new(name, "verbs.sh", &[kernel, transport, what, who])
        })
    });
    cases.collect()
}

/// The device contract on rdma_rxe.
fn conformance() -> Vec<Case> {
    let case = |group| Case::new(format!("conformance_{group}"), "conformance.sh", &[group]).limit(300);
    tests::CONFORMANCE_IN_GUEST.map(case).into()
}

/// Our own use of rxe0 where the kernel holds the CM class.
fn beside_ib_cm() -> Vec<Case> {
    vec![Case::new("verbs_beside_ib_cm", "test_target.sh", &["verbs", "beside_ib_cm"])]
}

/// What wants the CM class for itself, so that ib_cm must not be there.
fn without_ib_cm() -> Vec<Case> {
    let test = |target: &str, case: &str, tests: &str| {
        Case::new(format!("verbs_{case}"), "test_target.sh", &[target, tests])
    };
    let own_qp = |case: &str, kernel: &str, us: &str, who: &str| {
        Case::new(format!("own_qp_{case}"), "own_qp.sh", &[kernel, us, who])
    };
    let apart = |family: &str, arguments: &[&str]| {
        Case::new(format!("examples_with_an_end_on_rxe0_{family}"), "examples_apart.sh", arguments).limit(400)
    };
    vec![
        Case::new("umad_is_free_for_user_space", "umad_free.sh", &[]),
        test("rxe0", "device_says_what_it_is", "device::"),
        test("rxe0", "device_sends_mads", "mads::"),
        test("rxe0", "device_moves_messages", "connections::"),
        test("rxe0", "device_exposes_memory", "memory::"),
        test("rxe0", "device_shares_receives", "shared_receives::"),
        test("rxe0", "device_sends_datagrams", "datagrams::"),
        test("rxe0", "device_has_unreliable_connections", "unreliable::"),
        test("rxe0", "device_leaves_nothing", "drops::"),
        test("rxe0", "device_names_what_is_wrong", "bad_states::a"),
        Case::new("verbs_device_without_rights", "unprivileged.sh", &[]),
        Case::new("verbs_device_under_valgrind", "valgrind.sh", &[]).limit(600),
        test("verbs", "cm_connection_from_the_soft_hca_to_rxe0_v4", "soft_hca_connects_to_rxe0_v4"),
        test("verbs", "cm_connection_from_the_soft_hca_to_rxe0_v6", "soft_hca_connects_to_rxe0_v6"),
        test("verbs", "cm_connection_from_rxe0_to_the_soft_hca_v4", "rxe0_connects_to_soft_hca_v4"),
        test("verbs", "cm_connection_from_rxe0_to_the_soft_hca_v6", "rxe0_connects_to_soft_hca_v6"),
        test("verbs", "cm_unreliable_connections", "uc_from"),
        test("verbs", "cm_connections_at_once", "many_connections_at_once").limit(120),
        test("verbs", "cm_refusals", "refuses"),
        test("verbs", "cm_keepalives", "kept_alive"),
        test("verbs", "cm_without_rtu", "stands_for_the_rtu"),
        test("verbs", "cm_gids", "gids_come_and_vanish"),
        test("verbs", "cm_killed", "killed_on").limit(120),
        Case::new("verbs_cm_bad_wire", "bad_wire_verbs.sh", &[]).limit(180),
        test("verbs", "cm_link_down", "link_goes_down_and_comes_back").limit(120),
        Case::new("examples_on_rxe0", "examples.sh", &[]).limit(400),
        apart("v4", &["10.77.0.1", "10.77.0.2", "239.77.0.7"]),
        apart("v6", &["fd77::1", "fd77::2", "ff15::77"]),
        own_qp("rdma_sys_connects_v4", "10.77.0.1", "10.77.0.2", "rdma_sys"),
        own_qp("rdma_sys_connects_v6", "fd77::1", "fd77::2", "rdma_sys"),
        own_qp("soft_hca_connects_v4", "10.77.0.1", "10.77.0.2", "soft"),
        own_qp("soft_hca_connects_v6", "fd77::1", "fd77::2", "soft"),
        // Last: they take rxe0 or a module away and bring it back.
        test("rxe0", "device_that_is_removed", "removal::"),
        test("verbs", "cm_device_removed", "removed_while_connected").limit(120),
        Case::new("verbs_device_without_umad", "no_umad.sh", &[]),
        Case::new("verbs_bad_states_are_named", "bad_states.sh", &[]),
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
