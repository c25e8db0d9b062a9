//! Device events that nobody has read yet.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use ibdev::DeviceEvent;

use crate::engine::Engine;

/// Device events in their order. Of equal ones only the last is kept, so that the last state of a port is what is read last;
/// of those about what is gone none, once they are many.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// With the number of each.
    queue: VecDeque<(u64, DeviceEvent)>,
    /// The number of the last of equal events. Others in the queue count no more.
    last: HashMap<DeviceEvent, u64, BuildHasherDefault<DefaultHasher>>,
    number: u64,
    /// How long the queue was when it was last looked through.
    swept: usize,
}

impl Events {
    pub(super) fn push(&mut self, event: DeviceEvent, engine: &Engine) {
        self.number += 1;
        self.last.insert(event, self.number);
        self.queue.push_back((self.number, event));
        // Seldom, so that many events cost no more each than few.
        if self.queue.len() >= 2 * self.swept + 64 {
            self.last.retain(|event, _| concerns(event, engine));
            self.queue.retain(|(number, event)| self.last.get(event) == Some(number));
            self.swept = self.queue.len();
        }
    }

    /// Takes the oldest. [`DeviceEvent::Gone`] is the last one, and stays for all who ask.
    pub(super) fn pop(&mut self) -> Option<DeviceEvent> {
        loop {
            let (number, event) = *self.queue.front()?;
            if event == DeviceEvent::Gone {
                return Some(event);
            }
            self.queue.pop_front();
            if self.last.get(&event) == Some(&number) {
                self.last.remove(&event);
                return Some(event);
            }
        }
    }
}

/// Whether what an event is about is still there.
fn concerns(event: &DeviceEvent, engine: &Engine) -> bool {
    match event {
        DeviceEvent::SrqLimit(number) => engine.has_srq(*number),
        event => event.queue_pair().is_none_or(|qpn| engine.has_qp(qpn)),
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
        let mut events = Events::default();
        let mut alive = Engine::new(Config::new(DeviceAttr::new("test", Guid(1), 1), Vec::new(), [1; 32]));
        let cq = alive.create_cq(2).unwrap();
        let create = QpCreate::new(QpType::Rc, cq, 1, 1);
        let qpn = alive.create_qp(&create).unwrap();
        events.push(DeviceEvent::CommEstablished(qpn), &alive);
        for dead in (100..10_000).filter(|dead| *dead != qpn.get()) {
            events.push(DeviceEvent::CommEstablished(Qpn::truncate(dead)), &alive);
            events.push(DeviceEvent::PortDown(1), &alive);
            events.push(DeviceEvent::PortUp(1), &alive);
            assert!(events.queue.len() < 100 && events.last.len() <= events.queue.len());
        }
        events.push(DeviceEvent::Gone, &alive);
        let mut read = Vec::new();
        while let Some(event) = events.pop().filter(|event| *event != DeviceEvent::Gone) {
            read.push(event);
        }
        assert_eq!(read[0], DeviceEvent::CommEstablished(qpn));
        let of_port =
            |event: &DeviceEvent| matches!(event, DeviceEvent::PortDown(_) | DeviceEvent::PortUp(_));
        read.retain(of_port);
        assert_eq!(read, [DeviceEvent::PortDown(1), DeviceEvent::PortUp(1)]);
        for _ in 0..2 {
            assert_eq!(events.pop(), Some(DeviceEvent::Gone));
        }
    }

    /// However many wait, each is looked at a few times only.
    #[test]
    fn many_events_of_what_is_there_are_kept() {
        let mut events = Events::default();
        let engine = Engine::new(Config::new(DeviceAttr::new("test", Guid(1), 1), Vec::new(), [1; 32]));
        let ports = || (0..=u8::MAX).map(DeviceEvent::PortUp);
        let mut sweeps = 0;
        for event in ports().chain(ports()).cycle().take(100_000) {
            let swept = events.swept;
            events.push(event, &engine);
            sweeps += usize::from(events.swept != swept || events.queue.len() == swept);
        }
        assert!(events.queue.len() <= 2 * 256 + 64 && sweeps < 1000, "{} sweeps", sweeps);
        let read: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(read.len(), 256);
        assert_eq!(read.last(), Some(&DeviceEvent::PortUp((99_999 & 0xff) as u8)));
    }
}
