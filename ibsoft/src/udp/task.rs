//! The I/O task: receives, keeps time, sends what callers could not.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::Interest;
use tokio::time::{Sleep, sleep_until};

use super::link::Io;
use super::receive::Receiver;
use crate::device::Core;

/// The only port of a device over UDP.
const PORT: u8 = 1;
/// Packets between two flushes: acknowledgements leave before a peer's window is used up.
const FLUSH_EVERY: usize = 64;
/// Rounds before other tasks get their turn.
const BUDGET: usize = 16;

/// Drives the device until its last handle is gone. If the runtime ends first, the device is gone.
pub(super) fn run(core: Weak<Core>, io: Weak<Io>) -> impl Future<Output = ()> {
    let mut task = Task { core, io, receiver: Receiver::new(), sleep: None };
    poll_fn(move |cx| task.poll(cx))
}

#[derive(Debug)]
struct Task {
    core: Weak<Core>,
    io: Weak<Io>,
    receiver: Receiver,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Task {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (Some(core), Some(io)) = (self.core.upgrade(), self.io.upgrade()) else { return Poll::Ready(()) };
        // Whoever arms the alarm while this runs need not wake it: it looks again before it rests.
        io.signals().task = None;
        for _ in 0..BUDGET {
            let mut progress = false;
            for socket in 0..io.sockets.len() {
                match self.receive(cx, &core, &io, socket) {
                    Ok(received) => progress |= received,
                    // The runtime is shutting down.
                    Err(_) => return Poll::Ready(()),
                }
            }
            if !progress && !self.keep_time(cx, &core, &io) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Receives one batch. Whether to look again.
    fn receive(&mut self, cx: &mut Context<'_>, core: &Core, io: &Io, socket: usize) -> io::Result<bool> {
        let from = &io.sockets[socket];
        match from.socket.poll_recv_ready(cx) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => return Ok(false),
        }
        let capture = io.capture.as_ref();
        let received = from.socket.try_io(Interest::READABLE, || self.receiver.recv(from, capture));
        match received {
            Ok(()) => {
                let mut batch = self.receiver.batch().peekable();
                while batch.peek().is_some() {
                    core.drive(now(), |engine, now| {
                        for (net, transport) in batch.by_ref().take(FLUSH_EVERY) {
                            engine.handle_packet(now, PORT, net, transport);
                        }
                        // A flood must not keep timers from expiring.
                        engine.handle_timeout(now);
                    });
                }
            }
            // The next readiness has to be waited for, which the next poll does.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Such as an ICMP message about an earlier packet, which the transport's timers take care of.
            Err(error) => {
                self.receiver.counters.errors += 1;
                tracing::debug!(local = %from.local, %error, "receiving failed");
            }
        }
        io.signals().received = self.receiver.counters;
        Ok(true)
    }

    /// Does what is due, and arranges to be woken for what is not. Whether to look again.
    fn keep_time(&mut self, cx: &mut Context<'_>, core: &Core, io: &Io) -> bool {
        let (alarm, blocked) = {
            let mut signals = io.signals();
            signals.task = Some(cx.waker().clone());
            (signals.alarm, signals.blocked)
        };
        let has_room = blocked.is_some_and(|socket| io.sockets[socket].socket.poll_send_ready(cx).is_ready());
        if has_room {
            io.signals().unblock();
        }
        let is_due = alarm.is_some_and(|alarm| self.poll_sleep(cx, alarm).is_ready());
        if is_due {
            io.signals().alarm = None;
        }
        if has_room || is_due {
            io.signals().task = None;
            // The flush at the end sets the next alarm.
            core.drive(now(), |engine, now| engine.handle_timeout(now));
        }
        has_room || is_due
    }

    fn poll_sleep(&mut self, cx: &mut Context<'_>, alarm: Instant) -> Poll<()> {
        let alarm = alarm.into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(alarm)));
        if sleep.deadline() != alarm {
            sleep.as_mut().reset(alarm);
        }
        sleep.as_mut().poll(cx)
    }
}

impl Drop for Task {
    /// If the device is still there the runtime has ended: nobody will receive or keep time any more.
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.remove();
        }
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
