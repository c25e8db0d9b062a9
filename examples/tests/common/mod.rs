//! Examples as processes: each has a time limit, and ends with its test whatever comes of that.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tests::children::{Bound, bound};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long a program may live.
const LIMIT: Duration = Duration::from_secs(120);

/// The example, which is built beside this test, on a software HCA of its own.
pub fn example(name: &str) -> Result<Command> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let mut command = Command::new(profile.join("examples").join(name));
    command.env_remove("RUST_LOG").env_remove("IBCM_DEVICE").env("NO_COLOR", "1");
    Ok(command)
}

/// What it prints to standard output and then to standard error, if it ends well.
pub fn output(name: &str, arguments: &[&str]) -> Result<String> {
    let ended = Program::start(example(name)?.args(arguments))?.end()?.well()?;
    Ok(ended.stdout + &ended.stderr)
}

/// A program that runs. Dropped, it is killed; so it is with the process of its test.
pub struct Program {
    running: Bound,
    said: Receiver<Said>,
    stderr: String,
    until: Instant,
}

enum Said {
    /// A line of standard output, with its end.
    Line(String),
    /// All of standard error.
    Stderr(String),
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    pub success: bool,
    /// What [`Program::line`] has not taken.
    pub stdout: String,
    pub stderr: String,
}

impl Program {
    pub fn start(command: &mut Command) -> Result<Self> {
        Self::spawn(command, Stdio::null())
    }

    /// A program that is told something, and that something.
    pub fn start_with_input(command: &mut Command) -> Result<(Self, ChildStdin)> {
        let mut program = Self::spawn(command, Stdio::piped())?;
        let input = program.running.child.stdin.take().ok_or("no input")?;
        Ok((program, input))
    }

    fn spawn(command: &Command, input: Stdio) -> Result<Self> {
        let mut command = bound(command);
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Bound::start(command)?;
        let (sender, said) = channel();
        if let (Some(stdout), Some(stderr)) = (running.child.stdout.take(), running.child.stderr.take()) {
            let lines = sender.clone();
            thread::spawn(move || send_lines(stdout, &lines));
            thread::spawn(move || send_all(stderr, &sender));
        }
        Ok(Self { running, said, stderr: String::new(), until: Instant::now() + LIMIT })
    }

    /// The next line of standard output, without its end.
    pub fn line(&mut self) -> Result<String> {
        match self.next()? {
            Some(line) => Ok(line.trim_end().to_owned()),
            None => Err(format!("it ended: {}", self.stderr).into()),
        }
    }

    /// As Ctrl-C does.
    pub fn interrupt(&self) -> Result {
        let kill = ["-c", "kill -INT \"$0\"", &self.running.child.id().to_string()];
        let sent = Command::new("sh").args(kill).status()?;
        if sent.success() { Ok(()) } else { Err("no such process".into()) }
    }

    /// Waits until it ends by itself.
    pub fn end(mut self) -> Result<Ended> {
        let mut stdout = String::new();
        while let Some(line) = self.next()? {
            stdout += &line;
        }
        // It has closed both, as it does when it ends.
        let success = self.running.child.wait()?.success();
        Ok(Ended { success, stdout, stderr: std::mem::take(&mut self.stderr) })
    }

    /// [`end`](Self::end) for a task that does not block.
    pub async fn ended(self) -> Result<Ended> {
        tokio::task::spawn_blocking(|| self.end()).await?
    }

    /// The next line of standard output; `None` when it has ended.
    fn next(&mut self) -> Result<Option<String>> {
        loop {
            match self.said.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok(Said::Line(line)) => return Ok(Some(line)),
                Ok(Said::Stderr(text)) => self.stderr = text,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("it runs for more than {LIMIT:?}").into());
                }
            }
        }
    }
}

impl Ended {
    /// It reported success.
    pub fn well(self) -> Result<Self> {
        if self.success { Ok(self) } else { Err((self.stdout + &self.stderr).into()) }
    }
}

fn send_lines(from: impl Read, to: &Sender<Said>) {
    let mut from = BufReader::new(from);
    let mut line = String::new();
    // Who is not listened to goes on being read, so that the program does not block.
    while from.read_line(&mut line).is_ok_and(|read| read > 0) {
        _ = to.send(Said::Line(std::mem::take(&mut line)));
    }
}

fn send_all(mut from: impl Read, to: &Sender<Said>) {
    let mut bytes = Vec::new();
    _ = from.read_to_end(&mut bytes);
    _ = to.send(Said::Stderr(String::from_utf8_lossy(&bytes).into_owned()));
}
