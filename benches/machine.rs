//! The machine that a run is about.

use std::fs;

/// CPU model, cores, kernel, compiler and build profile, in one line.
pub fn machine() -> String {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let profile = if cfg!(debug_assertions) { "UNOPTIMISED BUILD" } else { "optimised build" };
    format!(
        "{cpu}, {cores} cores, {} {}, {}, {profile}",
        std::env::consts::OS,
        kernel.trim(),
        env!("BENCHES_RUSTC")
    )
}

/// How much memory of this process is resident, bytes; `None` where the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    let kib = field("/proc/self/status", "VmRSS")?;
    Some(kib.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// What stands behind `name` and a colon.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().into())
}
