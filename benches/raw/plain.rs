//! The C program that the sockets are compared with.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use benches::Sample;
use benches::traffic::Result;
use tests::veth::{Ended, Net, Side};

use crate::Kind;

/// The program, compiled.
#[derive(Debug)]
pub(crate) struct Plain(PathBuf);

impl Plain {
    /// Compiles it.
    pub(crate) fn compile() -> Result<Self> {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plain");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("raw/plain.c");
        let compiled = Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source).status()?;
        if compiled.success() { Ok(Self(program)) } else { Err("cc cannot compile it".into()) }
    }

    /// Starts it at one side, on one core.
    pub(crate) fn start(&self, net: &Net, side: Side, core: usize, kind: Kind) -> Result<Running> {
        let (name, to) = match kind {
            Kind::Ether => ("ether", side.other().mac().map(|byte| format!("{byte:02x}")).concat()),
            Kind::Ipv6 => ("ipv6", side.other().address().to_owned()),
        };
        let mut command = net.command(side, "taskset");
        command.args(["-c", &core.to_string()]).arg(&self.0).args([name, side.interface(), &to]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let _ended = Ended(child);
        let input = input.ok_or("no pipe")?;
        let mut running = Running { input, output: BufReader::new(output.ok_or("no pipe")?), _ended };
        running.answer()?;
        Ok(running)
    }
}

/// The program as it runs.
#[derive(Debug)]
pub(crate) struct Running {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _ended: Ended,
}

impl Running {
    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("the C program has ended".into());
        }
        Ok(line)
    }

    /// Tells it what to do, and hears what came of that.
    pub(crate) fn ask(&mut self, command: &str) -> Result<String> {
        writeln!(self.input, "{command}")?;
        self.answer()
    }

    /// The same for a command that is measured.
    pub(crate) fn measure(&mut self, command: &str) -> Result<Sample> {
        let answer = self.ask(command)?;
        let numbers: std::result::Result<Vec<u64>, _> = answer.split_whitespace().map(str::parse).collect();
        match numbers.map_err(Box::<dyn Error + Send + Sync>::from)?[..] {
            [count, time, cpu] => {
                Ok(Sample::of(count, Duration::from_nanos(time), Duration::from_nanos(cpu)))
            }
            _ => Err(answer.into()),
        }
    }
}
