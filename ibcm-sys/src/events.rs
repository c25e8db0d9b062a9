//! What a device reports on its own, kept for who asks.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ibdev::DeviceEvent;
use ibwire::Qpn;

/// The events of a device that nobody has read, and whether it is gone. Those of a slow reader are merged, so there are
/// never more than kinds times ports, queue pairs and shared receive queues.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: Mutex<Queue>,
    gone: AtomicBool,
    watchers: Mutex<HashMap<u64, Waker>>,
    next_watcher: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<DeviceEvent>,
    reader: Option<Waker>,
}

impl Events {
    pub(crate) fn push(&self, event: DeviceEvent) {
        let reader = {
            let mut queue = self.queue();
            // Of a port that goes down and up the last state is read last.
            queue
                .events
                .retain(|old| *old != event && port_state(old).is_none_or(|p| Some(p) != port_state(&event)));
            queue.events.push_back(event);
            queue.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Forgets what was to be said of a queue pair: its number may be another's soon.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.queue().events.retain(|event| event.queue_pair() != Some(qpn));
    }

    /// The device is gone: for all who ask, from now on. True for the first who says so.
    pub(crate) fn set_gone(&self) -> bool {
        if self.gone.swap(true, Ordering::AcqRel) {
            return false;
        }
        let reader = self.queue().reader.take();
        let watchers = std::mem::take(&mut *self.watchers());
        for waker in reader.into_iter().chain(watchers.into_values()) {
            waker.wake();
        }
        true
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        let mut queue = self.queue();
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(event);
        }
        queue.reader = Some(cx.waker().clone());
        // Who sets the flag takes the reader afterwards, under the mutex that is held here.
        if self.is_gone() { Poll::Ready(DeviceEvent::Gone) } else { Poll::Pending }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watchers(&self) -> MutexGuard<'_, HashMap<u64, Waker>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits for something of the device, and has to know when it is gone.
#[derive(Debug)]
pub(crate) struct GoneWatch {
    events: Arc<Events>,
    id: u64,
}

impl GoneWatch {
    pub(crate) fn new(events: &Arc<Events>) -> Self {
        Self { events: events.clone(), id: events.next_watcher.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.events.is_gone()
    }

    /// True if the device is gone; else the task is woken when it is. Wakes the last task that asked.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> bool {
        self.events.watchers().insert(self.id, cx.waker().clone());
        // Who sets the flag takes the wakers afterwards.
        self.is_gone()
    }
}

impl Drop for GoneWatch {
    fn drop(&mut self) {
        let waker = self.events.watchers().remove(&self.id);
        drop(waker);
    }
}

/// The port whose state it tells.
fn port_state(event: &DeviceEvent) -> Option<u8> {
    match event {
        DeviceEvent::PortUp(port) | DeviceEvent::PortDown(port) => Some(*port),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(events: &Events) -> Vec<DeviceEvent> {
        let mut all = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(event) = events.poll_next(&mut cx) {
            all.push(event);
            if event == DeviceEvent::Gone {
                break;
            }
        }
        all
    }

    #[test]
    fn events_of_a_slow_reader_are_merged() {
        let (events, qp) = (Events::default(), Qpn::truncate(7));
        for _ in 0..3 {
            events.push(DeviceEvent::PortDown(1));
            events.push(DeviceEvent::QpError(qp));
            events.push(DeviceEvent::PortUp(1));
            events.push(DeviceEvent::PortDown(2));
        }
        events.push(DeviceEvent::QpError(Qpn::truncate(8)));
        events.forget(Qpn::truncate(8));
        assert_eq!(
            all(&events),
            [DeviceEvent::QpError(qp), DeviceEvent::PortUp(1), DeviceEvent::PortDown(2)]
        );
    }

    #[test]
    fn gone_is_told_to_all_who_ask_and_wakes_who_waits() {
        struct Bell(AtomicU64);
        impl std::task::Wake for Bell {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (events, bell) = (Arc::new(Events::default()), Arc::new(Bell(AtomicU64::new(0))));
        let waker = Waker::from(bell.clone());
        let mut cx = Context::from_waker(&waker);
        let watches = [GoneWatch::new(&events), GoneWatch::new(&events), GoneWatch::new(&events)];
        assert!(watches.iter().all(|watch| !watch.poll(&cx)) && events.poll_next(&mut cx).is_pending());
        let [dropped, watches @ ..] = watches;
        drop(dropped);
        assert!(events.set_gone() && !events.set_gone());
        assert_eq!(bell.0.load(Ordering::Relaxed), 3);
        assert!(watches.iter().all(|watch| watch.poll(&cx)));
        for _ in 0..2 {
            assert_eq!(all(&events), [DeviceEvent::Gone]);
        }
    }
}
