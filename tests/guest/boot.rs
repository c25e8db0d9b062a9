//! One running guest: qemu as a child process, orders and answers over its second serial port.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::kernel::Kernel;
use super::{BOOT, Case, Config, GRACE, GuestError, Outcome, at, command, initramfs, scripts, tail};

/// How long a guest may take to power off before it is killed.
const POWER_OFF: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Guest {
    qemu: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    folder: PathBuf,
}

impl Guest {
    /// Boots and waits for the end of the setup script. `folder` holds all files of the guest and is emptied first.
    pub(super) fn boot(config: &Config, folder: &Path) -> Result<Self, GuestError> {
        let began = Instant::now();
        let kernel = Kernel::fetch()?;
        prepare(config, folder)?;
        let initrd = folder.join("initramfs");
        fs::write(&initrd, initramfs::build(&kernel)?).map_err(at(&initrd))?;

        let (mut qemu, answers) = spawn(qemu(&kernel, &initrd, folder))?;
        let orders = qemu.stdin.take().ok_or_else(|| at(folder)(std::io::ErrorKind::BrokenPipe.into()))?;
        let guest = Self { qemu, orders, answers, folder: folder.to_owned() };
        match guest.answer(BOOT, "while booting")?.as_str() {
            "ready" => {
                eprintln!("guest {}: up after {:.1} s", config.name, began.elapsed().as_secs_f32());
                Ok(guest)
            }
            _ => Err(GuestError::Setup { log: tail(&folder.join("logs/setup"), 40) }),
        }
    }

    pub(super) fn run(&mut self, case: &Case) -> Result<Outcome, GuestError> {
        let (name, seconds, settling) = (&case.name, case.limit.as_secs(), case.settling.as_secs());
        let order = format!("run {name} {seconds} {settling} {} {}\n", case.script, case.arguments.join(" "));
        let sent = self.orders.write_all(order.as_bytes()).and_then(|()| self.orders.flush());
        sent.map_err(|_| self.lost("ended", format!("before {name}")))?;
        let answer = self.answer(case.limit + case.settling + GRACE, &format!("in {name}"))?;
        let log = tail(&self.folder.join("logs").join(name), usize::MAX);
        match answer.strip_prefix(&format!("done {name} ")).and_then(|status| status.parse().ok()) {
            Some(status) => Ok(Outcome { status, log }),
            None => Err(self.lost("answered nonsense", format!("in {name}: {answer:?}"))),
        }
    }

    fn answer(&self, limit: Duration, when: &str) -> Result<String, GuestError> {
        self.answers.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.lost("fell silent", format!("{when} for {limit:?}")),
            RecvTimeoutError::Disconnected => self.lost("ended", when.to_owned()),
        })
    }

    fn lost(&self, what: &'static str, when: String) -> GuestError {
        GuestError::Lost { what, when, console: tail(&self.folder.join("console"), 40) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let asked = self.orders.write_all(b"off\n").and_then(|()| self.orders.flush());
        let deadline = Instant::now() + POWER_OFF;
        while asked.is_ok() && Instant::now() < deadline {
            if matches!(self.qemu.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        if let Err(error) = self.qemu.kill().and_then(|()| self.qemu.wait()) {
            eprintln!("qemu (process {}) can't be ended: {error}", self.qemu.id());
        }
    }
}

/// Fills the folder that the guest sees as /job.
fn prepare(config: &Config, folder: &Path) -> Result<(), GuestError> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(at(folder))?;
    }
    let logs = folder.join("logs");
    fs::create_dir_all(&logs).map_err(at(&logs))?;
    let own = scripts();
    for (from, to) in [("agent.sh", "agent.sh"), (config.setup, "setup.sh")] {
        let (from, to) = (own.join(from), folder.join(to));
        fs::copy(&from, &to).map_err(at(&from))?;
    }
    let mut env = format!(
        "export GUEST_DIR='{0}' GUEST_CASES='{0}/cases' GUEST_SECONDS={1}\n",
        own.display(),
        config.limit.as_secs()
    );
    for (name, value) in &config.variables {
        env += &format!("export {name}='{value}'\n");
    }
    let file = folder.join("env");
    fs::write(&file, env).map_err(at(&file))?;
    for helper in config.helpers {
        let source = own.join("c").join(format!("{helper}.c"));
        let source = source.to_string_lossy();
        let arguments =
            ["-O1", "-Wall", "-Wextra", "-Werror", "-o", helper, &source, "-lrdmacm", "-libverbs"];
        command("gcc", &arguments, folder)?;
    }
    for target in config.targets {
        let (from, to) = (target.build()?, folder.join(target.name()));
        fs::copy(&from, &to).map_err(at(&from))?;
    }
    Ok(())
}

fn qemu(kernel: &Kernel, initrd: &Path, folder: &Path) -> Command {
    let share = |tag: &str, path: &Path, options: &str| {
        format!("local,path={},mount_tag={tag},security_model=none{options}", path.display())
    };
    // setpriv: should this process be killed, qemu goes with it.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G"]);
    command.args(["-nodefaults", "-display", "none", "-no-reboot", "-monitor", "none"]);
    command.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initrd);
    command.args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable"]);
    command.args(["-virtfs", &share("root", Path::new("/"), ",readonly=on,multidevs=remap")]);
    command.args(["-virtfs", &share("modules", &kernel.modules(), ",readonly=on")]);
    command.args(["-virtfs", &share("job", folder, "")]);
    command.args(["-serial", &format!("file:{}", folder.join("console").display()), "-serial", "stdio"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// Starts the command in a thread that lives as long as the child does: the parent-death signal of setpriv follows
/// the thread that started it. That thread hands on the lines that the child writes.
fn spawn(mut command: Command) -> Result<(Child, Receiver<String>), GuestError> {
    let (started, start) = mpsc::channel();
    let (sender, answers) = mpsc::channel();
    thread::spawn(move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                _ = started.send(Err(error));
                return;
            }
        };
        let Some(stdout) = child.stdout.take() else { return };
        if started.send(Ok(child)).is_err() {
            return;
        }
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Nobody listens: the guest is being dropped, and this thread still has to outlive it.
            _ = sender.send(line.trim_end().to_owned());
        }
    });
    let failed = |reason: String| GuestError::Command { command: "qemu-system-x86_64".into(), reason };
    let child = start.recv().map_err(|error| failed(error.to_string()))?;
    Ok((child.map_err(|error| failed(error.to_string()))?, answers))
}
