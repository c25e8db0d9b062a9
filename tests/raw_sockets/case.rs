//! How a case runs: on a thread of its own, because it moves between network namespaces, with two more threads for its tasks.

use std::process::Command;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};

use crate::net::Net;

/// How long a case may take that takes a part of a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Outcome = Result<(), Failed>;

/// The programs that the cases need.
const PROGRAMS: [(&str, &str); 7] = [
    ("ip", "-V"),
    ("nsenter", "-V"),
    ("ping", "-V"),
    ("python3", "-V"),
    ("tc", "-V"),
    ("tshark", "-v"),
    ("unshare", "-V"),
];

/// Why the cases cannot run here, if they cannot.
pub(crate) fn hindrance() -> Option<String> {
    let output = |program: &str, argument: &str| Command::new(program).arg(argument).output();
    let missing = PROGRAMS.iter().filter(|(program, version)| output(program, version).is_err());
    let missing: Vec<_> = missing.map(|(program, _)| *program).collect();
    if !missing.is_empty() {
        return Some(format!("programs are missing: {}", missing.join(" ")));
    }
    let user = output("id", "-u").map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    (!user.is_ok_and(|user| user == "0")).then(|| "only root makes network namespaces".to_owned())
}

/// A case with a network of its own.
pub(crate) fn case<F>(name: &str, body: impl Fn(Net) -> F + Send + 'static) -> Trial
where
    F: Future<Output = Outcome>,
{
    Trial::test(name, move || {
        let run = move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let net = Net::new()?;
            runtime.block_on(async { tokio::time::timeout(LIMIT, body(net)).await? })
        };
        // A panic stays one, with its message.
        std::thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
