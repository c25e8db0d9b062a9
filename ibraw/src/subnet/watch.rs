//! Whether a port of a subnet is up.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use ibdev::DeviceEvent;
use ibsoft::{Followed, FollowedEvents};

use super::SubnetPort;
use crate::RawError;
use crate::outages::Outages;
use crate::stats::{Counters, count};

/// Watches one port for one socket.
#[derive(Debug)]
pub(super) struct Watch {
    port: Arc<SubnetPort>,
    state: Mutex<State>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct State {
    events: FollowedEvents,
    outages: Outages,
}

impl Watch {
    /// Of a port that is taken for up.
    pub(super) fn new(port: Arc<SubnetPort>, counters: Arc<Counters>) -> Self {
        let state = State { events: port.device.follow_events(), outages: Outages::default() };
        Self { port, state: Mutex::new(state), counters }
    }

    /// What is to be said of the port that was not said before.
    fn look(&self) -> Result<(), RawError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { events, outages } = &mut *state;
        let mut hear = |is_up| {
            if outages.hear(is_up) {
                count(&self.counters.link_down_events);
            }
        };
        while let Poll::Ready(followed) = events.try_next() {
            match followed {
                Some(Followed::Event(DeviceEvent::PortDown(port))) if port == self.port.port => hear(false),
                Some(Followed::Event(DeviceEvent::PortUp(port))) if port == self.port.port => hear(true),
                Some(Followed::Event(_) | Followed::Missed(_)) => {}
                None => return Err(RawError::LinkGone),
            }
        }
        // As it was when the socket was bound, and after events that were missed.
        hear(self.port.is_up()?);
        if outages.tell() { Err(RawError::LinkDown) } else { Ok(()) }
    }

    /// Until there is something to say.
    pub(super) async fn down(&self) -> RawError {
        let mut events = self.port.device.follow_events();
        loop {
            if let Err(error) = self.look() {
                return error;
            }
            if events.next().await.is_none() {
                return RawError::LinkGone;
            }
        }
    }
}
