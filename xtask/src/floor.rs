//! The floors: what each runs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process;
use crate::tally::{Tally, Verdict};
use crate::workspace::Workspace;

/// The workspace's minimum Rust; the same number stands in Cargo.toml and clippy.toml.
const MSRV: &str = "1.88";

/// Time limit of a command that builds.
const BUILD: Duration = Duration::from_secs(600);

/// Time limit of the guest floor: it builds, boots twice and bounds each boot and case itself.
const GUEST_TIME: Duration = Duration::from_secs(3000);

/// Packages that the C side of feature `verbs` is built from.
const VERBS: &[&str] =
    &["gcc", "libclang-dev", "libibumad-dev", "libibverbs-dev", "librdmacm-dev", "pkg-config"];

/// One thing to check.
#[derive(Debug)]
pub(crate) struct Floor {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Debian packages without which it can't run.
    pub(crate) packages: &'static [&'static str],
    pub(crate) run: fn(&Context<'_>) -> Verdict,
}

/// What the floors know.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The checkout.
    pub(crate) root: &'a Path,
    /// Debian packages that are not there.
    pub(crate) missing: &'a [&'static str],
    /// Whether this is root.
    pub(crate) root_user: bool,
    /// Whether this is CI, where nothing is left out.
    pub(crate) ci: bool,
}

/// All of them, the quick ones first.
pub(crate) const FLOORS: &[Floor] = &[
    Floor { name: "format", about: "rustfmt would change nothing", packages: &[], run: format },
    Floor {
        name: "licences",
        about: "every dependency's licence goes with MIT OR Apache-2.0",
        packages: &[],
        run: licences,
    },
    Floor { name: "msrv", about: "no dependency wants a newer Rust than 1.88", packages: &[], run: msrv },
    Floor {
        name: "package",
        about: "what is published packs, with licences and all that a registry shows",
        packages: &[],
        run: package,
    },
    Floor {
        name: "semver",
        about: "nothing breaks what was released without saying so",
        packages: &[],
        run: semver,
    },
    Floor { name: "clippy", about: "no warnings, in any target", packages: &[], run: clippy },
    Floor {
        name: "verbs",
        about: "no warnings with feature verbs; unit tests of what it adds",
        packages: VERBS,
        run: verbs,
    },
    Floor {
        name: "sans-io",
        about: "the engines build without a runtime and take no time or chance",
        packages: &[],
        run: sans_io,
    },
    Floor { name: "test", about: "unit, property and simulation tests", packages: &[], run: test },
    Floor {
        name: "bench",
        about: "each benchmark runs once, but the one that boots the guest",
        packages: &["gcc", "ibsim-utils", "infiniband-diags", "iproute2", "libibumad-dev", "opensm"],
        run: bench,
    },
    Floor { name: "doc", about: "examples in the documentation", packages: &[], run: doc },
    Floor {
        name: "rustdoc",
        about: "the documentation builds without warnings, also as docs.rs builds it",
        packages: &[],
        run: rustdoc,
    },
    Floor { name: "tshark", about: "tshark decodes what we encode", packages: &["tshark"], run: tshark },
    Floor {
        name: "opensm",
        about: "our SA client, our subnet manager and the example fabric against OpenSM on ibsim",
        packages: &["ibsim-utils", "infiniband-diags", "opensm"],
        run: opensm,
    },
    Floor {
        name: "raw",
        about: "raw sockets on veth pairs, with Python, ping and tshark at the other end",
        packages: &["iproute2", "iputils-ping", "python3", "tshark", "util-linux"],
        run: raw,
    },
    Floor { name: "guest", about: "Linux's own RDMA stack at the other end", packages: GUEST, run: guest },
];

const GUEST: &[&str] = &[
    "busybox-static",
    "gcc",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "libclang-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "perftest",
    "pkg-config",
    "procps",
    "python3-pyverbs",
    "qemu-system-x86",
    "rdma-core",
    "rdmacm-utils",
    "valgrind",
    "xz-utils",
];

impl Floor {
    /// What keeps it from running, if anything.
    pub(crate) fn lacks(&self, context: &Context<'_>) -> Option<String> {
        let lacking: Vec<&str> =
            self.packages.iter().copied().filter(|name| context.missing.contains(name)).collect();
        (!lacking.is_empty()).then(|| format!("not installed: {}", lacking.join(" ")))
    }
}

