//! Events of a device for layers beside the one that reads them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Weak;
use std::task::{Context, Poll, Waker};

use ibdev::DeviceEvent;

use super::core::Core;

/// The last events of a device, and who waits for the next one.
#[derive(Debug, Default)]
pub(super) struct Log {
    events: VecDeque<DeviceEvent>,
    /// How many were there before those.
    before: u64,
    followers: u64,
    waiting: Vec<(u64, Waker)>,
}

impl Log {
    /// Events that who follows them may be late by.
    const LEN: usize = 64;

    /// Adds an event. Those whom it returns are to be woken.
    pub(super) fn push(&mut self, event: DeviceEvent) -> impl Iterator<Item = Waker> + use<'_> {
        if self.events.len() == Self::LEN {
            self.events.pop_front();
            self.before += 1;
        }
        self.events.push_back(event);
        self.take_waiting()
    }

    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = Waker> + use<'_> {
        self.waiting.drain(..).map(|(_, waker)| waker)
    }

    pub(super) fn follow(&mut self, core: Weak<Core>) -> FollowedEvents {
        self.followers += 1;
        FollowedEvents { core, id: self.followers, next: self.before + self.events.len() as u64 }
    }

    /// The event with this number, or how many were missed.
    fn read(&self, next: u64) -> Option<Followed> {
        match next.checked_sub(self.before) {
            None => Some(Followed::Missed(self.before - next)),
            Some(at) => self.events.get(usize::try_from(at).ok()?).copied().map(Followed::Event),
        }
    }

    /// Has a follower woken with the next event. The waker that it has no more is not to be dropped under a lock.
    fn wait(&mut self, id: u64, waker: Option<&Waker>) -> Option<Waker> {
        let at = self.waiting.iter().position(|(other, _)| *other == id);
        let replaced = at.map(|at| self.waiting.swap_remove(at).1);
        self.waiting.extend(waker.map(|waker| (id, waker.clone())));
        replaced
    }
}

/// The events of a device since [`SoftDevice::follow_events`](crate::SoftDevice::follow_events), in their order.
#[derive(Debug)]
pub struct FollowedEvents {
    core: Weak<Core>,
    id: u64,
    next: u64,
}

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
        poll_fn(|cx| self.poll(Some(cx))).await
    }

    /// The next one, if it is there already; else it is pending, and nobody is woken.
    pub fn try_next(&mut self) -> Poll<Option<Followed>> {
        self.poll(None)
    }

    fn poll(&mut self, cx: Option<&Context<'_>>) -> Poll<Option<Followed>> {
        let Some(core) = self.core.upgrade() else { return Poll::Ready(None) };
        let mut state = core.lock();
        let log = &mut state.waiters.log;
        let Some(followed) = log.read(self.next) else {
            let replaced = cx.and_then(|cx| log.wait(self.id, Some(cx.waker())));
            drop(state);
            drop(replaced);
            return Poll::Pending;
        };
        self.next += match followed {
            Followed::Event(_) => 1,
            Followed::Missed(count) => count,
        };
        Poll::Ready(Some(followed))
    }
}

impl Drop for FollowedEvents {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let waiting = core.lock().waiters.log.wait(self.id, None);
        drop(waiting);
    }
}
