//! Whether a port of a subnet is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::broadcast::error::RecvError;

use super::SubnetPort;
use crate::RawError;
use crate::stats::{Counters, count};

/// Watches one port for one socket.
#[derive(Debug)]
pub(super) struct Watch {
    port: Arc<SubnetPort>,
    /// What was said last.
    said_down: AtomicBool,
    counters: Arc<Counters>,
}

impl Watch {
    /// Of a port that is taken for up.
    pub(super) fn new(port: Arc<SubnetPort>, counters: Arc<Counters>) -> Self {
        Self { port, said_down: AtomicBool::new(false), counters }
    }

    /// Looks at the port: what is to be said of it that was not said before.
    fn look(&self) -> Result<(), RawError> {
        let is_down = !self.port.is_up()?;
        if is_down && !self.said_down.swap(is_down, Ordering::AcqRel) {
            count(&self.counters.link_down_events);
            return Err(RawError::LinkDown);
        }
        self.said_down.fetch_and(is_down, Ordering::AcqRel);
        Ok(())
    }

    /// Until there is something to say.
    pub(super) async fn down(&self) -> RawError {
        let mut events = self.port.device.follow_events();
        loop {
            if let Err(error) = self.look() {
                return error;
            }
            if let Err(RecvError::Closed) = events.recv().await {
                return RawError::LinkGone;
            }
        }
    }
}