impl Context<'_> {
    fn cargo(&self, words: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.args(words).current_dir(self.root);
        command
    }

    fn check(&self, words: &[&str]) -> Result<(), String> {
        process::run(&mut self.cargo(words), BUILD).result
    }

    /// Runs a test command and counts its cases.
    fn cases(&self, words: &[&str], limit: Duration) -> Verdict {
        let ended = process::run(&mut self.cargo(words), limit);
        let tally = Tally::read(&ended.stdout);
        let empty = tally.passed + tally.failed == 0;
        let wrong = ended.result.err().or_else(|| empty.then(|| "no case ran".into()));
        Verdict::Cases(tally, wrong)
    }
}

fn format(context: &Context<'_>) -> Verdict {
    Verdict::of(context.check(&["fmt", "--all", "--check"]))
}

fn licences(context: &Context<'_>) -> Verdict {
    Verdict::of(Workspace::read(context.root).and_then(|workspace| workspace.check_licences()))
}

/// Use of a newer standard library is clippy's lint `incompatible_msrv`, denied in the workspace. Here: what the dependencies
/// declare, and a build with that very toolchain where rustup has it.
fn msrv(context: &Context<'_>) -> Verdict {
    if let Err(reason) = Workspace::read(context.root).and_then(|workspace| workspace.check_msrv(MSRV)) {
        return Verdict::Failed(reason);
    }
    let toolchain = format!("+{MSRV}");
    if process::quiet(&mut context.cargo(&[&toolchain, "--version"]), BUILD).result.is_err() {
        println!("toolchain {MSRV} is not installed: not built with it");
        return Verdict::Held;
    }
    let target = context.root.join("target/msrv");
    let words = [&toolchain, "check", "--workspace", "--locked"];
    Verdict::of(process::run(context.cargo(&words).env("CARGO_TARGET_DIR", target), BUILD).result)
}

/// What each published package has to hold.
const PACKED: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packs all at once, so that packages that need each other are found; they are not built once more. `cargo metadata` has
/// fetched what this asks the registry for.
fn package(context: &Context<'_>) -> Verdict {
    let packed = Workspace::read(context.root).and_then(|workspace| {
        workspace.check_metadata()?;
        let mut words =
            vec!["package", "--workspace", "--no-verify", "--allow-dirty", "--offline", "--quiet"];
        words.extend(workspace.named(false).into_iter().flat_map(|name| ["--exclude", name]));
        context.check(&words)?;
        workspace.named(true).into_iter().try_for_each(|name| {
            let list = ["package", "--list", "--allow-dirty", "--offline", "--package", name];
            let ended = process::quiet(&mut context.cargo(&list), BUILD);
            ended.result?;
            let lacks = PACKED.into_iter().find(|file| !ended.stdout.lines().any(|line| line == *file));
            lacks.map_or(Ok(()), |file| Err(format!("{name} is packed without {file}")))
        })
    });
    Verdict::of(packed)
}

/// Compares the public API with that of the last tag `v…`. The tool is installed when there is something to compare with.
fn semver(context: &Context<'_>) -> Verdict {
    let mut question = Command::new("git");
    question.args(["tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname"]);
    let ended = process::quiet(question.current_dir(context.root), BUILD);
    if let Err(reason) = ended.result {
        return Verdict::Failed(reason);
    }
    let Some(tag) = ended.stdout.lines().next() else {
        return Verdict::LeftOut("no release is tagged yet, so nothing can break".into());
    };
    if process::quiet(&mut context.cargo(&["semver-checks", "--version"]), BUILD).result.is_err()
        && let Err(reason) = context.check(&["install", "--locked", "cargo-semver-checks"])
    {
        return Verdict::Failed(reason);
    }
    Verdict::of(context.check(&["semver-checks", "--workspace", "--baseline-rev", tag]))
}

fn clippy(context: &Context<'_>) -> Verdict {
    Verdict::of(context.check(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--keep-going",
        "--",
        "-D",
        "warnings",
    ]))
}

