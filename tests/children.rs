//! Programs that run beside a test and end with its process, also if that is killed.

use std::convert::Infallible;
use std::io;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread;

/// The same command for a child that is killed when the thread that starts it ends. What the child reads and writes is to be
/// said again.
pub fn bound(command: &Command) -> Command {
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    bound
}

/// A child that outlives neither its owner nor this process.
#[derive(Debug)]
pub struct Bound {
    /// The child.
    pub child: Child,
    /// Dropped, it ends the thread that started the child.
    _started: mpsc::Sender<Infallible>,
}

impl Bound {
    /// Starts what [`bound`] has made.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (started, start) = mpsc::sync_channel(1);
        let (owner, owned) = mpsc::channel();
        thread::Builder::new().name("starts a child".into()).spawn(move || {
            let child = command.spawn();
            let runs = child.is_ok();
            if started.send(child).is_ok() && runs {
                _ = owned.recv(); // the end of its owner
            }
        })?;
        let child = start.recv().map_err(io::Error::other)??;
        Ok(Self { child, _started: owner })
    }

    /// Ends it. May be repeated.
    pub fn end(&mut self) {
        _ = self.child.kill(); // by its own id; it may have ended
        _ = self.child.wait();
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.end();
    }
}
