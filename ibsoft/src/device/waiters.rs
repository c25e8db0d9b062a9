//! Who waits for what.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::task::{Context, Waker};

use ibdev::DeviceEvent;

use super::events::Events;
use super::follow::Log;
use crate::engine::{AgentId, CqId, Engine, EngineEvent};
use crate::foreign;

/// Keyed without randomness: under a seed the order of wakes is the same every time.
type Map<K> = HashMap<K, Waker, BuildHasherDefault<DefaultHasher>>;

/// Wakers by what they wait for, and device events that nobody has read yet.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// By the number of the completion queue.
    cqs: Vec<Option<Waker>>,
    received: Map<AgentId>,
    room: Map<AgentId>,
    reader: Option<Waker>,
    events: Events,
    /// For all who follow the events.
    pub(super) log: Log,
    woken: Wakes,
}

/// To be woken once the mutex is free.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Wakes(Vec<Waker>);

impl Wakes {
    pub(super) fn wake(self) {
        for waker in self.0 {
            foreign::call("a waker", || waker.wake());
        }
    }
}

impl Waiters {
    // Wakers that are not needed any more are handed out, not dropped: with the last waker a task may go, and with the
    // task handles of this device, which want the mutex.

    pub(super) fn wait_cq(&mut self, cq: CqId, cx: &Context<'_>) -> Option<Waker> {
        let index = cq.index();
        if index >= self.cqs.len() {
            self.cqs.resize(index + 1, None);
        }
        self.cqs[index].replace(cx.waker().clone())
    }

    pub(super) fn wait_mad(&mut self, agent: AgentId, cx: &Context<'_>) -> Option<Waker> {
        self.received.insert(agent, cx.waker().clone())
    }

    pub(super) fn wait_room(&mut self, agent: AgentId, cx: &Context<'_>) -> Option<Waker> {
        self.room.insert(agent, cx.waker().clone())
    }

    pub(super) fn wait_event(&mut self, cx: &Context<'_>) -> Option<Waker> {
        self.reader.replace(cx.waker().clone())
    }

    pub(super) fn forget_cq(&mut self, cq: CqId) -> Option<Waker> {
        self.cqs.get_mut(cq.index())?.take()
    }

    pub(super) fn forget_agent(&mut self, agent: AgentId) -> [Option<Waker>; 2] {
        [self.received.remove(&agent), self.room.remove(&agent)]
    }

    /// Takes the oldest device event. The last one stays for all who ask.
    pub(super) fn next_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop()
    }

    /// Takes an event of `engine`.
    pub(super) fn event(&mut self, event: EngineEvent, engine: &Engine) {
        let waker = match event {
            EngineEvent::CqReady(cq) => self.forget_cq(cq),
            EngineEvent::MadReady(agent) => self.received.remove(&agent),
            EngineEvent::MadRoom(agent) => self.room.remove(&agent),
            EngineEvent::Device(event) => return self.device_event(event, engine),
        };
        self.woken.0.extend(waker);
    }

    /// Keeps a device event for its reader.
    pub(super) fn device_event(&mut self, event: DeviceEvent, engine: &Engine) {
        self.events.push(event, engine);
        self.woken.0.extend(self.reader.take());
        self.woken.0.extend(self.log.push(event));
    }

    /// Those who follow the events, of which there are no more.
    pub(super) fn take_followers(&mut self) -> Wakes {
        Wakes(self.log.take_waiting().collect())
    }

    /// Wakes everyone: the device is gone.
    pub(super) fn wake_all(&mut self) {
        self.woken.0.extend(self.cqs.drain(..).flatten());
        for agents in [&mut self.received, &mut self.room] {
            self.woken.0.extend(agents.drain().map(|(_, waker)| waker));
        }
    }

    /// Whom to wake now.
    pub(super) fn take_woken(&mut self, engine: &Engine) -> Wakes {
        // The window has room whenever packets have left, not only after a refusal.
        if !self.room.is_empty() {
            let with_room = self.room.extract_if(|agent, _| engine.mad_room(*agent) > 0);
            self.woken.0.extend(with_room.map(|(_, waker)| waker));
        }
        std::mem::take(&mut self.woken)
    }
}
