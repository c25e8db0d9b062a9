//! How a case runs: on a thread of its own, because it moves between network namespaces, with two more threads for its tasks.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use tests::veth::Net;

/// How long a case may take that takes a part of a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Outcome = Result<(), Failed>;

/// The programs that the cases need beside those of the link.
const PROGRAMS: [(&str, &str); 4] = [("ping", "-V"), ("python3", "-V"), ("tc", "-V"), ("tshark", "-v")];

/// Why the cases cannot run here, if they cannot.
pub(crate) fn hindrance() -> Option<String> {
    tests::veth::hindrance(&PROGRAMS)
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
