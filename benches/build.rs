//! Tells the benches which compiler built them: each run names it.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version =
        Command::new(rustc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    println!("cargo:rustc-env=BENCHES_RUSTC={}", String::from_utf8_lossy(&version).trim());
    println!("cargo:rerun-if-changed=build.rs");
}
