//! Ping-pongs and streams between two ends, each in a thread or a process of its own. The end that asks says over TCP what
//! comes next, and the other one does its part.

mod control;
mod rc;
mod sdk;
mod task;
mod udp;

use std::error::Error;
use std::future::Future;

pub use control::Control;
pub use rc::Rc;
pub use sdk::Sdk;
pub use task::{Task, Waiting, Work};
pub use udp::Udp;

/// What may go wrong on the way.
pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a message that goes to and fro.
pub const PING: usize = 64;
/// Bytes of a message of a stream.
pub const MESSAGE: usize = 64 << 10;
/// Messages of a stream under way at once.
const DEPTH: usize = 16;

/// One of two ends.
pub trait End {
    /// Does the part of the end that asks: sends first, starts writes and reads.
    fn ask(&mut self, task: Task) -> impl Future<Output = Result>;

    /// Does the other part.
    fn answer(&mut self, task: Task) -> impl Future<Output = Result>;
}

/// Does what the other end asks for, until that is gone.
///
/// # Errors
/// As the end.
pub async fn serve(mut control: Control, mut end: impl End) -> Result {
    while let Some(line) = control.hear().await? {
        end.answer(line.parse()?).await?;
    }
    Ok(())
}

/// The end that asks, and its way to tell the other one.
#[derive(Debug)]
pub struct Asker<E> {
    control: Control,
    end: E,
}

impl<E: End> Asker<E> {
    /// With the other end in [`serve`].
    pub const fn new(control: Control, end: E) -> Self {
        Self { control, end }
    }

    /// This end.
    pub const fn end(&self) -> &E {
        &self.end
    }

    /// Does a task, both ends together.
    ///
    /// # Errors
    /// As the end.
    pub async fn run(&mut self, task: Task) -> Result {
        self.control.say(task).await?;
        self.end.ask(task).await
    }
}
