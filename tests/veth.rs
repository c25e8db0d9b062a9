//! Two network namespaces with a veth pair between them. A process that waits for the end of its input holds each: however the
//! tests end, the namespaces, their links and what runs in them end too.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How long a program may take that is over in milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why this process cannot make namespaces and use these programs, if it cannot; each with an argument that does nothing.
pub fn hindrance(programs: &[(&str, &str)]) -> Option<String> {
    let output = |program: &str, argument: &str| Command::new(program).arg(argument).output();
    let needed = [("ip", "-V"), ("nsenter", "-V"), ("unshare", "-V")];
    let missing = needed.iter().chain(programs).filter(|(program, idle)| output(program, idle).is_err());
    let missing: Vec<_> = missing.map(|(program, _)| *program).collect();
    if !missing.is_empty() {
        return Some(format!("programs are missing: {}", missing.join(" ")));
    }
    let user = output("id", "-u").map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    (!user.is_ok_and(|user| user == "0")).then(|| "only root makes network namespaces".to_owned())
}

/// One end of the link. Each is alone in its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `here0`, `fe80::1`.
    Here,
    /// `there0`, `fe80::2`.
    There,
}

pub use Side::{Here, There};

impl Side {
    /// The one at the other end.
    pub const fn other(self) -> Self {
        match self {
            Here => There,
            There => Here,
        }
    }

    /// The name of its interface.
    pub const fn interface(self) -> &'static str {
        match self {
            Here => "here0",
            There => "there0",
        }
    }

    /// The link address of its interface.
    pub const fn mac(self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self as u8 + 1]
    }

    /// The link-local address of its interface.
    pub const fn address(self) -> &'static str {
        match self {
            Here => "fe80::1",
            There => "fe80::2",
        }
    }
}

/// Both namespaces. The links have no addresses but [`Side::address`], and no other traffic than that of IPv6.
#[derive(Debug)]
pub struct Net([Namespace; 2]);

#[derive(Debug)]
struct Namespace {
    holder: Ended,
    file: File,
}

/// A child that does not outlive its owner.
#[derive(Debug)]
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        _ = self.0.kill(); // by its own id; it may have ended
        _ = self.0.wait();
    }
}

impl Namespace {
    fn new() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo && exec cat"]);
        let mut holder = Ended(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        // A line, once it is in its namespace.
        let output = holder.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        if BufReader::new(output).read_line(&mut String::new())? == 0 {
            return Err(io::Error::other("unshare could not make a network namespace"));
        }
        let file = File::open(format!("/proc/{}/ns/net", holder.0.id()))?;
        Ok(Self { holder, file })
    }
}

impl Net {
    /// Makes the namespaces and the link, and waits until it carries.
    pub fn new() -> io::Result<Self> {
        let net = Self([Namespace::new()?, Namespace::new()?]);
        let mac = |side: Side| side.mac().map(|byte| format!("{byte:02x}")).join(":");
        net.ip(
            Here,
            &format!(
                "link add {} address {} type veth peer name {} address {} netns {}",
                Here.interface(),
                mac(Here),
                There.interface(),
                mac(There),
                net.0[There as usize].holder.0.id(),
            ),
        )?;
        for (side, other) in [(Here, There), (There, Here)] {
            let (link, mac) = (side.interface(), mac(other));
            net.ip(
                side,
                &format!(
                    "link set lo up\nlink set {link} addrgenmode none\nlink set {link} up\n\
                     addr add {}/64 dev {link} nodad\nneigh replace {} lladdr {mac} dev {link}",
                    side.address(),
                    other.address(),
                ),
            )?;
        }
        net.carries()?;
        Ok(net)
    }

    /// Waits until both ends are up: before, what is sent is lost.
    pub fn carries(&self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        for side in [Here, There] {
            let mut show = self.command(side, "ip");
            show.args(["-o", "link", "show", side.interface()]);
            while !run(&mut show, b"")?.contains("state UP") {
                if Instant::now() > until {
                    return Err(io::Error::other(format!("{} does not come up", side.interface())));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Moves the calling thread, whose sockets belong to that side from then on.
    pub fn enter(&self, side: Side) -> io::Result<()> {
        let file = self.0[side as usize].file.as_fd();
        Ok(move_into_link_name_space(file, Some(LinkNameSpaceType::Network))?)
    }

    /// A program in the namespace.
    pub fn command(&self, side: Side, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0[side as usize].holder.0.id())).arg(program);
        command
    }

    /// Runs lines of `ip`.
    pub fn ip(&self, side: Side, lines: &str) -> io::Result<()> {
        run(self.command(side, "ip").args(["-batch", "-"]), lines.as_bytes()).map(drop)
    }

    /// Runs a program to its end, and returns what it wrote.
    pub fn run(&self, side: Side, program: &str, arguments: &[&str]) -> io::Result<String> {
        run(self.command(side, "timeout").arg("10").arg(program).args(arguments), b"")
    }
}

fn run(command: &mut Command, input: &[u8]) -> io::Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?.write_all(input)?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{command:?}: {}: {said}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
