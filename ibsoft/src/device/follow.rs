//! Events of a device for layers beside the one that reads them.

use std::task::Poll;

use ibdev::DeviceEvent;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

/// The events of a device since [`SoftDevice::follow_events`](crate::SoftDevice::follow_events).
#[derive(Debug)]
pub struct FollowedEvents(pub(super) Receiver<DeviceEvent>);

/// What [`FollowedEvents`] give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followed {
    /// The device reports this.
    Event(DeviceEvent),
    /// So many of the oldest events were missed: look at the device.
    Missed(u64),
}

impl FollowedEvents {
    /// The next one; `None` when the device is no more.
    ///
    /// # Cancel safety
    /// A dropped future loses no event.
    pub async fn next(&mut self) -> Option<Followed> {
        match self.0.recv().await {
            Ok(event) => Some(Followed::Event(event)),
            Err(RecvError::Lagged(missed)) => Some(Followed::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next one, if it is there already; else it is pending, and nobody is woken.
    pub fn try_next(&mut self) -> Poll<Option<Followed>> {
        match self.0.try_recv() {
            Ok(event) => Poll::Ready(Some(Followed::Event(event))),
            Err(TryRecvError::Lagged(missed)) => Poll::Ready(Some(Followed::Missed(missed))),
            Err(TryRecvError::Empty) => Poll::Pending,
            Err(TryRecvError::Closed) => Poll::Ready(None),
        }
    }
}
