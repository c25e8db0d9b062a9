//! Where the two ends of the connections run.

use std::fmt;
use std::future::pending;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};

/// The runtimes of both ends.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) client: Runtime,
    pub(crate) server: Handle,
    name: &'static str,
}

impl Ends {
    /// Both ends in one runtime with a thread per core.
    pub(crate) fn together() -> io::Result<Self> {
        let client = Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { server: client.handle().clone(), client, name: "one runtime" })
    }

    /// Each end in a thread of its own with a runtime of its own, as in two programs.
    pub(crate) fn apart() -> io::Result<Self> {
        let build = || Builder::new_current_thread().enable_all().build();
        let (client, server) = (build()?, build()?);
        let handle = server.handle().clone();
        // It runs as long as the process.
        thread::spawn(move || server.block_on(pending::<()>()));
        Ok(Self { client, server: handle, name: "two threads" })
    }

    /// Runs `task` at the server's end and waits for it.
    pub(crate) fn on_server<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        self.client.block_on(self.server.spawn(task)).expect("a task that does not panic")
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
