//! Debian packages and toolchain components: what is missing, and its installation where that is possible.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::process;

const QUESTION: Duration = Duration::from_secs(10);
const INSTALL: Duration = Duration::from_secs(300);

/// Installs what is missing of `wanted` if this is root on a Debian machine, and returns what is missing still.
pub(crate) fn provide(wanted: &[&'static str]) -> Vec<&'static str> {
    let mut missing: Vec<&str> = wanted.iter().copied().filter(|package| !installed(package)).collect();
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() {
        return missing;
    }
    let apt = process::quiet(Command::new("apt-get").arg("--version"), QUESTION).result.is_ok();
    if !root_user() || !apt {
        println!("not installed, and not root on Debian: {}", missing.join(" "));
        return missing;
    }
    if !lists() {
        _ = process::run(Command::new("apt-get").args(["-q", "update"]), INSTALL);
    }
    if install(&missing).is_err() {
        // Lists that are too old name files that are gone.
        _ = process::run(Command::new("apt-get").args(["-q", "update"]), INSTALL);
        if let Err(reason) = install(&missing) {
            println!("{reason}");
        }
    }
    missing.retain(|package| !installed(package));
    missing
}

/// Lets rustup add rustfmt and clippy to a toolchain that came without. If it can't, their floors say so.
pub(crate) fn components() {
    for (name, subcommand) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if process::quiet(Command::new("cargo").args([subcommand, "--version"]), QUESTION).result.is_err() {
            let added = process::run(Command::new("rustup").args(["component", "add", name]), INSTALL);
            added.result.unwrap_or_else(|reason| println!("{reason}"));
        }
    }
}

/// Whether this is root.
pub(crate) fn root_user() -> bool {
    process::quiet(Command::new("id").arg("-u"), QUESTION).stdout.trim() == "0"
}

fn install(packages: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command.args(["-q", "-y", "install", "--no-install-recommends"]).args(packages);
    process::run(command.env("DEBIAN_FRONTEND", "noninteractive"), INSTALL).result
}

fn installed(package: &str) -> bool {
    let mut question = Command::new("dpkg-query");
    question.args(["-W", "-f", "${db:Status-Status}", package]);
    process::quiet(&mut question, QUESTION).stdout == "installed"
}

/// Whether apt has lists of packages to choose from.
fn lists() -> bool {
    let entries = fs::read_dir("/var/lib/apt/lists").into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
}
