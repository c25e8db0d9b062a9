//! A throw-away virtual machine with Linux's own RDMA stack, in which named cases run one by one.
//!
//! [`Machine`] is what a test target uses: it boots on the first case, serves all cases of one kernel configuration from
//! that boot, and boots again only if a case took the guest down. README.md in this folder says how to add a case.

mod boot;
mod initramfs;
mod kernel;
mod target;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use boot::Guest;

/// Longest time from power-on to the end of the setup script.
const BOOT: Duration = Duration::from_secs(300);

/// How much longer than its own limit a case may take before the guest counts as dead.
const GRACE: Duration = Duration::from_secs(15);

/// Boots per machine, the first included.
const BOOTS: u32 = 3;

/// Status of a case that ended well and has left something in the kernel.
pub const LEAVES_SOMETHING: i32 = 98;

/// Why a guest could not be booted or a case could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// A file of the harness could not be read or written.
    #[error("{path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A program that the harness calls is missing or failed.
    #[error("`{command}`: {reason}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        reason: String,
    },
    /// The setup script did not end well; its log is the text.
    #[error("setup in the guest failed:\n{log}")]
    Setup {
        /// The setup script's output, or the console's last lines if it never began.
        log: String,
    },
    /// It could not be booted, or went down too often, in cases before this one.
    #[error("the guest was given up in an earlier case")]
    GivenUp,
    /// The guest ended or stopped answering.
    #[error("the guest {what} {when}; its console ends with:\n{console}")]
    Lost {
        /// "ended" or "fell silent".
        what: &'static str,
        /// During what.
        when: String,
        /// The console's last lines.
        console: String,
    },
}

/// One kernel configuration: what is loaded and set up before the first case.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the configuration and of its folder of logs.
    pub name: &'static str,
    /// Setup script in tests/guest/.
    pub setup: &'static str,
    /// Variables that the scripts see: name and value.
    pub variables: Vec<(&'static str, String)>,
    /// C programs of tests/guest/c/ to build for the guest, found as `/job/NAME`: source file name without `.c`.
    pub helpers: &'static [&'static str],
    /// Programs of the workspace to build for the guest, found as `/job/NAME`.
    pub targets: &'static [Target],
    /// After this long the guest ends by itself, whatever runs.
    pub limit: Duration,
}

/// A program of the workspace that runs in the guest.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// A test target whose tests are ignored elsewhere.
    Test {
        /// The package that it belongs to.
        package: &'static str,
        /// Name of the target.
        name: &'static str,
        /// The feature that it needs.
        feature: &'static str,
    },
    /// An example.
    Example {
        /// The package that it belongs to.
        package: &'static str,
        /// Its name.
        name: &'static str,
        /// The feature that it needs, if it needs one.
        feature: Option<&'static str>,
    },
}

/// One case: a script in tests/guest/cases/ with its arguments.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name in the summary, without blanks.
    pub name: String,
    /// Script in tests/guest/cases/.
    pub script: &'static str,
    /// Words given to the script.
    pub arguments: Vec<String>,
    /// Time limit, whole seconds.
    pub limit: Duration,
    /// How long what it has made in the kernel may take to go when it has ended, whole seconds.
    pub settling: Duration,
}

impl Case {
    /// A case with the usual limit of a minute, which leaves nothing in the kernel after 20 s.
    pub fn new(name: impl Into<String>, script: &'static str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let (limit, settling) = (Duration::from_secs(60), Duration::from_secs(20));
        Self { name: name.into(), script, arguments, limit, settling }
    }

    /// The same case with another limit, whole seconds.
    #[must_use]
    pub fn limit(self, seconds: u64) -> Self {
        Self { limit: Duration::from_secs(seconds), ..self }
    }

    /// The same case with less or more time for the kernel to be rid of what it has made, whole seconds.
    #[must_use]
    pub fn settling(self, seconds: u64) -> Self {
        Self { settling: Duration::from_secs(seconds), ..self }
    }
}

/// How a case ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Exit status of its script; [`LEAVES_SOMETHING`] if that was 0 and something of it is left in the kernel.
    pub status: i32,
    /// What it printed, and on failure the kernel's log.
    pub log: String,
}

/// The machine of one kernel configuration, booted when its first case comes.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    guest: Option<Guest>,
    boots_left: u32,
}

impl Machine {
    /// A machine that keeps its files, logs included, in `folder`/NAME.
    pub fn new(config: Config, folder: &Path) -> Self {
        let folder = folder.join(config.name);
        Self { config, folder, state: Mutex::new(State { guest: None, boots_left: BOOTS }) }
    }

    /// Runs one case and waits for its end; cases of several threads queue up.
    ///
    /// # Errors
    ///
    /// The guest can't be booted, or it died or hung in this case. A case that fails is an [`Outcome`], not an error.
    pub fn run(&self, case: &Case) -> Result<Outcome, GuestError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guest = match state.guest.take() {
            Some(guest) => guest,
            None if state.boots_left == 0 => return Err(GuestError::GivenUp),
            None => {
                // What failed once at booting fails again; what took a running guest down may be that case's affair.
                let boots_left = std::mem::take(&mut state.boots_left) - 1;
                let guest = Guest::boot(&self.config, &self.folder)?;
                state.boots_left = boots_left;
                guest
            }
        };
        let outcome = guest.run(case)?;
        state.guest = Some(guest);
        Ok(outcome)
    }
}

/// The programs that the harness and the cases call, and that this host lacks.
pub fn missing() -> Vec<&'static str> {
    let needed = [
        "apt-cache",
        "apt-get",
        "bash",
        "busybox",
        "depmod",
        "dpkg",
        "gcc",
        "ip",
        "modprobe",
        "prlimit",
        "qemu-system-x86_64",
        "rdma",
        "rping",
        "setpriv",
        "tc",
        "ucmatose",
        "valgrind",
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = || std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut missing: Vec<_> =
        needed.into_iter().filter(|program| !folders().any(|folder| folder.join(program).exists())).collect();
    if !Path::new("/usr/lib/python3/dist-packages/pyverbs").exists() {
        missing.push("pyverbs");
    }
    missing
}

/// The checkout.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// The folder of the scripts.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> GuestError {
    let path = path.to_owned();
    move |source| GuestError::File { path, source }
}

/// Runs a command of the host to its end and returns what it wrote.
fn command(program: &str, arguments: &[&str], folder: &Path) -> Result<String, GuestError> {
    let line = || format!("{program} {}", arguments.join(" "));
    let output = std::process::Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| GuestError::Command { command: line(), reason: error.to_string() })?;
    if !output.status.success() {
        let reason = format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        return Err(GuestError::Command { command: line(), reason });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The last lines of a file, or what is wrong with it.
fn tail(path: &Path, lines: usize) -> String {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("{}: {error}", path.display()),
    }
}
