//! Cases in processes of their own: what one has used of the memory says nothing of the next.

use std::env;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// Names the case that a process is for.
const FLAG: &str = "--alone=";
/// Longer than any of them takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The case that this process is for, if it is for one.
pub(crate) fn case() -> Option<String> {
    env::args().find_map(|arg| Some(arg.strip_prefix(FLAG)?.to_owned()))
}

/// The row of a case, measured by another process of this program.
pub(crate) fn row<const N: usize>(name: &str) -> Result<[String; N]> {
    let mut child = Command::new(env::current_exe()?)
        .arg(format!("{FLAG}{name}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().ok_or("it was given none")?;
    let started = Instant::now();
    // A row is shorter than what a pipe holds: the child does not wait for anybody to read it.
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if started.elapsed() > LIMIT => {
                child.kill()?;
                child.wait()?;
                return Err(format!("{name}: not done after {LIMIT:?}").into());
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if !status.success() {
        return Err(format!("{name}: {status}").into());
    }
    let mut text = String::new();
    stdout.read_to_string(&mut text)?;
    let cells: Vec<String> = text.trim_end_matches('\n').split('\t').map(String::from).collect();
    <[String; N]>::try_from(cells).map_err(|cells| format!("{name}: {cells:?}").into())
}

/// Says a row to who has started this process.
pub(crate) fn say<const N: usize>(row: &[String; N]) {
    println!("{}", row.join("\t"));
}