fn verbs(context: &Context<'_>) -> Verdict {
    let lints = Workspace::read(context.root).and_then(|workspace| {
        for package in workspace.with_feature("verbs") {
            let words = [
                "clippy",
                "--package",
                package,
                "--features",
                "verbs",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ];
            context.check(&words)?;
        }
        Ok(())
    });
    match lints {
        Ok(()) => context.cases(&["test", "--package", "ibcm-sys", "--features", "verbs", "--lib"], BUILD),
        Err(reason) => Verdict::Failed(reason),
    }
}

/// Without the feature `runtime` nothing but values and engines is left of these crates. What they must not call stands in
/// clippy.toml; the workspace allows it, because shells may, and this floor does not.
fn sans_io(context: &Context<'_>) -> Verdict {
    let held = ["ibwire", "ibdev", "ibsa", "ibsoft", "ibcm"].into_iter().try_for_each(|package| {
        let build = ["clippy", "--package", package, "--lib", "--no-default-features"];
        let lints =
            ["--", "-D", "warnings", "-D", "clippy::disallowed_methods", "-D", "clippy::disallowed_types"];
        context.check(&[&build[..], &lints[..]].concat())
    });
    Verdict::of(held)
}

fn test(context: &Context<'_>) -> Verdict {
    let workspace = match Workspace::read(context.root) {
        Ok(workspace) => workspace,
        Err(reason) => return Verdict::Failed(reason),
    };
    // Tests run the examples, and cargo builds those for them only where no target is named.
    if let Err(reason) = context.check(&["build", "--workspace", "--examples"]) {
        return Verdict::Failed(reason);
    }
    let own_floors = ["fabric", "kernel", "opensm", "raw_links", "raw_sockets", "tshark"];
    let mut words = vec!["test", "--workspace", "--no-fail-fast", "--lib", "--bins"];
    for name in workspace.test_targets().into_iter().filter(|name| !own_floors.contains(name)) {
        words.extend(["--test", name]);
    }
    context.cases(&words, BUILD)
}

/// Their numbers mean nothing here; that they run and end does.
fn bench(context: &Context<'_>) -> Verdict {
    Verdict::of(context.check(&["test", "--package", "benches", "--benches"]))
}

fn doc(context: &Context<'_>) -> Verdict {
    context.cases(&["test", "--workspace", "--no-fail-fast", "--doc"], BUILD)
}

/// Once as the sources are, and once each package as docs.rs builds it: with the features and the flags that its manifest asks for
/// there, among them `cfg(docsrs)`, which wants features that are not stable.
fn rustdoc(context: &Context<'_>) -> Verdict {
    let mut all = context.cargo(&["doc", "--workspace", "--no-deps"]);
    let built = process::run(all.env("RUSTDOCFLAGS", "-D warnings"), BUILD).result;
    let built = built.and_then(|()| Workspace::read(context.root)).and_then(|workspace| {
        workspace.docs_rs().try_for_each(|(package, features, flags)| {
            let words = ["rustdoc", "--package", package, "--lib", "--features", &features, "--"];
            let mut command = context.cargo(&words);
            command.args(flags).args(["-D", "warnings"]);
            // It allows that to rustdoc alone, so that nothing is compiled anew.
            command.env("RUSTDOC", context.root.join("xtask/unstable-rustdoc"));
            process::run(&mut command, BUILD).result
        })
    });
    Verdict::of(built)
}

fn tshark(context: &Context<'_>) -> Verdict {
    context.cases(&["test", "--workspace", "--test", "tshark"], BUILD)
}

fn opensm(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.check(&["build", "--package", "examples", "--examples"]) {
        return Verdict::Failed(reason);
    }
    context.cases(&["test", "--workspace", "--test", "opensm", "--test", "fabric"], BUILD)
}

/// In CI they are not left out: the cases fail there and say why.
fn raw(context: &Context<'_>) -> Verdict {
    if !context.root_user && !context.ci {
        return Verdict::LeftOut("only root makes network namespaces".into());
    }
    if let Err(reason) = context.check(&["build", "--package", "examples", "--examples"]) {
        return Verdict::Failed(reason);
    }
    context.cases(&["test", "--workspace", "--test", "raw_links", "--test", "raw_sockets"], BUILD)
}

fn guest(context: &Context<'_>) -> Verdict {
    context.cases(&["test", "--workspace", "--test", "kernel"], GUEST_TIME)
}
