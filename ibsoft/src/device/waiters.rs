//! Who waits for what.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::task::{Context, Waker};

use ibdev::DeviceEvent;
use tokio::sync::broadcast;

use crate::engine::{AgentId, CqId, Engine, EngineEvent};

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
    events: VecDeque<DeviceEvent>,
    /// Tells each event to all who follow them.
    followed: Option<broadcast::Sender<DeviceEvent>>,
    woken: Wakes,
}

/// To be woken once the mutex is free.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Wakes {
    wakers: Vec<Waker>,
    /// What is told to those who follow the events.
    news: Vec<(broadcast::Sender<DeviceEvent>, DeviceEvent)>,
}

impl Wakes {
    pub(super) fn wake(self) {
        for waker in self.wakers {
            waker.wake();
        }
        for (followed, event) in self.news {
            _ = followed.send(event); // nobody may follow them any more
        }
    }
}

/// Events that who follows them may be late by.
const FOLLOWED: usize = 64;

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

    pub(super) fn follow(&mut self) -> broadcast::Receiver<DeviceEvent> {
        self.followed.get_or_insert_with(|| broadcast::Sender::new(FOLLOWED)).subscribe()
    }

    pub(super) fn forget_cq(&mut self, cq: CqId) -> Option<Waker> {
        self.cqs.get_mut(cq.index())?.take()
    }

    pub(super) fn forget_agent(&mut self, agent: AgentId) -> [Option<Waker>; 2] {
        [self.received.remove(&agent), self.room.remove(&agent)]
    }

    /// Takes the oldest device event. The last one stays for all who ask.
    pub(super) fn next_event(&mut self) -> Option<DeviceEvent> {
        match self.events.front() {
            Some(DeviceEvent::Gone) => Some(DeviceEvent::Gone),
            _ => self.events.pop_front(),
        }
    }

    /// Takes an event of `engine`.
    pub(super) fn event(&mut self, event: EngineEvent, engine: &Engine) {
        let waker = match event {
            EngineEvent::CqReady(cq) => self.forget_cq(cq),
            EngineEvent::MadReady(agent) => self.received.remove(&agent),
            EngineEvent::MadRoom(agent) => self.room.remove(&agent),
            EngineEvent::Device(event) => return self.device_event(event, engine),
        };
        self.woken.wakers.extend(waker);
    }

    /// Keeps a device event for its reader. Of equal events only the last is kept, so that the last state of a port
    /// is what is read last.
    pub(super) fn device_event(&mut self, event: DeviceEvent, engine: &Engine) {
        match event {
            // Each comes once a QP. Those of QPs that were destroyed meanwhile tell nobody anything.
            DeviceEvent::CommEstablished(_)
            | DeviceEvent::QpError(_)
            | DeviceEvent::CqError(_)
            | DeviceEvent::QpAccessError(_)
            | DeviceEvent::QpRequestError(_)
            | DeviceEvent::LastWqeReached(_) => {
                if self.events.len() > 3 * engine.qp_count() + 64 {
                    self.events.retain(|event| concerns(event, engine));
                }
            }
            _ => self.events.retain(|old| *old != event && concerns(old, engine)),
        }
        self.events.push_back(event);
        self.woken.wakers.extend(self.reader.take());
        self.woken.news.extend(self.followed.clone().map(|followed| (followed, event)));
    }

    /// Wakes everyone: the device is gone.
    pub(super) fn wake_all(&mut self) {
        self.woken.wakers.extend(self.cqs.drain(..).flatten());
        for agents in [&mut self.received, &mut self.room] {
            self.woken.wakers.extend(agents.drain().map(|(_, waker)| waker));
        }
    }

    /// Whom to wake now.
    pub(super) fn take_woken(&mut self, engine: &Engine) -> Wakes {
        // The window has room whenever packets have left, not only after a refusal.
        if !self.room.is_empty() {
            let with_room = self.room.extract_if(|agent, _| engine.mad_room(*agent) > 0);
            self.woken.wakers.extend(with_room.map(|(_, waker)| waker));
        }
        std::mem::take(&mut self.woken)
    }
}

/// Whether what an event is about is still there.
fn concerns(event: &DeviceEvent, engine: &Engine) -> bool {
    match event {
        DeviceEvent::CommEstablished(qpn)
        | DeviceEvent::QpError(qpn)
        | DeviceEvent::CqError(qpn)
        | DeviceEvent::QpAccessError(qpn)
        | DeviceEvent::QpRequestError(qpn)
        | DeviceEvent::PathMigrated(qpn)
        | DeviceEvent::PathMigrationFailed(qpn)
        | DeviceEvent::SqDrained(qpn)
        | DeviceEvent::LastWqeReached(qpn) => engine.has_qp(*qpn),
        DeviceEvent::SrqLimit(number) => engine.has_srq(*number),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use ibdev::DeviceAttr;
    use ibdev::qp::QpType;
    use ibwire::{Guid, Qpn};

    use super::*;
    use crate::engine::{Config, QpCreate};

    #[test]
    fn events_are_merged_and_bounded_but_never_lost() {
        let mut waiters = Waiters::default();
        let mut alive = Engine::new(Config::new(DeviceAttr::new("test", Guid(1), 1), Vec::new(), [1; 32]));
        let cq = alive.create_cq(2).unwrap();
        let create = QpCreate::new(QpType::Rc, cq, 1, 1);
        let qpn = alive.create_qp(&create).unwrap();
        waiters.device_event(DeviceEvent::CommEstablished(qpn), &alive);
        for dead in (100..10_000).filter(|dead| *dead != qpn.get()) {
            waiters.device_event(DeviceEvent::CommEstablished(Qpn::truncate(dead)), &alive);
            waiters.device_event(DeviceEvent::PortDown(1), &alive);
            waiters.device_event(DeviceEvent::PortUp(1), &alive);
        }
        assert!(waiters.events.len() < 100, "{}", waiters.events.len());
        let mut events = Vec::new();
        waiters.device_event(DeviceEvent::Gone, &alive);
        while waiters.events.len() > 1 {
            events.extend(waiters.next_event());
        }
        assert_eq!(events[0], DeviceEvent::CommEstablished(qpn));
        let ports: Vec<_> = events
            .into_iter()
            .filter(|e| matches!(e, DeviceEvent::PortDown(_) | DeviceEvent::PortUp(_)))
            .collect();
        assert_eq!(ports, [DeviceEvent::PortDown(1), DeviceEvent::PortUp(1)]);
        for _ in 0..2 {
            assert_eq!(waiters.next_event(), Some(DeviceEvent::Gone));
        }
    }
}
