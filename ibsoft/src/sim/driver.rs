//! The task that moves what is on the wires.
//!
//! It works off packets and timers in the order of their times, each at its own time, although tokio's timers only
//! come up every millisecond: within that the subnet catches up by itself. So its time is finer than tokio's, and
//! under the same seed and a paused clock everything happens in the same order.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};

use super::fabric::{Configured, Event, PortId};
use super::frame::{self, Content};
use super::subnet::Inner;

/// Events before other tasks get their turn.
const BUDGET: usize = 256;

/// Runs until the subnet is dropped. If the runtime ends first, its devices are gone.
pub(super) fn run(subnet: Weak<Inner>) -> impl Future<Output = ()> {
    let mut task = Task { subnet, sleep: None };
    poll_fn(move |cx| task.poll(cx))
}

#[derive(Debug)]
struct Task {
    subnet: Weak<Inner>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Task {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(subnet) = self.subnet.upgrade() else { return Poll::Ready(()) };
        // Whoever sends while this runs need not wake it: it looks again before it rests.
        subnet.wires.driver().task = None;
        for _ in 0..BUDGET {
            let now = tokio::time::Instant::now().into_std();
            let next = subnet.wires.fabric().next_event(now);
            match next {
                Some((due, event)) => subnet.happen(due, event),
                None if self.rest(&subnet, cx) => {}
                None => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Arranges to be woken for what is due next. Whether to look again at once.
    fn rest(&mut self, subnet: &Inner, cx: &mut Context<'_>) -> bool {
        let due = {
            let fabric = subnet.wires.fabric();
            let due = fabric.next_due();
            let mut driver = subnet.wires.driver();
            driver.task = Some(cx.waker().clone());
            driver.alarm = due;
            due
        };
        let Some(due) = due else { return false };
        let due = due.into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        sleep.as_mut().poll(cx).is_ready()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(subnet) = self.subnet.upgrade() {
            subnet.remove_all();
        }
    }
}

impl Inner {
    fn happen(&self, due: Instant, event: Event) {
        match event {
            Event::Timer { hca } => {
                self.device(hca).0.drive(due, |engine, now| engine.handle_timeout(now));
            }
            Event::Mishap => self.mishaps(due),
            Event::Configured(configured) => self.configure(due, configured),
            Event::Arrival { to, frame } => {
                let PortId { node: hca, port } = to;
                let content = frame::decode(&frame);
                if let Err(error) = content {
                    self.wires.fabric().count_damaged(to, error);
                }
                self.device(hca).0.drive(due, |engine, now| match content {
                    Ok(Content::Transport(net, transport)) => {
                        engine.handle_packet(now, port, &net, &frame[transport]);
                    }
                    Ok(Content::Raw(packet)) => engine.handle_raw_packet(port, &frame[packet]),
                    Err(error) => engine.handle_link_error(error.into()),
                });
            }
        }
    }

    /// Tells HCAs what they are to learn of their ports.
    pub(super) fn configure_all(&self, now: Instant) {
        loop {
            let next = self.wires.fabric().take_configured();
            let Some(configured) = next else { return };
            self.configure(now, configured);
        }
    }

    fn configure(&self, now: Instant, configured: Configured) {
        let Configured { hca, tables, reregister } = configured;
        self.device(hca).0.drive(now, |engine, _| {
            let port = tables.attr.number;
            engine.set_port(tables.attr);
            if engine.gids(port) != tables.gids {
                engine.set_gids(port, tables.gids);
            }
            if engine.pkeys(port) != tables.pkeys {
                engine.set_pkeys(port, tables.pkeys);
            }
            if reregister {
                engine.reregister(port);
            }
        });
    }
}
