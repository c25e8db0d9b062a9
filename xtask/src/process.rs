//! Commands with a time limit.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What went wrong, if anything.
    pub(crate) result: Result<(), String>,
    /// Its standard output, whole.
    pub(crate) stdout: String,
}

/// Runs the command to its end, passing its standard output on line by line while it is collected. After `limit` it is
/// killed with all its descendants.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Ended {
    println!("$ {}", line(command));
    collect(command, limit, true)
}

/// The same without a word.
pub(crate) fn quiet(command: &mut Command, limit: Duration) -> Ended {
    collect(command.stderr(Stdio::null()), limit, false)
}

fn collect(command: &mut Command, limit: Duration, echo: bool) -> Ended {
    let line = line(command);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Ended { result: Err(format!("`{line}`: {error}")), stdout: String::new() },
    };
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || stdout.map(|stdout| read(stdout, echo)).unwrap_or_default());
    let deadline = Instant::now() + limit;
    let result = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break Ok(()),
            Ok(Some(status)) => break Err(format!("`{line}`: {status}")),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                kill_tree(child.id());
                _ = child.wait();
                break Err(format!("`{line}`: killed after {} s", limit.as_secs()));
            }
            Err(error) => break Err(format!("`{line}`: {error}")),
        }
    };
    Ended { result, stdout: reader.join().unwrap_or_default() }
}

fn read(stdout: impl Read, echo: bool) -> String {
    let mut all = String::new();
    let mut reader = BufReader::new(stdout);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&bytes);
        if echo {
            print!("{text}");
        }
        all += &text;
        bytes.clear();
    }
    all
}

/// The process and all that descend from it, found by their parents in /proc.
fn kill_tree(root: u32) {
    let mut doomed = vec![root];
    let mut next = 0;
    while next < doomed.len() {
        doomed.extend(children(doomed[next]));
        next += 1;
    }
    for process in doomed {
        // The process may have ended meanwhile; then this fails, which is as good.
        let kill = ["-c", "kill -KILL \"$0\"", &process.to_string()];
        _ = Command::new("sh").args(kill).stderr(Stdio::null()).status();
    }
}

fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|process| {
            // "pid (name) state ppid …"; the name may hold anything, so count from its end.
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let ppid = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
            ppid == Some(parent)
        })
        .collect()
}

fn line(command: &Command) -> String {
    let variables = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.display(), value?.display())));
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.display().to_string());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_over_its_limit_is_killed_with_its_children() {
        let began = Instant::now();
        // The background process holds the output open: only with its end does the reader see one.
        let ended = quiet(
            Command::new("sh").args(["-c", "echo up; sleep 60 & sleep 60"]),
            Duration::from_millis(300),
        );
        assert!(ended.result.is_err_and(|reason| reason.ends_with("killed after 0 s")));
        assert_eq!(ended.stdout, "up\n");
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_failing_command_is_named_with_its_status() {
        let ended = quiet(Command::new("false").env("A", "b"), Duration::from_secs(10));
        assert_eq!(ended.result, Err("`A=b false`: exit status: 1".into()));
    }
}
