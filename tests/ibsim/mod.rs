//! A subnet of ibsim with OpenSM as its manager: both are processes of Debian's packages. Or with ours: [`manager`].

pub mod manager;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::children::{Bound, bound};

/// The library that makes a program believe that ibsim's nodes are this machine's.
const UMAD2SIM: &str = "umad2sim/libumad2sim.so";

/// How long a program may take to begin, or to end when it is told to.
const PATIENCE: Duration = Duration::from_secs(20);

/// The programs that are needed and missing.
pub fn missing() -> Vec<&'static str> {
    let found = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        folders.into_iter().any(|folder| folder.join(program).exists())
    };
    let mut missing: Vec<_> =
        ["ibsim", "opensm", "saquery", "setpriv"].into_iter().filter(|program| !found(program)).collect();
    if umad2sim().is_none() {
        missing.push("libumad2sim");
    }
    missing
}

/// The library, wherever this architecture has it.
fn umad2sim() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = folders.chain(["/usr/lib64".into(), "/usr/lib".into()]);
    folders.into_iter().map(|folder| folder.join(UMAD2SIM)).find(|file| file.exists())
}

/// A running subnet. Dropped, its processes end; so they do with this process.
#[derive(Debug)]
pub struct Fabric {
    /// How its sockets are named.
    base: String,
    /// The node where OpenSM runs.
    host: String,
    folder: PathBuf,
    ibsim: Mutex<Bound>,
    opensm: Mutex<Option<Bound>>,
}

impl Fabric {
    /// Starts ibsim with the net of this folder, files under `folder`, and OpenSM on node A.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let fabric = Self::unmanaged(folder, &Path::new(env!("CARGO_MANIFEST_DIR")).join("ibsim/net"), "A")?;
        fabric.start_opensm()?;
        Ok(fabric)
    }

    /// Starts ibsim with a net, files under `folder`. OpenSM is to run on node `host`.
    pub fn unmanaged(folder: &Path, net: &Path, host: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = format!("ibcm-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = folder.join(&base);
        fs::create_dir_all(&folder)?;
        let mut command = Command::new("ibsim");
        command.arg("-s").arg(net).env("IBSIM_SOCKNAME", &base);
        // Its console is its standard input: kept open, so that links can be taken down.
        let ibsim = Self::spawn(&command, Stdio::piped(), &folder.join("ibsim.log"))?;
        Ok(Self { base, host: host.into(), folder, ibsim: Mutex::new(ibsim), opensm: Mutex::new(None) })
    }

    /// The name of a node as ibcm opens it needs this in IBSIM_SOCKNAME.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Starts OpenSM on its node. It manages the subnet as soon as the ports of its nodes are active.
    pub fn start_opensm(&self) -> io::Result<()> {
        self.start_opensm_with(&[])
    }

    /// Starts OpenSM on its node with more arguments.
    pub fn start_opensm_with(&self, arguments: &[&str]) -> io::Result<()> {
        let log = self.folder.join("opensm.log");
        _ = fs::remove_file(&log);
        let mut command = self.command("opensm", &self.host);
        command.arg("-f").arg(&log).env("OSM_TMP_DIR", &self.folder).env("OSM_CACHE_DIR", &self.folder);
        command.args(arguments);
        let opensm = Self::spawn(&command, Stdio::null(), &self.folder.join("opensm.out"))?;
        *self.opensm.lock().unwrap_or_else(PoisonError::into_inner) = Some(opensm);
        self.wait_for(&log, "Entering MASTER state")
    }

    /// Ends OpenSM.
    pub fn stop_opensm(&self) {
        drop(self.opensm.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Ends both, for a subnet that is never dropped: ibsim does not end with its console.
    pub fn end(&self) {
        self.stop_opensm();
        self.ibsim.lock().unwrap_or_else(PoisonError::into_inner).end();
    }

    /// Types a line into ibsim's console.
    pub fn console(&mut self, line: &str) -> io::Result<()> {
        let ibsim = self.ibsim.get_mut().unwrap_or_else(PoisonError::into_inner);
        let input = ibsim.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}")?;
        input.flush()
    }

    /// What saquery prints at `node`. It waits for an answer as long as a program may take, not for a second as it does by
    /// itself: an answer that comes when it has given up and is ending ends it by a signal, or leaves it waiting for a thread
    /// of its library without end.
    pub fn saquery(&self, node: &str, arguments: &[&str]) -> io::Result<String> {
        let file = self.folder.join(format!("saquery-{}.out", arguments.join("").replace('/', "_")));
        let mut command = self.command("saquery", node);
        command.args(["--timeout", &PATIENCE.as_millis().to_string()]).args(arguments);
        let mut saquery = Self::spawn(&command, Stdio::null(), &file)?;
        let until = Instant::now() + PATIENCE + PATIENCE / 4;
        let status = loop {
            match saquery.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > until => return Err(io::Error::other("saquery does not end")),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let output = fs::read_to_string(&file)?;
        if status.success() {
            Ok(output)
        } else {
            Err(io::Error::other(format!("saquery: {status}: {output}")))
        }
    }

    /// A program that finds this subnet instead of the machine's devices, and takes `node` for its own.
    pub fn command(&self, program: impl AsRef<OsStr>, node: &str) -> Command {
        // The library is the program's alone: in one that starts it, it would take the node.
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(umad2sim().unwrap_or_default());
        let mut command = Command::new("env");
        command.arg(preload).arg(program);
        // The library leaves a tree of /sys where the program runs.
        command.current_dir(&self.folder);
        command.env("IBSIM_SOCKNAME", &self.base).env("SIM_HOST", node);
        command
    }

    fn spawn(command: &Command, input: Stdio, output: &Path) -> io::Result<Bound> {
        let output = File::create(output)?;
        let mut command = bound(command);
        command.stdin(input).stdout(output.try_clone()?).stderr(output);
        Bound::start(command)
    }

    fn wait_for(&self, file: &Path, words: &str) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        while !fs::read_to_string(file).is_ok_and(|text| text.contains(words)) {
            if Instant::now() > until {
                let said = fs::read_to_string(self.folder.join("opensm.out")).unwrap_or_default();
                return Err(io::Error::other(format!("no {words:?} in {}: {said}", file.display())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
